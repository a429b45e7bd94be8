//! `millstream check`: reports all errors of a configuration together, and starts nothing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::Args;
use millstream_pipeline::plan::Plan;
use millstream_sys::disk::{Disk, HostDisk};

use crate::{config, exit, page};

/// Check a configuration: show all errors, warnings and notes, each with its file and line. Starts nothing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream check                       the configuration of /etc/millstream
  millstream check agent.yaml site.d/    files and directories, merged

  millstream check --connect agent.yaml  and do its destinations let it in?

Exit codes: 0 good, 1 a destination cannot be used (--connect), 78 wrong")]
pub struct Check {
    /// Configuration files and directories (`*.yaml` in order of name); they are merged.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    /// Test the destinations too, without sending a record: connect, perform TLS and shared-key handshakes, log in, ask
    /// HTTP servers for their OPTIONS, check whether directories can be written.
    #[arg(long)]
    connect: bool,
}

impl Check {
    /// Checks; returns the exit code.
    pub fn execute(self) -> u8 {
        match config::read(&self.config) {
            Ok(loaded) => {
                config::show(&loaded.warnings);
                config::show(&loaded.notes);
                let plan = &loaded.plan;
                let processors = match plan.processors.len() {
                    0 => String::new(),
                    some => format!(", {}", page::count(some, "processor")),
                };
                let cases = match loaded.cases.len() {
                    0 => String::new(),
                    some => format!("; `millstream test` runs {}", page::count(some, "case")),
                };
                let good = format!(
                    "the configuration is good: {}{processors}, {}, {}{cases}\n",
                    page::count(plan.sources.len(), "source"),
                    page::count(plan.channels.len(), "disk channel"),
                    page::count(plan.sinks.len(), "sink")
                );
                page::print(&good);
                let warnings = too_large_for_their_disk(plan);
                for warning in warnings.into_iter().chain(too_large_for_memory(plan)) {
                    page::complain(&format!("warning: {warning}"), exit::DRAINED);
                }
                match self.connect {
                    true => try_sinks(plan),
                    false => exit::DRAINED,
                }
            }
            Err(problems) => config::complain(&problems),
        }
    }
}

/// The number of messages of a source's largest size for which the memory for input should suffice.
const LARGE_MESSAGES: usize = 4;

/// Warns if [`LARGE_MESSAGES`] messages of the largest size that a source accepts do not fit into the memory for input.
fn too_large_for_memory(plan: &Plan) -> impl Iterator<Item = String> {
    let memory = plan.settings.memory_max;
    plan.sources.iter().filter_map(move |source| {
        let largest = source.source.message_bytes_max()?;
        (largest.saturating_mul(LARGE_MESSAGES) > memory / 4 * 3).then(|| {
            format!(
                "the source {} takes messages of up to {} (limits.frame), and what comes in may take three quarters of \
                 memory_max, {}: {LARGE_MESSAGES} such messages do not fit at a time, so senders wait for each other; lower \
                 `limits.frame` or raise `memory_max`",
                source.name,
                page::bytes(largest as u64),
                page::bytes(memory as u64),
            )
        })
    })
}

/// Warns if the channels together may take more space than their file system has.
fn too_large_for_their_disk(plan: &Plan) -> Vec<String> {
    let mut disks: BTreeMap<u64, (&Path, u64, Vec<&str>)> = BTreeMap::new();
    let paths: Vec<PathBuf> = plan
        .channels
        .iter()
        .map(|channel| {
            let directory = plan.settings.data_dir.join("channels").join(&*channel.name);
            // If the directory is missing, a start creates it on the file system of the nearest ancestor that exists.
            let above = directory.ancestors().find(|path| path.exists());
            above
                .filter(|path| !path.as_os_str().is_empty())
                .unwrap_or(Path::new("."))
                .to_owned()
        })
        .collect();
    for (channel, path) in plan.channels.iter().zip(&paths) {
        let Ok(found) = HostDisk.metadata(path) else {
            continue;
        };
        let disk = disks.entry(found.device).or_insert((path, 0, Vec::new()));
        disk.1 = disk.1.saturating_add(channel.config.disk_bytes());
        disk.2.push(&channel.name);
    }
    let too_large = disks.into_values().filter_map(|(path, wanted, names)| {
        let total = HostDisk.space(path).ok()?.total;
        (wanted > total).then(|| {
            let (names, path) = (page::list(&names), path.display());
            let (wanted, total) = (page::bytes(wanted), page::bytes(total));
            format!(
                "the disk channels {names} may take {wanted} (size_max), and the file system of {path} has {total}: they fill it \
                 before they are full; lower `size_max`, or set `data_dir` to a larger file system"
            )
        })
    });
    too_large.collect()
}

/// Tests every destination; returns the exit code.
fn try_sinks(plan: &Plan) -> u8 {
    let mut code = exit::DRAINED;
    for sink in &plan.sinks {
        let (word, text) = match sink.sink.probe() {
            None => continue,
            Some(Ok(text)) => ("good", text),
            Some(Err(failure)) => {
                code = exit::FAILED;
                ("BAD", failure.message)
            }
        };
        page::print(&page::paragraph(&format!("{} {word}: ", sink.name), &text));
    }
    code
}
