//! No loss and no duplicates through processors: in front of disk channels and behind them, while sender and receiver are killed; and a slow one.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::program::{
    Program, free_port,
    victim::{Generator, Random, Victim, generate, in_storm, settle, verify},
    wait_until,
};

/// The longest pause between two kills.
const PAUSE_MS_MAX: u64 = 500;

/// Parses, divides into two channels, and processes again in front of each sink. All records reach one of the two outputs.
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

#[test]
fn nothing_is_lost_or_doubled_through_processors_when_sender_and_receiver_are_killed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let port = free_port();
    let mut receiver = Victim::start(place.to_owned(), port, receiver(place, port));
    let records = in_storm(800_000, 4_000_000).to_string();
    let mut generator = Generator::start(&generate(place, port, &records, "30000"));
    for kill in 0..in_storm(40, 250) {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        match kill % 3 {
            0 => generator.kill_and_restart(),
            1 => receiver.kill_and_restart(&mut random),
            _ => {
                receiver.kill();
                generator.kill_and_restart();
                receiver.restart();
            }
        }
    }
    generator.finish();
    settle(&place.join("out"));
    receiver.stop();
    verify(&place.join("out"), &place.join("ledger"));
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

/// A message of the forward protocol with one record, and the id that its ack repeats.
fn message(id: u8) -> Vec<u8> {
    let mut message =
        b"\x94\xa1t\xce\x65\x00\x00\x00\x81\xa7message\xa2ab\x81\xa5chunk\xa4id0".to_vec();
    message.push(id);
    message
}

/// Sends one message and waits for its ack.
fn acked(sender: &mut TcpStream, id: u8) -> Duration {
    let started = Instant::now();
    sender.write_all(&message(id)).unwrap();
    let mut ack = [0; 10];
    sender.read_exact(&mut ack).unwrap();
    assert_eq!((&ack[..9], ack[9]), (&b"\x81\xa3ack\xa4id0"[..], id));
    started.elapsed()
}

#[test]
fn a_slow_program_delays_no_other_connection_of_its_thread() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let (slow, fast) = (free_port(), free_port());
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n\
         \x20 slow: {{ type: forward, listen: \"tcp://127.0.0.1:{slow}\" }}\n\
         \x20 fast: {{ type: forward, listen: \"tcp://127.0.0.1:{fast}\" }}\n\
         processors:\n\
         \x20 asked: {{ type: exec, inputs: [slow], command: [sh, -c, \"while read -r line; do sleep 4; echo $line; done\"] }}\n\
         channels:\n\
         \x20 kept: {{ type: disk, inputs: [asked] }}\n\
         \x20 other: {{ type: disk, inputs: [fast] }}\n\
         sinks:\n\
         \x20 a: {{ type: file, inputs: [kept], format: raw, path: \"{place}/a.log\" }}\n\
         \x20 b: {{ type: file, inputs: [other], format: raw, path: \"{place}/b.log\" }}\n"
    );
    let program = Program::start(directory.path(), &config).listens(fast);
    let mut waiting = TcpStream::connect(("127.0.0.1", slow)).unwrap();
    waiting.write_all(&message(0)).unwrap();
    let started = Instant::now();
    let mut sender = TcpStream::connect(("127.0.0.1", fast)).unwrap();
    let waits: Vec<_> = (1..100).map(|id| acked(&mut sender, id)).collect();
    // Without its own thread, the program would have held all of them for seconds.
    assert!(
        waits.iter().max() < Some(&Duration::from_secs(2)),
        "{waits:?}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "the program has answered already"
    );
    let mut ack = [0; 10];
    waiting.read_exact(&mut ack).unwrap();
    assert_eq!(program.stop(), Some(0));
    assert_eq!(
        fs::read_to_string(directory.path().join("a.log")).unwrap(),
        "ab\n"
    );
}
