//! What one writer writes through one open file: from bytes to the batches that they become, in order.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Rule, tag and path are those of when the file was opened: a file that is renamed while it is written stays one stream.
//! Nothing here waits; what has to be sent is handed to write.rs as a parcel. What was unfinished before, and was answered
//! for, stays until the parcel has been taken ([`Stream::pass`]): a write that fails takes nothing with it.

mod batch;

use std::{
    io,
    ops::Range,
    sync::{Arc, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use millstream_pipeline::reject;
use millstream_record::{Buffer, Encoding, Tag, Values};
use rustix::io::Errno;

use super::{
    cutter::{Cut, Cutter, Records},
    journal::Left,
    parcel::{Parcel, Passed, Place},
    rules::{Rule, values},
    tee::Tee,
    waiting::process_of,
    write::Ship,
};

/// Threads of writers that are remembered with their processes, for each open file.
const THREADS_MAX: usize = 64;
/// An unfinished line of so many bytes is always taken; beyond it only while all together are bounded.
const TAIL_BYTES_FREE: usize = 4 << 10;

/// The stream of one open file.
pub(super) struct Stream {
    ship: Arc<Ship>,
    pub rule: Arc<Rule>,
    tag: Tag,
    path: Arc<str>,
    cutter: Cutter,
    values: Vec<(u32, Arc<Values>)>,
    /// Those of who wrote last: the end of a file is nobody's.
    last: Option<Arc<Values>>,
    /// Where its unfinished bytes go in the journal. Every parcel that takes some has a generation of its own, be it sent or
    /// not: several channels may disagree on whether it was.
    pub place: Option<Place>,
    /// The generation in which those begin that are there.
    pub since: u64,
    /// How many of them stand there.
    journaled: usize,
    /// Whether what was taken last is kept is not known: its writer did not wait for the answer.
    pub in_doubt: bool,
    /// Unfinished bytes stand in a file that is read, so they need no journal.
    of_file: bool,
    /// Where lines are joined: when the last was taken, as long as it was not looked at what has become whole since.
    written: Option<Instant>,
    pub tee: Option<Arc<Tee>>,
}

impl Stream {
    pub(super) fn new(ship: &Arc<Ship>, path: &str) -> Self {
        let rule = ship.options.rules.of(path);
        let (name, host) = (&*ship.context.name, &*ship.context.host);
        let tee = rule.tee.as_ref().map(|tee| {
            let path = tee.render(name, path, host);
            Arc::new(Tee::new(path.into()))
        });
        Self {
            ship: ship.clone(),
            tag: rule.tag.tag(name, Some(path), &values(path, host)),
            path: path.into(),
            cutter: Cutter::new(rule.how.clone()),
            values: Vec::new(),
            last: None,
            place: None,
            since: 0,
            journaled: 0,
            in_doubt: false,
            of_file: false,
            written: None,
            tee,
            rule,
        }
    }

    /// The stream of a real file.
    pub(super) fn of_file(ship: &Arc<Ship>, path: &str) -> Self {
        let mut stream = Self::new(ship, path);
        stream.of_file = true;
        stream
    }

    /// The stream of an open file that an earlier run has left unfinished.
    pub(super) fn of_left(ship: &Arc<Ship>, left: Left) -> Self {
        let mut stream = Self::new(ship, &left.path);
        ship.tails.add(left.tail.len());
        stream.journaled = left.tail.len();
        stream.since = left.generation;
        stream.place = Some(Place {
            slot: left.slot,
            generation: left.generation,
        });
        stream.cutter = Cutter::new(stream.rule.how.clone()).with_tail(left.tail);
        stream
    }

    /// The file's path below the mount, as it was opened.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// What becomes of what stands in `data` of the buffer. Takes the buffer itself if records stay in it.
    pub(super) fn take(
        &mut self,
        buffer: &mut Option<Buffer>,
        data: Range<usize>,
        thread: u32,
    ) -> Result<Parcel, Errno> {
        let Some(bytes) = buffer.as_mut() else {
            return Err(Errno::IO);
        };
        let cut = self.cutter.cut(bytes, data.clone());
        let values = self.values_of(thread);
        self.last = Some(values.clone());
        self.parcel(cut, buffer, data, values)
    }

    /// The file is closed; nothing is written behind this.
    pub(super) fn finish(&mut self) -> Result<Parcel, Errno> {
        self.parcel_of_tail(self.cutter.cut_end())
    }

    /// What has become whole because nothing followed it for as long as the rule waits; None if nothing has.
    pub(super) fn quiet(&mut self) -> Result<Option<Parcel>, Errno> {
        let waited = self.rule.how.wait().zip(self.written);
        if waited.is_none_or(|(wait, written)| written.elapsed() < wait) {
            return Ok(None);
        }
        self.written = None;
        let cut = self.cutter.cut_quiet();
        if cut.records == Records::None {
            return Ok(None);
        }
        self.parcel_of_tail(cut).map(Some)
    }

    /// It could not be sent: once more after the same time.
    pub(super) fn wait_again(&mut self) {
        self.written = Some(Instant::now());
    }

    /// What becomes of unfinished bytes without more of them.
    fn parcel_of_tail(&mut self, cut: Cut) -> Result<Parcel, Errno> {
        let values = match &self.last {
            Some(values) => values.clone(),
            None => self.values_of(0),
        };
        self.parcel(cut, &mut None, 0..0, values)
    }

    /// What is to be sent of a cut of `data` of the buffer.
    fn parcel(
        &mut self,
        cut: Cut,
        buffer: &mut Option<Buffer>,
        data: Range<usize>,
        values: Arc<Values>,
    ) -> Result<Parcel, Errno> {
        let new = cut.unfinished.min(data.len());
        let stay = cut.unfinished - new;
        let more = cut.unfinished.saturating_sub(self.cutter.tail().len());
        if more > 0 && cut.unfinished > TAIL_BYTES_FREE && self.ship.tails.are_full(more) {
            return Err(Errno::NOSPC);
        }
        let rest = match buffer {
            Some(bytes) => bytes[data.end - new..data.end].to_vec(),
            None => Vec::new(),
        };
        self.ship.meters.too_long.add(cut.too_long);
        let took = self.try_to_take(cut.took_tail, stay)?;
        let rejected = (!cut.rejected.is_empty()).then(|| {
            let reason = format!(
                "it is longer than line_max ({} bytes)",
                self.rule.how.line_max
            );
            let from = self.envelope(Bytes::new(), 0, Encoding::Lines, values.clone());
            let pieces = cut.rejected.iter().map(Vec::as_slice);
            reject::batch(&self.ship.context.name, &from, pieces, &reason)
        });
        let batch = self.batch(cut.records, buffer, values, took);
        Ok(Parcel {
            batch,
            rejected,
            took,
            stay,
            rest,
            next: cut.next,
            bytes: data.len(),
        })
    }

    /// A generation of its own for a parcel with unfinished bytes from before. What stays of them is of the next one, in the
    /// journal, too, and before anything is sent: the channel that keeps the parcel says that its generation is done.
    fn try_to_take(&mut self, took_tail: bool, stay: usize) -> Result<Option<Place>, Errno> {
        let Some(took) = self.place.filter(|_| took_tail) else {
            return Ok(None);
        };
        let generation = took.generation + 1;
        let journaled = self.journaled_of_last(stay);
        if journaled > 0 {
            let parted = self.ship.journal().part(took.slot, generation, journaled);
            parted.map_err(|error| self.ship.journal_failed(&error))?;
        }
        self.place = Some(Place { generation, ..took });
        Ok(Some(took))
    }

    /// How many of the last unfinished bytes stand in the journal.
    fn journaled_of_last(&self, bytes: usize) -> usize {
        let before = self.cutter.tail().len().saturating_sub(bytes);
        self.journaled.saturating_sub(before)
    }

    /// The parcel has been taken: what was unfinished before it is no more ours.
    pub(super) fn pass(&mut self, parcel: &Parcel) -> Passed {
        let unfinished = self.cutter.tail().len();
        let journaled = self.journaled_of_last(parcel.stay);
        let passed = Passed {
            before: self.cutter.pass(parcel.stay, parcel.next),
            since: self.since,
            journaled: self.journaled,
        };
        self.ship.tails.change(unfinished, parcel.stay);
        if let Some(place) = parcel.took {
            (self.since, self.journaled) = (place.generation + 1, journaled);
        }
        passed
    }

    /// It was dropped: what was unfinished is so again.
    pub(super) fn back(&mut self, passed: Passed) {
        let unfinished = self.cutter.tail().len();
        self.cutter.back(passed.before);
        self.ship.tails.change(unfinished, self.cutter.tail().len());
        (self.since, self.journaled) = (passed.since, passed.journaled);
    }

    /// What of the write is unfinished. Behind a durable channel every unfinished byte is in the journal before it is
    /// answered for; what cannot be written there is not taken. So many bytes of the write are.
    pub(super) fn go_on(&mut self, parcel: &Parcel) -> Result<usize, Errno> {
        let rest = &parcel.rest;
        self.cutter.extend(rest);
        if self.ship.durable
            && !self.of_file
            && let Err(error) = self.write_tail()
        {
            self.cutter.shorten(rest.len());
            let told = self.ship.journal_failed(&error);
            return match parcel.bytes - rest.len() {
                0 => Err(told),
                taken => Ok(taken),
            };
        }
        self.ship.tails.change(0, rest.len());
        if self.rule.how.wait().is_some() {
            self.written = Some(Instant::now());
        }
        Ok(parcel.bytes)
    }

    /// Writes to the journal what of the unfinished bytes is not there yet; whether any is there now.
    pub(super) fn write_tail(&mut self) -> io::Result<bool> {
        let tail = self.cutter.tail();
        if tail.len() > self.journaled {
            let mut journal = self.ship.journal();
            let place = match self.place {
                Some(place) => place,
                None => {
                    let (slot, generation) = journal.begin(&self.path)?;
                    self.since = generation;
                    *self.place.insert(Place { slot, generation })
                }
            };
            journal.append(place.slot, place.generation, &tail[self.journaled..])?;
            self.journaled = tail.len();
        }
        Ok(!tail.is_empty())
    }

    /// What all records share that this thread writes.
    fn values_of(&mut self, thread: u32) -> Arc<Values> {
        if let Some((_, values)) = self.values.iter().find(|(known, _)| *known == thread) {
            return values.clone();
        }
        let mut values = Values::new();
        values.set("host", &*self.ship.context.host);
        values.set("path", &*self.path);
        if let Some(process) = process_of(thread) {
            values.set("pid", process.to_string());
        }
        let values = Arc::new(values);
        // The system uses ids again, but not for threads that keep a file open.
        if self.values.len() >= THREADS_MAX {
            self.values.clear();
        }
        self.values.push((thread, values.clone()));
        values
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ship.tails.change(self.cutter.tail().len(), 0);
    }
}

impl Ship {
    /// The journal; nothing in it can panic half way, so a poisoned lock is whole.
    pub(super) fn journal(&self) -> std::sync::MutexGuard<'_, super::journal::Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
