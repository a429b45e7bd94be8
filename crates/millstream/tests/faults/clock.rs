//! The wall clock jumps three days ahead and back under a running Millstream: a tailed file behind a disk channel, written to one file per day.
//!
//! Only the program's clock jumps: a preloaded library adds an offset from a file to it.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::program::{Program, wait_until};

const DAY: i64 = 24 * 3600;

/// Adds the seconds in the file `CLOCK_OFFSET` to the wall clock. It uses the system call, because it replaces the C function.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *offset;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && clock == CLOCK_REALTIME && offset) time->tv_sec += *offset;
    return failed;
}
"#;

/// A program whose clock the test sets.
struct Rig {
    directory: tempfile::TempDir,
    library: PathBuf,
    offset: PathBuf,
}

impl Rig {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("shim.c"), SHIM).unwrap();
        fs::write(at("offset"), 0_i64.to_ne_bytes()).unwrap();
        fs::write(at("app.log"), "").unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([at("shim.so"), at("shim.c")])
            .status();
        assert!(built.unwrap().success());
        let (library, offset) = (at("shim.so"), at("offset"));
        Self {
            directory,
            library,
            offset,
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
        let environment: [(&str, &Path); 2] = [
            ("LD_PRELOAD", &self.library),
            ("CLOCK_OFFSET", &self.offset),
        ];
        Program::start_where(self.directory.path(), &config, &[], &environment)
    }

    /// Sets the offset of the program's clock from the machine's, in seconds.
    fn set_offset(&self, seconds: i64) {
        let file = File::options().write(true).open(&self.offset).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// Writes a line, and waits until it is in the file of the day that is this many seconds from now.
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
    rig.set_offset(3 * DAY);
    wait_until("the jump ahead is logged", || {
        program.log().contains("jumped ahead")
    });
    rig.line_arrives("three days ahead", 3 * DAY);
    rig.set_offset(0);
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
