//! Drives the built program: writes a configuration, starts the program, waits until it is ready, stops or kills it.

#![allow(
    dead_code,
    unused_imports,
    clippy::print_stderr,
    reason = "each test uses what it needs of it; one that fails shows the program's log"
)]

pub mod clock;
pub mod cuts;
pub mod disk;
pub mod prober;
mod turn;
pub mod victim;

use std::{
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

pub use millstream_testkit::server::free_port;

/// The timeout of every wait. It is generous, because machines differ.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The number of lines of the program's log that a failed test shows.
const LAST_LINES: usize = 40;

/// Waits until `done` returns true.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        sleep(Duration::from_millis(20));
    }
}

/// The root of the source tree.
pub fn tree() -> PathBuf {
    // Read at run time, because a shared build cache may contain a test that was compiled in another clone.
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap())
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The path of millbench, which is built beside the program.
pub fn millbench() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_millstream")).with_file_name("millbench");
    assert!(
        path.exists(),
        "{} is missing: build the workspace (`cargo test --workspace`)",
        path.display()
    );
    path
}

/// A running `millstream run`. Killed when dropped.
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts the program with a configuration. Appends its log to the file `log` in `directory`.
    pub fn start(directory: &Path, config: &str) -> Self {
        Self::start_with(directory, config, &[])
    }

    /// Like `start`, with additional command-line arguments.
    pub fn start_with(directory: &Path, config: &str, arguments: &[&str]) -> Self {
        Self::start_where(directory, config, arguments, &[])
    }

    /// Like `start_with`, with environment variables.
    pub fn start_where(
        directory: &Path,
        config: &str,
        arguments: &[&str],
        environment: &[(&str, &Path)],
    ) -> Self {
        Self::start_by(
            Command::new(env!("CARGO_BIN_EXE_millstream")).envs(environment.iter().copied()),
            directory,
            config,
            arguments,
        )
    }

    /// Like `start`, but runs `shell` with the program's path as its last argument. The shell changes something (a limit, the umask)
    /// before it executes the program.
    pub fn start_after(directory: &Path, config: &str, shell: &[&str]) -> Self {
        let (first, rest) = shell.split_first().unwrap();
        let mut command = Command::new(first);
        command.args(rest).arg(env!("CARGO_BIN_EXE_millstream"));
        Self::start_by(&mut command, directory, config, &[])
    }

    /// Like `start`, with another binary.
    pub fn start_program(program: &Path, directory: &Path, config: &str) -> Self {
        Self::start_by(&mut Command::new(program), directory, config, &[])
    }

    fn start_by(command: &mut Command, directory: &Path, config: &str, arguments: &[&str]) -> Self {
        turn::wait();
        let path = directory.join("millstream.yaml");
        std::fs::write(&path, config).unwrap();
        let log = directory.join("log");
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = command
            .arg("run")
            .args(arguments)
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// Waits until the program accepts connections on a loopback port.
    pub fn listens(mut self, port: u16) -> Self {
        wait_until("it listens", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("millstream ended with {status}:\n{}", self.log());
            }
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        self
    }

    /// The program's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The program's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program exits. Returns the exit code, or `None` if a signal ended it.
    pub fn ended(mut self) -> Option<i32> {
        let mut code = None;
        wait_until("it ends", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        code.and_then(|status| status.code())
    }

    /// Sends SIGTERM and waits until the program has drained and exited. Returns the exit code, or `None` if a signal ended it.
    pub fn stop(self) -> Option<i32> {
        self.signal("TERM");
        self.ended()
    }

    /// Sends a signal.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([format!("-{name}"), self.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            eprintln!("the end of {}:\n{}", self.log.display(), last.join("\n"));
        }
    }
}
