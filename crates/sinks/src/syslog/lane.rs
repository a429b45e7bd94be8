//! From the inlet to the server: take, write, connect again, settle.
//!
//! `read -> decode -> send -> keep -> [take] -> process -> encode -> [write] -> [settle]`
//!
//! One task a lane, one connection. It promises that a checkpoint is settled only when the system has taken every message before
//! it, or it is kept among the rejected. Messages leave when `batch` is full or nothing more is ready.

use std::{ops::Range, time::Duration};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    failure::Failure,
    inlet::{Checkpoint, Inlet, Item},
    meters::Meter,
    node::SinkContext,
};
use millstream_record::Batch;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    Syslog,
    doubt::Doubt,
    link::{Ended, Link},
    messages::{DATAGRAM_BYTES_MAX, Messages},
};
use crate::{backoff::Backoff, parts::parts};

/// So much of a batch is made into messages at once: what they take beside stays bounded, however large a batch is.
const PART_BYTES_MAX: usize = 256 << 10;
const PART_RECORDS_MAX: usize = 4 << 10;

/// A connection that has lasted for this long after a write works.
const LASTING: Duration = Duration::from_secs(1);

/// One lane of the sink.
pub(super) struct Lane<'a> {
    sink: &'a Syslog,
    inlet: &'a mut Inlet,
    context: SinkContext,
    messages: Messages,
    link: Option<Link>,
    doubt: Doubt,
    backoff: Backoff,
    /// The server has failed and did not come back yet: since when.
    failing: Option<Instant>,
    /// When the connection was made, and whether anything was written to it.
    connected: Option<(Instant, bool)>,
    /// No connection is made before.
    not_before: Option<Instant>,
    /// Holds from a failure until a connection has lasted for [`LASTING`] after a write.
    unproven: Condition,
    /// When to look whether it has, or to connect again if there is nothing to write.
    look_at: Option<Instant>,
    /// When what waits leaves though it is not much.
    due: Option<Instant>,
    meters: LaneMeters,
}

struct LaneMeters {
    open: Meter,
    failed: Meter,
    unacknowledged: Meter,
    in_doubt: Meter,
    given_up: Meter,
}

/// What happened.
enum Next {
    Item(Option<Item>),
    Due,
    Look,
    Ended(Ended),
}

/// Whether to go on.
#[derive(PartialEq)]
enum Then {
    GoOn,
    /// The process wants to end and the server does not answer: what a durable channel holds goes out after the next
    /// start.
    Leave,
}

impl<'a> Lane<'a> {
    pub(super) fn new(sink: &'a Syslog, inlet: &'a mut Inlet, context: SinkContext) -> Self {
        let meters = &context.meters;
        let (first, max) = (sink.retry.first.as_duration(), sink.retry.max.as_duration());
        let seed = (std::process::id() as u64) << 8 | context.lane as u64;
        Self {
            messages: sink.messages(),
            link: None,
            doubt: Doubt::default(),
            backoff: Backoff::new(first, max, seed),
            failing: None,
            connected: None,
            not_before: None,
            unproven: context.reporter.condition("server"),
            look_at: None,
            due: None,
            meters: LaneMeters {
                open: meters.gauge("connections_open"),
                failed: meters.counter("connections_failed"),
                unacknowledged: meters.counter("records_unacknowledged"),
                in_doubt: meters.counter("records_in_doubt"),
                given_up: meters.counter("records_given_up"),
            },
            sink,
            inlet,
            context,
        }
    }

    /// Writes until the inlet has ended.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        self.inlet.resume(None)?;
        loop {
            let mut ended = false;
            let then = match self.next().await? {
                Next::Item(Some(Item::Batch(batch, _))) => self.batch(batch).await,
                Next::Item(Some(Item::Checkpoint(mut checkpoint))) => {
                    let then = self.flush(Some(&mut checkpoint)).await;
                    if then == Then::GoOn {
                        self.inlet.settle(checkpoint).await?;
                    }
                    then
                }
                Next::Item(None) => {
                    ended = true;
                    self.flush(None).await
                }
                Next::Due => self.flush(None).await,
                Next::Look => {
                    self.look().await;
                    Then::GoOn
                }
                Next::Ended(how) => {
                    self.broke(&how);
                    Then::GoOn
                }
            };
            if ended || then == Then::Leave {
                self.close().await;
                return Ok(());
            }
        }
    }

    async fn next(&mut self) -> Result<Next, Failure> {
        let (due, link) = (self.due, &mut self.link);
        let waits = !self.messages.is_empty();
        let look_at = self.look_at;
        let ended = async {
            match link {
                Some(link) => link.ended().await,
                None => std::future::pending().await,
            }
        };
        Ok(tokio::select! {
            biased;
            ended = ended => Next::Ended(ended),
            () = at(look_at) => Next::Look,
            item = self.inlet.next() => Next::Item(item?),
            () = at(due), if waits => Next::Due,
        })
    }

    async fn batch(&mut self, batch: Batch) -> Then {
        let fits = |bytes, records| bytes <= PART_BYTES_MAX && records <= PART_RECORDS_MAX;
        for part in parts(batch, fits) {
            let (mut rejects, mut long) = (Vec::new(), Vec::new());
            if self.messages.is_empty() {
                self.due = Some(Instant::now() + self.sink.batch.linger.as_duration());
            }
            self.messages.add(&part, &mut rejects, &mut long);
            for reject in rejects {
                self.reject(&part, &[reject.range], &reject.reason.to_string(), None)
                    .await;
            }
            if !long.is_empty() {
                let reason = format!("longer than a datagram may be ({DATAGRAM_BYTES_MAX} bytes)");
                self.reject(&part, &long, &reason, None).await;
            }
            if self.is_full() && self.flush(None).await == Then::Leave {
                return Then::Leave;
            }
        }
        Then::GoOn
    }

    fn is_full(&self) -> bool {
        let (bytes, records) = (self.sink.batch.size.as_usize(), self.sink.batch.records);
        let full = records > 0 && self.messages.count() >= records as usize;
        full || self.messages.len() >= bytes
    }

    /// Writes all that waits, however often the connection breaks. `checkpoint`: the one that all of it stands before.
    async fn flush(&mut self, mut checkpoint: Option<&mut Checkpoint>) -> Then {
        while !self.messages.is_empty() {
            let ended = match self.write().await {
                Ok(()) => break,
                Err(ended) => ended,
            };
            self.broke(&ended);
            let since = *self.failing.get_or_insert_with(Instant::now);
            let limit = self.sink.retry.give_up.0;
            if limit.is_some_and(|limit| since.elapsed() >= limit) {
                self.give_up(checkpoint.as_deref_mut()).await;
                break;
            }
            let wait = self.backoff.failed();
            if self.rest(wait).await == Then::Leave {
                return Then::Leave;
            }
        }
        self.due = None;
        Then::GoOn
    }

    /// Waits before the next try, unless the process wants to end and a durable channel keeps what is left.
    async fn rest(&mut self, wait: Duration) -> Then {
        let mut stop = self.context.stop.clone();
        let durable = self.inlet.channel_id().is_some();
        tokio::select! {
            () = stop.stopped(), if durable => Then::Leave,
            () = sleep(wait) => Then::GoOn,
        }
    }

    /// Writes all that waits to a connection, which it makes if there is none.
    async fn write(&mut self) -> Result<(), Ended> {
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
        // It has taken something: the next failure is the first.
        self.failing = None;
        self.backoff.reset();
        if let Some((_, wrote)) = &mut self.connected {
            *wrote = true;
        }
        if self.unproven.holds() && self.look_at.is_none() {
            self.look_at = Some(Instant::now() + LASTING);
        }
        Ok(())
    }

    async fn connect(&mut self) -> Result<(), Ended> {
        self.look_at = None;
        if let Some(at) = self.not_before.take() {
            sleep_until(at).await;
        }
        let link = Link::connect(self.sink, &self.context.reporter).await;
        self.link = Some(link.inspect_err(|_| self.meters.failed.add(1))?);
        self.connected = Some((Instant::now(), false));
        self.meters.open.add(1);
        Ok(())
    }

    /// Nothing waits: says that the server works again if the connection has lasted, or connects.
    async fn look(&mut self) {
        self.look_at = None;
        if self.link.is_some() {
            return self.proven();
        }
        let mut stop = self.context.stop.clone();
        let connected = tokio::select! {
            () = stop.stopped() => return,
            connected = self.connect() => connected,
        };
        let wait = match connected {
            Ok(()) => LASTING,
            Err(ended) => {
                self.broke(&ended);
                self.backoff.failed()
            }
        };
        self.look_at = Some(Instant::now() + wait);
    }

    /// The connection is gone, or there was none: says so, and what may be lost.
    fn broke(&mut self, ended: &Ended) {
        let (url, reporter) = (&self.sink.url, &self.context.reporter);
        let why = match ended {
            Ended::Closed => "it was closed by the server".to_owned(),
            Ended::Broken(error) => error.to_string(),
        };
        self.messages.rewind();
        self.look_at = None;
        let Some(link) = self.link.take() else {
            let waiting = self.messages.count();
            let text = format_args!("{url} cannot be reached ({why}); {waiting} messages wait");
            self.unproven.raise(Trouble::Retrying, text);
            return;
        };
        self.meters.open.sub(1);
        self.doubt.window(link.window());
        let lost = match link {
            // An error that is told for a datagram is of the one before: nobody was there.
            Link::Udp(_) => self.doubt.broken(1, true),
            _ => self
                .doubt
                .broken(link.unsent(), matches!(ended, Ended::Closed)),
        };
        self.meters.unacknowledged.add(lost.unacknowledged);
        self.meters.in_doubt.add(lost.in_doubt);
        let (sure, more) = (lost.unacknowledged, lost.in_doubt);
        let text = format_args!(
            "the connection to {url} is gone ({why}): {sure} records were not acknowledged by its system, and up to {more} before them may not have been read"
        );
        // A server that takes connections and closes them at once takes nothing: it speaks TLS, or another protocol.
        let made = self.connected.take();
        let is_short = made.is_some_and(|(at, wrote)| wrote && at.elapsed() < LASTING);
        if sure + more == 0 && !is_short {
            return reporter.info("disconnected", text);
        }
        self.unproven.raise(Trouble::Retrying, text);
        let next = Instant::now() + self.sink.retry.first.as_duration();
        (self.look_at, self.not_before) = (Some(next), Some(next));
    }

    /// Syslog servers do not answer: that a connection lasts is the most there is to see.
    fn proven(&mut self) {
        let wrote = self.connected.is_some_and(|(_, wrote)| wrote);
        if self.unproven.clear().is_some() && wrote {
            let text = format_args!("{} is connected again", self.sink.url);
            self.context.reporter.info("connected", text);
        }
    }

    async fn give_up(&mut self, mut checkpoint: Option<&mut Checkpoint>) {
        let (records, name) = (self.messages.count(), self.context.name.clone());
        let text = format_args!("{records} records that nobody took leave by {name}.rejected");
        self.context.reporter.error("give_up", text);
        self.meters.given_up.add(records as u64);
        for (batch, records) in self.messages.give_up() {
            let reason = "no server took it within `retry.give_up`";
            self.reject(&batch, &records, reason, checkpoint.as_deref_mut())
                .await;
        }
    }

    async fn reject(
        &mut self,
        batch: &Batch,
        records: &[Range<usize>],
        reason: &str,
        checkpoint: Option<&mut Checkpoint>,
    ) {
        let records = records
            .iter()
            .filter_map(|record| batch.body.get(record.clone()));
        match checkpoint {
            Some(checkpoint) => {
                self.inlet
                    .reject_before(checkpoint, batch, records, reason)
                    .await
            }
            None => self.inlet.reject(batch, records, reason).await,
        }
    }

    async fn close(&mut self) {
        if let Some(link) = self.link.take() {
            self.meters.open.sub(1);
            link.close().await;
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        if self.link.is_some() {
            self.meters.open.sub(1);
        }
    }
}
