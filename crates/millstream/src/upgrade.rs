//! Replaces the running program by the one that is now in its file. The listening sockets of sources stay open.
//!
//! First the new program checks the configuration. If the check fails or takes too long, nothing changes. If it succeeds, the running
//! program drains as at a stop, and the new program starts in the same process. Connections and datagrams that arrive meanwhile wait
//! in the sockets.

use std::{
    env, io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use millstream_net::handover;
use millstream_sys::child;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncReadExt, copy, sink},
    net::unix::pipe,
    time::{sleep, timeout},
};

use crate::exit;

/// The maximum number of bytes of the new program's standard error that the log shows.
const SHOWN_BYTES: u64 = 2000;
/// The longest time that the new program may take to check the configuration.
const CHECK_MAX: Duration = Duration::from_mins(1);
/// The interval at which the new program is polled for its end.
const STEP: Duration = Duration::from_millis(20);

/// The program and its configuration.
#[derive(Clone)]
pub struct Upgrade {
    program: PathBuf,
    config: Vec<PathBuf>,
}

impl Upgrade {
    /// Finds the file of the running program. Called at the start, because the file may be replaced later.
    pub fn new(config: &[PathBuf]) -> Self {
        let first = env::args_os().next().map(PathBuf::from);
        Self {
            program: env::current_exe().ok().or(first).unwrap_or_default(),
            config: config.to_vec(),
        }
    }

    /// Runs the new program to check the configuration, for at most a minute. On failure returns the reason. Dropping the future kills
    /// the new program.
    pub async fn check(&self) -> Result<(), String> {
        check(&self.program, &self.config, CHECK_MAX).await
    }

    /// Replaces this program by the new one, with the same arguments. Returns the exit code only if that fails.
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

async fn check(program: &Path, config: &[PathBuf], max: Duration) -> Result<(), String> {
    let name = program.display();
    let (mut checker, errors) =
        Checker::start(program, config).map_err(|error| format!("cannot start {name}: {error}"))?;
    let ended = timeout(max, checker.ended(errors)).await.map_err(|_| {
        let seconds = max.as_secs();
        format!("{name} check: not done after {seconds} s; it is killed")
    })?;
    let (status, text) = ended.map_err(|error| format!("{name} check: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{name} check: {status}\n{}", text.trim_end())),
    }
}

/// The new program while it checks the configuration; `None` once it has ended. Dropping this value kills the program.
struct Checker(Option<Child>);

impl Checker {
    /// Starts the check. Also returns the program's standard error.
    fn start(program: &Path, config: &[PathBuf]) -> io::Result<(Self, ChildStderr)> {
        let mut command = child::command(program);
        command
            .arg("check")
            .args(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = child::spawn(&mut command)?;
        let errors = child.stderr.take();
        let checker = Self(Some(child));
        let errors = errors.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok((checker, errors))
    }

    /// Waits for the end of the program. Returns its exit status and the beginning of its standard error.
    async fn ended(&mut self, errors: ChildStderr) -> io::Result<(ExitStatus, String)> {
        let mut errors = pipe::Receiver::from_owned_fd(OwnedFd::from(errors))?;
        let mut text = Vec::new();
        let mut shown = (&mut errors).take(SHOWN_BYTES);
        shown.read_to_end(&mut text).await?;
        copy(&mut errors, &mut sink()).await?;
        while let Some(child) = &mut self.0 {
            if let Some(status) = child.try_wait()? {
                self.0 = None;
                return Ok((status, String::from_utf8_lossy(&text).into_owned()));
            }
            sleep(STEP).await;
        }
        Err(io::ErrorKind::NotFound.into())
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // The program is killed first and reaped afterwards: no other process can have its id before it is reaped.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            // A program that hangs in the kernel does not end immediately, so a thread waits for it.
            let reaper = thread::Builder::new().name("check-reaper".into());
            let _ = reaper.spawn(move || child.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Instant};

    use super::*;

    /// A deadline that no test reaches.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_program_that_refuses_the_configuration_or_is_missing_is_an_error() {
        assert_eq!(check(Path::new("true"), &[], LONG).await, Ok(()));
        let missing = [PathBuf::from("/missing.yaml")];
        let refused = check(Path::new("ls"), &missing, LONG).await.unwrap_err();
        assert!(refused.contains("/missing.yaml"), "{refused}");
        let missing = check(Path::new("/missing"), &[], LONG).await.unwrap_err();
        assert!(missing.starts_with("cannot start /missing: "), "{missing}");
    }

    /// A program that never ends, and its arguments. No other process has the last argument, so this argument identifies the process.
    fn hanging(directory: &Path) -> (&'static Path, Vec<PathBuf>) {
        let awaited = directory.join("awaited");
        let options = ["--follow=name", "--retry"].map(PathBuf::from);
        (
            Path::new("tail"),
            options.into_iter().chain([awaited]).collect(),
        )
    }

    /// Whether a process with this argument runs.
    fn runs(argument: &Path) -> bool {
        let argument = argument.as_os_str().as_encoded_bytes();
        fs::read_dir("/proc").unwrap().any(|entry| {
            let line = fs::read(entry.unwrap().path().join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|it| it == argument)
        })
    }

    async fn ends(argument: &Path) {
        let start = Instant::now();
        while runs(argument) {
            assert!(start.elapsed() < LONG, "it still runs");
            sleep(STEP).await;
        }
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let (program, arguments) = hanging(directory.path());
        let max = Duration::from_secs(1);
        let why = check(program, &arguments, max).await.unwrap_err();
        assert_eq!(why, "tail check: not done after 1 s; it is killed");
        ends(&arguments[2]).await;
    }

    #[tokio::test]
    async fn a_check_that_is_dropped_kills_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let (program, arguments) = hanging(directory.path());
        let started = async {
            while !runs(&arguments[2]) {
                sleep(STEP).await;
            }
        };
        tokio::select! {
            ended = check(program, &arguments, LONG) => panic!("it ended: {ended:?}"),
            () = started => {}
        }
        ends(&arguments[2]).await;
    }
}
