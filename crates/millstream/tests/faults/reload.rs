//! Reloads under full load: processors are added, removed and changed while records pass, and some configurations are refused.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use crate::program::{
    Program, free_port,
    victim::{Generator, Random, generate, in_storm, settle, verify},
    wait_until,
};

/// The number of reloads.
const RELOADS: u64 = 100;
/// The longest pause between two reloads.
const PAUSE_MS_MAX: u64 = 100;

/// The receiver's configuration. It has processors on three paths: from the source to the disk channel `kept`, from this channel to
/// the sink `a`, and from the source directly to the sink `b`. All processors pass on every record.
struct Configuration<'a> {
    directory: &'a Path,
    port: u16,
    processors: String,
    /// The nodes from which the channel and the two sinks read.
    ends: [String; 3],
}

impl<'a> Configuration<'a> {
    /// Without processors.
    fn plain(directory: &'a Path, port: u16) -> Self {
        Self {
            directory,
            port,
            processors: String::new(),
            ends: ["in", "kept", "in"].map(str::to_owned),
        }
    }

    /// With random processors on each of the three paths.
    fn random(directory: &'a Path, port: u16, random: &mut Random) -> Self {
        let mut drawn = Self::plain(directory, port);
        for (way, letter) in ["x", "y", "z"].into_iter().enumerate() {
            for number in 0..random.below(4) {
                let name = format!("{letter}{number}");
                let (options, port) = processor(random);
                let input = &drawn.ends[way];
                drawn.processors += &format!("  {name}: {{ inputs: [{input}], {options} }}\n");
                drawn.ends[way] = match port {
                    "" => name,
                    port => port.replace("NAME", &name),
                };
            }
        }
        drawn
    }

    fn text(&self) -> String {
        let place = self.directory.display();
        let Self {
            port,
            processors,
            ends: [kept, a, b],
            ..
        } = self;
        let processors = match &**processors {
            "" => String::new(),
            some => format!("processors:\n{some}"),
        };
        format!(
            "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
             sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
             {processors}\
             channels:\n  kept: {{ type: disk, inputs: [{kept}], size_max: 1GiB }}\n\
             sinks:\n\
             \x20 a: {{ type: file, inputs: [{a}], format: raw, path: \"{place}/a/{{tag}}.log\" }}\n\
             \x20 b: {{ type: file, inputs: [{b}], format: raw, path: \"{place}/b/{{tag}}.log\" }}\n"
        )
    }

    /// Replaces the file atomically, so that the program never reads a part of it.
    fn write(text: &str, directory: &Path) {
        let new = directory.join("new.yaml");
        fs::write(&new, text).unwrap();
        fs::rename(new, directory.join("millstream.yaml")).unwrap();
    }
}

/// The options of a processor that passes on every record, and its ports if it has several.
fn processor(random: &mut Random) -> (String, &'static str) {
    let tasks = 1 + random.below(3);
    let parse = "as: regex, pattern: '^(?<message>.*)$'";
    match random.below(6) {
        0 => (format!("type: parse, {parse}, parallelism: {tasks}"), ""),
        1 => (
            format!("type: remap, program: '.n = {tasks}; del(.n)', parallelism: {tasks}"),
            "",
        ),
        2 => (
            "type: filter, where: { not: { .message: { regex: nowhere } } }".to_owned(),
            "",
        ),
        3 => (
            format!(
                "type: route, routes: {{ some: {{ where: {{ .message: {{ regex: '{tasks}' }} }} }} }}"
            ),
            "NAME.some, NAME.rest",
        ),
        4 => (format!("type: fields, set: {{ .n: {tasks} }}"), ""),
        _ => ("type: exec, command: [cat]".to_owned(), ""),
    }
}

/// The options of a processor. They have an error that only the last step of a start finds.
fn broken(random: &mut Random) -> &'static str {
    match random.below(4) {
        0 => "type: remap, program: '.a = nothing_like_this(.b)'",
        1 => "type: remap, file: /nowhere/at/all.vrl",
        2 => "type: exec, command: [/nowhere/at/all]",
        _ => "type: parse, as: regex, pattern: '('",
    }
}

/// The entries of a directory of the process, such as its threads or open files.
fn entries(program: &Program, kind: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(format!("/proc/{}/{kind}", program.id()));
    let all = all.into_iter().flatten().flatten();
    all.map(|entry| entry.path()).collect()
}

/// The threads of processors: they have names such as `x1/0`.
fn processor_threads(program: &Program) -> usize {
    let name = |thread: &PathBuf| fs::read_to_string(thread.join("comm")).unwrap_or_default();
    let threads = entries(program, "task");
    threads
        .iter()
        .filter(|thread| name(thread).contains('/'))
        .count()
}

/// The open pipes, such as those of `exec`.
fn pipes(program: &Program) -> usize {
    let target = |file: &PathBuf| fs::read_link(file).unwrap_or_default();
    let files = entries(program, "fd");
    let is_pipe = |file: &&PathBuf| target(file).to_string_lossy().starts_with("pipe:");
    files.iter().filter(is_pipe).count()
}

#[test]
fn nothing_is_lost_doubled_or_reordered_in_a_hundred_reloads_under_load() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let port = free_port();
    let plain = Configuration::plain(place, port).text();
    let program = Program::start(place, &plain).listens(port);
    let pipes_before = pipes(&program);
    let records = in_storm(800_000, 4_000_000).to_string();
    let generator = Generator::start(&generate(place, port, &records, "60000"));
    let (mut applied, mut refused) = (0, 0);
    for reload in 0..RELOADS {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        let mut drawn = Configuration::random(place, port, &mut random);
        if reload % 5 == 4 {
            let options = broken(&mut random);
            drawn.processors += &format!("  wrong: {{ inputs: [{}], {options} }}\n", drawn.ends[1]);
            drawn.ends[1] = "wrong".to_owned();
            refused += 1;
        } else {
            applied += 1;
        }
        Configuration::write(&drawn.text(), place);
        program.signal("HUP");
        let said = |log: &str, text: &str| log.matches(text).count();
        wait_until("the reload is over", || {
            let log = program.log();
            let done = said(&log, "reloaded: ") + said(&log, "nothing has changed");
            done as u64 > reload
        });
        let log = program.log();
        assert_eq!(said(&log, "reloaded: "), applied, "{}", drawn.text());
        assert_eq!(said(&log, "nothing has changed"), refused);
    }
    generator.finish();
    Configuration::write(&plain, place);
    program.signal("HUP");
    // Readers that get no more records also release the processors that were removed.
    wait_until("no thread and no program is left of a processor", || {
        processor_threads(&program) == 0 && pipes(&program) <= pipes_before
    });
    settle(&place.join("a"));
    settle(&place.join("b"));
    assert_eq!(program.stop(), Some(0));
    verify(&place.join("a"), &place.join("ledger"));
    verify(&place.join("b"), &place.join("ledger"));
}
