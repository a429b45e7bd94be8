//! Behind memory: an idempotent producer without transactions; a cut is settled when all before it is acknowledged.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! Memory cannot be read again, so batches are held until the cut behind them is settled, and records that fail are made
//! and sent once more. The client itself retries for ever what can be retried: what fails here was refused (rights, a topic
//! that is not there, a size), or the producer is of no use any more. Order is kept but where a record was refused.

use std::{
    collections::{BTreeSet, VecDeque},
    hash::{BuildHasher, RandomState},
    time::Instant,
};

use millstream_kafka::{Error, Failed, Kind, Outgoing};
use millstream_pipeline::{
    failure::Failure,
    inlet::{Cut, Event, Inlet},
    node::SinkContext,
};
use millstream_record::Batch;

use super::{
    Kafka,
    exact::refuse,
    link::{Halt, Link, reject},
    shape::{Refused, Shaper},
};
use crate::backoff::Backoff;

/// A batch that is not settled yet, and the numbers of its records.
struct Held {
    first: usize,
    count: usize,
    batch: Batch,
}

struct Plain<'a> {
    sink: &'a Kafka,
    context: SinkContext,
    link: Option<Link>,
    shaper: Shaper,
    outgoing: Outgoing,
    refused: Vec<Refused>,
    oversized: Vec<(usize, String)>,
    held: VecDeque<Held>,
    /// Records that were not written, and are not sent again yet.
    failed: Vec<Failed>,
    sent: usize,
    /// Since when nothing has gone well.
    since: Option<Instant>,
    backoff: Backoff,
}

/// Writes until the inlet ends.
pub(super) async fn run(
    sink: &Kafka,
    inlet: &mut Inlet,
    context: SinkContext,
) -> Result<(), Failure> {
    inlet.resume(None)?;
    let config = &sink.config;
    let seed = RandomState::new().hash_one(&*context.name);
    let (first, max) = (config.retry.first, config.retry.max);
    let mut plain = Plain {
        sink,
        context,
        link: None,
        shaper: Shaper::new(config, sink.limits().clone()),
        outgoing: Shaper::outgoing(config),
        refused: Vec::new(),
        oversized: Vec::new(),
        held: VecDeque::new(),
        failed: Vec::new(),
        sent: 0,
        since: None,
        backoff: Backoff::new(first.as_duration(), max.as_duration(), seed),
    };
    while let Some(event) = inlet.next().await? {
        match event {
            Event::Batch(batch, _) => plain.take(batch, inlet).await?,
            Event::Cut(mut cut) => {
                plain.finish(inlet, &mut cut).await?;
                inlet.settle(cut).await?;
            }
        }
    }
    Ok(())
}

impl Plain<'_> {
    /// Sends a batch's records. What fails of them is seen to at the cut, or when the client takes no more.
    async fn take(&mut self, batch: Batch, inlet: &mut Inlet) -> Result<(), Failure> {
        self.outgoing.clear();
        let first = self.sent;
        let count = self
            .shaper
            .shape(&batch, first, &mut self.outgoing, &mut self.refused);
        self.sent += count;
        let sent = self.send();
        let (oversized, refused) = (&mut self.oversized, &mut self.refused);
        refuse(&batch, &self.shaper, first, oversized, refused);
        reject(inlet, &batch, refused).await;
        self.held.push_back(Held {
            first,
            count,
            batch,
        });
        if !sent {
            self.mend(inlet, None).await?;
        }
        Ok(())
    }

    /// Waits until everything is acknowledged that was taken before the cut.
    async fn finish(&mut self, inlet: &mut Inlet, cut: &mut Cut) -> Result<(), Failure> {
        self.mend(inlet, Some(cut)).await?;
        self.held.clear();
        Ok(())
    }

    /// Hands over what is made; false if the client takes no more. What it did not take is among the failed records.
    fn send(&mut self) -> bool {
        if self.outgoing.records.is_empty() {
            return true;
        }
        let mut next = 0;
        let sent = match self.link() {
            Ok(mut link) => {
                let sent = link.send(&self.outgoing, &mut next, &mut self.oversized);
                self.failed.append(&mut link.failed);
                self.link = Some(link);
                sent
            }
            Err(error) => Err(Halt::Failed(error)),
        };
        let Err(Halt::Failed(error)) = sent else {
            return true;
        };
        let rest = self.outgoing.records.iter().skip(next);
        self.failed.extend(rest.map(|record| {
            Failed {
                number: record.number,
                topic: self
                    .outgoing
                    .topics
                    .get(record.topic)
                    .cloned()
                    .unwrap_or_default(),
                error: error.clone(),
            }
        }));
        false
    }

    /// The link, or a new one.
    fn link(&mut self) -> Result<Link, Error> {
        if let Some(link) = self.link.take() {
            return Ok(link);
        }
        let limits = self.sink.limits().clone();
        let mut settings = self.sink.config.settings(limits.batch_max);
        // The client tries for ever: `retry.give_up` is about what brokers refuse.
        settings.set("message.timeout.ms", "0");
        let producer = self.sink.client.producer(&settings)?;
        Ok(Link::new(producer, self.context.clone(), false))
    }

    /// Waits until nothing is in flight, and sends again what has failed, until nothing has.
    async fn mend(&mut self, inlet: &mut Inlet, mut cut: Option<&mut Cut>) -> Result<(), Failure> {
        loop {
            if let Some(link) = &mut self.link {
                // Only a stop could end it early, and that is nothing to a sink behind memory.
                drop(link.drain());
                self.failed.append(&mut link.failed);
            }
            let failed = std::mem::take(&mut self.failed);
            if failed.is_empty() {
                self.since = None;
                self.backoff.reset();
                return Ok(());
            }
            let too_large = |failed: &&Failed| failed.error.kind == Kind::TooLarge;
            let mut error = failed
                .iter()
                .find(|failed| !too_large(failed))
                .map(|f| f.error.clone());
            if let (Some(first), Some(link)) = (failed.iter().find(too_large), &mut self.link) {
                let patience = self.sink.config.retry.timeout.as_duration();
                if let Err(Halt::Failed(trouble)) = self.sink.learn(link, &first.topic, patience) {
                    error = Some(trouble);
                }
            }
            let mut give_up = false;
            if let Some(error) = &error {
                give_up = self.pause(error).await?;
            }
            // A refusal concerns a record; anything else, the producer.
            if error.is_none_or(|error| error.kind != Kind::Refused) {
                self.link = None;
            }
            self.shaper.set_limits(self.sink.limits().clone());
            self.again(&failed, give_up, inlet, cut.as_deref_mut())
                .await;
        }
    }

    /// Says what is wrong and waits; true if it has been wrong for too long.
    async fn pause(&mut self, error: &Error) -> Result<bool, Failure> {
        if error.kind == Kind::Settings {
            return Err(Failure::config(format!("Kafka: {error}")));
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let give_up = self.sink.config.retry.give_up.0;
        if give_up.is_some_and(|after| since.elapsed() >= after) {
            return Ok(true);
        }
        let wait = self.backoff.failed();
        self.context.reporter.error(
            "kafka",
            format_args!("{error}; trying again in {} ms", wait.as_millis()),
        );
        tokio::time::sleep(wait).await;
        Ok(false)
    }

    /// Makes the failed records again, and sends them or gives them up.
    async fn again(
        &mut self,
        failed: &[Failed],
        give_up: bool,
        inlet: &mut Inlet,
        mut cut: Option<&mut Cut>,
    ) {
        let numbers: BTreeSet<usize> = failed.iter().map(|failed| failed.number).collect();
        for held in std::mem::take(&mut self.held) {
            let own = held.first..held.first + held.count;
            if numbers.range(own.clone()).next().is_some() {
                self.outgoing.clear();
                let (outgoing, refused) = (&mut self.outgoing, &mut self.refused);
                self.shaper
                    .shape(&held.batch, held.first, outgoing, refused);
                outgoing.keep(|number| numbers.contains(&number));
                let places = self.shaper.places(&held.batch);
                let wanted = numbers
                    .range(own)
                    .filter_map(|number| places.get(number - held.first));
                let wanted: BTreeSet<usize> = wanted.map(|range| range.start).collect();
                // What was refused at first has left already.
                refused.retain(|(range, _)| wanted.contains(&range.start));
                if give_up {
                    let refused = &mut self.refused;
                    give_up_all(failed, &held, &places, refused);
                } else {
                    self.send();
                    let (oversized, refused) = (&mut self.oversized, &mut self.refused);
                    refuse(&held.batch, &self.shaper, held.first, oversized, refused);
                }
                reject_with(inlet, cut.as_deref_mut(), &held.batch, &mut self.refused).await;
            }
            self.held.push_back(held);
        }
    }
}

/// What failed of a batch leaves by the port for rejects, with what was said about it.
fn give_up_all(
    failed: &[Failed],
    held: &Held,
    places: &[std::ops::Range<usize>],
    refused: &mut Vec<Refused>,
) {
    let known: BTreeSet<usize> = refused.iter().map(|(range, _)| range.start).collect();
    for failed in failed {
        let place = failed.number.checked_sub(held.first);
        let place = place.and_then(|at| places.get(at));
        if let Some(range) = place.filter(|range| !known.contains(&range.start)) {
            let error = &failed.error;
            let reason = format!("Kafka did not take it for too long (`retry.give_up`): {error}");
            refused.push((range.clone(), reason));
        }
    }
}

/// Rejects before the cut that is out already, if there is one.
async fn reject_with(
    inlet: &mut Inlet,
    cut: Option<&mut Cut>,
    batch: &Batch,
    refused: &mut Vec<Refused>,
) {
    let Some(cut) = cut else {
        return reject(inlet, batch, refused).await;
    };
    for (range, reason) in refused.drain(..) {
        let record = batch.body.get(range);
        inlet.reject_before(cut, batch, record, &reason).await;
    }
}
