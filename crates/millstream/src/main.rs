//! The program `millstream`, with the components of its crates.

use std::process::ExitCode;

fn main() -> ExitCode {
    millstream::main(&[])
}
