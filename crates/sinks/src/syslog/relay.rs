//! One lane of the sink: turns batches into messages, writes them, reconnects, and settles checkpoints.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> encode -> [write] -> [settle]`
//!
//! Each lane is a task with one connection. The task writes messages when the limits of the option `batch` are reached, when
//! nothing more is ready, and before each checkpoint. It promises that a checkpoint is settled only when, for each record before the
//! checkpoint, the operating system has accepted the message or the record was rejected.

use std::{ops::Range, sync::Arc, time::Duration};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    failure::Failure,
    inlet::Inlet,
    meters::Meter,
    node::SinkContext,
    stop::Stop,
};
use millstream_record::Batch;
use millstream_wire::format::Reject;
use tokio::time::{Instant, sleep_until};

use super::{
    doubt::Doubt,
    link::{End, Link},
    messages::{DATAGRAM_BYTES_MAX, Messages},
    sink::Syslog,
};
use crate::sending::{Input, Lane, Outage, Refused, parts, records_max, unencoded};

/// Bytes of a batch that are encoded at a time. This bounds the memory of messages even for large batches.
const PART_BYTES_MAX: usize = 256 << 10;
const PART_RECORDS_MAX: usize = 4 << 10;

/// Syslog servers do not answer. A connection counts as working if it lasts this long after a write, or after a reconnection
/// while there is nothing to write.
const LASTING: Duration = Duration::from_secs(1);

/// One lane of the sink.
pub(super) struct Relay<'a> {
    sink: &'a Syslog,
    lane: Lane<'a>,
    messages: Messages,
    link: Option<Link>,
    doubt: Doubt,
    outage: Outage,
    /// When the connection was made, and whether anything was written to it.
    connected: Option<(Instant, bool)>,
    /// The earliest time for the next connection.
    not_before: Option<Instant>,
    /// Raised at a failure. Cleared when a connection counts as working (see [`LASTING`]).
    unproven: Condition,
    /// When to check whether the connection has lasted. If there is no connection, when to reconnect although there is nothing to
    /// write.
    check_at: Option<Instant>,
    /// When waiting messages are written even if `batch` is not full.
    due: Option<Instant>,
    meters: Meters,
    stop: Stop,
}

struct Meters {
    open: Meter,
    failed: Meter,
    unacknowledged: Meter,
    in_doubt: Meter,
    given_up: Meter,
}

/// An event of the lane.
enum Event {
    Input(Input),
    /// `batch.linger` is over for the waiting messages.
    Due,
    /// It is time to check the connection.
    Check,
    /// The connection has ended.
    Ended(End),
}

/// The process stops while the server cannot be reached. A durable channel keeps the remaining records for the next start.
struct Stopped;

impl<'a> Relay<'a> {
    pub(super) fn new(sink: &'a Syslog, inlet: &'a mut Inlet, context: SinkContext) -> Self {
        let lane = Lane::new(inlet, context);
        let context = &lane.context;
        let meters = &context.meters;
        Self {
            messages: sink.messages(),
            link: None,
            doubt: Doubt::default(),
            outage: Outage::new(&sink.retry, context, lane.is_durable(), "server"),
            connected: None,
            not_before: None,
            unproven: context.reporter.condition("server"),
            check_at: None,
            due: None,
            meters: Meters {
                open: meters.gauge("connections_open"),
                failed: meters.counter("connections_failed"),
                unacknowledged: meters.counter("records_unacknowledged"),
                in_doubt: meters.counter("records_in_doubt"),
                given_up: meters.counter("records_given_up"),
            },
            stop: context.stop.clone(),
            sink,
            lane,
        }
    }

    /// Writes until the inlet has ended.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        self.lane.start()?;
        while !self.lane.has_ended() {
            let done = match self.next().await? {
                Event::Input(Input::Batch(batch, _)) => self.batch(batch).await,
                Event::Input(Input::Checkpoint | Input::End) | Event::Due => self.flush().await,
                Event::Input(Input::Tick) => Ok(()),
                Event::Check => {
                    self.check().await;
                    Ok(())
                }
                Event::Ended(end) => {
                    self.disconnected(&end);
                    Ok(())
                }
            };
            if let Err(Stopped) = done {
                break;
            }
            self.lane.settle().await?;
        }
        self.close().await;
        Ok(())
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        let (due, check_at, waits) = (self.due, self.check_at, !self.messages.is_empty());
        let link = &mut self.link;
        let ended = async {
            match link {
                Some(link) => link.ended().await,
                None => std::future::pending().await,
            }
        };
        Ok(tokio::select! {
            biased;
            end = ended => Event::Ended(end),
            () = at(check_at) => Event::Check,
            input = self.lane.next(true) => Event::Input(input?),
            () = at(due), if waits => Event::Due,
        })
    }

    async fn batch(&mut self, batch: Batch) -> Result<(), Stopped> {
        let number = self.lane.begin(batch.received);
        let records_max = records_max(&batch).min(PART_RECORDS_MAX);
        let fits = |bytes, records| bytes <= PART_BYTES_MAX && records <= records_max;
        for part in parts(batch, fits) {
            let (mut rejects, mut long) = (Vec::new(), Vec::new());
            if self.messages.is_empty() {
                self.due = Some(Instant::now() + self.sink.batch.linger.as_duration());
            }
            self.messages.add(number, &part, &mut rejects, &mut long);
            let refused = refused(rejects, long);
            self.lane.reject_refused(None, &part, &refused).await;
            let (bytes, messages) = (self.messages.len(), self.messages.count());
            if self.sink.batch.is_full(bytes, messages) {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Writes all waiting messages. Reconnects and continues each time the connection breaks.
    async fn flush(&mut self) -> Result<(), Stopped> {
        while !self.messages.is_empty() {
            let Err(end) = self.write().await else {
                break;
            };
            self.disconnected(&end);
            if self.outage.is_overdue() {
                self.give_up().await;
                break;
            }
            let wait = self.outage.failed();
            if !self.outage.wait(wait).await {
                return Err(Stopped);
            }
        }
        self.due = None;
        self.lane.finish_all();
        Ok(())
    }

    /// Writes all waiting messages. Connects first if there is no connection.
    async fn write(&mut self) -> Result<(), End> {
        if self.link.is_none() {
            self.connect().await?;
        }
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        while !self.messages.is_empty() {
            let wrote = link.write(self.messages.next()).await?;
            let doubt = &mut self.doubt;
            doubt.window(link.window());
            self.messages.wrote(wrote, |length| doubt.wrote(length));
        }
        link.flush().await?;
        self.outage.succeeded();
        if let Some((_, wrote)) = &mut self.connected {
            *wrote = true;
        }
        if self.unproven.holds() && self.check_at.is_none() {
            self.check_at = Some(Instant::now() + LASTING);
        }
        Ok(())
    }

    async fn connect(&mut self) -> Result<(), End> {
        self.check_at = None;
        if let Some(at) = self.not_before.take() {
            sleep_until(at).await;
        }
        let link = Link::connect(&self.sink.target, &self.lane.context.reporter).await;
        self.link = Some(link.inspect_err(|_| self.meters.failed.add(1))?);
        self.connected = Some((Instant::now(), false));
        self.meters.open.add(1);
        Ok(())
    }

    /// Clears the condition if the connection has lasted. Connects if there is no connection.
    async fn check(&mut self) {
        self.check_at = None;
        if self.link.is_some() {
            return self.proven();
        }
        let mut stop = self.stop.clone();
        let connected = tokio::select! {
            () = stop.stopped() => return,
            connected = self.connect() => connected,
        };
        let wait = match connected {
            Ok(()) => LASTING,
            Err(end) => {
                self.disconnected(&end);
                self.outage.failed()
            }
        };
        self.check_at = Some(Instant::now() + wait);
    }

    /// Reports a connection that broke or could not be made, and the number of records that may be lost.
    fn disconnected(&mut self, end: &End) {
        let (url, reporter) = (&self.sink.target.url, &self.lane.context.reporter);
        let why = match end {
            End::Closed => "the server closed it".to_owned(),
            End::Broken(error) => error.to_string(),
        };
        self.messages.rewind();
        self.check_at = None;
        let Some(link) = self.link.take() else {
            let waiting = self.messages.count();
            let text = format_args!("{url} cannot be reached ({why}); {waiting} messages wait");
            self.unproven.raise(Trouble::Retrying, text);
            return;
        };
        self.meters.open.sub(1);
        self.doubt.window(link.window());
        let lost = match link {
            // The error belongs to the previous datagram: no socket received it.
            Link::Udp(_) => self.doubt.broken(1, true),
            _ => self.doubt.broken(link.unsent(), matches!(end, End::Closed)),
        };
        self.meters.unacknowledged.add(lost.unacknowledged);
        self.meters.in_doubt.add(lost.in_doubt);
        let (sure, more) = (lost.unacknowledged, lost.in_doubt);
        let text = format_args!(
            "the connection to {url} is gone ({why}): the server's system has not acknowledged {sure} records, and its program may \
             not have read up to {more} before them"
        );
        // A server that accepts connections and closes them immediately reads no messages: it may expect TLS or another protocol.
        let made = self.connected.take();
        let is_short = made.is_some_and(|(at, wrote)| wrote && at.elapsed() < LASTING);
        if sure + more == 0 && !is_short {
            return reporter.info("disconnected", text);
        }
        self.unproven.raise(Trouble::Retrying, text);
        let next = Instant::now() + self.sink.retry.first.as_duration();
        (self.check_at, self.not_before) = (Some(next), Some(next));
    }

    /// Notes that the server works. Without answers, a lasting connection is the only proof.
    fn proven(&mut self) {
        let wrote = self.connected.is_some_and(|(_, wrote)| wrote);
        if self.unproven.clear().is_some() && wrote {
            let text = format_args!("{} is connected again", self.sink.target.url);
            self.lane.context.reporter.info("connected", text);
        }
    }

    async fn give_up(&mut self) {
        let reason = "no server took it within `retry.give_up`";
        let records = self.messages.count() as u64;
        self.lane.give_up(&self.meters.given_up, records, reason);
        for waiting in self.messages.give_up() {
            let records = waiting.records.iter();
            let records = records.filter_map(|record| waiting.batch.body.get(record.clone()));
            let number = Some(waiting.number);
            self.lane
                .reject(number, &waiting.batch, records, reason)
                .await;
        }
    }

    async fn close(&mut self) {
        if let Some(link) = self.link.take() {
            self.meters.open.sub(1);
            link.close().await;
        }
    }
}

/// The records (of one part of a batch) that cannot be sent, each with its reason.
fn refused(rejects: Vec<Reject>, long: Vec<Range<usize>>) -> Vec<Refused> {
    let mut refused: Vec<Refused> = rejects.into_iter().map(unencoded).collect();
    let reason: Arc<str> =
        format!("longer than a datagram may be ({DATAGRAM_BYTES_MAX} bytes)").into();
    refused.extend(long.into_iter().map(|range| (range, reason.clone())));
    refused
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

impl Drop for Relay<'_> {
    fn drop(&mut self) {
        if self.link.is_some() {
            self.meters.open.sub(1);
        }
    }
}
