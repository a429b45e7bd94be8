use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread::sleep,
    time::Duration,
};

use millstream_testkit::{block_on, contract::SourceCase};
use millstream_wire::avro::rpc::{Deflate, Inflate};
use rmpv::Value;
use tempfile::TempDir;

use super::COMPONENT;
use crate::rig::{Downstream, Running, connect, peer, try_build, until};

/// The MD5 hash that identifies the protocol of Flume.
const FLUME: [u8; 16] = 0x86aa_dae2_c454_74c0_fe93_ffd0_f235_0a65_u128.to_be_bytes();
/// The answer to a handshake: the match BOTH, without any text or hash.
const GREETING: [u8; 4] = [0; 4];
/// The answer to a call: no metadata, no error, the status OK.
const OK: [u8; 3] = [0; 3];

struct Rig {
    directory: TempDir,
    downstream: Downstream,
    running: Running,
}

impl Rig {
    fn new(options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let options = format!("{{\"listen\": \"unix://{}\"{options}}}", socket.display());
        let downstream = Downstream::memory();
        let running = Running::start(&COMPONENT, &options, &downstream, directory.path());
        Self {
            directory,
            downstream,
            running,
        }
    }

    fn connect(&self) -> Client {
        Client::new(self.directory.path())
    }

    /// The bodies of all records.
    fn messages(&self) -> Vec<String> {
        let mut messages = Vec::new();
        for batch in self.downstream.batches() {
            let mut rest = &batch.body[..];
            let before = messages.len();
            while !rest.is_empty() {
                let entry = rmpv::decode::read_value(&mut rest).unwrap();
                let Some((_, Value::String(text))) = entry[1].as_map().unwrap().last() else {
                    panic!("{entry}");
                };
                messages.push(String::from_utf8_lossy(text.as_bytes()).into_owned());
            }
            assert_eq!(messages.len() - before, batch.count as usize);
            assert_eq!(
                (batch.tag.as_str(), batch.values.get("peer")),
                ("source", Some("unix"))
            );
        }
        messages
    }
}

struct Client {
    stream: UnixStream,
    greeted: bool,
}

impl Client {
    fn new(directory: &Path) -> Self {
        let stream = connect(&directory.join("s"));
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Self {
            stream,
            greeted: false,
        }
    }

    /// The frame of `appendBatch`, with a handshake if this is the first call.
    fn call(&mut self, serial: u32, bodies: &[&str]) -> Vec<u8> {
        let greets = !std::mem::replace(&mut self.greeted, true);
        append_batch(serial, bodies, greets)
    }

    fn send(&mut self, frames: &[u8]) {
        self.stream.write_all(frames).unwrap();
    }

    /// The next answer: its serial number and its content.
    fn answer(&mut self) -> (u32, Vec<u8>) {
        let mut head = [0; 12];
        self.stream.read_exact(&mut head).unwrap();
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(number(4), 1);
        let mut answer = vec![0; number(8) as usize];
        self.stream.read_exact(&mut answer).unwrap();
        (number(0), answer)
    }

    fn is_silent(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let read = self.stream.read(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Whether the server has closed the connection without sending another byte.
    fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
    }
}

/// The frame of `appendBatch`, with a handshake if `greets`.
fn append_batch(serial: u32, bodies: &[&str], greets: bool) -> Vec<u8> {
    let mut call = Vec::new();
    if greets {
        call.extend_from_slice(&FLUME);
        call.push(0);
        call.extend_from_slice(&FLUME);
        call.push(0);
    }
    call.push(0);
    bytes(&mut call, b"appendBatch");
    if !bodies.is_empty() {
        call.push(bodies.len() as u8 * 2);
    }
    for body in bodies {
        call.extend_from_slice(&[2]);
        bytes(&mut call, b"header");
        bytes(&mut call, b"value");
        call.push(0);
        bytes(&mut call, body.as_bytes());
    }
    call.push(0);
    frame(serial, &call)
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut length = bytes.len() * 2;
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
}

fn frame(serial: u32, call: &[u8]) -> Vec<u8> {
    let numbers = [serial, 1, call.len() as u32];
    let head: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
    [&head, call].concat()
}

#[test]
fn a_call_is_answered_when_it_is_kept_and_not_before() {
    let rig = Rig::new("");
    rig.downstream.hold();
    let mut client = rig.connect();
    let call = client.call(5, &["one", "two"]);
    client.send(&call);
    until("it is taken", || rig.messages() == ["one", "two"]);
    sleep(Duration::from_millis(50));
    assert!(client.is_silent());
    rig.downstream.settle();
    assert_eq!(client.answer(), (5, [&GREETING[..], &OK].concat()));
    let call = client.call(6, &["three"]);
    client.send(&call);
    assert_eq!(client.answer(), (6, OK.to_vec()));
    drop(client);
    rig.running.stop();
}

#[test]
fn calls_in_flight_are_answered_in_order_and_a_bad_one_does_not_affect_others() {
    let rig = Rig::new("");
    let mut client = rig.connect();
    let mut frames = client.call(1, &["a"]);
    frames.extend(client.call(2, &[]));
    frames.extend(frame(3, b"\0\x16appendBatch\x04\0\x02x"));
    frames.extend(client.call(4, &["b", "c"]));
    client.send(&frames);
    assert_eq!(client.answer(), (1, [&GREETING[..], &OK].concat()));
    assert_eq!(client.answer(), (2, OK.to_vec()));
    let (serial, error) = client.answer();
    assert_eq!((serial, &error[..3]), (3, &[0, 1, 0][..]));
    assert!(String::from_utf8_lossy(&error).ends_with("the call ends inside a value"));
    assert_eq!(client.answer(), (4, OK.to_vec()));
    assert_eq!(rig.messages(), ["a", "b", "c"]);
    until("they are counted", || {
        rig.running.meter("calls_answered") == 3
    });
    assert_eq!(rig.running.meter("calls_refused"), 1);
    rig.running.stop();
}

#[test]
fn a_lost_batch_is_never_answered() {
    let rig = Rig::new("");
    rig.downstream.hold();
    let mut client = rig.connect();
    let call = client.call(1, &["gone"]);
    client.send(&call);
    until("it is taken", || !rig.messages().is_empty());
    rig.downstream.drop_held();
    assert!(client.is_closed());
    rig.running.stop();
}

#[test]
fn nothing_is_kept_of_a_call_that_is_cut_off() {
    let rig = Rig::new("");
    let mut client = rig.connect();
    let mut frames = client.call(1, &["whole"]);
    let second = client.call(2, &["first", "second"]);
    frames.extend_from_slice(&second[..second.len() - 4]);
    client.send(&frames);
    assert_eq!(client.answer(), (1, [&GREETING[..], &OK].concat()));
    drop(client);
    until("it is counted", || rig.running.meter("calls_cut") == 1);
    assert_eq!(rig.messages(), ["whole"]);
    rig.running.stop();
}

#[test]
fn a_call_that_arrives_byte_by_byte_is_kept_whole_and_does_not_delay_an_earlier_one() {
    let rig = Rig::new("");
    let mut client = rig.connect();
    let long = "x".repeat(300);
    let mut frames = client.call(1, &["a", &long, "b"]);
    let second = client.call(2, &["c", &long]);
    frames.extend_from_slice(&second[..40]);
    for byte in &frames {
        client.send(&[*byte]);
    }
    assert_eq!(client.answer().0, 1);
    client.send(&second[40..]);
    assert_eq!(client.answer().0, 2);
    assert_eq!(rig.messages(), ["a", &long, "b", "c", &long]);
    rig.running.stop();
}

#[test]
fn a_long_body_is_accepted_and_its_memory_is_freed() {
    let rig = Rig::new("");
    let mut client = rig.connect();
    let long = "0123456789".repeat(300_000);
    let call = client.call(1, &["a", &long]);
    client.send(&call);
    assert_eq!(client.answer().0, 1);
    assert_eq!(rig.messages(), ["a", &long]);
    rig.running.stop();
}

#[test]
fn a_connection_without_avro_rpc_is_closed_and_others_are_served() {
    let rig = Rig::new("");
    let other = frame(1, &[&[7; 16][..], &[2, 4], b"{}", &FLUME, &[0]].concat());
    let endless = [0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff];
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &other, &endless] {
        let mut client = rig.connect();
        client.send(garbage);
        assert!(client.is_closed(), "{garbage:?}");
    }
    let mut client = rig.connect();
    let call = client.call(1, &["good"]);
    client.send(&call);
    assert_eq!(client.answer().0, 1);
    until("all are counted", || {
        rig.running.meter("connections_refused") == 3
    });
    rig.running.stop();
}

#[test]
fn limits_are_enforced() {
    let rig = Rig::new(r#", "limits": {"frame": "1KiB", "decompressed": "64KiB", "idle": "1s"}"#);
    let mut client = rig.connect();
    let call = client.call(1, &[&"x".repeat(1024)]);
    client.send(&call);
    assert!(client.is_closed());
    // A silent connection is closed; a connection that waits for its answer is not.
    rig.downstream.hold();
    let (mut silent, mut waiting) = (rig.connect(), rig.connect());
    let call = waiting.call(1, &["x"]);
    waiting.send(&call);
    assert!(silent.is_closed());
    sleep(Duration::from_millis(500));
    assert!(waiting.is_silent());
    rig.downstream.settle();
    assert_eq!(waiting.answer().0, 1);
    rig.running.stop();
}

#[test]
fn records_beyond_the_limit_are_rejected() {
    let rig = Rig::new(r#", "limits": {"decompressed": "1MiB"}"#);
    let mut client = rig.connect();
    // An event of two bytes becomes a record of 21 bytes.
    let events = vec![0; 200_000];
    let mut call = client.call(1, &[])[12..].to_vec();
    call.pop();
    call.extend_from_slice(&[0xc0, 0x9a, 0x0c]);
    call.extend_from_slice(&events);
    call.push(0);
    client.send(&frame(1, &call));
    assert!(client.is_closed());
    assert!(rig.messages().is_empty());
    rig.running.stop();
}

#[test]
fn a_stop_answers_what_is_in_flight() {
    let rig = Rig::new("");
    rig.downstream.hold();
    let mut client = rig.connect();
    let call = client.call(1, &["last"]);
    client.send(&call);
    until("it is taken", || !rig.messages().is_empty());
    let downstream = rig.downstream.clone();
    let settle = std::thread::spawn(move || {
        sleep(Duration::from_millis(200));
        downstream.settle();
    });
    rig.running.stop();
    settle.join().unwrap();
    assert_eq!(client.answer().0, 1);
    assert!(client.is_closed());
}

#[test]
fn a_deflated_connection_is_served_and_a_plain_one_is_closed() {
    let rig = Rig::new(r#", "compression": "deflate""#);
    let mut client = rig.connect();
    let long = "a line that repeats itself. ".repeat(20_000);
    let call = client.call(1, &["first", &long, "last"]);
    let mut wire = Vec::new();
    Deflate::default().deflate(&call, &mut wire);
    assert!(wire.len() * 50 < call.len());
    client.send(&wire);
    let mut answer = Vec::with_capacity(100);
    let mut inflate = Inflate::default();
    while answer.len() < 19 {
        let mut read = [0; 100];
        let count = client.stream.read(&mut read).unwrap();
        assert_ne!(count, 0);
        inflate.inflate(&read[..count], &mut answer).unwrap();
    }
    assert_eq!(answer[12..], [&GREETING[..], &OK].concat());
    assert_eq!(rig.messages(), ["first", &long, "last"]);
    let mut plain = rig.connect();
    let call = plain.call(1, &["not compressed"]);
    plain.send(&call);
    assert!(plain.is_closed());
    rig.running.stop();
}

#[test]
fn wrong_options_are_refused() {
    for (options, why) in [
        (r#"{"listen": "tcp://127.0.0.1"}"#, "names no port"),
        (
            r#"{"listen": "udp://127.0.0.1:1"}"#,
            "is not supported here",
        ),
        (
            r#"{"listen": "tcp://127.0.0.1:1", "compression": "fast"}"#,
            "`fast`",
        ),
        (r#"{}"#, "listen"),
    ] {
        let problems = try_build(&COMPONENT, options).err().unwrap();
        assert!(problems[0].contains(why), "{problems:?}");
    }
}

#[test]
fn it_keeps_the_contract_of_sources() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let options = format!("{{\"listen\": \"unix://{}\"}}", socket.display());
    let calls = [
        append_batch(1, &["one", "two"], true),
        append_batch(2, &["three"], false),
    ];
    let connect = move || UnixStream::connect(&socket);
    let case = SourceCase {
        build: &|| try_build(&COMPONENT, &options).unwrap(),
        // Answers arrive in order, so the last one implies the others.
        peer: Some(peer(connect, calls.concat(), frame(2, &OK))),
        records: 3,
        rejected: 0,
        directory: "unused".as_ref(),
    };
    block_on(case.check());
}
