//! The program: command line, configuration, wiring.

mod api;
mod client;
mod clock;
mod commands;
mod config;
mod explain;
mod log;
mod page;
mod progress;
mod reference;
mod registry;
mod systemd;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Moves event streams from where they are written to where they are kept, and loses nothing it accepted.
///
/// Start with `millstream example aggregator > millstream.yaml`, look at it with `millstream explain millstream.yaml`,
/// and run it with `millstream run millstream.yaml`.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::Run),
    Check(commands::check::Check),
    Status(commands::status::Status),
    Channel(commands::channel::Channel),
    Explain(commands::explain::Explain),
    Components(commands::components::Components),
    Example(commands::components::Example),
    Schema(commands::schema::Schema),
}

/// Exit codes (design, section 7; the numbers are those of sysexits.h).
pub mod exit {
    /// Drained.
    pub const DRAINED: u8 = 0;
    /// It could not start, gave up, or had to leave something behind.
    pub const FAILED: u8 = 1;
    /// Wrong command line (EX_USAGE).
    pub const USAGE: u8 = 64;
    /// Wrong configuration (EX_CONFIG).
    pub const CONFIG: u8 = 78;
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing can be said of a terminal that is gone.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                exit::USAGE
            } else {
                exit::DRAINED
            });
        }
    };
    ExitCode::from(match cli.command {
        Command::Run(run) => run.execute(),
        Command::Check(check) => check.execute(),
        Command::Status(status) => status.execute(),
        Command::Channel(channel) => channel.execute(),
        Command::Explain(explain) => explain.execute(),
        Command::Components(components) => components.execute(),
        Command::Example(example) => example.execute(),
        Command::Schema(schema) => schema.execute(),
    })
}
