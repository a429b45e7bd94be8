//! Small syslog senders: `logger` of util-linux in every format, and Python's SysLogHandler over every socket. Every record that
//! they send arrives in a file, field for field; messages that are too long are split, truncated or rejected as configured.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use super::syslog_ways::{MESSAGES, Way, configuration, records, start, text, way};
use crate::program::{Program, free_port};
use serde_json::{Value, json};

/// Runs `logger` with all messages.
fn logger(arguments: &[&str]) {
    let lines: String = (0..MESSAGES).map(|n| text(n) + "\n").collect();
    log(arguments, &lines);
}

/// Runs `logger` with one message for each line of its input.
fn log(arguments: &[&str], lines: &str) {
    let mut command = Command::new("logger");
    let common = ["--id=77", "--tag", "app", "--priority", "local3.warning"];
    let mut child = command
        .args(common)
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success(), "logger {arguments:?}");
}

#[test]
fn logger_of_util_linux_delivers_every_message_in_every_format() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, stream, datagram) = (free_port(), place.join("stream"), place.join("devlog"));
    let ways = [
        way("tcp", format!("tcp://127.0.0.1:{port}"), ""),
        way("udp", format!("udp://127.0.0.1:{port}"), ""),
        way("stream", format!("unix://{}", stream.display()), ""),
        way("datagram", format!("unixgram://{}", datagram.display()), ""),
    ];
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let mut program = start(place, &ways, port);
    let port = port.to_string();
    let net = ["--server", "127.0.0.1", "--port", &port];
    let (stream, datagram) = (stream.to_string_lossy(), datagram.to_string_lossy());
    let forms: [(&str, Vec<&str>, bool); 8] = [
        ("tcp", [&net[..], &["--tcp", "--rfc3164"]].concat(), true),
        ("tcp", [&net[..], &["--tcp", "--rfc5424"]].concat(), true),
        (
            "tcp",
            [&net[..], &["--tcp", "--rfc5424", "--octet-count"]].concat(),
            true,
        ),
        (
            "tcp",
            [&net[..], &["--tcp", "--rfc5424=notime,nohost"]].concat(),
            false,
        ),
        ("udp", [&net[..], &["--udp", "--rfc3164"]].concat(), true),
        ("udp", [&net[..], &["--udp", "--rfc5424"]].concat(), true),
        ("stream", vec!["--socket", &stream, "--tcp"], false),
        ("datagram", vec!["--socket", &datagram, "--udp"], false),
    ];
    for (name, arguments, names_host) in forms {
        logger(&arguments);
        let got = records(place, &program, name, MESSAGES);
        assert_eq!(got.len(), MESSAGES, "{arguments:?}");
        for (n, mut record) in got.into_iter().enumerate() {
            let fields = record.as_object_mut().unwrap();
            fields.remove("time").unwrap();
            // In this field, `logger` describes the quality of its clock.
            fields.remove("structured_data");
            let mut expected = json!({
                "facility": "local3", "severity": "warning", "app": "app", "procid": "77", "message": text(n),
            });
            expected["host"] = match (names_host, name) {
                (false, "tcp") => "127.0.0.1".into(),
                // In the older format, `logger` writes only the first part of the host name.
                (true, _) if arguments.contains(&"--rfc3164") => {
                    host.split('.').next().unwrap().into()
                }
                _ => host.as_str().into(),
            };
            if name == "udp" {
                expected["peer"] = "127.0.0.1".into();
            }
            assert_eq!(record, expected, "{arguments:?}");
        }
        program = emptied(program, place, &ways, &port);
    }
}

/// The values of the option `too_long`.
const TOO_LONG: [&str; 3] = ["split", "truncate", "reject"];
const LINE_MAX: usize = 1000;

/// Starts a source for each value of `too_long`. Each source listens over TCP and UDP on its own port. The rejected messages go to the
/// file `aside.log`.
fn start_strict(place: &Path, ports: [u16; 3]) -> Program {
    let ways = [0, 1, 2].map(|n| {
        let (name, port) = (TOO_LONG[n], ports[n]);
        let listen = format!("[\"tcp://127.0.0.1:{port}\", \"udp://127.0.0.1:{port}\"]");
        let options =
            format!("type: syslog, listen: {listen}, line_max: {LINE_MAX}B, too_long: {name}");
        Way { name, options }
    });
    let aside = place.join("out/aside.log");
    let sink = format!("type: file, inputs: [reject.rejected], path: {aside:?}");
    let config = configuration(place, &ways) + &format!("  aside: {{ {sink} }}\n");
    Program::start(place, &config).listens(ports[2])
}

fn messages(records: &[Value]) -> Vec<String> {
    let text = |record: &Value| record["message"].as_str().unwrap().to_owned();
    records.iter().map(text).collect()
}

#[test]
fn long_messages_of_logger_are_handled_as_configured_and_name_their_sender() {
    let (directory, ports) = (tempfile::tempdir().unwrap(), TOO_LONG.map(|_| free_port()));
    let place = directory.path();
    let program = start_strict(place, ports);
    let long: String = (0..1000).map(|n| format!("{n:09} ")).collect();
    let long = long.trim_end();
    let (mut all, mut aside) = (Vec::new(), Vec::new());
    for (name, port) in TOO_LONG.iter().zip(ports) {
        let port = port.to_string();
        let mut got = Vec::new();
        for (count, form) in [(1, &["--tcp", "--octet-count"][..]), (2, &["--udp"])] {
            let net = ["--server", "127.0.0.1", "--port", &port, "--size", "20KiB"];
            let lines = format!("first\n{long}\nlast\n");
            log(&[&net[..], form].concat(), &lines);
            let is_last = |record: &&Value| record["message"] == "last";
            while got.iter().filter(is_last).count() < count {
                got = records(place, &program, name, got.len() + 1);
            }
            if *name == "reject" {
                // Each long message is rejected in eleven pieces of up to LINE_MAX bytes, because the header counts as well.
                aside = records(place, &program, "aside", count * 11);
            }
        }
        let who = |record: &Value| (record["app"] == "app", record["procid"] == "77");
        assert!(got.iter().all(|record| who(record) == (true, true)));
        all.push(messages(&got));
    }
    // The messages before and after the long one are complete.
    assert_eq!(all[0].concat(), format!("first{long}last").repeat(2));
    assert_eq!(all[1].len(), 6);
    for of_one in all[1].chunks(3) {
        assert_eq!((&*of_one[0], &*of_one[2]), ("first", "last"));
        assert!(long.starts_with(&of_one[1]) && of_one[1].len() > LINE_MAX - 100);
    }
    assert_eq!(all[2], ["first", "last"].repeat(2));
    let aside = messages(&aside).concat();
    assert_eq!(aside.matches(long).count(), 2, "{aside}");
    let said = program.log();
    let why = "a message is longer than line_max";
    assert!(
        said.contains(&format!("127.0.0.1: {why}; its end is dropped")),
        "{said}"
    );
    assert!(
        said.contains(&format!(".rejected: {why}; tag reject from 127.0.0.1,")),
        "{said}"
    );
    assert_eq!(program.stop(), Some(0));
}

/// Stops the program, removes its output and state, and starts it again.
fn emptied(program: Program, place: &Path, ways: &[Way], port: &str) -> Program {
    assert_eq!(program.stop(), Some(0));
    fs::remove_dir_all(place.join("out")).unwrap();
    fs::remove_dir_all(place.join("data")).unwrap();
    start(place, ways, port.parse().unwrap())
}

#[test]
fn the_handler_of_python_delivers_every_message_over_every_socket() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, stream, datagram) = (free_port(), place.join("stream"), place.join("devlog"));
    let ways = [
        way("tcp", format!("tcp://127.0.0.1:{port}"), ""),
        way("udp", format!("udp://127.0.0.1:{port}"), ""),
        way("stream", format!("unix://{}", stream.display()), ""),
        way("datagram", format!("unixgram://{}", datagram.display()), ""),
    ];
    let program = start(place, &ways, port);
    let script = crate::program::tree().join("tests/clients/python/syslog_handler.py");
    for (name, address) in [
        ("tcp", port.to_string()),
        ("udp", port.to_string()),
        ("stream", stream.display().to_string()),
        ("datagram", datagram.display().to_string()),
    ] {
        let mut python = Command::new("python3");
        python
            .arg(&script)
            .args([name, &address, &MESSAGES.to_string(), &text(0)]);
        let mut child = python.spawn().unwrap();
        let host = match name {
            "tcp" | "udp" => "127.0.0.1".to_owned(),
            _ => rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        };
        // The script keeps its connection open until the test kills it, so the last message must arrive while the connection is open.
        let got = records(place, &program, name, MESSAGES);
        assert_eq!(got.len(), MESSAGES, "{name}");
        for (n, mut record) in got.into_iter().enumerate() {
            record.as_object_mut().unwrap().remove("time").unwrap();
            let levels = ["debug", "info", "warning", "err", "crit"];
            let mut expected = json!({
                "facility": "daemon", "severity": levels[n % 5],
                "host": host, "app": "app", "procid": "77", "message": text(n),
            });
            if name == "udp" {
                expected["peer"] = "127.0.0.1".into();
            }
            assert_eq!(record, expected, "{name}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(program.stop(), Some(0));
}
