//! Tests of which records are kept, and how the client is informed.

use std::{io::Write, os::unix::net::UnixStream, thread::sleep, time::Duration};

use millstream_record::Origin;
use millstream_testkit::{block_on, contract::SourceCase};
use millstream_wire::compression::{Codec, compress};
use serde_json::json;

use super::{COMPONENT, Rig, until};
use crate::rig::{Downstream, peer, try_build};

#[test]
fn a_request_is_answered_when_it_is_kept_and_not_before() {
    let rig = Rig::new("");
    rig.downstream.hold();
    let mut client = rig.connect();
    client.post("/", &[], b"{\"n\":1}\n{\"n\":2}\n");
    until("it is taken", || {
        rig.records() == [json!({"n": 1}), json!({"n": 2})]
    });
    sleep(Duration::from_millis(50));
    assert!(client.is_silent());
    rig.downstream.settle();
    let answer = client.answer();
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"accepted": 2}))
    );
    // The connection stays usable.
    client.post("/", &[], b"{\"n\":3}");
    assert_eq!(client.answer().status, 200);
    let batches = rig.downstream.batches();
    assert_eq!(batches.len(), 2);
    assert_eq!(
        (batches[0].tag.as_str(), batches[0].values.get("peer")),
        ("source", Some("unix"))
    );
    assert!(batches[0].origins.is_empty());
    drop(client);
    rig.running.stop();
}

#[test]
fn the_sender_of_a_lost_request_is_asked_to_retry() {
    let rig = Rig::new("");
    rig.downstream.hold();
    let mut client = rig.connect();
    client.post("/", &[], b"{}");
    until("it is taken", || !rig.records().is_empty());
    rig.downstream.drop_held();
    let answer = client.answer();
    assert_eq!(answer.status, 503);
    assert!(answer.has("retry-after: 5"), "{answer:?}");
    rig.running.stop();
}

#[test]
fn a_full_channel_is_reported_with_retry_after() {
    let rig = Rig::new(r#", "wait": "100ms""#);
    rig.downstream.set_full(true);
    let mut client = rig.connect();
    client.post("/", &[], b"{\"n\":1}");
    let answer = client.answer();
    assert_eq!(answer.status, 503);
    assert!(answer.has("retry-after: 1"));
    rig.downstream.set_full(false);
    client.post("/", &[], b"{\"n\":1}");
    assert_eq!(client.answer().status, 200);
    assert_eq!(rig.records(), [json!({"n": 1})]);
    until("both are counted", || {
        rig.running.meter("requests_kept") == 1
    });
    assert_eq!(rig.running.meter("requests_put_off"), 1);
    rig.running.stop();
}

#[test]
fn a_full_channel_accepts_no_request_and_delays_none_beyond_its_wait() {
    let rig = Rig::before(Downstream::durable(), r#", "wait": "300ms""#);
    rig.downstream.choke();
    // The request does not enter the queue of the channel.
    let answer = rig.post("/", &[], b"{\"n\":1}\nbad");
    assert_eq!(answer.status, 503);
    assert!(answer.has("retry-after: 1"));
    assert!(rig.records().is_empty());
    // A request that is already in the queue when the channel becomes full is answered, too.
    rig.downstream.settle();
    rig.downstream.hold();
    let mut client = rig.connect();
    client.post("/", &[], b"{\"n\":2}");
    until("it is taken", || !rig.records().is_empty());
    sleep(Duration::from_millis(500));
    assert!(client.is_silent(), "a slow channel is waited for");
    rig.downstream.choke();
    assert_eq!(client.answer().status, 503);
    rig.downstream.settle();
    assert_eq!(rig.post("/", &[], b"{\"n\":3}").status, 200);
    assert_eq!(rig.records(), [json!({"n": 2}), json!({"n": 3})]);
    // A full channel for rejected parts has the same effect.
    rig.running.rejected.choke();
    assert_eq!(rig.post("/", &[], b"{\"n\":4}\nbad").status, 503);
    assert_eq!(rig.records().len(), 2);
    rig.running.rejected.settle();
    rig.running.rejected.set_full(true);
    assert_eq!(rig.post("/", &[], b"{\"n\":5}\nbad").status, 503);
    assert!(rig.rejected().is_empty());
    rig.running.rejected.set_full(false);
    drop(client);
    rig.running.stop();
}

#[test]
fn good_lines_are_kept_and_bad_ones_are_rejected_and_named() {
    let rig = Rig::new("");
    let answer = rig.post("/", &[], b"{\"n\":1}\nnonsense\n{\"n\":2}\n[1]\n");
    assert_eq!(answer.status, 200);
    let expected = json!({
        "accepted": 2,
        "rejected": 2,
        "errors": ["line 2, byte 2: `true`, `false` or `null` expected", "line 4, byte 1: an object expected"],
    });
    assert_eq!(answer.json(), expected);
    assert_eq!(rig.records(), [json!({"n": 1}), json!({"n": 2})]);
    let aside = [
        (
            "line 2, byte 2: `true`, `false` or `null` expected",
            "nonsense",
        ),
        ("line 4, byte 1: an object expected", "[1]"),
    ];
    let aside = aside.map(|(reason, message)| (reason.to_owned(), message.to_owned()));
    assert_eq!(rig.rejected(), aside);
    rig.running.stop();
}

#[test]
fn a_request_without_a_record_stays_with_its_sender() {
    let rig = Rig::new("");
    let answer = rig.post("/", &[], b"one\ntwo\n");
    assert_eq!(answer.status, 400);
    let text = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(
        text.starts_with("line 1, byte 1: a value expected; line 2, byte 2"),
        "{text}"
    );
    assert_eq!(rig.post("/", &[], b"").json(), json!({"accepted": 0}));
    assert!(rig.records().is_empty() && rig.rejected().is_empty());
    rig.running.stop();
}

#[test]
fn many_bad_lines_are_all_rejected() {
    let rig = Rig::new("");
    let text = "x\n".repeat(3000) + "{}";
    let answer = rig.post("/", &[], text.as_bytes());
    assert_eq!(answer.json()["rejected"], json!(3000));
    let aside = rig.rejected();
    assert_eq!(aside.len(), 1025);
    let lines: usize = aside
        .iter()
        .map(|(_, message)| message.lines().count())
        .sum();
    assert_eq!(lines, 3000);
    rig.running.stop();
}

#[test]
fn compressed_bodies_are_read() {
    let rig = Rig::new("");
    let text: String = (0..20_000).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    for (codec, name) in [(Codec::Gzip, "gzip"), (Codec::Zstd, "ZSTD")] {
        let mut body = Vec::new();
        compress(codec, text.as_bytes(), &mut body).unwrap();
        let header = format!("Content-Encoding: {name}");
        let answer = rig.post("/", &[&header], &body);
        assert_eq!(answer.json(), json!({"accepted": 20_000}));
        let answer = rig.post("/", &[&header], &body[..body.len() / 2]);
        assert_eq!(answer.status, 400);
        assert_eq!(rig.post("/", &[&header], b"garbage").status, 400);
    }
    assert_eq!(rig.records().len(), 40_000);
    rig.running.stop();
}

/// The sink `http` sends it with `compression: deflate`, and the Collector with `zlib` or
/// `deflate`.
#[test]
fn deflated_bodies_are_read() {
    let rig = Rig::new("");
    let text: String = (0..20_000).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    let body = encoder.finish().unwrap();
    for name in ["deflate", "zlib"] {
        let header = format!("Content-Encoding: {name}");
        let answer = rig.post("/", &[&header], &body);
        assert_eq!(answer.json(), json!({"accepted": 20_000}));
        let answer = rig.post("/", &[&header], &body[..body.len() / 2]);
        assert_eq!(answer.status, 400);
        assert_eq!(rig.post("/", &[&header], b"garbage").status, 400);
    }
    assert_eq!(rig.records().len(), 40_000);
    rig.running.stop();
}

/// The Collector sends `snappy` (blocks; frames in old versions), `x-snappy-framed` and `lz4`.
#[test]
fn bodies_in_snappy_and_lz4_are_read() {
    let rig = Rig::new("");
    let text: String = (0..20_000).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let block = snap::raw::Encoder::new()
        .compress_vec(text.as_bytes())
        .unwrap();
    let mut frames = snap::write::FrameEncoder::new(Vec::new());
    frames.write_all(text.as_bytes()).unwrap();
    let frames = frames.into_inner().unwrap();
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(text.as_bytes()).unwrap();
    let lz4 = lz4.finish().unwrap();
    for (name, body) in [
        ("snappy", &block),
        ("Snappy", &frames),
        ("x-snappy-framed", &frames),
        ("lz4", &lz4),
    ] {
        let header = format!("Content-Encoding: {name}");
        let answer = rig.post("/", &[&header], body);
        assert_eq!(answer.json(), json!({"accepted": 20_000}), "{name}");
        assert_eq!(rig.post("/", &[&header], b"garbage").status, 400, "{name}");
    }
    assert_eq!(rig.records().len(), 80_000);
    rig.running.stop();
}

#[test]
fn the_answer_to_a_body_with_the_wrong_compression_names_the_header() {
    let rig = Rig::new("");
    for (codec, name) in [(Codec::Gzip, "gzip"), (Codec::Zstd, "zstd")] {
        let mut packed = Vec::new();
        compress(codec, b"{\"n\":1}\n", &mut packed).unwrap();
        let header = format!("Content-Encoding: {name}");
        let cut = &packed[..packed.len() - 5];
        for (headers, body, why) in [
            (
                &[&*header][..],
                &b"{\"n\":1}\n"[..],
                format!("but its body is not {name}"),
            ),
            (
                &[&*header],
                cut,
                format!("ends before its {name} data are complete"),
            ),
            (&[], &packed, format!("send it with the header `{header}`")),
        ] {
            let answer = rig.post("/", headers, body);
            let error = answer.json()["error"].as_str().unwrap().to_owned();
            assert_eq!(answer.status, 400, "{error}");
            assert!(error.contains(&why) && error.contains(&header), "{error}");
        }
    }
    assert!(rig.records().is_empty() && rig.rejected().is_empty());
    rig.running.stop();
}

#[test]
fn every_element_of_an_array_is_kept_or_rejected() {
    let rig = Rig::new("");
    let answer = rig.post("/", &[], b"[{\"ok\":1},2,{\"ok\":3}]");
    let errors = ["line 1, byte 11: an object expected"];
    let expected = json!({"accepted": 2, "rejected": 1, "errors": errors});
    assert_eq!((answer.status, answer.json()), (200, expected));
    let answer = rig.post("/", &[], b"[2,{\"ok\":4}]");
    assert_eq!(
        (answer.status, &answer.json()["accepted"]),
        (200, &json!(1))
    );
    // The sender cut this array off; the element before the cut is whole.
    let answer = rig.post("/", &[], b"[{\"ok\":5},");
    let errors = ["line 1, byte 11: more of the array expected"];
    let expected = json!({"accepted": 1, "rejected": 1, "errors": errors});
    assert_eq!((answer.status, answer.json()), (200, expected));
    assert_eq!(rig.post("/", &[], b"[1,2]").status, 400);
    let kept = [1, 3, 4, 5].map(|n| json!({"ok": n}));
    assert_eq!(rig.records(), kept);
    let messages: Vec<_> = rig
        .rejected()
        .into_iter()
        .map(|(_, message)| message)
        .collect();
    assert_eq!(messages, ["2", "2", ""]);
    rig.running.stop();
}

#[test]
fn an_idempotency_key_goes_to_the_channel_as_an_origin() {
    let rig = Rig::before(Downstream::durable(), "");
    let key = "Idempotency-Key: 0123456789abcdef0123456789abcdef";
    for body in [b"{\"n\":1}", b"{\"n\":1}", b"{\"n\":2}"] {
        assert_eq!(rig.post("/", &[key], body).status, 200);
    }
    let ids: Vec<_> = rig
        .downstream
        .batches()
        .iter()
        .map(|batch| match &batch.origins[..] {
            [Origin::Chunk(chunk)] => {
                assert_eq!((chunk.start, chunk.end as usize), (0, batch.len()));
                assert_eq!((chunk.records, chunk.length), (1, 7));
                (chunk.id.clone(), chunk.checksum)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[0].0, ids[2].0);
    assert_ne!(ids[0].1, ids[2].1);
    // A MessagePack string of 48 bytes. Unlike the hash of a content it has a prefix, and it is long enough to be unique.
    assert_eq!(
        ids[0].0[..],
        [
            b"\xd9\x30idempotency-key ".as_slice(),
            &key.as_bytes()[17..]
        ]
        .concat()
    );
    let long = format!("Idempotency-Key: {}", "x".repeat(1025));
    for key in [long.as_str(), "Idempotency-Key:"] {
        assert_eq!(rig.post("/", &[key], b"{}").status, 400);
    }
    rig.running.stop();
}

#[test]
fn the_tag_may_follow_the_path() {
    let rig = Rig::new(r#", "tag": "http.*", "path": "/*""#);
    rig.post("/app/web/", &[], b"{}");
    rig.post("/app?x=1", &[], b"{}");
    let tags: Vec<String> = rig
        .downstream
        .batches()
        .iter()
        .map(|batch| batch.tag.as_str().to_owned())
        .collect();
    assert_eq!(tags, ["http.app.web", "http.app"]);
    rig.running.stop();
}

#[test]
fn a_stop_answers_what_is_in_flight() {
    let rig = Rig::new("");
    rig.downstream.hold();
    let (mut client, mut idle) = (rig.connect(), rig.connect());
    client.post("/", &[], b"{}");
    until("it is taken", || !rig.records().is_empty());
    let downstream = rig.downstream.clone();
    let settle = std::thread::spawn(move || {
        sleep(Duration::from_millis(200));
        downstream.settle();
    });
    rig.running.stop();
    settle.join().unwrap();
    assert_eq!(client.answer().status, 200);
    assert!(client.is_closed() && idle.is_closed());
}

#[test]
fn it_keeps_the_contract_of_sources() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let options = format!("{{\"listen\": \"unix://{}\"}}", socket.display());
    let body = "{\"n\":1}\nnonsense\n{\"n\":2}\n";
    let request = format!(
        "POST / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let connect = move || UnixStream::connect(&socket);
    let case = SourceCase {
        build: &|| try_build(&COMPONENT, &options).unwrap(),
        peer: Some(peer(connect, request.into(), "HTTP/1.1 200 OK\r\n")),
        records: 3,
        rejected: 1,
        directory: "unused".as_ref(),
    };
    block_on(case.check());
}
