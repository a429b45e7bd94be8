//! Processors in front of a sink are edited while positions of its disk channel are in doubt: after a reload and a kill, between a kill
//! and the next start, and between an orderly stop and the next start while the receiver hangs. The receiver recognizes a position
//! although it has another content.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use crate::program::{
    Program, free_port,
    victim::{Generator, Random, Victim, generate, in_storm, settle, verify},
};

const PAUSE_MS_MAX: u64 = 700;

/// Stores what arrives by forward and by HTTP.
fn receiver(directory: &Path, forward: u16, http: u16) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{forward}\" }}\n\
         \x20 web: {{ type: http, listen: \"tcp://127.0.0.1:{http}\", path: \"/*\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in, web], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out/{{tag}}.log\" }}\n"
    )
}

/// Passes records on through processors, which are different for each `edition`. With `divided`, a position becomes many batches.
fn relay(directory: &Path, port: u16, sink: &str, edition: u64, divided: bool) -> String {
    let place = directory.display();
    let field = "e".repeat(1 + edition as usize % 7);
    let ways = match divided {
        true => format!(
            "\x20 ways: {{ type: route, inputs: [kept], routes: {{ some: {{ where: {{ .message: {{ regex: '{}' }} }} }} }} }}\n\
             \x20 one: {{ type: remap, inputs: [ways.some], program: '.{field} = {edition}' }}\n\
             \x20 two: {{ type: parse, inputs: [ways.rest], as: regex, pattern: '^(?<message>.*)$' }}\n",
            edition % 10
        ),
        false => format!(
            "\x20 one: {{ type: remap, inputs: [kept], program: '.{field} = {edition}' }}\n"
        ),
    };
    let inputs = if divided { "one, two" } else { "one" };
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         processors:\n{ways}\
         sinks:\n  next: {{ inputs: [{inputs}], {sink} }}\n"
    )
}

/// A relay whose processors are edited.
struct Edited {
    directory: PathBuf,
    port: u16,
    sink: String,
    divided: bool,
    edition: u64,
    program: Option<Program>,
}

impl Edited {
    fn text(&self) -> String {
        relay(
            &self.directory,
            self.port,
            &self.sink,
            self.edition,
            self.divided,
        )
    }

    fn start(&mut self) {
        self.edition += 1;
        self.program = Some(
            Program::start_with(&self.directory, &self.text(), &["--drain", "2s"])
                .listens(self.port),
        );
    }

    fn reload(&mut self) {
        self.edition += 1;
        fs::write(self.directory.join("millstream.yaml"), self.text()).unwrap();
        self.program.as_ref().unwrap().signal("HUP");
    }
}

fn storm(sink: impl Fn(u16, u16) -> String, divided: bool) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let (port, forward, http) = (free_port(), free_port(), free_port());
    let config = receiver(place, forward, http);
    let last = Victim::start(place.to_owned(), forward, config);
    let relaying = place.join("relay");
    fs::create_dir(&relaying).unwrap();
    let mut relay = Edited {
        directory: relaying,
        port,
        sink: sink(forward, http),
        divided,
        edition: 0,
        program: None,
    };
    relay.start();
    let records = in_storm(300_000, 3_000_000).to_string();
    let generator = Generator::start(&generate(place, port, &records, "30000"));
    for round in 0..in_storm(12, 120) {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        match round % 3 {
            0 => {
                relay.reload();
                sleep(Duration::from_millis(random.below(300)));
                relay.program.take().unwrap().kill();
            }
            1 => relay.program.take().unwrap().kill(),
            _ => {
                last.pause();
                sleep(Duration::from_millis(random.below(300)));
                let program = relay.program.take().unwrap();
                let log = program.log();
                assert_eq!(program.stop(), Some(0), "{log}");
                last.go_on();
            }
        }
        relay.start();
    }
    generator.finish();
    settle(&place.join("out"));
    assert_eq!(relay.program.take().unwrap().stop(), Some(0));
    last.stop();
    verify(&place.join("out"), &place.join("ledger"));
}

fn forward(port: u16, _: u16) -> String {
    format!("type: forward, servers: [\"127.0.0.1:{port}\"], peer: millstream, failover: wait")
}

#[test]
fn a_forward_receiver_recognizes_positions_although_edited_processors_change_their_content() {
    storm(forward, false);
}

#[test]
fn a_forward_receiver_recognizes_positions_that_processors_divide_differently_after_an_edit() {
    storm(forward, true);
}

#[test]
fn an_http_receiver_recognizes_positions_although_edited_processors_change_their_content() {
    storm(
        |_, port| {
            format!(
                "type: http, url: \"http://127.0.0.1:{port}/{{tag}}\", in_flight: 1, retry: {{ first: 100ms, max: 1s, timeout: 5s }}"
            )
        },
        false,
    );
}
