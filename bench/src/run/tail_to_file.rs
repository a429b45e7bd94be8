//! The scenario `tail_to_file`: see its README for what is measured.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::{
    Bench,
    process::Process,
    scenario::{Goal, Row, Run},
    server::{self, Server},
};
use crate::Failure;

/// The bytes of a line, including its newline.
const LINE: u64 = 100;
/// The timeout of a measurement.
const LIMIT: Duration = Duration::from_secs(120);

const DISCARD: &str = include_str!("../../scenarios/tail_to_file/discard.yaml");
const FILE: &str = include_str!("../../scenarios/tail_to_file/file.yaml");

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let row = |name: &str, goals| Row::new(name, !name.starts_with("tail"), goals);
    let mut rows = vec![
        row("bare read of the file", Vec::new()),
        row(
            "tail -> discard",
            vec![Goal::PerCpu(60e6), Goal::Memory(100_000_000)],
        ),
        row("cat to a new file, cold", Vec::new()),
        row("bare writer, new file, uncached", Vec::new()),
        row(
            "tail -> file",
            vec![Goal::PerCpu(15e6), Goal::Memory(100_000_000)],
        ),
    ];
    bench.choose(&mut rows);
    let input = bench.work.join("input.log");
    eprintln!("making {} lines of {LINE} bytes", bench.lines);
    let made = Command::new(&bench.millbench)
        .args(["generate", "--size", "99", "--file"])
        .arg(&input)
        .args(["--records", &bench.lines.to_string()])
        .output()?;
    if !made.status.success() {
        let error = String::from_utf8_lossy(&made.stderr);
        return Err(Failure::Other(format!("no input: {error}")));
    }
    bench.rounds(rows, |row| {
        server::warm(&input)?;
        measure(bench, &row.name, &input).map(Some)
    })
}

fn measure(bench: &Bench, row: &str, input: &Path) -> Result<Run, Failure> {
    let (path, bytes) = (input.to_string_lossy(), fs::metadata(input)?.len());
    let out = bench.work.join("out.log");
    match row {
        "bare read of the file" => server::reference(bench, &["reader", "--file", &path], LINE),
        "bare writer, new file, uncached" => {
            let directory = bench.work.join("writer");
            let (directory, bytes) = (directory.to_string_lossy(), format!("{bytes}B"));
            let arguments = [
                "writer",
                "--how",
                "uncached",
                "--directory",
                &directory,
                "--bytes",
                &bytes,
            ];
            server::reference(bench, &arguments, LINE)
        }
        "cat to a new file, cold" => cat(input, &out, bytes),
        "tail -> discard" => tail(bench, DISCARD, input, bytes, None),
        _ => tail(bench, FILE, input, bytes, Some(&out)),
    }
}

fn cat(input: &Path, out: &Path, bytes: u64) -> Result<Run, Failure> {
    let started = Instant::now();
    let process = Process::start(Command::new("cat").arg(input).stdout(File::create(out)?))?;
    let (status, usage) = process.finish()?;
    let seconds = started.elapsed().as_secs_f64();
    fs::remove_file(out)?;
    Ok(Run {
        records: bytes / LINE,
        bytes,
        seconds,
        usage,
        latency: None,
        variant: None,
        wrong: (!status.success()).then(|| format!("cat ended with {status}")),
    })
}

/// Starts millstream to tail the file. Measures from the start until millstream has read everything and, if there is an output,
/// written everything.
fn tail(
    bench: &Bench,
    config: &str,
    input: &Path,
    bytes: u64,
    out: Option<&Path>,
) -> Result<Run, Failure> {
    let path = input.to_string_lossy();
    let to = out.map(Path::to_string_lossy).unwrap_or_default();
    let settings = [("IN", &*path), ("OUT", &*to), ("THREADS", "1")];
    let started = Instant::now();
    let mut server = Server::start(bench, config, &settings)?;
    let written = |out: &Path| fs::metadata(out).map_or(0, |found| found.len());
    loop {
        let done = match out {
            Some(out) => written(out) >= bytes,
            None => server.usage()?.file_bytes_read >= bytes,
        };
        if done {
            break;
        }
        if !server.lives()? {
            return Err(server.explain("millstream ended early"));
        }
        if started.elapsed() > LIMIT {
            let how_far = format!(
                "after {LIMIT:?} only {} of {bytes} bytes were read and {} written",
                server.usage()?.file_bytes_read,
                out.map_or(0, written)
            );
            return Err(server.explain(&how_far));
        }
        thread::sleep(Duration::from_millis(2));
    }
    let settled = server.settled()?.duration_since(started);
    let usage = server.usage()?;
    let mut wrong = server.stop();
    if let Some(out) = out {
        wrong = wrong.or(server::outcome(out)?);
    }
    Ok(Run {
        records: bytes / LINE,
        bytes,
        seconds: settled.as_secs_f64(),
        usage,
        latency: None,
        variant: None,
        wrong,
    })
}
