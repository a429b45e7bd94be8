//! Monitoring with the real programs: Prometheus scrapes the metrics and fires alerts, carbon receives the metrics, and the dashboards
//! in `deploy` ask for metrics that exist. `make deps` installs Prometheus and carbon into `target/clients`.

mod carbon;
mod prometheus;

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
};

use crate::program::tree;

/// A program that `make deps` has installed.
fn installed(path: &str) -> PathBuf {
    let path = tree().join("target/clients").join(path);
    assert!(
        path.exists(),
        "{} is missing: run `make deps`",
        path.display()
    );
    path
}

/// The body of the answer to a GET with this `Accept` header.
fn get(port: u16, path: &str, accept: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // With HTTP/1.0 the answer is not chunked.
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}

/// Sends this many records with the forward protocol, each in a message.
fn send(port: u16, records: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    for _ in 0..records {
        stream
            .write_all(b"\x93\xa1t\xce\x60\x00\x00\x00\x81\xa1n\x01")
            .unwrap();
    }
}
