//! Checkpoints: when they are due, what they settle, and which batches a restart reads again.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use millstream_record::{Encoding, Values};

use super::*;
use crate::{
    channel::{BoxFuture, Channel, Group},
    delivery,
    meters::Meters,
    outlet::{Edge, Feed},
    replay,
};

/// A reader that delivers prepared batches, then ends (`ends`) or waits forever. It collects the committed positions.
struct FakeReader {
    ready: VecDeque<Delivered>,
    ends: bool,
    /// Batches that are delivered after a resume.
    again: VecDeque<Delivered>,
    committed: Arc<Mutex<Vec<Position>>>,
}

impl Reader for FakeReader {
    fn resume(&mut self, _: Option<Position>) -> Result<(), Failure> {
        self.ready.append(&mut self.again);
        Ok(())
    }
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        match self.ready.pop_front() {
            Some(delivered) => Poll::Ready(Ok(Some(delivered))),
            None if self.ends => Poll::Ready(Ok(None)),
            None => Poll::Pending,
        }
    }
    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        self.committed.lock().unwrap().push(position);
        Ok(())
    }
}

/// Takes rejected records and holds them until the test settles them.
struct Held(Arc<Mutex<Vec<Group>>>);

impl Channel for Held {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        self.0.lock().unwrap().push(group);
        Box::pin(std::future::ready(()))
    }
    fn close(&self) {}
}

fn batch(tag: &str, bytes: usize) -> Batch {
    Batch {
        tag: tag.into(),
        plain: false,
        encoding: Encoding::Lines,
        body: vec![b'\n'; bytes].into(),
        count: bytes as u32,
        received: Default::default(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

fn memory(tag: &str, bytes: usize, awaited: bool) -> (Delivered, Receipt) {
    let (token, receipt) = delivery::receipt(awaited, 1, Meter::default());
    (
        Delivered::new(batch(tag, bytes), None, Some(token)),
        receipt,
    )
}

fn durable(seq: u64, bytes: usize) -> Delivered {
    Delivered::new(batch("t", bytes), Some(Position { epoch: 1, seq }), None)
}

struct Fixture {
    inlet: Inlet,
    committed: Arc<Mutex<Vec<Position>>>,
    rejected: Arc<Mutex<Vec<Group>>>,
    stopper: crate::stop::Stopper,
}

fn fixture(ready: Vec<Delivered>, ends: bool, channel: Option<u128>) -> Fixture {
    fixture_again(ready, Vec::new(), ends, channel)
}

fn fixture_again(
    ready: Vec<Delivered>,
    again: Vec<Delivered>,
    ends: bool,
    channel: Option<u128>,
) -> Fixture {
    let (committed, rejected) = (Arc::default(), Arc::default());
    let reader = FakeReader {
        ready: ready.into(),
        again: again.into(),
        ends,
        committed: Arc::clone(&committed),
    };
    let meters = Meters::default().of("sink");
    let held: Arc<dyn Channel> = Arc::new(Held(Arc::clone(&rejected)));
    let rejects = Outlet::new(vec![Edge::to(Feed::new(held))], &meters, true);
    let (stopper, stop) = crate::stop::stop();
    let inlet = Inlet::new("sink", Box::new(reader), channel, rejects, stop, &meters);
    Fixture {
        inlet,
        committed,
        rejected,
        stopper,
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

async fn next_checkpoint(inlet: &mut Inlet) -> Checkpoint {
    match inlet.next().await.unwrap() {
        Some(Item::Checkpoint(checkpoint)) => checkpoint,
        other => panic!("expected a checkpoint, got {other:?}"),
    }
}

async fn next_batch(inlet: &mut Inlet) -> Batch {
    match inlet.next().await.unwrap() {
        Some(Item::Batch(batch, _)) => batch,
        other => panic!("expected a batch, got {other:?}"),
    }
}

#[test]
fn a_checkpoint_comes_immediately_when_a_peer_waits_and_no_batch_is_ready() {
    run(async {
        let (first, one) = memory("t", 5, true);
        let (second, two) = memory("t", 5, false);
        let mut inlet = fixture(vec![first, second], false, None).inlet;
        let before = Instant::now();
        next_batch(&mut inlet).await;
        next_batch(&mut inlet).await;
        let checkpoint = next_checkpoint(&mut inlet).await;
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(one.try_outcome(), None);
        inlet.settle(checkpoint).await.unwrap();
        assert_eq!((one.await, two.await), (Ok(()), Ok(())));
    });
}

#[test]
fn records_read_again_are_counted_once_and_rejected_ones_are_not_counted_as_delivered() {
    run(async {
        let again = vec![durable(1, 5), durable(2, 3)];
        let mut fixture = fixture_again(vec![durable(1, 5)], again, true, Some(7));
        let inlet = &mut fixture.inlet;
        next_batch(inlet).await;
        inlet.resume(None).unwrap();
        let first = next_batch(inlet).await;
        inlet.reject(&first, [&b"\n"[..], b"\n"], "no").await;
        next_batch(inlet).await;
        let mut checkpoint = next_checkpoint(inlet).await;
        inlet
            .reject_before(&mut checkpoint, &first, [&b"\n"[..]], "no")
            .await;
        for group in fixture.rejected.lock().unwrap().drain(..) {
            group.token.settle();
        }
        inlet.settle(checkpoint).await.unwrap();
        let read = |meter: &Meter| meter.get();
        let inlet = &fixture.inlet;
        let received = &inlet.received;
        assert_eq!((read(&received.records), read(&received.bytes)), (8, 8));
        assert_eq!((read(&inlet.settled), read(&inlet.delivered)), (8, 5));
    });
}

#[test]
fn a_settled_checkpoint_clears_the_failure_of_an_earlier_run() {
    run(async {
        let (first, _receipt) = memory("t", 5, true);
        let mut inlet = fixture(vec![first], false, None).inlet;
        let reporter = crate::report::Reporter::new("sink");
        let failing = Arc::new(reporter.condition("retry"));
        inlet.clears(failing.clone());
        failing.raise(crate::condition::Trouble::Retrying, "it failed");
        next_batch(&mut inlet).await;
        let checkpoint = next_checkpoint(&mut inlet).await;
        assert!(failing.holds());
        inlet.settle(checkpoint).await.unwrap();
        assert_eq!(reporter.conditions(), []);
    });
}

#[test]
fn a_checkpoint_comes_after_a_second_when_no_peer_waits() {
    run(async {
        let (only, receipt) = memory("t", 5, false);
        let mut inlet = fixture(vec![only], false, None).inlet;
        let before = Instant::now();
        next_batch(&mut inlet).await;
        let checkpoint = next_checkpoint(&mut inlet).await;
        assert_eq!(before.elapsed().as_secs(), CHECKPOINT_AGE.as_secs());
        drop(checkpoint);
        assert!(
            receipt.await.is_err(),
            "a dropped checkpoint must not settle anything"
        );
    });
}

#[test]
fn a_checkpoint_comes_after_a_number_of_bytes_and_has_the_position_of_the_last_batch_before_it() {
    run(async {
        let ready = (1..=4)
            .map(|seq| durable(seq, CHECKPOINT_BYTES / 2))
            .collect();
        let mut fixture = fixture(ready, true, Some(7));
        next_batch(&mut fixture.inlet).await;
        next_batch(&mut fixture.inlet).await;
        let mut checkpoint = next_checkpoint(&mut fixture.inlet).await;
        assert_eq!(
            checkpoint.kept().await.unwrap(),
            Some(Position { epoch: 1, seq: 2 })
        );
        fixture.inlet.settle(checkpoint).await.unwrap();
        assert_eq!(
            *fixture.committed.lock().unwrap(),
            [Position { epoch: 1, seq: 2 }]
        );
    });
}

#[test]
fn the_end_comes_after_a_last_checkpoint() {
    run(async {
        let mut fixture = fixture(vec![durable(1, 3)], true, Some(7));
        next_batch(&mut fixture.inlet).await;
        let checkpoint = next_checkpoint(&mut fixture.inlet).await;
        fixture.inlet.settle(checkpoint).await.unwrap();
        assert!(fixture.inlet.next().await.unwrap().is_none());
    });
}

#[test]
fn a_consumer_that_restarts_at_the_end_reads_unsettled_batches_again() {
    run(async {
        let (ready, again) = (vec![durable(1, 5)], vec![durable(1, 5)]);
        let Fixture {
            mut inlet,
            stopper: _stopper,
            ..
        } = fixture_again(ready, again, true, Some(7));
        next_batch(&mut inlet).await;
        // The sink fails at its last checkpoint, after the end was read.
        drop(next_checkpoint(&mut inlet).await);
        inlet.resume(None).unwrap();
        next_batch(&mut inlet).await;
        let checkpoint = next_checkpoint(&mut inlet).await;
        inlet.settle(checkpoint).await.unwrap();
        assert!(inlet.next().await.unwrap().is_none());
    });
}

#[test]
fn a_stop_ends_a_durable_inlet_after_a_last_checkpoint() {
    run(async {
        let mut fixture = fixture(vec![durable(1, 3), durable(2, 3)], false, Some(7));
        next_batch(&mut fixture.inlet).await;
        fixture.stopper.stop();
        let mut checkpoint = next_checkpoint(&mut fixture.inlet).await;
        assert_eq!(
            checkpoint.kept().await.unwrap(),
            Some(Position { epoch: 1, seq: 1 })
        );
        assert!(fixture.inlet.next().await.unwrap().is_none());
    });
}

#[test]
fn a_stop_between_batches_of_one_position_waits_for_the_last_of_them() {
    let part = |last| Delivered {
        last,
        ..durable(1, 5)
    };
    let ready = vec![part(false), part(false), part(true), durable(2, 7)];
    let mut fixture = fixture(ready, false, Some(1));
    run(async {
        let inlet = &mut fixture.inlet;
        next_batch(inlet).await;
        fixture.stopper.stop();
        // The remaining batches of the position follow, then a checkpoint, and no batch of the next position.
        next_batch(inlet).await;
        next_batch(inlet).await;
        let checkpoint = next_checkpoint(inlet).await;
        assert!(inlet.next().await.unwrap().is_none());
        inlet.settle(checkpoint).await.unwrap();
    });
    let position = Position { epoch: 1, seq: 1 };
    assert_eq!(*fixture.committed.lock().unwrap(), [position]);
}

#[test]
fn a_checkpoint_cannot_be_settled_if_records_rejected_before_it_are_not_kept() {
    run(async {
        let mut fixture = fixture(vec![durable(1, 3)], true, Some(7));
        let from = next_batch(&mut fixture.inlet).await;
        fixture.inlet.reject(&from, [&b"\n"[..]], "because").await;
        let checkpoint = next_checkpoint(&mut fixture.inlet).await;
        let group = fixture.rejected.lock().unwrap().pop().unwrap();
        assert_eq!(group.batches[0].count, 1);
        drop(group);
        assert!(fixture.inlet.settle(checkpoint).await.is_err());
        assert!(
            fixture.committed.lock().unwrap().is_empty(),
            "records that were not kept must not be settled"
        );
    });
}

/// A batch of a replay. `address` names the node that the batch is for, followed by the consumers whose chains led to that node.
fn addressed(seq: u64, lines: usize, address: &str) -> Delivered {
    let mut delivered = durable(seq, lines);
    Arc::make_mut(&mut delivered.batch.values).set(replay::ADDRESS, address);
    delivered
}

#[test]
fn replayed_records_for_a_removed_processor_are_rejected_by_the_consumers_that_it_led_to() {
    run(async {
        let ready = vec![
            addressed(1, 3, "gone other"),
            addressed(2, 4, "gone other sink"),
            durable(3, 1),
        ];
        let mut fixture = fixture(ready, true, Some(7));
        assert_eq!(next_batch(&mut fixture.inlet).await.count, 1);
        let group = fixture.rejected.lock().unwrap().pop().unwrap();
        let [batch] = &group.batches[..] else {
            panic!("one batch is rejected");
        };
        assert_eq!((batch.count, batch.values.get(replay::ADDRESS)), (4, None));
        let record = reject::Rejected::read(&batch.body).unwrap();
        assert_eq!((record.node, &*record.message), ("sink", &b"\n"[..]));
        assert!(record.reason.contains("sent again to gone"), "{record:?}");
        let mut checkpoint = next_checkpoint(&mut fixture.inlet).await;
        assert!(checkpoint.rejected[0].try_outcome().is_none());
        group.token.settle();
        let position = checkpoint.kept().await.unwrap();
        assert_eq!(position, Some(Position { epoch: 1, seq: 3 }));
        assert_eq!((checkpoint.records, checkpoint.rejected_records), (5, 4));
    });
}

#[test]
fn a_consumer_whose_rejected_records_no_port_takes_fails_and_settles_nothing() {
    run(async {
        let mut fixture = fixture(vec![addressed(1, 4, "gone sink")], true, Some(7));
        let meters = Meters::default().of("sink");
        fixture.inlet.rejects = Outlet::new(Vec::new(), &meters, true);
        let failure = fixture.inlet.next().await.unwrap_err();
        assert!(failure.message.contains("sent again to gone"), "{failure}");
        assert!(fixture.inlet.checkpoint_now().is_none());
    });
}

#[test]
fn no_checkpoint_is_made_while_rejected_records_wait_to_be_sent() {
    /// Accepts nothing.
    struct Full;
    impl Channel for Full {
        fn put(&self, _: Group) -> BoxFuture<'_, ()> {
            Box::pin(std::future::pending())
        }
        fn close(&self) {}
    }
    run(async {
        let mut fixture = fixture(vec![addressed(1, 4, "gone sink")], true, Some(7));
        let meters = Meters::default().of("sink");
        let full = Feed::new(Arc::new(Full));
        fixture.inlet.rejects = Outlet::new(vec![Edge::to(full)], &meters, true);
        let waits = tokio::time::timeout(Duration::from_mins(1), fixture.inlet.next());
        assert!(waits.await.is_err());
        assert!(fixture.inlet.checkpoint_now().is_none());
    });
}
