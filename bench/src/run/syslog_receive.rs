//! The scenario `syslog_receive`: see its README for what is measured.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    Bench,
    process::{Process, free_port},
    scenario::{By, Goal, Row, Run},
    server::{self, Load, Protocol, Server},
};
use crate::Failure;

/// The sender's SO_SNDBUF. It is small, because over loopback the kernel charges a part of the sender's work to the receiver's CPU time,
/// and this part grows with the buffer.
const SEND_BUFFER: &str = "128KiB";
/// A program that has used no CPU for this time has finished its input.
const QUIET: Duration = Duration::from_millis(300);
/// The timeout for a program to finish its input, and the timeout for it to exit.
const DRAIN: Duration = Duration::from_secs(60);

const DISCARD: &str = include_str!("../../scenarios/syslog_receive/discard.yaml");
const FILE: &str = include_str!("../../scenarios/syslog_receive/file.yaml");

/// Options for messages of 300 bytes: a header, a text of `--size` bytes, and a newline if there is no octet count.
const OLDER: Form = &["--form", "rfc3164", "--size", "254"];
const OCTETS: Form = &["--form", "rfc3164", "--size", "251", "--octets"];
const NEWER: Form = &["--form", "rfc5424", "--size", "213"];

type Form = &'static [&'static str];

/// How a row is measured.
#[derive(Clone, Copy)]
enum Work {
    Reader,
    Discard(Form),
    File(&'static str),
    Rsyslog,
    SyslogNg,
}

const READER: &str = "bare reader";
const TO_FILE: &str = "millstream -> file raw";
const RSYSLOG: &str = "rsyslog -> file";
const SYSLOG_NG: &str = "syslog-ng -> file";

fn works() -> Vec<(&'static str, Work, Vec<Goal>)> {
    let three_times = |name: &str| Goal::Share(3.0, name.to_owned(), By::Cpu);
    let mut works = vec![
        (READER, Work::Reader, Vec::new()),
        (
            "millstream 3164 -> discard",
            Work::Discard(OLDER),
            vec![Goal::PerCpu(10e6)],
        ),
        (
            "millstream octets -> discard",
            Work::Discard(OCTETS),
            vec![Goal::PerCpu(10e6)],
        ),
        (
            "millstream 5424 -> discard",
            Work::Discard(NEWER),
            vec![Goal::PerCpu(10e6)],
        ),
        (
            TO_FILE,
            Work::File("raw"),
            vec![
                Goal::PerCpu(3e6),
                three_times(RSYSLOG),
                three_times(SYSLOG_NG),
            ],
        ),
        (
            "millstream -> file json",
            Work::File("json"),
            vec![
                Goal::PerCpu(3e6),
                three_times(RSYSLOG),
                three_times(SYSLOG_NG),
            ],
        ),
    ];
    for (name, work, found) in [
        (RSYSLOG, Work::Rsyslog, rsyslogd()),
        (SYSLOG_NG, Work::SyslogNg, syslog_ng()),
    ] {
        match found {
            Some(_) => works.push((name, work, Vec::new())),
            None => eprintln!("{name}: left out, it is not installed"),
        }
    }
    works
}

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let works = works();
    let is_reference = |work: Work| matches!(work, Work::Reader | Work::Rsyslog | Work::SyslogNg);
    let row = |(name, work, goals): &(&str, Work, Vec<Goal>)| {
        Row::new(*name, is_reference(*work), goals.clone())
    };
    let mut rows: Vec<Row> = works.iter().map(row).collect();
    bench.choose(&mut rows);
    bench.rounds(rows, |row| {
        let work = works.iter().find(|(name, ..)| *name == row.name);
        work.map(|(_, work, _)| measure(bench, *work)).transpose()
    })
}

fn load(form: Form) -> Load {
    Load {
        protocol: Protocol::Syslog(form),
        mode: "",
        connections: 1,
        acks: false,
        single_writes: false,
        send_buffer: SEND_BUFFER,
        tls: false,
    }
}

fn measure(bench: &Bench, work: Work) -> Result<Run, Failure> {
    let out = bench.work.join("out.log");
    match work {
        Work::Reader => server::bare_reader(bench, &load(OLDER), 1),
        Work::Discard(form) => millstream(bench, DISCARD, form, &[], None),
        Work::File(format) => millstream(bench, FILE, OLDER, &[("FORMAT", format)], Some(&out)),
        Work::Rsyslog => {
            let port = free_port()?;
            peer(bench, port, rsyslog_command(bench, port, &out)?)
        }
        Work::SyslogNg => {
            let port = free_port()?;
            peer(bench, port, syslog_ng_command(bench, port, &out)?)
        }
    }
}

fn millstream(
    bench: &Bench,
    config: &str,
    form: Form,
    settings: &[(&str, &str)],
    out: Option<&Path>,
) -> Result<Run, Failure> {
    let path = out.map(Path::to_string_lossy).unwrap_or_default();
    let own = [("OUT", &*path), ("THREADS", "1")];
    let mut server = Server::start(bench, config, &[&own[..], settings].concat())?;
    let mut run = server::measure(&mut server, bench, &load(form), false)?;
    run.wrong = run.wrong.or(server.stop());
    if let Some(out) = out {
        run.wrong = run.wrong.or(server::outcome(out)?);
    }
    Ok(run)
}

/// Measures another program under the same load. Its output must contain every message.
fn peer(bench: &Bench, port: u16, mut command: Command) -> Result<Run, Failure> {
    let out = bench.work.join("out.log");
    let log = File::create(bench.work.join("peer.log"))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut process = Process::start(&mut command)?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    process.ready(address)?;
    let (before, started) = (process.usage()?, Instant::now());
    let sent = load(OLDER).send(bench, address)?;
    let settled = process.settled(QUIET, DRAIN)?.duration_since(started);
    let usage = process.usage()?.since(before);
    process.stop(DRAIN)?;
    let wrong = server::outcome(&out)?;
    Ok(Run {
        records: sent.records,
        bytes: sent.bytes,
        seconds: sent.seconds.max(settled.as_secs_f64()),
        usage,
        latency: None,
        variant: None,
        wrong,
    })
}

fn rsyslog_command(bench: &Bench, port: u16, out: &Path) -> Result<Command, Failure> {
    let work = bench.work.display();
    let config = format!(
        "global(workDirectory=\"{work}\" maxMessageSize=\"8k\")\nmain_queue(queue.workerThreads=\"1\")\nmodule(load=\"imptcp\")\n\
         template(name=\"text\" type=\"string\" string=\"%msg:::drop-last-lf%\\n\")\n\
         input(type=\"imptcp\" address=\"127.0.0.1\" port=\"{port}\")\n\
         action(type=\"omfile\" file=\"{}\" template=\"text\" ioBufferSize=\"256k\" flushOnTXEnd=\"off\")\n",
        out.display()
    );
    let path = bench.work.join("rsyslog.conf");
    fs::write(&path, config)?;
    let mut command = Command::new(rsyslogd().unwrap_or_default());
    command
        .args(["-n", "-f"])
        .arg(path)
        .arg("-i")
        .arg(bench.work.join("rsyslog.pid"));
    Ok(command)
}

fn syslog_ng_command(bench: &Bench, port: u16, out: &Path) -> Result<Command, Failure> {
    let config = format!(
        "@version: 3.38\noptions {{ keep-hostname(yes); stats-freq(0); log-fifo-size(1000000); }};\n\
         source s {{ network(ip(127.0.0.1) port({port}) transport(tcp) log-iw-size(10000)); }};\n\
         destination d {{ file(\"{}\" template(\"$MSG\\n\") flush-lines(1000)); }};\n\
         log {{ source(s); destination(d); flags(flow-control); }};\n",
        out.display()
    );
    let path = bench.work.join("syslog-ng.conf");
    fs::write(&path, config)?;
    let program = syslog_ng().unwrap_or_default();
    let mut command = Command::new(&program);
    // If syslog-ng was only unpacked into a directory, its libraries are in that directory, too.
    if let Some(root) = program
        .ancestors()
        .nth(3)
        .filter(|root| *root != Path::new("/"))
    {
        let libraries = root.join("usr/lib/syslog-ng");
        command.env("LD_LIBRARY_PATH", &libraries);
        if let Some(modules) = fs::read_dir(&libraries)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.is_dir())
        {
            command.arg("--module-path").arg(modules);
        }
    }
    command
        .args(["--foreground", "--no-caps", "--stderr", "--cfgfile"])
        .arg(path);
    for (option, name) in [
        ("--persist-file", "syslog-ng.persist"),
        ("--pidfile", "syslog-ng.pid"),
        ("--control", "syslog-ng.ctl"),
    ] {
        command.arg(option).arg(bench.work.join(name));
    }
    Ok(command)
}

fn rsyslogd() -> Option<PathBuf> {
    find("rsyslogd", "/usr/sbin/rsyslogd")
}

fn syslog_ng() -> Option<PathBuf> {
    find("syslog-ng", "target/clients/syslog-ng/usr/sbin/syslog-ng")
}

/// Finds a program in PATH, or at a fixed path.
fn find(name: &str, place: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .collect();
    places.push(place.into());
    let found = places.into_iter().find(|place| place.is_file())?;
    found.canonicalize().ok()
}
