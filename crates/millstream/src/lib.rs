//! The program: command line, configuration, wiring.
//!
//! [`main`] is the whole program. Another program can pass components of other crates to it. That program then has these components in
//! addition to Millstream's.

mod api;
mod cases;
mod client;
mod clock;
mod commands;
mod config;
mod deadline;
mod described;
mod explain;
mod log;
mod masked;
mod page;
mod progress;
mod reference;
mod registry;
mod rejects;
mod reload;
mod systemd;
mod upgrade;
mod usage;
mod visible;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use millstream_pipeline::node::Component;
use millstream_processors::{compile_programs, has_compiler};
use millstream_sys::{allocator::MidPage, signals};

/// Makes large buffers begin in the middle of a page, where the kernel copies fast.
#[global_allocator]
static ALLOCATOR: MidPage = MidPage;

/// Moves event streams from where they are written to where they are kept, and loses nothing it accepted.
///
/// Start with `millstream example aggregator > millstream.yaml`. `millstream explain millstream.yaml` shows what it does, and
/// `millstream run millstream.yaml` runs it. `millstream components` lists all sources, processors, channels and sinks,
/// and the pages `config`, `tags`, `templates` and `secrets`.
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
    Reload(commands::reload::Reload),
    Top(commands::top::Top),
    Tap(commands::tap::Tap),
    Channel(commands::channel::Channel),
    Rejected(commands::rejected::Rejected),
    Explain(commands::explain::Explain),
    Test(commands::test::Test),
    Components(commands::components::Components),
    Example(commands::components::Example),
    Schema(commands::schema::Schema),
    /// Compile programs for another process of this program.
    #[command(hide = true)]
    CompilePrograms,
}

/// The name of [`Command::CompilePrograms`].
const COMPILE_PROGRAMS: &str = "compile-programs";

/// Exit codes. Those above 1 are from sysexits.h.
mod exit {
    /// The run ended, and everything was settled.
    pub const DRAINED: u8 = 0;
    /// The program could not start, gave up, or left records behind.
    pub const FAILED: u8 = 1;
    /// Wrong command line (EX_USAGE).
    pub const USAGE: u8 = 64;
    /// Wrong configuration (EX_CONFIG).
    pub const CONFIG: u8 = 78;
}

/// Runs the program with the arguments of the process. `components` are added to those of Millstream.
pub fn main(components: &'static [Component]) -> ExitCode {
    // First, because a signal before `run` has its handlers would end the process.
    signals::hold_requests();
    has_compiler(COMPILE_PROGRAMS);
    registry::add(components);
    page::fit_terminal();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(misunderstood(&error)),
    };
    if !matches!(cli.command, Command::Run(_)) {
        signals::release();
    }
    ExitCode::from(match cli.command {
        Command::Run(run) => run.execute(),
        Command::Check(check) => check.execute(),
        Command::Status(status) => status.execute(),
        Command::Reload(reload) => reload.execute(),
        Command::Top(top) => top.execute(),
        Command::Tap(tap) => tap.execute(),
        Command::Channel(channel) => channel.execute(),
        Command::Rejected(rejected) => rejected.execute(),
        Command::Explain(explain) => explain.execute(),
        Command::Test(test) => test.execute(),
        Command::Components(components) => components.execute(),
        Command::Example(example) => example.execute(),
        Command::Schema(schema) => schema.execute(),
        Command::CompilePrograms => match compile_programs() {
            Ok(()) => exit::DRAINED,
            Err(_) => exit::FAILED,
        },
    })
}

/// Prints help, or the error in the command line; returns the exit code.
fn misunderstood(error: &clap::Error) -> u8 {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match usage::hint(error, &arguments) {
        Some(hint) => {
            let said = error.to_string();
            let first = said.lines().next().unwrap_or_default();
            page::complain(&format!("{first}\n\n  {hint}"), exit::USAGE);
        }
        // A closed terminal is ignored.
        None => drop(error.print()),
    }
    match error.use_stderr() {
        true => exit::USAGE,
        false => exit::DRAINED,
    }
}

#[cfg(test)]
mod tests {
    use millstream_record::Pool;

    #[test]
    fn buffers_of_the_pool_begin_in_the_middle_of_a_page() {
        let pool = Pool::new(64 << 20);
        for bytes in [1, 64 << 10, 100_000, 1 << 20, 4 << 20, 9 << 20] {
            let buffer = pool.take(bytes);
            assert_eq!(buffer.as_ptr().addr() % 4096, 2048, "{bytes}");
        }
    }
}
