//! What both ways of writing do with a producer: hand records over, wait until none is in flight, tell the operator.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! Everything here blocks: it runs on the sink's own thread. It stops waiting when the process wants to end.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use millstream_kafka::{Error, Failed, Kind, Outgoing, Producer};
use millstream_pipeline::{
    condition::{Condition, Trouble},
    inlet::{Checkpoint, Inlet},
    node::SinkContext,
};
use millstream_record::Batch;

use super::shape::{Refused, Shaper};

/// Between two looks whether there is room.
const STEP: Duration = Duration::from_millis(1);
/// Between two looks for failures while something is in flight; the last answer is told at once.
const FLUSH: Duration = Duration::from_millis(10);
/// Calls that may take longer are split into pieces of this, so that a stop is seen.
pub(super) const SLICE: Duration = Duration::from_secs(1);

/// A producer at work.
pub(super) struct Link {
    pub(super) producer: Box<dyn Producer>,
    pub(super) context: SinkContext,
    /// Holds while the client complains and nothing is acknowledged.
    failing: Condition,
    /// Records that failed and nobody has looked at.
    pub(super) failed: Vec<Failed>,
    /// Whether what it has taken can wait for the next start, as it stands in a disk channel too. What stands in memory
    /// is written as long as the process gives it time.
    durable: bool,
    /// What is taken back if for so long no broker has acknowledged anything.
    give_up: Option<Duration>,
    /// Records that were taken, and how many of them were settled when that last grew.
    taken: usize,
    settled: (usize, Instant),
    /// Whether anything was taken back since somebody has looked.
    pub(super) overdue: bool,
}

/// Why waiting ended before its time.
#[derive(Debug)]
pub(super) enum Halt {
    /// The process wants to end.
    Stopped,
    /// Something failed.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Link {
    /// Behind a disk channel.
    pub(super) fn durable(producer: Box<dyn Producer>, context: SinkContext) -> Self {
        Self {
            durable: true,
            ..Self::new(producer, context, None)
        }
    }

    /// Behind memory.
    pub(super) fn new(
        producer: Box<dyn Producer>,
        context: SinkContext,
        give_up: Option<Duration>,
    ) -> Self {
        Self {
            producer,
            failing: context.reporter.condition("client"),
            context,
            failed: Vec::new(),
            durable: false,
            give_up,
            taken: 0,
            settled: (0, Instant::now()),
            overdue: false,
        }
    }

    /// Hands over the records from `next` on, and moves it; waits while the client's buffer is full, as long as nothing
    /// fails. The numbers of records that the client refuses by themselves are added to `refused`.
    pub(super) fn send(
        &mut self,
        outgoing: &Outgoing,
        next: &mut usize,
        refused: &mut Vec<(usize, String)>,
    ) -> Result<(), Halt> {
        while let Some(record) = outgoing.records.get(*next) {
            let first = record.number;
            if self.producer.in_flight() == 0 {
                // Nobody was waited for until now.
                self.settled = (self.taken, Instant::now());
            }
            let sent = self.producer.send(outgoing, *next);
            *next += sent.taken;
            self.taken += sent.taken;
            match sent.refused {
                Some(error) if error.kind == Kind::TooLarge => {
                    let number = outgoing
                        .records
                        .get(*next)
                        .map_or(first, |record| record.number);
                    refused.push((
                        number,
                        format!("the record is larger than `record_max`: {error}"),
                    ));
                    *next += 1;
                }
                Some(error) => return Err(error.into()),
                None if *next < outgoing.records.len() => self.wait()?,
                None => {}
            }
        }
        Ok(())
    }

    /// Waits until nothing is in flight. What failed stands in `failed`.
    pub(super) fn drain(&mut self) -> Result<(), Halt> {
        while self.producer.in_flight() > 0 {
            self.producer.flush(FLUSH);
            self.heed()?;
        }
        self.producer.serve(Duration::ZERO);
        self.listen();
        self.failing.clear();
        Ok(())
    }

    /// Waits a moment for what else the client has to say of what is in flight.
    pub(super) fn hear(&mut self) {
        let until = Instant::now() + SLICE;
        while self.producer.in_flight() > 0 && Instant::now() < until && self.heed().is_ok() {
            self.producer.flush(FLUSH);
        }
        self.producer.serve(Duration::ZERO);
        self.listen();
    }

    /// Waits a moment for room; fails as soon as a record has failed.
    fn wait(&mut self) -> Result<(), Halt> {
        self.step()?;
        match self.failed.first() {
            Some(failed) => Err(failed.error.clone().into()),
            None => Ok(()),
        }
    }

    fn step(&mut self) -> Result<(), Halt> {
        self.producer.serve(STEP);
        self.heed()
    }

    /// Hears the client, and whether the process wants to end.
    fn heed(&mut self) -> Result<(), Halt> {
        self.watch();
        self.listen();
        if self.durable && self.context.stop.is_stopped() {
            return Err(Halt::Stopped);
        }
        Ok(())
    }

    /// Takes back what nobody has acknowledged for too long.
    fn watch(&mut self) {
        // Only more than ever is progress.
        let settled = self.taken.saturating_sub(self.producer.in_flight());
        if settled > self.settled.0 {
            self.settled = (settled, Instant::now());
            self.failing.clear();
        } else if settled < self.taken
            && self
                .give_up
                .is_some_and(|after| self.settled.1.elapsed() >= after)
        {
            self.producer.purge();
            self.overdue = true;
        }
    }

    fn listen(&mut self) {
        self.failed.extend(self.producer.take_failed());
        if let Some(complaint) = self.producer.complaint() {
            self.failing.raise(Trouble::Retrying, complaint);
        }
    }

    /// Calls `act` with a short time limit until it answers, `patience` is over, or the process wants to end.
    pub(super) fn patiently<T>(
        &mut self,
        patience: Duration,
        mut act: impl FnMut(&mut dyn Producer, Duration) -> Result<T, Error>,
    ) -> Result<T, Halt> {
        let until = Instant::now() + patience;
        loop {
            let answer = act(&mut *self.producer, SLICE.min(patience));
            self.producer.serve(Duration::ZERO);
            self.listen();
            match answer {
                Err(error) if error.kind == Kind::Again && Instant::now() < until => {
                    if self.context.stop.is_stopped() {
                        return Err(Halt::Stopped);
                    }
                }
                Ok(answer) => {
                    self.failing.clear();
                    return Ok(answer);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Sends what is refused of a batch out by the port for rejects, before the checkpoint if that is out already: neighbours with
/// the same reason together.
pub(super) async fn reject(
    inlet: &mut Inlet,
    mut checkpoint: Option<&mut Checkpoint>,
    batch: &Batch,
    refused: &mut Vec<Refused>,
) {
    refused.sort_by_key(|(range, _)| range.start);
    for group in refused.chunk_by(|a, b| a.1 == b.1) {
        let Some((_, reason)) = group.first() else {
            continue;
        };
        let bytes = |range: &Range<usize>| batch.body.get(range.clone());
        let records = group.iter().filter_map(|(range, _)| bytes(range));
        match checkpoint.as_deref_mut() {
            Some(checkpoint) => {
                inlet
                    .reject_before(checkpoint, batch, records, reason)
                    .await
            }
            None => inlet.reject(batch, records, reason).await,
        }
    }
    refused.clear();
}

/// Records that cannot be written, by their numbers: where they stand in their batch.
pub(super) fn refuse(
    batch: &Batch,
    shaper: &Shaper,
    first: usize,
    unwanted: &mut Vec<(usize, String)>,
    refused: &mut Vec<Refused>,
) {
    let places = shaper.places(batch);
    for (number, reason) in unwanted.drain(..) {
        let place = number.checked_sub(first).and_then(|at| places.get(at));
        refused.extend(place.map(|range| (range.clone(), reason)));
    }
}
