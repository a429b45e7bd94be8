//! Lets a test set the wall clock of one program: a preloaded library adds an offset, which it reads from a file, to the time.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

/// C code that adds the seconds in the file `CLOCK_OFFSET` to the wall clock. It calls the kernel directly, because it replaces the
/// C library's `clock_gettime`.
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

/// The paths of the library and of the file with the offset.
pub struct Clock {
    library: PathBuf,
    offset: PathBuf,
}

impl Clock {
    /// Builds the library in a directory. The offset is 0 at first.
    pub fn build(directory: &Path) -> Self {
        let at = |name: &str| directory.join(name);
        fs::write(at("shim.c"), SHIM).unwrap();
        fs::write(at("offset"), 0_i64.to_ne_bytes()).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([at("shim.so"), at("shim.c")])
            .status();
        assert!(built.unwrap().success());
        Self {
            library: at("shim.so"),
            offset: at("offset"),
        }
    }

    /// The environment variables that give a program this clock.
    pub fn environment(&self) -> [(&str, &Path); 2] {
        [
            ("LD_PRELOAD", &self.library),
            ("CLOCK_OFFSET", &self.offset),
        ]
    }

    /// Sets the offset of the program's clock from the machine's clock, in seconds.
    pub fn set_offset(&self, seconds: i64) {
        let file = File::options().write(true).open(&self.offset).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}
