//! Sends repeated chunks, and chunks that only look like repeats, to a forward source with a disk channel.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    time::Duration,
};

use crate::program::{Program, free_port, wait_until};
use rmpv::Value;

struct Fixture {
    directory: tempfile::TempDir,
    program: Option<Program>,
    port: u16,
    api: u16,
    more: &'static str,
}

impl Fixture {
    fn new(more: &'static str) -> Self {
        let (directory, port, api) = (tempfile::tempdir().unwrap(), free_port(), free_port());
        let mut fixture = Self {
            directory,
            program: None,
            port,
            api,
            more,
        };
        fixture.start();
        fixture
    }

    fn start(&mut self) {
        let (place, port, api, more) = (
            self.directory.path().display(),
            self.port,
            self.api,
            self.more,
        );
        let config = format!(
            "data_dir: {place}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\nthreads: 2\n\
             sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
             channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB{more} }}\n\
             sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out/{{tag}}.log\" }}\n"
        );
        self.program = Some(Program::start(self.directory.path(), &config).listens(port));
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    fn lines(&self, tag: &str) -> Vec<String> {
        let path = self.directory.path().join("out").join(format!("{tag}.log"));
        fs::read_to_string(path)
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// The value of a meter in `/metrics`.
    fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.api)).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let line = answer.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in:\n{answer}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until this many lines have arrived, and then stops the program. An earlier stop would leave some lines in the channel.
    fn stop_after(&mut self, tag: &str, lines: usize) {
        wait_until("the lines have arrived", || self.lines(tag).len() >= lines);
        self.stop();
    }

    fn stop(&mut self) {
        assert_eq!(
            self.program.take().unwrap().stop(),
            Some(0),
            "{}",
            self.log()
        );
    }

    fn log(&self) -> String {
        fs::read_to_string(Path::new(self.directory.path()).join("log")).unwrap()
    }
}

fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

fn entry(text: &str) -> Value {
    Value::Array(vec![
        1_700_000_000.into(),
        Value::Map(vec![("message".into(), text.into())]),
    ])
}

fn packed(tag: &str, texts: &[&str], chunk: Value) -> Vec<u8> {
    let payload: Vec<u8> = texts.iter().flat_map(|text| encode(&entry(text))).collect();
    let option = Value::Map(vec![("chunk".into(), chunk)]);
    encode(&Value::Array(vec![
        tag.into(),
        Value::Binary(payload),
        option,
    ]))
}

fn ack(stream: &mut TcpStream) -> Value {
    rmpv::decode::read_value(stream)
        .map(|map| map["ack"].clone())
        .unwrap()
}

#[test]
fn a_chunk_that_is_resent_is_acked_again_and_stored_once_also_after_a_restart() {
    let mut fixture = Fixture::new("");
    let chunk = packed("t", &["a", "b"], "ZgvyacdEXhecDRbtet44EQ==\n".into());
    for _ in 0..3 {
        let mut stream = fixture.connect();
        stream.write_all(&chunk).unwrap();
        assert_eq!(ack(&mut stream), "ZgvyacdEXhecDRbtet44EQ==\n".into());
        fixture.stop();
        fixture.start();
    }
    fixture.program.take().unwrap().kill();
    fixture.start();
    let mut stream = fixture.connect();
    stream.write_all(&chunk).unwrap();
    ack(&mut stream);
    fixture.stop_after("t", 2);
    assert_eq!(fixture.lines("t"), ["a", "b"]);
}

#[test]
fn the_same_id_with_other_bytes_is_new_data() {
    let mut fixture = Fixture::new("");
    let mut stream = fixture.connect();
    for n in 0..50 {
        let message = encode(&Value::Array(vec![
            "t".into(),
            1_700_000_000.into(),
            Value::Map(vec![("message".into(), n.to_string().into())]),
            Value::Map(vec![("chunk".into(), 1.into())]),
        ]));
        stream.write_all(&message).unwrap();
        assert_eq!(ack(&mut stream), 1.into());
    }
    drop(stream);
    fixture.stop_after("t", 50);
    assert_eq!(
        fixture.lines("t"),
        (0..50).map(|n| n.to_string()).collect::<Vec<_>>()
    );
}

#[test]
fn two_honest_chunks_with_equal_content_and_its_hash_as_id_are_both_stored() {
    let mut fixture = Fixture::new("");
    let id = "0123456789abcdef0123456789abcdef";
    let mut stream = fixture.connect();
    for tag in ["one", "one", "two"] {
        stream
            .write_all(&packed(tag, &["equal"], id.into()))
            .unwrap();
        assert_eq!(ack(&mut stream), id.into());
    }
    drop(stream);
    fixture.stop_after("one", 2);
    fixture.start();
    fixture.stop_after("two", 1);
    assert_eq!(fixture.lines("one"), ["equal", "equal"]);
    assert_eq!(fixture.lines("two"), ["equal"]);
}

#[test]
fn two_copies_of_a_chunk_that_are_in_flight_at_the_same_time_are_stored_once() {
    let mut fixture = Fixture::new("");
    for n in 0..40 {
        let text = n.to_string();
        let id = format!("an id as long as real ones {n}");
        let chunk = packed("t", &[&text], id.as_str().into());
        let mut streams: Vec<_> = (0..4).map(|_| fixture.connect()).collect();
        for stream in &mut streams {
            stream.write_all(&chunk).unwrap();
        }
        for stream in &mut streams {
            assert_eq!(ack(stream), id.as_str().into());
        }
    }
    fixture.stop_after("t", 40);
    assert_eq!(
        fixture.lines("t"),
        (0..40).map(|n| n.to_string()).collect::<Vec<_>>()
    );
}

#[test]
fn a_frame_cut_off_by_the_end_of_the_connection_is_neither_acked_nor_stored() {
    let mut fixture = Fixture::new("");
    let chunk = packed("t", &["whole", "cut"], "id".into());
    for length in [chunk.len() - 1, chunk.len() / 2, 5] {
        let mut stream = fixture.connect();
        stream.write_all(&chunk[..length]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    fixture.stop();
    assert!(fixture.lines("t").is_empty());
}

#[test]
fn a_broken_chunk_is_refused_three_times_then_its_good_records_are_kept() {
    let mut fixture = Fixture::new("");
    let mut payload = encode(&entry("good"));
    payload.extend_from_slice(&encode(&entry("torn"))[..9]);
    let option = Value::Map(vec![("chunk".into(), "poison".into())]);
    let chunk = encode(&Value::Array(vec![
        "t".into(),
        Value::Binary(payload),
        option,
    ]));
    let mut acked_after = 0;
    wait_until("the chunk is acked", || {
        acked_after += 1;
        let mut stream = fixture.connect();
        stream.write_all(&chunk).unwrap();
        rmpv::decode::read_value(&mut stream).is_ok()
    });
    fixture.stop_after("t", 1);
    assert_eq!(acked_after, 4, "three refusals, then an ack");
    assert_eq!(fixture.lines("t"), ["good"]);
    let rejected = fs::read(
        fixture
            .directory
            .path()
            .join("data/rejected/in.peer-127_0_0_1.msgpack"),
    )
    .unwrap();
    assert!(!rejected.is_empty());
}

#[test]
fn ids_that_are_evicted_from_the_window_are_counted() {
    let mut fixture = Fixture::new(", dedupe: { ids: 1000, age: 72h }");
    let mut stream = fixture.connect();
    for n in 0..3000 {
        stream
            .write_all(&packed(
                "t",
                &["x"],
                format!("an id as long as real ones {n}").as_str().into(),
            ))
            .unwrap();
        ack(&mut stream);
    }
    drop(stream);
    // The channel counts evicted ids after it has acked the chunk that evicts them.
    wait_until("the ids are evicted", || {
        fixture.metric("millstream_evicted_young_ids") >= 2000
    });
    assert_eq!(fixture.metric("millstream_evicted_young_ids"), 2000);
    fixture.stop_after("t", 3000);
    assert_eq!(fixture.lines("t").len(), 3000);
}

/// A chunk id as a Millstream creates it: channel, position, part and checksum.
fn ours(seq: usize) -> Value {
    format!("{:032x}.5.{seq}.0.{seq:08x}", 0xff).into()
}

/// Versions up to 2026-11 sent the option `floor` and trusted it: chunks with a position at or below the `floor` counted as repeats.
/// Any peer can still send this option.
#[test]
fn a_floor_claimed_by_a_peer_makes_no_chunk_a_repeat() {
    let mut fixture = Fixture::new("");
    let liar = Value::Array(vec![
        "other".into(),
        Value::Binary(encode(&entry("lie"))),
        Value::Map(vec![
            ("chunk".into(), "the chunk of a liar".into()),
            (
                "millstream".into(),
                Value::Map(vec![
                    ("received".into(), 5.into()),
                    ("floor".into(), format!("{:032x}.5.1000000", 0xff).into()),
                ]),
            ),
        ]),
    ]);
    let mut stream = fixture.connect();
    stream.write_all(&encode(&liar)).unwrap();
    ack(&mut stream);
    let mut stream = fixture.connect();
    for seq in 1..=500 {
        let text = format!("{seq}");
        stream.write_all(&packed("t", &[&text], ours(seq))).unwrap();
        assert_eq!(ack(&mut stream), ours(seq));
    }
    // The same id with other bytes is new data; with the same bytes it is a repeat.
    for text in ["other bytes", "7"] {
        stream.write_all(&packed("t", &[text], ours(7))).unwrap();
        ack(&mut stream);
    }
    // The channel counts a repeat after it has acked it.
    wait_until("the honest repeat is counted", || {
        fixture.metric("millstream_repeated_chunks") >= 1
    });
    assert_eq!(fixture.metric("millstream_repeated_chunks"), 1);
    fixture.stop_after("t", 501);
    let mut expected: Vec<String> = (1..=500).map(|seq| seq.to_string()).collect();
    expected.push("other bytes".to_owned());
    assert_eq!(fixture.lines("t"), expected);
}

/// The restored sender uses positions again that it had used before. So the chunk ids that it makes from these positions now name new
/// records.
#[test]
fn chunks_of_a_sender_whose_data_dir_was_restored_from_a_copy_are_stored() {
    let mut fixture = Fixture::new("");
    let sender = tempfile::tempdir().unwrap();
    let (port, place) = (free_port(), sender.path().display());
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  next: {{ type: forward, inputs: [kept], servers: [\"127.0.0.1:{}\"], peer: millstream }}\n",
        fixture.port
    );
    let send = |what: &str, count: usize| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        for number in 0..count {
            let text = format!("{what} {number}");
            let id = format!("the sender's chunk {text}").into();
            stream.write_all(&packed("t", &[&text], id)).unwrap();
            ack(&mut stream);
        }
    };
    let start = || Program::start(sender.path(), &config).listens(port);
    let copy = |from: &str, to: &str| {
        let to = sender.path().join(to);
        let _ = fs::remove_dir_all(&to);
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .args([&sender.path().join(from), &to])
            .status();
        assert!(copied.unwrap().success());
    };
    let arrived = |lines: usize| {
        wait_until("the lines have arrived", || {
            fixture.lines("t").len() >= lines
        });
    };
    let program = start();
    send("first", 1);
    arrived(1);
    assert_eq!(program.stop(), Some(0));
    copy("data", "copy");
    let program = start();
    send("old", 300);
    arrived(301);
    // Wait for a checkpoint, which settles the records before it. Old versions reported the settled position as the `floor` with the
    // next chunk.
    std::thread::sleep(Duration::from_millis(1500));
    send("last", 1);
    arrived(302);
    assert_eq!(program.stop(), Some(0));
    copy("copy", "data");
    let program = start();
    send("new", 300);
    arrived(602);
    assert_eq!(program.stop(), Some(0));
    fixture.stop();
    let mut lines = fixture.lines("t");
    lines.sort();
    let mut expected = vec!["first 0".to_owned(), "last 0".to_owned()];
    for number in 0..300 {
        expected.extend([format!("old {number}"), format!("new {number}")]);
    }
    expected.sort();
    assert_eq!(lines, expected);
}
