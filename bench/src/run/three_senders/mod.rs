//! The scenario `three_senders`: see its README for what is measured.

mod records;

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{
    Bench,
    process::Usage,
    scenario::{Goal, Row, Run},
    server::Server,
};
use crate::Failure;
use records::{Form, Integrity, Sent, Writer};

const MEMORY: &str = include_str!("../../../scenarios/three_senders/memory.yaml");
const DISK: &str = include_str!("../../../scenarios/three_senders/disk.yaml");
const TO_MEMORY: &str = include_str!("../../../scenarios/three_senders/receive_memory.yaml");
const TO_DISK: &str = include_str!("../../../scenarios/three_senders/receive_disk.yaml");

/// The bytes of a record, including its newline, and the records per second that were published for K2HFTFUSE.
const SIZES: [(usize, f64); 3] = [(4096, 64_943.0), (1024, 219_578.0), (10, 937_779.0)];
const SENDERS: usize = 3;
/// The timeout of each step.
const LIMIT: Duration = Duration::from_secs(120);

/// How a row is measured.
#[derive(Clone, Copy)]
struct Work {
    form: Form,
    size: usize,
    is_durable: bool,
    /// Whether one sender joins, one leaves, and one is killed.
    changes: bool,
}

fn works() -> Vec<(String, Work, Vec<Goal>)> {
    let mut works = Vec::new();
    for (size, published) in SIZES {
        for is_durable in [false, true] {
            for form in [Form::Raw, Form::Json] {
                let channel = if is_durable { "disk" } else { "memory" };
                let goals = match (form, is_durable) {
                    (Form::Raw, false) if size == 10 => vec![Goal::Records(published)],
                    (Form::Raw, false) => vec![Goal::Bytes(published * size as f64)],
                    _ => Vec::new(),
                };
                let work = Work {
                    form,
                    size,
                    is_durable,
                    changes: false,
                };
                works.push((format!("{form}, {size} B, {channel}"), work, goals));
            }
        }
    }
    for form in [Form::Raw, Form::Json] {
        let (size, is_durable, changes) = (1024, true, true);
        let name = format!("{form}, {size} B, disk, one joins, one leaves, one is killed");
        let work = Work {
            form,
            size,
            is_durable,
            changes,
        };
        works.push((name, work, Vec::new()));
    }
    works
}

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let works = works();
    let row = |(name, _, goals): &(String, Work, Vec<Goal>)| Row::new(name, false, goals.clone());
    let mut rows: Vec<Row> = works.iter().map(row).collect();
    bench.choose(&mut rows);
    bench.rounds(rows, |row| {
        let work = works.iter().find(|(name, ..)| *name == row.name);
        work.map(|(_, work, _)| measure(bench, *work)).transpose()
    })
}

/// The senders of one measurement.
struct Senders<'b> {
    bench: &'b Bench,
    work: Work,
    /// The port of the receiver.
    to: String,
    running: [Option<Server>; SENDERS],
    /// The usage of processes that have ended.
    ended: Vec<Usage>,
}

impl Senders<'_> {
    fn mount(&self, sender: usize) -> PathBuf {
        self.bench.work.join(format!("mnt-{sender}"))
    }

    /// Starts a sender, and waits until its directory is mounted. `again`: with the data of the one that was killed.
    fn start(&mut self, sender: usize, again: bool) -> Result<(), Failure> {
        let (name, mount) = (format!("sender-{sender}"), self.mount(sender));
        let at = mount.to_string_lossy().into_owned();
        let settings = [("MOUNT", &*at), ("TO", &*self.to)];
        let config = if self.work.is_durable { DISK } else { MEMORY };
        let mut server = match again {
            false => {
                fs::create_dir_all(&mount)?;
                Server::start_as(self.bench, &name, config, &settings)?
            }
            true => Server::start_again(self.bench, &name, config, &settings)?,
        };
        let started = Instant::now();
        while !records::is_mounted(&mount) {
            if !server.lives()? || started.elapsed() > LIMIT {
                return Err(server.explain("timed out waiting for the mount"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.running[sender] = Some(server);
        Ok(())
    }

    /// Kills a sender.
    fn kill(&mut self, sender: usize) -> Result<(), Failure> {
        if let Some(server) = self.running[sender].take() {
            self.ended.push(server.usage()?);
        }
        Ok(())
    }

    /// Stops a sender. Returns what went wrong.
    fn stop(&mut self, sender: usize) -> Result<Option<String>, Failure> {
        let Some(server) = self.running[sender].take() else {
            return Ok(None);
        };
        server.settled()?;
        self.ended.push(server.usage()?);
        Ok(server.stop())
    }
}

fn measure(bench: &Bench, work: Work) -> Result<Run, Failure> {
    let out = bench.work.join("out.log");
    let to = out.to_string_lossy();
    let config = if work.is_durable { TO_DISK } else { TO_MEMORY };
    let config = match work.form {
        Form::Raw => config.to_owned(),
        Form::Json => config.replace("format: raw", "format: json, add: { host: \"{host}\" }"),
    };
    let mut receiver = Server::start_as(bench, "receiver", &config, &[("OUT", &*to)])?;
    receiver.ready()?;
    let mut senders = Senders {
        bench,
        work,
        to: receiver.address.port().to_string(),
        running: Default::default(),
        ended: Vec::new(),
    };
    let started = Instant::now();
    let (sent, began) = match work.changes {
        false => together(&mut senders)?,
        true => changing(&mut senders)?,
    };
    let mut last = started;
    for server in senders.running.iter().flatten().chain([&receiver]) {
        last = last.max(server.settled()?);
    }
    let mut wrong = None;
    for sender in 0..SENDERS {
        wrong = wrong.or(senders.stop(sender)?);
    }
    senders.ended.push(receiver.usage()?);
    wrong = wrong.or(receiver.stop());
    let found = Integrity::of(&out, work.form, work.size, &sent)?;
    eprintln!("millbench: {found}");
    let run = Run {
        records: found.arrived,
        bytes: fs::metadata(&out)?.len(),
        seconds: last.saturating_duration_since(began).as_secs_f64(),
        usage: total(&senders.ended),
        latency: None,
        variant: None,
        wrong: wrong.or(found.wrong()),
    };
    fs::remove_file(&out)?;
    for sender in 0..SENDERS {
        fs::remove_dir_all(senders.mount(sender))?;
    }
    Ok(run)
}

/// All senders write at the same time. Returns what was sent, and when the first write began.
fn together(senders: &mut Senders<'_>) -> Result<([Sent; SENDERS], Instant), Failure> {
    for sender in 0..SENDERS {
        senders.start(sender, false)?;
    }
    let (size, began) = (senders.work.size, Instant::now());
    let end = began + Duration::from_secs_f64(senders.bench.seconds);
    let mounts: [PathBuf; SENDERS] = std::array::from_fn(|sender| senders.mount(sender));
    let sent = thread::scope(|scope| {
        let write = |sender: usize| {
            let mount: &Path = &mounts[sender];
            scope.spawn(move || Writer::new(sender, size).write_until(mount, end, false))
        };
        let threads: [_; SENDERS] = std::array::from_fn(write);
        threads.map(|thread| thread.join().unwrap_or_default())
    });
    Ok((sent, began))
}

/// The second sender joins, the third one leaves, and the first one is killed and started again.
fn changing(senders: &mut Senders<'_>) -> Result<([Sent; SENDERS], Instant), Failure> {
    senders.start(0, false)?;
    senders.start(2, false)?;
    let (size, began, seconds) = (senders.work.size, Instant::now(), senders.bench.seconds);
    let at = |share: f64| began + Duration::from_secs_f64(seconds * share);
    let until = |share: f64| thread::sleep(at(share).saturating_duration_since(Instant::now()));
    let mounts: [PathBuf; SENDERS] = std::array::from_fn(|sender| senders.mount(sender));
    let (sent, done) = thread::scope(|scope| {
        let write = |sender: usize, share: f64| {
            let mount: &Path = &mounts[sender];
            scope
                .spawn(move || Writer::new(sender, size).write_until(mount, at(share), sender == 0))
        };
        let (killed, leaving) = (write(0, 1.0), write(2, 2.0 / 3.0));
        let mut joining = None;
        let steps = || {
            until(1.0 / 3.0);
            senders.start(1, false)?;
            joining = Some(write(1, 1.0));
            until(0.5);
            senders.kill(0)?;
            senders.start(0, true)?;
            let left = leaving.join().unwrap_or_default();
            let wrong = senders.stop(2)?;
            Ok::<_, Failure>((left, wrong))
        };
        let done = steps();
        let killed = killed.join().unwrap_or_default();
        let joined = joining.and_then(|joining| joining.join().ok());
        ((killed, joined.unwrap_or_default()), done)
    });
    let (left, wrong) = done?;
    match wrong {
        Some(wrong) => Err(Failure::Other(format!("the sender that left: {wrong}"))),
        None => Ok(([sent.0, sent.1, left], began)),
    }
}

fn total(usages: &[Usage]) -> Usage {
    let mut total = Usage::default();
    for usage in usages {
        total.cpu_seconds += usage.cpu_seconds;
        total.switches += usage.switches;
        total.preemptions += usage.preemptions;
        total.faults += usage.faults;
        total.rss_peak = total.rss_peak.max(usage.rss_peak);
    }
    total
}
