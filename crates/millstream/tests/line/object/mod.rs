//! The sink `object` against a real S3 server (versitygw), fed by forward with acks through a disk channel. Every record is
//! published exactly once, even if the program or the server is killed, the server is down, its disk is full, or the network
//! is cut, and if the program wakes up after a copy of it has taken over.

mod access;
mod faults;
mod kills;
mod parquet;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::program::{
    Program,
    victim::{CHAINS, verify},
};
use millstream_testkit::server::{
    hdfs,
    versitygw::{ACCESS_KEY, SECRET_KEY, Versitygw},
};

/// A sink: its name, the directories of its objects, its other options.
type Sink = (&'static str, &'static str, &'static str);

/// Small objects, compressed and not.
const SINKS: [Sink; 2] = [
    (
        "gz",
        "{tag}/%H",
        "compression: gzip, rotate: { size: 60KB, interval: 2s, idle: 1s }",
    ),
    (
        "raw",
        "by-minute/%M",
        "format: raw, rotate: { records: 5000, interval: 700ms }, held_max: 300KB",
    ),
];

/// Formats that only special readers can read, compressed and not.
const EVENTS: [Sink; 3] = [
    (
        "avro",
        "{tag}/%H",
        "format: avro_event, compression: zstd, rotate: { size: 60KB, interval: 2s, idle: 1s }",
    ),
    (
        "parquet",
        "by-minute/%M",
        "format: parquet, compression: zstd, rotate: { records: 5000, interval: 700ms }, held_max: 300KB",
    ),
    (
        "plain-parquet",
        "{tag}",
        "format: parquet, rotate: { size: 1MB, interval: 1s }",
    ),
];

/// A forward source for the generator.
fn forward(port: u16) -> String {
    format!("{{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}")
}

fn config(data: &Path, input: &str, endpoint: &str, sinks: &[Sink]) -> String {
    let mut text = format!(
        "data_dir: {}\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {input}\n\
         {CHAINS}\
         channels:\n  kept: {{ type: disk, inputs: [halves.some, halves.rest], size_max: 1GiB, sync: batch }}\nsinks:\n",
        data.display()
    );
    for (name, directories, options) in sinks {
        text += &format!(
            "  {name}: {{ type: object, inputs: [parts.some, parts.rest], url: \"s3://lake/{name}/{directories}\", endpoint: \"{endpoint}\", \
             auth: {{ access_key: {ACCESS_KEY}, secret_key: {SECRET_KEY} }}, \
             retry: {{ first: 100ms, max: 500ms, timeout: 5s }}, {options} }}\n"
        );
    }
    text
}

/// The published objects below a directory of the server, as paths of files.
fn objects(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("_millstream") => {}
            true => found.extend(objects(&path)),
            false => found.push(path),
        }
    }
    found
}

/// Unpacks the records of a sink's objects into a new directory for the verifier. Returns the directory.
fn unpack(place: &Path, server: &Versitygw, sink: &str) -> PathBuf {
    let read = place.join("read").join(sink);
    fs::create_dir_all(&read).unwrap();
    let directory = server.bucket("lake").join(sink);
    let objects = objects(&directory);
    println!("{sink}: {} objects", objects.len());
    match objects[0].extension().and_then(|end| end.to_str()) {
        Some("avro") => hdfs::avro_bodies(&directory, &read),
        Some("parquet") => parquet::messages(&objects, &read),
        Some("gz") => print(&objects, "zcat", &read),
        _ => print(&objects, "cat", &read),
    }
    read
}

/// Runs a tool on each object and stores each output in a file.
fn print(objects: &[PathBuf], tool: &str, out: &Path) {
    for (n, path) in objects.iter().enumerate() {
        let unpacked = Command::new(tool).arg(path).output().unwrap();
        let said = String::from_utf8_lossy(&unpacked.stderr);
        assert!(unpacked.status.success(), "{tool} {path:?}: {said}");
        fs::write(out.join(format!("{n}.log")), unpacked.stdout).unwrap();
    }
}

/// Runs the program once more with the same channel and sinks and with an input that has ended, so that it publishes everything
/// that the channel holds. This is necessary because a stop leaves records in the channel.
fn publish_all(directory: &Path, data: &Path, server: &Versitygw, sinks: &[Sink]) {
    let config = config(data, "{ type: stdin }", &server.endpoint(), sinks);
    let last = Program::start_with(directory, &config, &["--once"]);
    let ended = last.ended();
    let log = fs::read_to_string(directory.join("log")).unwrap();
    assert_eq!(ended, Some(0), "{log}");
}

/// Runs the verifier on the records of every sink.
fn verify_all(place: &Path, server: &Versitygw, sinks: &[Sink]) {
    for (sink, ..) in sinks {
        verify(&unpack(place, server, sink), &place.join("ledger"));
    }
}
