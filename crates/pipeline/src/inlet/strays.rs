//! Strays: batches of a replay (rejected records that are sent again) for a processor that is not in the consumer's chain.
//!
//! If the processor was in front of this consumer when the replay began, a reload or a restart has removed the processor since then. No
//! other consumer handles these records, so this consumer rejects them through `NAME.rejected`. A pump has no such port: it fails, and
//! the channel keeps the records. A stray that was never meant for this consumer is ignored.

use std::{
    future::ready as ready_with,
    task::{Context, Poll, ready},
};

use millstream_record::Batch;
use millstream_wire::record::records;

use crate::{
    channel::BoxFuture, delivery::Receipt, failure::Failure, outlet::Outlet, reject, replay,
};

/// Whether a batch is meant for other consumers than `node`.
#[inline]
pub(super) fn is_for_another(batch: &Batch, node: &str) -> bool {
    replay::address(batch).is_some() && !replay::is_by_way_of(batch, node)
}

/// The stray that is being sent, if there is one. No other batch is read before it is sent.
#[derive(Default)]
pub(super) struct Strays(Option<BoxFuture<'static, Result<Receipt, Failure>>>);

impl Strays {
    /// Rejects a batch at `node`, and returns the number of records that leave through the port `rejects`. [`Strays::poll`] sends them,
    /// or fails if no node and no file takes the records of this port.
    pub(super) fn reject(&mut self, batch: Batch, node: &str, rejects: &Outlet) -> u64 {
        let gone = replay::address(&batch).unwrap_or_default();
        let reason =
            format!("it was sent again to {gone}, which is not in front of {node} any more");
        if rejects.leads_nowhere() {
            let failure = Failure::us(format!(
                "{} records cannot be processed: {reason}; put it back and reload, or pass over them with `millstream channel skip`",
                batch.count
            ));
            self.0 = Some(Box::pin(ready_with(Err(failure))));
            return 0;
        }
        let batch = replay::unaddressed(batch);
        let records = records(&batch).map(|(range, _)| &batch.body[range]);
        let rejected = reject::batch(node, &batch, records, &reason);
        let count = u64::from(batch.count);
        let rejects = rejects.clone();
        self.0 = Some(Box::pin(
            async move { Ok(rejects.send(rejected, true).await) },
        ));
        count
    }

    /// Waits until the batch is sent, and returns its receipt; `None` if there was no batch.
    #[inline]
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Receipt>, Failure>> {
        let Some(sending) = &mut self.0 else {
            return Poll::Ready(Ok(None));
        };
        let receipt = ready!(sending.as_mut().poll(context))?;
        self.0 = None;
        Poll::Ready(Ok(Some(receipt)))
    }

    /// Whether no batch waits to be sent. A batch that could not be sent stays until the consumer resumes.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::{Arc, Mutex},
        task::Waker,
    };

    use millstream_record::{Encoding, Values};

    use super::*;
    use crate::{
        channel::{Channel, Group},
        meters::Meters,
        outlet::{Edge, Feed},
    };

    /// Keeps every group. If it is full, accepts no group, and its producers wait.
    #[derive(Clone, Default)]
    struct Port {
        taken: Arc<Mutex<Vec<Group>>>,
        is_full: bool,
    }

    impl Channel for Port {
        fn put(&self, group: Group) -> BoxFuture<'_, ()> {
            if self.is_full {
                return Box::pin(pending());
            }
            self.taken.lock().unwrap().push(group);
            Box::pin(ready(()))
        }
        fn close(&self) {}
    }

    impl Port {
        fn outlet(&self) -> Outlet {
            let edge = Edge::to(Feed::new(Arc::new(self.clone())));
            Outlet::new(vec![edge], &Meters::default().of("sink"), true)
        }
    }

    /// A batch of two lines with this address.
    fn addressed(address: &str) -> Batch {
        let mut values = Values::new();
        values.set(replay::ADDRESS, address);
        Batch {
            tag: "t".into(),
            plain: false,
            encoding: Encoding::Lines,
            body: "one\ntwo\n".into(),
            count: 2,
            received: Default::default(),
            values: Arc::new(values),
            origins: Vec::new(),
        }
    }

    fn poll(strays: &mut Strays) -> Poll<Result<Option<Receipt>, Failure>> {
        strays.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_batch_is_for_another_consumer_unless_its_address_names_this_one() {
        assert!(is_for_another(&addressed("gone"), "sink"));
        assert!(is_for_another(&addressed("gone other"), "sink"));
        assert!(is_for_another(&addressed("sink"), "sink"));
        assert!(!is_for_another(&addressed("gone other sink"), "sink"));
        let plain = replay::unaddressed(addressed("gone"));
        assert!(!is_for_another(&plain, "sink"));
    }

    #[test]
    fn a_rejected_batch_leaves_with_its_reason_and_without_its_address() {
        let (port, mut strays) = (Port::default(), Strays::default());
        let count = strays.reject(addressed("gone sink"), "sink", &port.outlet());
        assert_eq!((count, strays.is_empty()), (2, false));
        let Poll::Ready(Ok(Some(receipt))) = poll(&mut strays) else {
            panic!("the port has room");
        };
        assert!(strays.is_empty() && receipt.try_outcome().is_none());
        let group = port.taken.lock().unwrap().pop().unwrap();
        let [batch] = &group.batches[..] else {
            panic!("one batch is rejected");
        };
        assert_eq!((batch.count, batch.values.get(replay::ADDRESS)), (2, None));
        let record = reject::Rejected::read(&batch.body).unwrap();
        assert_eq!((record.node, &*record.message), ("sink", &b"one\n"[..]));
        assert!(record.reason.contains("sent again to gone"), "{record:?}");
        assert!(matches!(poll(&mut strays), Poll::Ready(Ok(None))));
    }

    #[test]
    fn a_batch_waits_for_room_in_the_port() {
        let full = Port {
            is_full: true,
            ..Port::default()
        };
        let mut strays = Strays::default();
        strays.reject(addressed("gone sink"), "sink", &full.outlet());
        assert!(poll(&mut strays).is_pending() && !strays.is_empty());
    }

    #[test]
    fn a_batch_that_no_port_takes_is_a_failure_and_does_not_leave() {
        let nowhere = Outlet::new(Vec::new(), &Meters::default().of("pump"), true);
        let mut strays = Strays::default();
        assert_eq!(strays.reject(addressed("gone pump"), "pump", &nowhere), 0);
        let Poll::Ready(Err(failure)) = poll(&mut strays) else {
            panic!("nothing takes the batch");
        };
        assert!(failure.message.starts_with("2 records cannot"), "{failure}");
        assert!(!strays.is_empty());
    }
}
