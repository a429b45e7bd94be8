//! The sink `object` against a real S3 server (versitygw), fed by forward with acks through a disk channel: every record is
//! published exactly once, whoever is killed, away, or wakes up too late.

#![allow(
    clippy::unwrap_used,
    reason = "what cannot be done fails the test, which says what it did"
)]
#![allow(clippy::print_stdout, reason = "a test says what it did")]

mod program;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use millstream_testkit::server::versitygw::{ACCESS_KEY, SECRET_KEY, Versitygw};
use program::{
    Program, free_port,
    victim::{Generator, Random, generate, verify},
    wait_until,
};

/// How often the program is killed, and the server.
const KILLS: u64 = 50;
const RESTARTS: u64 = 20;
/// The longest pause between two kills.
const PAUSE_MS_MAX: u64 = 600;

/// Sinks by name: the folders of their objects, and their other options.
const SINKS: [(&str, &str, &str); 2] = [
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

/// What listens for the generator.
fn forward(port: u16) -> String {
    format!("{{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}")
}

fn config(data: &Path, input: &str, endpoint: &str) -> String {
    let mut text = format!(
        "data_dir: {}\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {input}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB, sync: batch }}\nsinks:\n",
        data.display()
    );
    for (name, folders, options) in SINKS {
        text += &format!(
            "  {name}: {{ type: object, inputs: [kept], url: \"s3://lake/{name}/{folders}\", endpoint: \"{endpoint}\", \
             auth: {{ access_key: {ACCESS_KEY}, secret_key: {SECRET_KEY} }}, \
             retry: {{ first: 100ms, max: 500ms, timeout: 5s }}, {options} }}\n"
        );
    }
    text
}

/// The published objects of a sink: files of the server's folder.
fn objects(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("_millstream") => {}
            true => found.extend(objects(&path)),
            false => found.push(path),
        }
    }
    found
}

/// The records of a sink's objects, unpacked into a new folder, for the verifier.
fn unpack(place: &Path, server: &Versitygw, sink: &str) -> PathBuf {
    let read = place.join("read").join(sink);
    fs::create_dir_all(&read).unwrap();
    let objects = objects(&server.bucket("lake").join(sink));
    println!("{sink}: {} objects", objects.len());
    for (n, path) in objects.iter().enumerate() {
        let tool = match path.extension().and_then(|end| end.to_str()) {
            Some("gz") => "zcat",
            _ => "cat",
        };
        let unpacked = Command::new(tool).arg(path).output().unwrap();
        let said = String::from_utf8_lossy(&unpacked.stderr);
        assert!(unpacked.status.success(), "{tool} {path:?}: {said}");
        fs::write(read.join(format!("{n}.log")), unpacked.stdout).unwrap();
    }
    read
}

fn signal(server: &Versitygw, name: &str) {
    let id = server.server.id().unwrap().to_string();
    let sent = Command::new("kill").args([format!("-{name}"), id]).status();
    assert!(sent.unwrap().success());
}

/// Runs once more with the same channel and sinks, and with inputs that have ended: until all that the channel holds is
/// published. A stop leaves in the channel what was not taken yet.
fn publish_all(folder: &Path, data: &Path, server: &Versitygw) {
    let config = config(data, "{ type: stdin }", &server.endpoint());
    let last = Program::start_with(folder, &config, &["--once"]);
    let ended = last.ended();
    let log = fs::read_to_string(folder.join("log")).unwrap();
    assert_eq!(ended, Some(0), "{log}");
}

#[test]
fn every_record_is_published_once_when_the_program_and_the_server_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let mut server = Versitygw::start(place, "lake");
    let mut random = Random::new();
    let port = free_port();
    let data = place.join("data");
    let config = config(&data, &forward(port), &server.endpoint());
    // A store that is away does not stop a start.
    server.server.kill();
    let mut program = Program::start(place, &config).listens(port);
    let generator = Generator::start(&generate(place, port, "250000", "14000"));
    sleep(Duration::from_millis(500));
    server.server.restart();
    for kill in 0..KILLS {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        if kill * RESTARTS / KILLS < (kill + 1) * RESTARTS / KILLS {
            server.server.kill();
            sleep(Duration::from_millis(random.below(200)));
            server.server.restart();
        }
        if kill == KILLS / 2 {
            // It takes connections and answers nothing, for longer than anybody waits.
            signal(&server, "STOP");
            sleep(Duration::from_secs(6));
            signal(&server, "CONT");
        }
        program.kill();
        program = Program::start(place, &config).listens(port);
    }
    server.server.wait_ready();
    generator.finish();
    program.kill();
    publish_all(place, &data, &server);
    for (sink, ..) in SINKS {
        verify(&unpack(place, &server, sink), &place.join("ledger"));
    }
}

/// Millstream's Parquet as pyarrow reads it: the generator's records and its end record.
#[test]
fn parquet_is_read_by_pyarrow_with_every_record_and_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let server = Versitygw::start(place, "lake");
    let config = format!(
        "data_dir: {}\napi: {{ listen: [] }}\n\
         sources:\n  numbers: {{ type: generate, records: 50000 }}\n\
         channels:\n  kept: {{ type: disk, inputs: [numbers], size_max: 1GiB }}\n\
         sinks:\n  lake: {{ type: object, inputs: [kept], url: \"s3://lake/{{tag}}\", endpoint: \"{}\", format: parquet, \
         compression: zstd, auth: {{ access_key: {ACCESS_KEY}, secret_key: {SECRET_KEY} }} }}\n",
        place.join("data").display(),
        server.endpoint()
    );
    let program = Program::start_with(place, &config, &["--once"]);
    let log = place.join("log");
    assert_eq!(
        program.ended(),
        Some(0),
        "{}",
        fs::read_to_string(log).unwrap()
    );
    let read = "import sys, json, pyarrow.parquet as pq\n\
         t = pq.ParquetDataset(sys.argv[1]).read()\n\
         print(t.schema.field('time').type, t.schema.field('tag').type, t.schema.field('body').type)\n\
         print(t.num_rows, len({json.loads(b)['message'] for b in t['body'].to_pylist()}))\n\
         print(set(t['tag'].to_pylist()), t['time'][0].value > 10**18)";
    let python = millstream_testkit::server::installed("python/venv/bin/python");
    let said = Command::new(python)
        .args(["-c", read])
        .arg(server.bucket("lake").join("numbers"))
        .output()
        .unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr),
    );
    assert_eq!(
        out, "timestamp[ns, tz=UTC] string string\n50001 50001\n{'numbers'} True\n",
        "{errors}"
    );
}

/// The program is stopped, its data_dir copied, and the copy goes on; then the first one wakes up.
#[test]
fn a_writer_that_wakes_up_past_its_successor_publishes_nothing_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let server = Versitygw::start(place, "lake");
    let (old, new) = (place.join("old"), place.join("new"));
    fs::create_dir_all(&old).unwrap();
    fs::create_dir_all(&new).unwrap();
    let port = free_port();
    let input = forward(port);
    let zombie = Program::start(&old, &config(&old.join("data"), &input, &server.endpoint()));
    let zombie = zombie.listens(port);
    let generator = Generator::start(&generate(place, port, "150000", "20000"));
    wait_until("something is published", || {
        objects(&server.bucket("lake")).len() > 4
    });
    zombie.signal("STOP");
    let copied = Command::new("cp")
        .arg("-a")
        .args([old.join("data"), new.join("data")])
        .status();
    assert!(copied.unwrap().success());
    let port = free_port();
    let data = new.join("data");
    let config = config(&data, &forward(port), &server.endpoint());
    let successor = Program::start(&new, &config).listens(port);
    let generator = generator.turn_to(port);
    sleep(Duration::from_secs(2));
    zombie.signal("CONT");
    let log = zombie.log();
    let ended = zombie.ended();
    let told = fs::read_to_string(old.join("log")).unwrap();
    assert_eq!(ended, Some(1), "{log}");
    assert!(told.contains("was taken by another writer"), "{told}");
    generator.finish();
    let log = successor.log();
    assert_eq!(successor.stop(), Some(0), "{log}");
    publish_all(&new, &data, &server);
    for (sink, ..) in SINKS {
        verify(&unpack(place, &server, sink), &place.join("ledger"));
    }
}
