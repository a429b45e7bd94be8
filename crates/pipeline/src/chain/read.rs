//! The chain in front of a sink: runs where the sink reads.
//!
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! A batch that the channel delivers becomes any number of batches. All but the last are marked as such, so no checkpoint falls between
//! them; where nothing is left, an empty batch moves the position. Rejected records leave first, and the batch is settled only when
//! they are kept.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
};

use millstream_record::{Batch, Position};

use super::{Chain, Fed, NodeContext, emptied};
use crate::{
    channel::{Bounds, BoxFuture, Delivered, Reader},
    delivery::Receipt,
    failure::Failure,
    outlet::Outlet,
    plan::ChainPlan,
};

/// Reads a channel through a chain.
pub(crate) struct ChainReader {
    reader: Box<dyn Reader>,
    plan: Arc<ChainPlan>,
    contexts: Vec<NodeContext>,
    /// `None` while a batch is in it, and after a failure until the consumer resumes.
    chain: Option<Chain>,
    /// A batch on its way through the chain. Nothing of it is delivered before its rejected records are sent.
    feeding: Option<Feeding>,
    ready: VecDeque<Delivered>,
    /// Other threads work for the chain: while the consumer has a batch, the next one is in the chain.
    reads_ahead: bool,
}

/// The output for a batch, and the chain for the next one.
type Feeding = BoxFuture<'static, Result<(Chain, VecDeque<Delivered>), Failure>>;

impl ChainReader {
    /// A reader whose batches pass through the chain `plan`.
    pub(crate) fn new(
        reader: Box<dyn Reader>,
        plan: Arc<ChainPlan>,
        contexts: Vec<NodeContext>,
    ) -> Result<Self, Failure> {
        let chain = Chain::new(plan.clone(), &contexts)?;
        Ok(Self {
            reads_ahead: chain.has_workers(),
            chain: Some(chain),
            reader,
            plan,
            contexts,
            feeding: None,
            ready: VecDeque::new(),
        })
    }

    /// Whether the next batch may enter the chain.
    fn has_room(&self) -> bool {
        let is_end = |delivered: &&Delivered| delivered.last;
        self.ready.is_empty() || (self.reads_ahead && self.ready.iter().filter(is_end).count() <= 1)
    }

    /// Starts a delivered batch on its way through the chain.
    fn begin(&mut self, delivered: Delivered) -> Result<(), Failure> {
        let chain = match self.chain.take() {
            Some(chain) => chain,
            // Behind memory, a consumer continues without having resumed.
            None => Chain::new(self.plan.clone(), &self.contexts)?,
        };
        self.feeding = Some(Box::pin(process(chain, delivered)));
        Ok(())
    }
}

/// Passes a delivered batch through the chain.
async fn process(
    mut chain: Chain,
    delivered: Delivered,
) -> Result<(Chain, VecDeque<Delivered>), Failure> {
    let Fed { batches, rejected } = chain.feed(delivered.entry, &delivered.batch).await?;
    let receipts = send_all(rejected).await;
    let mut outputs = outputs(delivered, batches);
    if let Some(last) = outputs.back_mut() {
        last.rejected = receipts;
    }
    Ok((chain, outputs))
}

async fn send_all(rejected: Vec<(Outlet, Batch)>) -> Vec<Receipt> {
    let mut receipts = Vec::with_capacity(rejected.len());
    for (outlet, batch) in rejected {
        receipts.push(outlet.send(batch, true).await);
    }
    receipts
}

/// The batches that became of `delivered`, at least one. The last one carries what settles it.
fn outputs(delivered: Delivered, batches: Vec<Batch>) -> VecDeque<Delivered> {
    let Delivered {
        batch,
        position,
        token,
        last,
        ..
    } = delivered;
    let output = |batch| Delivered {
        last: false,
        ..Delivered::new(batch, position, None)
    };
    let mut outputs: VecDeque<_> = batches.into_iter().map(output).collect();
    if outputs.is_empty() {
        outputs.push_back(output(emptied(batch)));
    }
    if let Some(end) = outputs.back_mut() {
        (end.token, end.last) = (token, last);
    }
    outputs
}

impl Reader for ChainReader {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        (self.feeding, self.ready) = (None, VecDeque::new());
        self.chain = Some(Chain::new(self.plan.clone(), &self.contexts)?);
        self.reader.resume(after)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        loop {
            if let Some(feeding) = &mut self.feeding {
                match feeding.as_mut().poll(context) {
                    Poll::Ready(fed) => {
                        self.feeding = None;
                        let (chain, outputs) = fed?;
                        self.chain = Some(chain);
                        self.ready.extend(outputs);
                    }
                    Poll::Pending => break,
                }
            }
            if !self.has_room() {
                break;
            }
            match self.reader.poll_next(context)? {
                Poll::Ready(Some(delivered)) => self.begin(delivered)?,
                Poll::Ready(None) if self.ready.is_empty() => return Poll::Ready(Ok(None)),
                _ => break,
            }
        }
        match self.ready.pop_front() {
            Some(delivered) => Poll::Ready(Ok(Some(delivered))),
            None => Poll::Pending,
        }
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        self.reader.commit(position)
    }

    fn settled(&self) -> Option<Position> {
        self.reader.settled()
    }

    fn bounds(&self) -> Option<Bounds> {
        self.reader.bounds()
    }

    fn hurry(&self) -> bool {
        self.reader.hurry()
    }
}
