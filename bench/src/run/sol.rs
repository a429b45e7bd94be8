//! The scenario `sol`: see its README for what is measured.

use std::{
    hint::black_box,
    net::SocketAddr,
    sync::mpsc::{self, Receiver, SyncSender, TrySendError},
    thread,
    time::{Duration, Instant},
};

use super::{
    Bench, idle,
    process::{Usage, free_port},
    scenario::{By, Goal, Row, Run},
    server::Server,
    watched,
};
use crate::Failure;

/// Bytes of a message with its newline.
const MESSAGE: usize = 100;
/// The number of messages that each producer makes; the configurations state the same number.
const RECORDS: u64 = 100_000_000;
/// Bytes of a buffer of the bare loop, the reference that only copies messages (see [`bare`]).
const BUFFER: usize = 30_000;
/// The maximum number of full buffers that may wait for a consumer of the bare loop.
const BUFFERS: usize = 4;

const ONE: &str = include_str!("../../scenarios/sol/one.yaml");
const TWO: &str = include_str!("../../scenarios/sol/two.yaml");
const ACKED_BY: &str = include_str!("../../scenarios/sol/acked.yaml");
/// The number of messages that are timed, and the pause between them. All of them are sent while the producers run.
const MESSAGES: usize = 400;
const PAUSE: Duration = Duration::from_millis(2);
/// The limits of the mean and the 99th percentile of the times of these messages, in seconds.
const TIMES: Goal = Goal::Times(50e-6, 300e-6);
/// The metric of Millstream that holds the sum of the times from the source of these messages to their consumer.
const INSIDE_SUM: &str = "millstream_ack_seconds_sum{component=\"timed\"} ";

const BARE: &str = "bare loop, 2 threads";
const INSIDE: &str = "one message of 2+2 tasks, from its source to its consumer";
const ACKED: &str = "the same, from its sender and back";

/// Runs the scenario.
pub fn run(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let mut rows = vec![
        Row::new(BARE, true, Vec::new()),
        Row::new("1+1 tasks", false, Vec::new()),
        Row::new(
            "2+2 tasks",
            false,
            vec![
                Goal::Records(100e6),
                Goal::Share(0.4, BARE.to_owned(), By::Wall),
            ],
        ),
        Row::new(INSIDE, false, vec![TIMES]),
        Row::new(ACKED, false, vec![TIMES]),
    ];
    bench.choose(&mut rows);
    bench.rounds(rows, |row| {
        Ok(Some(match &*row.name {
            BARE => bare(bench),
            "1+1 tasks" => tasks(bench, 1)?,
            INSIDE => messages(bench, |address, api| {
                let mut before = seconds_inside(api)?;
                idle::timed(address, MESSAGES, PAUSE, |_| {
                    let sum = seconds_inside(api)?;
                    let seconds = sum - std::mem::replace(&mut before, sum);
                    // If the metrics have no time of this message, `seconds` is 0, and the message would count as very fast.
                    let is_timed = seconds > 0.0;
                    is_timed.then_some(seconds).ok_or_else(missing)
                })
            })?,
            ACKED => messages(bench, |address, _| idle::acked(address, MESSAGES, PAUSE))?,
            _ => tasks(bench, 2)?,
        }))
    })
}

/// Starts millstream with this number of producers and consumers, and measures until all messages are consumed.
fn tasks(bench: &Bench, tasks: u64) -> Result<Run, Failure> {
    let config = if tasks == 1 { ONE } else { TWO };
    let started = Instant::now();
    let server = Server::start(bench, config, &[])?;
    let settled = server.settled()?.duration_since(started);
    let usage = server.usage()?;
    let wrong = server.stop();
    Ok(Run {
        records: tasks * RECORDS,
        bytes: tasks * RECORDS * MESSAGE as u64,
        seconds: settled.as_secs_f64(),
        usage,
        latency: None,
        variant: None,
        wrong,
    })
}

/// Measures messages from a socket while two producers run. These messages pass through the same channel and the same consumers as those
/// of the producers. `times` receives the address for the messages and the address of the API. It sends the messages and measures their
/// times.
fn messages(
    bench: &Bench,
    times: impl FnOnce(SocketAddr, SocketAddr) -> Result<Run, Failure>,
) -> Result<Run, Failure> {
    let api = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut server = Server::start(bench, ACKED_BY, &[("API", &api.port().to_string())])?;
    server.ready()?;
    let before = server.usage()?;
    let mut run = times(server.address, api)?;
    let ended = Instant::now();
    run.usage = server.usage()?.since(before);
    let settled = server.settled()?;
    run.wrong = server.stop().or_else(|| {
        let words = "the producers had ended before the last message: raise their `records`";
        (settled < ended).then(|| words.to_owned())
    });
    Ok(run)
}

/// Reads the sum of the times that all messages so far took between their source and their consumer, in seconds.
fn seconds_inside(api: SocketAddr) -> Result<f64, Failure> {
    let page = watched::metrics(api)?;
    let sum = page.lines().find_map(|line| line.strip_prefix(INSIDE_SUM));
    let sum = sum.and_then(|sum| sum.parse().ok());
    sum.ok_or_else(missing)
}

fn missing() -> Failure {
    Failure::Other("the metrics have no `ack_seconds` of a message of `timed`".into())
}

/// Measures the bare loop: two threads that only copy messages into buffers and hand the buffers over to each other.
fn bare(bench: &Bench) -> Run {
    let time = Duration::from_secs_f64(bench.seconds);
    let started = Instant::now();
    let ways = [(); 2].map(|()| mpsc::sync_channel(BUFFERS));
    let consumers = ways.each_ref().map(|(to, _)| to.clone());
    let consumed: u64 = thread::scope(|scope| {
        let threads = ways.map(|(_, own)| {
            let consumers = consumers.clone();
            scope.spawn(move || Bare::new(consumers, own).run(time))
        });
        drop(consumers);
        let threads = threads.into_iter();
        threads.map(|thread| thread.join().unwrap_or(0)).sum()
    });
    Run {
        records: consumed,
        bytes: consumed * MESSAGE as u64,
        seconds: started.elapsed().as_secs_f64(),
        usage: Usage::default(),
        latency: None,
        variant: None,
        wrong: None,
    }
}

/// A thread of the bare loop. It is a producer and a consumer at the same time.
struct Bare {
    /// The consumers of both threads.
    consumers: [SyncSender<Vec<u8>>; 2],
    own: Receiver<Vec<u8>>,
    free: Vec<Vec<u8>>,
    consumed: u64,
}

impl Bare {
    fn new(consumers: [SyncSender<Vec<u8>>; 2], own: Receiver<Vec<u8>>) -> Self {
        Self {
            consumers,
            own,
            free: Vec::new(),
            consumed: 0,
        }
    }

    /// Produces and consumes for this time; returns the number of consumed messages.
    fn run(mut self, time: Duration) -> u64 {
        let messages: Vec<[u8; MESSAGE]> = (0..100).map(|n| [b'0' + n % 10; MESSAGE]).collect();
        let started = Instant::now();
        while started.elapsed() < time {
            let mut buffers = [self.buffer(), self.buffer()];
            for pair in messages
                .as_chunks::<2>()
                .0
                .iter()
                .cycle()
                .take(BUFFER / MESSAGE)
            {
                for (buffer, message) in buffers.iter_mut().zip(pair) {
                    buffer.extend_from_slice(black_box(message));
                }
            }
            for (consumer, buffer) in buffers.into_iter().enumerate() {
                self.hand_over(consumer, buffer);
            }
            self.consume();
        }
        self.consumed
    }

    fn buffer(&mut self) -> Vec<u8> {
        let free = self.free.pop();
        free.unwrap_or_else(|| Vec::with_capacity(BUFFER))
    }

    fn hand_over(&mut self, consumer: usize, mut buffer: Vec<u8>) {
        loop {
            match self.consumers[consumer].try_send(buffer) {
                // `Disconnected`: the other thread has ended.
                Ok(()) | Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(back)) => buffer = back,
            }
            self.consume();
        }
    }

    fn consume(&mut self) {
        for mut buffer in self.own.try_iter() {
            self.consumed += (black_box(&buffer).len() / MESSAGE) as u64;
            buffer.clear();
            self.free.push(buffer);
        }
    }
}
