//! Through the real `journalctl`, Millstream follows a journal that the real `systemd-journal-remote` writes. Meanwhile
//! Millstream is killed and stopped. With a disk channel, every entry arrives once and in order.
//!
//! `make deps` installs both programs.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, sleep},
    time::Duration,
};

use crate::program::{Program, victim::Random, wait_until};

/// The number of times that Millstream is killed or stopped.
const BREAKS: usize = 40;
/// The longest pause between the arrival of entries and the next kill or stop.
const PAUSE_MS_MAX: u64 = 60;
/// The path of `systemd-journal-remote` on Debian.
const WRITER: &str = "/lib/systemd/systemd-journal-remote";
/// The pause between entries, as in the journal of a busy machine.
const ENTRY_EVERY: Duration = Duration::from_micros(500);

/// Writes numbered entries until `ended` is set; returns their number.
fn write(directory: &Path, ended: &AtomicBool) -> usize {
    let mut writer = Command::new(WRITER)
        .arg("-o")
        .arg(directory.join("test.journal"))
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{WRITER}: {error}: run `make deps`"));
    let mut input = writer.stdin.take().unwrap();
    let mut written = 0;
    while !ended.load(Ordering::Relaxed) {
        let text = format!(
            "__REALTIME_TIMESTAMP={}\n__MONOTONIC_TIMESTAMP={}\n_BOOT_ID=1531fd22ec84429e85ae888b12fadb91\n\
             _TRANSPORT=journal\n_SYSTEMD_UNIT=web.service\nMESSAGE={written}\n\n",
            1_700_000_000_000_000_usize + written,
            1000 + written
        );
        input.write_all(text.as_bytes()).unwrap();
        written += 1;
        sleep(ENTRY_EVERY);
    }
    drop(input);
    assert!(end(&mut writer), "the journal was not written to its end");
    written
}

fn end(child: &mut Child) -> bool {
    child.wait().unwrap().success()
}

fn numbers(path: &Path) -> Vec<usize> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn every_entry_arrives_once_and_in_order_while_millstream_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let journal = place.join("journal");
    fs::create_dir(&journal).unwrap();
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: [] }}\n\
         sources:\n  journal: {{ type: journald, command: [journalctl, \"--directory={0}/journal\"] }}\n\
         channels:\n  kept: {{ type: disk, inputs: [journal], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], path: \"{0}/out.log\", format: template, template: \"{{.MESSAGE}}\\n\" }}\n",
        place.display()
    );
    let ended = Arc::new(AtomicBool::new(false));
    let (until, to) = (ended.clone(), journal.clone());
    let writer = thread::spawn(move || write(&to, &until));
    let output = place.join("out.log");
    let size = || fs::metadata(&output).map_or(0, |file| file.len());
    let mut random = Random::new();
    let mut program = Program::start(place, &config);
    for round in 0..BREAKS {
        let before = size();
        wait_until("entries arrive", || size() > before);
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        match round % 2 {
            0 => program.kill(),
            _ => assert_eq!(program.stop(), Some(0)),
        }
        program = Program::start(place, &config);
    }
    ended.store(true, Ordering::Relaxed);
    let written = writer.join().unwrap();
    wait_until("the last entry has arrived", || {
        let text = fs::read_to_string(&output).unwrap_or_default();
        text.ends_with(&format!("{}\n", written - 1))
    });
    assert_eq!(program.stop(), Some(0));
    let arrived = numbers(&output);
    let wrong = arrived
        .iter()
        .enumerate()
        .find(|(at, number)| at != *number);
    assert_eq!(
        wrong, None,
        "the first entry that is lost, duplicated or out of order"
    );
    assert_eq!(arrived.len(), written);
    println!("{written} entries, {BREAKS} breaks: 0 lost, 0 twice");
}
