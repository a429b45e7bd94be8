//! One session behind a disk channel: from a producer's making to its end.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! It promises that nothing of a transaction can be seen before [`Session::commit`] has said so, and that what it
//! refuses of a batch is held until the checkpoint: a transaction that is done again must not reject everything again.

use std::time::Duration;

use millstream_kafka::{Failed, Kind, Outgoing, Store};
use millstream_pipeline::inlet::{Checkpoint, Inlet};
use millstream_record::{Batch, Position};

use super::{
    exact::{End, Exact, Unfit},
    link::{Halt, Link, refuse, reject},
    position::{Committed, identity},
    shape::{Refused, Shaper},
};

/// How long a broker has to abort what is open when the process ends; else the next start does it.
const FAREWELL: Duration = Duration::from_secs(2);

/// From one producer's making to its end.
pub(super) struct Session {
    link: Link,
    shaper: Shaper,
    outgoing: Outgoing,
    refused: Vec<Refused>,
    unwanted: Vec<(usize, String)>,
    /// What leaves by the port for rejects with the next checkpoint.
    rejects: Vec<(Batch, Vec<Refused>)>,
    store: Store,
    /// Whether a transaction is open.
    open: bool,
    /// Whether there is a position, so that its topic is there.
    stored: bool,
    /// Records sent.
    sent: usize,
    /// The batches of the open transaction: the number of the first record, and the position.
    batches: Vec<(usize, Option<Position>)>,
}

impl Session {
    /// A producer of its own for each session: what went wrong with the last one is gone with it.
    pub(super) fn begin(exact: &Exact<'_>) -> Result<Self, End> {
        let limits = exact.sink.limits().clone();
        let config = &exact.sink.config;
        let identity = identity(exact.channel, &exact.context.name);
        let mut options = config.producer(limits.batch_max);
        options.transactional_id = Some(identity.clone());
        exact.verdicts.apply(&mut options);
        let producer = exact.sink.client.producer(options);
        let producer = producer.map_err(End::Trouble)?;
        Ok(Self {
            link: Link::durable(producer, exact.context.clone()),
            shaper: Shaper::new(config, limits),
            outgoing: Shaper::outgoing(config),
            refused: Vec::new(),
            unwanted: Vec::new(),
            rejects: Vec::new(),
            store: Store {
                group: identity,
                topic: config.position_topic().to_owned(),
            },
            open: false,
            stored: false,
            sent: 0,
            batches: Vec::new(),
        })
    }

    /// Takes over from whoever was there before, and finds the position. It is to be committed again at once: that claims it.
    pub(super) fn find(&mut self, exact: &mut Exact<'_>) -> Result<Option<Position>, End> {
        let patience = exact.patience();
        if exact.has_looked() {
            let found = self.read(exact)?;
            exact.look(found.as_ref())?;
        }
        self.link
            .patiently(patience, |producer, time| producer.init(time))?;
        if exact.sink.config.is_templated() && exact.sink.config.position.is_none() {
            let topic = &self.store.topic;
            self.link
                .patiently(patience, |producer, _| producer.make_topic(topic, patience))?;
        }
        let found = self.read(exact)?;
        exact.look(found.as_ref())?;
        self.stored = found.is_some();
        Ok(found.map(|found| found.position))
    }

    fn read(&mut self, exact: &Exact<'_>) -> Result<Option<Committed>, End> {
        let store = &self.store;
        let text = self.link.patiently(exact.patience(), |producer, time| {
            producer.committed(store, time)
        })?;
        let found = text.as_deref().map(Committed::parse).transpose()?;
        Ok(found.filter(|found| found.channel == exact.channel))
    }

    /// Sends a batch's records. What is refused of it is held until the checkpoint.
    pub(super) fn take(
        &mut self,
        batch: Batch,
        position: Option<Position>,
        exact: &mut Exact<'_>,
    ) -> Result<(), End> {
        let sent = self.send(&batch, position, exact);
        if !self.refused.is_empty() {
            let refused = std::mem::take(&mut self.refused);
            self.rejects.push((batch, refused));
        }
        sent
    }

    fn send(
        &mut self,
        batch: &Batch,
        position: Option<Position>,
        exact: &mut Exact<'_>,
    ) -> Result<(), End> {
        self.outgoing.clear();
        let first = self.sent;
        self.batches.push((first, position));
        self.sent += self
            .shaper
            .shape(batch, first, &mut self.outgoing, &mut self.refused);
        self.leave_out(first, position, &exact.unfit);
        if !self.outgoing.records.is_empty() {
            self.begin_transaction()?;
            let mut next = 0;
            let sent = self
                .link
                .send(&self.outgoing, &mut next, &mut self.unwanted);
            self.check(exact, sent)?;
        }
        if !self.unwanted.is_empty() {
            refuse(
                batch,
                &self.shaper,
                first,
                &mut self.unwanted,
                &mut self.refused,
            );
        }
        Ok(())
    }

    /// Takes out what an earlier try has shown to be refused for good.
    fn leave_out(&mut self, first: usize, position: Option<Position>, unfit: &Unfit) {
        let mut own = unfit.range((position, 0)..=(position, usize::MAX));
        if own.next().is_none() {
            return;
        }
        let reason = |number: usize| unfit.get(&(position, number - first));
        let records = self.outgoing.records.iter();
        let out =
            records.filter_map(|record| Some((record.number, reason(record.number)?.clone())));
        self.unwanted.extend(out);
        self.outgoing.keep(|number| reason(number).is_none());
    }

    /// The batch of a record, by its position, and the record's place in it.
    fn place(&self, number: usize) -> Option<(Option<Position>, usize)> {
        let next = self.batches.partition_point(|(first, _)| *first <= number);
        let (first, position) = self.batches.get(next.checked_sub(1)?)?;
        Some((*position, number - first))
    }

    fn begin_transaction(&mut self) -> Result<(), End> {
        if !self.open {
            self.link.producer.begin().map_err(End::Trouble)?;
            self.open = true;
        }
        Ok(())
    }

    /// Waits until nothing is in flight, and rejects what was refused before the checkpoint; the position that is reached then.
    pub(super) async fn reach(
        &mut self,
        checkpoint: &mut Checkpoint,
        exact: &mut Exact<'_>,
        inlet: &mut Inlet,
    ) -> Result<Option<Position>, End> {
        let drained = self.link.drain();
        self.check(exact, drained)?;
        for (batch, mut refused) in self.rejects.drain(..) {
            reject(inlet, Some(checkpoint), &batch, &mut refused).await;
        }
        Ok(checkpoint.kept().await?)
    }

    /// Makes everything up to `position` visible, and the position with it. Nothing may be in flight.
    pub(super) fn commit(&mut self, position: Position, exact: &mut Exact<'_>) -> Result<(), End> {
        self.batches.clear();
        // A topic that is not there cannot hold a position; it comes with the first record.
        if !self.open && !self.stored {
            return Ok(());
        }
        self.begin_transaction()?;
        let committed = exact.committed(position);
        let text = committed.text();
        let number = i64::try_from(position.seq).unwrap_or(i64::MAX);
        let store = self.store.clone();
        self.link.patiently(exact.patience(), |producer, time| {
            producer.commit(&store, &text, number, time)
        })?;
        (self.open, self.stored) = (false, true);
        Ok(exact.look(Some(&committed))?)
    }

    /// Ends the session if a record has failed. What the failures teach about sizes and records is learned first.
    fn check(&mut self, exact: &mut Exact<'_>, done: Result<(), Halt>) -> Result<(), End> {
        if done.is_ok() && self.link.failed.is_empty() {
            return Ok(());
        }
        // The transaction is lost already: what else failed is worth a moment, as each lesson costs a try.
        self.link.hear();
        let failed = std::mem::take(&mut self.link.failed);
        let too_large = |failed: &&Failed| failed.error.kind == Kind::TooLarge;
        if let Some(first) = failed.iter().find(too_large) {
            exact
                .sink
                .learn(&mut self.link, &first.topic, exact.patience())?;
            return Err(End::Anew);
        }
        if let Some(unfit) = exact.verdicts.judge(&failed) {
            if unfit.is_empty() {
                let suspects = failed.iter().filter(|one| one.error.kind == Kind::Suspect);
                let places = suspects.filter_map(|one| self.place(one.number));
                exact.suspected = places.filter_map(|(position, _)| position).max();
            }
            let unfit = unfit.into_iter();
            let placed = unfit.filter_map(|(number, reason)| Some((self.place(number)?, reason)));
            exact.unfit.extend(placed);
            return Err(End::Anew);
        }
        match failed.into_iter().next() {
            Some(first) => Err(End::Trouble(first.error)),
            None => Ok(done?),
        }
    }

    /// The process ends: what is open is aborted, so that readers need not wait for the next start.
    pub(super) fn leave(&mut self) {
        if self.open {
            // The next start does it if it fails now.
            drop(self.link.producer.abort(FAREWELL));
        }
    }
}
