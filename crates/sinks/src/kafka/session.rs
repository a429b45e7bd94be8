//! One session of a sink that reads from a disk channel: the life of one producer.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! A session promises that readers see nothing of a transaction before its commit has succeeded. Refused records are
//! held until then, so that a repeated transaction does not reject them again.

use std::time::{Duration, Instant};

use millstream_kafka::{Error, Failed, Kind, Outgoing, Store};
use millstream_pipeline::inlet::{Checkpoint, Inlet};
use millstream_record::{Batch, Position};

use super::{
    carried::{Carried, Place, Unfit},
    end::End,
    link::{Halt, Link, place_unwanted},
    position::{Committed, identity},
    progress::{Part, Progress},
    shape::{Shaper, shapeable},
    verdict::is_verdict,
};
use crate::sending::{Refused, by_reason};

/// Time limit for aborting an open transaction when the process ends. If it is exceeded, the next start aborts the transaction.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// One producer's life.
pub(super) struct Session {
    link: Link,
    shaper: Shaper,
    outgoing: Outgoing,
    refused: Vec<Refused>,
    unwanted: Vec<(usize, String)>,
    /// The records that the next checkpoint rejects.
    rejects: Vec<(Batch, Vec<Refused>)>,
    store: Store,
    /// Whether a transaction is open, and since when it has records.
    in_transaction: bool,
    begun: Option<Instant>,
    /// Whether a position is committed, so that its topic exists.
    stored: bool,
    /// The position of the last checkpoint.
    position: Option<Position>,
    /// How far frames are read and committed beyond that position.
    pub(super) progress: Progress,
    /// Bytes of records that were sent since nothing was in flight, while records are sent in steps.
    unacknowledged: usize,
    /// Whether this session has committed a part of a frame.
    pub(super) has_divided: bool,
    /// How many records have been numbered.
    numbered: usize,
    /// For each batch, or part of one, of the open transaction: the number of its first record, and its position.
    batches: Vec<(usize, Option<Position>)>,
}

impl Session {
    /// Creates a new producer, so that no state of a failed one remains.
    pub(super) fn begin(carried: &Carried<'_>) -> Result<Self, End> {
        let limits = carried.sink.limits().clone();
        let config = &carried.sink.config;
        let identity = identity(carried.ownership.channel, &carried.context.name);
        let mut options = config.producer(limits.batch_max);
        options.transactional_id = Some(identity.clone());
        options.transaction_timeout = carried.timeout.current;
        let producer = carried.sink.client.producer(options);
        let producer = producer.map_err(End::Trouble)?;
        Ok(Self {
            link: Link::durable(producer, carried.context.clone()),
            shaper: Shaper::new(config, limits),
            outgoing: Shaper::outgoing(config),
            refused: Vec::new(),
            unwanted: Vec::new(),
            rejects: Vec::new(),
            store: Store {
                group: identity,
                topic: config.position_topic().to_owned(),
            },
            in_transaction: false,
            begun: None,
            stored: false,
            position: None,
            progress: Progress::default(),
            unacknowledged: 0,
            has_divided: false,
            numbered: 0,
            batches: Vec::new(),
        })
    }

    /// Fences the predecessor: Kafka then refuses the predecessor's transactions. Returns the position, or `None` if none is committed. The
    /// caller must claim the position: commit it again immediately.
    pub(super) fn find(&mut self, carried: &mut Carried<'_>) -> Result<Option<Position>, End> {
        let patience = carried.patience();
        if carried.ownership.has_checked() {
            // The previous session may have left a transaction open. Only the `init` below ends it, so this read must not wait for the end
            // of the transaction.
            let committed = self.read(carried, false)?;
            carried.ownership.check(committed.as_ref())?;
        }
        self.link
            .patiently(patience, |producer, time| producer.init(time))?;
        let config = &carried.sink.config;
        if config.is_templated() && config.position.is_none() {
            self.make_topic(patience)?;
        }
        let committed = self.read(carried, true)?;
        carried.ownership.check(committed.as_ref())?;
        self.stored = committed.is_some();
        let mut part = committed.as_ref().and_then(|committed| committed.part);
        if part.is_some() {
            carried.timeout.divide();
        }
        if std::mem::take(&mut carried.is_changed) {
            part = part.map(Part::before_frame);
        }
        self.progress = Progress::new(part, carried.timeout.step.is_some());
        Ok(committed.map(|committed| committed.position))
    }

    /// Begins to read after this position.
    pub(super) fn begins_after(&mut self, position: Option<Position>) {
        self.position = position;
        self.progress.begins_after(position);
    }

    /// Makes sure that the topic of the position exists.
    fn make_topic(&mut self, patience: Duration) -> Result<(), Halt> {
        let topic = &self.store.topic;
        let made = self
            .link
            .patiently(patience, |producer, time| producer.make_topic(topic, time));
        made.map_err(|halt| match halt {
            Halt::Failed(error) if error.kind == Kind::Refused => Halt::Failed(Error::new(
                error.kind,
                format!(
                    "{error}. The sink keeps its position there: create the topic (one partition), allow the sink to create it, or name \
                     an existing topic in `position`"
                ),
            )),
            halt => halt,
        })
    }

    /// Reads the position. `stable`: waits until no transaction is being completed.
    fn read(&mut self, carried: &Carried<'_>, stable: bool) -> Result<Option<Committed>, End> {
        let store = &self.store;
        let text = self.link.patiently(carried.patience(), |producer, time| {
            producer.committed(store, stable, time)
        })?;
        let committed = text.as_deref().map(Committed::parse).transpose()?;
        let channel = carried.ownership.channel;
        Ok(committed.filter(|committed| committed.channel == channel))
    }

    /// Sends a batch's records. Holds the refused ones until the checkpoint.
    pub(super) async fn batch(
        &mut self,
        batch: Batch,
        position: Option<Position>,
        carried: &mut Carried<'_>,
        inlet: &mut Inlet,
    ) -> Result<(), End> {
        for part in shapeable(batch) {
            self.send(&part, position, carried, inlet).await?;
            if !self.refused.is_empty() {
                let refused = std::mem::take(&mut self.refused);
                self.rejects.push((part, refused));
            }
        }
        Ok(())
    }

    async fn send(
        &mut self,
        batch: &Batch,
        position: Option<Position>,
        carried: &mut Carried<'_>,
        inlet: &mut Inlet,
    ) -> Result<(), End> {
        self.outgoing.clear();
        let first = self.numbered;
        self.batches.push((first, position));
        self.numbered += self
            .shaper
            .shape(batch, first, &mut self.outgoing, &mut self.refused);
        if let Some(position) = position {
            let known = self.progress.skip(position, &batch.body);
            let known = known.map_err(|changed| carried.write_again(changed))?;
            self.leave_out_known(batch, known);
        }
        self.leave_out(position, &carried.unfit);
        if !self.outgoing.records.is_empty() {
            self.begin_records()?;
            self.send_records(batch, position, carried, inlet).await?;
        }
        if !self.unwanted.is_empty() {
            let (unwanted, refused) = (&mut self.unwanted, &mut self.refused);
            place_unwanted(batch, &self.shaper, first, unwanted, refused);
        }
        self.progress.pass(&batch.body);
        Ok(())
    }

    /// Passes the records of `batch`, the last batch, to the producer. `position` is the position of
    /// the batch.
    async fn send_records(
        &mut self,
        batch: &Batch,
        position: Option<Position>,
        carried: &mut Carried<'_>,
        inlet: &mut Inlet,
    ) -> Result<(), End> {
        let (mut next, end) = (0, self.outgoing.records.len());
        if carried.is_suspected(position) {
            next = self.send_suspects(batch, position, carried, inlet).await?;
            self.check(carried, Ok(()))?;
        }
        while next < end {
            let step = carried.timeout.step;
            let until = step.map_or(end, |step| self.end_of_step(next, step));
            let (outgoing, unwanted) = (&self.outgoing, &mut self.unwanted);
            let mut sent = self.link.send(outgoing, &mut next, until, unwanted);
            let is_whole = step.is_some_and(|step| self.unacknowledged >= step);
            if is_whole && sent.is_ok() {
                sent = self.link.drain();
            }
            self.check(carried, sent)?;
            if is_whole {
                self.divide(batch, next, carried, inlet).await?;
            }
        }
        Ok(())
    }

    /// Counts the records from the index `next` until a step is complete. Returns the index after
    /// them.
    fn end_of_step(&mut self, next: usize, step: usize) -> usize {
        let end = self.outgoing.records.len();
        for index in next..end {
            self.unacknowledged += self.outgoing.size_of(index);
            if self.unacknowledged >= step {
                return index + 1;
            }
        }
        end
    }

    /// Commits a part of a frame if the transaction has lasted long and records are sent in steps.
    /// Nothing may be in flight. `next`: the index of the next record of `batch`, the last batch.
    async fn divide(
        &mut self,
        batch: &Batch,
        next: usize,
        carried: &mut Carried<'_>,
        inlet: &mut Inlet,
    ) -> Result<(), End> {
        self.unacknowledged = 0;
        let is_late = |begun| carried.timeout.is_late(begun);
        if carried.timeout.step.is_none() || !self.begun.is_some_and(is_late) {
            return Ok(());
        }
        let end = self.known_bytes(batch, next);
        let part = batch
            .body
            .get(..end)
            .and_then(|known| self.progress.part(known));
        let (Some(position), Some(part)) = (self.position, part) else {
            return Ok(());
        };
        self.reject_known(batch, end, carried, inlet).await?;
        self.write_position(position, Some(part), carried)?;
        self.has_divided = true;
        if next < self.outgoing.records.len() {
            self.begin_records()?;
        }
        Ok(())
    }

    /// The number of bytes of `batch`, the last batch, before the record with the index `next`.
    fn known_bytes(&self, batch: &Batch, next: usize) -> usize {
        let first = self.batches.last().map_or(0, |(first, _)| *first);
        let Some(record) = self.outgoing.records.get(next) else {
            return batch.body.len();
        };
        let place = self
            .shaper
            .places(batch)
            .into_iter()
            .nth(record.number - first);
        place.map_or(0, |place| place.start)
    }

    /// Rejects the refused records before the first `end` bytes of `batch`, the last batch, have
    /// ended, and waits until the rejects are kept. The next session does not see these records.
    async fn reject_known(
        &mut self,
        batch: &Batch,
        end: usize,
        carried: &Carried<'_>,
        inlet: &mut Inlet,
    ) -> Result<(), End> {
        let first = self.batches.last().map_or(0, |(first, _)| *first);
        let (unwanted, refused) = (&mut self.unwanted, &mut self.refused);
        place_unwanted(batch, &self.shaper, first, unwanted, refused);
        let later = self.refused.partition_point(|(range, _)| range.start < end);
        let later = self.refused.split_off(later);
        let known = std::mem::replace(&mut self.refused, later);
        if known.is_empty() && self.rejects.is_empty() {
            return Ok(());
        }
        self.fail_if_expired(carried)?;
        for (batch, refused) in self.rejects.drain(..).chain([(batch.clone(), known)]) {
            for (reason, records) in by_reason(&batch, &refused) {
                inlet.reject(&batch, records, &reason).await;
            }
        }
        Ok(inlet.rejects_kept().await?)
    }

    /// Sends each record that may have spoiled its batch in a separate batch, and the records
    /// between them as usual. A refusal then concerns one record. After the first one, the
    /// transaction is lost, and only the other suspects are sent, so that one session finds all bad
    /// records of a position. Returns the index of the first record after the last suspect.
    async fn send_suspects(
        &mut self,
        batch: &Batch,
        position: Option<Position>,
        carried: &mut Carried<'_>,
        inlet: &mut Inlet,
    ) -> Result<usize, End> {
        let Some(first) = self.first_at(self.batches.len()) else {
            return Ok(0);
        };
        let records = self.outgoing.records.iter().enumerate();
        let suspects: Vec<usize> = records
            .filter(|(_, record)| {
                carried
                    .suspects
                    .contains(&(position, record.number - first))
            })
            .map(|(index, _)| index)
            .collect();
        let mut next = 0;
        for suspect in suspects {
            if self.link.failed.is_empty() && next < suspect {
                let sent = self.send_and_drain(&mut next, suspect);
                self.check_halt(carried, sent)?;
            }
            if !self.link.failed.iter().all(|one| is_verdict(&one.error)) {
                break;
            }
            next = suspect;
            // Nothing is in flight before and after, so the record is alone in its batch.
            let sent = self.send_and_drain(&mut next, suspect + 1);
            self.check_halt(carried, sent)?;
            if self.link.failed.is_empty() {
                self.divide(batch, next, carried, inlet).await?;
            }
        }
        Ok(next)
    }

    fn send_and_drain(&mut self, next: &mut usize, end: usize) -> Result<(), Halt> {
        let (outgoing, unwanted) = (&self.outgoing, &mut self.unwanted);
        self.link.send(outgoing, next, end, unwanted)?;
        self.link.drain()
    }

    /// Removes those records of the last batch, and of its refused ones, that are in its first
    /// `known` bytes, which Kafka has.
    fn leave_out_known(&mut self, batch: &Batch, known: usize) {
        if known == 0 {
            return;
        }
        self.refused.retain(|(range, _)| range.start >= known);
        let first = self.batches.last().map_or(0, |(first, _)| *first);
        let places = self.shaper.places(batch);
        let place = |number: usize| places.get(number - first);
        self.outgoing
            .keep(|number| place(number).is_some_and(|place| place.start >= known));
    }

    /// Removes those records of the last batch that brokers refused permanently in an earlier session. `position` is the position of the
    /// last batch.
    fn leave_out(&mut self, position: Option<Position>, unfit: &Unfit) {
        // Nearly always, no record is unfit. The early return then saves the search for `first`, whose time grows with the number of
        // batches at the position.
        let mut own = unfit.range((position, 0)..=(position, usize::MAX));
        if own.next().is_none() {
            return;
        }
        let Some(first) = self.first_at(self.batches.len()) else {
            return;
        };
        let reason = |number: usize| unfit.get(&(position, number - first));
        let records = self.outgoing.records.iter();
        let out =
            records.filter_map(|record| Some((record.number, reason(record.number)?.clone())));
        self.unwanted.extend(out);
        self.outgoing.keep(|number| reason(number).is_none());
    }

    /// Returns the position of a record's batch, and the record's index among the records at this position.
    fn place(&self, number: usize) -> Option<Place> {
        let next = self.batches.partition_point(|(first, _)| *first <= number);
        let (_, position) = self.batches.get(next.checked_sub(1)?)?;
        Some((*position, number - self.first_at(next)?))
    }

    /// Takes the position of the batch at the index `next - 1`, and returns the number of the first record at this position. Processors can
    /// make several batches from one position, and all of them are in one transaction.
    fn first_at(&self, next: usize) -> Option<usize> {
        let before = self.batches.get(..next)?;
        let (_, position) = before.last()?;
        let same = before.iter().rev().take_while(|(_, it)| it == position);
        same.last().map(|(first, _)| *first)
    }

    fn begin_transaction(&mut self) -> Result<(), End> {
        if !self.in_transaction {
            self.link.producer.begin().map_err(End::Trouble)?;
            self.in_transaction = true;
        }
        Ok(())
    }

    /// Begins the records of a transaction. Only how long these take counts for the next ones.
    fn begin_records(&mut self) -> Result<(), End> {
        self.begin_transaction()?;
        self.begun.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Waits until nothing is in flight and rejects the records that were refused before the checkpoint. Returns the checkpoint's
    /// position.
    pub(super) async fn reach(
        &mut self,
        checkpoint: &mut Checkpoint,
        carried: &mut Carried<'_>,
        inlet: &mut Inlet,
    ) -> Result<Option<Position>, End> {
        let drained = self.link.drain();
        self.check(carried, drained)?;
        if !self.rejects.is_empty() {
            self.fail_if_expired(carried)?;
        }
        for (batch, refused) in self.rejects.drain(..) {
            for (reason, records) in by_reason(&batch, &refused) {
                inlet
                    .reject_before(checkpoint, &batch, records, &reason)
                    .await;
            }
        }
        Ok(checkpoint.kept().await?)
    }

    /// Commits the transaction: makes all records up to `position` visible, together with the position. Nothing may be in flight.
    pub(super) fn commit(
        &mut self,
        position: Position,
        carried: &mut Carried<'_>,
    ) -> Result<(), End> {
        self.batches.clear();
        let part = self.progress.beyond(position);
        let part = part.map_err(|changed| carried.write_again(changed))?;
        // If no position was committed and no transaction is open, the topic may not exist yet. A topic that does not exist cannot hold
        // a position. The first record creates the topic.
        if self.in_transaction || self.stored {
            self.write_position(position, part, carried)?;
        }
        self.position = Some(position);
        Ok(())
    }

    /// Commits the transaction, with a position and a part of what follows it.
    fn write_position(
        &mut self,
        position: Position,
        part: Option<Part>,
        carried: &mut Carried<'_>,
    ) -> Result<(), End> {
        self.begin_transaction()?;
        let committed = carried.ownership.commit(position, part);
        let text = committed.text();
        let number = i64::try_from(position.seq).unwrap_or(i64::MAX);
        let store = self.store.clone();
        self.link.patiently(carried.patience(), |producer, time| {
            producer.commit(&store, &text, number, time)
        })?;
        (self.in_transaction, self.stored) = (false, true);
        if let Some(begun) = self.begun.take() {
            carried.timeout.took(begun.elapsed());
        }
        Ok(carried.ownership.check(Some(&committed))?)
    }

    /// Like `check`, but only if the producer takes no more.
    fn check_halt(&mut self, carried: &mut Carried<'_>, done: Result<(), Halt>) -> Result<(), End> {
        if done.is_ok() {
            return Ok(());
        }
        self.check(carried, done)
    }

    /// Ends the session if a record has failed. First learns from the failures: limits of topics, and records that are refused
    /// permanently.
    fn check(&mut self, carried: &mut Carried<'_>, done: Result<(), Halt>) -> Result<(), End> {
        if done.is_ok() && self.link.failed.is_empty() {
            return Ok(());
        }
        // The transaction is lost. Collecting further failures now saves attempts.
        self.link.hear();
        let failed = std::mem::take(&mut self.link.failed);
        let too_large = |failed: &Failed| failed.error.kind == Kind::TooLarge;
        if failed.iter().any(too_large) {
            let patience = carried.patience();
            let unfit = carried.sink.learn(&mut self.link, &failed, patience)?;
            self.leave_out_later(unfit, carried);
            return Err(End::Learned);
        }
        if let Some(unfit) = carried.verdicts.judge(&failed) {
            if unfit.is_empty() {
                let suspects = failed.iter().filter(|one| one.error.kind == Kind::Suspect);
                let places = suspects.filter_map(|one| self.place(one.number));
                carried.suspects.extend(places);
                // Only the suspects are sent alone.
                carried.verdicts.join();
            }
            self.leave_out_later(unfit, carried);
            return Err(End::Learned);
        }
        match failed.into_iter().next() {
            Some(first) => Err(End::Trouble(first.error)),
            None => Ok(done?),
        }
    }

    /// Lets the next sessions leave out these records (numbers and reasons).
    fn leave_out_later(&self, unfit: Vec<(usize, String)>, carried: &mut Carried<'_>) {
        let unfit = unfit.into_iter();
        let placed = unfit.filter_map(|(number, reason)| Some((self.place(number)?, reason)));
        carried.unfit.extend(placed);
    }

    /// Whether a transaction was open for at least its timeout, so that brokers have aborted it.
    pub(super) fn has_timed_out(&self, carried: &Carried<'_>) -> bool {
        let begun = self.begun.filter(|_| self.in_transaction);
        begun.is_some_and(|begun| begun.elapsed() >= carried.timeout.current)
    }

    /// Fails if brokers will probably not commit the transaction. It is called before records are
    /// rejected, because the next session rejects them again.
    fn fail_if_expired(&self, carried: &Carried<'_>) -> Result<(), End> {
        if !self.has_timed_out(carried) {
            return Ok(());
        }
        let text = "a transaction has lasted longer than its timeout";
        Err(End::Trouble(Error::new(Kind::Abort, text)))
    }

    /// Aborts an open transaction because the process ends, so that readers need not wait for the next start.
    pub(super) fn abort(&mut self) {
        if self.in_transaction {
            // If this fails, the next start aborts the transaction.
            drop(self.link.producer.abort(ABORT_TIMEOUT));
        }
    }
}
