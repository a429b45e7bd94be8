//! Fuzzes the loading of a configuration with any bytes as the file. Loading terminates, a failure reports at least one error, and all
//! problems can be rendered.

#![no_main]

use std::{env, fs, path::PathBuf, process, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use millstream_config::{Environment, load};

/// The configuration file. It is in `/dev/shm` if that exists, so that the target does not write to a disk.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let directory = if memory.is_dir() { memory } else { env::temp_dir() };
    directory.join(format!("millstream-fuzz-{}.yaml", process::id()))
});

fuzz_target!(|data: &[u8]| {
    fs::write(&*FILE, data).expect("a file can be written");
    let environment = Environment::empty().with("HOST", "web-1").with("EMPTY", "");
    let problems = match load(&[FILE.clone()], &environment) {
        Ok(loaded) => {
            let mut problems = loaded.problems;
            problems.extend(loaded.tree.sections().problems.0);
            problems
        }
        Err(problems) => {
            assert!(problems.has_errors(), "loading failed without an error");
            problems
        }
    };
    let _ = problems.render(false);
});
