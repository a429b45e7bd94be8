//! Tests of every mode of the protocol, as clients use it.

use std::{net::UdpSocket, os::unix::net::UnixStream};

use millstream_record::{Encoding, Time, Values};
use millstream_wire::{
    compression::{Codec, compress},
    forward::{Compressed, Options, Signal, write_frame_head, write_options},
};

use super::*;

#[test]
fn every_mode_is_kept_byte_for_byte_and_acked() {
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let mut gzip = Vec::new();
    compress(Codec::Gzip, &entries(20..25), &mut gzip).unwrap();
    compress(Codec::Gzip, &entries(25..30), &mut gzip).unwrap();
    let mut zstd = Vec::new();
    compress(Codec::Zstd, &entries(30..40), &mut zstd).unwrap();
    let mut forward = vec![0x93, 0xa3, b't', b'.', b'a', 0x9a];
    forward.extend_from_slice(&entries(10..20));
    forward.extend_from_slice(&option(Some("b"), "text"));
    let frames = [
        packed("t.a", &entries(0..10), Some("a")),
        forward,
        packed_as("t.a", &gzip, Some("c"), "gzip"),
        packed_as("t.a", &zstd, Some("d"), "zstd"),
        message("t.a", 40, Some("e")),
        packed("t.a", &entries(41..20_000), Some("f")),
    ];
    for (frame, chunk) in frames.iter().zip(["a", "b", "c", "d", "e", "f"]) {
        write(&mut stream, frame);
        expect_acks(&mut stream, &[chunk]);
    }
    let batches = taken.records(20_000);
    assert_eq!(body(&batches), entries(0..20_000));
    let ids: Vec<_> = ["a", "b", "c", "d", "e", "f"]
        .iter()
        .map(|id| ack(id)[5..].to_vec())
        .collect();
    assert_eq!(chunk_ids(&batches), ids);
    assert!(batches.iter().all(|batch| batch.tag.as_str() == "t.a"
        && batch.values.get("host") == Some("127.0.0.1")
        && batch.values.get("peer") == Some("127.0.0.1")));
    assert_eq!(server.count("chunks_acked"), 6);
}

#[test]
fn the_groups_of_fluent_bit_become_metadata_and_their_marks_no_records() {
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let mut stream = server.connect();
    // [[-1, {}], {"resource": "r"}], [[1, {}], {"n": 1}], [[-2, {}], {}]
    let begin = b"\x92\x92\xd7\x00\xff\xff\xff\xff\0\0\0\0\x80\x81\xa8resource\xa1r";
    let record = b"\x92\x92\x01\x80\x81\xa1n\x01";
    let end = b"\x92\x92\xd7\x00\xff\xff\xff\xfe\0\0\0\0\x80\x80";
    let group = [&begin[..], record, end].concat();
    let mut gzip = Vec::new();
    compress(Codec::Gzip, &group, &mut gzip).unwrap();
    let mut message = b"\x94\xa1t".to_vec();
    message.extend_from_slice(&end[1..]);
    message.extend_from_slice(&option(Some("c"), "text"));
    write(&mut stream, &packed("t", &group, Some("a")));
    write(&mut stream, &packed_as("t", &gzip, Some("b"), "gzip"));
    write(&mut stream, &message);
    write(
        &mut stream,
        &packed("t", &[&begin[..], end].concat(), Some("d")),
    );
    write(
        &mut stream,
        &packed("t", &[&group[..], &entry(5)].concat(), Some("e")),
    );
    expect_acks(&mut stream, &["a", "b", "c", "d", "e"]);
    let one = b"\x92\x92\x01\x81\xa8resource\xa1r\x81\xa1n\x01";
    let batches = taken.records(4);
    assert_eq!(body(&batches), [&one.repeat(3)[..], &entry(5)].concat());
    assert!(batches.iter().all(|batch| !batch.plain));
    assert!(server.rejected.is_empty());
}

#[test]
fn a_group_whose_metadata_would_fill_the_memory_is_rejected_as_a_whole() {
    let taken = Taken::durable();
    let server = serve(&taken, "limits: { decompressed: 1MiB }");
    let mut stream = server.connect();
    let mut group = b"\x92\x92\xd7\x00\xff\xff\xff\xff\0\0\0\0\x80\x81\xa1r".to_vec();
    write_bin(&mut group, &[b'x'; 10_000]);
    group.extend(b"\x92\x92\x01\x80\x80".repeat(1000));
    write(&mut stream, &packed("t", &group, Some("a")));
    write(&mut stream, &packed("t", &entry(1), Some("b")));
    expect_acks(&mut stream, &["a", "b"]);
    assert_eq!(body(&taken.records(1)), entry(1));
    assert_eq!(records(&server.rejected.records(1)), 1);
}

#[test]
fn a_batch_says_whether_its_records_are_without_metadata() {
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let mut stream = server.connect();
    // [[1, {}], {"n": 1}]
    let nested = b"\x92\x92\x01\x80\x81\xa1n\x01";
    let mut message = b"\x94\xa1t".to_vec();
    message.extend_from_slice(&nested[1..]);
    message.extend_from_slice(&option(Some("d"), "text"));
    let long = [&entries(0..20_000)[..], nested].concat();
    let frames = [
        ("a", packed("t", &entries(0..2), Some("a")), 2, true),
        ("b", packed("t", nested, Some("b")), 1, false),
        (
            "c",
            packed("t", &entries(0..20_000), Some("c")),
            20_000,
            true,
        ),
        ("d", message, 1, false),
        ("e", packed("t", &long, Some("e")), 20_001, false),
    ];
    let mut total = 0;
    for (number, (chunk, frame, records, plain)) in frames.iter().enumerate() {
        write(&mut stream, frame);
        expect_acks(&mut stream, &[chunk]);
        total += records;
        let batches = taken.records(total);
        assert_eq!(batches.len(), number + 1);
        assert_eq!(batches[number].plain, *plain, "{chunk}");
    }
}

#[test]
fn a_configured_tag_may_contain_the_senders_tag() {
    let taken = Taken::durable();
    let server = serve(&taken, r#""tag": "edge.{tag}.{peer}""#);
    let mut stream = server.connect();
    write(&mut stream, &message("a", 0, Some("x")));
    write(&mut stream, &message("a", 1, Some("y")));
    write(&mut stream, &message("b", 2, Some("z")));
    expect_acks(&mut stream, &["x", "y", "z"]);
    let batches = taken.records(3);
    let mut tags: Vec<_> = batches.iter().map(|batch| batch.tag.as_str()).collect();
    tags.dedup();
    assert_eq!(tags, ["edge.a.127.0.0.1", "edge.b.127.0.0.1"]);
}

#[test]
fn fragmented_and_pipelined_frames_are_all_kept_in_order() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let mut input = Vec::new();
    for number in 0..3000 {
        input.extend_from_slice(&message("t", number, None));
    }
    input.extend_from_slice(&packed("t", &entries(3000..6000), None));
    for number in 6000..6100 {
        input.extend_from_slice(&packed("t", &entry(number), None));
    }
    let mut rest = &input[..];
    let mut size = 1;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        write(&mut stream, piece);
        rest = after;
        size = size * 7 % 50_021 + 1;
    }
    drop(stream);
    assert_eq!(body(&taken.records(6100)), entries(0..6100));
}

#[test]
fn small_messages_are_gathered_and_each_keeps_its_id() {
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let ids: Vec<String> = (0..500).map(|number| format!("id-{number}")).collect();
    let input: Vec<u8> = ids
        .iter()
        .enumerate()
        .flat_map(|(number, id)| message("t", number as u64, Some(id)))
        .collect();
    write(&mut stream, &input);
    let acks: Vec<u8> = ids.iter().flat_map(|id| ack(id)).collect();
    assert_eq!(read(&mut stream, acks.len()), acks);
    let batches = taken.records(500);
    assert!(
        batches.len() < 50,
        "{} batches for 500 messages",
        batches.len()
    );
    assert_eq!(body(&batches), entries(0..500));
    let mut number = 0;
    for batch in &batches {
        let mut end = 0;
        for origin in &batch.origins {
            let Origin::Chunk(chunk) = origin else {
                panic!("{origin:?}")
            };
            assert_eq!((chunk.start, chunk.records), (end, 1));
            assert_eq!(
                batch.body[chunk.start as usize..chunk.end as usize],
                entry(number)
            );
            assert_eq!(chunk.length as usize, entry(number).len() - 1);
            end = chunk.end;
            number += 1;
        }
        assert_eq!(end as usize, batch.len());
    }
    let numbers: Vec<u64> = batches
        .iter()
        .flat_map(|batch| &batch.origins)
        .filter_map(|origin| match origin {
            Origin::Chunk(chunk) => Some(chunk.connection),
            Origin::File(_) => None,
        })
        .collect();
    assert!(numbers.iter().all(|number| *number == numbers[0]));
}

#[test]
fn equal_chunks_on_two_connections_differ_only_in_the_connection_of_their_origin() {
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let frame = packed("t", &entries(0..5000), Some("same"));
    for _ in 0..2 {
        let mut stream = server.connect();
        write(&mut stream, &frame);
        expect_acks(&mut stream, &["same"]);
    }
    let batches = taken.records(10_000);
    let origins: Vec<_> = batches.iter().flat_map(|batch| &batch.origins).collect();
    let [Origin::Chunk(first), Origin::Chunk(second)] = &origins[..] else {
        panic!("{origins:?}")
    };
    assert_eq!(
        (&first.id, first.length, first.checksum),
        (&second.id, second.length, second.checksum)
    );
    assert_eq!(
        first.checksum,
        millstream_sys::checksum::crc32c(&entries(0..5000))
    );
    assert_ne!(first.connection, second.connection);
}

#[test]
fn a_forward_or_message_frame_larger_than_the_read_buffer_is_accepted() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let mut forward = vec![0x93, 0xa1, b't', 0xdc, 0x4e, 0x20];
    forward.extend_from_slice(&entries(0..20_000));
    forward.extend_from_slice(&option(Some("a"), "text"));
    let mut big = vec![0x94, 0xa1, b't', 0x01, 0x81, 0xa1, b'm'];
    write_str(&mut big, &vec![b'x'; 1_000_000]);
    big.extend_from_slice(&option(Some("b"), "text"));
    write(&mut stream, &forward);
    write(&mut stream, &big);
    write(&mut stream, &message("t", 7, Some("c")));
    expect_acks(&mut stream, &["a", "b", "c"]);
    let batches = taken.records(20_002);
    let body = body(&batches);
    assert!(body.starts_with(&entries(0..20_000)));
    assert!(body.ends_with(&entry(7)));
    drop(batches);
    taken.set(|state| state.batches.clear());
    drop(stream);
    server.wait("connections", 0);
    assert_eq!(server.pool.taken_bytes(), 0, "every buffer is back");
}

#[test]
fn a_json_client_gets_its_acks_in_json() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let mut stream = server.connect();
    write(
        &mut stream,
        b"[\"t.j\",1700000000,{\"n\":18446744073709551615},{\"chunk\":\"a\\\"b\"}]\n",
    );
    assert_eq!(read(&mut stream, 14), br#"{"ack":"a\"b"}"#);
    write(
        &mut stream,
        br#"["t.j",[[1,{"n":1}],[2,{"n":2}]],{"chunk":7}]"#,
    );
    assert_eq!(read(&mut stream, 9), br#"{"ack":7}"#);
    let batches = taken.records(3);
    let first = rmpv::decode::read_value(&mut &body(&batches)[..]).unwrap();
    assert_eq!(first[0].as_u64(), Some(1_700_000_000));
    assert_eq!(first[1]["n"].as_u64(), Some(u64::MAX));
}

#[test]
fn another_millstream_sends_lines_and_values() {
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let mut values = Values::new();
    values.set("host", "origin");
    values.set("path", "/var/log/x");
    values.set("peer", "another");
    let options = Options {
        chunk: Some(b"\xa1x"),
        size: Some(2),
        compressed: Compressed::No,
        signal: Signal::Logs,
        values: Some(values),
        received: Some(Time(5)),
        frames: None,
    };
    for lines in [b"one\ntwo\n".to_vec(), b"line\n".repeat(20_000)] {
        let mut frame = Vec::new();
        write_frame_head(&mut frame, b"t", Encoding::Lines, lines.len() as u32);
        frame.extend_from_slice(&lines);
        write_options(&mut frame, &options);
        write(&mut stream, &frame);
        assert_eq!(read(&mut stream, 7), b"\x81\xa3ack\xa1x");
    }
    let batches = taken.records(20_002);
    for batch in &batches {
        assert_eq!((batch.encoding, batch.received), (Encoding::Lines, Time(5)));
        let value = |name| batch.values.get(name);
        assert_eq!(
            (value("host"), value("path"), value("peer")),
            (Some("origin"), Some("/var/log/x"), Some("127.0.0.1"))
        );
    }
}

/// A bundle of these frames: tag, encoding, payload.
fn bundle(frames: &[(&str, Encoding, Vec<u8>)], count: u64, codec: Option<Codec>) -> Vec<u8> {
    let mut payload = Vec::new();
    for (tag, encoding, body) in frames {
        write_frame_head(&mut payload, tag.as_bytes(), *encoding, body.len() as u32);
        payload.extend_from_slice(body);
        let options = Options {
            received: Some(Time(5)),
            ..Options::default()
        };
        write_options(&mut payload, &options);
    }
    let compressed = match codec {
        None => Compressed::No,
        Some(codec) => {
            let mut packed = Vec::new();
            compress(codec, &payload, &mut packed).unwrap();
            payload = packed;
            Compressed::Gzip
        }
    };
    let options = Options {
        chunk: Some(b"\xa1x"),
        compressed,
        frames: Some(count),
        ..Options::default()
    };
    let mut frame = Vec::new();
    write_frame_head(&mut frame, b"a", Encoding::Packed, payload.len() as u32);
    frame.extend_from_slice(&payload);
    write_options(&mut frame, &options);
    frame
}

#[test]
fn the_frames_of_a_bundle_become_batches_with_its_id() {
    let frames = [
        ("a", Encoding::Packed, entries(0..2)),
        ("b", Encoding::Lines, b"one\n".to_vec()),
        ("a", Encoding::Packed, entries(2..3000)),
    ];
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let mut stream = server.connect();
    for codec in [None, Some(Codec::Gzip)] {
        write(&mut stream, &bundle(&frames, 3, codec));
        assert_eq!(read(&mut stream, 7), b"\x81\xa3ack\xa1x");
        let batches = taken.records(3001);
        assert_eq!(batches.len(), 3);
        for (batch, (tag, encoding, body)) in batches.iter().zip(&frames) {
            assert_eq!((batch.tag.as_str(), batch.encoding), (*tag, *encoding));
            assert_eq!((batch.received, &batch.body[..]), (Time(5), &body[..]));
        }
        assert_eq!(chunk_ids(&batches), vec![b"\xa1x".to_vec(); 3]);
        taken.set(|state| state.batches.clear());
    }
}

#[test]
fn a_bundle_that_is_not_what_its_options_state_is_rejected_after_some_attempts() {
    let good = ("a", Encoding::Packed, entries(0..2));
    let lines = |text: &[u8]| ("a", Encoding::Packed, text.to_vec());
    for (frames, count) in [
        (vec![good.clone()], 2),
        (vec![good.clone(), lines(b"\xc0")], 2),
        (vec![good.clone(), lines(b"")], 2),
        (vec![good; 3], 1 << 40),
    ] {
        let taken = Taken::durable();
        let server = serve(&taken, "");
        loop {
            let mut stream = server.connect();
            write(&mut stream, &bundle(&frames, count, None));
            let mut answer = [0; 7];
            if stream.read_exact(&mut answer).is_ok() {
                assert_eq!(&answer, b"\x81\xa3ack\xa1x");
                break;
            }
        }
        assert!(taken.is_empty());
        server.rejected.records(1);
    }
}

#[test]
fn a_unix_socket_speaks_the_whole_protocol_and_is_removed_with_the_source() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("forward.sock");
    // A dead process left its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let taken = Arc::new(Taken::default());
    let server = serve_at(&taken, &format!("unix://{}", path.display()), "");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write(&mut stream, &message("t", 1, Some("u")));
    expect_acks(&mut stream, &["u"]);
    let batches = taken.records(1);
    assert_eq!(
        (batches[0].values.get("host"), batches[0].values.get("peer")),
        (Some("here"), Some("unix"))
    );
    drop(stream);
    server.stopper.stop();
    server.ended.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(!path.exists());
}

#[test]
fn every_datagram_is_answered_with_one_zero() {
    let server = serve(&Arc::new(Taken::default()), "");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    for size in [0, 1, 200] {
        socket.send_to(&vec![7; size], server.address).unwrap();
        let mut answer = [9; 10];
        let (count, _) = socket.recv_from(&mut answer).unwrap();
        assert_eq!(answer[..count], [0]);
    }
}

#[test]
fn heartbeats_over_tcp_leave_no_trace() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    for _ in 0..50 {
        drop(server.connect());
    }
    let mut stream = server.connect();
    write(&mut stream, &[0xc0, 0x92, 0xa0, 0x90, 0xc0]);
    write(&mut stream, &message("t", 0, Some("x")));
    expect_acks(&mut stream, &["x"]);
    assert_eq!(taken.records(1).len(), 1);
    drop(stream);
    server.wait("connections", 0);
    assert_eq!(
        (
            server.count("frames_cut"),
            server.count("connections_refused"),
            server.count("values_skipped")
        ),
        (0, 0, 0)
    );
}
