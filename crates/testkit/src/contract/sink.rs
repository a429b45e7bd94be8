//! The contract of sinks.

use std::{
    any::Any,
    collections::VecDeque,
    ops::Range,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use millstream_pipeline::{
    channel::{Bounds, BoxFuture, Channel, Delivered, Group, Reader},
    delivery::{self, Receipt, Token},
    failure::Failure,
    inlet::Inlet,
    meters::{Meter, Meters},
    node::{LocalFuture, SinkContext},
    outlet::{Edge, Feed, Outlet},
    report::Reporter,
    stop::stop,
};
use millstream_record::{Batch, Pool, Position};

use super::{SETTLED, assert_ended, caught, line, lines, within};

/// The number of batches that each check feeds.
const BATCHES: usize = 12;
/// The ids of the durable channels in the checks. Real ids are random, so these differ in their first bytes, too.
const CHANNELS: [u128; 2] = [7 << 120 | 7, 8 << 120 | 7];

/// Runs a sink once, as `Sink::run` does.
pub type Run<'c> =
    &'c dyn for<'a> Fn(&'a mut Inlet, SinkContext) -> LocalFuture<'a, Result<(), Failure>>;

/// The lines at the destination, in order.
pub type Arrived = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// A sink for [`SinkCase::check`]. The records of the checks are lines of text.
pub struct SinkCase<'c> {
    /// Runs the sink. Several runs with the same destination may follow each other.
    pub run: Run<'c>,
    /// The lines at the destination, if they can be read there. The lines of each check are different.
    pub arrived: Option<Arrived>,
    /// The sink's directory for state. Each check uses its own subdirectory.
    pub directory: &'c Path,
    /// A batch of one record that the sink must reject; `None` for a sink that rejects no records.
    pub misfit: Option<Batch>,
}

impl SinkCase<'_> {
    /// Checks the contract of a sink. Call it within a Tokio runtime.
    ///
    /// # Panics
    /// If the sink breaks the contract.
    pub async fn check(&self) {
        self.drains_when_its_inlet_ends().await;
        self.settles_behind_a_durable_channel_only_what_has_arrived()
            .await;
        self.restarts_after_a_panic_without_a_loss().await;
        self.rejects_one_record_and_keeps_its_neighbours().await;
    }

    async fn drains_when_its_inlet_ends(&self) {
        let feeder = self.feeder("drain", None);
        let receipts: Vec<Receipt> = (0..BATCHES).map(|number| feeder.put_line(number)).collect();
        feeder.close();
        let ended = within("a sink ends with its inlet", self.run_once(&feeder));
        assert_ended(ended.await, "the inlet has ended");
        let settled = |receipt: &Receipt| receipt.try_outcome() == SETTLED;
        assert!(
            receipts.iter().all(settled),
            "a sink that ended has settled everything"
        );
        self.assert_arrived(&feeder, 0..BATCHES);
    }

    async fn settles_behind_a_durable_channel_only_what_has_arrived(&self) {
        let feeder = self.feeder("settle", Some(CHANNELS[0]));
        (0..BATCHES).for_each(|number| drop(feeder.put_line(number)));
        feeder.close();
        let ended = within("a sink ends with its inlet", self.run_once(&feeder));
        assert_ended(ended.await, "the inlet has ended");
        // When the sink moves its cursor, the feeder checks that the destination has the lines.
        assert_eq!(feeder.state().committed, BATCHES, "everything is settled");
    }

    async fn restarts_after_a_panic_without_a_loss(&self) {
        let feeder = self.feeder("panic", Some(CHANNELS[1]));
        (0..BATCHES).for_each(|number| drop(feeder.put_line(number)));
        feeder.close();
        feeder.state().panic_at = Some(BATCHES / 2);
        let mut node = self.node(&feeder);
        let first = (self.run)(&mut node.inlet, node.context.clone());
        let panicked = within("a panic of its inlet ends a run", caught(first)).await;
        let lives_on = matches!(panicked, Ok(Ok(())));
        assert!(!lives_on, "a run that panicked must not succeed");
        let second = (self.run)(&mut node.inlet, node.context.clone());
        let ended = within("a sink runs again after a panic", second).await;
        assert_ended(ended, "it runs again after a panic");
        assert_eq!(feeder.state().committed, BATCHES, "everything is settled");
        self.assert_arrived(&feeder, 0..BATCHES);
    }

    async fn rejects_one_record_and_keeps_its_neighbours(&self) {
        let Some(misfit) = &self.misfit else {
            return;
        };
        let feeder = self.feeder("reject", None);
        let receipts = [
            feeder.put_line(0),
            feeder.put(misfit.clone()),
            feeder.put_line(1),
        ];
        feeder.close();
        let ended = within("a sink ends with its inlet", self.run_once(&feeder));
        assert_ended(ended.await, "one record was rejected");
        assert_eq!(feeder.state().rejected, 1, "one record is rejected");
        let settled = |receipt: &Receipt| receipt.try_outcome() == SETTLED;
        assert!(
            receipts.iter().all(settled),
            "a rejected record is settled, and so are its neighbours"
        );
        self.assert_arrived(&feeder, 0..2);
    }

    fn feeder(&self, check: &'static str, channel: Option<u128>) -> Feeder {
        let state = FeederState {
            check,
            channel,
            arrived: self.arrived.clone(),
            ..FeederState::default()
        };
        Feeder(Arc::new(Mutex::new(state)))
    }

    fn node(&self, feeder: &Feeder) -> Node {
        let (stopper, stop) = stop();
        let meters = Meters::default().of("sink");
        let rejects = Edge::to(Feed::new(Arc::new(feeder.clone())));
        let rejects = Outlet::new(vec![rejects], &meters, true);
        let channel = feeder.state().channel;
        let reader = Box::new(feeder.clone());
        let context = SinkContext {
            name: "sink".into(),
            stop: stop.clone(),
            pool: Pool::new(256 << 20),
            meters: meters.clone(),
            reporter: Reporter::new("sink"),
            directory: self.directory.join(feeder.state().check),
            lane: 0,
        };
        Node {
            inlet: Inlet::new("sink", reader, channel, rejects, stop, &meters),
            context,
            _stopper: Box::new(stopper),
        }
    }

    async fn run_once(&self, feeder: &Feeder) -> Result<(), Failure> {
        let mut node = self.node(feeder);
        (self.run)(&mut node.inlet, node.context.clone()).await
    }

    fn assert_arrived(&self, feeder: &Feeder, numbers: Range<usize>) {
        if let Some(arrived) = &self.arrived {
            let (arrived, check) = (arrived(), feeder.state().check);
            for number in numbers {
                let expected = line(check, number);
                let found = arrived.iter().any(|line| line.contains(&expected));
                assert!(found, "`{expected}` has not arrived: {arrived:?}");
            }
        }
    }
}

/// A sink's inlet and context.
struct Node {
    inlet: Inlet,
    context: SinkContext,
    /// Kept, because dropping it would stop the sink.
    _stopper: Box<dyn Any>,
}

/// The channel from which the sink reads, and the channel that receives its rejected records.
#[derive(Clone)]
struct Feeder(Arc<Mutex<FeederState>>);

#[derive(Default)]
struct FeederState {
    /// The name of the check. The lines of the check begin with its name.
    check: &'static str,
    /// The id of a durable channel; `None` for memory.
    channel: Option<u128>,
    arrived: Option<Arrived>,
    /// With a durable channel: all batches. With memory: those that the sink has not read yet.
    batches: VecDeque<(Batch, Option<Token>)>,
    /// With a durable channel: the index of the next batch.
    next: usize,
    /// With a durable channel: the number of batches that are settled.
    committed: usize,
    closed: bool,
    /// The index of a batch whose delivery panics, once.
    panic_at: Option<usize>,
    rejected: usize,
}

impl Feeder {
    fn state(&self) -> MutexGuard<'_, FeederState> {
        // Some checks panic while the lock is held, which poisons it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_line(&self, number: usize) -> Receipt {
        let text = line(self.state().check, number);
        self.put(lines(&format!("{text}\n")))
    }

    fn put(&self, batch: Batch) -> Receipt {
        let (token, receipt) = delivery::receipt(true, batch.count.into(), Meter::default());
        let mut state = self.state();
        let token = match state.channel {
            Some(_) => {
                token.settle();
                None
            }
            None => Some(token),
        };
        state.batches.push_back((batch, token));
        receipt
    }

    fn close(&self) {
        self.state().closed = true;
    }
}

fn position(batches: usize) -> Position {
    Position {
        epoch: 1,
        seq: batches as u64,
    }
}

impl Reader for Feeder {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        let mut state = self.state();
        if state.channel.is_some() {
            let after = after.map(|position| usize::try_from(position.seq).unwrap_or_default());
            state.next = after.unwrap_or(state.committed);
        }
        Ok(())
    }

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        let mut state = self.state();
        if state.panic_at == Some(state.next) {
            state.panic_at = None;
            drop(state);
            panic!("the contract lets a run panic");
        }
        let next = match state.channel {
            Some(_) => state
                .batches
                .get(state.next)
                .map(|(batch, _)| (batch.clone(), None)),
            None => state.batches.pop_front(),
        };
        let Some((batch, token)) = next else {
            assert!(state.closed, "a check closes its feeder before it runs");
            return Poll::Ready(Ok(None));
        };
        state.next += 1;
        let position = state.channel.map(|_| position(state.next));
        Poll::Ready(Ok(Some(Delivered::new(batch, position, token))))
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        let mut state = self.state();
        let committed = usize::try_from(position.seq).unwrap_or_default();
        assert!(committed >= state.committed, "a cursor never goes back");
        state.committed = committed;
        let (check, arrived) = (state.check, state.arrived.clone());
        drop(state);
        if let Some(arrived) = arrived {
            let arrived = arrived();
            for number in 0..committed {
                let expected = line(check, number);
                assert!(
                    arrived.iter().any(|line| line.contains(&expected)),
                    "`{expected}` was settled before it had arrived"
                );
            }
        }
        Ok(())
    }

    fn settled(&self) -> Option<Position> {
        let state = self.state();
        state.channel.map(|_| position(state.committed))
    }

    fn bounds(&self) -> Option<Bounds> {
        let state = self.state();
        state.channel.map(|_| Bounds {
            committed: (state.committed > 0).then(|| position(state.committed)),
            kept: position(state.batches.len()),
        })
    }
}

impl Channel for Feeder {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        let records: u32 = group.batches.iter().map(|batch| batch.count).sum();
        self.state().rejected += records as usize;
        group.token.settle();
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {}
}
