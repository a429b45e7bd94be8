//! Stops while something hangs, and logs without a reader. Needs root.

use std::{
    fs::{self, File},
    io::{PipeReader, PipeWriter, Read, pipe},
    net::UdpSocket,
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::program::{PATIENCE, free_port, wait_until};

/// The time that a loaded machine may add to each deadline.
const SLACK: Duration = Duration::from_secs(3);

/// The program with pipes as stdout and stderr, killed when dropped.
pub struct Piped {
    child: Child,
    port: u16,
}

impl Piped {
    /// Starts the program after `shell`, and waits until its interface answers. Returns its stderr.
    pub fn start(directory: &Path, shell: &[&str], nodes: &str) -> (Self, PipeReader) {
        let (reader, writer) = pipe().unwrap();
        (
            Self::start_into(directory, shell, nodes, Stdio::null(), writer),
            reader,
        )
    }

    fn start_into(
        directory: &Path,
        shell: &[&str],
        nodes: &str,
        stdout: Stdio,
        stderr: PipeWriter,
    ) -> Self {
        let port = free_port();
        let (config, place) = (directory.join("millstream.yaml"), directory.display());
        let text =
            format!("data_dir: {place}/data\napi: {{ listen: \"127.0.0.1:{port}\" }}\n{nodes}");
        fs::write(&config, text).unwrap();
        let program = env!("CARGO_BIN_EXE_millstream");
        let line: Vec<_> = shell.iter().copied().chain([program]).collect();
        let child = Command::new(line[0])
            .args(&line[1..])
            .args(["run", "--drain", "2s"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .unwrap();
        let piped = Self { child, port };
        wait_until("it runs", || piped.get("/status").is_some());
        piped
    }

    /// The page at this path; `None` if there is no answer.
    pub fn get(&self, path: &str) -> Option<String> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let mut curl = Command::new("curl");
        let out = curl.args(["-s", "--max-time", "5", &url]).output().unwrap();
        out.status
            .success()
            .then(|| String::from_utf8(out.stdout).unwrap())
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &id])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Sends SIGTERM, and returns the exit code and how long the process took to end.
    pub fn stop(&mut self) -> (Option<i32>, Duration) {
        let begun = Instant::now();
        self.signal("TERM");
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), begun.elapsed());
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A path through a disk channel into the file `out`.
fn path(place: &Path) -> String {
    let place = place.display();
    format!(
        "sources:\n  in: {{ type: tail, paths: [\"{place}/in.log\"] }}\n\
         channels:\n  buf: {{ type: disk, inputs: [in] }}\n\
         sinks:\n  out: {{ type: file, inputs: [buf], format: raw, path: \"{place}/out\" }}\n"
    )
}

/// Appends a line to `in.log`.
pub fn append(place: &Path, line: &str) {
    use std::io::Write;
    let log = File::options()
        .append(true)
        .create(true)
        .open(place.join("in.log"));
    writeln!(log.unwrap(), "{line}").unwrap();
}

/// Waits until a line has arrived in `out`.
pub fn arrives(place: &Path, line: &str) {
    wait_until(line, || {
        let out = fs::read_to_string(place.join("out")).unwrap_or_default();
        out.lines().any(|it| it == line)
    });
}

#[test]
fn a_log_whose_reader_is_gone_stops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    append(place, "first");
    let (mut program, reader) = Piped::start(place, &[], &path(place));
    arrives(place, "first");
    drop(reader);
    for name in ["USR1", "HUP", "USR1", "HUP"] {
        program.signal(name);
        sleep(Duration::from_millis(200));
    }
    append(place, "second");
    arrives(place, "second");
    let status = program.get("/status").unwrap();
    assert!(
        status.contains("stderr cannot be written: Broken pipe"),
        "{status}"
    );
    let metrics = program.get("/metrics").unwrap();
    let dropped = |line: &&str| line.starts_with("millstream_log_lines_dropped_total ");
    let dropped = metrics.lines().find(dropped).unwrap();
    assert!(!dropped.ends_with(" 0"), "{dropped}");
    append(place, "third");
    arrives(place, "third");
    assert_eq!(program.stop().0, Some(0));
}

#[test]
fn a_log_whose_reader_hangs_stops_nothing_and_delays_no_stop() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    append(place, "first");
    let (mut reader, mut writer) = pipe().unwrap();
    // Nothing fits into the pipe any more.
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while std::io::Write::write(&mut writer, &[b'x'; 4096]).is_ok() {}
    while std::io::Write::write(&mut writer, b"x").is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let mut program = Piped::start_into(place, &[], &path(place), Stdio::null(), writer);
    arrives(place, "first");
    program.signal("HUP");
    program.signal("USR1");
    append(place, "second");
    arrives(place, "second");
    let (code, time) = program.stop();
    assert_eq!(code, Some(0));
    assert!(time < Duration::from_secs(2) + SLACK, "{time:?}");
    let mut byte = [0];
    reader.read_exact(&mut byte).unwrap();
}

#[test]
fn a_resolver_that_hangs_delays_no_stop() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    append(place, "first");
    // A name server that never answers.
    let server = UdpSocket::bind("127.0.0.53:53").or_else(|_| UdpSocket::bind("127.0.0.77:53"));
    let server = server.unwrap();
    let resolv = place.join("resolv.conf");
    let text = format!(
        "nameserver {}\noptions timeout:30 attempts:5\n",
        server.local_addr().unwrap().ip()
    );
    fs::write(&resolv, text).unwrap();
    let mount = format!(
        "mount --bind {} \"$(readlink -f /etc/resolv.conf)\" && exec \"$@\"",
        resolv.display()
    );
    let shell = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
    let nodes = format!(
        "graphite: {{ endpoint: \"graphite.invalid-name.example:2003\", interval: 1s }}\n{}  \
         far: {{ type: http, inputs: [buf], format: raw, url: \"http://http.invalid-name.example/\" }}\n  \
         log: {{ type: syslog, inputs: [buf], url: \"tcp://syslog.invalid-name.example:514\" }}\n",
        path(place)
    );
    let (mut program, _reader) = Piped::start(place, &shell, &nodes);
    arrives(place, "first");
    sleep(Duration::from_millis(1500));
    let (code, time) = program.stop();
    assert!(time < Duration::from_secs(2) + SLACK, "{time:?}");
    assert_eq!(code, Some(0));
}

#[test]
fn a_sink_that_hangs_in_the_system_is_named_and_delays_no_stop() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let nodes = "sources:\n  in: { type: generate, rate: 10000 }\n\
                 sinks:\n  out: { type: stdout, inputs: [in] }\n";
    let (stdout, full) = pipe().unwrap();
    let (mut log, writer) = pipe().unwrap();
    let mut program = Piped::start_into(place, &[], nodes, full.into(), writer);
    sleep(Duration::from_secs(1));
    let (code, time) = program.stop();
    assert_eq!(code, Some(1));
    assert!(time < Duration::from_secs(2) + SLACK, "{time:?}");
    drop((stdout, program));
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    assert!(text.contains("were left unsettled"), "{text}");
}
