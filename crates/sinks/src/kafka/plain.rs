//! Delivers records from a channel in memory: with an idempotent producer, without transactions. A checkpoint is settled when
//! everything before it is acknowledged.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! Such a channel cannot be reread, so batches are held until the checkpoint after them is settled. Failed records are encoded
//! and sent again, unless brokers refuse them permanently. The client itself retries temporary failures. A failure that it reports
//! means that records were refused (access rights, a missing topic, a size, a bad record) or that the producer cannot be used any
//! more. Records keep their order, except refused ones.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use millstream_kafka::{Error, Failed, Kind, Outgoing};
use millstream_pipeline::{failure::Failure, inlet::Inlet, node::SinkContext};
use millstream_record::Batch;

use super::{
    link::{Halt, Link, place_unwanted},
    shape::{Shaper, shapeable},
    sink::Kafka,
    verdict::{Verdicts, is_verdict},
};
use crate::sending::{Input, Lane, Outage, Refused, Then};

/// A batch, or a part of one, that is not settled yet.
struct Held {
    /// Its number in [`Plain::lane`].
    number: u64,
    /// The number of its first record, and how many records it has.
    first: usize,
    count: usize,
    batch: Batch,
}

struct Plain<'a> {
    sink: &'a Kafka,
    lane: Lane<'a>,
    link: Option<Link>,
    shaper: Shaper,
    outgoing: Outgoing,
    refused: Vec<Refused>,
    unwanted: Vec<(usize, String)>,
    held: VecDeque<Held>,
    /// Records that failed and wait to be sent again.
    failed: Vec<Failed>,
    /// How many records have been numbered.
    numbered: usize,
    verdicts: Verdicts,
    outage: Outage,
}

/// Writes until the inlet ends.
pub(super) async fn run(
    sink: &Kafka,
    inlet: &mut Inlet,
    context: SinkContext,
) -> Result<(), Failure> {
    let config = &sink.config;
    let mut plain = Plain {
        sink,
        outage: Outage::new(&config.retry, &context, false, "kafka"),
        lane: Lane::new(inlet, context),
        link: None,
        shaper: Shaper::new(config, sink.limits().clone()),
        outgoing: Shaper::outgoing(config),
        refused: Vec::new(),
        unwanted: Vec::new(),
        held: VecDeque::new(),
        failed: Vec::new(),
        numbered: 0,
        verdicts: Verdicts::default(),
    };
    plain.lane.start()?;
    loop {
        match plain.lane.next(true).await? {
            Input::Batch(batch, _) => {
                for part in shapeable(batch) {
                    plain.batch(part).await?;
                }
            }
            Input::Checkpoint => {
                plain.deliver().await?;
                plain.held.clear();
                plain.lane.finish_all();
                plain.lane.settle().await?;
            }
            Input::Tick => {}
            Input::End => return Ok(()),
        }
    }
}

impl Plain<'_> {
    /// Sends the records of a part of a batch. Failures are handled at the checkpoint, or when the client accepts no more.
    async fn batch(&mut self, batch: Batch) -> Result<(), Failure> {
        self.outgoing.clear();
        let number = self.lane.begin(batch.received);
        let first = self.numbered;
        let count = self
            .shaper
            .shape(&batch, first, &mut self.outgoing, &mut self.refused);
        self.numbered += count;
        let sent = self.send();
        self.reject(None, &batch, first).await;
        self.held.push_back(Held {
            number,
            first,
            count,
            batch,
        });
        if !sent {
            self.deliver().await?;
        }
        Ok(())
    }

    /// Rejects the refused records of the batch that was shaped last. `first` is the number of the batch's first record.
    async fn reject(&mut self, number: Option<u64>, batch: &Batch, first: usize) {
        let (unwanted, refused) = (&mut self.unwanted, &mut self.refused);
        place_unwanted(batch, &self.shaper, first, unwanted, refused);
        self.lane.reject_refused(number, batch, refused).await;
        refused.clear();
    }

    /// Passes the encoded records to the client. Returns `false` if the client accepts no more records. The remaining records then
    /// count as failed.
    fn send(&mut self) -> bool {
        if self.outgoing.records.is_empty() {
            return true;
        }
        let mut next = 0;
        let sent = match self.link() {
            Ok(mut link) => {
                let end = self.outgoing.records.len();
                let sent = link.send(&self.outgoing, &mut next, end, &mut self.unwanted);
                self.failed.append(&mut link.failed);
                self.link = Some(link);
                sent
            }
            Err(error) => Err(Halt::Failed(error)),
        };
        let Err(Halt::Failed(error)) = sent else {
            return true;
        };
        let unsent = self.outgoing.records.iter().skip(next);
        self.failed.extend(unsent.map(|record| {
            Failed {
                number: record.number,
                topic: self
                    .outgoing
                    .topics
                    .get(record.topic)
                    .cloned()
                    .unwrap_or_default(),
                alone: false,
                error: error.clone(),
            }
        }));
        false
    }

    /// Takes the link, or creates one.
    fn link(&mut self) -> Result<Link, Error> {
        if let Some(link) = self.link.take() {
            return Ok(link);
        }
        let limits = self.sink.limits().clone();
        // The producer retries forever. The link purges it after `retry.give_up`.
        let mut options = self.sink.config.producer(limits.batch_max);
        self.verdicts.apply(&mut options);
        let producer = self.sink.client.producer(options)?;
        let give_up = self.sink.config.retry.give_up.0;
        Ok(Link::new(producer, self.lane.context.clone(), give_up))
    }

    /// Waits until nothing is in flight. If records have failed, sends them again and waits again, until no record fails.
    async fn deliver(&mut self) -> Result<(), Failure> {
        loop {
            let mut overdue = false;
            if let Some(link) = &mut self.link {
                // The result is ignored: with records from memory, `drain` cannot fail.
                drop(link.drain());
                self.failed.append(&mut link.failed);
                overdue = std::mem::take(&mut link.overdue);
            }
            let failed = std::mem::take(&mut self.failed);
            if failed.is_empty() {
                self.outage.succeeded();
                if self.verdicts.join() {
                    self.link = None;
                }
                return Ok(());
            }
            let judged = self.verdicts.judge(&failed);
            let (alone, mut unfit): (bool, BTreeMap<_, _>) = match judged {
                Some(unfit) => (unfit.is_empty(), unfit.into_iter().collect()),
                None => (false, BTreeMap::new()),
            };
            let too_large = |failed: &Failed| failed.error.kind == Kind::TooLarge;
            let is_large = failed.iter().any(too_large);
            unfit.extend(self.learn_limit(&failed));
            // Whether the next attempt would fail in the same way, because nothing was learned from this failure.
            let stuck = |failed: &&Failed| !too_large(failed) && !is_verdict(&failed.error);
            let error = failed.iter().find(stuck).map(|other| &other.error);
            if let Some(error) = error
                && (overdue || self.is_given_up(error).await?)
            {
                let reporter = &self.lane.context.reporter;
                reporter.error("give-up", given_up_for(error));
                let given_up = failed.iter().filter(stuck);
                unfit.extend(given_up.map(|failed| (failed.number, given_up_for(&failed.error))));
            }
            // A refusal concerns a topic or a record. Any other error concerns the producer or its settings, so a new producer is
            // created.
            let renew = error.is_some_and(|error| error.kind != Kind::Refused);
            if renew || alone || is_large {
                self.link = None;
            }
            self.shaper.set_limits(self.sink.limits().clone());
            self.send_again(&failed, &unfit).await;
        }
    }

    /// Learns the limits of topics that have refused records as too large. Returns the records that
    /// are too large even alone, each with the reason.
    fn learn_limit(&mut self, failed: &[Failed]) -> Vec<(usize, String)> {
        let patience = self.sink.config.retry.timeout.as_duration();
        let Some(link) = self.link.as_mut() else {
            return Vec::new();
        };
        // With records from memory, this fails for no stop.
        self.sink.learn(link, failed, patience).unwrap_or_default()
    }

    /// Pauses after an error. Returns true if `retry.give_up` is over.
    async fn is_given_up(&mut self, error: &Error) -> Result<bool, Failure> {
        if error.kind == Kind::Settings {
            return Err(Failure::config(format!("Kafka: {error}")));
        }
        Ok(self.outage.retry(error, Duration::ZERO).await == Then::GiveUp)
    }

    /// Encodes the failed records again. Rejects the records in `unfit` (numbers and reasons), and sends the others.
    async fn send_again(&mut self, failed: &[Failed], unfit: &BTreeMap<usize, String>) {
        let numbers: BTreeSet<usize> = failed.iter().map(|failed| failed.number).collect();
        for held in std::mem::take(&mut self.held) {
            let own = held.first..held.first + held.count;
            if numbers.range(own.clone()).next().is_some() {
                self.outgoing.clear();
                let (outgoing, refused) = (&mut self.outgoing, &mut self.refused);
                self.shaper
                    .shape(&held.batch, held.first, outgoing, refused);
                outgoing.keep(|number| numbers.contains(&number));
                let records = outgoing.records.iter();
                let reason = |number| Some((number, unfit.get(&number)?.clone()));
                self.unwanted
                    .extend(records.filter_map(|record| reason(record.number)));
                outgoing.keep(|number| !unfit.contains_key(&number));
                let places = self.shaper.places(&held.batch);
                let wanted = numbers
                    .range(own)
                    .filter_map(|number| places.get(number - held.first));
                let wanted: BTreeSet<usize> = wanted.map(|range| range.start).collect();
                // Records that were refused when the batch was first shaped are already rejected.
                refused.retain(|(range, _)| wanted.contains(&range.start));
                self.send();
                self.reject(Some(held.number), &held.batch, held.first)
                    .await;
            }
            self.held.push_back(held);
        }
    }
}

fn given_up_for(error: &Error) -> String {
    format!("Kafka did not accept it for too long (`retry.give_up`): {error}")
}
