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

/// Batches that are in a chain at the same time, if it has threads: so many that the threads do not wait for the consumer or for each
/// other, and few enough that they stay in the cache.
const IN_FLIGHT: usize = 4;

/// Reads a channel through a chain.
pub(crate) struct ChainReader {
    reader: Box<dyn Reader>,
    plan: Arc<ChainPlan>,
    contexts: Vec<NodeContext>,
    /// Chains without a batch.
    idle: Vec<Chain>,
    /// The batches in a chain, in the order in which they were read. Each has its own, so that they do not wait for each other.
    flights: VecDeque<Flight>,
    /// The most of them: one, if all work is done here.
    flights_max: usize,
    ready: VecDeque<Delivered>,
}

/// A batch in a chain. Nothing of it is delivered before its rejected records are sent.
enum Flight {
    Flying(BoxFuture<'static, Result<(Chain, VecDeque<Delivered>), Failure>>),
    Landed(Result<VecDeque<Delivered>, Failure>),
}

impl ChainReader {
    /// A reader whose batches pass through the chain `plan`.
    pub(crate) fn new(
        reader: Box<dyn Reader>,
        plan: Arc<ChainPlan>,
        contexts: Vec<NodeContext>,
    ) -> Result<Self, Failure> {
        let chain = Chain::new(plan.clone(), &contexts)?;
        Ok(Self {
            flights_max: if chain.has_workers() { IN_FLIGHT } else { 1 },
            idle: vec![chain],
            reader,
            plan,
            contexts,
            flights: VecDeque::new(),
            ready: VecDeque::new(),
        })
    }

    /// Starts a delivered batch on its way through a chain.
    fn begin(&mut self, delivered: Delivered) -> Result<(), Failure> {
        let chain = match self.idle.pop() {
            Some(chain) => chain,
            None => Chain::new(self.plan.clone(), &self.contexts)?,
        };
        let flight = Box::pin(process(chain, delivered));
        self.flights.push_back(Flight::Flying(flight));
        Ok(())
    }

    /// Continues all batches in a chain.
    fn poll_flights(&mut self, context: &mut Context<'_>) {
        for flight in &mut self.flights {
            let Flight::Flying(flying) = flight else {
                continue;
            };
            if let Poll::Ready(landed) = flying.as_mut().poll(context) {
                let landed = landed.map(|(chain, outputs)| {
                    self.idle.push(chain);
                    outputs
                });
                *flight = Flight::Landed(landed);
            }
        }
    }

    /// Takes the output of the first batch, if it is there.
    fn take_landed(&mut self) -> Result<(), Failure> {
        match self.flights.pop_front() {
            Some(Flight::Landed(landed)) => self.ready = landed?,
            Some(flying) => self.flights.push_front(flying),
            None => {}
        }
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
        self.flights.clear();
        self.ready.clear();
        self.idle = vec![Chain::new(self.plan.clone(), &self.contexts)?];
        self.reader.resume(after)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        let mut is_ended = false;
        loop {
            self.poll_flights(context);
            if self.ready.is_empty() {
                self.take_landed()?;
            }
            let in_flight = self.flights.len() + usize::from(!self.ready.is_empty());
            if in_flight >= self.flights_max {
                break;
            }
            match self.reader.poll_next(context)? {
                Poll::Ready(Some(delivered)) => self.begin(delivered)?,
                Poll::Ready(None) => {
                    is_ended = true;
                    break;
                }
                Poll::Pending => break,
            }
        }
        match self.ready.pop_front() {
            None if is_ended && self.flights.is_empty() => Poll::Ready(Ok(None)),
            None => Poll::Pending,
            delivered => Poll::Ready(Ok(delivered)),
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
