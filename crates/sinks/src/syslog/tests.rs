//! Tests with servers that read, that close connections, and that are down.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    os::unix::net::{UnixDatagram, UnixListener},
    sync::Mutex,
    time::Duration,
};

use super::*;
use crate::rig::{self, Rig, Upstream, build, check_contract, lines, misfit, packed, try_build};
use millstream_record::Batch;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// A listener, and the options of a sink that connects to it.
fn listener(more: &str) -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let options = format!(
        r#"{{"url": "tcp://127.0.0.1:{port}", "host": "h", "retry": {{"first": "10ms", "max": "20ms"}}{more}}}"#
    );
    (listener, options)
}

/// Everything that arrives on the next connection, once it is closed.
fn all(listener: TcpListener) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_to_string(&mut text).unwrap();
        text
    })
}

const TIME: &str = "2020-09-13T12:26:40.000000Z";

#[test]
fn messages_are_counted_in_octets_and_settled_when_they_are_written() {
    let (listener, options) = listener("");
    let upstream = Upstream::memory();
    let receipt = upstream.put(packed("t", "one\ntwo and\n"), true);
    upstream.close();
    let server = all(listener);
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    let head = format!("<13>1 {TIME} h t - - - ");
    let (one, two) = (head.len() + 3, head.len() + 7);
    assert_eq!(
        server.join().unwrap(),
        format!("{one} {head}one{two} {head}two and")
    );
    assert_eq!(rig.meter("records_settled"), 2);
    assert_eq!(rig.meter("connections_open"), 0);
}

#[test]
fn with_line_framing_a_newline_within_a_text_is_escaped() {
    let (listener, options) = listener(r#", "framing": "lines", "protocol": "rfc3164""#);
    let upstream = Upstream::memory();
    let batch = packed("t", "one two\n");
    let text = batch.body.iter().map(|byte| match byte {
        b' ' => b'\n',
        byte => *byte,
    });
    let body: Vec<u8> = text.collect();
    upstream.put(
        Batch {
            body: body.into(),
            ..batch
        },
        true,
    );
    upstream.put(lines("t", "plain\n"), true);
    upstream.close();
    let server = all(listener);
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    assert_eq!(
        server.join().unwrap(),
        "<13>Sep 13 12:26:40 h t: one#012two\n<13>Nov 14 22:13:20 h t: plain\n"
    );
}

#[test]
fn the_whole_record_can_be_the_text() {
    let (listener, options) = listener(r#", "format": "json", "add": {"n": "1", "time": null}"#);
    let upstream = Upstream::memory();
    upstream.put(packed("t", "a\n"), true);
    upstream.close();
    let server = all(listener);
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    let text = server.join().unwrap();
    assert!(
        text.ends_with("- - - {\"message\":\"a\",\"n\":\"1\"}"),
        "{text}"
    );
}

#[test]
fn a_server_that_starts_late_gets_everything_once() {
    let (listener, options) = listener("");
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let upstream = Upstream::memory();
    let receipt = upstream.put(packed("t", "a\nb\n"), true);
    upstream.close();
    let server = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        all(TcpListener::bind(("127.0.0.1", port)).unwrap())
            .join()
            .unwrap()
    });
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    assert!(rig.meter("connections_failed") >= 3);
    assert_eq!(server.join().unwrap().matches("<13>").count(), 2);
}

#[test]
fn records_that_a_broken_connection_may_have_lost_are_counted() {
    let (listener, options) = listener("");
    let upstream = Upstream::memory();
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    // Eight mebibytes: more than the buffers of both systems hold.
    let text = format!("{}\n", "x".repeat(1023)).repeat(8 << 10);
    upstream.put(packed("t", &text), true);
    upstream.close();
    let server = std::thread::spawn(move || {
        // The first connection breaks with unread data.
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 100_000]).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        drop(stream);
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        text
    });
    block_on(rig.run()).unwrap();
    let second = server.join().unwrap();
    let count = |text: &[u8]| text.windows(4).filter(|bytes| bytes == b"<13>").count() as u64;
    // The first connection delivered about 90 complete messages.
    let lost = (8 << 10) - count(&second) - 90;
    let told = rig.meter("records_unacknowledged") + rig.meter("records_in_doubt");
    assert!(lost > 0, "the buffers held nothing?");
    assert!(told >= lost, "{lost} are lost, {told} reported");
    assert!(told <= 8 << 10);
}

#[test]
fn nothing_is_lost_on_a_connection_that_is_closed_while_idle() {
    let (listener, options) = listener("");
    let upstream = Upstream::memory();
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    let receipt = upstream.put(packed("t", "a\n"), true);
    let feeding = upstream.clone();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 20]).unwrap();
        std::thread::sleep(Duration::from_millis(1200));
        // The server reads everything and closes the connection.
        stream.set_nonblocking(true).unwrap();
        let _ = stream.read(&mut [0; 4096]);
        drop(stream);
        std::thread::sleep(Duration::from_millis(200));
        feeding.put(packed("t", "b\n"), true);
        feeding.close();
        all(listener).join().unwrap()
    });
    block_on(rig.run()).unwrap();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    assert!(server.join().unwrap().ends_with("- - - b"));
    assert_eq!(rig.meter("records_unacknowledged"), 0);
    assert_eq!(rig.meter("records_in_doubt"), 0);
}

#[test]
fn datagrams_by_udp_and_unix_hold_one_message_each() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let unix = UnixDatagram::bind(&path).unwrap();
    let port = udp.local_addr().unwrap().port();
    for url in [
        format!("udp://127.0.0.1:{port}"),
        format!("unixgram://{}", path.display()),
    ] {
        let upstream = Upstream::memory();
        upstream.put(
            packed("t", &format!("one\ntwo\n{}\nthree\n", "x".repeat(66_000))),
            true,
        );
        upstream.close();
        let options = format!(r#"{{"url": "{url}"}}"#);
        let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
        block_on(rig.run()).unwrap();
        let mut bytes = [0; 1024];
        for text in ["one", "two", "three"] {
            let length = match url.starts_with("udp") {
                true => udp.recv(&mut bytes).unwrap(),
                false => unix.recv(&mut bytes).unwrap(),
            };
            let message = String::from_utf8_lossy(&bytes[..length]);
            assert_eq!(message, format!("<13>1 {TIME} - t - - - {text}"));
        }
        let rejected = upstream.rejected();
        assert_eq!(rejected.len(), 1);
        assert!(String::from_utf8_lossy(&rejected[0].body).contains("longer than a datagram"));
    }
}

#[test]
fn a_unix_stream_is_framed_like_tcp() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let mut text = String::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_to_string(&mut text)
            .unwrap();
        text
    });
    let upstream = Upstream::memory();
    upstream.put(packed("t", "one\n"), true);
    upstream.close();
    let options = format!(r#"{{"url": "unix://{}"}}"#, path.display());
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    assert!(server.join().unwrap().ends_with("- - - one"));
}

/// Reads at most `bytes` bytes, or until the stream ends.
fn read_some(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let _ = stream.take(bytes as u64).read_to_end(&mut text);
    text
}

/// The texts of whole lines.
fn texts(lines: &[u8]) -> Vec<String> {
    let end = lines.iter().rposition(|byte| *byte == b'\n');
    let lines = String::from_utf8_lossy(&lines[..end.unwrap_or(0)]).into_owned();
    let text = |line: &str| line.split_once("- - - ").unwrap().1.to_owned();
    lines.lines().map(text).collect()
}

fn numbered(records: usize) -> String {
    (0..records)
        .map(|n| format!("{n:06} {}\n", "x".repeat(90)))
        .collect()
}

#[test]
fn a_server_that_takes_no_connection_for_long_takes_no_record_and_gets_all_when_it_works() {
    // The first bytes of a TLS server's answer to text, a reset with unread bytes, an orderly end, and an end before anything is read.
    let refuse: [fn(&mut TcpStream); 4] = [
        |stream| {
            read_some(stream, 5);
            let _ = stream.write_all(&[0x15, 3, 3, 0, 2, 2, 70]);
        },
        |stream| drop(read_some(stream, 1)),
        |stream| {
            stream
                .set_read_timeout(Some(Duration::from_millis(50)))
                .unwrap();
            read_some(stream, 1 << 20);
        },
        |_| (),
    ];
    for (number, refuse) in refuse.into_iter().enumerate() {
        let (listener, options) = listener(r#", "framing": "lines""#);
        let upstream = Upstream::durable(7);
        for part in 0..4 {
            let text = numbered(40_000);
            let lines: String = text
                .split_inclusive('\n')
                .skip(part * 10_000)
                .take(10_000)
                .collect();
            upstream.put(packed("t", &lines), false);
        }
        upstream.close();
        let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
        let reporter = rig.context.reporter.clone();
        let settled = upstream.clone();
        let server = std::thread::spawn(move || {
            let since = std::time::Instant::now();
            while since.elapsed() < Duration::from_secs(2) {
                let (mut stream, _) = listener.accept().unwrap();
                refuse(&mut stream);
            }
            assert_eq!(settled.settled(), 0, "case {number}");
            assert_eq!(reporter.conditions().len(), 1, "case {number}");
            let (mut stream, _) = listener.accept().unwrap();
            let mut text = Vec::new();
            stream.read_to_end(&mut text).unwrap();
            texts(&text)
        });
        block_on(rig.run()).unwrap();
        let got = server.join().unwrap();
        let expected: Vec<String> = numbered(40_000).lines().map(str::to_owned).collect();
        assert!(got == expected, "case {number}: {} records", got.len());
        assert_eq!(rig.meter("records_in_doubt"), 0, "case {number}");
        assert_eq!(rig.context.reporter.conditions(), [], "case {number}");
    }
}

#[test]
fn a_server_that_resets_each_connection_after_some_bytes_loses_no_record() {
    let (listener, options) = listener(r#", "framing": "lines""#);
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", &numbered(4000)), false);
    upstream.close();
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    let server = std::thread::spawn(move || {
        let (mut seen, mut connections) = (std::collections::BTreeSet::new(), 0);
        while seen.len() < 4000 {
            let (mut stream, _) = listener.accept().unwrap();
            connections += 1;
            // The end with unread bytes resets the connection.
            seen.extend(texts(&read_some(&mut stream, 150_000)));
        }
        connections
    });
    block_on(rig.run()).unwrap();
    let connections = server.join().unwrap();
    assert!((3..20).contains(&connections), "{connections} connections");
}

#[test]
fn a_datagram_that_no_socket_receives_is_sent_again_while_the_server_has_not_proven_itself() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    drop(socket);
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", &numbered(2000)), false);
    let options =
        format!(r#"{{"url": "udp://{address}", "retry": {{"first": "10ms", "max": "20ms"}}}}"#);
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    let (reporter, settled) = (rig.context.reporter.clone(), upstream.clone());
    let server = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(settled.settled(), 0);
        assert_eq!(reporter.conditions().len(), 1);
        let socket = UdpSocket::bind(address).unwrap();
        settled.close();
        // Each connection that fails early doubles the wait before the next one.
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut bytes = [0; 1024];
        let got = (0..200)
            .take_while(|_| socket.recv(&mut bytes).is_ok())
            .count();
        // The socket stays open until the sink has sent the rest.
        (got, socket)
    });
    block_on(rig.run()).unwrap();
    let (got, _socket) = server.join().unwrap();
    assert_eq!(got, 200);
}

#[test]
fn records_are_rejected_if_no_server_accepts_them_in_time() {
    let (listener, _) = listener("");
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let options = format!(
        r#"{{"url": "tcp://127.0.0.1:{port}", "retry": {{"first": "10ms", "max": "20ms", "give_up": "100ms"}}}}"#
    );
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", "a\nb\n"), false);
    upstream.close();
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    assert_eq!(
        upstream
            .rejected()
            .iter()
            .map(|batch| batch.count)
            .sum::<u32>(),
        2
    );
    assert_eq!(upstream.settled(), 1);
    assert_eq!(rig.meter("records_given_up"), 2);
}

#[test]
fn behind_a_durable_channel_a_stop_does_not_wait_for_a_server_that_is_down() {
    let (listener, options) = listener("");
    drop(listener);
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", "a\n"), false);
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    let running = rig.sink.run(&mut rig.inlet, rig.context.clone());
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        rig.stopper.stop();
    };
    let (ended, ()) = block_on(async { tokio::join!(running, stopping) });
    ended.unwrap();
    assert_eq!(upstream.settled(), 0, "it is sent after the next start");
}

#[test]
fn wrong_options_are_reported_by_name() {
    for (options, named) in [
        (r#"{"url": "relp://a:1"}"#, "RELP"),
        (r#"{"url": "udp://a:1", "tls": true}"#, "streams"),
        (r#"{"url": "tcp://a:1", "facility": "local9"}"#, "facility"),
        (r#"{"url": "tcp://a:1", "severity": "loud"}"#, "severity"),
        (r#"{"url": "a:1"}"#, "tcp://a:1"),
        (r#"{"url": "tcp://a:1", "colour": 1}"#, "colour"),
    ] {
        let problems = try_build(&COMPONENT, options).err().unwrap();
        assert!(problems[0].contains(named), "{options}: {problems:?}");
    }
}

#[test]
fn it_keeps_the_contract_of_sinks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let listener = UnixListener::bind(&path).unwrap();
    // Messages that were not read from a Unix stream are not settled, so a thread reads all the time.
    let received = Arc::new(Mutex::new(String::new()));
    let reading = received.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, reading) = (stream.unwrap(), reading.clone());
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let mut text = reading.lock().unwrap();
                    text.push_str(&String::from_utf8_lossy(&bytes[..count]));
                }
            });
        }
    });
    let arrived = move || {
        let text = received.lock().unwrap();
        text.split("- - - ").map(str::to_owned).collect()
    };
    let options = format!(r#"{{"url": "unix://{}"}}"#, path.display());
    let sink = build(&COMPONENT, &options);
    block_on(check_contract(
        &sink,
        "unused".as_ref(),
        arrived,
        Some(misfit()),
    ));
}

#[test]
fn few_records_are_encoded_at_a_time_if_their_tag_is_long() {
    let (_listener, options) = listener(r#", "format": "raw""#);
    let upstream = Upstream::memory();
    upstream.put(rig::misfits(2049), true);
    upstream.close();
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    assert_eq!(rig::rejected_groups(&upstream), [1024, 1024, 1]);
}
