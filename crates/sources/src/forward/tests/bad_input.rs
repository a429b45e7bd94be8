//! Tests of bad input: how it is handled, and that good input is not affected.

use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_wire::compression::{Codec, compress};

use super::*;

/// The `message` (original bytes) of each rejected record, with its reason.
fn rejected(server: &Server, count: u32) -> Vec<(String, Vec<u8>)> {
    let batches = server.rejected.records(count);
    let body = body(&batches);
    let mut rest = &body[..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        let entry = rmpv::decode::read_value(&mut rest).unwrap();
        let record = &entry[1];
        assert_eq!(record["node"].as_str(), Some("in"));
        let reason = record["reason"].as_str().unwrap().to_owned();
        found.push((reason, record["message"].as_slice().unwrap().to_vec()));
    }
    found
}

#[test]
fn bad_entries_are_rejected_and_the_good_ones_kept_and_acked() {
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let small = [
        &entry(0)[..],
        &[0x07],
        &entry(1),
        &[0x92, 0x01, 0xc0],
        &entry(2),
    ]
    .concat();
    let long = [
        &entries(3..5000)[..],
        &[0x93, 0x01, 0x02, 0x03],
        &entries(5000..9000),
    ]
    .concat();
    let mut forward = vec![0x93, 0xa1, b't', 0x93];
    forward.extend_from_slice(&[&entry(9000)[..], &[0xa1, b'x'], &entry(9001)].concat());
    forward.extend_from_slice(&option(Some("c"), "text"));
    write(&mut stream, &packed("t", &small, Some("a")));
    write(&mut stream, &packed("t", &long, Some("b")));
    write(&mut stream, &forward);
    expect_acks(&mut stream, &["a", "b", "c"]);
    assert_eq!(body(&taken.records(9002)), entries(0..9002));
    let bytes: Vec<Vec<u8>> = rejected(&server, 4)
        .into_iter()
        .map(|(_, bytes)| bytes)
        .collect();
    assert_eq!(
        bytes,
        [
            vec![0x07],
            vec![0x92, 0x01, 0xc0],
            vec![0x93, 1, 2, 3],
            vec![0xa1, b'x']
        ]
    );
}

#[test]
fn rejected_records_count_as_memory() {
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let bad = [&[0xc6, 0, 0x40, 0, 0], &vec![b'x'; 4 << 20][..]].concat();
    let payload = [&entry(0)[..], &bad, &entry(1)].concat();
    write(&mut stream, &packed("t", &payload, Some("a")));
    expect_acks(&mut stream, &["a"]);
    assert_eq!(rejected(&server, 1)[0].1, bad);
    // The channel of this test does not copy the batch, so the memory of the batch is still in use.
    let forget = |taken: &Taken| taken.set(|state| state.batches.clear());
    forget(&taken);
    assert!(server.pool.taken_bytes() >= bad.len());
    forget(&server.rejected);
    drop(stream);
    let give_up = std::time::Instant::now() + PATIENCE;
    while server.pool.taken_bytes() > 0 {
        assert!(std::time::Instant::now() < give_up, "it never comes back");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_long_json_frame_counts_as_memory_after_its_conversion() {
    let server = serve(&Taken::durable(), "");
    server.rejected.set(|state| state.full = true);
    let mut stream = server.connect();
    // An array that is not a frame. Each of its numbers becomes a float of nine bytes.
    let text = format!("[{}]", vec!["-0"; 300_000].join(","));
    let packed = 300_000 * 9;
    write(&mut stream, text.as_bytes());
    // While the port `rejected` is full, the connection holds the text, the array in MessagePack, and its rejected record.
    let give_up = std::time::Instant::now() + PATIENCE;
    while server.pool.taken_bytes() < text.len() + 2 * packed {
        let pool = &server.pool;
        assert!(std::time::Instant::now() < give_up, "{pool:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.rejected.set(|state| state.full = false);
    assert_eq!(rejected(&server, 1)[0].1.len(), packed + 5);
}

#[test]
fn long_json_frames_that_wait_for_memory_let_each_other_finish() {
    // Each number becomes a float of nine bytes, so the first frame needs three times its length, and then memory for its batch. The
    // second frame needs less than the smallest buffer.
    let numbers = vec!["-0"; 7_000].join(",");
    let text = "x".repeat(20_000);
    for (bytes, value) in [
        (2 << 20, format!("[{numbers}]")),
        ((2 << 20) - (64 << 10), format!("\"{text}\"")),
    ] {
        check_frames_that_wait(Pool::new(bytes), &format!(r#"["t",1,{{"m":{value}}}]"#));
    }
}

fn check_frames_that_wait(pool: Pool, frame: &str) {
    const FRAMES: u32 = 30;
    let taken = Arc::new(Taken::default());
    let server = serve_within(pool, &taken, "tcp://127.0.0.1:0", "");
    taken.set(|state| state.full = true);
    // Takes nearly all memory for incoming data, so the frames below wait.
    let mut first = server.connect();
    let count = (1_300 << 10) / entry(0).len() as u64;
    write(&mut first, &packed("t", &entries(0..count), None));
    let give_up = std::time::Instant::now() + PATIENCE;
    while server.pool.taken_bytes() < 1_200 << 10 {
        assert!(std::time::Instant::now() < give_up, "{:?}", server.pool);
        std::thread::sleep(Duration::from_millis(5));
    }
    let connect = |_| {
        let mut stream = server.connect();
        write(&mut stream, frame.as_bytes());
        stream
    };
    let _streams: Vec<_> = (0..FRAMES).map(connect).collect();
    server.wait("connections", u64::from(FRAMES) + 1);
    std::thread::sleep(Duration::from_millis(300));
    taken.set(|state| state.full = false);
    let (mut arrived, give_up) = (0, std::time::Instant::now() + PATIENCE);
    while arrived < FRAMES + count as u32 {
        assert!(std::time::Instant::now() < give_up, "{:?}", server.pool);
        taken.set(|state| {
            arrived += records(&state.batches);
            state.batches.clear();
        });
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_bad_message_is_rejected_and_acked_in_order() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let pair =
        |bytes: &[u8], id: &str| [&[0x94, 0xa1, b't'], bytes, &option(Some(id), "text")].concat();
    let bad: [&[u8]; 4] = [
        &[0x01, 0xc0],
        &[0x01, 0x07],
        &[0xc2, 0x80],
        &[0xd4, 5, 0, 0x80],
    ];
    let mut expected = Vec::new();
    for (number, bytes) in bad.iter().enumerate() {
        let (good, wrong) = (format!("g{number}"), format!("w{number}"));
        write(&mut stream, &message("t", number as u64, Some(&good)));
        write(&mut stream, &pair(bytes, &wrong));
        expected.extend_from_slice(&[ack(&good), ack(&wrong)].concat());
    }
    assert_eq!(read(&mut stream, expected.len()), expected);
    assert_eq!(body(&taken.records(4)), entries(0..4));
    let bytes: Vec<Vec<u8>> = rejected(&server, 4)
        .into_iter()
        .map(|(_, bytes)| bytes)
        .collect();
    assert_eq!(bytes, bad);
}

#[test]
fn a_float_is_a_time() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let float = [&[0xcb][..], &1.5_f64.to_be_bytes()].concat();
    write(
        &mut stream,
        &[&[0x93, 0xa1, b't'][..], &float, &[0x80]].concat(),
    );
    let entry = [&[0x92][..], &float, &[0x80]].concat();
    write(&mut stream, &packed("t", &entry, Some("x")));
    expect_acks(&mut stream, &["x"]);
    let stamp = [0x92, 0xd7, 0, 0, 0, 0, 1, 0x1d, 0xcd, 0x65, 0, 0x80];
    assert_eq!(body(&taken.records(2)), [stamp, stamp].concat());
}

#[test]
fn a_nil_time_becomes_the_receive_time_and_zero_stays() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let mut stream = server.connect();
    write(&mut stream, &[0x93, 0xa1, b't', 0xc0, 0x80]);
    write(
        &mut stream,
        &packed("t", &[0x92, 0xc0, 0x80, 0x92, 0x00, 0x80], Some("x")),
    );
    expect_acks(&mut stream, &["x"]);
    let body = body(&taken.records(3));
    let stamp = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().unwrap());
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert_eq!(
        (body.len(), &body[..3], &body[12..15]),
        (27, &[0x92, 0xd7, 0][..], &[0x92, 0xd7, 0][..])
    );
    assert!(now - u64::from(stamp(3)) < 60 && now - u64::from(stamp(15)) < 60);
    assert_eq!(body[24..], [0x92, 0x00, 0x80]);
}

#[test]
fn an_incomplete_payload_is_refused_three_times_before_its_whole_records_are_kept() {
    let taken = Taken::durable();
    let server = serve(&taken, "poison_after: 3");
    for (name, whole) in [("small", 3), ("large", 5000)] {
        let good = entries(0..whole);
        let cut = &entry(whole)[..20];
        let frame = packed("t", &[&good[..], cut].concat(), Some(name));
        for _ in 0..3 {
            let mut stream = server.connect();
            write(&mut stream, &frame);
            assert!(is_closed(&mut stream), "{name}");
            assert!(taken.is_empty(), "nothing of a refused try is kept");
        }
        let mut stream = server.connect();
        write(&mut stream, &frame);
        expect_acks(&mut stream, &[name]);
        assert_eq!(body(&taken.records(whole as u32)), good);
        assert_eq!(chunk_ids(&taken.records(whole as u32)).len(), 1);
        taken.set(|state| state.batches.clear());
        let rejected_now = rejected(&server, 1);
        assert_eq!(rejected_now[0].1, cut);
        server.rejected.set(|state| state.batches.clear());
    }
    assert_eq!(server.count("chunks_refused"), 6);
}

#[test]
fn a_payload_with_invalid_messagepack_is_refused_once_before_its_good_records_are_kept() {
    let taken = Taken::durable();
    let server = serve(&taken, "poison_after: 1");
    let rest = [&[0xc1][..], &entries(2..4)].concat();
    let frame = packed("t", &[&entries(0..2)[..], &rest].concat(), Some("x"));
    let mut stream = server.connect();
    write(&mut stream, &frame);
    assert!(is_closed(&mut stream));
    let mut stream = server.connect();
    write(&mut stream, &frame);
    expect_acks(&mut stream, &["x"]);
    assert_eq!(body(&taken.records(2)), entries(0..2));
    assert_eq!(rejected(&server, 1)[0].1, rest);
}

#[test]
fn a_payload_that_cannot_be_decompressed_is_refused_and_then_rejected_whole() {
    let taken = Taken::durable();
    let server = serve(&taken, "poison_after: 1, limits: { decompressed: 100KB }");
    let mut gzip = Vec::new();
    compress(Codec::Gzip, &entries(0..100), &mut gzip).unwrap();
    let mut bomb = Vec::new();
    compress(Codec::Zstd, &vec![0x01; 10_000_000], &mut bomb).unwrap();
    let cases = [
        ("c", "gzip", gzip[..gzip.len() - 9].to_vec()),
        ("n", "gzip", b"this is not gzip at all".to_vec()),
        ("z", "zstd", b"this is not zstd at all".to_vec()),
        ("b", "zstd", bomb),
        ("u", "lzma", entries(0..3)),
    ];
    for (id, codec, payload) in &cases {
        let frame = packed_as("t", payload, Some(id), codec);
        let mut stream = server.connect();
        write(&mut stream, &frame);
        assert!(is_closed(&mut stream), "{id}");
        let mut stream = server.connect();
        write(&mut stream, &frame);
        expect_acks(&mut stream, &[id]);
    }
    assert!(taken.is_empty());
    let found: Vec<Vec<u8>> = rejected(&server, 5)
        .into_iter()
        .map(|(_, bytes)| bytes)
        .collect();
    let expected: Vec<Vec<u8>> = cases.into_iter().map(|(_, _, payload)| payload).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_good_records_of_a_bad_payload_without_an_id_are_kept_immediately() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let mut stream = server.connect();
    write(
        &mut stream,
        &packed("t", &[&entries(0..2)[..], &[0x92, 0x01]].concat(), None),
    );
    write(&mut stream, &message("t", 2, Some("x")));
    expect_acks(&mut stream, &["x"]);
    assert_eq!(body(&taken.records(3)), entries(0..3));
    assert_eq!(rejected(&server, 1)[0].1, [0x92, 0x01]);
}

#[test]
fn metrics_and_traces_of_fluent_bit_are_dropped_and_acked_and_hold_up_no_logs() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let mut stream = server.connect();
    let frame = |payload: &[u8], signal: u8, id: u8| {
        let mut frame = vec![0x93, 0xa1, b't'];
        write_bin(&mut frame, payload);
        frame.extend_from_slice(b"\x82\xadfluent_signal");
        frame.extend_from_slice(&[signal, 0xa5]);
        frame.extend_from_slice(b"chunk\xa1");
        frame.push(id);
        frame
    };
    // Payloads that would be records, that are none, and one that is announced before it is read.
    let long = vec![0x80; 100_000];
    let list = [
        &[0x93, 0xa1, b't', 0x91, 0x92, 0x01, 0x80][..],
        b"\x81\xadfluent_signal\x01",
    ]
    .concat();
    let cases = [&entries(0..3)[..], b"\x80\x80", &long];
    for (id, payload) in (b'a'..).zip(cases) {
        write(&mut stream, &frame(payload, 1 + id % 2, id));
        assert_eq!(
            read(&mut stream, 7),
            [b"\x81\xa3ack\xa1", &[id][..]].concat()
        );
    }
    write(&mut stream, &list);
    write(&mut stream, &message("t", 0, Some("x")));
    expect_acks(&mut stream, &["x"]);
    assert_eq!(body(&taken.records(1)), entries(0..1));
    server.wait("frames_dropped", 4);
    assert!(server.rejected.is_empty());
}

#[test]
fn a_frame_cut_off_by_the_end_of_the_connection_is_neither_kept_nor_acked() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let frames = [
        packed("t", &entries(0..10), Some("x")),
        packed("t", &entries(0..10_000), Some("x")),
        message("t", 0, Some("x")),
    ];
    for (number, frame) in frames.iter().enumerate() {
        for end in [1, frame.len() / 2, frame.len() - 1] {
            let mut stream = server.connect();
            write(&mut stream, &frame[..end]);
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(is_closed(&mut stream), "frame {number} cut at {end}");
        }
    }
    server.wait("frames_cut", 9);
    assert!(taken.is_empty());
}

#[test]
fn garbage_closes_the_connection_and_a_whole_frame_before_it_is_kept() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        &[0x93, 0xc1, 0x00],
        &[0xc1],
    ] {
        let mut stream = server.connect();
        write(&mut stream, &message("t", 0, None));
        write(&mut stream, garbage);
        assert!(is_closed(&mut stream));
    }
    server.wait("connections_refused", 3);
    assert_eq!(records(&taken.records(3)), 3);
}

#[test]
fn stray_values_and_misfit_arrays_leave_the_connection_open() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "");
    let mut stream = server.connect();
    write(&mut stream, &[0x07, 0x80, 0x90, 0x92, 0xa1, b't', 0x05]);
    let misfit = [&[0x94, 0x07, 0x01, 0x80][..], &option(Some("m"), "text")].concat();
    write(&mut stream, &misfit);
    write(&mut stream, &message("t", 0, Some("x")));
    expect_acks(&mut stream, &["m", "x"]);
    assert_eq!(body(&taken.records(1)), entry(0));
    let found: Vec<Vec<u8>> = rejected(&server, 3)
        .into_iter()
        .map(|(_, bytes)| bytes)
        .collect();
    assert_eq!(found, [vec![0x90], vec![0x92, 0xa1, b't', 0x05], misfit]);
    assert_eq!(server.count("values_skipped"), 2);
}

#[test]
fn a_frame_above_the_limit_closes_the_connection() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "limits: { frame: 100KB }");
    let mut big = vec![
        0x93, 0xa1, b't', 0x01, 0x81, 0xa1, b'm', 0xdb, 0, 0x10, 0, 0,
    ];
    big.resize(300_000, b'x');
    for frame in [packed("t", &entries(0..5000), Some("x")), big] {
        let mut stream = server.connect();
        // The server may close before everything is written.
        let _ = stream.write_all(&frame);
        assert!(is_closed(&mut stream));
    }
    server.wait("connections_refused", 2);
    assert!(taken.is_empty());
}

#[test]
fn damaged_bytes_never_stop_the_server_nor_keep_its_memory() {
    // A panic is caught and ends only its connection, so the test needs a hook to see it.
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let data = thread.name().is_some_and(|name| name.starts_with("data-"));
        PANICS.fetch_add(usize::from(data), Ordering::Relaxed);
        before(panic);
    }));
    let taken = Taken::durable();
    let server = serve(&taken, "poison_after: 0");
    let mut gzip = Vec::new();
    compress(Codec::Gzip, &entries(0..50), &mut gzip).unwrap();
    let mut forward = vec![0x93, 0xa1, b't', 0x9a];
    forward.extend_from_slice(&entries(0..10));
    forward.extend_from_slice(&option(Some("f"), "text"));
    let sound = [
        message("t", 1, None),
        packed("t", &entries(0..20), Some("a")),
        forward,
        packed_as("t", &gzip, Some("c"), "gzip"),
        packed("t", &entries(0..600), Some("l")),
        message("t", 2, Some("m")),
    ]
    .concat();
    // Any sequence of bytes works, if it is the same in each run.
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for _ in 0..300 {
        let mut bytes = sound.clone();
        for _ in 0..=random(4) {
            let place = random(bytes.len());
            bytes[place] = random(256) as u8;
        }
        bytes.truncate(1 + random(bytes.len()));
        let mut stream = server.connect();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // Reads acks until the server closes the connection.
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
    }
    let mut stream = server.connect();
    write(&mut stream, &message("t", 0, Some("x")));
    expect_acks(&mut stream, &["x"]);
    drop(stream);
    server.wait("connections", 0);
    taken.set(|state| state.batches.clear());
    server.rejected.set(|state| state.batches.clear());
    assert_eq!(server.pool.taken_bytes(), 0);
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}
