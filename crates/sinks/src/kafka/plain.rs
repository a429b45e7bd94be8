//! Behind memory: an idempotent producer without transactions; a checkpoint is settled when all before it is acknowledged.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! Memory cannot be read again, so batches are held until the checkpoint behind them is settled, and records that fail are made
//! and sent once more, but those that are refused for what they are. The client itself retries for ever what can be retried:
//! what fails here was refused (rights, a topic that is not there, a size, a record), or the producer is of no use any more.
//! Order is kept but where a record was refused.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{BuildHasher, RandomState},
    time::Instant,
};

use millstream_kafka::{Error, Failed, Kind, Outgoing};
use millstream_pipeline::{
    condition::{Condition, Trouble},
    failure::Failure,
    inlet::{Checkpoint, Inlet, Item},
    node::SinkContext,
};
use millstream_record::Batch;

use super::{
    Kafka,
    link::{Halt, Link, refuse, reject},
    shape::{Refused, Shaper},
    verdict::{Verdicts, is_verdict},
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
    unwanted: Vec<(usize, String)>,
    held: VecDeque<Held>,
    /// Records that were not written, and are not sent again yet.
    failed: Vec<Failed>,
    sent: usize,
    verdicts: Verdicts,
    /// Since when nothing has gone well.
    since: Option<Instant>,
    failing: Condition,
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
        failing: context.reporter.condition("kafka"),
        context,
        link: None,
        shaper: Shaper::new(config, sink.limits().clone()),
        outgoing: Shaper::outgoing(config),
        refused: Vec::new(),
        unwanted: Vec::new(),
        held: VecDeque::new(),
        failed: Vec::new(),
        sent: 0,
        verdicts: Verdicts::default(),
        since: None,
        backoff: Backoff::new(first.as_duration(), max.as_duration(), seed),
    };
    while let Some(item) = inlet.next().await? {
        match item {
            Item::Batch(batch, _) => plain.take(batch, inlet).await?,
            Item::Checkpoint(mut checkpoint) => {
                plain.finish(inlet, &mut checkpoint).await?;
                inlet.settle(checkpoint).await?;
            }
        }
    }
    Ok(())
}

impl Plain<'_> {
    /// Sends a batch's records. What fails of them is seen to at the checkpoint, or when the client takes no more.
    async fn take(&mut self, batch: Batch, inlet: &mut Inlet) -> Result<(), Failure> {
        self.outgoing.clear();
        let first = self.sent;
        let count = self
            .shaper
            .shape(&batch, first, &mut self.outgoing, &mut self.refused);
        self.sent += count;
        let sent = self.send();
        let (unwanted, refused) = (&mut self.unwanted, &mut self.refused);
        refuse(&batch, &self.shaper, first, unwanted, refused);
        reject(inlet, None, &batch, refused).await;
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

    /// Waits until everything is acknowledged that was taken before the checkpoint.
    async fn finish(
        &mut self,
        inlet: &mut Inlet,
        checkpoint: &mut Checkpoint,
    ) -> Result<(), Failure> {
        self.mend(inlet, Some(checkpoint)).await?;
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
                let sent = link.send(&self.outgoing, &mut next, &mut self.unwanted);
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
        // The producer tries for ever; the link takes back what `retry.give_up` is over for.
        let mut options = self.sink.config.producer(limits.batch_max);
        self.verdicts.apply(&mut options);
        let producer = self.sink.client.producer(options)?;
        let give_up = self.sink.config.retry.give_up.0;
        Ok(Link::new(producer, self.context.clone(), give_up))
    }

    /// Waits until nothing is in flight, and sends again what has failed, until nothing has.
    async fn mend(
        &mut self,
        inlet: &mut Inlet,
        mut checkpoint: Option<&mut Checkpoint>,
    ) -> Result<(), Failure> {
        loop {
            let mut overdue = false;
            if let Some(link) = &mut self.link {
                // Only a stop could end it early, and that is nothing to a sink behind memory.
                drop(link.drain());
                self.failed.append(&mut link.failed);
                overdue = std::mem::take(&mut link.overdue);
            }
            let failed = std::mem::take(&mut self.failed);
            if failed.is_empty() {
                self.since = None;
                self.failing.clear();
                self.backoff.reset();
                if self.verdicts.join() {
                    self.link = None;
                }
                return Ok(());
            }
            let judged = self.verdicts.judge(&failed);
            let (alone, mut unfit) = match judged {
                Some(unfit) => (unfit.is_empty(), unfit.into_iter().collect()),
                None => (false, BTreeMap::new()),
            };
            let too_large = |failed: &&Failed| failed.error.kind == Kind::TooLarge;
            let large = failed.iter().find(too_large);
            let mut unlearned = None;
            if let (Some(first), Some(link)) = (large, &mut self.link) {
                let patience = self.sink.config.retry.timeout.as_duration();
                if let Err(Halt::Failed(trouble)) = self.sink.learn(link, &first.topic, patience) {
                    unlearned = Some(trouble);
                }
            }
            // Those of which nothing is learned that makes the next try another one.
            let stuck = |failed: &&Failed| match failed.error.kind {
                Kind::TooLarge => unlearned.is_some(),
                _ => !is_verdict(&failed.error),
            };
            let other = failed.iter().find(|one| !too_large(one) && stuck(one));
            let error = unlearned.as_ref().or(other.map(|other| &other.error));
            if let Some(error) = error
                && (overdue || self.pause(error).await?)
            {
                self.context.reporter.error("give-up", given_up_for(error));
                let given_up = failed.iter().filter(stuck);
                unfit.extend(given_up.map(|failed| (failed.number, given_up_for(&failed.error))));
            }
            // A refusal concerns a record; anything else, the producer or how it is to send.
            let renew = error.is_some_and(|error| error.kind != Kind::Refused);
            if renew || alone || large.is_some() {
                self.link = None;
            }
            self.shaper.set_limits(self.sink.limits().clone());
            self.again(&failed, &unfit, inlet, checkpoint.as_deref_mut())
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
        self.failing.raise(
            Trouble::Retrying,
            format_args!("{error}; retrying in {} ms", wait.as_millis()),
        );
        tokio::time::sleep(wait).await;
        Ok(false)
    }

    /// Makes the failed records again, and sends them; `unfit` are numbers and reasons of those that are rejected.
    async fn again(
        &mut self,
        failed: &[Failed],
        unfit: &BTreeMap<usize, String>,
        inlet: &mut Inlet,
        mut checkpoint: Option<&mut Checkpoint>,
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
                // What was refused at first has left already.
                refused.retain(|(range, _)| wanted.contains(&range.start));
                self.send();
                let (unwanted, refused) = (&mut self.unwanted, &mut self.refused);
                refuse(&held.batch, &self.shaper, held.first, unwanted, refused);
                reject(
                    inlet,
                    checkpoint.as_deref_mut(),
                    &held.batch,
                    &mut self.refused,
                )
                .await;
            }
            self.held.push_back(held);
        }
    }
}

fn given_up_for(error: &Error) -> String {
    format!("Kafka did not take it for too long (`retry.give_up`): {error}")
}
