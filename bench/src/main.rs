//! `millbench`: load, verification and measurement for Millstream and similar programs.
//!
//! The verifier and the protocol code here share no code with Millstream's crates. Otherwise an error in the shared code could
//! hide a defect of Millstream. Each command has a module.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program talks to its user there"
)]

mod flow;
mod frames;
mod generate;
mod msgpack;
mod record;
mod reference;
mod run;
mod tls;
mod units;
mod verify;

use std::{fmt, io, process::ExitCode};

use clap::{Parser, Subcommand};

/// The exit code of a wrong command line, as in `sysexits.h`.
const EXIT_USAGE: u8 = 64;

/// Load, verification and measurement: generate numbered records, verify that they arrived, compare speeds.
#[derive(Parser)]
#[command(version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Generate(generate::Options),
    Verify(verify::Options),
    Flow(flow::Options),
    Run(run::Options),
    /// Lists the scenarios of `run` and describes what each measures
    List,
    Reader(reference::ReaderOptions),
    Relay(reference::RelayOptions),
    Writer(reference::WriterOptions),
}

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The user has to change the command line, or to install something that the command needs.
    Usage(String),
    /// Any other failure; the text names what failed.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(what) | Self::Other(what) => f.write_str(what),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Other(error.to_string())
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { EXIT_USAGE } else { 0 };
            // If the message cannot be printed, nothing more can be done.
            let _ = error.print();
            return code.into();
        }
    };
    let result = match &cli.command {
        Command::Generate(options) => generate::run(options),
        Command::Verify(options) => verify::run(options),
        Command::Flow(options) => flow::run(options),
        Command::Run(options) => run::run(options),
        Command::List => Ok(run::list()),
        Command::Reader(options) => reference::read(options),
        Command::Relay(options) => reference::relay(options),
        Command::Writer(options) => reference::write(options),
    };
    result.unwrap_or_else(|failure| {
        eprintln!("millbench: {failure}");
        match failure {
            Failure::Usage(_) => EXIT_USAGE.into(),
            Failure::Other(_) => ExitCode::FAILURE,
        }
    })
}
