//! Partitions that cannot be read yet, because no broker can be asked where they begin and end:
//! they have no leader, or the leader does not answer, or refuses. They hold up no other partition.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use millstream_kafka::{Consumer, Error, Kind, Partition};
use millstream_pipeline::{
    condition::{Condition, Trouble},
    report::Reporter,
};

use super::start::{ANSWER, Begin};

/// The pause between two rounds of questions. After a round that took long, the pause is four times
/// as long as the round, because no record of another partition is read during a round.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the first round may take. Each round that finds nothing doubles the time, up to
/// [`ANSWER`].
const FIRST: Duration = Duration::from_secs(1);
/// The least time that a broker gets for an answer.
const ANSWER_MIN: Duration = Duration::from_millis(50);

/// A partition that waits, with the offset that the group has committed for it.
pub(super) type Place = (Partition, Option<u64>);

/// The partitions that wait.
pub(super) struct Waiting {
    /// The next one to ask for is the first.
    places: VecDeque<Place>,
    /// Raised while a partition waits after a question for it.
    condition: Condition,
    /// How long the next round may take, and when it is due.
    budget: Duration,
    due: Instant,
}

impl Waiting {
    pub(super) fn new(reporter: &Reporter) -> Self {
        Self {
            places: VecDeque::new(),
            condition: reporter.condition("partitions"),
            budget: FIRST,
            due: Instant::now(),
        }
    }

    pub(super) fn add(&mut self, places: impl Iterator<Item = Place>) {
        self.places.extend(places);
        self.budget = FIRST;
    }

    pub(super) fn remove(&mut self, partition: &Partition) {
        self.places.retain(|(waiting, _)| waiting != partition);
        if self.places.is_empty() {
            self.condition.clear();
        }
    }

    pub(super) fn contains(&self, partition: &Partition) -> bool {
        self.places.iter().any(|(waiting, _)| waiting == partition)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether it is time to ask again.
    pub(super) fn is_due(&self) -> bool {
        !self.is_empty() && self.due <= Instant::now()
    }

    /// Asks with `find` where the waiting partitions begin. Returns those that can be read now.
    /// With `strict`, fails if a broker refuses; otherwise the partition waits for an operator.
    pub(super) fn find(
        &mut self,
        consumer: &mut dyn Consumer,
        strict: bool,
        mut find: impl FnMut(&mut dyn Consumer, &Place, Duration) -> Result<Begin, Error>,
    ) -> Result<Vec<(Place, Begin)>, Error> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let (begun, until) = (Instant::now(), Instant::now() + self.budget);
        let left = || until.saturating_duration_since(Instant::now());
        let partitions: Vec<_> = self.places.iter().map(|place| place.0.clone()).collect();
        let (mut found, mut why) = (Vec::new(), None);
        match consumer.without_leader(&partitions, left().max(ANSWER_MIN)) {
            // Without an answer, no broker can be asked for the partitions either.
            Err(error) => why = Some(waits(error, strict)?),
            Ok(headless) => {
                // Those for which there is no time are the first ones the next time.
                let (mut asked, mut unasked) = (VecDeque::new(), VecDeque::new());
                for place in std::mem::take(&mut self.places) {
                    if headless.contains(&place.0) {
                        let error = Error::new(Kind::Again, "it has no leader");
                        why.get_or_insert(error);
                        asked.push_back(place);
                        continue;
                    }
                    if left().is_zero() {
                        unasked.push_back(place);
                        continue;
                    }
                    match find(consumer, &place, left().max(ANSWER_MIN)) {
                        Ok(begin) => found.push((place, begin)),
                        Err(error) => {
                            why = Some(waits(error, strict)?);
                            asked.push_back(place);
                        }
                    }
                }
                unasked.append(&mut asked);
                self.places = unasked;
            }
        }
        if found.is_empty() {
            self.budget = (self.budget * 2).min(ANSWER);
        }
        self.due = Instant::now() + PAUSE.max(begun.elapsed() * 4);
        self.tell(why);
        Ok(found)
    }

    fn tell(&self, why: Option<Error>) {
        match (self.places.back(), why) {
            (Some((Partition { topic, number }, _)), Some(why)) => {
                let others = match self.places.len() - 1 {
                    0 => String::new(),
                    others => format!(" and {others} others"),
                };
                let text = format_args!(
                    "partition {topic}/{number}{others} cannot be read yet: {why}; the other partitions are read; retrying"
                );
                self.condition.raise(Trouble::Retrying, text);
            }
            (Some(_), None) => {}
            (None, _) => drop(self.condition.clear()),
        }
    }
}

/// The error, if its partition waits because of it.
fn waits(error: Error, strict: bool) -> Result<Error, Error> {
    match error.kind {
        Kind::Settings | Kind::Fatal | Kind::Fenced => Err(error),
        Kind::Refused if strict => Err(error),
        _ => Ok(error),
    }
}
