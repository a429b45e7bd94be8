//! The HTTP interface and `millstream status`: the answers of the interface, the callers that may see them, and an address that is in
//! use.

mod access;
mod dashboard;
mod faults;
mod forget;
mod matrix;
mod peers;
mod probes;
mod reload;
mod replay;
mod taps;

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::{Command, Output},
};

use crate::program::{Program, free_port, wait_until};
use serde_json::Value;

/// A forward source, a sink that discards its records, and the HTTP interface.
fn config(directory: &Path, port: u16, api: &str) -> String {
    format!(
        "data_dir: {}/data\napi: {api}\nsources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\nsinks:\n  nowhere: {{ type: discard, inputs: [fleet] }}\n",
        directory.display()
    )
}

/// The whole answer to a GET.
fn get(address: (IpAddr, u16), path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get_here(port: u16, path: &str) -> String {
    get((IpAddr::from([127, 0, 0, 1]), port), path)
}

fn status(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream"))
        .arg("status")
        .args(arguments)
        .output()
        .unwrap()
}

/// Sends three records, one per message: `["t", time, {"n": 1}]`.
fn send_three(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    for _ in 0..3 {
        stream
            .write_all(b"\x93\xa1t\xce\x60\x00\x00\x00\x81\xa1n\x01")
            .unwrap();
    }
}

#[test]
fn a_running_instance_reports_its_state() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let config = config(
        directory.path(),
        port,
        &format!("{{ listen: \"127.0.0.1:{api}\" }}"),
    );
    let program = Program::start(directory.path(), &config).listens(port);
    send_three(port);
    let settled = "millstream_records_settled_total{component=\"nowhere\"} 3";
    wait_until("three records are settled", || {
        get_here(api, "/metrics").contains(settled)
    });
    let health = get_here(api, "/health");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    assert!(health.contains("\"healthy\":true"), "{health}");
    assert!(get_here(api, "/nothing").starts_with("HTTP/1.1 404"));

    let file = directory.path().join("millstream.yaml");
    let page = status(&[file.to_str().unwrap()]);
    let text = String::from_utf8(page.stdout).unwrap();
    assert_eq!(page.status.code(), Some(0), "{text}");
    let row = text
        .lines()
        .find(|line| line.starts_with("nowhere"))
        .unwrap();
    let row: Vec<_> = row.split_whitespace().collect();
    assert_eq!(
        row[..7],
        ["nowhere", "discard", "running", "3", "0", "3", "0"]
    );

    let page = status(&["--json", "--api", &format!("http://127.0.0.1:{api}/")]);
    let json: Value = serde_json::from_slice(&page.stdout).unwrap();
    assert_eq!(json["nodes"].as_array().unwrap().len(), 2, "{json:#}");
    assert_eq!(json["pid"], program.id());
    assert_eq!(program.stop(), Some(0));

    let page = status(&["--api", &format!("127.0.0.1:{api}")]);
    assert_eq!(page.status.code(), Some(1));
    let text = String::from_utf8(page.stderr).unwrap();
    assert!(text.contains("no instance answers at 127.0.0.1"), "{text}");
}

#[test]
fn the_report_names_the_tailed_files_that_are_furthest_behind() {
    let (directory, api) = (tempfile::tempdir().unwrap(), free_port());
    let logs = directory.path().join("logs");
    fs::create_dir(&logs).unwrap();
    fs::write(
        logs.join("slow.log"),
        ("x".repeat(999) + "\n").repeat(10_000),
    )
    .unwrap();
    fs::write(logs.join("read.log"), "a line\n").unwrap();
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  web: {{ type: tail, paths: \"{0}/logs/*.log\", start: beginning, rate_max: 10KB }}\n\
         sinks:\n  nowhere: {{ type: discard, inputs: [web] }}\n",
        directory.path().display()
    );
    let program = Program::start(directory.path(), &config).listens(api);
    let path = logs.join("slow.log").display().to_string();
    let row = format!("millstream_file_lag_bytes{{component=\"web\",path=\"{path}\"}} ");
    let lag = |page: &str| -> Option<u64> {
        let line = page.lines().find(|line| line.starts_with(&row))?;
        line[row.len()..].parse().ok()
    };
    wait_until("the file that is behind is named", || {
        lag(&get_here(api, "/metrics")).is_some()
    });
    let page = get_here(api, "/metrics");
    assert!((1..=10_000_000).contains(&lag(&page).unwrap()), "{page}");
    assert!(!page.contains("read.log"), "{page}");
    let address = format!("127.0.0.1:{api}");
    let table = String::from_utf8(status(&["--api", &address]).stdout).unwrap();
    let told = table.lines().find(|line| line.ends_with(&path)).unwrap();
    let told: Vec<_> = told.split_whitespace().take(2).collect();
    assert_eq!(told, ["web", "file_lag_bytes"], "{table}");
    let json = String::from_utf8(status(&["--json", "--api", &address]).stdout).unwrap();
    assert!(json.contains("\"file_lag_bytes\""), "{json}");
    program.kill();
}

#[test]
fn a_node_that_fails_makes_the_instance_unhealthy() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    // A path below a file can never be written.
    fs::write(directory.path().join("file"), "").unwrap();
    let config = config(
        directory.path(),
        port,
        &format!("{{ listen: \"127.0.0.1:{api}\" }}"),
    );
    let sink = format!(
        "{{ type: file, path: \"{}/file/x.log\"",
        directory.path().display()
    );
    let program = Program::start(directory.path(), &config.replace("{ type: discard", &sink));
    let program = program.listens(port);
    send_three(port);
    wait_until("it is unhealthy", || {
        get_here(api, "/health").starts_with("HTTP/1.1 503")
    });
    let health = get_here(api, "/health");
    assert!(health.contains("\"node\":\"nowhere\""), "{health}");
    assert!(health.contains("file/x.log"), "{health}");
    let page = status(&["--api", &format!("127.0.0.1:{api}")]);
    assert_eq!(page.status.code(), Some(1));
    assert!(
        String::from_utf8(page.stdout)
            .unwrap()
            .contains("file/x.log")
    );
    program.kill();
}

#[test]
fn a_configured_address_that_is_in_use_ends_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = taken.local_addr().unwrap();
    let config = config(
        directory.path(),
        free_port(),
        &format!("{{ listen: \"{api}\" }}"),
    );
    let program = Program::start(directory.path(), &config);
    let log = directory.path().join("log");
    assert_eq!(program.ended(), Some(1));
    let log = fs::read_to_string(log).unwrap();
    assert!(
        log.contains(&api.to_string()) && log.contains("api.listen"),
        "{log}"
    );
}

#[test]
fn the_default_address_may_be_in_use() {
    // The default address is in use, by this test or by another program on this machine.
    let _taken = TcpListener::bind("127.0.0.1:8687");
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let config = config(directory.path(), port, "{}");
    let program = Program::start(directory.path(), &config).listens(port);
    wait_until("the address in use is logged", || {
        program.log().contains("cannot listen on 127.0.0.1:8687")
    });
    assert_eq!(program.stop(), Some(0));
}

/// After DNS rebinding, a browser sends requests with a foreign Host header.
#[test]
fn a_request_under_a_foreign_host_name_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let listen = format!("{{ listen: \"127.0.0.1:{api}\", hosts: [logs.example] }}");
    let program = Program::start(directory.path(), &config(directory.path(), port, &listen));
    let program = program.listens(port);
    let ask = |host: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
        let request = "GET /status HTTP/1.1\r\nConnection: close\r\nHost: ";
        write!(stream, "{request}{host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let refused = ask(&format!("evil.example:{api}"));
    assert!(refused.starts_with("HTTP/1.1 421"), "{refused}");
    assert!(
        !refused.contains("nodes") && refused.contains("api"),
        "{refused}"
    );
    for known in ["localhost", "127.0.0.1", "logs.example"] {
        let answer = ask(&format!("{known}:{api}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{known}: {answer}");
    }
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn half_open_requests_and_peers_that_never_read_do_not_block_the_interface() {
    let (directory, api) = (tempfile::tempdir().unwrap(), free_port());
    let listen = format!("{{ listen: \"127.0.0.1:{api}\" }}");
    let program = Program::start(
        directory.path(),
        &config(directory.path(), free_port(), &listen),
    );
    let program = program.listens(api);
    let mut held = Vec::new();
    for request in [
        "GET /health HT",
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        for _ in 0..100 {
            let mut stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
            // The interface may already have closed the connection.
            let _ = stream.write_all(request.repeat(20).as_bytes());
            held.push(stream);
        }
        assert!(get_here(api, "/health").starts_with("HTTP/1.1 200"));
    }
    drop(held);
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_peer_cannot_forge_log_lines_or_drive_a_terminal() {
    let (directory, api) = (tempfile::tempdir().unwrap(), free_port());
    let logs = directory.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let name = "a\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2J.log";
    fs::write(logs.join(name), "x".repeat(2_000_000)).unwrap();
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  web: {{ type: tail, paths: [\"{0}/logs/*.log\"], start: beginning, rate_max: 10KB, too_long: reject }}\n\
         sinks:\n  nowhere: {{ type: discard, inputs: [web] }}\n",
        directory.path().display()
    );
    let program = Program::start(directory.path(), &config).listens(api);
    let address = format!("127.0.0.1:{api}");
    let page = || String::from_utf8(status(&["--api", &address]).stdout).unwrap();
    wait_until("the file is named", || page().contains("forged"));
    let metrics = get_here(api, "/metrics");
    for (what, text) in [("status", page()), ("metrics", metrics)] {
        let named = text.lines().find(|line| line.contains("forged")).unwrap();
        assert!(named.contains("logs/a"), "{what}: {named:?}");
        assert!(!text.contains('\u{1b}'), "{what}: {text:?}");
    }
    program.kill();
}

/// Performs the handshake as a server that refuses access. The reason that it gives would forge a log line and clear the screen.
fn refuse(mut stream: TcpStream) {
    let reason = "no\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2J";
    // ["HELO", {"nonce": "n", "auth": "", "keepalive": true}]
    let helo = b"\x92\xa4HELO\x83\xa5nonce\xa1n\xa4auth\xa0\xa9keepalive\xc3";
    // ["PONG", false, reason, "", ""]
    let length = [u8::try_from(reason.len()).unwrap()];
    let pong = [
        b"\x95\xa4PONG\xc2\xd9",
        &length[..],
        reason.as_bytes(),
        b"\xa0\xa0",
    ];
    // The sender may have disconnected.
    let _ = stream.write_all(helo);
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(&pong.concat());
}

#[test]
fn a_server_cannot_forge_log_lines() {
    let directory = tempfile::tempdir().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "data_dir: {}/data\napi: {{ listen: [] }}\n\
         sources:\n  load: {{ type: generate }}\n\
         sinks:\n  next: {{ type: forward, inputs: [load], servers: [\"{}\"], auth: {{ hostname: a, shared_key: k }} }}\n",
        directory.path().display(),
        server.local_addr().unwrap()
    );
    std::thread::spawn(move || {
        for stream in server.incoming() {
            refuse(stream.unwrap());
        }
    });
    let program = Program::start(directory.path(), &config);
    wait_until("the refusal is logged", || program.log().contains("forged"));
    let log = program.log();
    let line = log.lines().find(|line| line.contains("forged")).unwrap();
    assert!(line.contains("no\\n2026-01-01"), "{line:?}");
    assert!(!log.contains('\u{1b}'), "{line:?}");
    program.kill();
}

#[test]
fn other_machines_see_only_the_open_part_of_the_interface() {
    // Find the address that this machine uses for outgoing packets; no packet is sent. Without a network there is nothing to test.
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("192.0.2.1:9").is_err() {
        return;
    }
    let outside = probe.local_addr().unwrap().ip();
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let listen = format!("{{ listen: \"0.0.0.0:{api}\", open: [health] }}");
    let config = config(directory.path(), port, &listen);
    let program = Program::start(directory.path(), &config).listens(port);
    assert!(get((outside, api), "/health").starts_with("HTTP/1.1 200"));
    for page in ["/metrics", "/status", "/"] {
        let answer = get((outside, api), page);
        assert!(answer.starts_with("HTTP/1.1 403"), "{page}: {answer}");
        assert!(get_here(api, page).starts_with("HTTP/1.1 200"), "{page}");
    }
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_removed_data_dir_makes_the_instance_unhealthy_and_nothing_is_acked() {
    let directory = tempfile::tempdir().unwrap();
    let (place, port, api) = (directory.path().display(), free_port(), free_port());
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 64MiB }}\n\
         sinks:\n  out: {{ type: discard, inputs: [kept] }}\n"
    );
    let program = Program::start(directory.path(), &config).listens(port);
    // ["t", [[time, {"n": 1}]], {"chunk": 16 bytes}]
    let send = |stream: &mut TcpStream, id: u8| {
        let mut chunk =
            b"\x93\xa1t\x91\x92\xce\x60\x00\x00\x00\x81\xa1n\x01\x81\xa5chunk\xb0".to_vec();
        chunk.extend([b'a' + id; 16]);
        stream.write_all(&chunk).unwrap();
    };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    send(&mut stream, 0);
    let mut ack = [0; 22];
    stream.read_exact(&mut ack).unwrap();
    assert!(ack.starts_with(b"\x81\xa3ack\xb0aaaa"), "{ack:?}");
    fs::remove_dir_all(directory.path().join("data")).unwrap();
    send(&mut stream, 1);
    wait_until("it is unhealthy", || {
        get_here(api, "/health").starts_with("HTTP/1.1 503")
    });
    let health = get_here(api, "/health");
    assert!(health.contains("\"node\":\"kept\""), "{health}");
    assert!(health.contains("was removed or replaced"), "{health}");
    // The second chunk is not acked during the stop, either.
    program.signal("TERM");
    let mut answered = Vec::new();
    let _ = stream.read_to_end(&mut answered);
    assert_eq!(
        answered, b"",
        "a chunk was acked that the next start cannot find"
    );
    assert_ne!(program.ended(), Some(0));
}
