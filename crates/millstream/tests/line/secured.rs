//! One Millstream sends to another under TLS with client certificates, shared key and user. Everything arrives. A sender with
//! the wrong key or without a certificate gets an error and delivers nothing.

use std::{fs, path::Path};

use crate::program::{Program, free_port, wait_until};
use millstream_testkit::Authority;

const RECORDS: usize = 20_000;

fn certificates(directory: &Path) {
    let authority = Authority::new("root");
    authority.write_root(directory, "ca");
    authority.issue(directory, "server", &["localhost"]);
    authority.issue(directory, "client", &["web-1"]);
}

fn receiver(directory: &Path, port: u16) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/receiver\napi: {{ listen: [] }}\nthreads: 1\n\
         tls: {{ mesh: {{ cert: server.pem, key: server.key, ca: ca.pem }} }}\n\
         sources:\n  in:\n    type: forward\n    listen: \"tcp://127.0.0.1:{port}\"\n    tls: mesh\n\
         \x20   auth: {{ hostname: agg, shared_key: open sesame, users: {{ alice: wonder }} }}\n\
         channels:\n  disk: {{ type: disk, inputs: [in], size_max: 64MiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [disk], path: \"{place}/out.log\", format: raw }}\n"
    )
}

/// The configuration of a Millstream that sends the lines of a file. `options` are further options of its sink.
fn sender(directory: &Path, name: &str, port: u16, options: &str) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/{name}\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: tail, paths: [\"{place}/in.log\"], start: beginning }}\n\
         channels:\n  disk: {{ type: disk, inputs: [in], size_max: 64MiB }}\n\
         sinks:\n  out: {{ type: forward, inputs: [disk], servers: \"localhost:{port}\", peer: millstream, retry: {{ first: 50ms, max: 100ms }}, {options} }}\n"
    )
}

fn start(directory: &Path, name: &str, config: &str) -> Program {
    let home = directory.join(name);
    fs::create_dir_all(&home).unwrap();
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if matches!(ending, Some("pem" | "key")) {
            fs::copy(&path, home.join(path.file_name().unwrap())).unwrap();
        }
    }
    Program::start(&home, config)
}

#[test]
fn everything_arrives_with_certificate_key_and_user_and_nothing_without() {
    let directory = tempfile::tempdir().unwrap();
    let (directory, port) = (directory.path(), free_port());
    certificates(directory);
    let lines: String = (0..RECORDS)
        .map(|n| format!("line {n} {}\n", "x".repeat(n % 200)))
        .collect();
    fs::write(directory.join("in.log"), &lines).unwrap();
    let receiving = start(directory, "r", &receiver(directory, port)).listens(port);
    let tls = "tls: { ca: ca.pem, cert: client.pem, key: client.key }";
    let auth = "auth: { shared_key: open sesame, username: alice, password: wonder }";
    for (name, options, told) in [
        (
            "key",
            format!("{tls}, auth: {{ shared_key: guess }}"),
            "denied access: shared_key mismatch",
        ),
        (
            "user",
            format!("{tls}, auth: {{ shared_key: open sesame }}"),
            "denied access: username/password mismatch",
        ),
        (
            "stranger",
            format!("tls: {{ ca: ca.pem }}, {auth}"),
            "certificate",
        ),
        ("plain", auth.to_owned(), "handshake"),
        (
            "system",
            format!(
                "tls: {{ server_name: elsewhere, ca: ca.pem, cert: client.pem, key: client.key }}, {auth}"
            ),
            "not valid for name",
        ),
    ] {
        let sending = start(directory, name, &sender(directory, name, port, &options));
        wait_until(&format!("{name} is refused"), || {
            sending.log().to_lowercase().contains(told)
        });
        sending.kill();
    }
    let out = directory.join("out.log");
    assert!(fs::read(&out).is_ok_and(|bytes| bytes.is_empty()) || !out.exists());
    let sending = start(
        directory,
        "good",
        &sender(directory, "good", port, &format!("{tls}, {auth}")),
    );
    wait_until("everything has arrived", || {
        fs::metadata(&out).is_ok_and(|data| data.len() >= lines.len() as u64)
    });
    assert_eq!(sending.stop(), Some(0));
    assert_eq!(receiving.stop(), Some(0));
    assert!(fs::read_to_string(&out).unwrap() == lines);
}
