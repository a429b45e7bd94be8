//! `millstream channel`: what an operator sees of a disk channel, and passing a consumer over what it cannot take.

#![allow(clippy::unwrap_used, reason = "what cannot be done fails the test")]

mod program;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    ops::RangeInclusive,
    path::Path,
    process::{Command, Output},
};

use program::{Program, free_port, wait_until};

/// A forward source, a disk channel, and two file sinks: one works, the other's folder is what the test makes of it.
fn config(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    format!(
        "data_dir: {folder}/data
api: {{ listen: [] }}
sources:
  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}
channels:
  buffer: {{ type: disk, inputs: [fleet], size_max: 64MiB }}
sinks:
  good: {{ type: file, inputs: [buffer], path: {folder}/good.log }}
  stuck: {{ type: file, inputs: [buffer], path: {folder}/place/stuck.log }}
"
    )
}

/// Sends chunks of one record each, `{\"n\": 1}` and so on, and waits for their acks.
fn send(port: u16, numbers: RangeInclusive<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    for n in numbers {
        let mut frame = b"\x94\xa1t\xce\x60\x00\x00\x00\x81\xa1n".to_vec();
        frame.push(n);
        frame.extend(b"\x81\xa5chunk\xb0");
        frame.extend([b'a' + n; 16]);
        stream.write_all(&frame).unwrap();
        let mut ack = [0; 22];
        stream.read_exact(&mut ack).unwrap();
        assert!(ack.starts_with(b"\x81\xa3ack"), "{ack:?}");
    }
}

fn channel(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream"))
        .arg("channel")
        .args(arguments)
        .arg(folder.join("data/channels/buffer"))
        .output()
        .unwrap()
}

fn text(output: Output, code: i32) -> String {
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}{errors}");
    text + &errors
}

/// The row of a consumer: settled, batches, records.
fn row(folder: &Path, consumer: &str) -> Vec<String> {
    let page = text(channel(folder, &["ls"]), 0);
    let row = page
        .lines()
        .find(|line| line.starts_with(consumer))
        .unwrap();
    row.split_whitespace().skip(1).map(str::to_owned).collect()
}

#[test]
fn a_stuck_consumer_is_seen_and_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("place"), "no folder").unwrap();
    let port = free_port();
    let program = Program::start(here, &config(here, port)).listens(port);
    send(port, 1..=3);
    wait_until("the good sink has written", || {
        fs::read_to_string(here.join("good.log")).is_ok_and(|text| text.lines().count() == 3)
    });
    wait_until("the good sink has settled", || row(here, "good")[2] == "0");
    assert_eq!(row(here, "stuck")[1..3], ["3", "3"]);

    let output = here.join("passed.json");
    let output = output.to_str().unwrap();
    let skip = [
        "skip",
        "--consumer",
        "stuck",
        "--to",
        "end",
        "--output",
        output,
    ];
    let said = text(channel(here, &skip), 1);
    assert!(
        said.contains("another process has this channel open"),
        "{said}"
    );
    assert!(
        !Path::new(output).exists(),
        "nothing is written while it is in use"
    );
    program.kill();

    let said = text(channel(here, &["verify"]), 0);
    assert!(
        said.contains("3 batches, 3 records") && said.ends_with("sound\n"),
        "{said}"
    );
    let cat = text(channel(here, &["cat", "--limit", "2"]), 0);
    let lines: Vec<serde_json::Value> = cat
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["n"], &lines[0]["tag"]), (&1.into(), &"t".into()));
    assert!(text(channel(here, &["cat", "--tags", "other"]), 0).is_empty());

    let said = text(channel(here, &skip), 0);
    assert!(said.contains("3 records in 3 batches"), "{said}");
    assert_eq!(fs::read_to_string(output).unwrap().lines().count(), 3);
    assert_eq!(row(here, "stuck")[2], "0");
    let mut wrong = skip;
    wrong[2] = "nobody";
    assert!(text(channel(here, &wrong), 1).contains("nobody"));
}

#[test]
fn a_sink_with_a_position_of_its_own_is_passed_over_too() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let (port, place, away) = (free_port(), here.join("place"), here.join("away"));
    let written = |file: &Path| -> Vec<u64> {
        let lines = fs::read_to_string(file).unwrap_or_default();
        let number = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["n"].as_u64();
        lines.lines().map(|line| number(line).unwrap()).collect()
    };
    let program = Program::start(here, &config(here, port)).listens(port);
    send(port, 1..=3);
    wait_until("both have settled", || {
        ["good", "stuck"].map(|name| row(here, name)[2] == "0") == [true; 2]
    });
    program.stop();
    assert_eq!(written(&place.join("stuck.log")), [1, 2, 3]);

    fs::rename(&place, &away).unwrap();
    fs::write(&place, "no folder").unwrap();
    let program = Program::start(here, &config(here, port)).listens(port);
    send(port, 4..=6);
    wait_until("the good sink has settled", || row(here, "good")[2] == "0");
    assert_eq!(row(here, "stuck")[2], "3");
    program.kill();
    let output = here.join("passed.json");
    let output = output.to_str().unwrap();
    let skip = ["skip", "--consumer", "stuck", "--to", "end", "--output"];
    text(channel(here, &[&skip[..], &[output]].concat()), 0);
    assert_eq!(written(output.as_ref()), [4, 5, 6]);

    fs::remove_file(&place).unwrap();
    fs::rename(&away, &place).unwrap();
    let program = Program::start(here, &config(here, port)).listens(port);
    send(port, 7..=7);
    wait_until("the sink goes on", || row(here, "stuck")[2] == "0");
    program.stop();
    assert_eq!(written(&place.join("stuck.log")), [1, 2, 3, 7]);
    assert_eq!(written(&here.join("good.log")), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn what_is_held_for_a_sink_that_is_gone_is_shown_and_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let port = free_port();
    let both = config(here, port);
    Program::start(here, &both).listens(port).stop();
    // The sink gets another name: what its old name has not settled is held.
    let renamed = both.replace("stuck:", "other:");
    let api = free_port();
    let shown = renamed.replace("listen: []", &format!("listen: \"127.0.0.1:{api}\""));
    let program = Program::start(here, &shown).listens(port);
    send(port, 1..=3);
    let backlog = |node: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let line = format!("millstream_backlog_bytes{{component=\"{node}\"}} ");
        let value = page.lines().find_map(|text| text.strip_prefix(&line));
        value.unwrap().parse::<u64>().unwrap()
    };
    wait_until("the good sink has settled", || backlog("good") == 0);
    assert!(backlog("stuck") > 0);
    program.kill();

    let forget = ["forget", "--consumer", "stuck"];
    assert!(text(channel(here, &forget), 0).contains("stuck is forgotten"));
    assert!(text(channel(here, &forget), 1).contains("stuck"));
    assert!(!text(channel(here, &["ls"]), 0).contains("stuck"));
}

#[test]
fn damage_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let port = free_port();
    let program = Program::start(here, &config(here, port)).listens(port);
    send(port, 1..=3);
    program.kill();
    let segments: Vec<_> = fs::read_dir(here.join("data/channels/buffer"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    // The second record's field is in the middle of the log: whatever follows it fits.
    let path = segments
        .iter()
        .find(|path| {
            fs::read(path)
                .unwrap()
                .windows(3)
                .any(|w| w == b"\xa1n\x02")
        })
        .unwrap();
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(3).position(|w| w == b"\xa1n\x02").unwrap();
    bytes[at + 2] = 9;
    fs::write(path, bytes).unwrap();
    let said = text(channel(here, &["verify"]), 1);
    assert!(
        said.contains("DAMAGE") && said.contains(path.to_str().unwrap()),
        "{said}"
    );
}

/// Sends records of 200 KB, one a chunk, and waits for their acks.
fn send_large(port: u16, numbers: RangeInclusive<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    for n in numbers {
        let mut frame = b"\x94\xa1t\xce\x60\x00\x00\x00\x82\xa1n\xcc".to_vec();
        frame.push(n);
        frame.extend(b"\xa1x\xdb\x00\x03\x0d\x40");
        frame.extend(vec![b'.'; 200_000]);
        frame.extend(b"\x81\xa5chunk\xb0");
        frame.extend([n; 16]);
        stream.write_all(&frame).unwrap();
        let mut ack = [0; 22];
        stream.read_exact(&mut ack).unwrap();
        assert!(ack.starts_with(b"\x81\xa3ack"), "{ack:?}");
    }
}

/// How often the log says that something is missing.
fn complaints(here: &Path) -> usize {
    let log = fs::read_to_string(here.join("log")).unwrap();
    let missing = log.lines().filter(|line| line.contains("--accept-loss"));
    missing.filter(|line| line.contains("ERROR")).count()
}

#[test]
fn channel_data_that_is_missing_is_named_at_each_start_until_it_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("place"), "no directory").unwrap();
    let buffer = here.join("data/channels/buffer");
    let port = free_port();
    let start = || Program::start(here, &config(here, port)).listens(port);
    // A day's work: several segments, a sink with a position of its own, one that holds everything, stops and a kill.
    let program = start();
    send_large(port, 40..=90);
    wait_until("the good sink has settled", || row(here, "good")[2] == "0");
    program.stop();
    let program = start();
    send_large(port, 91..=99);
    program.kill();
    let program = start();
    send_large(port, 100..=127);
    wait_until("the good sink has settled", || row(here, "good")[2] == "0");
    program.stop();
    assert!(text(channel(here, &["verify"]), 0).ends_with("sound\n"));
    let mut segments: Vec<_> = fs::read_dir(&buffer)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".seg"))
        .filter(|path| !path.to_string_lossy().contains("free"))
        .collect();
    segments.sort();
    assert!(segments.len() >= 3, "{segments:?}");
    assert_eq!(complaints(here), 0);

    fs::remove_file(&segments[1]).unwrap();
    let said = text(channel(here, &["verify"]), 1);
    assert!(
        said.contains("MISSING: ") && said.contains("stood between frames"),
        "{said}"
    );
    start().stop();
    start().stop();
    assert_eq!(complaints(here), 2);
    let accept = ["forget", "--accept-loss"];
    assert!(text(channel(here, &accept), 0).contains("ACCEPTED: "));
    start().stop();
    assert_eq!(complaints(here), 2, "it was accepted");
    assert!(text(channel(here, &["verify"]), 0).ends_with("sound\n"));

    fs::remove_dir_all(&buffer).unwrap();
    let said = text(channel(here, &["verify"]), 1);
    assert!(said.contains("the directory of channel"), "{said}");
    assert!(said.contains("88 batches with about 88 records"), "{said}");
    let program = start();
    assert_eq!(complaints(here), 3);
    // Sources keep running.
    send(port, 1..=1);
    wait_until("the good sink has written", || row(here, "good")[2] == "0");
    program.stop();
    text(channel(here, &accept), 0);
    start().stop();
    assert_eq!(complaints(here), 3, "it was accepted");
}

#[test]
fn a_folder_that_is_no_channel_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["ls", "verify", "cat"] {
        let said = text(channel(folder.path(), &[command]), 1);
        assert!(said.contains("channels/buffer"), "{said}");
    }
}
