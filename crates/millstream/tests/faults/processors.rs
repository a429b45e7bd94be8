//! No loss and no duplicates through processors before and after disk channels, while sender and receiver are killed. If a processor
//! or a sink stops, it blocks no others.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::program::{
    PATIENCE, Program, free_port,
    victim::{CHAINS, Generator, Random, Victim, arrived, generate, in_storm, storm, verify},
    wait_until,
};

/// The longest pause between two kills.
const PAUSE_MS_MAX: u64 = 500;

/// A receiver that parses records, divides them between two channels, and processes them again before each of two sinks. Each
/// record reaches one of the two outputs.
fn receiver(directory: &Path, port: u16) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         processors:\n\
         \x20 parsed: {{ type: parse, inputs: [in], as: regex, pattern: '^(?<message>.*)$', parallelism: 2 }}\n\
         \x20 mapped: {{ type: remap, inputs: [parsed], program: '.n = length!(.message); del(.n)' }}\n\
         \x20 sevens: {{ type: route, inputs: [mapped], routes: {{ some: {{ where: {{ .message: {{ regex: '7' }} }} }} }} }}\n\
         \x20 again: {{ type: filter, inputs: [one], where: {{ .message: {{ regex: '7' }} }} }}\n\
         \x20 never: {{ type: filter, inputs: [two], where: {{ not: {{ .message: {{ regex: '7' }} }} }} }}\n\
         \x20 twice: {{ type: parse, inputs: [never], as: regex, pattern: '^(?<message>.*)$', parallelism: 3 }}\n\
         channels:\n\
         \x20 one: {{ type: disk, inputs: [sevens.some], size_max: 1GiB }}\n\
         \x20 two: {{ type: disk, inputs: [sevens.rest], size_max: 1GiB }}\n\
         sinks:\n\
         \x20 a: {{ type: file, inputs: [again], format: raw, path: \"{place}/out/{{tag}}.a.log\" }}\n\
         \x20 b: {{ type: file, inputs: [twice], format: raw, path: \"{place}/out/{{tag}}.b.log\" }}\n"
    )
}

/// A receiver with external programs before and after a disk channel. The programs return their input unchanged.
fn with_programs(directory: &Path, port: u16) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         processors:\n\
         \x20 lines: {{ type: exec, inputs: [in], command: [cat], parallelism: 2 }}\n\
         \x20 sevens: {{ type: route, inputs: [lines], routes: {{ some: {{ where: {{ .message: {{ regex: '7' }} }} }} }} }}\n\
         \x20 values: {{ type: exec, inputs: [kept], command: [cat], format: msgpack, repeatable: true }}\n\
         channels:\n\
         \x20 kept: {{ type: disk, inputs: [sevens.some, sevens.rest], size_max: 1GiB }}\n\
         sinks:\n\
         \x20 out: {{ type: file, inputs: [values], format: raw, path: \"{place}/out/{{tag}}.log\" }}\n"
    )
}

#[test]
fn nothing_is_lost_or_doubled_through_processors_when_sender_and_receiver_are_killed() {
    let (records, kills) = (in_storm(800_000, 4_000_000), in_storm(40, 250));
    storm(receiver, records, "30000", kills);
}

/// A receiver with two disk channels in series, and with processors before, between and after them.
fn two_channels(directory: &Path, port: u16) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         {CHAINS}\
         \x20 last: {{ type: parse, inputs: [behind], as: regex, pattern: '^(?<message>.*)$', parallelism: 2 }}\n\
         channels:\n\
         \x20 behind: {{ type: disk, inputs: [parts.some, parts.rest], size_max: 1GiB }}\n\
         \x20 kept: {{ type: disk, inputs: [halves.some, halves.rest], size_max: 1GiB }}\n\
         sinks:\n\
         \x20 out: {{ type: file, inputs: [last], format: raw, path: \"{place}/out/{{tag}}.log\" }}\n"
    )
}

#[test]
fn nothing_is_lost_or_doubled_through_two_channels_in_series_when_sender_and_receiver_are_killed() {
    let (records, kills) = (in_storm(800_000, 4_000_000), in_storm(40, 250));
    storm(two_channels, records, "30000", kills);
}

/// A receiver whose processors give some records a tag with the number of the start (`turn`). So the tag differs from start to start.
/// Every third start has no processors.
fn retagging(turn: usize, directory: &Path, port: u16) -> String {
    let (processors, inputs) = match turn % 3 {
        0 => (String::new(), "in"),
        _ => (
            format!(
                "processors:\n\
                 \x20 sevens: {{ type: route, inputs: [in], routes: {{ some: {{ where: {{ .message: {{ regex: '7' }} }} }} }} }}\n\
                 \x20 named: {{ type: fields, inputs: [sevens.some], tag: \"{{tag}}.{turn}\" }}\n"
            ),
            "named, sevens.rest",
        ),
    };
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         {processors}\
         channels:\n  kept: {{ type: disk, inputs: [{inputs}], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out/{{tag}}.log\" }}\n"
    )
}

/// Sends a chunk on a new connection, always with the same unique id, and waits for its ack.
fn send_chunk(port: u16) {
    const ID: &[u8] = b"\xb8PdjoG1yfRwmC9QbEo1eNzA==";
    let message = b"\x94\xa1t\xce\x65\x00\x00\x00\x81\xa7message\xa2a7\x81\xa5chunk";
    let mut sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
    sender.write_all(&[&message[..], ID].concat()).unwrap();
    let mut ack = [0; 30];
    sender.read_exact(&mut ack).unwrap();
    assert_eq!(&ack[5..], ID);
}

#[test]
fn a_chunk_that_is_sent_again_after_a_reload_changed_its_tag_is_kept_once() {
    let directory = tempfile::tempdir().unwrap();
    let (place, port) = (directory.path(), free_port());
    let program = Program::start(place, &retagging(0, place, port)).listens(port);
    send_chunk(port);
    for turn in 1..4 {
        fs::write(place.join("millstream.yaml"), retagging(turn, place, port)).unwrap();
        program.signal("HUP");
        wait_until("the reload is logged", || {
            program.log().matches("reloaded: ").count() == turn
        });
        send_chunk(port);
    }
    assert_eq!(program.stop(), Some(0));
    let files = fs::read_dir(place.join("out")).unwrap();
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    assert_eq!(texts.collect::<String>(), "a7\n");
}

#[test]
fn a_chunk_is_kept_once_if_restarts_change_its_tags() {
    let (records, kills) = (in_storm(500_000, 4_000_000), in_storm(30, 250));
    let turn = AtomicUsize::new(0);
    let config = |place: &Path, port| retagging(turn.fetch_add(1, Relaxed), place, port);
    storm(config, records, "30000", kills);
}

#[test]
fn a_stop_does_not_wait_for_room_in_the_second_of_two_channels() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, behind) = (free_port(), free_port());
    let there = place.join("there");
    fs::create_dir(&there).unwrap();
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n\
         \x20 first: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         \x20 second: {{ type: disk, inputs: [first], size_max: 8MiB }}\n\
         sinks:\n  out: {{ type: forward, inputs: [second], servers: \"127.0.0.1:{behind}\", peer: millstream }}\n",
        place.display()
    );
    // The drain time is longer than the test waits.
    let program = Program::start_with(place, &config, &["--drain", "1h"]).listens(port);
    Generator::start(&generate(place, port, "300000", "1000000")).finish();
    wait_until("the second channel is full", || {
        program.log().contains("which has not settled")
    });
    assert_eq!(program.stop(), Some(0));
    let receiver = format!(
        "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{behind}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{0}/out/{{tag}}.log\" }}\n",
        there.display()
    );
    let receiver = Program::start(&there, &receiver).listens(behind);
    let program = Program::start(place, &config).listens(port);
    arrived(&there.join("out"), &place.join("ledger"));
    assert_eq!((program.stop(), receiver.stop()), (Some(0), Some(0)));
    verify(&there.join("out"), &place.join("ledger"));
}

#[test]
fn nothing_is_lost_or_doubled_through_external_programs_when_sender_and_receiver_are_killed() {
    let (records, kills) = (in_storm(300_000, 2_000_000), in_storm(20, 150));
    storm(with_programs, records, "30000", kills);
}

/// Two sinks read from the same processors. One writes a file. The other sends to a Millstream that is stopped until the first sink
/// has everything. `nodes` holds the processors and channels; `file` and `next` are the inputs of the sinks.
fn one_of_two_sinks_is_stopped(nodes: &str, [file, next]: [&str; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, behind) = (free_port(), free_port());
    let stopped = place.join("next");
    fs::create_dir(&stopped).unwrap();
    let receiver = format!(
        "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{behind}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{0}/out/{{tag}}.log\" }}\n",
        stopped.display()
    );
    let receiver = Victim::start(stopped.clone(), behind, receiver);
    receiver.pause();
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         {nodes}\
         sinks:\n\
         \x20 file: {{ type: file, inputs: {file}, format: raw, path: \"{0}/out/{{tag}}.log\" }}\n\
         \x20 next: {{ type: forward, inputs: {next}, servers: [\"127.0.0.1:{behind}\"], peer: millstream }}\n",
        place.display()
    );
    let program = Program::start(place, &config).listens(port);
    let mut arguments = generate(place, port, "400000", "1000000");
    // Without a disk channel, records are acked only when the sink has synced them. The long timeout keeps the generator from
    // sending them again on a slow machine.
    let timeout = arguments.iter().position(|word| word == "--ack-timeout");
    arguments[timeout.unwrap() + 1] = "120s".to_owned();
    Generator::start(&arguments).finish();
    let ledger = place.join("ledger");
    let (out, late) = (place.join("out"), stopped.join("out"));
    arrived(&out, &ledger);
    assert!(!late.exists(), "the other sink was not stopped");
    receiver.go_on();
    arrived(&late, &ledger);
    assert_eq!(program.stop(), Some(0));
    receiver.stop();
    verify(&out, &ledger);
    verify(&late, &ledger);
}

#[test]
fn a_sink_without_a_channel_receives_everything_while_its_sibling_with_one_is_stopped() {
    one_of_two_sinks_is_stopped(
        "processors:\n\
         \x20 parsed: { type: parse, inputs: [in], as: regex, pattern: '^(?<message>.*)$', parallelism: 2 }\n\
         \x20 halves: { type: route, inputs: [parsed], routes: { some: { where: { .message: { regex: '7' } } } } }\n\
         channels:\n  kept: { type: disk, inputs: [halves.some, halves.rest], size_max: 1GiB }\n",
        ["[halves.some, halves.rest]", "[kept]"],
    );
}

#[test]
fn a_sink_of_a_disk_channel_receives_everything_while_its_sibling_is_stopped() {
    let nodes = format!(
        "{CHAINS}channels:\n  kept: {{ type: disk, inputs: [halves.some, halves.rest], size_max: 1GiB }}\n"
    );
    one_of_two_sinks_is_stopped(&nodes, ["[parts.some, parts.rest]"; 2]);
}

/// Reads files, parses and divides them, and forwards both parts to another Millstream.
fn agent(directory: &Path, next: u16) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: tail, paths: [\"{place}/in/*.log\"], tag: \"*\", start: beginning }}\n\
         processors:\n\
         \x20 sevens: {{ type: route, inputs: [in], routes: {{ some: {{ where: {{ .message: {{ regex: '7' }} }} }} }} }}\n\
         \x20 parsed: {{ type: parse, inputs: [sevens.some], as: regex, pattern: '^(?<message>.*)$' }}\n\
         \x20 mapped: {{ type: remap, inputs: [sevens.rest], program: '.n = length!(.message); del(.n)' }}\n\
         channels:\n  kept: {{ type: disk, inputs: [parsed, mapped], size_max: 1GiB }}\n\
         sinks:\n  next: {{ type: forward, inputs: [kept], servers: [\"127.0.0.1:{next}\"], peer: millstream }}\n"
    )
}

#[test]
fn tailed_lines_arrive_once_through_processors_when_both_sides_are_killed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let next = free_port();
    let input = place.join("in");
    fs::create_dir(&input).unwrap();
    let receiving = place.join("receiver");
    fs::create_dir(&receiving).unwrap();
    let mut last = Victim::start(receiving.clone(), next, receiver(&receiving, next));
    let agent = agent(place, next);
    let mut program = Program::start(place, &agent);
    let (mut written, rounds) = (0_u64, in_storm(30, 200));
    for round in 0..rounds {
        for name in ["a", "b"] {
            let lines: String = (0..1500)
                .map(|n| format!("{name} {} end\n", written + n))
                .collect();
            let path = input.join(format!("{name}.log"));
            let file = fs::File::options().append(true).create(true).open(path);
            file.unwrap().write_all(lines.as_bytes()).unwrap();
        }
        written += 1500;
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        if round % 2 == 0 {
            program.kill();
            program = Program::start(place, &agent);
        } else {
            last.kill_and_restart(&mut random);
        }
    }
    let out = receiving.join("out");
    let lines = || -> Vec<String> {
        let Ok(files) = fs::read_dir(&out) else {
            return Vec::new();
        };
        let read = |file: fs::DirEntry| fs::read_to_string(file.path()).unwrap_or_default();
        let texts = files.flatten().map(read);
        texts
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    wait_until("all lines have arrived", || {
        lines().len() as u64 >= 2 * written
    });
    assert_eq!(program.stop(), Some(0));
    last.stop();
    let mut found = lines();
    found.sort_unstable();
    let mut expected: Vec<_> = (0..written)
        .flat_map(|n| ["a", "b"].map(|name| format!("{name} {n} end")))
        .collect();
    expected.sort_unstable();
    assert!(
        found == expected,
        "{} lines of {}",
        found.len(),
        expected.len()
    );
}

/// Joins the lines of a file, and keeps them in two disk channels: directly, and through a processor.
fn joining(directory: &Path) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: tail, paths: [\"{place}/in.log\"], start: beginning, framing: {{ multiline: {{ start: '^record' }} }} }}\n\
         processors:\n\
         \x20 mapped: {{ type: remap, inputs: [in], program: '.n = length!(.message); del(.n)' }}\n\
         channels:\n\
         \x20 one: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         \x20 two: {{ type: disk, inputs: [mapped], size_max: 1GiB }}\n\
         sinks:\n\
         \x20 a: {{ type: file, inputs: [one], format: raw, path: \"{place}/a.log\" }}\n\
         \x20 b: {{ type: file, inputs: [two], format: raw, path: \"{place}/b.log\" }}\n"
    )
}

#[test]
fn joined_lines_arrive_once_through_each_of_two_disk_channels_when_the_reader_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let input = place.join("in.log");
    fs::write(&input, "").unwrap();
    let config = joining(place);
    let mut program = Program::start(place, &config);
    let mut written = 0;
    for _ in 0..in_storm(30, 200) {
        let until = Instant::now() + Duration::from_millis(random.below(PAUSE_MS_MAX));
        while Instant::now() < until {
            let records: String = (written..written + 500)
                .map(|n| format!("record {n}\n  continues\n  and ends\n"))
                .collect();
            written += 500;
            let file = fs::File::options().append(true).open(&input);
            file.unwrap().write_all(records.as_bytes()).unwrap();
            sleep(Duration::from_millis(2));
        }
        program.kill();
        program = Program::start(place, &config);
    }
    let expected = fs::read_to_string(&input).unwrap();
    for name in ["a.log", "b.log"] {
        let read = || fs::read_to_string(place.join(name)).unwrap_or_default();
        wait_until("all records have arrived", || {
            read().len() >= expected.len()
        });
        assert!(read() == expected, "{name}: {} bytes", read().len());
    }
    assert_eq!(program.stop(), Some(0));
}

/// A message of the forward protocol with one record, and the id that its ack repeats.
fn message(id: u8) -> Vec<u8> {
    let mut message =
        b"\x94\xa1t\xce\x65\x00\x00\x00\x81\xa7message\xa2ab\x81\xa5chunk\xa4id0".to_vec();
    message.push(id);
    message
}

/// Sends one message and waits for its ack.
fn acked(sender: &mut TcpStream, id: u8) {
    sender.write_all(&message(id)).unwrap();
    let mut ack = [0; 10];
    sender.read_exact(&mut ack).unwrap();
    assert_eq!((&ack[..9], ack[9]), (&b"\x81\xa3ack\xa4id0"[..], id));
}

#[test]
fn a_program_that_does_not_answer_blocks_no_other_connection_of_its_thread() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let (slow, fast, mild) = (free_port(), free_port(), free_port());
    // All three sources share a data thread and a channel. Only the records of `slow` pass the external program.
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n\
         \x20 slow: {{ type: forward, listen: \"tcp://127.0.0.1:{slow}\" }}\n\
         \x20 fast: {{ type: forward, listen: \"tcp://127.0.0.1:{fast}\" }}\n\
         \x20 mild: {{ type: forward, listen: \"tcp://127.0.0.1:{mild}\" }}\n\
         processors:\n\
         \x20 asked: {{ type: exec, inputs: [slow], timeout: 10m,\n\
         \x20   command: [sh, -c, \"while read -r line; do touch {place}/asked; until [ -e {place}/go ]; do sleep 0.1; done; echo $line; done\"] }}\n\
         \x20 some: {{ type: filter, inputs: [mild], where: {{ .message: ab }} }}\n\
         channels:\n\
         \x20 kept: {{ type: disk, inputs: [asked, fast, some] }}\n\
         sinks:\n\
         \x20 out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out.log\" }}\n"
    );
    let program = Program::start(directory.path(), &config).listens(fast);
    let program = program.listens(mild);
    let mut waiting = TcpStream::connect(("127.0.0.1", slow)).unwrap();
    waiting.write_all(&message(0)).unwrap();
    wait_until("the program has the record", || {
        directory.path().join("asked").exists()
    });
    // If these connections waited for the program, they would wait until the file `go` exists.
    for port in [fast, mild] {
        let mut sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
        sender.set_read_timeout(Some(PATIENCE)).unwrap();
        for id in 1..100 {
            acked(&mut sender, id);
        }
    }
    fs::write(directory.path().join("go"), "").unwrap();
    let mut ack = [0; 10];
    waiting.read_exact(&mut ack).unwrap();
    assert_eq!(program.stop(), Some(0));
    let text = fs::read_to_string(directory.path().join("out.log")).unwrap();
    assert_eq!(text.lines().count(), 1 + 2 * 99);
}

#[test]
fn a_program_that_hangs_is_named_in_the_status_and_does_not_outlive_millstream() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let (port, api) = (free_port(), free_port());
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         processors:\n\
         \x20 asked: {{ type: exec, inputs: [in], timeout: 10m,\n\
         \x20   command: [sh, -c, \"echo $$ > {place}/id; exec sleep 10000\"] }}\n\
         channels:\n  kept: {{ type: disk, inputs: [asked] }}\n\
         sinks:\n  out: {{ type: discard, inputs: [kept] }}\n"
    );
    let program = Program::start_with(directory.path(), &config, &["--drain", "1s"]).listens(port);
    let mut sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
    sender.write_all(&message(0)).unwrap();
    wait_until("the status names the processor", || {
        let mut request = TcpStream::connect(("127.0.0.1", api)).unwrap();
        let line =
            format!("GET /status HTTP/1.1\r\nhost: 127.0.0.1:{api}\r\nconnection: close\r\n\r\n");
        request.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        request.read_to_string(&mut answer).unwrap();
        answer.contains("no answer to a batch for 3 s")
    });
    let id = fs::read_to_string(directory.path().join("id")).unwrap();
    let running = Path::new("/proc").join(id.trim());
    assert!(running.exists());
    assert_eq!(program.stop(), Some(1), "a record was left");
    wait_until("the program is gone", || !running.exists());
}

#[test]
fn a_program_that_hangs_is_replaced_by_a_reload_and_no_record_is_lost_or_rejected() {
    // The processor is in front of a durable channel, behind it, or between a source and a sink.
    for (node, channel, input) in [
        ("in", "kept: { type: disk, inputs: [asked] }", "kept"),
        ("kept", "kept: { type: disk, inputs: [in] }", "asked"),
        ("in", "", "asked"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().display();
        let config = |command: &str| {
            format!(
                "data_dir: {place}/data\napi: {{ listen: [] }}\n\
                 sources:\n  in: {{ type: tail, paths: [{place}/in.log] }}\n\
                 processors:\n  asked: {{ type: exec, inputs: [{node}], timeout: 2s, command: {command} }}\n\
                 channels: {{ {channel} }}\n\
                 sinks:\n  out: {{ type: file, inputs: [{input}], format: raw, path: {place}/out.log }}\n"
            )
        };
        // The program answers three records.
        let hangs =
            "[sh, -c, \"for n in 1 2 3; do read -r line; echo $line; done; exec sleep 10000\"]";
        let expected: String = (0..200).map(|number| format!("{number}\n")).collect();
        fs::write(directory.path().join("in.log"), &expected).unwrap();
        let program = Program::start(directory.path(), &config(hangs));
        wait_until("the program hangs", || {
            program.log().contains("gave no answer within 2s")
        });
        fs::write(directory.path().join("millstream.yaml"), config("[cat]")).unwrap();
        program.signal("HUP");
        wait_until("all records arrive", || {
            let text = fs::read_to_string(directory.path().join("out.log"));
            text.is_ok_and(|text| text.lines().count() >= 200)
        });
        assert_eq!(program.stop(), Some(0));
        let text = fs::read_to_string(directory.path().join("out.log")).unwrap();
        assert_eq!(text, expected, "{node} {input}");
        let log = fs::read_to_string(directory.path().join("log")).unwrap();
        assert!(!log.contains("rejected"), "{log}");
    }
}

#[test]
fn records_that_no_source_sends_again_are_rejected_if_a_reload_replaces_a_program_that_hangs() {
    // The processor is in front of a durable channel, or between a source and a sink.
    for (channel, input) in [
        ("kept: { type: disk, inputs: [asked] }", "kept"),
        ("", "asked"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (place, port) = (directory.path().display(), free_port());
        let config = |command: &str| {
            format!(
                "data_dir: {place}/data\napi: {{ listen: [] }}\n\
                 sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
                 processors:\n  asked: {{ type: exec, inputs: [in], timeout: 2s, command: {command} }}\n\
                 channels: {{ {channel} }}\n\
                 sinks:\n  out: {{ type: file, inputs: [{input}], format: raw, path: {place}/out.log }}\n"
            )
        };
        // The program answers three records.
        let hangs =
            "[sh, -c, \"for n in 1 2 3; do read -r line; echo $line; done; exec sleep 10000\"]";
        let program = Program::start(directory.path(), &config(hangs)).listens(port);
        // The sender asks for no acks, so it sends nothing again.
        let mut sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let record = b"\x93\xa1t\xce\x65\x00\x00\x00\x81\xa7message\xa2ab";
        sender.write_all(&record.repeat(50)).unwrap();
        wait_until("the program hangs", || {
            program.log().contains("gave no answer within 2s")
        });
        fs::write(directory.path().join("millstream.yaml"), config("[cat]")).unwrap();
        program.signal("HUP");
        let written = || {
            let text = fs::read_to_string(directory.path().join("out.log")).unwrap_or_default();
            text.lines().count()
        };
        let rejected = || {
            let files = fs::read_dir(directory.path().join("data/rejected"));
            let files = files.into_iter().flatten().flatten();
            let texts = files.map(|file| fs::read(file.path()).unwrap_or_default());
            let count = |text: Vec<u8>| {
                let text = String::from_utf8_lossy(&text).into_owned();
                text.matches("a reload has replaced it").count()
            };
            texts.map(count).sum::<usize>()
        };
        wait_until("each record is written or rejected", || {
            written() + rejected() >= 50
        });
        assert_eq!(program.stop(), Some(0));
        assert_eq!(written() + rejected(), 50);
        assert!(rejected() > 0, "{input}");
    }
}
