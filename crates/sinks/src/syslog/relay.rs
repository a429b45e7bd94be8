//! One lane of the sink: turns batches into messages, writes them, reconnects, and settles checkpoints.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> encode -> [write] -> [settle]`
//!
//! Each lane is a task with one connection. The task writes messages when the limits of the option `batch` are reached, when
//! nothing more is ready, and before each checkpoint. It promises that a checkpoint is settled only when, for each record before the
//! checkpoint, the message is delivered or the record was rejected. A message is delivered when the server's system has acknowledged it,
//! and the connection has proven itself (`crate::sending::Trust`). Messages that are not delivered when a connection breaks are sent
//! again.

use std::{ops::Range, sync::Arc, time::Duration};

use millstream_net::{LOOKUP_AGE, has_moved};
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
use crate::sending::{
    Input, Lane, Outage, Refused, ShortLived, TLS_BYTES, Trust, parts, records_max, unencoded,
};

/// Bytes of a batch that are encoded at a time. This bounds the memory of messages even for large batches.
const PART_BYTES_MAX: usize = 256 << 10;
const PART_RECORDS_MAX: usize = 4 << 10;

/// Bytes of messages in memory at which the lane takes no more batches. More than a send buffer holds (net.ipv4.tcp_wmem: 4 MiB).
const HELD_BYTES_MAX: usize = 8 << 20;

/// How often the system is asked what the server's system has acknowledged: first after the shorter time, then less and less often.
const ASK_MIN: Duration = Duration::from_millis(1);
const ASK_MAX: Duration = Duration::from_millis(50);

/// How long a stop behind a durable channel, and the end of a connection to an old address, wait for the server's system to acknowledge the
/// last messages.
const GOODBYE: Duration = Duration::from_secs(1);

/// Syslog servers do not answer. A server that closes a connection before it has lasted this long has not taken what was written. A
/// reconnection counts as working if it lasts this long while there is nothing to write.
const LASTING: Duration = Duration::from_secs(1);

/// One lane of the sink.
pub(super) struct Relay<'a> {
    sink: &'a Syslog,
    lane: Lane<'a>,
    messages: Messages,
    link: Option<Link>,
    doubt: Doubt,
    outage: Outage,
    trust: Trust,
    short_lived: ShortLived,
    /// When the connection was made, and whether anything was written to it.
    connected: Option<(Instant, bool)>,
    /// When the name of the server was looked up.
    looked: Instant,
    /// When to ask next what is acknowledged, and the wait after that. `None` if everything written is delivered.
    ask: Option<(Instant, Duration)>,
    /// The earliest time for the next connection.
    not_before: Option<Instant>,
    /// Raised at a failure. Cleared when a message is delivered, or when a connection counts as working (see [`LASTING`]).
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
    /// It is time to ask what the server's system has acknowledged.
    Ask,
    /// The connection has ended.
    Ended(End),
    /// The process stops, and [`GOODBYE`] is over.
    Stopped,
}

/// The process stops while messages cannot be delivered. A durable channel keeps the remaining records for the next start.
struct Stopped;

/// Why writing ended.
enum Halt {
    End(End),
    Stopped,
}

impl From<End> for Halt {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

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
            trust: Trust::full(),
            short_lived: ShortLived::default(),
            connected: None,
            looked: Instant::now(),
            ask: None,
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

    /// Writes until the inlet has ended and everything is delivered.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        self.lane.start()?;
        while !(self.lane.has_ended() && self.messages.are_delivered()) {
            let done = match self.next().await? {
                Event::Input(Input::Batch(batch, _)) => self.batch(batch).await,
                Event::Input(Input::Checkpoint | Input::End) | Event::Due => self.flush().await,
                Event::Input(Input::Tick) => Ok(()),
                Event::Check => {
                    self.check().await;
                    Ok(())
                }
                Event::Ask => {
                    self.ask();
                    Ok(())
                }
                Event::Ended(end) => {
                    self.disconnected(&end);
                    Ok(())
                }
                Event::Stopped => Err(Stopped),
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
        let (due, check_at) = (self.due, self.check_at);
        let ask = self.ask.map(|(at, _)| at);
        let waits = !self.messages.are_written();
        let has_room = self.messages.held() < HELD_BYTES_MAX;
        let leaves = self.lane.has_ended() && self.lane.is_durable();
        let mut stop = self.stop.clone();
        let link = &mut self.link;
        let ended = async {
            match link {
                Some(link) => link.ended().await,
                None => std::future::pending().await,
            }
        };
        let goodbye = async {
            stop.stopped().await;
            tokio::time::sleep(GOODBYE).await;
        };
        Ok(tokio::select! {
            biased;
            end = ended => Event::Ended(end),
            () = at(ask) => Event::Ask,
            () = at(check_at) => Event::Check,
            input = self.lane.next(has_room) => Event::Input(input?),
            () = at(due), if waits => Event::Due,
            () = goodbye, if leaves => Event::Stopped,
        })
    }

    async fn batch(&mut self, batch: Batch) -> Result<(), Stopped> {
        let number = self.lane.begin(batch.received);
        let records_max = records_max(&batch).min(PART_RECORDS_MAX);
        let fits = |bytes, records| bytes <= PART_BYTES_MAX && records <= records_max;
        for part in parts(batch, fits) {
            let (mut rejects, mut long) = (Vec::new(), Vec::new());
            if self.messages.are_written() {
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
        self.messages.end_batch(number);
        self.finish_delivered();
        Ok(())
    }

    /// Writes all waiting messages. Reconnects and continues each time the connection breaks.
    async fn flush(&mut self) -> Result<(), Stopped> {
        while !self.messages.are_written() {
            if let Some(at) = self.not_before.take()
                && !self
                    .outage
                    .wait(at.saturating_duration_since(Instant::now()))
                    .await
            {
                return Err(Stopped);
            }
            match self.write().await {
                Ok(()) => break,
                Err(Halt::Stopped) => return Err(Stopped),
                Err(Halt::End(end)) => self.disconnected(&end),
            }
            if self.outage.is_overdue() {
                self.give_up().await;
            }
        }
        self.due = None;
        Ok(())
    }

    /// Writes all waiting messages. Connects first if there is no connection. Waits for proofs while the connection is not trusted.
    async fn write(&mut self) -> Result<(), Halt> {
        if self.has_moved().await {
            self.leave().await?;
        }
        if self.link.is_none() {
            self.connect().await?;
        }
        while !self.messages.are_written() {
            let room = self.trust.room();
            let Some(link) = &mut self.link else {
                return Ok(());
            };
            if room == 0 {
                link.flush().await?;
                self.prove().await?;
                continue;
            }
            let wrote = link.write(self.messages.next(room)).await?;
            self.doubt.window(link.window());
            self.messages.wrote(wrote);
            self.trust.wrote(wrote);
            if let Some((_, wrote)) = &mut self.connected {
                *wrote = true;
            }
        }
        if let Some(link) = &mut self.link {
            link.flush().await?;
        }
        self.ask = Some((Instant::now() + ASK_MIN, ASK_MIN));
        self.note_delivered();
        Ok(())
    }

    /// Whether the name of the server has lost the address of the connection. Looks the name up at most once in [`LOOKUP_AGE`].
    async fn has_moved(&mut self) -> bool {
        if self.looked.elapsed() < LOOKUP_AGE {
            return false;
        }
        let peer = self.link.as_ref().and_then(Link::peer);
        let (Some(peer), Some(address)) = (peer, self.sink.target.address()) else {
            return false;
        };
        self.looked = Instant::now();
        has_moved(&address, peer).await
    }

    /// Closes a connection to an address that the server has left, after what was written is delivered.
    async fn leave(&mut self) -> Result<(), Halt> {
        let since = Instant::now();
        while !self.messages.written_are_delivered() && since.elapsed() < GOODBYE {
            let Some(link) = &mut self.link else { break };
            tokio::select! {
                biased;
                end = link.ended() => return Err(end.into()),
                () = tokio::time::sleep(ASK_MIN) => {}
            }
            self.note_delivered();
        }
        self.disconnected(&End::Moved);
        Ok(())
    }

    /// Waits until the connection may write more.
    async fn prove(&mut self) -> Result<(), Halt> {
        let mut wait = ASK_MIN;
        while self.trust.room() == 0 {
            let Some(link) = &mut self.link else {
                return Ok(());
            };
            tokio::select! {
                biased;
                end = link.ended() => return Err(end.into()),
                waited = self.outage.wait(wait) => if !waited {
                    return Err(Halt::Stopped);
                },
            }
            wait = (2 * wait).min(ASK_MAX);
            self.note_delivered();
        }
        Ok(())
    }

    /// Asks the system what is acknowledged. Plans the next time if something is not delivered then.
    fn ask(&mut self) {
        self.note_delivered();
        let done = self.messages.are_delivered() || self.link.is_none();
        self.ask = self.ask.filter(|_| !done).map(|(_, wait)| {
            let wait = (2 * wait).min(ASK_MAX);
            (Instant::now() + wait, wait)
        });
    }

    /// Notes what is delivered. Everything that was written must be flushed.
    fn note_delivered(&mut self) {
        let unsent = self.link.as_ref().map_or(0, Link::unsent);
        let bytes = self.trust.note(unsent);
        self.deliver(bytes);
    }

    /// Notes that the first `bytes` bytes that were written to the current connection count as delivered.
    fn deliver(&mut self, bytes: u64) {
        let (doubt, mut any) = (&mut self.doubt, false);
        self.messages.deliver(bytes, |length| {
            doubt.delivered(length);
            any = true;
        });
        if any {
            self.outage.accepted();
            self.proven();
            self.finish_delivered();
        }
    }

    fn finish_delivered(&mut self) {
        while let Some(number) = self.messages.take_delivered() {
            self.lane.finish(number);
        }
    }

    async fn connect(&mut self) -> Result<(), End> {
        self.check_at = None;
        let link = Link::connect(&self.sink.target, &self.lane.context.reporter).await;
        let link = link.inspect_err(|_| self.meters.failed.add(1))?;
        self.trust = match link.tells_what_is_read() {
            true => Trust::full(),
            false => Trust::new(self.short_lived),
        };
        self.link = Some(link);
        self.looked = Instant::now();
        self.connected = Some((Instant::now(), false));
        self.meters.open.add(1);
        if self.unproven.holds() && self.messages.are_written() {
            self.check_at = Some(Instant::now() + LASTING);
        }
        Ok(())
    }

    /// Clears the condition if the connection has lasted while there was nothing to write. Connects if there is no connection.
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
        if let Err(end) = connected {
            self.disconnected(&end);
        }
    }

    /// Handles a connection that has ended or could not be made: undelivered records are sent again, and records that may be lost are counted.
    fn disconnected(&mut self, end: &End) {
        (self.check_at, self.ask) = (None, None);
        let url = &self.sink.target.url;
        let Some(link) = self.link.take() else {
            let waiting = self.messages.count();
            let text = format_args!("{url} cannot be reached ({end}); {waiting} messages wait");
            self.unproven.raise(Trouble::Retrying, text);
            return self.back_off();
        };
        self.meters.open.sub(1);
        self.doubt.window(link.window());
        let (at, wrote) = (self.connected.take()).unwrap_or_else(|| (Instant::now(), false));
        let age = at.elapsed();
        let is_short = (wrote || !self.messages.are_written()) && age < LASTING;
        let read = matches!(end, End::Closed);
        let hidden = self.sink.target.tls.as_ref().map_or(0, |_| TLS_BYTES);
        let takes = !is_short || self.trust.has_proof();
        let delivered = self.trust.ended(link.unsent() + hidden, read && takes);
        self.deliver(delivered);
        let again = self.messages.rewind();
        if again > 0 {
            self.due = Some(Instant::now());
        }
        if matches!(end, End::Moved) {
            return;
        }
        let in_doubt = match link {
            // The error belongs to an earlier datagram: no socket received it.
            Link::Udp(_) => self.doubt.refused(),
            _ => self.doubt.broken(read),
        };
        self.meters.unacknowledged.add(again);
        self.meters.in_doubt.add(in_doubt);
        let hint = match is_short {
            true => "; it takes no connection for long: does it expect TLS or another protocol?",
            false => "",
        };
        let text = format_args!(
            "the connection to {url} is gone ({end}): {again} records are sent again, and its program may not have read up to {in_doubt} \
             before them{hint}"
        );
        if again + in_doubt == 0 && !is_short {
            return self.lane.context.reporter.info("disconnected", text);
        }
        self.unproven.raise(Trouble::Retrying, text);
        if self.short_lived.failed(age) {
            self.outage.progressed();
        }
        self.back_off();
    }

    /// Plans the next connection.
    fn back_off(&mut self) {
        let next = Instant::now() + self.outage.failed();
        (self.check_at, self.not_before) = (Some(next), Some(next));
    }

    /// Notes that the server works.
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
        self.finish_delivered();
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
