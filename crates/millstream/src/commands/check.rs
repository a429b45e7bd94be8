//! `millstream check`: says what is wrong with a configuration, all at once, and starts nothing.

use std::{io::Write, path::PathBuf};

use clap::Args;

use crate::{config, exit};

/// Check a configuration: every error and warning at once, with its place. Starts nothing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream check                       the configuration of /etc/millstream
  millstream check agent.yaml site.d/    files and folders, merged

Exit codes: 0 good, 78 wrong")]
pub struct Check {
    /// Configuration files and folders (`*.yaml` in order of name); they are merged.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
}

impl Check {
    /// Checks; returns the exit code.
    pub fn execute(self) -> u8 {
        match config::read(&self.config) {
            Ok(loaded) => {
                config::show(&loaded.warnings);
                let plan = &loaded.plan;
                let counts = (plan.sources.len(), plan.channels.len(), plan.sinks.len());
                let _ = writeln!(
                    std::io::stdout(),
                    "the configuration is good: {} sources, {} disk channels, {} sinks",
                    counts.0,
                    counts.1,
                    counts.2
                );
                exit::DRAINED
            }
            Err(problems) => config::complain(&problems),
        }
    }
}
