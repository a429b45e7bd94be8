//! `millstream channel`: listing and verifying a disk channel, and skipping records that a consumer cannot process.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    ops::{Range, RangeInclusive},
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use crate::program::{PATIENCE, Program, free_port, wait_until};

/// A forward source, a disk channel, and two file sinks. `good` works. `stuck` fails if the test creates a file at `place`, where
/// the sink needs a directory.
fn config(directory: &Path, port: u16) -> String {
    let directory = directory.display();
    format!(
        "data_dir: {directory}/data
api: {{ listen: [] }}
sources:
  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}
channels:
  buffer: {{ type: disk, inputs: [fleet], size_max: 64MiB }}
sinks:
  good: {{ type: file, inputs: [buffer], path: {directory}/good.log }}
  stuck: {{ type: file, inputs: [buffer], path: {directory}/place/stuck.log }}
"
    )
}

/// Sends chunks of one record each, `{"n": 1}` and so on, and waits for their acks.
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

fn channel(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream"))
        .arg("channel")
        .args(arguments)
        .arg(directory.join("data/channels/buffer"))
        .output()
        .unwrap()
}

fn text(output: Output, code: i32) -> String {
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}{errors}");
    text + &errors
}

/// The row of a consumer in `channel ls`: the settled position, and the numbers of batches and records that wait.
fn row(directory: &Path, consumer: &str) -> Vec<String> {
    let page = text(channel(directory, &["ls"]), 0);
    let row = page
        .lines()
        .find(|line| line.starts_with(consumer))
        .unwrap();
    row.split_whitespace().skip(1).map(str::to_owned).collect()
}

#[test]
fn a_stuck_consumer_is_visible_and_can_be_skipped_ahead() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::write(here.join("place"), "no directory").unwrap();
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
    wrong[2] = "stranger";
    assert!(text(channel(here, &wrong), 1).contains("stranger"));
}

#[test]
fn a_sink_that_keeps_its_own_position_can_be_skipped_ahead_too() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
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
    fs::write(&place, "no directory").unwrap();
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
    wait_until("the sink continues", || row(here, "stuck")[2] == "0");
    program.stop();
    assert_eq!(written(&place.join("stuck.log")), [1, 2, 3, 7]);
    assert_eq!(written(&here.join("good.log")), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_running_sink_can_be_skipped_ahead_and_restarts_after_the_skipped_records() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let (port, api, place) = (free_port(), free_port(), here.join("place"));
    let address = format!("127.0.0.1:{api}");
    let shape = config(here, port).replace("[]", &format!("\"{address}\""));
    let program = Program::start(here, &shape).listens(port);
    send(port, 1..=3);
    wait_until("both have settled", || {
        ["good", "stuck"].map(|name| row(here, name)[2] == "0") == [true; 2]
    });
    assert_eq!(program.stop(), Some(0));
    let away = here.join("away");
    fs::rename(&place, &away).unwrap();
    fs::write(&place, "no directory").unwrap();
    let program = Program::start(here, &shape).listens(port);
    send(port, 4..=6);
    wait_until("the good sink has settled", || row(here, "good")[2] == "0");

    let output = here.join("passed.json");
    let file = output.to_str().unwrap();
    let skip = |consumer: &str, to: &str, code: i32| {
        let skip = format!(
            "skip --running --api {address} --consumer {consumer} --to {to} --output {file}"
        );
        text(channel(here, &skip.split(' ').collect::<Vec<_>>()), code)
    };
    assert!(skip("stranger", "end", 1).contains("it has good, stuck"));
    assert!(skip("stuck", "1.9", 1).contains("no position 1.9"));
    assert!(!output.exists());
    let said = skip("stuck", "1.5", 0);
    let told = "stuck restarts after 1.5: it skipped 2 of the 2 records in ";
    assert!(said.contains(told), "{said}");
    assert_eq!(fs::read_to_string(&output).unwrap().lines().count(), 2);
    assert!(skip("stuck", "1.5", 0).contains("stuck has settled up to 1.5"));
    // The name of the channel is enough, as for `forget`.
    let config = here.join("millstream.yaml");
    let by_name = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["channel", "skip", "--running", "--consumer", "stuck"])
        .args(["--to", "1.5", "--output", file, "--config"])
        .args([config.to_str().unwrap(), "buffer"])
        .output()
        .unwrap();
    assert!(text(by_name, 0).contains("stuck has settled up to 1.5"));
    let log = program.log();
    assert!(log.contains("stuck was moved to 1.5: 2 records"), "{log}");
    assert!(log.contains("200: 2 records skipped"), "{log}");

    // A request with another id is meant for a channel of the same name in another instance.
    let mut stream = TcpStream::connect(&address).unwrap();
    let other = "POST /channels/buffer/skip?consumer=good&to=1.6&id=1 HTTP/1.0\r\n\r\n";
    stream.write_all(other.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("409 Conflict"), "{answer}");

    fs::remove_file(&place).unwrap();
    fs::rename(&away, &place).unwrap();
    wait_until("the sink continues", || row(here, "stuck")[2] == "0");
    assert_eq!(program.stop(), Some(0));
    let lines = |file: &Path| fs::read_to_string(file).unwrap().lines().count();
    assert_eq!(lines(&place.join("stuck.log")), 4, "1 to 3 and 6");
    assert_eq!(lines(&here.join("good.log")), 6);
    let program = Program::start(here, &shape).listens(port);
    send(port, 7..=7);
    wait_until("the sink continues", || row(here, "stuck")[2] == "0");
    assert_eq!(program.stop(), Some(0));
    assert_eq!(lines(&place.join("stuck.log")), 5);
}

#[test]
fn records_held_for_a_removed_sink_are_shown_and_can_be_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let port = free_port();
    let both = config(here, port);
    Program::start(here, &both).listens(port).stop();
    // The sink gets another name: the channel holds the records that the old name has not settled.
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
fn verify_reports_damage_with_the_path_of_the_segment() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let port = free_port();
    let program = Program::start(here, &config(here, port)).listens(port);
    send(port, 1..=3);
    program.kill();
    let segments: Vec<_> = fs::read_dir(here.join("data/channels/buffer"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    // Damage the second record: it is in the middle of the log, and the frames after it stay intact.
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

/// Sends records of 200 KB, one per chunk, and waits for their acks.
fn send_segments(port: u16, numbers: RangeInclusive<u8>) {
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

/// The number of errors in the log that report missing data.
fn complaints(here: &Path) -> usize {
    let log = fs::read_to_string(here.join("log")).unwrap();
    let missing = log.lines().filter(|line| line.contains("--accept-loss"));
    missing.filter(|line| line.contains("ERROR")).count()
}

#[test]
fn missing_channel_data_is_reported_at_each_start_until_the_operator_accepts_it() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::write(here.join("place"), "no directory").unwrap();
    let buffer = here.join("data/channels/buffer");
    let port = free_port();
    let start = || Program::start(here, &config(here, port)).listens(port);
    // Create a typical state: several segments, a working file sink (which stores its own position), a stuck sink, stops and a kill.
    let program = start();
    send_segments(port, 40..=90);
    wait_until("the good sink has settled", || row(here, "good")[2] == "0");
    program.stop();
    let program = start();
    send_segments(port, 91..=99);
    program.kill();
    let program = start();
    send_segments(port, 100..=127);
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
    for (place, path) in [("data/channels", "buffer"), ("data/channels/buffer", ".")] {
        let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["channel", "verify", path])
            .current_dir(here.join(place))
            .output()
            .unwrap();
        assert!(text(output, 1).contains("MISSING: "), "{path}");
    }
    let said = text(channel(here, &["verify"]), 1);
    assert!(
        said.contains("MISSING: ") && said.contains("were between frames"),
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
    // Sources continue to run.
    send(port, 1..=1);
    wait_until("the good sink has written", || row(here, "good")[2] == "0");
    program.stop();
    text(channel(here, &accept), 0);
    start().stop();
    assert_eq!(complaints(here), 3, "it was accepted");
}

#[test]
fn a_directory_that_is_no_channel_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    for command in ["ls", "verify", "cat"] {
        let said = text(channel(directory.path(), &[command]), 1);
        assert!(said.contains("channels/buffer"), "{said}");
    }
}

/// A frame with one record of 60 kB, which contains `n`, and with a chunk id.
fn large(tag: &str, n: u32) -> Vec<u8> {
    let mut frame = vec![0x94, 0xa0 + u8::try_from(tag.len()).unwrap()];
    frame.extend(tag.as_bytes());
    frame.extend(b"\xce\x60\x00\x00\x00\x82\xa1n\xce");
    frame.extend(n.to_be_bytes());
    frame.extend(b"\xa1p\xda\xea\x60");
    frame.resize(frame.len() + 60_000, b'p');
    frame.extend(b"\x81\xa5chunk\xb0");
    frame.extend(format!("{n:016}").into_bytes());
    frame
}

/// Sends records of 60 kB until one of them is not acked within `patience`. Returns the connection and the number of acks.
fn send_large(port: u16, numbers: Range<u32>, patience: Duration) -> (TcpStream, u32) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.set_write_timeout(Some(patience)).unwrap();
    let mut acked = 0;
    for n in numbers {
        let mut ack = [0; 22];
        let sent = stream.write_all(&large("t", n));
        if sent.and_then(|()| stream.read_exact(&mut ack)).is_err() {
            break;
        }
        acked += 1;
    }
    (stream, acked)
}

/// The numbers in a file of JSON lines, in ascending order.
fn numbers(file: &Path) -> Vec<u64> {
    let lines = fs::read_to_string(file).unwrap_or_default();
    // The last line may be incomplete.
    let number = |line| serde_json::from_str::<serde_json::Value>(line).ok()?["n"].as_u64();
    let mut numbers: Vec<u64> = lines.lines().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// A value in `/metrics`; 0 if it is absent.
fn metric(api: u16, name: &str, node: &str) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let line = format!("millstream_{name}{{component=\"{node}\"}} ");
    let value = page.lines().find_map(|text| text.strip_prefix(&line));
    value.map_or(0, |value| value.parse().unwrap())
}

/// The configuration of a channel of the smallest size, one or more sinks that read it, and the HTTP interface.
fn small(directory: &Path, ports: [u16; 2], sink: &str) -> String {
    let here = directory.display();
    let [port, api] = ports;
    format!(
        "data_dir: {here}/data
api: {{ listen: \"127.0.0.1:{api}\" }}
sources:
  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}
channels:
  buffer: {{ type: disk, inputs: [fleet], size_max: 8MiB }}
sinks:
  {sink}
"
    )
}

#[test]
fn an_error_about_a_wrong_path_names_the_channels_nearby() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let port = free_port();
    Program::start(here, &config(here, port))
        .listens(port)
        .stop();
    let buffer = here.join("data/channels/buffer");
    for place in [
        "data",
        "data/channels",
        "data/channels/bufer",
        "data/buffer",
    ] {
        for command in ["ls", "verify", "cat"] {
            let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
                .args(["channel", command])
                .arg(here.join(place))
                .output()
                .unwrap();
            let said = text(output, 1);
            assert!(said.contains("there is no channel here"), "{said}");
            assert!(said.contains(buffer.to_str().unwrap()), "{said}");
        }
    }
}

/// The commands of an operator on a typical channel: it has many segments, a sink with its own position and a stuck sink, and
/// the program was restarted.
#[test]
fn a_used_and_restarted_channel_is_listed_skipped_and_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let (port, place) = (free_port(), here.join("place"));
    let shape = config(here, port).replace("64MiB", "16MiB");
    let program = Program::start(here, &shape).listens(port);
    let send = |numbers: Range<u32>| {
        let sent = numbers.len() as u32;
        assert_eq!(send_large(port, numbers, PATIENCE).1, sent);
    };
    send(1..101);
    wait_until("both have settled", || {
        ["good", "stuck"].map(|name| row(here, name)[2] == "0") == [true; 2]
    });
    assert_eq!(program.stop(), Some(0));
    fs::rename(&place, here.join("away")).unwrap();
    fs::write(&place, "no directory").unwrap();
    let program = Program::start(here, &shape).listens(port);
    send(101..201);
    wait_until("the good sink has settled", || row(here, "good")[2] == "0");
    assert_eq!(program.stop(), Some(0));

    assert_eq!(row(here, "stuck")[..3], ["1.100", "100", "100"]);
    assert_eq!(row(here, "good")[..3], ["1.200", "0", "0"]);
    let page = text(channel(here, &["ls"]), 0);
    let segments = page.lines().filter(|line| line.contains(".seg ")).count();
    assert!(segments > 2, "{page}");
    let said = text(channel(here, &["verify"]), 0);
    assert!(
        said.contains("to 1.200\n") && said.ends_with("sound\n"),
        "{said}"
    );
    let cat = text(channel(here, &["cat", "--after", "1.198"]), 0);
    assert_eq!(cat.lines().count(), 2);

    let output = here.join("passed.json");
    let output = output.to_str().unwrap();
    let skip = |consumer: &str, to: &str, code: i32| {
        let skip = format!("skip --consumer {consumer} --output {output} --to {to}");
        text(channel(here, &skip.split(' ').collect::<Vec<_>>()), code)
    };
    // Positions beyond the end, in other epochs, and one that all consumers have settled and whose segment is gone.
    for to in ["1.201", "2.1", "0.7", "1.100"] {
        let said = skip("stuck", to, 1);
        let told = format!("no position {to}: the channel holds 1.101 to 1.200");
        let told = said.contains(&told);
        assert!(told, "{said}");
        assert!(!Path::new(output).exists(), "nothing is written for {to}");
    }
    assert!(skip("stranger", "end", 1).contains("it has good, stuck"));
    let said = skip("stuck", "1.150", 0);
    assert!(
        said.contains("50 records in 50 batches, up to 1.150"),
        "{said}"
    );
    assert_eq!(numbers(output.as_ref()), (101..151).collect::<Vec<_>>());
    assert_eq!(row(here, "stuck")[..2], ["1.150", "50"]);
    assert!(skip("stuck", "1.150", 0).contains("stuck has settled up to 1.150"));

    let said = text(channel(here, &["forget", "--consumer", "stuck"]), 1);
    assert!(said.contains("--force"), "{said}");
    assert!(text(channel(here, &["forget", "--consumer", "x"]), 1).contains("it has good, stuck"));
    fs::remove_file(&place).unwrap();
    fs::rename(here.join("away"), &place).unwrap();
    let program = Program::start(here, &shape).listens(port);
    wait_until("the sink continues", || row(here, "stuck")[2] == "0");
    assert_eq!(program.stop(), Some(0));
    let stuck = numbers(&place.join("stuck.log"));
    assert_eq!(stuck, (1..101).chain(151..201).collect::<Vec<_>>());
    let force = ["forget", "--consumer", "stuck", "--force"];
    assert!(text(channel(here, &force), 0).contains("stuck is forgotten"));
}

#[test]
fn records_that_no_sink_takes_are_counted_logged_and_shown() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let ports = [free_port(), free_port()];
    let sinks = format!(
        "web: {{ type: file, inputs: [buffer], tags: \"web.**\", path: {0}/web.log }}
  db: {{ type: file, inputs: [buffer], tags: [\"db.*\"], path: {0}/db.log }}",
        here.display()
    );
    let program = Program::start(here, &small(here, ports, &sinks)).listens(ports[0]);
    let mut stream = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
    let tags = ["web", "web.a", "db.x", "mail", "db", "mail"];
    for (n, tag) in (0u32..).zip(tags) {
        stream.write_all(&large(tag, n)).unwrap();
        stream.read_exact(&mut [0; 22]).unwrap();
    }
    wait_until("records without a sink are counted", || {
        metric(ports[1], "records_unclaimed_total", "buffer") == 3
    });
    wait_until("the others are written", || {
        numbers(&here.join("web.log")) == [0, 1] && numbers(&here.join("db.log")) == [2]
    });
    let log = program.log();
    assert!(log.contains("no sink takes the tag `mail`"), "{log}");
    let status = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["status", "--api", &format!("127.0.0.1:{}", ports[1])])
        .output()
        .unwrap();
    let page = text(status, 0);
    assert!(page.contains("records_unclaimed=3"), "{page}");
}

#[test]
fn skipped_records_are_reported_immediately_and_counted_exactly() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let (ports, place) = ([free_port(), free_port()], here.join("place"));
    fs::write(&place, "no directory").unwrap();
    let sink = format!(
        "slow: {{ type: file, inputs: [buffer], path: {}/slow.log, behind: {{ then: skip }} }}",
        place.display()
    );
    let program = Program::start(here, &small(here, ports, &sink)).listens(ports[0]);
    let skipped = |what: &str| metric(ports[1], &format!("{what}_skipped_total"), "slow");
    let sent = 400;
    assert_eq!(send_large(ports[0], 0..sent, PATIENCE).1, sent);
    wait_until("skipped records are counted", || skipped("records") > 0);
    let log = program.log();
    let told = log
        .lines()
        .filter(|line| line.contains("slow is further behind"))
        .count();
    assert_eq!(
        told, 1,
        "the first is logged immediately, the others in a summary: {log}"
    );
    fs::remove_file(&place).unwrap();
    wait_until("the sink has caught up", || {
        program.log().contains("slow has caught up")
    });
    let delivered = numbers(&place.join("slow.log"));
    assert_eq!(delivered.last(), Some(&u64::from(sent - 1)));
    assert_eq!(skipped("records") + delivered.len() as u64, u64::from(sent));
    assert!(skipped("bytes") > skipped("records") * 60_000);
    let log = program.log();
    let all = format!(
        "{} records ({} bytes) were skipped",
        skipped("records"),
        skipped("bytes")
    );
    assert!(log.contains(&all), "{all}: {log}");
    assert!(!log.contains("no longer in the channel"), "{log}");
}

/// Stops the program while the channel is full and its sink cannot deliver.
#[test]
fn a_stop_with_a_full_channel_is_clean_and_meets_its_deadline() {
    let closed = free_port();
    for broken in [
        "file, path: HERE/place/out.log",
        &format!("forward, servers: [\"127.0.0.1:{closed}\"]"),
        &format!("http, url: \"http://127.0.0.1:{closed}/\""),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let ports = [free_port(), free_port()];
        fs::write(here.join("place"), "no directory").unwrap();
        let broken = broken.replace("HERE", here.to_str().unwrap());
        let stuck = format!("out: {{ inputs: [buffer], type: {broken} }}");
        let program = Program::start_with(here, &small(here, ports, &stuck), &["--drain", "4s"]);
        let program = program.listens(ports[0]);
        let (waiting, acked) = send_large(ports[0], 0..400, Duration::from_secs(2));
        assert!((50..200).contains(&acked), "{acked} fit");
        let started = Instant::now();
        let log = here.join("log");
        assert_eq!(
            program.stop(),
            Some(0),
            "{broken}: {}",
            fs::read_to_string(&log).unwrap()
        );
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{:?}",
            started.elapsed()
        );
        drop(waiting);
        fs::remove_file(&log).unwrap();

        let out = here.join("out.log");
        let mended = format!(
            "out: {{ inputs: [buffer], type: file, path: {} }}",
            out.display()
        );
        let program = Program::start(here, &small(here, ports, &mended)).listens(ports[0]);
        let rest = acked..acked + 10;
        assert_eq!(send_large(ports[0], rest.clone(), PATIENCE).1, 10);
        let all: Vec<u64> = (0..u64::from(rest.end)).collect();
        wait_until("all lines are written once", || numbers(&out) == all);
        let log = program.log();
        assert!(
            !log.contains("not clean") && !log.contains("ERROR"),
            "{log}"
        );
    }
}

/// Stops the program while the channel is full: once with a source that can read unacked records again (tail), and once with a source
/// that cannot (syslog).
#[test]
fn a_stop_with_a_full_channel_reports_whether_records_are_lost() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let (port, place) = (free_port(), here.join("place"));
    let lines: String = (0..400)
        .map(|n| format!("{{\"n\":{n},\"p\":\"{}\"}}\n", "p".repeat(60_000)))
        .collect();
    fs::write(here.join("in.log"), &lines).unwrap();
    for (source, lost) in [
        (format!("tail, paths: {}/in.log", here.display()), false),
        (format!("syslog, listen: \"tcp://127.0.0.1:{port}\""), true),
    ] {
        let _ = fs::remove_dir_all(here.join("data"));
        let _ = fs::remove_dir_all(&place);
        fs::write(&place, "no directory").unwrap();
        let shape = format!(
            "data_dir: {here}/data
api: {{ listen: [] }}
sources:
  in: {{ type: {source} }}
channels:
  buffer: {{ type: disk, inputs: [in], size_max: 8MiB }}
sinks:
  out: {{ type: file, inputs: [buffer], format: raw, path: {here}/place/out.log }}
",
            here = here.display()
        );
        let program = Program::start_with(here, &shape, &["--drain", "4s"]);
        if lost {
            let program = program.listens(port);
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream
                .set_write_timeout(Some(Duration::from_secs(2)))
                .unwrap();
            let is_full = (0..5).any(|_| stream.write_all(lines.as_bytes()).is_err());
            assert!(is_full, "the source accepts more than the channel holds");
            let started = Instant::now();
            assert_eq!(program.stop(), Some(1));
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "{:?}",
                started.elapsed()
            );
            let log = fs::read_to_string(here.join("log")).unwrap();
            assert!(
                log.contains("are lost: their senders cannot send them again"),
                "{log}"
            );
            continue;
        }
        let full = || program.log().contains("the channel is full");
        wait_until("the channel is full", full);
        let started = Instant::now();
        assert_eq!(program.stop(), Some(0));
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{:?}",
            started.elapsed()
        );
        fs::remove_file(&place).unwrap();
        let program = Program::start(here, &shape);
        wait_until("everything is written", || {
            fs::read_to_string(place.join("out.log")).is_ok_and(|text| text.len() >= lines.len())
        });
        assert!(
            fs::read_to_string(place.join("out.log")).unwrap() == lines,
            "each line once"
        );
        assert!(!program.log().contains("not clean"), "{}", program.log());
        fs::remove_file(here.join("log")).unwrap();
    }
}
