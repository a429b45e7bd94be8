//! Debian's rsyslog and syslog-ng, run in the foreground with a test's configuration, and certificates for them.

use std::{
    fs,
    io::Write,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::program::{tree, wait_until};

/// A running daemon; killed when dropped.
pub struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command, directory: &Path, port: u16) -> Daemon {
    let log = directory.join("daemon.log");
    let file = fs::File::create(&log).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file);
    let mut daemon = Daemon(command.spawn().unwrap());
    let said = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("the daemon listens", || {
        if let Some(status) = daemon.0.try_wait().unwrap() {
            panic!("{command:?} ended with {status}:\n{}", said());
        }
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    daemon
}

/// Starts rsyslog and waits until it listens on `port`.
pub fn rsyslogd(directory: &Path, config: &str, port: u16) -> Daemon {
    let path = directory.join("rsyslog.conf");
    fs::write(&path, config).unwrap();
    let program = Path::new("/usr/sbin/rsyslogd");
    assert!(program.exists(), "rsyslogd is missing: run `make deps`");
    let mut command = Command::new(program);
    command
        .args(["-n", "-f"])
        .arg(&path)
        .arg("-i")
        .arg(directory.join("rsyslog.pid"));
    start(&mut command, directory, port)
}

/// Starts syslog-ng and waits until it listens on `port`.
pub fn syslog_ng(directory: &Path, config: &str, port: u16) -> Daemon {
    let path = directory.join("syslog-ng.conf");
    fs::write(&path, config).unwrap();
    let root = tree().join("target/clients/syslog-ng");
    let program = root.join("usr/sbin/syslog-ng");
    assert!(
        program.exists(),
        "{} is missing: run `make deps`",
        program.display()
    );
    let libraries = root.join("usr/lib/syslog-ng");
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", &libraries)
        .args(["--foreground", "--no-caps", "--stderr", "--cfgfile"])
        .arg(&path)
        .arg("--persist-file")
        .arg(directory.join("syslog-ng.persist"))
        .arg("--pidfile")
        .arg(directory.join("syslog-ng.pid"))
        .arg("--control")
        .arg(directory.join("syslog-ng.ctl"))
        .arg("--module-path")
        .arg(libraries.join("3.38"));
    start(&mut command, directory, port)
}

/// Sends messages to a daemon on this machine.
pub fn feed(port: u16, messages: impl Iterator<Item = String>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let text: String = messages.collect();
    stream.write_all(text.as_bytes()).unwrap();
}

/// Creates a directory with a CA (`ca.pem`), two certificates for `localhost` that the CA has signed (`server.pem`, `client.pem`), and
/// the keys of these certificates. Returns the path of the directory.
pub fn certificates(directory: &Path) -> PathBuf {
    let place = directory.join("certificates");
    fs::create_dir_all(&place).unwrap();
    let openssl = |arguments: &str| {
        let words = arguments.split_whitespace();
        let output = Command::new("openssl")
            .current_dir(&place)
            .args(words)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    fs::write(
        place.join("leaf"),
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {key} -keyout ca.key -out ca.pem -days 30 -subj /CN=authority"
    ));
    for name in ["server", "client"] {
        openssl(&format!(
            "req {key} -keyout {name}.key -out {name}.csr -subj /CN=localhost"
        ));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 30 -extfile leaf"
        ));
    }
    place
}
