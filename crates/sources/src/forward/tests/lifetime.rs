//! Tests of the order of acks, back-pressure, limits, and the ends of connections.

use std::os::unix::net::UnixStream;

use millstream_testkit::contract::SourceCase;

use super::*;
use crate::rig::peer;

/// Whether no byte arrives for a while.
fn is_silent(stream: &mut TcpStream) -> bool {
    stream
        .set_read_timeout(Some(Duration::from_millis(150)))
        .unwrap();
    let silent = stream.read(&mut [0; 1]).is_err();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    silent
}

#[test]
fn acks_come_in_order_and_only_when_the_batch_is_kept() {
    let taken = Taken::durable();
    taken.set(|state| state.holding = true);
    let server = serve(&taken, "");
    let mut stream = server.connect();
    for (number, id) in ["a", "b", "c"].iter().enumerate() {
        write(&mut stream, &message("t", number as u64, Some(id)));
        // Reading continues while acks are due.
        taken.records(number as u32 + 1);
    }
    let mut held = std::mem::take(&mut taken.state.lock().unwrap().held);
    assert_eq!(held.len(), 3);
    held.pop().unwrap().settle();
    held.pop().unwrap().settle();
    assert!(is_silent(&mut stream), "the first is not kept yet");
    held.pop().unwrap().settle();
    expect_acks(&mut stream, &["a", "b", "c"]);
}

#[test]
fn a_chunk_that_is_dropped_on_its_way_is_never_acked() {
    let taken = Taken::durable();
    taken.set(|state| state.holding = true);
    let server = serve(&taken, "");
    let mut stream = server.connect();
    write(&mut stream, &message("t", 0, Some("a")));
    taken.records(1);
    write(&mut stream, &message("t", 1, Some("b")));
    taken.records(2);
    let mut held = std::mem::take(&mut taken.state.lock().unwrap().held);
    held.pop().unwrap().settle();
    drop(held);
    assert!(
        is_closed(&mut stream),
        "neither this chunk nor a later one is acked"
    );
}

#[test]
fn reading_stops_while_the_channel_is_full_and_acks_are_still_written() {
    let taken = Arc::new(Taken::default());
    taken.set(|state| state.holding = true);
    let server = serve(&taken, "");
    let mut stream = server.connect();
    write(&mut stream, &message("t", 0, Some("a")));
    taken.records(1);
    taken.set(|state| state.full = true);
    stream.set_nonblocking(true).unwrap();
    let frame = packed("t", &entries(0..2000), None);
    let since = Instant::now();
    let (mut written, mut last) = (0usize, Instant::now());
    // The buffers of the sockets fill up, then writing blocks.
    while last.elapsed() < Duration::from_millis(500) {
        assert!(
            since.elapsed() < PATIENCE,
            "{written} bytes went into a full server"
        );
        match stream.write(&frame[written % frame.len()..]) {
            Ok(count) => (written, last) = (written + count, Instant::now()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    assert!(server.pool.taken_bytes() < 4 << 20, "{:?}", server.pool);
    stream.set_nonblocking(false).unwrap();
    let held = std::mem::take(&mut taken.state.lock().unwrap().held);
    held.into_iter().for_each(Token::settle);
    expect_acks(&mut stream, &["a"]);
    taken.set(|state| {
        state.full = false;
        state.holding = false;
    });
    write(&mut stream, &frame[written % frame.len()..]);
    write(&mut stream, &message("t", 1, Some("z")));
    expect_acks(&mut stream, &["z"]);
}

#[test]
fn an_orderly_close_after_the_last_ack_is_noted() {
    let taken = Taken::durable();
    let server = serve(&taken, "");
    let mut stream = server.connect();
    write(&mut stream, &message("t", 0, Some("a")));
    expect_acks(&mut stream, &["a"]);
    drop(stream);
    let number = match &taken.records(1)[0].origins[..] {
        [Origin::Chunk(chunk)] => chunk.connection,
        other => panic!("{other:?}"),
    };
    let _state = taken.wait("the note", |state| {
        state.notes == [Note::ConnectionClosed(number)]
    });
}

#[test]
fn a_close_before_the_ack_is_not_orderly() {
    let taken = Taken::durable();
    taken.set(|state| state.holding = true);
    let server = serve(&taken, "");
    let mut stream = server.connect();
    write(&mut stream, &message("t", 0, Some("a")));
    let number = match &taken.records(1)[0].origins[..] {
        [Origin::Chunk(chunk)] => chunk.connection,
        other => panic!("{other:?}"),
    };
    drop(stream);
    std::thread::sleep(Duration::from_millis(50));
    let held = std::mem::take(&mut taken.state.lock().unwrap().held);
    held.into_iter().for_each(Token::settle);
    server.wait("connections", 0);
    assert_eq!(
        taken.state.lock().unwrap().notes,
        [Note::ConnectionBroken(number)]
    );
}

#[test]
fn a_connection_broken_by_a_dropped_chunk_is_noted_and_one_without_ids_is_not() {
    let taken = Taken::durable();
    taken.set(|state| state.holding = true);
    let server = serve(&taken, "");
    let mut silent = server.connect();
    write(&mut silent, &message("t", 0, None));
    taken.records(1);
    drop(silent);
    let mut stream = server.connect();
    write(&mut stream, &message("t", 1, Some("a")));
    taken.records(2);
    let number = match &taken.state.lock().unwrap().batches[1].origins[..] {
        [Origin::Chunk(chunk)] => chunk.connection,
        other => panic!("{other:?}"),
    };
    taken.set(|state| state.held.clear());
    assert!(is_closed(&mut stream));
    server.wait("connections", 0);
    let notes = taken.state.lock().unwrap().notes.clone();
    assert_eq!(notes, [Note::ConnectionBroken(number)]);
}

#[test]
fn a_stop_waits_for_the_acks_that_are_due() {
    let taken = Taken::durable();
    taken.set(|state| state.holding = true);
    let server = serve(&taken, "");
    let mut stream = server.connect();
    write(&mut stream, &message("t", 0, Some("a")));
    taken.records(1);
    let silent = server.connect();
    server.wait("connections", 2);
    server.stopper.stop();
    server.wait("connections", 1);
    assert!(
        server
            .ended
            .recv_timeout(Duration::from_millis(100))
            .is_err()
    );
    let held = std::mem::take(&mut taken.state.lock().unwrap().held);
    held.into_iter().for_each(Token::settle);
    expect_acks(&mut stream, &["a"]);
    assert!(is_closed(&mut stream));
    drop((stream, silent));
    server.ended.recv_timeout(PATIENCE).unwrap().unwrap();
}

#[test]
fn connections_above_the_limit_wait_for_their_turn() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "limits: { connections: 2 }");
    let mut first = server.connect();
    write(&mut first, &message("t", 0, Some("a")));
    expect_acks(&mut first, &["a"]);
    let mut second = server.connect();
    write(&mut second, &message("t", 1, Some("b")));
    expect_acks(&mut second, &["b"]);
    let mut third = server.connect();
    write(&mut third, &message("t", 2, Some("c")));
    assert!(is_silent(&mut third));
    drop(first);
    expect_acks(&mut third, &["c"]);
}

#[test]
fn a_silent_connection_is_closed_and_one_that_waits_for_its_ack_is_not() {
    let taken = Arc::new(Taken::default());
    taken.set(|state| state.holding = true);
    let server = serve(&taken, "limits: { idle: 100ms }");
    let mut waiting = server.connect();
    write(&mut waiting, &message("t", 0, Some("a")));
    taken.records(1);
    let mut silent = server.connect();
    assert!(is_closed(&mut silent));
    std::thread::sleep(Duration::from_millis(300));
    let held = std::mem::take(&mut taken.state.lock().unwrap().held);
    held.into_iter().for_each(Token::settle);
    expect_acks(&mut waiting, &["a"]);
    assert!(is_closed(&mut waiting));
}

#[test]
fn a_peer_that_sends_a_payload_slowly_is_not_silent() {
    let taken = Taken::durable();
    let server = serve(&taken, "limits: { idle: 1s }");
    let mut stream = server.connect();
    let chunk = packed("t", &entries(0..4000), Some("a"));
    // Each write has far fewer bytes than a read waits for. All writes together take more than two idle timeouts.
    for part in chunk.chunks(chunk.len() / 12 + 1) {
        write(&mut stream, part);
        std::thread::sleep(Duration::from_millis(250));
    }
    expect_acks(&mut stream, &["a"]);
    assert_eq!(records(&taken.records(4000)), 4000);
}

#[test]
fn a_peer_that_falls_silent_within_a_payload_is_closed() {
    let taken = Taken::durable();
    let server = serve(&taken, "limits: { idle: 100ms }");
    let mut stream = server.connect();
    let chunk = packed("t", &entries(0..4000), Some("a"));
    write(&mut stream, &chunk[..chunk.len() / 2]);
    assert!(is_closed(&mut stream));
    assert!(taken.is_empty());
}

#[test]
fn a_peer_that_sends_a_payload_byte_by_byte_is_closed() {
    let taken = Taken::durable();
    let server = serve(&taken, "limits: { progress: 100ms }");
    let mut stream = server.connect();
    let chunk = packed("t", &entries(0..4000), Some("a"));
    let (half, rest) = chunk.split_at(chunk.len() / 2);
    write(&mut stream, half);
    stream
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let since = Instant::now();
    // At most 50 bytes per second; the least is 1 KiB per second.
    for byte in rest {
        if stream.write_all(&[*byte]).is_err() || is_closed(&mut stream) {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "the connection is still open");
    }
    server.wait("connections_refused", 1);
    assert!(taken.is_empty());
}

#[test]
fn many_single_writes_are_all_kept_in_order_with_and_without_gather() {
    for gather in ["1ms", "0"] {
        let taken = Arc::new(Taken::default());
        let server = serve(&taken, &format!("gather: {gather}"));
        let mut stream = server.connect();
        for number in 0..5000 {
            write(
                &mut stream,
                &message(if number % 1000 < 990 { "t" } else { "u" }, number, None),
            );
            if number % 701 == 0 {
                std::thread::sleep(Duration::from_millis(4));
            }
        }
        assert_eq!(body(&taken.records(5000)), entries(0..5000));
        // The connection is still open, so the records did not wait for its end.
        drop(stream);
    }
}

#[test]
fn invalid_options_are_reported() {
    let problems = |text: &str| {
        let node = Node::parse("test", text).unwrap();
        let problems = Forward::new(&node).err().unwrap_or_default();
        problems
            .into_iter()
            .map(|problem| problem.message)
            .collect::<Vec<_>>()
            .join("; ")
    };
    assert!(problems("{ listen: [] }").contains("names no address"));
    assert!(problems("{ listen: \"0.0.0.0:24224\" }").contains("tcp://0.0.0.0:24224"));
    assert!(problems("{ listen: \"tcp://:24224\" }").contains("tcp://0.0.0.0:24224"));
    assert!(problems("{ listen: \"tcp://a:b\" }").contains("not a port"));
    assert!(problems("{ listen: \"unix://\" }").contains("no path"));
    assert!(
        problems("{ listen: \"tcp://a\", limits: { frame: 2GiB, connections: 0 } }")
            .contains("limits.frame")
    );
    assert!(problems("{ listen: \"tcp://a\", ack: true }").contains("ack"));
    let node = Node::parse("test", "{ listen: \"tcp://[::1]\" }").unwrap();
    assert!(
        Forward::new(&node)
            .is_ok_and(|forward| forward.server.listens()[0].to_string() == "tcp://[::1]:24224")
    );
}

#[test]
fn a_busy_client_that_starts_to_ask_for_acks_gets_them() {
    let taken = Arc::new(Taken::default());
    let server = serve(&taken, "gather: 5ms");
    let mut stream = server.connect();
    for round in 0..20 {
        for number in 0..99 {
            write(&mut stream, &message("t", round * 100 + number, None));
        }
        write(&mut stream, &message("t", round * 100 + 99, Some("a")));
        expect_acks(&mut stream, &["a"]);
        if round % 2 == 0 {
            let chunk = packed("t", &entries(0..2000), Some("b"));
            write(&mut stream, &chunk);
            expect_acks(&mut stream, &["b"]);
        }
    }
    assert_eq!(records(&taken.records(22_000)), 22_000);
}

#[test]
fn it_keeps_the_contract_of_sources() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let options = format!("{{ listen: \"unix://{}\" }}", socket.display());
    let frames = [
        message("a", 0, Some("x")),
        packed("a", &entries(1..4), Some("y")),
        message("b", 4, Some("z")),
    ];
    let acks = [ack("x"), ack("y"), ack("z")].concat();
    let build = || {
        let options = Node::parse("test", &options).unwrap();
        Box::new(Forward::new(&options).unwrap()) as Box<dyn Source>
    };
    let connect = move || UnixStream::connect(&socket);
    let case = SourceCase {
        build: &build,
        peer: Some(peer(connect, frames.concat(), acks)),
        records: 5,
        rejected: 0,
        directory: "unused".as_ref(),
    };
    millstream_testkit::block_on(case.check());
}
