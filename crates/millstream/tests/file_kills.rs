//! The file sink in each of its formats, compressions and ways to rotate, side by side behind one disk channel, while the
//! whole program is killed with SIGKILL at random moments: every record is in each of the outputs once, whole and in order,
//! as the tools of others and the generator's own verifier read them.

#![allow(
    clippy::unwrap_used,
    reason = "what cannot be done fails the test, which says what it did"
)]

mod program;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use program::{
    free_port,
    victim::{Generator, Random, Victim, generate, settle, verify},
};

/// How often the program is killed.
const KILLS: u64 = 50;
/// The longest pause between two kills.
const PAUSE_MS_MAX: u64 = 600;

/// Sinks by name: their options, with the path below the folder of that name.
const SINKS: [(&str, &str, &str); 9] = [
    ("raw", "{tag}.log", "format: raw, rotate: { size: 3MB }"),
    (
        "raw-gzip",
        "{tag}.gz",
        "format: raw, compression: gzip, rotate: { size: 300KB, keep: 0 }",
    ),
    ("raw-zstd", "%M/{tag}.zst", "format: raw, compression: zstd"),
    (
        "json-zstd",
        "all.zst",
        "compression: zstd, rotate: { records: 40000 }",
    ),
    (
        "json-gzip",
        "all.%F-%H%M%S.gz",
        "compression: gzip, open_files: 2, latest: \"LINK\"",
    ),
    (
        "ltsv",
        "all",
        "format: ltsv, rotate: { interval: 2s, idle: 1s }, dirty_max: 1MB",
    ),
    (
        "csv",
        "{tag}.csv",
        "format: csv, columns: [time, message], header: true, rotate: { size: 5MB }",
    ),
    (
        "msgpack-zstd",
        "all.zst",
        "format: msgpack, compression: zstd, rotate: { size: 400KB }",
    ),
    (
        "template",
        "{tag}",
        "format: template, template: \"%F {.message}\\n\", rotate: { records: 30000 }",
    ),
];

fn config(folder: &Path, port: u16) -> String {
    let place = folder.display();
    let mut text = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB, sync: batch }}\nsinks:\n"
    );
    for (name, path, options) in SINKS {
        let options = options.replace("LINK", &format!("{place}/latest.gz"));
        text += &format!(
            "  {name}: {{ type: file, inputs: [kept], path: \"{place}/out/{name}/{path}\", {options} }}\n"
        );
    }
    text
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => files.push(path),
        }
    }
    files
}

/// The bytes of a file, through the tool of others where it is compressed.
fn unpack(path: &Path) -> Vec<u8> {
    let tool = match path.extension().and_then(|end| end.to_str()) {
        Some("gz") => "zcat",
        Some("zst") => "zstdcat",
        _ => "cat",
    };
    let output = Command::new(tool).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{tool}: {error}: run `make deps`"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {path:?}: {said}");
    output.stdout
}

/// The records of a file as the lines that were sent.
fn lines(sink: &str, path: &Path) -> Vec<u8> {
    let bytes = unpack(path);
    if sink.starts_with("msgpack") {
        let (mut rest, mut lines) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let entry = rmpv::decode::read_value(&mut rest).expect("half a record");
            lines.extend_from_slice(entry[1]["message"].as_str().unwrap().as_bytes());
            lines.push(b'\n');
        }
        return lines;
    }
    if sink == "ltsv" {
        let text = String::from_utf8(bytes).unwrap();
        let message = |line: &str| -> String {
            let fields = line.strip_suffix('\n').expect("half a record").split('\t');
            let mut messages = fields.filter_map(|field| field.strip_prefix("message:"));
            messages.next().unwrap().to_owned() + "\n"
        };
        return text
            .split_inclusive('\n')
            .map(message)
            .collect::<String>()
            .into();
    }
    if sink == "csv" {
        let rows = bytes.strip_prefix(b"time,message\n");
        let rows = rows.unwrap_or_else(|| panic!("{path:?} has no header"));
        let none = !rows.windows(13).any(|part| part == b"time,message\n");
        assert!(none, "{path:?} has a second header");
        return rows.to_vec();
    }
    bytes
}

#[test]
fn each_format_compression_and_rotation_loses_and_doubles_nothing_when_the_program_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let mut random = Random::new();
    let port = free_port();
    let mut program = Victim::start(place.to_owned(), port, config(place, port));
    let generator = Generator::start(&generate(place, port, "500000", "20000"));
    for _ in 0..KILLS {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        program.kill();
        program.restart();
    }
    generator.finish();
    settle(&place.join("out"));
    program.stop();
    for (sink, ..) in SINKS {
        let read = place.join("read").join(sink);
        fs::create_dir_all(&read).unwrap();
        let files = files(&place.join("out").join(sink));
        assert!(!files.is_empty());
        for (n, path) in files.iter().enumerate() {
            fs::write(read.join(format!("{n}.log")), lines(sink, path)).unwrap();
        }
        println!("{sink}: {} files", files.len());
        verify(&read, &place.join("ledger"));
    }
    let latest = fs::read_link(place.join("latest.gz")).unwrap();
    let newest = files(&place.join("out/json-gzip")).into_iter().max();
    assert_eq!(Some(latest), newest);
}
