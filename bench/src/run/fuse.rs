//! The scenarios `fuse_to_file` and `fuse_forward`: see their READMEs for what is measured.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    Bench,
    process::{Process, Usage},
    scenario::{By, Goal, Row, Run},
    server::{self, Server},
};
use crate::Failure;

/// Bytes of each input.
const INPUT_BYTES: u64 = 1 << 30;
/// The bytes of a line, including its newline.
const SIZES: [u64; 3] = [4096, 1024, 10];
/// The timeout of each step.
const LIMIT: Duration = Duration::from_secs(120);
/// The example program of libfuse, in Debian's package libfuse3-dev.
const EXAMPLE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough.c";

const FILE: &str = include_str!("../../scenarios/fuse_to_file/file.yaml");
const KEPT: &str = include_str!("../../scenarios/fuse_to_file/kept.yaml");
const SEND: &str = include_str!("../../scenarios/fuse_forward/send.yaml");
const RECEIVE: &str = include_str!("../../scenarios/fuse_forward/receive.yaml");

/// Runs `fuse_to_file`.
pub fn to_file(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for size in SIZES {
        let reference = format!("pass-through mount, {size} B");
        let mut goals = vec![Goal::Share(2.0, reference.clone(), By::Wall)];
        if size > 10 {
            goals.push(Goal::Bytes(1.2e9));
        }
        rows.push(Row::new(reference, true, Vec::new()));
        rows.push(Row::new(format!("mount -> file, {size} B"), false, goals));
        let kept = format!("mount -> disk channel -> file, {size} B");
        rows.push(Row::new(kept, false, Vec::new()));
    }
    measure_all(bench, rows)
}

/// Runs `fuse_forward`.
pub fn forward(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let row = |size: u64| {
        let goal = match size {
            10 => Goal::Records(20e6),
            _ => Goal::Bytes(800e6),
        };
        let name = format!("mount -> forward -> file, {size} B");
        Row::new(name, false, vec![goal])
    };
    measure_all(bench, SIZES.map(row).into())
}

fn measure_all(bench: &Bench, mut rows: Vec<Row>) -> Result<Vec<Row>, Failure> {
    bench.choose(&mut rows);
    let mount = bench.work.join("mnt");
    fs::create_dir_all(&mount)?;
    if rows.iter().any(|row| row.reference)
        && let Err(why) = build_pass_through(bench)
    {
        eprintln!("millbench: no pass-through mount to compare with: {why}");
        for row in rows.iter_mut().filter(|row| row.reference) {
            row.missing = Some(why.clone());
        }
    }
    bench.rounds(rows, |row| {
        let size = SIZES
            .into_iter()
            .find(|size| row.name.ends_with(&format!(", {size} B")));
        let size = size.unwrap_or(SIZES[0]);
        let input = input(bench, size)?;
        server::warm(&input)?;
        let run = match row.name.split(',').next() {
            Some("mount -> file") => through(bench, FILE, None, &input, size),
            Some("mount -> disk channel -> file") => through(bench, KEPT, None, &input, size),
            Some("mount -> forward -> file") => through(bench, SEND, Some(RECEIVE), &input, size),
            _ => pass_through(bench, &input, size),
        };
        run.map(Some)
    })
}

/// Returns the file of numbered lines of this size. Only the first call creates it.
fn input(bench: &Bench, size: u64) -> io::Result<PathBuf> {
    let path = bench.work.join(format!("input-{size}"));
    if path.exists() {
        return Ok(path);
    }
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
    let width = size as usize - 1;
    for n in 0..INPUT_BYTES / size {
        writeln!(file, "{n:0width$}")?;
    }
    file.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()?;
    Ok(path)
}

/// Copies a file with `cat` into the mount of one millstream, which writes it to a file or sends it to a second millstream.
fn through(
    bench: &Bench,
    config: &str,
    receive: Option<&str>,
    input: &Path,
    size: u64,
) -> Result<Run, Failure> {
    let (out, mount) = (bench.work.join("out.log"), bench.work.join("mnt"));
    let (to, at) = (out.to_string_lossy(), mount.to_string_lossy());
    let mut receiver = receive
        .map(|config| Server::start_as(bench, "receiver", config, &[("OUT", &*to)]))
        .transpose()?;
    let mut port = String::new();
    if let Some(receiver) = &mut receiver {
        receiver.ready()?;
        port = receiver.address.port().to_string();
    }
    let settings = [("OUT", &*to), ("MOUNT", &*at), ("TO", &*port)];
    let mut server = Server::start(bench, config, &settings)?;
    wait(&mut server, "the mount", || is_mount(&mount))?;
    let bytes = fs::metadata(input)?.len();
    // The first copy is not measured. It touches the memory and the files that millstream reuses.
    cat(input, &mount.join("warm"))?;
    wait(&mut server, "the first copy", || length(&out) >= bytes)?;
    settle(&server, receiver.as_ref())?;
    let before = both(&server, receiver.as_ref())?;
    let started = Instant::now();
    cat(input, &mount.join("file"))?;
    wait(&mut server, "the copy", || length(&out) >= 2 * bytes)?;
    let settled = settle(&server, receiver.as_ref())?.duration_since(started);
    let usage = both(&server, receiver.as_ref())?.since(before);
    let stopped = server.stop().or(receiver.and_then(Server::stop));
    let wrong = stopped.or(differs(input, &out)?);
    fs::remove_file(&out)?;
    Ok(run(bytes, size, settled, usage, wrong))
}

/// The path at which [`build_pass_through`] puts libfuse's example.
fn pass_through_program(bench: &Bench) -> PathBuf {
    bench.work.join("passthrough")
}

/// Compiles libfuse's example. The error is one line that names the cause.
fn build_pass_through(bench: &Bench) -> Result<(), String> {
    let script = format!(
        "cc -O2 -o '{}' {EXAMPLE} $(pkg-config --cflags --libs fuse3)",
        pass_through_program(bench).display()
    );
    let made = Command::new("sh").args(["-c", &script]).output();
    let made = made.map_err(|error| error.to_string())?;
    if made.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&made.stderr);
    let first = said.lines().find(|line| !line.is_empty());
    Err(format!(
        "it takes a C compiler, pkg-config and libfuse3-dev ({})",
        first.unwrap_or("the compiler failed without a word")
    ))
}

/// Copies a file with `cat` through libfuse's example.
fn pass_through(bench: &Bench, input: &Path, size: u64) -> Result<Run, Failure> {
    let (program, mount) = (pass_through_program(bench), bench.work.join("mnt"));
    let process = Process::start(Command::new(&program).arg("-f").arg(&mount))?;
    let started = Instant::now();
    while !is_mount(&mount) && started.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(5));
    }
    // The example shows the whole file system of the machine below its mount point.
    let out = bench.work.canonicalize()?.join("passed.log");
    let below = out.strip_prefix("/").unwrap_or(&out);
    let before = process.usage()?;
    let started = Instant::now();
    cat(input, &mount.join(below))?;
    let elapsed = started.elapsed();
    let usage = process.usage()?.since(before);
    process.stop(Duration::from_secs(10))?;
    let bytes = fs::metadata(input)?.len();
    let wrong = (length(&out) != bytes).then(|| "the copy is not whole".to_owned());
    fs::remove_file(&out)?;
    Ok(run(bytes, size, elapsed, usage, wrong))
}

fn run(bytes: u64, size: u64, time: Duration, usage: Usage, wrong: Option<String>) -> Run {
    Run {
        records: bytes / size,
        bytes,
        seconds: time.as_secs_f64(),
        usage,
        latency: None,
        variant: None,
        wrong,
    }
}

fn both(one: &Server, other: Option<&Server>) -> Result<Usage, Failure> {
    let mut usage = one.usage()?;
    if let Some(other) = other {
        let more = other.usage()?;
        usage.cpu_seconds += more.cpu_seconds;
        usage.switches += more.switches;
        usage.preemptions += more.preemptions;
        usage.faults += more.faults;
        usage.rss_peak = usage.rss_peak.max(more.rss_peak);
    }
    Ok(usage)
}

/// Waits until both servers have finished their input. Returns the later of the times at which they last used CPU.
fn settle(one: &Server, other: Option<&Server>) -> Result<Instant, Failure> {
    let first = one.settled()?;
    Ok(match other {
        Some(other) => first.max(other.settled()?),
        None => first,
    })
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

fn is_mount(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == path.to_str())
}

fn wait(server: &mut Server, what: &str, done: impl Fn() -> bool) -> Result<(), Failure> {
    let started = Instant::now();
    while !done() {
        if !server.lives()? || started.elapsed() > LIMIT {
            return Err(server.explain(&format!("timed out waiting for {what}")));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Runs `cat INPUT > TO`.
fn cat(input: &Path, to: &Path) -> Result<(), Failure> {
    let status = Command::new("cat")
        .arg(input)
        .stdin(Stdio::null())
        .stdout(File::create(to)?)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::Other(format!("cat ended with {status}"))),
    }
}

/// Describes how `out` differs from two consecutive copies of `input`; `None` if it does not.
fn differs(input: &Path, out: &Path) -> io::Result<Option<String>> {
    let mut out = BufReader::with_capacity(1 << 20, File::open(out)?);
    let (mut ours, mut theirs) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for _ in 0..2 {
        let mut input = File::open(input)?;
        loop {
            let read = input.read(&mut ours)?;
            if read == 0 {
                break;
            }
            out.read_exact(&mut theirs[..read])?;
            if ours[..read] != theirs[..read] {
                return Ok(Some("the output is not the input".to_owned()));
            }
        }
    }
    Ok(None)
}
