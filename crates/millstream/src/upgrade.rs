//! Replaces the running program by the one that is now in its file, without closing the addresses that sources listen at.
//!
//! The new program first checks the configuration; if that fails, nothing changes. Then this one drains as at a stop, and the new one starts in
//! the same process. Connections and datagrams that arrive in between wait in the sockets.

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use millstream_net::handover;

use crate::exit;

/// The bytes of an error of the new program that the log shows.
const SHOWN_BYTES: usize = 2000;

/// The program and its configuration.
#[derive(Clone)]
pub struct Upgrade {
    program: PathBuf,
    config: Vec<PathBuf>,
}

impl Upgrade {
    /// The program that runs now. To be called at its start: later its file may be another one.
    pub fn new(config: &[PathBuf]) -> Self {
        let first = env::args_os().next().map(PathBuf::from);
        Self {
            program: env::current_exe().ok().or(first).unwrap_or_default(),
            config: config.to_vec(),
        }
    }

    /// Lets the program in the file check the configuration. The error says what is wrong.
    pub async fn check(&self) -> Result<(), String> {
        let (program, config) = (self.program.clone(), self.config.clone());
        let checked = tokio::task::spawn_blocking(move || check(&program, &config)).await;
        checked.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Starts the program in place of this one, with the same arguments. Returns the exit code only if that fails.
    pub fn execute(&self) -> u8 {
        let (variable, sockets) = handover::hand_over();
        let arguments = env::args_os().skip(1);
        let error = Command::new(&self.program)
            .args(arguments)
            .env(variable, sockets)
            .exec();
        tracing::error!("cannot start {}: {error}", self.program.display());
        exit::FAILED
    }
}

fn check(program: &Path, config: &[PathBuf]) -> Result<(), String> {
    let name = program.display();
    let output = Command::new(program).arg("check").args(config).output();
    let output = output.map_err(|error| format!("cannot start {name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text: String = text.trim_end().chars().take(SHOWN_BYTES).collect();
    Err(format!("{name} check: {}\n{text}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_refuses_the_configuration_or_is_missing_is_an_error() {
        assert_eq!(check(Path::new("true"), &[]), Ok(()));
        let refused = check(Path::new("ls"), &[PathBuf::from("/missing.yaml")]).unwrap_err();
        assert!(refused.contains("/missing.yaml"), "{refused}");
        let missing = check(Path::new("/missing"), &[]).unwrap_err();
        assert!(missing.starts_with("cannot start /missing: "), "{missing}");
    }
}
