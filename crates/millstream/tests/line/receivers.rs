//! The sink `forward` with a third-party receiver, the server of @fluent-org/logger (npm): plain, compressed, under TLS with a
//! key and a user, and while the server closes its connections. The generator's verifier checks what the server has received.
//!
//! `make deps` installs the server into `target/clients`.

use std::{fs, path::Path, process::Command};

use crate::program::{Program, free_port, millbench, tree, wait_until};
use millstream_testkit::{Authority, server::Server};

/// Records per run.
const RECORDS: &str = "20000";
/// In one of the tests, the server closes all connections each time it has received this number of records.
const BREAK_AFTER: &str = "3000";

/// Starts the receiver, which writes to `out.log`.
fn receiver(directory: &Path, port: u16, environment: &[(&str, &str)]) -> Server {
    let script = tree().join("target/clients/node/server.js");
    assert!(
        script.exists(),
        "{} is missing: run `make deps`",
        script.display()
    );
    let out = directory.join("out.log");
    let environment: Vec<(String, String)> = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Server::start(
        "fluent-server",
        directory.join("receiver.log"),
        port,
        move || {
            let mut command = Command::new("node");
            command.arg(&script).arg(port.to_string()).arg(&out);
            command.envs(environment.clone());
            command
        },
    )
}

/// Sends numbered records through Millstream to the receiver, and asserts that the verifier accepts the receiver's output. `sink`
/// holds further options of the sink. `allow` holds the verifier's arguments that name acceptable defects.
fn deliver(what: &str, sink: &str, environment: &[(&str, &str)], allow: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let authority = Authority::new("test root");
    authority.write_root(directory.path(), "ca");
    authority.issue(directory.path(), "server", &["127.0.0.1"]);
    let within = |text: &str| text.replace("DIRECTORY", &place.to_string());
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (*name, within(value)))
        .collect();
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let (port, to) = (free_port(), free_port());
    let server = receiver(directory.path(), to, &environment);
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  next: {{ type: forward, inputs: [kept], servers: [\"127.0.0.1:{to}\"]{} }}\n",
        within(sink)
    );
    let program = Program::start(directory.path(), &config).listens(port);
    let sent = Command::new(millbench())
        .args(["generate", "--acks", "--chunk", "200", "--rate", "20000"])
        .args([
            "--records",
            RECORDS,
            "--forward",
            &format!("127.0.0.1:{port}"),
        ])
        .output()
        .unwrap();
    assert!(
        sent.status.success(),
        "{}",
        String::from_utf8_lossy(&sent.stderr)
    );
    let out = directory.path().join("out.log");
    // The last record is the generator's end record.
    wait_until("the last record is there", || {
        let text = fs::read_to_string(&out).unwrap_or_default();
        text.lines().any(|line| line.get(18..19) == Some("e"))
    });
    assert_eq!(program.stop(), Some(0), "{what}");
    drop(server);
    let account = Command::new(millbench())
        .arg("verify")
        .arg(&out)
        .args(allow)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&account.stdout);
    println!("{what}\n{said}");
    assert!(account.status.success(), "{what}: {said}");
}

#[test]
fn every_record_arrives_once_and_in_order() {
    deliver("plain", "", &[], &[]);
}

#[test]
fn every_record_arrives_once_and_in_order_compressed() {
    deliver("gzip", ", compression: gzip", &[], &[]);
}

#[test]
fn every_record_arrives_under_tls_with_a_key_and_a_user() {
    let environment = [
        ("FORWARD_CERT", "DIRECTORY/server.pem"),
        ("FORWARD_CERT_KEY", "DIRECTORY/server.key"),
        ("FORWARD_KEY", "open sesame"),
        ("FORWARD_USER", "alice"),
        ("FORWARD_PASSWORD", "wonder land"),
    ];
    let sink = ", tls: { ca: DIRECTORY/ca.pem }, \
        auth: { hostname: relay, shared_key: open sesame, username: alice, password: wonder land }";
    deliver("tls, key, user", sink, &environment, &[]);
}

#[test]
fn nothing_is_lost_while_the_receiver_closes_its_connections() {
    let allow = ["--allow", "duplicated"];
    deliver("breaks", "", &[("BREAK_AFTER", BREAK_AFTER)], &allow);
}
