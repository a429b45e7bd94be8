//! Reloads that give the same files to sources with other names, while lines are written: each line is delivered once.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, sleep},
    time::Duration,
};

use crate::program::{Program, free_port, victim::in_storm, wait_until};

/// The pause between two reloads.
const PAUSE: Duration = Duration::from_millis(60);

/// The sources, in the order in which the reloads configure them: renamed, split in two, with exchanged files, and with a part of the
/// files each under another name.
const SOURCES: [&[(&str, &str)]; 5] = [
    &[("app", "*.log")],
    &[("appx", "*.log")],
    &[("one", "a.log"), ("two", "[bc].log")],
    &[("one", "[bc].log"), ("two", "a.log")],
    &[("two", "[ab].log"), ("three", "c.log")],
];

fn configuration(place: &Path, api: u16, sources: &[(&str, &str)]) -> String {
    let place = place.display();
    let tail = |(name, paths): &(&str, &str)| {
        format!("  {name}: {{ type: tail, paths: \"{place}/logs/{paths}\" }}\n")
    };
    let tails: String = sources.iter().map(tail).collect();
    let names: Vec<_> = sources.iter().map(|(name, _)| *name).collect();
    format!(
        "data_dir: {place}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\nthreads: 2\nsources:\n{tails}\
         processors:\n  whole: {{ type: parse, as: regex, pattern: '^(?<message>.*)$', inputs: [{}] }}\n\
         channels:\n  kept: {{ type: disk, inputs: [whole], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out.log\" }}\n",
        names.join(", ")
    )
}

fn reload(place: &Path, api: u16, text: &str) {
    let new = place.join("new.yaml");
    fs::write(&new, text).unwrap();
    fs::rename(new, place.join("millstream.yaml")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["reload", "--api", &format!("127.0.0.1:{api}")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{text}");
}

/// Appends numbered lines to three files until `stop`. Returns the number of lines.
fn write(place: &Path, stop: &AtomicBool) -> usize {
    let open = |name| File::create(place.join("logs").join(name)).unwrap();
    let mut files = ["a.log", "b.log", "c.log"].map(open);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        for (number, file) in files.iter_mut().enumerate() {
            let lines: String = (count..count + 100)
                .map(|at| format!("{number} {at} a line that makes the batches larger\n"))
                .collect();
            file.write_all(lines.as_bytes()).unwrap();
        }
        count += 100;
        sleep(Duration::from_millis(2));
    }
    3 * count
}

#[test]
fn sources_with_other_names_that_read_the_same_files_send_each_line_once() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    fs::create_dir(place.join("logs")).unwrap();
    let api = free_port();
    let program = Program::start(place, &configuration(place, api, SOURCES[0])).listens(api);
    let stop = Arc::new(AtomicBool::new(false));
    let writing = thread::spawn({
        let (place, stop) = (place.to_owned(), stop.clone());
        move || write(&place, &stop)
    });
    for turn in 1..=in_storm(30, 300) {
        sleep(PAUSE);
        let sources = SOURCES[turn as usize % SOURCES.len()];
        reload(place, api, &configuration(place, api, sources));
    }
    stop.store(true, Ordering::Relaxed);
    let written = writing.join().unwrap();
    let delivered = || fs::read_to_string(place.join("out.log")).unwrap_or_default();
    wait_until("every line is delivered", || {
        delivered().lines().count() >= written
    });
    assert_eq!(program.stop(), Some(0));
    let text = delivered();
    let mut times = HashMap::<&str, usize>::new();
    text.lines()
        .for_each(|line| *times.entry(line).or_default() += 1);
    let twice = times.values().filter(|times| **times > 1).count();
    assert_eq!(
        (times.len(), twice),
        (written, 0),
        "lines, and lines more than once"
    );
}
