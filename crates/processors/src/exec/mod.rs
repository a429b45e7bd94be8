//! The processor `exec`: gives records to an external program and takes its answers.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! Each task (the processor in one chain) runs its own process of the program. No matter how the program behaves, no record is
//! lost: each record is answered, or rejected with a reason, or the task fails and its records are processed again. A task waits
//! for its program, so the task must not run on a data thread ([`Processor::blocking`]).

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod program;
mod protocol;
mod staged;
mod task;
mod window;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use millstream_config::{Node, Period, Size};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    processor::{Processor, Task},
    report::Reporter,
};
use schemars::JsonSchema;
use serde::Deserialize;

pub use self::program::kill_all;
use self::{program::Launch, protocol::Format, task::Executing};

/// The entry in the list of processors.
pub const COMPONENT: Component = Component {
    name: "exec",
    summary: "Gives records to an external program and takes its answers.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Processor(build),
};

const TIMEOUT: Period = Period::secs(10);
const ANSWERS_MAX: Size = Size::mib(128);

/// The options of `exec`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Program and its arguments, such as `[python3, /etc/millstream/enrich.py]`. The program is started without a shell; to use a
    /// shell, write `[sh, -c, "..."]`.
    command: Vec<String>,
    /// Format of records and answers: `json` (one line each) or `msgpack` (one MessagePack value each). Default: `json`.
    #[serde(default)]
    format: Format,
    /// Longest wait for the next answer. A program that needs longer is killed. Default: 10s.
    #[serde(default = "timeout")]
    timeout: Period,
    /// Limit for the answers to the records of one batch together. Default: 128MiB.
    #[serde(default = "answers_max")]
    answers_max: Size,
    /// Working directory of the program. Default: that of Millstream.
    directory: Option<PathBuf>,
    /// Environment variables of the program, in addition to those of Millstream: `{ NAME: text }`.
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// Whether the program always gives the same answer to the same record. `true` silences the warnings of `check` about programs
    /// that may answer differently. Default: `false`.
    #[serde(default)]
    repeatable: bool,
}

fn timeout() -> Period {
    TIMEOUT
}

fn answers_max() -> Size {
    ANSWERS_MAX
}

/// State that all tasks of a processor share.
struct Shared {
    launch: Launch,
    format: Format,
    timeout: Period,
    answers_max: Size,
    reporter: Reporter,
    /// Whether any process of the program has given a usable answer since the processor was built.
    is_proven: AtomicBool,
    /// Whether a reload has replaced or removed the processor.
    is_retired: AtomicBool,
}

struct Exec {
    shared: Arc<Shared>,
    is_repeatable: bool,
}

fn build(name: &str, options: &Node) -> Checked<Arc<dyn Processor>> {
    let config: Config = options.read()?;
    let mut problems = Vec::new();
    if config
        .command
        .first()
        .is_none_or(|program| program.is_empty())
    {
        let problem = options.problem_at("command", "it names no program");
        problems.push(problem.help("such as `[python3, /etc/millstream/enrich.py]`"));
    }
    if config.timeout.is_zero() {
        problems.push(options.problem_at("timeout", "it must be longer than 0"));
    }
    if config.answers_max.is_zero() {
        problems.push(options.problem_at("answers_max", "it must be larger than 0"));
    }
    for name in config.environment.keys() {
        if name.is_empty() || name.contains(['=', '\0']) {
            let message = format!("`{name}` is no name of a variable");
            problems.push(options.problem_at("environment", message));
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Arc::new(Exec {
        shared: Arc::new(Shared {
            launch: Launch {
                command: config.command,
                directory: config.directory,
                environment: config.environment,
            },
            format: config.format,
            timeout: config.timeout,
            answers_max: config.answers_max,
            reporter: Reporter::new(name),
            is_proven: AtomicBool::new(false),
            is_retired: AtomicBool::new(false),
        }),
        is_repeatable: config.repeatable,
    }))
}

impl Processor for Exec {
    fn repeatable(&self) -> Result<(), String> {
        if self.is_repeatable {
            return Ok(());
        }
        Err("its program may answer differently when it gets a record again (`repeatable: true` says that it does not)".to_owned())
    }

    fn blocking(&self) -> bool {
        true
    }

    fn retire(&self) {
        self.shared.is_retired.store(true, Ordering::Relaxed);
    }

    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Executing::new(self.shared.clone())?))
    }
}

#[cfg(test)]
mod tests;
