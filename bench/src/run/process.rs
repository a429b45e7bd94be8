//! Processes under test: started, measured through /proc, and ended.
//!
//! Dropping a [`Process`] kills the process.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::Serialize;

/// The CPU time in seconds that an idle process may use, for example for timers. A process that has used more since it was last
/// busy is busy again.
const NOTHING: f64 = 0.0005;

/// The resource usage of a process.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Usage {
    /// User and system time of all threads, ended ones included.
    pub cpu_seconds: f64,
    /// How often threads went to sleep. Only threads that are alive at the time of the reading are counted.
    pub switches: u64,
    /// How often threads were preempted.
    pub preemptions: u64,
    /// Page faults, with and without a read from disk.
    pub faults: u64,
    /// The peak of resident memory since the start, in bytes.
    pub rss_peak: u64,
    /// Bytes that read calls have returned (`rchar` in /proc/PID/io). Reads from pipes and terminals are included.
    pub file_bytes_read: u64,
}

impl Usage {
    /// The usage since the earlier reading `before`. `rss_peak` remains the peak since the start.
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            switches: self.switches.saturating_sub(before.switches),
            preemptions: self.preemptions.saturating_sub(before.preemptions),
            faults: self.faults.saturating_sub(before.faults),
            rss_peak: self.rss_peak,
            file_bytes_read: self.file_bytes_read.saturating_sub(before.file_bytes_read),
        }
    }
}

/// The fields of a stat file after the program's name, which may contain any characters.
fn stat_fields(directory: &Path) -> io::Result<Vec<u64>> {
    let text = fs::read_to_string(directory.join("stat"))?;
    let behind = text.rsplit_once(')').map_or("", |(_, behind)| behind);
    // The first field is the state: a letter, which becomes 0.
    let number = |word: &str| word.parse().unwrap_or(0);
    Ok(behind.split_whitespace().map(number).collect())
}

/// User and system seconds of the process with this directory in /proc. The resolution is a clock tick, usually 10 ms.
pub fn cpu(directory: &Path) -> io::Result<f64> {
    let fields = stat_fields(directory)?;
    let ticks = fields.get(11).unwrap_or(&0) + fields.get(12).unwrap_or(&0);
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The CPU seconds of all living threads. The resolution is a nanosecond.
fn threads_cpu(directory: &Path) -> io::Result<f64> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(directory.join("task"))? {
        // The thread may have ended meanwhile, or the kernel may be built without this file.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        let first = text.split_whitespace().next();
        nanoseconds += first.and_then(|word| word.parse().ok()).unwrap_or(0u64);
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// The number after a name, in files such as status and io; 0 if the name is missing.
fn named(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    let word = value.and_then(|value| value.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Reads the usage of a living process.
fn usage(directory: &Path) -> io::Result<Usage> {
    let fields = stat_fields(directory)?;
    let status = fs::read_to_string(directory.join("status"))?;
    // This file cannot be read for a process of another user.
    let input = fs::read_to_string(directory.join("io")).unwrap_or_default();
    let mut usage = Usage {
        // `cpu` includes threads that have ended, but rounds down to ticks. `threads_cpu` does not round, but omits threads that
        // have ended. Neither exceeds the real figure, so the larger one is more exact.
        cpu_seconds: cpu(directory)?.max(threads_cpu(directory)?),
        faults: fields.get(7).unwrap_or(&0) + fields.get(9).unwrap_or(&0),
        rss_peak: named(&status, "VmHWM:") * 1024,
        file_bytes_read: named(&input, "rchar:"),
        ..Usage::default()
    };
    for task in fs::read_dir(directory.join("task"))? {
        // The thread may have ended meanwhile.
        let status = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        usage.switches += named(&status, "voluntary_ctxt_switches:");
        usage.preemptions += named(&status, "nonvoluntary_ctxt_switches:");
    }
    Ok(usage)
}

/// A started program.
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts the program.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn();
        let child =
            child.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        Ok(Self { child, name })
    }

    fn directory(&self) -> std::path::PathBuf {
        Path::new("/proc").join(self.child.id().to_string())
    }

    /// Reads the usage of the process.
    pub fn usage(&self) -> io::Result<Usage> {
        usage(&self.directory())
    }

    /// Waits until the program accepts connections on this address.
    pub fn ready(&mut self, address: SocketAddr) -> io::Result<()> {
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                let what = format!("{} exited immediately: {status}", self.name);
                return Err(io::Error::other(what));
            }
            if started.elapsed() > Duration::from_secs(20) {
                let what = format!("{} does not listen on {address}", self.name);
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until the process has been idle for `quiet`, but at most for `limit`. Returns the time at which it last used CPU.
    pub fn settled(&self, quiet: Duration, limit: Duration) -> io::Result<Instant> {
        let started = Instant::now();
        let (mut last, mut cpu) = (Instant::now(), self.usage()?.cpu_seconds);
        while last.elapsed() < quiet && started.elapsed() < limit {
            thread::sleep(Duration::from_millis(10));
            let now = self.usage()?.cpu_seconds;
            if now > cpu + NOTHING {
                (last, cpu) = (Instant::now(), now);
            }
        }
        Ok(last)
    }

    /// Whether the process is running.
    pub fn lives(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until the process exits. Returns its status and its usage. The usage holds only the CPU time and the page faults; its
    /// other figures are 0. It is read before the process is reaped, because /proc shows it only until then.
    pub fn finish(mut self) -> io::Result<(ExitStatus, Usage)> {
        let id = WaitId::Pid(Pid::from_child(&self.child));
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        let fields = stat_fields(&self.directory())?;
        let usage = Usage {
            cpu_seconds: cpu(&self.directory())?,
            faults: fields.get(7).unwrap_or(&0) + fields.get(9).unwrap_or(&0),
            ..Usage::default()
        };
        Ok((self.child.wait()?, usage))
    }

    /// Sends SIGHUP, so that the program reads its configuration again.
    pub fn reload(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::HUP)?)
    }

    /// Sends SIGTERM, and waits until the program has drained and exited.
    pub fn stop(mut self, limit: Duration) -> io::Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let started = Instant::now();
        while started.elapsed() < limit {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        let what = format!("{} did not drain in {limit:?}", self.name);
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error only means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that is free now.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
