//! `millstream tap`: shows a live sample of the records that pass a node.

use std::{
    io::{BufRead, Error, ErrorKind, IsTerminal, Write, stdout},
    path::PathBuf,
};

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::instance::Remote;
use crate::{exit, page, visible::visible};

/// Show a live sample of the records that pass a node of the running instance.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream tap web                               the records that leave the source `web`, until Ctrl-C
  millstream tap buffer --records 10               ten records that enter the channel `buffer`
  millstream tap levels --port errors              one port of a `route`
  millstream tap bus --port rejected | jq .record.reason

Records leave sources and processors by the port `out` or by a port of a `route`, and enter channels and sinks by `in`. Rejected records \
leave a node by `rejected`. A tap is a sample: it has at most `--rate` records per second, records of more than 16 KiB are shortened, and \
the data plane never waits for it. \
Values of the fields that `api.redact` names print as `***`.

Exit codes: 0 done, 1 there is no such node or no instance answers, 78 wrong configuration")]
pub struct Tap {
    /// The node.
    node: String,
    /// Configuration files and directories of the instance; only `api.listen` and `api.tls` are taken from them.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    #[command(flatten)]
    remote: Remote,
    /// Only this port.
    #[arg(long)]
    port: Option<String>,
    /// End after this many records.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,
    /// The most records in a second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rate: u64,
    /// The format. Default: text in a terminal, JSON elsewhere.
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// The format of a record.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Time, port, tag and record, one line each.
    Text,
    /// One JSON object per line.
    Json,
}

/// After this many read timeouts in a row (of five seconds each), the command ends with an error. A running instance sends at least an
/// empty line every twenty seconds.
const SILENT_MAX: u32 = 12;

/// The longest sample that an instance allows: a day.
const SECONDS: u64 = 86_400;

impl Tap {
    /// Shows records; returns the exit code.
    pub fn execute(self) -> u8 {
        let client = match self.remote.client(&self.config) {
            Ok(client) => client,
            Err(code) => return code,
        };
        let node: String = self.node.chars().map(page::coded).collect();
        let path = format!("/tap/{node}?seconds={SECONDS}&rate={}", self.rate);
        let answer = match client.stream(&path) {
            Ok(answer) => answer,
            Err(text) => return page::complain(&text, exit::FAILED),
        };
        match self.copy(answer.body) {
            Ok(()) => exit::DRAINED,
            Err(error) if error.kind() == ErrorKind::BrokenPipe => exit::DRAINED,
            Err(error) => {
                let text = format!("the instance at {client} has gone: {error}");
                page::complain(&text, exit::FAILED)
            }
        }
    }

    fn copy(&self, mut body: Box<dyn BufRead>) -> std::io::Result<()> {
        let is_text = match self.format {
            Some(format) => format == Format::Text,
            None => stdout().is_terminal(),
        };
        let (mut left, mut line) = (self.records.unwrap_or(u64::MAX), Vec::new());
        let mut silent = 0;
        while left > 0 {
            match body.read_until(b'\n', &mut line) {
                Ok(0) => return Ok(()),
                Ok(_) => silent = 0,
                // The read timed out. `line` keeps the part of a line that was read.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    silent += 1;
                    if silent == SILENT_MAX {
                        let why = "it has sent nothing for a minute";
                        return Err(Error::new(ErrorKind::TimedOut, why));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            let text = String::from_utf8_lossy(&line);
            if let Some(shown) = self.shown(text.trim_end(), is_text) {
                let mut out = stdout().lock();
                writeln!(out, "{shown}")?;
                out.flush()?;
                left -= 1;
            }
            line.clear();
        }
        Ok(())
    }

    /// The line to print for a record; `None` for an empty line and for other ports.
    fn shown(&self, line: &str, is_text: bool) -> Option<String> {
        let record: Value = serde_json::from_str(line).ok()?;
        let field = |name: &str| visible(record[name].as_str().unwrap_or_default()).into_owned();
        if self
            .port
            .as_ref()
            .is_some_and(|port| *port != field("port"))
        {
            return None;
        }
        if !is_text {
            return Some(line.to_owned());
        }
        let time = field("time");
        let clock = time.split_once('T').map_or(&*time, |(_, clock)| clock);
        let (port, tag) = (field("port"), field("tag"));
        Some(format!(
            "{clock}  {port}  {tag}  {}",
            visible(&record["record"].to_string())
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read, Result};

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        tap: Tap,
    }

    /// A connection that delivers these lines, one at every twelfth read, and then nothing. All other reads time out.
    struct Slow {
        lines: std::slice::Iter<'static, &'static [u8]>,
        reads: u32,
    }

    impl Read for Slow {
        fn read(&mut self, out: &mut [u8]) -> Result<usize> {
            self.reads += 1;
            if !self.reads.is_multiple_of(SILENT_MAX) {
                return Err(ErrorKind::WouldBlock.into());
            }
            let line = self.lines.next().ok_or(ErrorKind::WouldBlock)?;
            out[..line.len()].copy_from_slice(line);
            Ok(line.len())
        }
    }

    #[test]
    fn a_tap_ends_when_the_instance_gives_no_sign_of_life() {
        let copy = |lines: &'static [&'static [u8]]| {
            let line = Line::parse_from(["tap", "in", "--records", "1"]);
            let lines = lines.iter();
            let body = BufReader::new(Slow { lines, reads: 0 });
            line.tap.copy(Box::new(body))
        };
        let error = copy(&[b"\n", b"\n"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(copy(&[b"\n", b"{}\n"]).is_ok());
    }
}
