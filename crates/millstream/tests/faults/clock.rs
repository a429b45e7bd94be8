//! The wall clock of a running Millstream jumps three days ahead and back. Millstream tails a file through a disk channel and writes
//! one file per day.

use std::{
    fs::{self, File},
    io::Write,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::program::{Program, clock::Clock, wait_until};

const DAY: i64 = 24 * 3600;

/// A program whose clock the test sets.
struct Rig {
    directory: tempfile::TempDir,
    clock: Clock,
}

impl Rig {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("app.log"), "").unwrap();
        Self {
            clock: Clock::build(directory.path()),
            directory,
        }
    }

    fn start(&self) -> Program {
        let place = self.directory.path().display();
        let config = format!(
            "data_dir: {place}/data\napi: {{ listen: [] }}\n\
             sources:\n  app: {{ type: tail, paths: {place}/app.log }}\n\
             channels:\n  kept: {{ type: disk, inputs: [app], size_max: 64MiB }}\n\
             sinks:\n  out: {{ type: file, inputs: [kept], path: \"{place}/out/%Y-%m-%d\" }}\n"
        );
        let environment = self.clock.environment();
        Program::start_where(self.directory.path(), &config, &[], &environment)
    }

    /// Writes a line, and waits until it arrives. Asserts that it is in the file of the day that is this number of seconds from now.
    fn line_arrives(&self, line: &str, seconds: i64) {
        let mut log = File::options()
            .append(true)
            .open(self.directory.path().join("app.log"))
            .unwrap();
        writeln!(log, "{line}").unwrap();
        let out = self.directory.path().join("out");
        let found = || {
            let files = fs::read_dir(&out).into_iter().flatten().flatten();
            let mut holding =
                files.filter(|file| fs::read_to_string(file.path()).unwrap().contains(line));
            holding
                .next()
                .map(|file| file.file_name().into_string().unwrap())
        };
        wait_until("the line has arrived", || found().is_some());
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs() as i64;
        let day = |seconds: i64| {
            let time = jiff::Timestamp::from_second(now + seconds).unwrap();
            time.strftime("%Y-%m-%d").to_string()
        };
        let days = [day(seconds), day(seconds - 60)];
        let found = found().unwrap();
        assert!(
            days.contains(&found),
            "{line} is in the file of {found}, and not of {days:?}"
        );
    }
}

#[test]
fn records_carry_the_time_of_their_reception_after_the_clock_jumped_ahead_and_back() {
    let rig = Rig::new();
    let program = rig.start();
    rig.line_arrives("before the jump", 0);
    rig.clock.set_offset(3 * DAY);
    wait_until("the jump ahead is logged", || {
        program.log().contains("jumped ahead")
    });
    rig.line_arrives("three days ahead", 3 * DAY);
    rig.clock.set_offset(0);
    wait_until("the jump back is logged", || {
        program.log().contains("jumped back")
    });
    rig.line_arrives("after the jump", 0);
    let log = program.log();
    let jumps: Vec<_> = log
        .lines()
        .filter(|line| line.contains("wall clock jumped"))
        .collect();
    assert_eq!(jumps.len(), 2, "{jumps:?}");
    assert!(
        jumps
            .iter()
            .all(|line| line.contains(" by 72h, to ") || line.contains(" by 72h 1s, to ")),
        "{jumps:?}"
    );
    assert_eq!(program.stop(), Some(0));
    let program = rig.start();
    rig.line_arrives("after a stop", 0);
    program.kill();
    let program = rig.start();
    rig.line_arrives("after a kill", 0);
    assert_eq!(program.stop(), Some(0));
}
