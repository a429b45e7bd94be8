//! Real third-party servers for tests: started on free ports, killed, restarted.
//!
//! [`Server`] is any of them: a command, a log, and a port that accepts connections when the server is ready. The modules below
//! wrap specific servers. A server is killed when its value is dropped. If the test fails, its log is kept.

pub mod kafka;

pub mod hdfs;
pub mod network;
pub mod versitygw;

use std::{
    env, fs, io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use tokio::net::TcpSocket;

/// The timeout for starting and stopping a server. Generous, because machines differ.
const PATIENCE: Duration = Duration::from_secs(120);
/// The interval between two checks.
const LOOK: Duration = Duration::from_millis(20);

/// A server that runs, or that was killed and can be restarted.
pub struct Server {
    name: String,
    command: Box<dyn Fn() -> Command + Send>,
    address: SocketAddr,
    log: PathBuf,
    child: Option<Child>,
}

impl Server {
    /// Starts the command that `command` returns, with its output in `log`, and waits until `port` accepts connections.
    ///
    /// # Panics
    /// If it does not start in time; prints its log.
    pub fn start(
        name: &str,
        log: PathBuf,
        port: u16,
        command: impl Fn() -> Command + Send + 'static,
    ) -> Self {
        let address = (Ipv4Addr::LOCALHOST, port).into();
        Self::start_at(name, log, address, command)
    }

    /// Like `start`, with an address that need not be on the loopback interface.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start_at(
        name: &str,
        log: PathBuf,
        address: SocketAddr,
        command: impl Fn() -> Command + Send + 'static,
    ) -> Self {
        let mut server = Self {
            name: name.to_owned(),
            command: Box::new(command),
            address,
            log,
            child: None,
        };
        server.restart();
        server.wait_ready();
        server
    }

    /// Starts the server unless it runs. Does not wait until it is ready.
    pub fn restart(&mut self) {
        if self.child.is_some() {
            return;
        }
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log);
        let log = log.unwrap_or_else(|error| panic!("{}: {error}", self.log.display()));
        let errors = log.try_clone().unwrap_or_else(|error| panic!("{error}"));
        let mut command = (self.command)();
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn();
        self.child =
            Some(child.unwrap_or_else(|error| panic!("cannot start {}: {error}", self.name)));
    }

    /// Waits until the port of the server accepts connections.
    ///
    /// # Panics
    /// If it exits or takes too long; prints the end of its log.
    pub fn wait_ready(&mut self) {
        let start = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = self
                .child
                .as_mut()
                .and_then(|child| child.try_wait().ok().flatten());
            assert!(
                ended.is_none(),
                "{} has ended: {}",
                self.name,
                self.last_words()
            );
            let name = &self.name;
            assert!(
                start.elapsed() < PATIENCE,
                "{name} is not ready: {}",
                self.last_words()
            );
            thread::sleep(LOOK);
        }
    }

    /// Whether the server has exited without being stopped.
    pub fn has_ended(&mut self) -> bool {
        let ended = self.child.as_mut().map(Child::try_wait);
        matches!(ended, Some(Ok(Some(_))))
    }

    /// The process id of the server, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends the server a signal: `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        if let Some(id) = self.id() {
            let _ = Command::new("kill")
                .args([format!("-{name}"), id.to_string()])
                .status();
        }
    }

    /// Sends the server SIGKILL, and waits until it has exited.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends the server SIGTERM, and waits until it has exited.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let id = child.id().to_string();
            let _ = Command::new("kill").args(["-TERM", &id]).status();
            let start = Instant::now();
            while matches!(child.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
                thread::sleep(LOOK);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The end of the server's log.
    pub fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            keep(&self.name, &self.log);
        }
    }
}

/// Copies a log to a place that outlives the test's directory.
fn keep(name: &str, log: &Path) {
    let kept =
        std::env::temp_dir().join(format!("millstream-test-{name}-{}.log", std::process::id()));
    let said = match fs::copy(log, &kept) {
        Ok(_) => format!("the log of {name} is kept in {}", kept.display()),
        Err(error) => format!("the log of {name} cannot be kept: {error}"),
    };
    // Printed together with the output of the failed test.
    use io::Write;
    let _ = writeln!(io::stderr(), "{said}");
}

/// Waits until `done` returns true.
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        thread::sleep(LOOK);
    }
}

/// The first port that [`free_port`] may return, and the number of ports.
const PORTS: (u32, u32) = (10_000, 20_000);

/// A free port. Another call in this process returns another port.
///
/// The ports are below those of outgoing connections. Otherwise the kernel could use the port of a killed server for an
/// outgoing connection, and a client that polls the port could even connect to itself.
///
/// # Panics
/// If none is free.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let (first, count) = PORTS;
    // Each process starts at another port, so that tests in parallel do not race for the same one.
    let begin = std::process::id().wrapping_mul(7919);
    for _ in 0..count {
        let next = begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % count;
        let port = u16::try_from(first + next).unwrap_or_default();
        if is_free(port) {
            return port;
        }
    }
    panic!("no free port between {first} and {}", first + count);
}

/// Whether no server uses a port. Binds it without listening: a client of a server in another process, which waits until that server
/// listens, could connect to a listener here.
fn is_free(port: u16) -> bool {
    let bound = TcpSocket::new_v4().and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, port).into())
    });
    bound.is_ok()
}

/// The path of a file of the clients that `make deps` installs into `target/clients`.
///
/// # Panics
/// If it is missing. A test whose peer is missing fails and says how to install it.
pub fn installed(path: &str) -> PathBuf {
    // Read at run time, because a build cache that several clones share may contain code that was compiled in another clone.
    let here = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| "crates/testkit".into());
    let path = Path::new(&here).join("../../target/clients").join(path);
    assert!(
        path.exists(),
        "{} is missing: run `make deps`",
        path.display()
    );
    path
}
