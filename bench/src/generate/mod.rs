//! `millbench generate`: numbered records at a set rate or flat out, into a file, over the forward protocol, or to
//! standard output.
//!
//! Every flow (a connection, or one of several sequences in a file) numbers its records from 0 and ends with a record that
//! carries their count, so that the verifier can account for each of them.

mod chunk;
mod ledger;
mod lines;
mod plan;
mod sender;

use std::{
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use serde::Serialize;

pub use chunk::Mode;
pub use ledger::Account as LedgerAccount;

use crate::{
    Failure, record,
    record::FlowId,
    units::{self, bytes_text, count_text},
};
use chunk::{Chunk, Shape};
use ledger::{Ledger, Page};
use plan::{Pace, Plan};
use sender::{Address, Manner, Sender, Sent};

/// A chunk's bytes stay below this, so that its lengths fit the protocol's fields with room to spare.
const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// With a rate and no chunk size, a chunk is due so often per second and flow.
const CHUNKS_PER_SECOND: f64 = 20.0;
/// Records per chunk flat out: a megabyte of 122-byte records.
const CHUNK_DEFAULT: u32 = 8192;

/// Numbered records at a set rate or flat out.
///
/// Every record is a line of text that carries the run, the flow, its number and a check; `millbench verify` accounts for each of
/// them at the other end. Every flow ends with a record that carries the count.
///
/// Examples:
///   millbench generate --file app.log --records 1M
///   millbench generate --forward 127.0.0.1:24224 --acks --connections 2 --rate 100k --seconds 60 --ledger sent.ledger
///   millbench generate --stdout --records 10 | millstream run pipe.yaml
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
#[group(id = "target", required = true, args = ["file", "forward", "stdout"])]
pub struct Options {
    /// Append lines to this file; a file that was rotated away is followed by a new one
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Send to a forward server: HOST:PORT, or the path of a unix socket
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    forward: Option<Address>,
    /// Write lines to standard output
    #[arg(long)]
    stdout: bool,

    /// How many data records, over all flows (500k, 20M); without --records and --seconds it goes on until it is killed
    #[arg(long, value_name = "N", value_parser = units::count)]
    records: Option<u64>,
    /// Stop after so long (and still end every flow with its count)
    #[arg(long, value_name = "SECONDS", conflicts_with = "records")]
    seconds: Option<f64>,
    /// Records per second over all flows; flat out if not given. Who falls behind catches up, nothing is left out
    #[arg(long, value_name = "N", value_parser = units::count)]
    rate: Option<u64>,
    /// Length of a record's text in bytes, without the newline; in packed mode 100 makes records of 122 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    size: usize,
    /// Flows; with --forward each has its own connection
    #[arg(long, value_name = "N", default_value_t = 1, visible_alias = "flows")]
    connections: u16,
    /// Records per chunk (message mode: per large write) [default: 8192, with a rate a twentieth of a second's]
    #[arg(long, value_name = "RECORDS")]
    chunk: Option<u32>,
    /// How records travel in the forward protocol
    #[arg(long, value_enum, default_value_t = Mode::Packed)]
    mode: Mode,
    /// The tag of all records
    #[arg(long, default_value = "bench")]
    tag: String,

    /// Ask for an ack of every chunk (message mode: of every record), and send again until it comes
    #[arg(long, requires = "forward")]
    acks: bool,
    /// Chunks in flight per connection before an ack is awaited
    #[arg(long, value_name = "CHUNKS", default_value_t = 1, requires = "acks")]
    window: usize,
    /// Send everything in flight again, on a new connection, when no ack came for so long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    ack_timeout: Duration,
    /// Note what was acknowledged, synced, in this file; a generator started again with it sends the rest: the same chunks, the
    /// same ids, the same bytes
    #[arg(long, value_name = "PATH", requires = "acks")]
    ledger: Option<PathBuf>,
    /// End with an error when no server and no ack could be had for so long [default: go on for ever]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    give_up: Option<Duration>,

    /// SO_SNDBUF of the connections, as given to the kernel; 0 leaves the system's own. Large send buffers make the receiver's
    /// CPU do the sender's work on a loopback
    #[arg(long, value_name = "SIZE", default_value = "128KiB", value_parser = units::size)]
    send_buffer: u64,
    /// One write per record instead of one per chunk (message mode and lines)
    #[arg(long)]
    single_writes: bool,
    /// Send the first chunk's records for ever, only ids are new: for speed; the output cannot be verified
    #[arg(long, conflicts_with = "ledger")]
    repeat: bool,
    /// The run's id, eight hex digits [default: random]
    #[arg(long, value_name = "HEX", value_parser = run_id)]
    run: Option<u32>,
    /// Print the summary as JSON, on standard output (with --stdout: on standard error)
    #[arg(long)]
    json: bool,
}

/// What a run did, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The run's id.
    pub run: String,
    /// Data records, each counted once.
    pub records: u64,
    /// Bytes written, resends included.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// Records per second.
    pub rate: f64,
    /// Chunks sent more than once.
    pub resent: u64,
    /// Connections that broke.
    pub broken: u64,
    /// Acks that fit no chunk in flight.
    pub strange_acks: u64,
    /// Flows whose server closed in order after our last byte.
    pub drained: usize,
    /// Flows.
    pub flows: usize,
}

fn run_id(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 16)
        .map_err(|_| format!("`{text}` is no run id; write up to eight hex digits"))
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    options.check()?;
    let started = Instant::now();
    let (id, sent) = match &options.forward {
        Some(address) => forward(options, address)?,
        None => lines(options)?,
    };
    let summary = summarize(id, &sent, started.elapsed());
    if options.json {
        let text = serde_json::to_string(&summary)?;
        match options.stdout {
            true => eprintln!("{text}"),
            false => println!("{text}"),
        }
    } else {
        eprintln!("{}", summary.text());
    }
    Ok(ExitCode::SUCCESS)
}

impl Options {
    fn check(&self) -> Result<(), Failure> {
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
        if self.tag.is_empty() || self.tag.contains(char::is_whitespace) {
            return usage("--tag must be a word".into());
        }
        Ok(())
    }

    fn chunk_records(&self) -> u32 {
        let paced = self.rate.map_or(CHUNK_DEFAULT, |rate| {
            let each = rate as f64 / f64::from(self.connections) / CHUNKS_PER_SECOND;
            each.clamp(1.0, f64::from(CHUNK_DEFAULT)) as u32
        });
        self.chunk.unwrap_or(paced)
    }

    fn deadline(&self) -> Option<Instant> {
        let seconds = Duration::from_secs_f64(self.seconds?);
        Instant::now().checked_add(seconds)
    }

    /// The first flows take one more where the number does not divide.
    fn records_of(&self, flow: u16) -> Option<u64> {
        let (all, flows) = (self.records?, u64::from(self.connections));
        Some(all / flows + u64::from(u64::from(flow) < all % flows))
    }

    fn rate_of_one(&self) -> Option<f64> {
        Some(self.rate? as f64 / f64::from(self.connections))
    }

    fn shape(&self, mode: Mode, base: u32) -> Shape {
        Shape {
            mode,
            tag: self.tag.clone(),
            size: self.size,
            acks: self.acks,
            base,
        }
    }
}

fn now_seconds() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as u32)
}

fn random_run() -> Result<u32, Failure> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    Ok(u32::from_le_bytes(bytes))
}

fn lines(options: &Options) -> Result<(u32, Vec<Sent>), Failure> {
    let run = options.run.map_or_else(random_run, Ok)?;
    let mut output = match &options.file {
        Some(path) => lines::Output::file(path)?,
        None => lines::Output::stdout()?,
    };
    let deadline = options.deadline();
    let flow = |flow: u16| lines::Flow {
        plan: Plan::new(
            Page::default(),
            options.chunk_records(),
            options.records_of(flow),
            deadline,
        ),
        chunk: Chunk::new(options.shape(Mode::Lines, 0), FlowId { run, flow }),
    };
    let flows = (0..options.connections).map(flow).collect();
    let pace = Pace::new(options.rate.map(|rate| rate as f64));
    let sent = lines::run(&mut output, flows, pace, options.single_writes)?;
    Ok((run, vec![sent]))
}

/// The ledger of the run, or none; the run's id and time; what the ledger says of the flows.
struct Begin {
    run: u32,
    base: u32,
    ledger: Option<Ledger>,
    account: Option<LedgerAccount>,
}

fn begin(options: &Options) -> Result<Begin, Failure> {
    let run = options.run.map_or_else(random_run, Ok)?;
    let base = now_seconds();
    let Some(path) = &options.ledger else {
        return Ok(Begin {
            run,
            base,
            ledger: None,
            account: None,
        });
    };
    // What must be alike for the chunks to be alike; the run and the base are the ledger's.
    let shape = format!(
        "flows={} size={} chunk={} mode={:?} tag={}",
        options.connections,
        options.size,
        options.chunk_records(),
        options.mode,
        options.tag
    );
    let (ledger, account) = Ledger::open(path, &format!("run={run:08x} base={base} {shape}"))?;
    let same = shape.split(' ').all(|word| {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        account.setting(name) == Some(value)
    });
    let run = account.setting("run").and_then(|run| run_id(run).ok());
    let base = account.setting("base").and_then(|base| base.parse().ok());
    match (run, base) {
        (Some(run), Some(base)) if same && options.run.is_none_or(|asked| asked == run) => {
            Ok(Begin {
                run,
                base,
                ledger: Some(ledger),
                account: Some(account),
            })
        }
        _ => Err(Failure::Usage(format!(
            "{} is the ledger of a run with `{}`; start with the same settings, or name a new ledger",
            path.display(),
            account.settings
        ))),
    }
}

fn forward(options: &Options, address: &Address) -> Result<(u32, Vec<Sent>), Failure> {
    let begin = begin(options)?;
    let manner = Manner {
        address: address.clone(),
        send_buffer: usize::try_from(options.send_buffer).unwrap_or(usize::MAX),
        acks: options.acks,
        window: options.window,
        ack_timeout: options.ack_timeout,
        single_writes: options.single_writes,
        repeat: options.repeat,
        give_up: options.give_up,
    };
    let deadline = options.deadline();
    let sender = |flow: u16| {
        let page = begin
            .account
            .as_ref()
            .and_then(|account| account.flows.get(&flow));
        let page = page.cloned().unwrap_or_default();
        let (chunk, records) = (options.chunk_records(), options.records_of(flow));
        let id = FlowId {
            run: begin.run,
            flow,
        };
        Sender {
            flow,
            manner: &manner,
            plan: Plan::new(page, chunk, records, deadline),
            end: None,
            pace: Pace::new(options.rate_of_one()),
            chunk: Chunk::new(options.shape(options.mode, begin.base), id),
            ledger: begin.ledger.as_ref(),
        }
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..options.connections)
            .map(|flow| {
                let sender = sender(flow);
                scope.spawn(move || sender.run())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut sent = Vec::new();
    for result in results {
        match result {
            Ok(flow) => sent.push(flow?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    Ok((begin.run, sent))
}

fn summarize(run: u32, sent: &[Sent], wall: Duration) -> Summary {
    let sum = |what: fn(&Sent) -> u64| sent.iter().map(what).sum::<u64>();
    let seconds = wall.as_secs_f64();
    let records = sum(|flow| flow.records);
    Summary {
        run: format!("{run:08x}"),
        records,
        bytes: sum(|flow| flow.bytes),
        seconds,
        rate: records as f64 / seconds.max(1e-9),
        resent: sum(|flow| flow.resent),
        broken: sum(|flow| flow.broken),
        strange_acks: sum(|flow| flow.strange_acks),
        drained: sent.iter().filter(|flow| flow.drained).count(),
        flows: sent.len(),
    }
}

impl Summary {
    fn text(&self) -> String {
        let mut text = format!(
            "run {}: {} records, {} in {:.2} s = {} records/s",
            self.run,
            self.records,
            bytes_text(self.bytes as f64),
            self.seconds,
            count_text(self.rate)
        );
        if self.broken + self.resent + self.strange_acks > 0 {
            text += &format!(
                "; {} connections broke, {} chunks sent again, {} acks fitted nothing",
                self.broken, self.resent, self.strange_acks
            );
        }
        if self.drained < self.flows {
            text += &format!(
                "; {} of {} servers did not close after the last byte: what they read is not known",
                self.flows - self.drained,
                self.flows
            );
        }
        text
    }
}
