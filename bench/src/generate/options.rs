//! The options of `millbench generate`, and the values derived from them.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::{ArgGroup, Args};

use super::{
    chunk::{Mode, Shape},
    sender::Address,
    syslog::{Form, Syslog},
};
use crate::{Failure, record, units};

/// The maximum size of a chunk in bytes. The limit keeps all lengths in a chunk within the protocol's 32-bit fields.
const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// The number of chunks per second that a flow sends if `--rate` is given but `--chunk` is not.
const CHUNKS_PER_SECOND: f64 = 20.0;
/// The default of `--chunk` if `--rate` is not given, in records: about a megabyte of 122-byte records. With `--rate`, the
/// default is at most this.
const CHUNK_DEFAULT: u32 = 8192;

/// Generates numbered records, at a set rate or as fast as possible.
///
/// Every record is a line of text that carries the run, the flow, its number and a check, so that
/// `millbench verify` can check at the other end whether each record arrived. Every flow ends with
/// a record that carries the count.
///
/// Examples:
///   millbench generate --file app.log --records 1M
///   millbench generate --forward 127.0.0.1:24224 --rate 100k --seconds 60
///   millbench generate --forward 127.0.0.1:24224 --acks --records 10M --ledger sent.ledger
///   millbench generate --syslog udp://127.0.0.1:514 --form rfc5424 --records 10k
///   millbench generate --stdout --records 10 | millstream run pipe.yaml
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment, group(ArgGroup::new("target").required(true).args(["file", "forward", "syslog", "stdout"])))]
pub struct Options {
    /// Append lines to this file; create it again after a rotation has renamed it
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Send to a forward server: HOST:PORT, or the path of a unix socket
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    pub forward: Option<Address>,
    /// Send syslog messages: tcp://HOST:PORT, udp://HOST:PORT, or the path of a unix socket
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse_syslog)]
    pub syslog: Option<Address>,
    /// Write lines to standard output
    #[arg(long)]
    pub stdout: bool,

    /// Number of data records over all flows (500k, 20M); without --records and --seconds, send until killed
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub records: Option<u64>,
    /// Stop after this time; every flow still ends with its count
    #[arg(long, value_name = "SECONDS", conflicts_with = "records")]
    pub seconds: Option<f64>,
    /// Records per second over all flows [default: as fast as possible]. A flow that falls behind catches up; no record is skipped
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub rate: Option<u64>,
    /// Length of a record's text in bytes, without the newline; in packed mode 100 makes records of 122 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub size: usize,
    /// Flows; with --forward each has its own connection
    #[arg(long, value_name = "N", default_value_t = 1, visible_alias = "flows")]
    pub connections: u16,
    /// Records per chunk (message mode: per large write) [default: 8192; with --rate at most the records of 50 ms]
    #[arg(long, value_name = "RECORDS")]
    pub chunk: Option<u32>,
    /// How records travel in the forward protocol
    #[arg(long, value_enum, default_value_t = Mode::Packed)]
    pub mode: Mode,
    /// The header format of syslog messages
    #[arg(long, value_enum, default_value_t = Form::Rfc3164)]
    pub form: Form,
    /// Frame syslog messages by octet counting (RFC 6587) instead of a newline at the end
    #[arg(long)]
    pub octets: bool,
    /// The tag of all records
    #[arg(long, default_value = "bench")]
    pub tag: String,

    /// Ask for an ack of every chunk (message mode: of every record), and resend the chunk until its ack arrives
    #[arg(long)]
    pub acks: bool,
    /// The most chunks in flight per connection; the next chunk waits for an ack
    #[arg(long, value_name = "CHUNKS", default_value_t = 1)]
    pub window: usize,
    /// Timeout of an ack. After it, all chunks in flight are sent again on a new connection
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    pub ack_timeout: Duration,
    /// Note acknowledged records in this file, durably. A generator that is started again with the file sends only the remaining
    /// chunks, with the same ids and bytes
    #[arg(long, value_name = "PATH")]
    pub ledger: Option<PathBuf>,
    /// Fail if connections keep failing and no ack arrives for this time [default: retry forever]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub give_up: Option<Duration>,

    /// SO_SNDBUF of the connections; 0 keeps the system's default. Over loopback, a large send buffer shifts work of the sender
    /// to the receiver's CPU time
    #[arg(long, value_name = "SIZE", default_value = "128KiB", value_parser = units::size)]
    pub send_buffer: u64,
    /// TCP congestion control of the connections, such as `cubic` [default: the system's]. BBR limits how many segments are in
    /// flight, so the sender's kernel merges small writes, and the receiver has less to do
    #[arg(long, value_name = "NAME")]
    pub congestion_control: Option<String>,
    /// Use TLS to the forward server. Its certificate must be for `localhost` and be signed by a root in this PEM file
    #[arg(long, value_name = "PATH", requires = "forward")]
    pub tls_ca: Option<PathBuf>,
    /// One write per record instead of one per chunk (message mode and lines)
    #[arg(long)]
    pub single_writes: bool,
    /// Send the first chunk's records in every chunk, with new ids: faster, but the output cannot be verified
    #[arg(long, conflicts_with = "ledger")]
    pub repeat: bool,
    /// The run's id, eight hex digits [default: random]
    #[arg(long, value_name = "HEX", value_parser = run_id)]
    pub run: Option<u32>,
    /// Print the summary as JSON, on standard output (with --stdout: on standard error)
    #[arg(long)]
    pub json: bool,
}

/// Reads a run's id.
pub fn run_id(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 16)
        .map_err(|_| format!("`{text}` is not a run id; write up to eight hex digits"))
}

impl Options {
    pub fn check(&self) -> Result<(), Failure> {
        let usage = |what: String| Err(Failure::Usage(what));
        if self.size < record::HEAD || self.size > record::TEXT_MAX {
            return usage(format!(
                "--size {}: a record needs {} bytes for its number and check, and has at most {}",
                self.size,
                record::HEAD,
                record::TEXT_MAX
            ));
        }
        if self.connections == 0
            || self.chunk == Some(0)
            || self.window == 0
            || self.rate == Some(0)
        {
            return usage("--connections, --chunk, --window and --rate must be at least 1".into());
        }
        if self
            .seconds
            .is_some_and(|seconds| !(seconds > 0.0 && seconds < 1e9))
        {
            return usage("--seconds must be more than 0".into());
        }
        if u64::from(self.chunk_records()) * (self.size as u64 + 100) > CHUNK_BYTES_MAX {
            return usage("a chunk would be larger than 1 GiB; take a smaller --chunk".into());
        }
        if self.single_writes && self.forward.is_some() && self.mode != Mode::Message {
            return usage(
                "--single-writes writes record by record, which needs --mode message (or lines)"
                    .into(),
            );
        }
        // With clap's `requires`, these options would be accepted without --forward: clap ignores a requirement if another
        // target, such as --file, excludes --forward.
        if self.forward.is_none() && (self.acks || self.ledger.is_some() || self.repeat) {
            return usage("--acks, --ledger and --repeat need --forward".into());
        }
        if self.ledger.is_some() && !self.acks {
            return usage("--ledger notes what was acknowledged, which needs --acks".into());
        }
        if self.tag.is_empty() || self.tag.contains(char::is_whitespace) {
            return usage("--tag must be a word".into());
        }
        Ok(())
    }

    /// The encoding of the records: syslog with `--syslog`, otherwise that of `--mode`.
    pub fn mode(&self) -> Mode {
        match &self.syslog {
            Some(address) => Mode::Syslog(Syslog {
                form: self.form,
                octets: self.octets,
                datagrams: matches!(address, Address::Udp(_)),
            }),
            None => self.mode,
        }
    }

    pub fn chunk_records(&self) -> u32 {
        let paced = self.rate.map_or(CHUNK_DEFAULT, |rate| {
            let each = rate as f64 / f64::from(self.connections) / CHUNKS_PER_SECOND;
            each.clamp(1.0, f64::from(CHUNK_DEFAULT)) as u32
        });
        self.chunk.unwrap_or(paced)
    }

    pub fn deadline(&self) -> Option<Instant> {
        let seconds = Duration::from_secs_f64(self.seconds?);
        Instant::now().checked_add(seconds)
    }

    /// The number of records of a flow; `None` without `--records`. If the total does not divide evenly, the first flows have one
    /// more.
    pub fn records_of(&self, flow: u16) -> Option<u64> {
        let (all, flows) = (self.records?, u64::from(self.connections));
        Some(all / flows + u64::from(u64::from(flow) < all % flows))
    }

    pub fn rate_of_one(&self) -> Option<f64> {
        Some(self.rate? as f64 / f64::from(self.connections))
    }

    pub fn shape(&self, mode: Mode, base: u32) -> Shape {
        Shape {
            mode,
            tag: self.tag.clone(),
            size: self.size,
            acks: self.acks,
            base,
        }
    }
}
