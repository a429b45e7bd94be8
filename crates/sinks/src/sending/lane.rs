//! One task of a sink that sends: takes batches, tracks what is in flight, and settles checkpoints in order.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> encode -> write -> [settle]`

use std::{future::pending, time::Duration};

use millstream_pipeline::{
    failure::Failure,
    inlet::{Checkpoint, Inlet, Item},
    meters::Meter,
    node::SinkContext,
};
use millstream_record::{Batch, Position, Time};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{Ids, Lateness, Refused, by_reason, ledger::Ledger};

/// Time between two ticks ([`Input::Tick`]) while something is in flight. The lateness is reported at each tick.
const TICK: Duration = Duration::from_secs(1);

/// The input of a lane.
#[derive(Debug)]
pub(crate) enum Input {
    /// The next batch and, if it comes from a durable channel, its position.
    Batch(Batch, Option<Position>),
    /// A checkpoint has arrived. The lane holds it until everything begun so far is finished.
    Checkpoint,
    /// No more batches will come.
    End,
    /// A second has passed with something in flight. Only lanes that report their lateness have ticks.
    Tick,
}

/// The inlet of a task, and the numbers in flight (see [`Lane::begin`]).
pub(crate) struct Lane<'a> {
    inlet: &'a mut Inlet,
    pub(crate) context: SinkContext,
    ledger: Ledger<Checkpoint>,
    clock: Option<Clock<'a>>,
    ended: bool,
}

/// Reports how late the lane is.
struct Clock<'a> {
    lateness: &'a Lateness,
    meter: Meter,
    tick: Interval,
    /// The age that was reported last. Only changes are reported, which avoids a lock per batch.
    reported: Option<Duration>,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(inlet: &'a mut Inlet, context: SinkContext) -> Self {
        Self {
            inlet,
            context,
            ledger: Ledger::new(),
            clock: None,
            ended: false,
        }
    }

    /// Reports the age of the oldest record in flight as `behind_seconds`.
    pub(crate) fn reporting(mut self, lateness: &'a Lateness) -> Self {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.clock = Some(Clock {
            lateness,
            meter: self.context.meters.gauge("behind_seconds"),
            tick,
            reported: None,
        });
        self
    }

    /// Starts or restarts reading after the last settled checkpoint.
    pub(crate) fn start(&mut self) -> Result<(), Failure> {
        self.inlet.resume(None)
    }

    /// The id of the durable channel that feeds the lane; `None` if it is fed from memory.
    pub(crate) fn channel_id(&self) -> Option<u128> {
        self.inlet.channel_id()
    }

    /// Whether more batches with the position of the last batch follow.
    pub(crate) fn is_within(&self) -> bool {
        self.inlet.is_within()
    }

    /// Whether unsettled records survive the end of the process.
    pub(crate) fn is_durable(&self) -> bool {
        self.channel_id().is_some()
    }

    /// Creates the ids for what this lane sends.
    pub(crate) fn ids(&self) -> Result<Ids, Failure> {
        Ids::new(self.channel_id(), &self.context.name)
    }

    /// Returns the next input. Takes batches and checkpoints from the inlet only if `has_room`. Cancel safe.
    pub(crate) async fn next(&mut self, has_room: bool) -> Result<Input, Failure> {
        let waits = !self.ledger.is_empty();
        tokio::select! {
            biased;
            () = tick(&mut self.clock), if waits => {
                self.report_lateness();
                Ok(Input::Tick)
            }
            item = self.inlet.next(), if has_room && !self.ended => Ok(match item? {
                Some(Item::Batch(batch, position)) => Input::Batch(batch, position),
                Some(Item::Checkpoint(checkpoint)) => {
                    self.ledger.checkpoint(checkpoint);
                    Input::Checkpoint
                }
                None => {
                    self.ended = true;
                    Input::End
                }
            }),
            else => pending().await,
        }
    }

    /// Returns a number for something that is sent as a whole, such as a chunk. Its oldest record was received at `received`.
    pub(crate) fn begin(&mut self, received: Time) -> u64 {
        self.ledger.begin(received)
    }

    /// Notes that everything with this number is acknowledged or rejected.
    pub(crate) fn finish(&mut self, number: u64) {
        self.ledger.finish(number);
    }

    /// Notes that everything begun so far is acknowledged or rejected.
    pub(crate) fn finish_all(&mut self) {
        self.ledger.finish_all();
    }

    /// Settles every checkpoint before which all numbers are finished. With a durable channel, returns the position of the last
    /// checkpoint that was settled; `None` if there was none.
    pub(crate) async fn settle(&mut self) -> Result<Option<Position>, Failure> {
        let mut settled = None;
        while let Some(mut checkpoint) = self.ledger.ready() {
            settled = checkpoint.kept().await?.or(settled);
            self.inlet.settle(checkpoint).await?;
        }
        if self.ledger.is_empty() {
            self.report_lateness();
        }
        Ok(settled)
    }

    /// How many numbers are tracked: the oldest unfinished one, and all later ones, finished or not.
    pub(crate) fn in_flight(&self) -> usize {
        self.ledger.span()
    }

    /// Whether nothing is in flight and no checkpoint waits.
    pub(crate) fn is_settled(&self) -> bool {
        self.ledger.is_empty()
    }

    /// Whether no more batches will come.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Rejects records of the chunk or request with this `number`. If `number` is `None`, rejects records of the batch that was
    /// taken last. The rejects belong to the first checkpoint after these records, even if that checkpoint has already arrived.
    pub(crate) async fn reject<'r>(
        &mut self,
        number: Option<u64>,
        batch: &Batch,
        records: impl IntoIterator<Item = &'r [u8]>,
        reason: &str,
    ) {
        match number.and_then(|number| self.ledger.checkpoint_of(number)) {
            Some(checkpoint) => {
                self.inlet
                    .reject_before(checkpoint, batch, records, reason)
                    .await;
            }
            None => self.inlet.reject(batch, records, reason).await,
        }
    }

    /// [`Lane::reject`] for records that have different reasons.
    pub(crate) async fn reject_refused(
        &mut self,
        number: Option<u64>,
        batch: &Batch,
        refused: &[Refused],
    ) {
        for (reason, records) in by_reason(batch, refused) {
            self.reject(number, batch, records, &reason).await;
        }
    }

    /// Logs that records are given up, and counts them in `meter`. The caller must reject them.
    pub(crate) fn give_up(&self, meter: &Meter, records: u64, reason: &str) {
        let name = &self.context.name;
        let text = format_args!("{records} records leave by {name}.rejected: {reason}");
        self.context.reporter.error("give_up", text);
        meter.add(records);
    }

    fn report_lateness(&mut self) {
        let Some(clock) = &mut self.clock else {
            return;
        };
        let oldest = self.ledger.oldest();
        let age = oldest.map_or(0, |oldest| Time::now().0.saturating_sub(oldest.0));
        let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
        if clock.reported != Some(age) {
            clock.reported = Some(age);
            clock.lateness.report(self.context.lane, age, &clock.meter);
        }
    }
}

async fn tick(clock: &mut Option<Clock<'_>>) {
    match clock {
        Some(clock) => drop(clock.tick.tick().await),
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, Upstream, lines};

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(future)
    }

    fn rig(upstream: &Upstream) -> Rig {
        let directory = "unused".as_ref();
        Rig::new(&crate::discard::COMPONENT, "{}", upstream, directory)
    }

    #[test]
    fn a_batch_is_settled_only_when_all_its_numbers_are_finished() {
        let upstream = Upstream::memory();
        let receipt = upstream.put(lines("t", "a\n"), true);
        upstream.close();
        let Rig {
            mut inlet,
            context,
            stopper: _stopper,
            ..
        } = rig(&upstream);
        block_on(async {
            let mut lane = Lane::new(&mut inlet, context);
            lane.start().unwrap();
            let Input::Batch(batch, None) = lane.next(true).await.unwrap() else {
                panic!("a batch was put");
            };
            let numbers = [lane.begin(batch.received), lane.begin(batch.received)];
            assert!(matches!(lane.next(true).await.unwrap(), Input::Checkpoint));
            lane.finish(numbers[1]);
            lane.settle().await.unwrap();
            assert_eq!(receipt.try_outcome(), None);
            lane.finish(numbers[0]);
            lane.settle().await.unwrap();
            assert_eq!(receipt.try_outcome(), Some(Ok(())));
            assert!(matches!(lane.next(true).await.unwrap(), Input::End));
            assert!(lane.is_settled() && lane.has_ended());
        });
    }

    #[test]
    fn a_record_rejected_after_its_checkpoint_came_is_settled_with_that_checkpoint() {
        let upstream = Upstream::durable(7);
        upstream.put(lines("t", "a\n"), true);
        upstream.close();
        upstream.lose_reject();
        let Rig {
            mut inlet,
            context,
            stopper: _stopper,
            ..
        } = rig(&upstream);
        block_on(async {
            let mut lane = Lane::new(&mut inlet, context);
            lane.start().unwrap();
            let Input::Batch(batch, _) = lane.next(true).await.unwrap() else {
                panic!("a batch was put");
            };
            let number = lane.begin(batch.received);
            assert!(matches!(lane.next(true).await.unwrap(), Input::Checkpoint));
            let refused = [(0..2, "no".into())];
            lane.reject_refused(Some(number), &batch, &refused).await;
            lane.finish(number);
            // The rejected records were lost, so the checkpoint must not be settled.
            assert!(lane.settle().await.is_err());
            assert_eq!(upstream.settled(), 0);
        });
    }
}
