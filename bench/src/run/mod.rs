//! `millbench run`: scenarios that start the built `millstream`, load it, and measure its resource usage. In the same run they measure
//! references: programs that only move bytes, or other programs that do the same task.
//!
//! A scenario is a directory of `bench/scenarios/`, with a README that describes what is measured, and configurations that any user
//! could run. CPU time, context switches, page faults and memory are those of the program under test alone, read from /proc. The
//! program and its references are measured alternately, so that all meet the same conditions. Results are medians. Each output
//! that can be verified is verified.

mod forward_receive;
mod forward_relay;
mod forward_to_kafka;
mod fuse;
mod hdfs;
mod idle;
mod kafka;
mod machine;
pub mod process;
mod processors;
mod report;
mod scenario;
mod server;
mod sol;
mod syslog_receive;
mod syslog_to_hdfs;
mod tail_to_file;
mod three_senders;
mod watched;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use crate::Failure;
use machine::Machine;
use report::Report;
use scenario::{Row, Run};

/// A scenario.
struct Scenario {
    name: &'static str,
    /// The description in Markdown; the first line is its title.
    readme: &'static str,
    run: fn(&Bench) -> Result<Vec<Row>, Failure>,
}

const SCENARIOS: [Scenario; 13] = [
    Scenario {
        name: "forward_receive",
        readme: include_str!("../../scenarios/forward_receive/README.md"),
        run: forward_receive::run,
    },
    Scenario {
        name: "forward_relay",
        readme: include_str!("../../scenarios/forward_relay/README.md"),
        run: forward_relay::run,
    },
    Scenario {
        name: "forward_to_kafka",
        readme: include_str!("../../scenarios/forward_to_kafka/README.md"),
        run: forward_to_kafka::run,
    },
    Scenario {
        name: "tail_to_file",
        readme: include_str!("../../scenarios/tail_to_file/README.md"),
        run: tail_to_file::run,
    },
    Scenario {
        name: "syslog_receive",
        readme: include_str!("../../scenarios/syslog_receive/README.md"),
        run: syslog_receive::run,
    },
    Scenario {
        name: "syslog_to_hdfs",
        readme: include_str!("../../scenarios/syslog_to_hdfs/README.md"),
        run: syslog_to_hdfs::run,
    },
    Scenario {
        name: "fuse_to_file",
        readme: include_str!("../../scenarios/fuse_to_file/README.md"),
        run: fuse::to_file,
    },
    Scenario {
        name: "fuse_forward",
        readme: include_str!("../../scenarios/fuse_forward/README.md"),
        run: fuse::forward,
    },
    Scenario {
        name: "three_senders",
        readme: include_str!("../../scenarios/three_senders/README.md"),
        run: three_senders::run,
    },
    Scenario {
        name: "processors",
        readme: include_str!("../../scenarios/processors/README.md"),
        run: processors::run,
    },
    Scenario {
        name: "sol",
        readme: include_str!("../../scenarios/sol/README.md"),
        run: sol::run,
    },
    Scenario {
        name: "idle",
        readme: include_str!("../../scenarios/idle/README.md"),
        run: idle::run,
    },
    Scenario {
        name: "watched",
        readme: include_str!("../../scenarios/watched/README.md"),
        run: watched::run,
    },
];

/// Runs a scenario: starts millstream, loads it, and measures it beside reference programs.
///
/// Examples:
///   millbench run forward_receive
///   millbench run forward_receive --only discard --runs 5 --seconds 3
///   millbench run tail_to_file --millstream target/release/millstream --no-save
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct Options {
    /// The scenario; `millbench list` describes all
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// The program under test [default: millstream in the directory of this millbench]
    #[arg(long, value_name = "PATH")]
    millstream: Option<PathBuf>,
    /// Measure only rows whose name contains this text, and the rows they are compared with (may be given several times)
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Number of measurements of each row; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Duration of the load in each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Number of lines, of 100 bytes each, in the file that is tailed
    #[arg(long, value_name = "N", default_value = "40M", value_parser = crate::units::count)]
    lines: u64,
    /// A directory for data; it must be on the disk to measure, not in memory [default: the system's directory for temporary
    /// files]
    #[arg(long, value_name = "PATH")]
    work: Option<PathBuf>,
    /// The directory for results; the JSON is written to its subdirectory <date>-<machine>
    #[arg(long, value_name = "PATH", default_value = "bench/results")]
    results: PathBuf,
    /// Do not save the JSON
    #[arg(long)]
    no_save: bool,
}

/// The environment of a scenario.
#[derive(Clone)]
struct Bench {
    millstream: PathBuf,
    millbench: PathBuf,
    /// The directory for the scenario's data. It is empty at the start, and removed at the end.
    work: PathBuf,
    only: Vec<String>,
    runs: usize,
    seconds: f64,
    lines: u64,
}

impl Bench {
    /// Removes the rows that `--only` does not select. A reference stays if a remaining row is compared with it.
    fn choose(&self, rows: &mut Vec<Row>) {
        let named = |row: &Row| {
            self.only.is_empty() || self.only.iter().any(|word| row.name.contains(word))
        };
        let wanted: Vec<String> = rows
            .iter()
            .filter(|row| named(row))
            .flat_map(|row| &row.goals)
            .filter_map(|goal| match goal {
                scenario::Goal::Share(_, name, _) => Some(name.clone()),
                _ => None,
            })
            .collect();
        rows.retain(|row| named(row) || wanted.contains(&row.name));
    }

    /// Measures every row once in each round. `measure` measures one row.
    fn rounds<R: IntoIterator<Item = Run>>(
        &self,
        mut rows: Vec<Row>,
        mut measure: impl FnMut(&Row) -> Result<R, Failure>,
    ) -> Result<Vec<Row>, Failure> {
        for round in 1..=self.runs {
            for row in rows.iter_mut().filter(|row| row.missing.is_none()) {
                eprintln!("{round}/{}: {}", self.runs, row.name);
                row.runs.extend(measure(row)?);
            }
        }
        Ok(rows)
    }
}

/// Prints the scenarios and their descriptions.
pub fn list() -> ExitCode {
    for scenario in &SCENARIOS {
        let mut lines = scenario
            .readme
            .lines()
            .skip(1)
            .skip_while(|line| line.is_empty());
        println!("{:<18}{}", scenario.name, lines.next().unwrap_or_default());
        lines
            .take_while(|line| !line.is_empty())
            .for_each(|line| println!("{:<18}{line}", ""));
    }
    ExitCode::SUCCESS
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let found = SCENARIOS
        .iter()
        .find(|scenario| scenario.name == options.scenario);
    let scenario = found.ok_or_else(|| {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        Failure::Usage(format!(
            "no scenario `{}`; there are {}",
            options.scenario,
            names.join(", ")
        ))
    })?;
    if options.runs == 0 || options.seconds.is_nan() || options.seconds <= 0.0 || options.lines == 0
    {
        return Err(Failure::Usage(
            "--runs, --seconds and --lines must be more than 0".into(),
        ));
    }
    let bench = bench(options)?;
    let machine = Machine::this();
    let result = (scenario.run)(&bench);
    fs::remove_dir_all(&bench.work)?;
    let rows = result?;
    let report = Report {
        scenario: scenario.name,
        date: machine::today(),
        machine,
        seconds: options.seconds,
        runs: options.runs,
        rows,
    };
    print!("{}", report.text());
    if !options.no_save {
        let path = report.save(&options.results)?;
        println!("saved in {}", path.display());
    }
    Ok(match report.right() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn bench(options: &Options) -> Result<Bench, Failure> {
    let millbench = std::env::current_exe()?;
    let beside = || millbench.with_file_name("millstream");
    let millstream = options.millstream.clone().unwrap_or_else(beside);
    if !millstream.is_file() {
        return Err(Failure::Usage(format!(
            "{} is not there; build it with `cargo build --release`, or name it with --millstream",
            millstream.display()
        )));
    }
    let parent = options.work.clone().unwrap_or_else(std::env::temp_dir);
    let work = parent.join(format!("millbench-{}", std::process::id()));
    fs::create_dir_all(&work)
        .map_err(|error| Failure::Other(format!("{}: {error}", work.display())))?;
    warn_of_memory(&work);
    Ok(Bench {
        millstream,
        millbench,
        work,
        only: options.only.clone(),
        runs: options.runs,
        seconds: options.seconds,
        lines: options.lines,
    })
}

/// Warns if the work directory is in memory, because results would be better than on any disk.
fn warn_of_memory(work: &Path) {
    /// `f_type` of tmpfs in `statfs(2)`.
    const TMPFS: u64 = 0x0102_1994;
    if rustix::fs::statfs(work).is_ok_and(|found| found.f_type as u64 == TMPFS) {
        eprintln!(
            "millbench: {} is in memory, so the figures of files and disk channels will be too good; name a directory on a disk with --work",
            work.display()
        );
    }
}
