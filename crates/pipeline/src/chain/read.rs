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
    task::{Context, Poll, ready},
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
    /// `None` after a failure, until the consumer resumes.
    chain: Option<Chain>,
    /// Rejected records on their way to the port, before anything of their batch is delivered.
    rejecting: Option<Rejecting>,
    ready: VecDeque<Delivered>,
}

/// Rejected records are being sent. When they are, the batches beside them are delivered.
struct Rejecting {
    sends: BoxFuture<'static, Vec<Receipt>>,
    then: VecDeque<Delivered>,
}

impl ChainReader {
    /// A reader whose batches pass through the chain `plan`.
    pub(crate) fn new(
        reader: Box<dyn Reader>,
        plan: Arc<ChainPlan>,
        contexts: Vec<NodeContext>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            chain: Some(Chain::new(plan.clone(), &contexts)?),
            reader,
            plan,
            contexts,
            rejecting: None,
            ready: VecDeque::new(),
        })
    }

    /// Passes a delivered batch through the chain.
    fn process(&mut self, delivered: Delivered) -> Result<(), Failure> {
        let chain = match &mut self.chain {
            Some(chain) => chain,
            // Behind memory, a consumer continues without having resumed.
            none => none.insert(Chain::new(self.plan.clone(), &self.contexts)?),
        };
        let fed = chain.feed(delivered.entry, &delivered.batch);
        let Fed { batches, rejected } = fed.inspect_err(|_| self.chain = None)?;
        let then = outputs(delivered, batches);
        if rejected.is_empty() {
            self.ready = then;
        } else {
            let sends = Box::pin(send_all(rejected));
            self.rejecting = Some(Rejecting { sends, then });
        }
        Ok(())
    }
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
        (self.rejecting, self.ready) = (None, VecDeque::new());
        self.chain = Some(Chain::new(self.plan.clone(), &self.contexts)?);
        self.reader.resume(after)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        loop {
            if let Some(rejecting) = &mut self.rejecting {
                let receipts = ready!(rejecting.sends.as_mut().poll(context));
                let mut then = std::mem::take(&mut rejecting.then);
                if let Some(last) = then.back_mut() {
                    last.rejected = receipts;
                }
                (self.rejecting, self.ready) = (None, then);
            }
            if let Some(delivered) = self.ready.pop_front() {
                return Poll::Ready(Ok(Some(delivered)));
            }
            match ready!(self.reader.poll_next(context))? {
                Some(delivered) => self.process(delivered)?,
                None => return Poll::Ready(Ok(None)),
            }
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
