//! Bad records among good ones while the program is killed repeatedly. In every thousand records, one cannot be decoded and one
//! lacks a field that the sinks need. Every good record arrives once, and exactly the bad records are stored as rejected.
//! Also tests how an operator sees rejected records: in the log, in the exit code, and with `millstream rejected`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::Duration,
};

use crate::program::{
    PATIENCE, Program, free_port,
    victim::{Random, Victim},
    wait_until,
};
use rmpv::Value;

/// The number of kills, and the longest pause between two kills.
const KILLS: u64 = 10;
const PAUSE_MS_MAX: u64 = 2000;
/// Records per chunk.
const CHUNK: u64 = 1000;
/// The index in each chunk of the entry that is not a record.
const NO_RECORD: u64 = 500;
/// The index in each chunk of the record without the field that the sinks need.
const NO_USER: u64 = 7;
/// The pause between two chunks.
const REST: Duration = Duration::from_millis(40);

/// A disk channel and two sinks. Both sinks need the field `user`: one in the paths of its files, the other in the text of its objects.
fn config(place: &Path, input: &str) -> String {
    let place = place.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {input}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB, sync: batch }}\n\
         sinks:\n  \
         files: {{ type: file, inputs: [kept], add: {{}}, path: \"{place}/files/{{.user}}.log\" }}\n  \
         objects: {{ type: object, inputs: [kept], url: \"file://{place}/objects/{{tag}}\", format: template, \
         template: \"{{{{\\\"n\\\":{{.n}},\\\"user\\\":\\\"{{.user}}\\\"}}}}\\n\", rotate: {{ records: 5000, interval: 700ms }} }}\n"
    )
}

/// The entry with this number.
fn entry(n: u64) -> Value {
    let mut record = vec![("n".into(), n.into())];
    match n % CHUNK {
        NO_RECORD => return Value::Array(vec![1_700_000_000.into(), n.into()]),
        NO_USER => {}
        _ => record.push(("user".into(), format!("user-{}", n % 3).into())),
    }
    Value::Array(vec![1_700_000_000.into(), Value::Map(record)])
}

/// A chunk of entries with its id, in the forward protocol.
fn chunk(number: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    for n in number * CHUNK..(number + 1) * CHUNK {
        rmpv::encode::write_value(&mut payload, &entry(n)).unwrap();
    }
    let id = format!("chunk-{number:018}");
    let option = Value::Map(vec![("chunk".into(), id.into())]);
    let frame = Value::Array(vec!["app".into(), Value::Binary(payload), option]);
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &frame).unwrap();
    bytes
}

/// Sends a chunk and waits for its ack.
fn send(stream: &mut Option<TcpStream>, port: u16, chunk: &[u8]) -> io::Result<()> {
    let stream = match stream {
        Some(stream) => stream,
        None => {
            let new = TcpStream::connect(("127.0.0.1", port))?;
            new.set_read_timeout(Some(PATIENCE))?;
            stream.insert(new)
        }
    };
    stream.write_all(chunk)?;
    let ack = rmpv::decode::read_value(stream).map_err(io::Error::other)?;
    assert!(ack["ack"].is_str(), "{ack}");
    Ok(())
}

/// Sends chunks until `end` is set, and repeats each chunk until it is acked. Returns the number of chunks.
fn send_until(end: &AtomicBool, port: u16) -> u64 {
    let (mut stream, mut sent) = (None, 0);
    while !end.load(Ordering::Relaxed) {
        let chunk = chunk(sent);
        while send(&mut stream, port, &chunk).is_err() {
            stream = None;
            sleep(Duration::from_millis(20));
        }
        sent += 1;
        sleep(REST);
    }
    sent
}

/// All files below a directory except the sink's own state.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("_millstream") => {}
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

/// The number of times that each number occurs in a sink's output.
fn written(directory: &Path) -> BTreeMap<u64, u64> {
    let mut times = BTreeMap::new();
    for path in files(directory) {
        for line in fs::read_to_string(path).unwrap().lines() {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(record["user"].is_string(), "{line}");
            *times.entry(record["n"].as_u64().unwrap()).or_default() += 1;
        }
    }
    times
}

/// The numbers that a node has rejected, and the count of its rejected records. The count may be larger, because a number may be
/// rejected twice. Ignores an incomplete record at the end of a file, which a kill may have left.
fn rejected(data: &Path, node: &str) -> (BTreeSet<u64>, u64) {
    let (mut numbers, mut records) = (BTreeSet::new(), 0);
    for path in files(&data.join("rejected")) {
        let name = path.file_name().unwrap().to_string_lossy();
        if !name.starts_with(&format!("{node}.")) {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let mut rest = &bytes[..];
        while let Ok(reject) = rmpv::decode::read_value(&mut rest) {
            // A value that is no entry is in `message`, as it came.
            let n = match reject[1]["message"].as_slice() {
                Some(mut original) => {
                    let value = rmpv::decode::read_value(&mut original).unwrap();
                    value[1].as_u64().or_else(|| value[1]["n"].as_u64())
                }
                None => reject[1]["record"]["n"].as_u64(),
            };
            numbers.insert(n.unwrap());
            records += 1;
        }
    }
    (numbers, records)
}

#[test]
fn good_records_arrive_once_and_bad_ones_are_kept_when_the_program_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (mut random, port) = (Random::new(), free_port());
    let forward = format!("{{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}");
    let config_with = |input| config(place, input);
    let mut program = Victim::start(place.to_owned(), port, config_with(&forward));
    let end = AtomicBool::new(false);
    let chunks = thread::scope(|scope| {
        let sender = scope.spawn(|| send_until(&end, port));
        for _ in 0..KILLS {
            sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
            program.kill();
            program.restart();
        }
        end.store(true, Ordering::Relaxed);
        sender.join().unwrap()
    });
    program.kill();
    // Run once more with an input that has ended, to empty the channel.
    let last = Program::start_with(place, &config_with("{ type: stdin }"), &["--once"]);
    let log = last.log();
    // The exit code is 1 if this run has rejected records.
    let rejects = log.contains("rejected and kept in");
    assert_eq!(last.ended(), Some(i32::from(rejects)), "{log}");

    let all = |of: u64| (0..chunks).map(move |chunk| chunk * CHUNK + of);
    let good = |n: &u64| ![NO_RECORD, NO_USER].contains(&(n % CHUNK));
    let good: BTreeMap<u64, u64> = (0..chunks * CHUNK).filter(good).map(|n| (n, 1)).collect();
    for sink in ["files", "objects"] {
        let written = written(&place.join(sink));
        let twice = written.values().filter(|times| **times > 1).count();
        let lost = good.keys().filter(|n| !written.contains_key(n)).count();
        println!(
            "{sink}: {} of {} records, {lost} lost, {twice} twice",
            written.len(),
            good.len()
        );
        assert!(written == good);
    }
    for (node, of) in [("in", NO_RECORD), ("files", NO_USER), ("objects", NO_USER)] {
        let (numbers, records) = rejected(&place.join("data"), node);
        println!(
            "{node}: {} records rejected, {records} times",
            numbers.len()
        );
        assert_eq!(numbers, all(of).collect(), "{node}");
    }
}

#[test]
fn a_node_that_has_used_up_its_space_for_rejected_records_blocks_no_other_node() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    for name in ["data/rejected", "files", "objects"] {
        fs::create_dir_all(place.join(name)).unwrap();
    }
    let other = fs::File::create(place.join("data/rejected/other.msgpack")).unwrap();
    other.set_len(1 << 30).unwrap();
    let port = free_port();
    let input = format!("{{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}");
    let program = Program::start(place, &config(place, &input)).listens(port);
    let mut stream = None;
    // A chunk with one record that the source rejects and one that the sinks reject.
    wait_until("the chunk is acked", || {
        send(&mut stream, port, &chunk(0)).is_ok()
    });
    wait_until("all good records are written", || {
        ["files", "objects"].iter().all(|sink| {
            let lines =
                |path: &PathBuf| fs::read_to_string(path).unwrap_or_default().lines().count();
            files(&place.join(sink)).iter().map(lines).sum::<usize>() as u64 == CHUNK - 2
        })
    });
    assert_eq!(program.stop(), Some(0));
    for (node, n) in [("in", NO_RECORD), ("files", NO_USER), ("objects", NO_USER)] {
        assert_eq!(rejected(&place.join("data"), node).0, [n].into(), "{node}");
    }
}

fn millstream(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(arguments).output().unwrap()
}

/// Standard output and standard error.
fn texts(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8(text.clone()).unwrap())
}

/// Runs lines through two sinks: one accepts them all, the other needs a field. `more` adds nodes. Returns the output and the
/// path of the configuration.
fn run_lines(place: &Path, more: &str) -> (Output, String) {
    let path = place.join("c.yaml");
    let (here, input) = (place.display(), place.join("input"));
    let config = format!(
        "data_dir: {here}/data\napi: {{ listen: [] }}\nsources:\n  in: {{ type: stdin }}\nsinks:\n  \
         good: {{ type: file, inputs: [in], path: \"{here}/good.log\" }}\n  \
         bad: {{ type: file, inputs: [in], path: \"{here}/{{.user}}.log\" }}\n{more}"
    );
    fs::write(&path, config).unwrap();
    fs::write(&input, "\u{1b}[31mfirst\nsecond\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["run", "--once", path.to_str().unwrap()])
        .stdin(fs::File::open(input).unwrap())
        .output()
        .unwrap();
    (output, path.display().to_string())
}

#[test]
fn rejected_records_are_logged_and_shown_and_a_job_that_leaves_some_fails() {
    let directory = tempfile::tempdir().unwrap();
    let (output, config) = run_lines(directory.path(), "");
    let [_, log] = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{log}");
    let why = "no value for `.user`; to write such records give it a default: `{.user|unknown}`";
    for part in [
        "2 records rejected and kept in ",
        &format!("data/rejected/bad.*; the first: {why}; tag in, record: \\u{{1b}}[31mfirst"),
        "(bad: 2); show them with `millstream rejected cat`",
    ] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
    assert!(!log.contains('\u{1b}'), "{log:?}");

    let listed = millstream(&["rejected", "ls", &config]);
    let [list, errors] = texts(&listed);
    assert_eq!((listed.status.code(), &*errors), (Some(0), ""));
    let rows: Vec<&str> = list.lines().collect();
    assert!(
        rows[0].starts_with("NODE") && rows[1].starts_with("bad"),
        "{list}"
    );
    let row: Vec<&str> = rows[1].split_whitespace().collect();
    assert_eq!(row[1], "2", "{list}");
    assert!(row[2] <= row[3] && row[3].ends_with('Z'), "{list}");
    assert!(list.contains("no value for `.user`"), "{list}");

    // Append an incomplete record, as a kill in the middle of a write leaves it.
    let file = directory.path().join("data/rejected/bad.msgpack");
    let mut torn = fs::File::options().append(true).open(file).unwrap();
    torn.write_all(b"\x92\xd7\x00").unwrap();
    let cat = millstream(&["rejected", "cat", &config]);
    let [lines, errors] = texts(&cat);
    assert_eq!(cat.status.code(), Some(0), "{errors}");
    assert!(
        errors.contains("bad.msgpack: the last 3 bytes are not a whole record"),
        "{errors}"
    );
    let read = |line: &str| -> serde_json::Value { serde_json::from_str(line).unwrap() };
    let records: Vec<_> = lines.lines().map(read).collect();
    for (record, text) in records.iter().zip(["\u{1b}[31mfirst\n", "second\n"]) {
        assert_eq!(record["record"], text);
        assert_eq!(
            (&record["node"], &record["tag"]),
            (&"bad".into(), &"in".into())
        );
        assert_eq!(record["reason"], why);
        assert!(
            record["values"]["host"].is_string() && record["time"].is_string(),
            "{record}"
        );
    }
    assert_eq!(records.len(), 2);

    let data = directory.path().join("data");
    let data = data.to_str().unwrap();
    for (options, count) in [
        (["--limit", "1"], 1),
        (["--node", "good"], 0),
        (["--node", "bad"], 2),
    ] {
        let options = [&["rejected", "cat", "--data-dir", data], &options[..]].concat();
        let [lines, _] = texts(&millstream(&options));
        assert_eq!(lines.lines().count(), count, "{options:?}");
    }
}

#[test]
fn a_job_whose_rejected_records_go_to_a_node_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let aside = directory.path().join("aside.log");
    let sink = format!("  aside: {{ type: file, inputs: [\"*.rejected\"], path: {aside:?} }}\n");
    let (output, config) = run_lines(directory.path(), &sink);
    let [_, log] = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(
        log.contains(
            "2 records rejected by the port bad.rejected; the first: no value for `.user`"
        ),
        "{log}"
    );
    assert_eq!(fs::read_to_string(aside).unwrap().lines().count(), 2);
    let listed = millstream(&["rejected", "ls", &config]);
    assert!(texts(&listed)[0].starts_with("no rejected records in "));
    let [_, errors] = texts(&millstream(&["rejected", "ls", "--data-dir", "/nowhere"]));
    assert_eq!(errors, "the data_dir /nowhere does not exist\n");
}

/// The permissions of a directory and everything below it.
fn permissions(path: &Path) -> Vec<(PathBuf, u32)> {
    let found = fs::symlink_metadata(path).unwrap();
    let mut all = vec![(path.to_owned(), found.permissions().mode() & 0o7777)];
    if found.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            all.extend(permissions(&entry.unwrap().path()));
        }
    }
    all
}

#[test]
fn other_users_can_read_the_outputs_as_configured_and_nothing_more() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let data = place.join("data");
    // Files as an earlier version left them: other users can read them.
    for name in ["channels/old", "rejected"] {
        fs::create_dir_all(data.join(name)).unwrap();
    }
    for name in ["channels/old/segment", "rejected/old.msgpack"] {
        fs::write(data.join(name), "").unwrap();
        fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(data.join("channels"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(place.join("in.log"), "one\ntwo\n").unwrap();
    let here = place.display();
    let config = format!(
        "data_dir: {here}/data\napi: {{ listen: [] }}\n\
         sources:\n  in: {{ type: tail, paths: {here}/in.log, start: beginning }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 64MiB }}\n\
         sinks:\n  open: {{ type: file, inputs: [kept], format: raw, path: {here}/open/all.log }}\n\
         \u{20} group: {{ type: file, inputs: [kept], format: raw, path: {here}/group/all.log, mode: 0640 }}\n\
         \u{20} objects: {{ type: object, inputs: [kept], url: \"file://{here}/objects/{{tag}}\", rotate: {{ interval: 100ms }} }}\n\
         \u{20} bad: {{ type: file, inputs: [kept], path: \"{here}/bad/{{.user}}.log\" }}\n"
    );
    let umask = ["sh", "-c", "umask 022; exec \"$@\"", "sh"];
    let program = Program::start_after(place, &config, &umask);
    wait_until("everything is written", || {
        let written = |path: &str| fs::metadata(place.join(path)).is_ok_and(|file| file.len() == 8);
        written("open/all.log")
            && written("group/all.log")
            && fs::metadata(data.join("rejected/bad.msgpack")).is_ok_and(|file| file.len() > 0)
    });
    let mut all = permissions(&data);
    assert_eq!(program.stop(), Some(0));
    all.extend(permissions(&data));
    assert!(all.len() > 20, "{all:?}");
    let open: Vec<_> = all.iter().filter(|(_, mode)| mode & 0o077 != 0).collect();
    assert!(open.is_empty(), "{open:?}");
    let mode = |path: &str| permissions(&place.join(path))[0].1;
    assert_eq!((mode("open"), mode("open/all.log")), (0o755, 0o644));
    assert_eq!((mode("group"), mode("group/all.log")), (0o750, 0o640));
    let objects = permissions(&place.join("objects"));
    assert!(
        objects.iter().any(|(path, _)| path.is_file()),
        "{objects:?}"
    );
    assert!(
        objects.iter().all(|(_, mode)| mode & 0o044 == 0o044),
        "{objects:?}"
    );
}
