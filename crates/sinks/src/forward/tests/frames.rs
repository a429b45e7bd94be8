//! The frames on the wire.

use millstream_record::{Batch, Encoding, Values};
use rmpv::Value;

use super::{server::Act, *};
use crate::rig::{RECEIVED, lines, packed, try_build};

/// Sends one batch with these options and returns the frames that arrive.
fn sent(batch: millstream_record::Batch, more: &str) -> Vec<Received> {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::memory();
        let receipt = upstream.put(batch, true);
        upstream.close();
        rig(&upstream, &options(&[&server], more))
            .run()
            .await
            .unwrap();
        if !more.contains("false") {
            assert!(settled(&receipt));
        }
        server.has(1).await;
        server.received()
    })
}

#[test]
fn a_packed_batch_travels_unchanged() {
    let batch = packed("web.a", "one\ntwo\n");
    let frames = sent(batch.clone(), "");
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].tag, "web.a");
    assert_eq!(frames[0].marker, 0xdb, "str 32, as fluentd sends it");
    assert_eq!(frames[0].payload, batch.body);
    assert_eq!(frames[0].option("size"), Some(&2.into()));
    assert_eq!(frames[0].option("compressed"), Some(&"text".into()));
    assert_eq!(frames[0].option("millstream"), None);
}

#[test]
fn lines_become_records_with_the_receive_time() {
    let frames = sent(lines("t", "one\ntwo\n"), "");
    assert_eq!(frames[0].messages(), ["one", "two"]);
    let time = [
        &[0x92, 0xd7, 0][..],
        &1_700_000_000_u32.to_be_bytes(),
        &123_456_789_u32.to_be_bytes(),
    ];
    assert_eq!(frames[0].payload[..11], time.concat());
}

#[test]
fn between_two_millstreams_lines_stay_lines_and_values_travel_along() {
    let mut batch = lines("t", "one\ntwo\n");
    let mut values = Values::new();
    values.set("host", "a1");
    batch.values = std::sync::Arc::new(values);
    let frames = sent(batch.clone(), r#", "peer": "millstream""#);
    assert_eq!(frames[0].marker, 0xc9, "ext 32");
    assert_eq!(frames[0].payload, batch.body);
    let ours = frames[0].option("millstream").unwrap();
    assert_eq!(ours["received"], Value::from(1_700_000_000_123_456_789_i64));
    assert_eq!(ours["values"]["host"], Value::from("a1"));
}

#[test]
fn add_writes_fields_into_the_records_and_overwrites_none() {
    let frames = sent(
        packed("t", "one\n"),
        r#", "add": {"message": "x", "tag": "{tag}"}"#,
    );
    let record = rmpv::decode::read_value(&mut &frames[0].payload[..]).unwrap();
    assert_eq!(record[1]["message"], Value::from("one"));
    assert_eq!(record[1]["tag"], Value::from("t"));
}

#[test]
fn a_record_that_add_cannot_complete_leaves_by_the_rejected_port() {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::memory();
        let receipt = upstream.put(lines("t", "one\n"), true);
        upstream.close();
        let options = options(&[&server], r#", "add": {"host": "{host}"}"#);
        rig(&upstream, &options).run().await.unwrap();
        assert!(settled(&receipt));
        assert_eq!(upstream.rejected().len(), 1);
        assert!(server.received().is_empty());
    });
}

#[test]
fn with_time_integer_times_are_sent_as_whole_seconds() {
    let frames = sent(packed("t", "one\ntwo\n"), r#", "time": "integer""#);
    assert_eq!(
        frames[0].payload[..6],
        [&[0x92, 0xce][..], &1_600_000_000_u32.to_be_bytes()].concat()
    );
    assert_eq!(frames[0].messages(), ["one", "two"]);
}

/// `[[time, {"trace": "t"}], {"message": text}]` as newer versions of Fluent Bit write it, and the same entry without the
/// metadata.
fn with_metadata(text: &str) -> [Vec<u8>; 2] {
    let time = [
        &[0xd7, 0][..],
        &1_600_000_000_u32.to_be_bytes(),
        &[0, 0, 0, 9],
    ]
    .concat();
    let record = [b"\x81\xa7message\xa3", text.as_bytes()].concat();
    let header = [&[0x92, 0x92][..], &time, b"\x81\xa5trace\xa1t", &record].concat();
    [header, [&[0x92][..], &time, &record].concat()]
}

#[test]
fn metadata_is_sent_only_with_keep_or_to_another_millstream() {
    let [one, plain_one] = with_metadata("one");
    let [_, plain_two] = with_metadata("two");
    let mut batch = packed("t", "one\ntwo\n");
    batch.body = [one, plain_two.clone()].concat().into();
    for more in [
        r#", "metadata": "keep""#,
        r#", "peer": "millstream""#,
        r#", "peer": "millstream", "metadata": "keep""#,
    ] {
        assert_eq!(sent(batch.clone(), more)[0].payload, batch.body, "{more}");
    }
    let expected = [plain_one, plain_two].concat();
    for more in [
        "",
        r#", "metadata": "drop""#,
        r#", "metadata": "drop", "peer": "millstream""#,
    ] {
        assert_eq!(sent(batch.clone(), more)[0].payload, expected);
    }
    // A batch whose source has set `plain` (no metadata) is not searched.
    let known = Batch {
        plain: true,
        ..batch.clone()
    };
    assert_eq!(sent(known, "")[0].payload, batch.body);
    // Without metadata the batch travels unchanged.
    batch.body = expected.into();
    assert_eq!(
        sent(batch.clone(), r#", "metadata": "drop""#)[0].payload,
        batch.body
    );
}

#[test]
fn dropped_metadata_is_counted_and_logged_once() {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::memory();
        let [one, _] = with_metadata("one");
        // `[[time, {}], record]`: dropping the empty map loses nothing, so this is not counted.
        let empty = [&one[..12], b"\x80", &one[21..]].concat();
        let mut batch = packed("t", "one\ntwo\n");
        batch.body = [one, empty].concat().into();
        let receipt = upstream.put(batch, true);
        upstream.close();
        let mut rig = rig(&upstream, &options(&[&server], ""));
        rig.run().await.unwrap();
        assert!(settled(&receipt));
        assert_eq!(server.received()[0].messages(), ["one", "one"]);
        assert_eq!(rig.meter("metadata_dropped"), 1);
    });
}

#[test]
fn payloads_are_compressed_as_configured() {
    use millstream_wire::compression::{Codec, Inflated, Inflater};
    for (name, codec) in [("gzip", Codec::Gzip), ("zstd", Codec::Zstd)] {
        let batch = packed("t", &"the same again\n".repeat(1000));
        let frames = sent(batch.clone(), &format!(r#", "compression": "{name}""#));
        assert_eq!(frames[0].option("compressed"), Some(&name.into()));
        assert!(frames[0].payload.len() < batch.len() / 10);
        let mut out = Vec::with_capacity(batch.len() + 1);
        let done = Inflater::new(codec)
            .unwrap()
            .inflate(&frames[0].payload, &mut out);
        assert_eq!((done, &out[..]), (Ok(Inflated::Done), &batch.body[..]));
    }
}

#[test]
fn without_acks_no_id_is_sent() {
    let frames = sent(packed("t", "one\n"), r#", "ack": false"#);
    assert!(frames[0].id.is_empty());
}

#[test]
fn waiting_small_batches_are_sent_as_one_chunk_per_tag() {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::memory();
        let mut receipts = Vec::new();
        for number in 0..10 {
            receipts.push(upstream.put(packed("a", &format!("a{number}\n")), true));
            receipts.push(upstream.put(lines("b", &format!("b{number}\n")), true));
        }
        upstream.close();
        rig(&upstream, &options(&[&server], ""))
            .run()
            .await
            .unwrap();
        assert!(receipts.iter().all(settled));
        let frames = server.received();
        assert_eq!(frames.len(), 2);
        let expected = |tag: &str| (0..10).map(|n| format!("{tag}{n}")).collect::<Vec<_>>();
        assert_eq!(frames[0].messages(), expected("a"));
        assert_eq!(frames[1].messages(), expected("b"));
        assert_eq!(frames[1].option("size"), Some(&10.into()));
    });
}

#[test]
fn behind_a_durable_channel_every_frame_is_a_chunk_whose_id_contains_its_position() {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::durable(0xfeed);
        for number in 0..3 {
            upstream.put(packed("a", &format!("{number}\n")), false);
        }
        upstream.close();
        let options = options(&[&server], r#", "peer": "millstream""#);
        rig(&upstream, &options).run().await.unwrap();
        assert_eq!(upstream.settled(), 3);
        let frames = server.received();
        assert_eq!(frames.len(), 3);
        for (number, frame) in frames.iter().enumerate() {
            let id = String::from_utf8(frame.id[2..].to_vec()).unwrap();
            let expected = format!(
                "{:032x}.sink.1.{}.{RECEIVED}.0.0.1.00000000",
                0xfeed,
                number + 1
            );
            assert_eq!(id, expected);
        }
    });
}

/// Sends these batches, which processors have made from one position, and returns the frames that arrive.
fn sent_together(batches: Vec<Batch>, more: &str) -> Vec<Received> {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::durable(7);
        upstream.put_parts(batches);
        upstream.put(packed("next", "last\n"), false);
        upstream.close();
        let options = options(&[&server], more);
        rig(&upstream, &options).run().await.unwrap();
        assert_eq!(upstream.settled(), 2);
        server.received()
    })
}

fn id(frame: &Received) -> String {
    String::from_utf8(frame.id[2..].to_vec()).unwrap()
}

#[test]
fn to_another_millstream_all_batches_of_a_position_travel_in_one_chunk() {
    let mut valued = lines("b", "two\nthree\n");
    let mut values = Values::new();
    values.set("host", "a1");
    valued.values = std::sync::Arc::new(values);
    let batches = vec![packed("a", "one\n"), valued.clone(), packed("a", "four\n")];
    for more in ["", r#", "compression": "gzip""#, r#", "balance": "all""#] {
        let more = format!(r#", "peer": "millstream"{more}"#);
        let frames = sent_together(batches.clone(), &more);
        assert_eq!(frames.len(), 2);
        assert_eq!(
            id(&frames[0]),
            format!("{:032x}.sink.1.1.{RECEIVED}.0.0.1.00000000", 7)
        );
        assert_eq!(frames[0].option("size"), Some(&4.into()));
        assert_eq!(
            frames[0].option("millstream").unwrap()["frames"],
            Value::from(3)
        );
        if more.contains("gzip") {
            continue;
        }
        assert_eq!(frames[1].messages(), ["last"]);
        let mut payload = &frames[0].payload[..];
        let mut tags = Vec::new();
        while !payload.is_empty() {
            let frame = rmpv::decode::read_value(&mut payload).unwrap();
            if frame[0] == Value::from("b") {
                assert_eq!(frame[1], Value::Ext(76, valued.body.to_vec()));
                assert_eq!(frame[2]["millstream"]["values"]["host"], Value::from("a1"));
            }
            tags.push(frame[0].as_str().unwrap().to_owned());
        }
        assert_eq!(tags, ["a", "b", "a"]);
    }
    // Other receivers do not know bundles.
    let frames = sent_together(batches, "");
    assert_eq!(frames.len(), 4);
    assert!(
        frames
            .iter()
            .all(|frame| frame.option("millstream").is_none())
    );
}

#[test]
fn a_position_that_is_too_large_for_a_chunk_becomes_several_and_the_last_one_says_how_many() {
    let text = format!("{}\n", "x".repeat(1000)).repeat(5_000);
    let batches: Vec<Batch> = ["a", "b", "c"].map(|tag| packed(tag, &text)).into();
    for more in [
        r#", "peer": "millstream", "in_flight": "64MiB""#,
        r#", "in_flight": "64MiB""#,
    ] {
        let frames = sent_together(batches.clone(), more);
        assert_eq!(frames.len(), 4);
        let ids: Vec<String> = frames.iter().map(id).collect();
        let of = |number: usize| format!("{:032x}.sink.1.1.{RECEIVED}.0.{number}.", 7);
        assert!(ids[0].starts_with(&(of(0) + "0.")), "{ids:?}");
        assert!(ids[1].starts_with(&(of(1) + "0.")), "{ids:?}");
        assert!(ids[2].starts_with(&(of(2) + "3.")), "{ids:?}");
    }
}

#[test]
fn a_batch_that_is_too_large_for_a_chunk_is_split_between_records() {
    let line = "x".repeat(1000);
    let text = format!("{line}\n").repeat(20_000);
    for batch in [lines("t", &text), packed("t", &text)] {
        assert!(batch.len() > 16 << 20);
        let frames = sent(batch.clone(), r#", "peer": "millstream""#);
        assert!(frames.len() > 2);
        let whole: Vec<u8> = frames
            .iter()
            .flat_map(|frame| frame.payload.clone())
            .collect();
        assert!(whole == batch.body);
        let sizes = frames
            .iter()
            .map(|frame| frame.option("size").unwrap().as_u64().unwrap());
        assert_eq!(sizes.sum::<u64>(), 20_000);
        if batch.encoding == Encoding::Packed {
            let counts = frames.iter().map(|frame| frame.messages().len());
            assert_eq!(counts.sum::<usize>(), 20_000);
        }
    }
}

#[test]
fn wrong_options_are_reported_by_name() {
    for (options, word) in [
        (r#"{}"#, "at least one"),
        (r#"{"servers": []}"#, "at least one"),
        (r#"{"discovery": {}}"#, "`file` or `dns`"),
        (
            r#"{"discovery": {"file": "a", "dns": "b"}}"#,
            "`file` or `dns`",
        ),
        (r#"{"discovery": {"dns": "a b"}}"#, "is not a server"),
        (r#"{"discovery": {"dns": "a", "interval": "0s"}}"#, "longer"),
        (r#"{"servers": "tcp://a"}"#, "scheme"),
        (
            r#"{"servers": [{"address": "a", "standby": true}]}"#,
            "standby",
        ),
        (r#"{"servers": [{"adress": "a"}]}"#, "adress"),
        (r#"{"servers": ["a", "a:24224"]}"#, "already"),
        (r#"{"servers": "a", "retry": {"give_up": "soon"}}"#, "soon"),
        (r#"{"servers": "a", "peer": "fluentd"}"#, "fluentd"),
        (
            r#"{"servers": "a", "heartbeat": {"interval": "0s"}}"#,
            "longer than 0",
        ),
        (
            r#"{"servers": "a", "heartbeat": {"interval": "4s"}}"#,
            "twice",
        ),
        (
            r#"{"servers": ["a", {"address": "b", "standby": true}], "balance": "all"}"#,
            "stand by",
        ),
        (r#"{"servers": "a", "window": "1MiB"}"#, "window"),
    ] {
        let problems = try_build(&COMPONENT, options).err().expect(options);
        assert!(
            problems.iter().any(|problem| problem.contains(word)),
            "{options}: {problems:?}"
        );
    }
    let good = r#"{"servers": ["a", {"address": "b:1", "weight": 10, "standby": true}], "retry": {"give_up": "6h"}}"#;
    assert!(try_build(&COMPONENT, good).is_ok());
}

#[test]
fn batches_with_different_values_share_a_chunk_where_values_are_not_sent() {
    for (more, chunks) in [("", 1), (r#", "peer": "millstream""#, 2)] {
        local(async {
            let server = Server::start(|_| Act::Ack).await;
            let upstream = Upstream::memory();
            for peer in ["10.0.0.1", "10.0.0.2"] {
                let mut values = Values::new();
                values.set("peer", peer);
                let batch = millstream_record::Batch {
                    values: std::sync::Arc::new(values),
                    ..packed("t", "x\n")
                };
                upstream.put(batch, true);
            }
            upstream.close();
            let options = options(&[&server], more);
            rig(&upstream, &options).run().await.unwrap();
            assert_eq!(server.received().len(), chunks);
        });
    }
}

#[test]
fn a_tag_that_the_next_millstream_would_always_refuse_is_rejected() {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::memory();
        let tag = "t".repeat(9000);
        let receipts = [
            upstream.put(packed(&tag, "a\nb\n"), true),
            upstream.put(packed("good", "c\n"), true),
        ];
        upstream.close();
        let options = options(&[&server], r#", "peer": "millstream""#);
        rig(&upstream, &options).run().await.unwrap();
        assert!(receipts.iter().all(settled));
        assert_eq!(server.received().len(), 1);
        assert_eq!(upstream.rejected()[0].count, 2);
    });
}
