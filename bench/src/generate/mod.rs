//! `millbench generate`: numbered records at a set rate or as fast as possible, into a file, over the forward protocol or syslog,
//! or to standard output.
//!
//! Every flow (a connection, or one of several sequences in a file) numbers its records from 0 and ends with a record that
//! carries their count, so that the verifier can detect each missing record.

mod chunk;
mod ledger;
mod lines;
mod options;
mod plan;
mod probe;
mod sender;
mod syslog;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

pub use chunk::Mode;
pub use ledger::Account as LedgerAccount;
pub use options::{Options, run_id};
pub use probe::Probe;

use crate::{
    Failure,
    record::FlowId,
    units::{bytes_text, count_text},
};
use chunk::Chunk;
use ledger::{Ledger, Page};
use plan::{Pace, Plan};
use sender::{Address, Manner, Sender, Sent};

/// The summary of a run, as `--json` prints it.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Acks that belong to no chunk in flight.
    pub strange_acks: u64,
    /// Flows whose server closed the connection cleanly after the last byte. Such a server has read everything.
    pub drained: usize,
    /// The number of flows.
    pub flows: usize,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    options.check()?;
    let started = Instant::now();
    let (id, sent) = match options.forward.as_ref().or(options.syslog.as_ref()) {
        Some(address) => send(options, address)?,
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

/// The start of a run: its ledger if there is one, its id and time, and the state of its flows.
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
    // The settings that determine the chunks. An existing ledger must have the same settings; its run id and time are reused.
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

fn send(options: &Options, address: &Address) -> Result<(u32, Vec<Sent>), Failure> {
    let begin = begin(options)?;
    let manner = Manner {
        address: address.clone(),
        send_buffer: usize::try_from(options.send_buffer).unwrap_or(usize::MAX),
        congestion_control: options.congestion_control.clone(),
        acks: options.acks,
        window: options.window,
        ack_timeout: options.ack_timeout,
        // Over UDP, each record needs a separate write, because each datagram is one message.
        single_writes: options.single_writes || matches!(address, Address::Udp(_)),
        repeat: options.repeat,
        give_up: options.give_up,
        tls: match &options.tls_ca {
            Some(ca) => Some(crate::tls::client(ca)?),
            None => None,
        },
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
            chunk: Chunk::new(options.shape(options.mode(), begin.base), id),
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
                "; {} connections broke, {} chunks sent again, {} acks matched no chunk",
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
