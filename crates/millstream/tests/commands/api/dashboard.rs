//! The dashboard in a real browser: Debian's Chromium, driven by Playwright.
//!
//! `make deps` installs both. With `SCREENSHOTS=DIRECTORY` the test stores screenshots of the page in `DIRECTORY`.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    time::Duration,
};

use serde_json::Value;

use super::get_here;
use crate::program::{Program, free_port, tree, wait_until};

/// Two generators, a disk channel that they fill, a processor of the type `route` that reads the channel in two tasks, and three sinks.
/// One of the sinks takes two routes, and one sends to the port `sink`.
fn config(directory: &Path, api: u16, sink: u16) -> String {
    format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  steady: {{ type: generate, rate: 2000, encoding: packed }}\n  bursts: {{ type: generate, rate: 300, encoding: packed }}\n\
         processors:\n  levels:\n    type: route\n    inputs: [buffer]\n    parallelism: 2\n    routes:\n\
         \x20     errors: {{ where: {{ .message: {{ glob: \"*7*\" }} }} }}\n      eights: {{ where: {{ .message: {{ glob: \"*8*\" }} }} }}\n\
         channels:\n  buffer: {{ type: disk, inputs: [steady, bursts], size_max: 256MiB }}\n\
         sinks:\n  http: {{ type: http, inputs: [levels.errors], url: \"http://127.0.0.1:{sink}/logs\", auth: {{ bearer: sesame }}, retry: {{ first: 100ms, max: 200ms }} }}\n\
         \x20 archive: {{ type: file, inputs: [buffer], path: {0}/archive.log, format: raw }}\n\
         \x20 rest: {{ type: discard, inputs: [levels.rest, levels.eights] }}\n",
        directory.display()
    )
}

/// The body of an answer as JSON.
fn json(answer: &str) -> Value {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(body).unwrap()
}

#[test]
fn a_browser_shows_the_running_graph() {
    let (directory, api, sink) = (tempfile::tempdir().unwrap(), free_port(), free_port());
    let config = config(directory.path(), api, sink);
    let program = Program::start(directory.path(), &config).listens(api);
    let place = tree().join("target/clients/browser");
    let result = tree()
        .join("bench/results/2026-11-22-intel-r-xeon-r-processor-2-cores/forward_receive.json");
    let mut node = Command::new("node");
    node.current_dir(&place)
        .arg("dashboard.js")
        .arg(format!("http://127.0.0.1:{api}/"))
        .arg(sink.to_string())
        .arg(result)
        .args(std::env::var_os("SCREENSHOTS"));
    let run = node
        .output()
        .unwrap_or_else(|error| panic!("node in {}: {error}", place.display()));
    let told = String::from_utf8_lossy(&run.stdout);
    println!("{told}");
    let error = String::from_utf8_lossy(&run.stderr);
    assert!(
        run.status.success() && told.ends_with("good\n"),
        "{told}{error}"
    );
    // The server of the sink has ended with the script, so the program cannot drain.
    program.kill();
}

/// Opens a stream of events and waits for the first one.
fn stream(api: u16) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut stream = BufReader::new(stream);
    event(&mut stream);
    stream
}

/// The next event.
fn event(stream: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "it has ended");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).unwrap();
        }
    }
}

#[test]
fn fifty_streams_show_the_edges_and_leave_room_for_monitoring() {
    let (directory, api, sink) = (tempfile::tempdir().unwrap(), free_port(), free_port());
    let config = config(directory.path(), api, sink);
    let program = Program::start(directory.path(), &config).listens(api);
    let mut streams: Vec<_> = (0..50).map(|_| stream(api)).collect();
    wait_until("records pass the edge to the channel", || {
        let event = event(&mut streams[49]);
        let edges = event["edges"].as_array().unwrap();
        let edge = edges.iter().find(|edge| edge["from"] == "steady").unwrap();
        assert_eq!(edge["to"], "buffer");
        edge["records_per_second"]
            .as_f64()
            .is_some_and(|it| it > 0.0)
    });
    // Streams beyond the limit are refused immediately.
    let more = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
        write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        (line, stream)
    };
    let more: Vec<_> = (0..20).map(more).collect();
    let refused = more.iter().filter(|(line, _)| line.contains("503")).count();
    assert_eq!(refused, 14, "56 streams are admitted");
    for _ in 0..20 {
        assert!(get_here(api, "/health").starts_with("HTTP/1.1 "));
    }
    event(&mut streams[0]);
    // A signal ends the streams, so they do not delay the end of the process.
    assert!(matches!(program.stop(), Some(0 | 1)));
    let mut rest = String::new();
    while streams[0].read_line(&mut rest).is_ok_and(|bytes| bytes > 0) {}
}

#[test]
fn a_reload_changes_the_edges_and_the_description() {
    let (directory, api) = (tempfile::tempdir().unwrap(), free_port());
    let config = |where_: &str| {
        format!(
            "data_dir: {}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
             sources:\n  numbers: {{ type: generate, rate: 100, encoding: packed }}\n{where_}",
            directory.path().display()
        )
    };
    let plain = config("sinks:\n  out: { type: discard, inputs: [numbers] }\n");
    let program = Program::start(directory.path(), &plain).listens(api);
    let edges = || json(&get_here(api, "/status"))["edges"].clone();
    let ends = |edges: &Value| -> Vec<String> {
        let all = edges.as_array().unwrap().iter();
        all.map(|edge| format!("{} {}", edge["from"], edge["to"]))
            .collect()
    };
    assert_eq!(ends(&edges()), ["\"numbers\" \"out\""]);
    let system = rustix::system::uname().nodename().to_owned();
    let host = json(&get_here(api, "/status"))["host"].clone();
    assert_eq!(host.as_str(), system.to_str().ok());
    wait_until("the history has samples", || {
        let history = json(&get_here(api, "/history/numbers"));
        let samples = history["fine"]["records_sent"].as_array();
        samples.is_some_and(|all| all.iter().any(|rate| rate.as_f64() > Some(0.0)))
    });
    let filtered = config(
        "processors:\n  odd: { type: filter, inputs: [numbers], where: { .message: { exists: true } } }\n\
         sinks:\n  out: { type: discard, inputs: [odd] }\n",
    );
    fs::write(directory.path().join("millstream.yaml"), filtered).unwrap();
    program.signal("HUP");
    wait_until("the edges lead through the new processor", || {
        ends(&edges()) == ["\"numbers\" \"odd\"", "\"odd\" \"out\""]
    });
    // The new processor mostly has no sample yet. Its history exists nevertheless.
    assert_eq!(json(&get_here(api, "/history/odd"))["node"], "odd");
    // The descriptions are replaced when all nodes run.
    wait_until("the new processor is described", || {
        get_here(api, "/nodes/odd").starts_with("HTTP/1.1 200")
    });
    let node = json(&get_here(api, "/nodes/odd"));
    assert_eq!(node["options"]["where"][".message"]["exists"], true);
    assert_eq!(node["in_front_of"][0], "out");
    assert!(get_here(api, "/nodes/nothing").starts_with("HTTP/1.1 404"));
    assert!(get_here(api, "/history/nothing").starts_with("HTTP/1.1 404"));
    program.kill();
}
