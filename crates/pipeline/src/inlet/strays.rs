//! Batches of a replay that are for a processor that is not in the consumer's chain.
//!
//! If it was there when the replay began, a reload or a restart has removed it since, and no other consumer answers for these records: they
//! leave by `NAME.rejected`. A pump has no such port: it fails, and the channel keeps them. Otherwise they are for another consumer.

use std::{
    future::ready as ready_with,
    task::{Context, Poll, ready},
};

use millstream_record::{Batch, Position};
use millstream_wire::record::records;

use super::{Inlet, Item};
use crate::{failure::Failure, reject, replay};

impl Inlet {
    /// Whether a batch is for another consumer.
    #[inline]
    pub(super) fn is_for_another(&self, batch: &Batch) -> bool {
        replay::address(batch).is_some() && !replay::is_by_way_of(batch, &self.node)
    }

    /// A batch for this consumer. One for a processor that is not here leaves by `NAME.rejected`.
    #[inline]
    pub(super) fn item(&mut self, batch: Batch, position: Option<Position>) -> Option<Item> {
        if replay::address(&batch).is_some() {
            self.reject_all(batch);
            return None;
        }
        Some(Item::Batch(batch, position))
    }

    fn reject_all(&mut self, batch: Batch) {
        let node = replay::address(&batch).unwrap_or_default();
        let reason = format!(
            "it was sent again to {node}, which is not in front of {} any more",
            self.node
        );
        if self.rejects.leads_nowhere() {
            let failure = Failure::us(format!(
                "{} records cannot be processed: {reason}; put it back and restart, or pass over them with `millstream channel skip`",
                batch.count
            ));
            self.strays = Some(Box::pin(ready_with(Err(failure))));
            return;
        }
        let batch = replay::unaddressed(batch);
        let records = records(&batch).map(|(range, _)| &batch.body[range]);
        let rejected = reject::batch(&self.node, &batch, records, &reason);
        self.next.rejected_records += u64::from(rejected.count);
        let rejects = self.rejects.clone();
        let sent = async move { Ok(rejects.send(rejected, true).await) };
        self.strays = Some(Box::pin(sent));
    }

    /// Waits until such records are on their way: they are settled with the next checkpoint.
    pub(super) fn poll_strays(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if let Some(strays) = &mut self.strays {
            let receipt = ready!(strays.as_mut().poll(context))?;
            self.next.rejected.push(receipt);
            self.strays = None;
        }
        Poll::Ready(Ok(()))
    }
}
