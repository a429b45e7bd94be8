//! Other programs that this program starts. Each of them starts clean: it blocks no signal, and finds no variable in its environment
//! that a service manager or a previous program meant for this process.

use std::{
    ffi::OsStr,
    fs, io,
    process::{Child, Command, Output, Stdio},
    thread,
};

use rustix::process::{Pid, WaitOptions, wait, waitpid};

use crate::signals;

/// The environment variable with the listening sockets that one program leaves open for the next one in the same process.
pub const LISTENERS: &str = "MILLSTREAM_LISTENERS";

/// The variables that speak to this process: the sockets that it inherits, and systemd's readiness and watchdog.
const OWN: [&str; 8] = [
    LISTENERS,
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "FDSTORE",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// A command without the variables that speak to this process. Variables that are added to it are kept. Start it with [`spawn`] or
/// [`output`].
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in OWN {
        command.env_remove(name);
    }
    command
}

/// Starts a program that blocks no signal, although threads of this process do.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    signals::with_none_blocked(|| command.spawn())
}

/// Runs a program to its end; returns its output.
pub fn output(command: &mut Command) -> io::Result<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(command)?.wait_with_output()
}

/// Reaps the children of the program that ran in this process before. No other code waits for them. Call this before the process
/// starts a child. A child that still runs gets a thread that waits for it.
pub fn adopt() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    let process = std::process::id();
    let path = format!("/proc/self/task/{process}/children");
    let running = fs::read_to_string(path).unwrap_or_default();
    let running = running.split_whitespace();
    let running: Vec<Pid> = running
        .filter_map(|id| Pid::from_raw(id.parse().ok()?))
        .collect();
    if running.is_empty() {
        return;
    }
    let reap = move || {
        for child in running {
            let _ = waitpid(Some(child), WaitOptions::empty());
        }
    };
    // Without the thread, the children stay in the table of processes until this process ends.
    let _ = thread::Builder::new().name("reaper".into()).spawn(reap);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_starts_without_blocked_signals_and_without_variables_of_this_process() {
        let held = signals::hold();
        let show = "env; grep SigBlk /proc/self/status";
        let shown = output(
            command("env")
                .args(["LISTEN_FDS=1", "sh", "-c", show])
                .env("NOTIFY_SOCKET", "of the configuration"),
        );
        drop(held);
        let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
        assert!(shown.contains("NOTIFY_SOCKET=of the conf"), "{shown}");
        assert!(shown.contains("SigBlk:\t0000000000000000"), "{shown}");
        let removed: Vec<_> = command("env")
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value.is_none()))
            .collect();
        assert!(removed.contains(&(LISTENERS.into(), true)));
        assert!(removed.contains(&("LISTEN_FDS".into(), true)));
    }
}
