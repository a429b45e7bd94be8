//! Where a consumer takes its batches from, and where checkpoints are made.
//!
//! `read -> decode -> send -> keep -> [take] -> process -> encode -> write -> settle`
//!
//! A consumer gets batches and, between them, checkpoints. A checkpoint says: make durable what all batches before it became, then
//! settle it. Checkpoints come by bytes and time, and at once when somebody waits for an answer and nothing more is ready. It
//! promises that a batch is settled only through the checkpoint behind it, and that checkpoints are settled in their order.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use millstream_record::{Batch, Position};
use tokio::time::{Instant, Sleep, sleep_until};

#[cfg(test)]
mod tests;

use crate::{
    channel::{Bounds, Delivered, Reader},
    condition::Condition,
    delivery::{Receipt, Token},
    failure::Failure,
    meters::{Meter, NodeMeters},
    outlet::Outlet,
    reject,
    stop::Stop,
    tags::TagFilter,
};

/// A checkpoint comes when this much has come since the last.
const CHECKPOINT_BYTES: usize = 64 << 20;
/// A checkpoint comes when the first batch since the last is this old.
pub const CHECKPOINT_AGE: Duration = Duration::from_secs(1);

/// What a consumer gets.
#[derive(Debug)]
pub enum Item {
    /// The next batch; behind a durable channel with its position.
    Batch(Batch, Option<Position>),
    /// Everything before it can be made durable and settled now.
    Checkpoint(Checkpoint),
}

/// A point between batches. Dropping it unsettled fails what stands before it.
#[derive(Debug)]
pub struct Checkpoint {
    position: Option<Position>,
    tokens: Vec<Token>,
    rejected: Vec<Receipt>,
    records: u64,
    rejected_records: u64,
}

impl Checkpoint {
    /// Behind a durable channel: the position of the last batch before the checkpoint, once what was rejected before it is kept. A
    /// sink that can commits it together with its data: what stands before it is never read again.
    pub async fn kept(&mut self) -> Result<Option<Position>, Failure> {
        for receipt in self.rejected.drain(..) {
            let failed =
                |_| Failure::us("what was rejected could not be kept; it is rejected again");
            receipt.await.map_err(failed)?;
        }
        Ok(self.position)
    }
}

/// One consumer's way in. Belongs to one task; lives on when the consumer is started anew.
pub struct Inlet {
    reader: Box<dyn Reader>,
    channel: Option<u128>,
    rejects: Outlet,
    node: Arc<str>,
    stop: Stop,
    tags: Option<TagFilter>,
    open: Checkpoint,
    open_bytes: usize,
    awaited: bool,
    due: Option<Pin<Box<Sleep>>>,
    ended: bool,
    /// Up to where batches of a durable channel are counted as received: after a failure they are read again.
    counted: Option<Position>,
    /// Holds while the consumer's runs fail.
    failing: Option<Arc<Condition>>,
    received: Meter,
    received_bytes: Meter,
    settled: Meter,
    delivered: Meter,
}

impl Inlet {
    /// The inlet of `node` over a reader of the channel with the id `channel`. `stop` ends it early, but only behind a
    /// durable channel, which keeps what was not read.
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
            tags: None,
            open: Checkpoint::empty(),
            open_bytes: 0,
            awaited: false,
            due: None,
            ended: false,
            counted: None,
            failing: None,
            received: meters.counter("records_received"),
            received_bytes: meters.counter("bytes_received"),
            settled: meters.counter("records_settled"),
            delivered: meters.counter("records_delivered"),
        }
    }

    /// Takes only batches with these tags; the others are settled with the checkpoints they stand before.
    #[must_use]
    pub fn with_tags(mut self, tags: Option<TagFilter>) -> Self {
        self.tags = tags;
        self
    }

    /// What is settled clears this condition: the consumer works again.
    pub(crate) fn clears(&mut self, failing: Arc<Condition>) {
        self.failing = Some(failing);
    }

    /// The id of the durable channel behind it, None for memory. A sink keeps it beside its position: positions of
    /// another channel mean nothing.
    pub fn channel_id(&self) -> Option<u128> {
        self.channel
    }

    /// Begins, or begins anew: after the position that the sink has committed, if it owns one, else after the channel's
    /// cursor. What was taken and not settled is failed (memory) or read again (durable).
    pub fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        self.open = Checkpoint::empty();
        self.open_bytes = 0;
        self.awaited = false;
        self.due = None;
        // What was read to its end may have to be read again.
        self.ended = false;
        self.reader.resume(after)
    }

    /// The channel's cursor for this consumer; None behind memory. A sink that commits positions only with data resumes at the
    /// later of the two: what became nothing was settled without a position of its own.
    pub fn settled(&self) -> Option<Position> {
        self.reader.settled()
    }

    /// What the channel knows of this consumer's position for sure; None behind memory.
    pub fn bounds(&self) -> Option<Bounds> {
        self.reader.bounds()
    }

    /// Moves the cursor to where the sink has committed: a run that was killed in between could not.
    pub fn settle_through(&mut self, position: Position) -> Result<(), Failure> {
        match self.settled() {
            Some(settled) if settled < position => self.reader.commit(position),
            _ => Ok(()),
        }
    }

    /// A checkpoint behind the last batch that was taken, for a sink that wants to settle now; None if nothing was taken since the
    /// last one.
    pub fn checkpoint_now(&mut self) -> Option<Checkpoint> {
        match self.checkpoint()? {
            Item::Checkpoint(checkpoint) => Some(checkpoint),
            Item::Batch(..) => None,
        }
    }

    /// Whether the channel is nearly full: a sink that holds checkpoints back settles them soon.
    pub fn hurry(&self) -> bool {
        self.reader.hurry()
    }

    /// The next event; None when there will be no more. Can be dropped and called again without losing anything.
    pub async fn next(&mut self) -> Result<Option<Item>, Failure> {
        if self.channel.is_some() && !self.ended {
            // What a durable channel holds can wait for the next start.
            let mut stop = self.stop.clone();
            tokio::select! {
                biased;
                () = stop.stopped() => self.ended = true,
                event = poll_fn(|context| self.poll_item(context)) => return event,
            }
        }
        poll_fn(|context| self.poll_item(context)).await
    }

    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Item>, Failure>> {
        while !self.ended {
            if self.open_bytes >= CHECKPOINT_BYTES || (self.open_bytes > 0 && self.reader.hurry()) {
                return Poll::Ready(Ok(self.checkpoint()));
            }
            match self.reader.poll_next(context)? {
                Poll::Ready(Some(delivered)) => {
                    if let Some(event) = self.take(delivered) {
                        return Poll::Ready(Ok(Some(event)));
                    }
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending if self.awaited => return Poll::Ready(Ok(self.checkpoint())),
                Poll::Pending => {
                    let Some(due) = &mut self.due else {
                        return Poll::Pending;
                    };
                    std::task::ready!(due.as_mut().poll(context));
                    return Poll::Ready(Ok(self.checkpoint()));
                }
            }
        }
        Poll::Ready(Ok(self.checkpoint()))
    }

    /// Counts a batch into the open checkpoint; None if its tag is not for this consumer.
    fn take(&mut self, delivered: Delivered) -> Option<Item> {
        let Delivered {
            batch,
            position,
            token,
        } = delivered;
        if self.due.is_none() {
            self.due = Some(Box::pin(sleep_until(Instant::now() + CHECKPOINT_AGE)));
        }
        // An empty body still has to be settled.
        self.open_bytes += batch.len().max(1);
        self.open.position = position.or(self.open.position);
        if let Some(token) = token {
            self.awaited |= token.awaited();
            self.open.tokens.push(token);
        }
        if self
            .tags
            .as_ref()
            .is_some_and(|tags| !tags.takes(batch.tag.as_str()))
        {
            return None;
        }
        if position.is_none() || position > self.counted {
            self.counted = position;
            self.received.add(u64::from(batch.count));
            self.received_bytes.add(batch.len() as u64);
        }
        self.open.records += u64::from(batch.count);
        Some(Item::Batch(batch, position))
    }

    fn checkpoint(&mut self) -> Option<Item> {
        if self.open_bytes == 0 {
            return None;
        }
        self.open_bytes = 0;
        self.awaited = false;
        self.due = None;
        Some(Item::Checkpoint(std::mem::replace(
            &mut self.open,
            Checkpoint::empty(),
        )))
    }

    /// The consumer has made durable what everything before `checkpoint` became: settles it. Waits for what was rejected
    /// before it, moves the cursor of a durable channel and syncs it. Checkpoints are settled in their order.
    pub async fn settle(&mut self, mut checkpoint: Checkpoint) -> Result<(), Failure> {
        if let Some(position) = checkpoint.kept().await? {
            self.reader.commit(position)?;
        }
        checkpoint.tokens.into_iter().for_each(Token::settle);
        self.settled.add(checkpoint.records);
        let delivered = checkpoint
            .records
            .saturating_sub(checkpoint.rejected_records);
        self.delivered.add(delivered);
        if let Some(failing) = &self.failing {
            failing.clear();
        }
        Ok(())
    }

    /// Sends records that the destination refuses for good out by the port `NAME.rejected`: `records` are their original
    /// bytes, one item each. They are settled with the next checkpoint.
    pub async fn reject<'a>(
        &mut self,
        from: &Batch,
        records: impl IntoIterator<Item = &'a [u8]>,
        reason: &str,
    ) {
        let batch = reject::batch(&self.node, from, records, reason);
        self.open.rejected_records += u64::from(batch.count);
        let receipt = self.rejects.send(batch, true).await;
        self.open.rejected.push(receipt);
    }

    /// As [`Inlet::reject`], for records before a checkpoint that is out already: they are settled with it.
    pub async fn reject_before<'a>(
        &mut self,
        checkpoint: &mut Checkpoint,
        from: &Batch,
        records: impl IntoIterator<Item = &'a [u8]>,
        reason: &str,
    ) {
        let batch = reject::batch(&self.node, from, records, reason);
        checkpoint.rejected_records += u64::from(batch.count);
        let receipt = self.rejects.send(batch, true).await;
        checkpoint.rejected.push(receipt);
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
        }
    }
}
