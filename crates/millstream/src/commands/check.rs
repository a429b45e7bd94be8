//! `millstream check`: says what is wrong with a configuration, all at once, and starts nothing.

use std::path::PathBuf;

use clap::Args;
use millstream_pipeline::plan::Plan;

use crate::{config, exit, page};

/// Check a configuration: every error and warning at once, with its place. Starts nothing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream check                       the configuration of /etc/millstream
  millstream check agent.yaml site.d/    files and folders, merged

  millstream check --connect agent.yaml  and do its destinations let it in?

Exit codes: 0 good, 1 a destination cannot be used (--connect), 78 wrong")]
pub struct Check {
    /// Configuration files and folders (`*.yaml` in order of name); they are merged.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    /// Try the destinations too, without sending a record: connect, do the handshakes of TLS and of shared keys, log in, ask
    /// HTTP servers for their OPTIONS, see whether directories can be written.
    #[arg(long)]
    connect: bool,
}

impl Check {
    /// Checks; returns the exit code.
    pub fn execute(self) -> u8 {
        match config::read(&self.config) {
            Ok(loaded) => {
                config::show(&loaded.warnings);
                let plan = &loaded.plan;
                let good = format!(
                    "the configuration is good: {}, {}, {}\n",
                    page::count(plan.sources.len(), "source"),
                    page::count(plan.channels.len(), "disk channel"),
                    page::count(plan.sinks.len(), "sink")
                );
                page::print(&good);
                match self.connect {
                    true => try_sinks(plan),
                    false => exit::DRAINED,
                }
            }
            Err(problems) => config::complain(&problems),
        }
    }
}

/// Tries every destination that can be tried; the exit code.
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
