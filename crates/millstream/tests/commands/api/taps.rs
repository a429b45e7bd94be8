//! Live samples of records: what they show, what they hide, and that they never delay the pipeline.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{get_here, send_three};
use crate::program::{Program, free_port, wait_until};

/// The sampled records in an answer, one per line.
fn samples(answer: &str) -> Vec<Value> {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let lines = body.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn tap(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.arg("tap").args(arguments);
    command
}

#[test]
fn every_kind_of_node_shows_its_records_without_hidden_fields() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let config = format!(
        "data_dir: {}/data\napi: {{ listen: \"127.0.0.1:{api}\", redact: [.n] }}\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         processors:\n  split: {{ type: route, inputs: [in], routes: {{ ones: {{ where: {{ .n: 1 }} }} }} }}\n\
         channels:\n  kept: {{ type: disk, inputs: [split.ones], size_max: 64MiB }}\n\
         sinks:\n  out: {{ type: discard, inputs: [kept] }}\n  rest: {{ type: discard, inputs: [split.rest] }}\n",
        directory.path().display()
    );
    let program = Program::start(directory.path(), &config).listens(port);
    let address = format!("127.0.0.1:{api}");
    let ports = [
        ("in", "out"),
        ("split", "ones"),
        ("kept", "in"),
        ("out", "in"),
    ];
    let asked: Vec<_> = ports
        .iter()
        .map(|(node, _)| {
            let path = format!("/tap/{node}?records=3&seconds=30");
            std::thread::spawn(move || get_here(api, &path))
        })
        .collect();
    let command = tap(&["in", "--api", &address, "--records", "2"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // A tap does not show records that arrived before it was open, so send records until all taps have enough.
    while !asked.iter().all(std::thread::JoinHandle::is_finished) {
        send_three(port);
        std::thread::sleep(Duration::from_millis(100));
    }
    for ((node, port), asked) in ports.iter().zip(asked) {
        let all = samples(&asked.join().unwrap());
        assert_eq!(all.len(), 3, "{node}");
        for sample in all {
            assert_eq!(
                (&sample["node"], &sample["port"]),
                (&(*node).into(), &(*port).into())
            );
            assert_eq!(
                (&sample["tag"], &sample["record"]["n"]),
                (&"t".into(), &"***".into())
            );
            assert_eq!(sample["time"], "2021-01-14T08:25:36Z");
        }
    }
    send_three(port);
    let output = command.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    let unknown = get_here(api, "/tap/other");
    assert!(
        unknown.starts_with("HTTP/1.1 404") && unknown.contains("kept"),
        "{unknown}"
    );
    let wrong = get_here(api, "/tap/in?records=x");
    assert!(wrong.starts_with("HTTP/1.1 400"), "{wrong}");
    let output = tap(&["other", "--api", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn rejected_records_are_shown_by_tap_and_pages_without_hidden_fields() {
    let directory = tempfile::tempdir().unwrap();
    let (place, api) = (directory.path(), free_port());
    let lines: String = (0..50)
        .map(|n| format!("{{\"n\":{n},\"password\":\"hunter2\"\n"))
        .collect();
    fs::write(place.join("in.log"), lines).unwrap();
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\", redact: [.password] }}\n\
         sources:\n  web: {{ type: tail, paths: [\"{0}/in.log\"], start: beginning }}\n\
         processors:\n  json: {{ type: parse, inputs: [web], field: .message, as: json, on_error: reject }}\n\
         sinks:\n  out: {{ type: discard, inputs: [json] }}\n",
        place.display()
    );
    let program = Program::start(place, &config).listens(api);
    wait_until("all records are rejected", || {
        get_here(api, "/rejected").contains("\"records\":50")
    });
    let list = get_here(api, "/rejected");
    assert!(list.contains("\"node\":\"json\""), "{list}");
    let page = get_here(api, "/rejected/json?records=10&from=5");
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    let page: Value = serde_json::from_str(body).unwrap();
    assert_eq!(page["records"].as_array().unwrap().len(), 10);
    assert_eq!(page["more"], true);
    assert_eq!(page["records"][0]["record"], "***");
    assert!(!body.contains("hunter2"), "{body}");
    let none = get_here(api, "/rejected/..%2Fsecret");
    assert!(none.contains("\"records\":[]"), "{none}");
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn readers_that_stall_or_go_away_hold_nothing_up() {
    let (directory, api) = (tempfile::tempdir().unwrap(), free_port());
    let config = format!(
        "data_dir: {}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  load: {{ type: generate, size: 1KiB, rate: 20000 }}\n\
         sinks:\n  out: {{ type: discard, inputs: [load] }}\n",
        directory.path().display()
    );
    let program = Program::start(directory.path(), &config).listens(api);
    let settled = || -> u64 {
        let page = get_here(api, "/metrics");
        let name = "millstream_records_settled_total{component=\"out\"} ";
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let open = |path: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream
    };
    // At most 32 taps may be open. The clients of these 20 taps never read.
    let stalled: Vec<_> = (0..20).map(|_| open("/tap/load?rate=1000")).collect();
    let mut events = TcpStream::connect(("127.0.0.1", api)).unwrap();
    let request =
        "GET /tap/out?rate=50 HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    events.write_all(request.as_bytes()).unwrap();
    let started = Instant::now();
    let mut seen = 0;
    for line in BufReader::new(&events).lines() {
        let line = line.unwrap();
        seen += usize::from(line.starts_with("data: {\"node\":\"out\",\"port\":\"in\""));
        if seen == 100 {
            break;
        }
    }
    assert!(
        started.elapsed() > Duration::from_millis(900),
        "50 in a second"
    );
    let before = settled();
    wait_until("records flow beside stalled taps", || {
        settled() > before + 20_000
    });
    drop((stalled, events));
    wait_until("closed taps are free again", || {
        let all: Vec<_> = (0..25).map(|_| open("/tap/load?records=1")).collect();
        all.iter().all(|stream| {
            let mut line = String::new();
            let read = BufReader::new(stream).read_line(&mut line);
            read.is_ok() && line.starts_with("HTTP/1.1 200")
        })
    });
    assert_eq!(program.stop(), Some(0));
}
