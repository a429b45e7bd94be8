//! The program under test, its load, and the measurement of both.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    Bench,
    process::{Process, Usage, free_port},
    scenario::Run,
};
use crate::{Failure, generate::Summary, reference::Measured, tls::Certificate, verify};

/// The longest time for a drain. Millstream's own limit is 30 s.
const DRAIN: Duration = Duration::from_secs(40);
/// A program that has used no CPU for this time has finished its input. The time is longer than any pause of a working pipeline.
const QUIET: Duration = Duration::from_millis(300);

/// A started millstream.
pub struct Server {
    process: Process,
    /// The address on which it listens.
    pub address: SocketAddr,
    log: PathBuf,
    config: PathBuf,
    quiet: Duration,
}

impl Server {
    /// Starts a server with a configuration of the scenario. `settings` are the environment variables that the configuration uses.
    pub fn start(bench: &Bench, config: &str, settings: &[(&str, &str)]) -> Result<Self, Failure> {
        Self::start_as(bench, "millstream", config, settings)
    }

    /// Starts a second server under another name, beside the first one.
    pub fn start_as(
        bench: &Bench,
        name: &str,
        config: &str,
        settings: &[(&str, &str)],
    ) -> Result<Self, Failure> {
        let data = bench.work.join(format!("{name}-data"));
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        Self::start_again(bench, name, config, settings)
    }

    /// Starts a server with the data of an earlier server of this name.
    pub fn start_again(
        bench: &Bench,
        name: &str,
        config: &str,
        settings: &[(&str, &str)],
    ) -> Result<Self, Failure> {
        let data = bench.work.join(format!("{name}-data"));
        let path = bench.work.join(format!("{name}.yaml"));
        fs::write(&path, config)?;
        let port = free_port()?;
        let log = bench.work.join(format!("{name}.log"));
        let mut command = Command::new(&bench.millstream);
        command
            .arg("run")
            .arg(&path)
            .env("DATA", &data)
            .env("PORT", port.to_string())
            .env("API", free_port()?.to_string())
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(File::create(bench.work.join(format!("{name}.out")))?)
            .stderr(File::create(&log)?);
        let process = Process::start(&mut command)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self {
            process,
            address,
            log,
            config: path,
            quiet: QUIET,
        })
    }

    /// Sets the time without CPU use after which the server counts as finished. Pipelines that pause until a deadline need a
    /// longer time than the default.
    pub fn quiet_after(mut self, quiet: Duration) -> Self {
        self.quiet = quiet;
        self
    }

    /// Waits until the server accepts connections.
    pub fn ready(&mut self) -> Result<(), Failure> {
        let ready = self.process.ready(self.address);
        ready.map_err(|error| self.explain(&error.to_string()))
    }

    /// Reads the server's usage.
    pub fn usage(&self) -> Result<Usage, Failure> {
        self.process
            .usage()
            .map_err(|error| self.explain(&error.to_string()))
    }

    /// Waits until the server has finished its input. Returns the time at which it last used CPU.
    pub fn settled(&self) -> Result<Instant, Failure> {
        let settled = self.process.settled(self.quiet, DRAIN);
        settled.map_err(|error| self.explain(&error.to_string()))
    }

    /// Makes the server apply another configuration of the scenario, with the same settings.
    pub fn reload(&self, config: &str) -> Result<(), Failure> {
        // The file is replaced by a rename, so that the server never reads a part of it.
        let new = self.config.with_extension("new");
        fs::write(&new, config)?;
        fs::rename(new, &self.config)?;
        Ok(self.process.reload()?)
    }

    /// Whether the server is running.
    pub fn lives(&mut self) -> Result<bool, Failure> {
        Ok(self.process.lives()?)
    }

    /// Stops the server. Returns `None` if it drained and exited successfully, otherwise the reason and the end of its log.
    pub fn stop(self) -> Option<String> {
        let log = self.log.clone();
        match self.process.stop(DRAIN) {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("ended with {status}: {}", last_lines(&log))),
            Err(error) => Some(format!("{error}: {}", last_lines(&log))),
        }
    }

    /// An error, together with the end of the server's log.
    pub fn explain(&self, error: &str) -> Failure {
        Failure::Other(format!(
            "{error}; its log ends with:\n{}",
            last_lines(&self.log)
        ))
    }
}

fn last_lines(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// The generator's protocol.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    /// The forward protocol, in the load's `mode`.
    Forward,
    /// The forward protocol, with further options of the generator.
    ForwardOf(&'static [&'static str]),
    /// The forward protocol, with this tag.
    ForwardAs(&'static str),
    /// Syslog over TCP, with these options.
    Syslog(&'static [&'static str]),
}

/// The generator's load.
#[derive(Clone, Debug)]
pub struct Load {
    /// Its protocol.
    pub protocol: Protocol,
    /// The value of the generator's `--mode`.
    pub mode: &'static str,
    /// The number of flows; each has one connection.
    pub connections: u16,
    /// Whether chunks are acknowledged.
    pub acks: bool,
    /// Whether each record is written with its own system call.
    pub single_writes: bool,
    /// The value of the generator's `--send-buffer`.
    pub send_buffer: &'static str,
    /// Whether it uses TLS.
    pub tls: bool,
}

/// The generator's TCP congestion control: Linux's default. It is set explicitly, because the results of single writes would
/// otherwise depend on the machine's setting.
const CONGESTION_CONTROL: &str = "cubic";

impl Load {
    /// Sends the load, and returns the summary.
    pub fn send(&self, bench: &Bench, address: SocketAddr) -> Result<Summary, Failure> {
        let mut command = Command::new(&bench.millbench);
        command.args(["generate", "--json", "--give-up", "20s"]);
        let address = address.to_string();
        match self.protocol {
            Protocol::Forward => command.args(["--forward", &address, "--mode", self.mode]),
            Protocol::ForwardOf(how) => command
                .args(["--forward", &address, "--mode", self.mode])
                .args(how),
            Protocol::ForwardAs(tag) => command
                .args(["--forward", &address, "--mode", self.mode])
                .args(["--tag", tag]),
            Protocol::Syslog(how) => command.args(["--syslog", &address]).args(how),
        };
        command
            .args(["--send-buffer", self.send_buffer])
            .args(["--congestion-control", CONGESTION_CONTROL])
            .args(["--connections", &self.connections.to_string()])
            .args(["--seconds", &bench.seconds.to_string()]);
        if self.acks {
            command.arg("--acks");
        }
        if self.single_writes {
            command.arg("--single-writes");
        }
        if self.tls {
            let certificate = Certificate::in_directory(&bench.work)?;
            command.arg("--tls-ca").arg(&certificate.cert);
        }
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Other(format!("the generator failed: {error}")));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// The error of a load, if any.
fn wrong(sent: &Summary) -> Option<String> {
    if sent.broken > 0 {
        return Some(format!("{} connections broke", sent.broken));
    }
    (sent.drained < sent.flows).then(|| "the server did not close after the last byte".to_owned())
}

/// Measures millstream under a load. With `warm`, sends the load once before the measurement, which touches the memory that
/// millstream reuses.
pub fn measure(
    server: &mut Server,
    bench: &Bench,
    load: &Load,
    warm: bool,
) -> Result<Run, Failure> {
    server.ready()?;
    if warm {
        load.send(bench, server.address)
            .map_err(|error| server.explain(&error.to_string()))?;
        server.settled()?;
    }
    let (before, started) = (server.usage()?, Instant::now());
    let sent = load
        .send(bench, server.address)
        .map_err(|error| server.explain(&error.to_string()))?;
    let settled = server.settled()?.duration_since(started);
    Ok(Run {
        records: sent.records,
        bytes: sent.bytes,
        seconds: sent.seconds.max(settled.as_secs_f64()),
        usage: server.usage()?.since(before),
        latency: None,
        variant: None,
        wrong: wrong(&sent),
    })
}

/// Measures the bare reader (`millbench reader`) under a load. It acknowledges chunks if the load asks for acks.
pub fn bare_reader(bench: &Bench, load: &Load, threads: usize) -> Result<Run, Failure> {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut command = Command::new(&bench.millbench);
    command
        .args(["reader", "--listen", &address.to_string()])
        .args(["--threads", &threads.to_string()]);
    if load.tls {
        let certificate = Certificate::in_directory(&bench.work)?;
        command.arg("--tls-cert").arg(&certificate.cert);
        command.arg("--tls-key").arg(&certificate.key);
    }
    if load.acks {
        command.arg("--acks");
    }
    measure_reference(bench, &mut command, address, load)
}

/// Measures the bare relay (`millbench relay`) under a load.
pub fn bare_relay(bench: &Bench, load: &Load, to: SocketAddr) -> Result<Run, Failure> {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut command = Command::new(&bench.millbench);
    command
        .args(["relay", "--listen", &address.to_string()])
        .args(["--to", &to.to_string()]);
    measure_reference(bench, &mut command, address, load)
}

/// Measures a listening reference under a load.
fn measure_reference(
    bench: &Bench,
    command: &mut Command,
    address: SocketAddr,
    load: &Load,
) -> Result<Run, Failure> {
    let mut process = Process::start(command)?;
    process.ready(address)?;
    let before = process.usage()?;
    let sent = load.send(bench, address)?;
    Ok(Run {
        records: sent.records,
        bytes: sent.bytes,
        seconds: sent.seconds,
        usage: process.usage()?.since(before),
        latency: None,
        variant: None,
        wrong: wrong(&sent),
    })
}

/// Verifies an output and removes it. Returns its defects; `None` if there are none.
pub fn outcome(path: &Path) -> Result<Option<String>, Failure> {
    if !path.exists() {
        return Ok(Some(format!("{} was never written", path.display())));
    }
    let report = verify::strict(vec![path.to_owned()])?;
    fs::remove_file(path)?;
    Ok((!report.right).then(|| report.wrong.join("; ")))
}

/// Runs a reference that measures itself. `record` is the number of bytes that count as one record.
pub fn reference(bench: &Bench, arguments: &[&str], record: u64) -> Result<Run, Failure> {
    let output = Command::new(&bench.millbench)
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::Other(format!("millbench {arguments:?}: {error}")));
    }
    let measured: Measured = serde_json::from_slice(&output.stdout)?;
    Ok(Run {
        records: measured.bytes / record,
        bytes: measured.bytes,
        seconds: measured.seconds,
        usage: Usage {
            cpu_seconds: measured.cpu_seconds,
            ..Usage::default()
        },
        latency: None,
        variant: None,
        wrong: None,
    })
}

/// Reads a file once, so that it is in the page cache.
pub fn warm(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}
