//! Rejected records are sent again: to a processor, to one of several sinks, and with a kill in between.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use super::get_here;
use crate::program::{Program, free_port, wait_until};

fn millstream(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(arguments)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn replay(node: &str, api: u16) -> (Option<i32>, String) {
    millstream(&[
        "rejected",
        "replay",
        node,
        "--api",
        &format!("127.0.0.1:{api}"),
    ])
}

/// The number of times that each line occurs in an output.
fn lines(path: &Path) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for line in fs::read_to_string(path).unwrap_or_default().lines() {
        *all.entry(line.to_owned()).or_default() += 1;
    }
    all
}

/// A configuration that reads logfmt lines, parses them as the format `how`, and writes them to a file. If `is_durable` is true, a
/// disk channel lies between the processor and the sink.
fn config(place: &Path, api: u16, how: &str, is_durable: bool) -> String {
    let (channel, from) = match is_durable {
        true => (
            "channels:\n  kept: { type: disk, inputs: [read], size_max: 256MiB }\n",
            "kept",
        ),
        false => ("", "read"),
    };
    format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  web: {{ type: tail, paths: [\"{0}/in.log\"], start: beginning }}\n\
         processors:\n  read: {{ type: parse, inputs: [web], field: .message, as: {how}, on_error: reject }}\n{channel}\
         sinks:\n  out: {{ type: file, inputs: [{from}], path: \"{0}/out.log\", format: template, template: \"{{.n}}\\n\" }}\n",
        place.display()
    )
}

fn write_lines(place: &Path, count: usize) {
    let text: String = (0..count)
        .map(|n| format!("n={n} text=\"a line of a program\"\n"))
        .collect();
    fs::write(place.join("in.log"), text).unwrap();
}

#[test]
fn records_that_a_processor_rejected_pass_it_after_it_was_mended() {
    for is_durable in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (place, api) = (directory.path(), free_port());
        write_lines(place, 300);
        let broken = config(place, api, "json", is_durable);
        let program = Program::start(place, &broken).listens(api);
        wait_until("all are rejected", || {
            get_here(api, "/rejected").contains("\"records\":300")
        });
        // As long as the processor is not repaired, it rejects the records again each time they are sent.
        let (code, text) = replay("read", api);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("300 records of read"), "{text}");
        wait_until("they are rejected again", || {
            get_here(api, "/rejected").contains("\"records\":300")
        });
        let file = place.join("millstream.yaml");
        fs::write(&file, config(place, api, "logfmt", is_durable)).unwrap();
        let (code, text) = millstream(&["reload", "--api", &format!("127.0.0.1:{api}")]);
        assert_eq!(code, Some(0), "{text}");
        let (code, text) = replay("read", api);
        assert_eq!(code, Some(0), "{text}");
        wait_until("all are in the output", || {
            lines(&place.join("out.log")).len() == 300
        });
        assert!(
            lines(&place.join("out.log"))
                .values()
                .all(|times| *times == 1)
        );
        wait_until("nothing is left", || {
            get_here(api, "/rejected").ends_with("{\"nodes\":[]}")
        });
        let log = program.log();
        assert!(
            log.contains("POST /rejected/read/replay: 200: replay \"done\": 300 records settled"),
            "{log}"
        );
        let (code, text) = replay("web", api);
        assert_eq!(code, Some(1));
        assert!(text.contains("web has no input"), "{text}");
        let (code, _) = replay("other", api);
        assert_eq!(code, Some(1));
        assert_eq!(program.stop(), Some(0));
    }
}

#[test]
fn a_kill_in_the_middle_of_a_replay_loses_nothing() {
    const RECORDS: usize = 100_000;
    let directory = tempfile::tempdir().unwrap();
    let (place, api) = (directory.path(), free_port());
    write_lines(place, RECORDS);
    let broken = config(place, api, "json", true);
    let program = Program::start(place, &broken).listens(api);
    let all = format!("\"records\":{RECORDS}");
    wait_until("all are rejected", || {
        get_here(api, "/rejected").contains(&all)
    });
    assert_eq!(program.stop(), Some(0));
    let mended = config(place, api, "logfmt", true);
    let mut program = Program::start(place, &mended).listens(api);
    let mut cut = 0;
    for _ in 0..3 {
        let before = lines(&place.join("out.log")).len();
        let asking = thread::spawn(move || replay("read", api));
        wait_until("some are sent", || {
            asking.is_finished() || lines(&place.join("out.log")).len() > before
        });
        program.kill();
        cut += usize::from(asking.join().unwrap().0 != Some(0));
        program = Program::start(place, &mended).listens(api);
    }
    println!("{cut} of 3 replays were cut");
    let (code, text) = replay("read", api);
    assert_eq!(code, Some(0), "{text}");
    wait_until("all are in the output", || {
        lines(&place.join("out.log")).len() == RECORDS
    });
    wait_until("nothing is left", || {
        get_here(api, "/rejected").ends_with("{\"nodes\":[]}")
    });
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn records_for_a_processor_that_a_restart_removed_are_rejected_by_the_sink_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let (place, api) = (directory.path(), free_port());
    write_lines(place, 50);
    // No server answers the sink, so nothing is settled.
    let (server, shown) = (free_port(), place.display());
    let config = |processor: &str, from: &str| {
        format!(
            "data_dir: {shown}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
             sources:\n  web: {{ type: tail, paths: [\"{shown}/in.log\"], start: beginning }}\n\
             channels:\n  kept: {{ type: disk, inputs: [web], size_max: 64MiB }}\n{processor}\
             sinks:\n  on: {{ type: http, inputs: [{from}], url: \"http://127.0.0.1:{server}/in\" }}\n"
        )
    };
    let parsed = |how: &str| {
        let read = format!(
            "processors:\n  read: {{ type: parse, inputs: [kept], field: .message, as: {how}, on_error: reject }}\n"
        );
        config(&read, "read")
    };
    let rejected_by = |node: &str| {
        let all = format!("{{\"nodes\":[{{\"node\":\"{node}\",\"records\":50,");
        get_here(api, "/rejected").contains(&all)
    };
    let program = Program::start(place, &parsed("json")).listens(api);
    wait_until("all are rejected", || rejected_by("read"));
    assert_eq!(program.stop(), Some(0));
    let program = Program::start(place, &parsed("logfmt")).listens(api);
    let (code, text) = replay("read", api);
    assert_eq!(code, Some(0), "{text}");
    assert!(get_here(api, "/rejected").ends_with("{\"nodes\":[]}"));
    program.kill();
    let program = Program::start(place, &config("", "kept")).listens(api);
    wait_until("the sink rejects them", || rejected_by("on"));
    let (_, text) = millstream(&[
        "rejected",
        "cat",
        place.join("millstream.yaml").to_str().unwrap(),
    ]);
    let reason = "sent again to read, which is not in front of on any more";
    assert_eq!(text.matches(reason).count(), 50, "{text}");
    assert!(text.contains("n=49 "), "{text}");
    assert_eq!(program.stop(), Some(0));
}

/// The number of bytes of input: more than the second channel can hold.
const FILLER: usize = 24 << 20;

#[test]
fn a_channel_that_meets_records_for_a_removed_processor_continues_when_a_reload_brings_it_back() {
    let directory = tempfile::tempdir().unwrap();
    let (place, api, shown) = (directory.path(), free_port(), directory.path().display());
    let line = format!("{{\"n\":0,\"text\":\"{}\"}}\n", "x".repeat(1000));
    let count = FILLER / line.len();
    write_lines(place, 50);
    let mut input = fs::OpenOptions::new()
        .append(true)
        .open(place.join("in.log"))
        .unwrap();
    input.write_all(line.repeat(count).as_bytes()).unwrap();
    // The sink cannot write to a path below a file, so the second channel becomes full.
    let outputs = place.join("outputs");
    fs::write(&outputs, "no directory").unwrap();
    let config = |processor: &str, from: &str| {
        format!(
            "data_dir: {shown}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
             sources:\n  web: {{ type: tail, paths: [\"{shown}/in.log\"], start: beginning }}\n{processor}\
             channels:\n  kept: {{ type: disk, inputs: [web], size_max: 256MiB }}\n  \
             second: {{ type: disk, inputs: [{from}], size_max: 16MiB }}\n\
             sinks:\n  on: {{ type: file, inputs: [second], path: {shown}/outputs/out.log }}\n"
        )
    };
    let read = |options: &str| {
        config(
            &format!("processors:\n  read: {{ inputs: [kept], {options} }}\n"),
            "read",
        )
    };
    let parse = read("type: parse, field: .message, as: json, on_error: reject");
    let program = Program::start(place, &parse).listens(api);
    wait_until("the second channel is full", || {
        get_here(api, "/status").contains("blocked")
    });
    let (code, text) = replay("read", api);
    assert_eq!(code, Some(0), "{text}");
    program.kill();

    fs::remove_file(&outputs).unwrap();
    let program = Program::start(place, &config("", "kept")).listens(api);
    wait_until("the pump fails", || {
        program.log().contains("put it back and reload")
    });
    assert!(program.log().contains("50 records cannot be processed"));
    let back = read("type: fields, set: { mended: \"yes\" }");
    fs::write(place.join("millstream.yaml"), back).unwrap();
    let (code, text) = millstream(&["reload", "--api", &format!("127.0.0.1:{api}")]);
    assert_eq!(code, Some(0), "{text}");
    let mended = || {
        let text = fs::read_to_string(outputs.join("out.log")).unwrap_or_default();
        (
            text.lines().count(),
            text.matches("\"mended\":\"yes\"").count(),
        )
    };
    wait_until("all are in the output", || mended() == (count + 50, 50));
    assert_eq!(program.stop(), Some(0));
    assert_eq!(mended(), (count + 50, 50));
}

/// Answers each request with 200 if `takes` is true, and otherwise with 400. Appends the accepted bodies to `into`.
fn serve(listener: TcpListener, takes: Arc<AtomicBool>, into: Arc<std::sync::Mutex<String>>) {
    for stream in listener.incoming() {
        let (takes, into) = (takes.clone(), into.clone());
        thread::spawn(move || answer(&stream.unwrap(), &takes, &into));
    }
}

fn answer(stream: &TcpStream, takes: &AtomicBool, into: &std::sync::Mutex<String>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let code = match takes.load(Ordering::SeqCst) {
            true => {
                into.lock()
                    .unwrap()
                    .push_str(&String::from_utf8(body).unwrap());
                "200 OK"
            }
            false => "400 Bad Request",
        };
        let answer = format!("HTTP/1.1 {code}\r\nContent-Length: 0\r\n\r\n");
        if (&mut &*stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn records_that_a_sink_rejected_are_sent_to_it_alone() {
    for is_durable in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (place, api) = (directory.path(), free_port());
        write_lines(place, 50);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/in", listener.local_addr().unwrap());
        let (takes, taken) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (of_server, into) = (takes.clone(), Arc::clone(&taken));
        thread::spawn(move || serve(listener, of_server, into));
        let (channel, from) = match is_durable {
            true => (
                "channels:\n  kept: { type: disk, inputs: [web], size_max: 64MiB }\n",
                "kept",
            ),
            false => ("", "web"),
        };
        // Both sinks read the same records, one of them through a processor.
        let config = format!(
            "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
             sources:\n  web: {{ type: tail, paths: [\"{0}/in.log\"], start: beginning }}\n\
             processors:\n  read: {{ type: parse, inputs: [{from}], field: .message, as: logfmt }}\n{channel}\
             sinks:\n  on: {{ type: http, inputs: [read], url: \"{url}\" }}\n  \
             out: {{ type: file, inputs: [{from}], path: \"{0}/out.log\", format: raw }}\n",
            place.display()
        );
        let program = Program::start(place, &config).listens(api);
        wait_until("all are rejected", || {
            get_here(api, "/rejected").contains("\"records\":50")
        });
        takes.store(true, Ordering::SeqCst);
        let (code, text) = replay("on", api);
        assert_eq!(code, Some(0), "{text}");
        let count = || {
            let taken: std::sync::MutexGuard<'_, String> = taken.lock().unwrap();
            taken.matches("\"n\":").count()
        };
        wait_until("the server has all", || count() == 50);
        wait_until("nothing is left", || {
            get_here(api, "/rejected").ends_with("{\"nodes\":[]}")
        });
        // A new line reaches both outputs. Their counts show that nothing was blocked or repeated.
        let mut file = fs::File::options()
            .append(true)
            .open(place.join("in.log"))
            .unwrap();
        file.write_all(b"n=50 text=last\n").unwrap();
        wait_until("both outputs have the new line", || {
            count() == 51 && lines(&place.join("out.log")).len() == 51
        });
        assert!(
            lines(&place.join("out.log"))
                .values()
                .all(|times| *times == 1)
        );
        assert!(
            !taken.lock().unwrap().contains("replay"),
            "the node that a replayed record is for is not a field of the record"
        );
        assert_eq!(program.stop(), Some(0));
    }
}
