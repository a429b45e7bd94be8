//! The passage of a batch through a chain, portion by portion (`portion.rs`).
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`

use std::collections::VecDeque;

use millstream_record::{Batch, Charge, Position};

use super::{Chain, Fed, emptied, portion::Portions};
use crate::{channel::Delivered, delivery::Receipt, failure::Failure, outlet::Outlet};

/// The batches that a chain made from a portion of a batch.
#[derive(Default)]
pub(super) struct Output {
    pub(super) batches: VecDeque<Delivered>,
    /// Counts the memory of the batches.
    _charge: Option<Charge>,
    /// Whether the batch is processed again if its token is dropped.
    pub(super) comes_again: bool,
}

/// A batch that passes through a chain, portion by portion.
pub(super) struct Passage {
    pub(super) chain: Chain,
    pub(super) portions: Portions,
    /// The index of the chain's entry through which the batch came.
    pub(super) entry: usize,
    pub(super) position: Option<Position>,
    /// Whether no other batch of the position follows.
    pub(super) last: bool,
    /// The last output so far. It is held back, because it is the last of all if the other portions make nothing.
    pub(super) held: Option<Delivered>,
    /// The receipts of rejected records. The next output carries them.
    pub(super) rejected: Vec<Receipt>,
}

impl Output {
    /// A batch that passes through no chain.
    pub(super) fn of(delivered: Delivered) -> Self {
        Self {
            batches: [delivered].into(),
            ..Self::default()
        }
    }
}

impl Passage {
    /// Passes the next portions through the chain, until there is output. If no record of the whole batch is left, its output is an empty
    /// batch.
    pub(super) async fn proceed(mut self) -> Result<(Output, Self), Failure> {
        loop {
            let (batch, first) = self.portions.take();
            let Fed {
                batches,
                rejected,
                charge,
            } = self.chain.feed(self.entry, &batch, first).await?;
            self.rejected.extend(send_all(rejected).await);
            let output = |batch| Delivered {
                last: false,
                ..Delivered::new(batch, self.position, None)
            };
            let held = self.held.take().into_iter();
            let mut batches: VecDeque<_> = held.chain(batches.into_iter().map(output)).collect();
            match self.portions.is_done() {
                true if batches.is_empty() => batches.push_back(output(emptied(batch))),
                true => {}
                false => self.held = batches.pop_back(),
            }
            let Some(end) = batches.back_mut() else {
                continue;
            };
            end.rejected = std::mem::take(&mut self.rejected);
            end.last = self.last && self.portions.is_done();
            let output = Output {
                batches,
                _charge: charge,
                ..Output::default()
            };
            return Ok((output, self));
        }
    }
}

async fn send_all(rejected: Vec<(Outlet, Batch)>) -> Vec<Receipt> {
    let mut receipts = Vec::with_capacity(rejected.len());
    for (outlet, batch) in rejected {
        receipts.push(outlet.send(batch, true).await);
    }
    receipts
}
