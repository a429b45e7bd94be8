//! Wraps a producer for [`super::exact`] and [`super::plain`]: passes records to it, waits until none is in flight, and reports what
//! the client complains about.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! All functions block: they run on the sink's own thread. If the sink reads from a disk channel, they stop waiting when the process
//! stops.

use std::time::{Duration, Instant};

use millstream_kafka::{Error, Failed, Kind, Outgoing, Producer};
use millstream_pipeline::{
    condition::{Condition, Trouble},
    node::SinkContext,
};
use millstream_record::Batch;

use super::shape::Shaper;
use crate::sending::Refused;

/// Time between two checks whether the client's buffer has space.
const ROOM_WAIT: Duration = Duration::from_millis(1);
/// Time between two checks for failures while records are in flight. The answer to the last record in flight ends the wait early.
const FLUSH_WAIT: Duration = Duration::from_millis(10);
/// Longer calls are split into slices of this length, so that a stop is noticed.
pub(super) const SLICE: Duration = Duration::from_secs(1);

/// The first and the longest pause before a call is repeated.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A producer and the state of its records.
pub(super) struct Link {
    pub(super) producer: Box<dyn Producer>,
    pub(super) context: SinkContext,
    /// Raised while the client complains and brokers acknowledge nothing.
    failing: Condition,
    /// Records that failed, until the caller takes them.
    pub(super) failed: Vec<Failed>,
    /// Whether a disk channel keeps the records in flight. Records from memory are written even during a stop.
    durable: bool,
    /// If no broker acknowledges anything for this long, the producer is purged: all its records fail. `None`: never.
    give_up: Option<Duration>,
    /// How many records the producer has accepted.
    accepted: usize,
    /// Number of accepted records that were acknowledged or failed, and the time when this number last grew.
    answered: (usize, Instant),
    /// Whether the producer was purged. The caller resets this flag.
    pub(super) overdue: bool,
}

/// Why a wait ended early.
#[derive(Debug)]
pub(super) enum Halt {
    /// The process stops.
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
    /// Creates the link of a sink that reads from a disk channel.
    pub(super) fn durable(producer: Box<dyn Producer>, context: SinkContext) -> Self {
        Self {
            durable: true,
            ..Self::new(producer, context, None)
        }
    }

    /// Creates the link of a sink that reads from memory.
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
            accepted: 0,
            answered: (0, Instant::now()),
            overdue: false,
        }
    }

    /// Passes the records with the indexes from `next` to `end` to the producer, and advances
    /// `next`. Waits while the client's buffer is full, and fails if a record fails meanwhile. If
    /// the client refuses a record, adds its number and the reason to `refused`.
    pub(super) fn send(
        &mut self,
        outgoing: &Outgoing,
        next: &mut usize,
        end: usize,
        refused: &mut Vec<(usize, String)>,
    ) -> Result<(), Halt> {
        while *next < end {
            if self.producer.in_flight() == 0 {
                // Nothing was in flight, so the clock of `give_up` starts now.
                self.answered = (self.accepted, Instant::now());
            }
            let sent = self.producer.send(outgoing, *next..end);
            *next += sent.taken;
            self.accepted += sent.taken;
            match sent.refused {
                Some(error) if error.kind == Kind::TooLarge => {
                    let reason = || format!("the record is larger than `record_max`: {error}");
                    let record = outgoing.records.get(*next);
                    refused.extend(record.map(|record| (record.number, reason())));
                    *next += 1;
                }
                Some(error) => return Err(error.into()),
                None if *next < end => self.wait()?,
                None => {}
            }
        }
        Ok(())
    }

    /// Waits until nothing is in flight. Failures are in `failed`.
    pub(super) fn drain(&mut self) -> Result<(), Halt> {
        while self.producer.in_flight() > 0 {
            self.producer.flush(FLUSH_WAIT);
            self.heed()?;
        }
        self.producer.serve(Duration::ZERO);
        self.listen();
        self.failing.clear();
        Ok(())
    }

    /// Waits up to a second for further failures of records in flight.
    pub(super) fn hear(&mut self) {
        let until = Instant::now() + SLICE;
        while self.producer.in_flight() > 0 && Instant::now() < until && self.heed().is_ok() {
            self.producer.flush(FLUSH_WAIT);
        }
        self.producer.serve(Duration::ZERO);
        self.listen();
    }

    /// Waits briefly for space in the buffer. Fails if a record has failed.
    fn wait(&mut self) -> Result<(), Halt> {
        self.step()?;
        match self.failed.first() {
            Some(failed) => Err(failed.error.clone().into()),
            None => Ok(()),
        }
    }

    fn step(&mut self) -> Result<(), Halt> {
        self.producer.serve(ROOM_WAIT);
        self.heed()
    }

    /// Collects what the client reports. If the sink reads from a disk channel, fails when the process stops.
    fn heed(&mut self) -> Result<(), Halt> {
        self.watch();
        self.listen();
        if self.durable && self.context.stop.is_stopped() {
            return Err(Halt::Stopped);
        }
        Ok(())
    }

    /// Purges the producer if brokers have acknowledged nothing for too long.
    fn watch(&mut self) {
        // A purge or a resend can lower the number, so only a new maximum is progress.
        let answered = self.accepted.saturating_sub(self.producer.in_flight());
        if answered > self.answered.0 {
            self.answered = (answered, Instant::now());
            self.failing.clear();
        } else if answered < self.accepted
            && self
                .give_up
                .is_some_and(|after| self.answered.1.elapsed() >= after)
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

    /// Waits before a repetition, because an error may come at once.
    fn pause(&self, pause: Duration) -> Result<(), Halt> {
        let until = Instant::now() + pause;
        loop {
            if self.durable && self.context.stop.is_stopped() {
                return Err(Halt::Stopped);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(FLUSH_WAIT));
        }
    }

    /// Calls `act` repeatedly, each time for at most [`SLICE`], until it succeeds, it fails permanently, or `patience` is over. If
    /// the records come from a disk channel, the calls also end when the process stops. Records from memory must still be written
    /// during a stop.
    pub(super) fn patiently<T>(
        &mut self,
        patience: Duration,
        mut act: impl FnMut(&mut dyn Producer, Duration) -> Result<T, Error>,
    ) -> Result<T, Halt> {
        let until = Instant::now() + patience;
        let mut pause = PAUSE.0;
        loop {
            let answer = act(&mut *self.producer, SLICE.min(patience));
            self.producer.serve(Duration::ZERO);
            self.listen();
            match answer {
                Err(error) if error.kind == Kind::Again && Instant::now() < until => {
                    self.pause(pause.min(patience))?;
                    pause = (pause * 2).min(PAUSE.1);
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

/// Moves the records that the client refused from `unwanted` (number and reason) to `refused` (byte range in `batch` and reason), and
/// sorts `refused` by byte range. `first`: the number of the first record of `batch`.
pub(super) fn place_unwanted(
    batch: &Batch,
    shaper: &Shaper,
    first: usize,
    unwanted: &mut Vec<(usize, String)>,
    refused: &mut Vec<Refused>,
) {
    if !unwanted.is_empty() {
        let places = shaper.places(batch);
        for (number, reason) in unwanted.drain(..) {
            let place = number.checked_sub(first).and_then(|at| places.get(at));
            refused.extend(place.map(|range| (range.clone(), reason.into())));
        }
    }
    refused.sort_by_key(|(range, _)| range.start);
}
