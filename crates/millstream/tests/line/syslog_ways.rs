//! For the tests of the source `syslog`: a Millstream with several such sources, each with a file for its records.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::program::Program;

/// Messages per run.
pub const MESSAGES: usize = 500;

pub fn text(n: usize) -> String {
    format!("message {n} of \"ünïcödé\" 漢字 [x=1] <13> a\\b: 100%")
}

/// A source and the file for its records.
pub struct Way {
    pub name: &'static str,
    pub options: String,
}

pub fn way(name: &'static str, listen: String, more: &str) -> Way {
    let options = format!("type: syslog, listen: \"{listen}\"{more}");
    Way { name, options }
}

/// Starts Millstream with these sources, and waits until it listens on `port`.
pub fn start(directory: &Path, ways: &[Way], port: u16) -> Program {
    Program::start(directory, &configuration(directory, ways)).listens(port)
}

/// A configuration with these sources and a file for each. It ends with the list of sinks, so more sinks can be appended.
pub fn configuration(directory: &Path, ways: &[Way]) -> String {
    let place = directory.display();
    let mut config =
        format!("data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\nsources:\n");
    for Way { name, options } in ways {
        config += &format!("  {name}: {{ {options} }}\n");
    }
    config += "sinks:\n";
    for Way { name, .. } in ways {
        config += &format!(
            "  to_{name}: {{ type: file, inputs: [{name}], path: \"{place}/out/{name}.log\" }}\n"
        );
    }
    config
}

fn output(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("out/{name}.log"))
}

/// Waits until the file of the source `name` holds `count` records, and returns all its records.
pub fn records(directory: &Path, program: &Program, name: &str, count: usize) -> Vec<Value> {
    let path = output(directory, name);
    let text = || fs::read_to_string(&path).unwrap_or_default();
    let start = Instant::now();
    while text().matches('\n').count() < count {
        assert!(
            start.elapsed().as_secs() < 60,
            "{name}: {} of {count} records came; the log:\n{}",
            text().matches('\n').count(),
            program.log()
        );
        sleep(Duration::from_millis(20));
    }
    let text = text();
    // The last line may still be incomplete.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
