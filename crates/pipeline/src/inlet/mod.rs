//! The input of a consumer: hands out its batches and makes its checkpoints.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> encode -> write -> [settle]`
//!
//! A consumer receives batches and, between them, checkpoints. At a checkpoint it makes everything that it wrote for earlier
//! batches durable, and then settles the checkpoint. A checkpoint is made after a number of bytes or a time, and immediately when a peer
//! waits for an answer and no batch is ready. A batch is settled only through the checkpoint that follows it, and checkpoints are settled
//! in order.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use millstream_record::{Batch, Position};
use tokio::time::{Instant, Sleep, sleep_until};

mod clocks;
mod strays;
#[cfg(test)]
mod tests;

use clocks::{Clocks, Stamps};
use strays::Strays;

use crate::{
    channel::{Bounds, Delivered, Reader},
    condition::Condition,
    delivery::{Receipt, Token},
    failure::Failure,
    meters::{Meter, NodeMeters},
    outlet::Outlet,
    reject, replay,
    seat::Call,
    stop::Stop,
    taps::{self, Point},
};

/// A checkpoint is made when this many bytes have arrived since the last one.
const CHECKPOINT_BYTES: usize = 64 << 20;
/// A checkpoint is made when the first batch since the last checkpoint arrived this long ago.
pub const CHECKPOINT_AGE: Duration = Duration::from_secs(1);

/// An item that a consumer gets from its inlet.
#[derive(Debug)]
pub enum Item {
    /// The next batch, with its position if it comes from a durable channel.
    Batch(Batch, Option<Position>),
    /// All batches before this checkpoint can be made durable and settled now.
    Checkpoint(Checkpoint),
}

/// A point between batches. If it is dropped before it is settled, the receipts of the batches before it fail.
#[derive(Debug)]
pub struct Checkpoint {
    position: Option<Position>,
    tokens: Vec<Token>,
    rejected: Vec<Receipt>,
    records: u64,
    rejected_records: u64,
    stamps: Stamps,
}

impl Checkpoint {
    /// Waits until the records that were rejected before the checkpoint are kept. Returns the position of the last batch before the
    /// checkpoint; `None` if the batches come from memory. A sink may commit the position together with its data; then nothing up to
    /// this position is read again.
    pub async fn kept(&mut self) -> Result<Option<Position>, Failure> {
        for receipt in self.rejected.drain(..) {
            let failed =
                |_| Failure::us("rejected records could not be kept; they are rejected again");
            receipt.await.map_err(failed)?;
        }
        Ok(self.position)
    }
}

/// The input of one consumer. Belongs to one task; survives a restart of the consumer.
pub struct Inlet {
    reader: Box<dyn Reader>,
    channel: Option<u128>,
    rejects: Outlet,
    node: Arc<str>,
    stop: Stop,
    /// Tells the inlet to end, because another sink takes over (`seat.rs`).
    call: Option<Arc<Call>>,
    /// The next checkpoint, to which the arriving batches are added.
    next: Checkpoint,
    next_bytes: usize,
    awaited: bool,
    /// Whether more batches with the position of the last batch follow.
    is_within: bool,
    due: Option<Pin<Box<Sleep>>>,
    ended: bool,
    /// The position up to which batches were counted as received. Batches that are read again after a failure are not counted twice.
    counted: Option<Position>,
    /// Raised while the runs of the consumer fail; cleared by a settled checkpoint.
    failing: Option<Arc<Condition>>,
    received: Received,
    settled: Meter,
    delivered: Meter,
    clocks: Clocks,
    tap: Point,
    /// Holds a batch of a replay (rejected records that were sent again) that this inlet rejects, until the batch has been sent through the
    /// port for rejected records. Until then, no checkpoint is made.
    strays: Strays,
}

impl Inlet {
    /// Returns the inlet of `node`. `channel` is the id of the durable channel that `reader` reads; `None` for memory. `stop` ends the
    /// inlet early only if it reads a durable channel, which keeps the unread batches.
    pub fn new(
        node: &str,
        reader: Box<dyn Reader>,
        channel: Option<u128>,
        rejects: Outlet,
        stop: Stop,
        meters: &NodeMeters,
    ) -> Self {
        Self {
            reader,
            channel,
            rejects,
            node: node.into(),
            stop,
            call: None,
            next: Checkpoint::empty(),
            next_bytes: 0,
            awaited: false,
            is_within: false,
            due: None,
            ended: false,
            counted: None,
            failing: None,
            received: Received::new(meters),
            settled: meters.counter("records_settled"),
            delivered: meters.counter("records_delivered"),
            clocks: Clocks::new(meters),
            tap: meters.tap(),
            strays: Strays::default(),
        }
    }

    /// Sets the condition that a settled checkpoint clears, because the consumer works again.
    pub(crate) fn clears(&mut self, failing: Arc<Condition>) {
        self.failing = Some(failing);
    }

    /// Hands the inlet to another sink. That sink uses the inlet until `stop` or `call` ends its turn.
    pub(crate) fn begin_turn(&mut self, stop: &Stop, call: Arc<Call>) {
        (self.stop, self.call) = (stop.clone(), Some(call));
    }

    /// Returns the id of the durable channel; `None` for memory. A sink stores the id beside its position, because a position means
    /// nothing in another channel.
    pub fn channel_id(&self) -> Option<u128> {
        self.channel
    }

    /// Starts or restarts reading after the position `after`, which the sink has committed; `None`: after the channel's cursor.
    /// Batches that were taken and not settled are read again from a durable channel; from memory they are dropped, and their
    /// receipts fail.
    pub fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        self.next = Checkpoint::empty();
        self.strays = Strays::default();
        self.clocks.start_over();
        self.next_bytes = 0;
        self.awaited = false;
        self.is_within = false;
        self.due = None;
        // The reader may have been at its end, and must read again.
        self.ended = false;
        self.reader.resume(after)
    }

    /// Returns the channel's cursor for this consumer; `None` for memory. A sink that commits positions only with data resumes after
    /// its own position or the cursor, whichever is later. The cursor is later if batches without records for the sink were settled,
    /// because the sink commits nothing for such batches.
    pub fn settled(&self) -> Option<Position> {
        self.reader.settled()
    }

    /// Returns the bounds that the channel knows for this consumer's position; `None` for memory.
    pub fn bounds(&self) -> Option<Bounds> {
        self.reader.bounds()
    }

    /// Moves the cursor forward to the position that the sink has committed. The two positions differ if an earlier run was killed between
    /// the commit of the sink and the commit of the cursor.
    pub fn settle_through(&mut self, position: Position) -> Result<(), Failure> {
        match self.settled() {
            Some(settled) if settled < position => self.reader.commit(position),
            _ => Ok(()),
        }
    }

    /// Makes a checkpoint after the last batch, for a sink that wants to settle now. `None` if no batch has arrived since the last
    /// checkpoint, or if more batches of the same position follow.
    pub fn checkpoint_now(&mut self) -> Option<Checkpoint> {
        match self.checkpoint()? {
            Item::Checkpoint(checkpoint) => Some(checkpoint),
            Item::Batch(..) => None,
        }
    }

    /// Whether more batches with the position of the last batch follow.
    pub fn is_within(&self) -> bool {
        self.is_within
    }

    /// Whether the channel is nearly full, so that a sink that delays checkpoints should settle them soon.
    pub fn hurry(&self) -> bool {
        self.reader.hurry()
    }

    /// Returns the next item; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Item>, Failure> {
        if self.channel.is_some() && !self.ended {
            // A durable channel keeps unread batches for the next start, so a stop ends the inlet. But the inlet never ends between
            // the batches of one position: no checkpoint would follow them, and a sink would publish them without a position.
            let mut stop = self.stop.clone();
            let mut stopped = pin!(stop.stopped());
            return poll_fn(|context| {
                if !self.is_within && !self.ended {
                    self.ended = stopped.as_mut().poll(context).is_ready();
                }
                self.poll_item(context)
            })
            .await;
        }
        poll_fn(|context| self.poll_item(context)).await
    }

    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Item>, Failure>> {
        self.ended |= self.is_called(context);
        while !self.ended {
            ready!(self.poll_strays(context))?;
            if self.is_due() {
                return Poll::Ready(Ok(self.checkpoint()));
            }
            match self.reader.poll_next(context)? {
                Poll::Ready(Some(delivered)) => {
                    if let Some(item) = self.count(delivered) {
                        return Poll::Ready(Ok(Some(item)));
                    }
                }
                Poll::Ready(None) => self.ended = true,
                // No checkpoint may come between the batches of one position.
                Poll::Pending if self.is_within => return Poll::Pending,
                Poll::Pending if self.awaited => return Poll::Ready(Ok(self.checkpoint())),
                Poll::Pending => {
                    let Some(due) = &mut self.due else {
                        return Poll::Pending;
                    };
                    ready!(due.as_mut().poll(context));
                    return Poll::Ready(Ok(self.checkpoint()));
                }
            }
        }
        ready!(self.poll_strays(context))?;
        Poll::Ready(Ok(self.checkpoint()))
    }

    /// Whether the sink must end its turn now. False while more batches of the last position follow, because the sink must take them first.
    fn is_called(&self, context: &Context<'_>) -> bool {
        let call = self.call.as_ref();
        !self.is_within && call.is_some_and(|call| call.is_called(context))
    }

    /// Adds a batch to the next checkpoint. Returns `None` for a batch without records for this consumer, which only advances the
    /// position.
    fn count(&mut self, delivered: Delivered) -> Option<Item> {
        let (batch, position) = (delivered.batch, delivered.position);
        if self.due.is_none() {
            let now = self.clocks.begin(&mut self.next.stamps, batch.received);
            self.due = Some(Box::pin(sleep_until(now + CHECKPOINT_AGE)));
        }
        // Counts at least one byte: an empty batch must be settled, too.
        self.next_bytes += batch.len().max(1);
        self.is_within = !delivered.last;
        self.next.rejected.extend(delivered.rejected);
        if let Some(token) = delivered.token {
            self.awaited |= token.awaited();
            self.next.tokens.push(token);
        }
        let is_new = position.is_none() || position > self.counted;
        if delivered.last {
            self.next.position = position.or(self.next.position);
            self.counted = self.counted.max(position);
        }
        if batch.count == 0 || strays::is_for_another(&batch, &self.node) {
            return None;
        }
        if is_new {
            self.received.count(&batch);
        }
        self.tap.see(taps::IN, std::slice::from_ref(&batch));
        self.next.records += u64::from(batch.count);
        self.next.stamps.add(batch.received);
        self.item(batch, position)
    }

    /// Returns the item for a batch. If it is a batch of a replay for a processor that is no longer in the chain, rejects its records
    /// and returns `None`.
    #[inline]
    fn item(&mut self, batch: Batch, position: Option<Position>) -> Option<Item> {
        if replay::address(&batch).is_none() {
            return Some(Item::Batch(batch, position));
        }
        self.next.rejected_records += self.strays.reject(batch, &self.node, &self.rejects);
        None
    }

    /// Waits until a rejected batch is sent. The next checkpoint waits for the receipt of this batch.
    fn poll_strays(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let receipt = ready!(self.strays.poll(context))?;
        self.next.rejected.extend(receipt);
        Poll::Ready(Ok(()))
    }

    /// Whether a checkpoint is due although more batches are ready.
    fn is_due(&self) -> bool {
        if self.is_within || self.next_bytes == 0 {
            return false;
        }
        let is_old = || {
            self.due
                .as_ref()
                .is_some_and(|due| due.deadline() <= Instant::now())
        };
        self.next_bytes >= CHECKPOINT_BYTES || self.reader.hurry() || is_old()
    }

    fn checkpoint(&mut self) -> Option<Item> {
        if self.next_bytes == 0 || self.is_within || !self.strays.is_empty() {
            return None;
        }
        (self.next_bytes, self.awaited, self.due) = (0, false, None);
        let mut next = std::mem::replace(&mut self.next, Checkpoint::empty());
        next.stamps.made = Some(Instant::now());
        Some(Item::Checkpoint(next))
    }

    /// Settles a checkpoint. The consumer must have made durable everything before it. Waits until the records rejected before it
    /// are kept, then moves and syncs the cursor of a durable channel. Checkpoints must be settled in order.
    pub async fn settle(&mut self, mut checkpoint: Checkpoint) -> Result<(), Failure> {
        if let Some(position) = checkpoint.kept().await? {
            self.reader.commit(position)?;
        }
        checkpoint.tokens.into_iter().for_each(Token::settle);
        self.settled.add(checkpoint.records);
        self.clocks.settle(&checkpoint.stamps);
        let delivered = checkpoint
            .records
            .saturating_sub(checkpoint.rejected_records);
        self.delivered.add(delivered);
        if let Some(failing) = &self.failing {
            failing.clear();
        }
        Ok(())
    }

    /// Rejects records that the destination will never accept: sends them through the port `NAME.rejected`. `records` has the original
    /// bytes of each record. The next checkpoint settles them.
    pub async fn reject<'a>(
        &mut self,
        from: &Batch,
        records: impl IntoIterator<Item = &'a [u8]>,
        reason: &str,
    ) {
        let records = records
            .into_iter()
            .inspect(|_| self.next.rejected_records += 1);
        let batch = reject::batch(&self.node, from, records, reason);
        let receipt = self.rejects.send(batch, true).await;
        self.next.rejected.push(receipt);
    }

    /// Waits until the records that were rejected since the last checkpoint are kept.
    pub async fn rejects_kept(&mut self) -> Result<(), Failure> {
        self.next.kept().await.map(drop)
    }

    /// Like [`Inlet::reject`], for records before a checkpoint that was already handed out. That checkpoint settles them.
    pub async fn reject_before<'a>(
        &mut self,
        checkpoint: &mut Checkpoint,
        from: &Batch,
        records: impl IntoIterator<Item = &'a [u8]>,
        reason: &str,
    ) {
        let records = records
            .into_iter()
            .inspect(|_| checkpoint.rejected_records += 1);
        let batch = reject::batch(&self.node, from, records, reason);
        let receipt = self.rejects.send(batch, true).await;
        checkpoint.rejected.push(receipt);
    }
}

/// The meters of the batches that an inlet receives.
struct Received {
    records: Meter,
    bytes: Meter,
    batches: Meter,
    /// The part of `records` that this inlet received; a sink that reads from memory has several inlets.
    task: Meter,
}

impl Received {
    fn new(meters: &NodeMeters) -> Self {
        Self {
            records: meters.counter("records_received"),
            bytes: meters.counter("bytes_received"),
            batches: meters.counter("batches_received"),
            task: meters.task("task_records"),
        }
    }

    fn count(&self, batch: &Batch) {
        self.records.add(u64::from(batch.count));
        self.bytes.add(batch.len() as u64);
        self.batches.add(1);
        self.task.add(u64::from(batch.count));
    }
}

impl Checkpoint {
    fn empty() -> Self {
        Self {
            position: None,
            tokens: Vec::new(),
            rejected: Vec::new(),
            records: 0,
            rejected_records: 0,
            stamps: Stamps::default(),
        }
    }
}
