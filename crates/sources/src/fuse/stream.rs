//! What one writer writes through one open file: from bytes to the batches that they become, in order.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Rule, tag and path are those of when the file was opened: a file that is renamed while it is written stays one stream.
//! Nothing here waits; what has to be sent is handed to write.rs as a parcel. What was unfinished before, and was answered
//! for, stays until the parcel has been taken ([`Stream::pass`]): a write that fails takes nothing with it.

use std::{
    io,
    ops::Range,
    sync::{Arc, PoisonError},
};

use bytes::Bytes;
use millstream_pipeline::reject;
use millstream_record::{Batch, Buffer, Encoding, FileOrigin, Origin, Tag, Time, Values};
use millstream_wire::{
    lines,
    msgpack::{write_array_len, write_bin, write_map_len, write_str, write_time},
};
use rustix::io::Errno;

use super::{
    cutter::{Cut, Cutter, Records, Rest},
    journal::Left,
    parcel::{Parcel, Passed, Place},
    rules::{Rule, values},
    tee::Tee,
    waiting::process_of,
    write::Ship,
};

/// Records of fewer bytes are copied out of the buffer they were read into: it has room for the largest request, and a few
/// lines must not hold the room of many.
const COPY_BYTES_MAX: usize = 256 << 10;
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
            cutter: Cutter::new(rule.how),
            values: Vec::new(),
            last: None,
            place: None,
            since: 0,
            journaled: 0,
            in_doubt: false,
            of_file: false,
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
        stream.cutter = Cutter::new(stream.rule.how).with_tail(left.tail);
        stream
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
        let before = self.cutter.tail().len();
        if before + data.len() > TAIL_BYTES_FREE && self.ship.tails.are_full(data.len()) {
            // A write that ends its lines leaves little.
            let written = bytes.get(data.clone()).unwrap_or_default();
            if data.len() - lines::whole(written) > TAIL_BYTES_FREE {
                return Err(Errno::NOSPC);
            }
        }
        let Cut {
            records,
            rejected,
            too_long,
            took_tail,
            unfinished,
            rest: how,
        } = self.cutter.cut(bytes, data.clone());
        let new = unfinished.min(data.len());
        let rest = bytes[data.end - new..data.end].to_vec();
        self.ship.meters.too_long.add(too_long);
        let took = self.try_to_take(took_tail);
        let values = self.values_of(thread);
        self.last = Some(values.clone());
        let batch = self.batch(records, buffer, values, took);
        let rejected = (!rejected.is_empty()).then(|| {
            let reason = format!(
                "it is longer than line_max ({} bytes)",
                self.rule.how.line_max
            );
            let from = self.envelope(Bytes::new(), 0, Encoding::Lines, Arc::default());
            let pieces = rejected.iter().map(Vec::as_slice);
            reject::batch(&self.ship.context.name, &from, pieces, &reason)
        });
        Ok(Parcel {
            batch,
            rejected,
            took,
            stay: unfinished - new,
            rest,
            how,
            bytes: data.len(),
        })
    }

    /// The file is closed; nothing is written behind this.
    pub(super) fn finish(&mut self) -> Parcel {
        let before = self.cutter.tail().len();
        let records = self.cutter.finish();
        self.ship.tails.change(before, 0);
        let took = self.try_to_take(before > 0);
        let values = match &self.last {
            Some(values) => values.clone(),
            None => self.values_of(0),
        };
        Parcel {
            batch: self.batch(records, &mut None, values, took),
            rejected: None,
            took,
            stay: 0,
            rest: Vec::new(),
            how: Rest::Record,
            bytes: 0,
        }
    }

    /// A generation of its own for a parcel with unfinished bytes from before.
    fn try_to_take(&mut self, took_tail: bool) -> Option<Place> {
        let place = self.place.as_mut().filter(|_| took_tail)?;
        let took = *place;
        place.generation += 1;
        Some(took)
    }

    /// The parcel has been taken: what was unfinished before it is no more ours.
    pub(super) fn pass(&mut self, parcel: &Parcel) -> Passed {
        let unfinished = self.cutter.tail().len();
        let passed = Passed {
            before: self.cutter.pass(parcel.stay, parcel.how),
            since: self.since,
            journaled: self.journaled,
        };
        self.ship.tails.change(unfinished, parcel.stay);
        if let Some(place) = parcel.took {
            (self.since, self.journaled) = (place.generation + 1, 0);
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

    /// The batch that records become; None if nothing is left of them.
    fn batch(
        &self,
        records: Records,
        buffer: &mut Option<Buffer>,
        values: Arc<Values>,
        took: Option<Place>,
    ) -> Option<Batch> {
        let filter = &self.rule.filter;
        let (body, count, encoding) = match records {
            Records::None => return None,
            Records::Any(records) => {
                let (body, count) = self.packed(&records)?;
                (body, count, Encoding::Packed)
            }
            Records::Lines(text) if filter.is_empty() => {
                let count = lines::count(&text);
                (text.into(), count, Encoding::Lines)
            }
            Records::Lines(text) => self.filtered(&text)?,
            Records::InPlace(range) if !filter.is_empty() => {
                let found = buffer.as_ref().and_then(|buffer| buffer.get(range));
                self.filtered(found.unwrap_or_default())?
            }
            Records::InPlace(range) => {
                let body = share(buffer, range);
                let count = lines::count(&body);
                (body, count, Encoding::Lines)
            }
        };
        let mut batch = self.envelope(body, count, encoding, values);
        if let Some(place) = took.filter(|_| self.ship.durable) {
            batch.origins.push(Origin::File(FileOrigin {
                file: self.ship.identity.file(place.slot),
                begin: place.generation,
                next: place.generation + 1,
            }));
        }
        Some(batch)
    }

    fn filtered(&self, text: &[u8]) -> Option<(Bytes, u32, Encoding)> {
        let found = self.rule.filter.lines(text);
        self.ship.meters.filtered.add(u64::from(found.dropped));
        (found.left > 0).then(|| (found.text.into(), found.left, Encoding::Lines))
    }

    /// Records that may hold newlines, as `{"message": record}`.
    fn packed(&self, records: &[Vec<u8>]) -> Option<(Bytes, u32)> {
        let (mut body, mut count) = (Vec::new(), 0);
        let now = Time::now();
        for record in records {
            let Some(record) = self.rule.filter.record(record) else {
                self.ship.meters.filtered.add(1);
                continue;
            };
            write_array_len(&mut body, 2);
            write_time(&mut body, now);
            write_map_len(&mut body, 1);
            write_str(&mut body, b"message");
            match std::str::from_utf8(&record) {
                Ok(text) => write_str(&mut body, text.as_bytes()),
                Err(_) => write_bin(&mut body, &record),
            }
            count += 1;
        }
        (count > 0).then(|| (body.into(), count))
    }

    fn envelope(&self, body: Bytes, count: u32, encoding: Encoding, values: Arc<Values>) -> Batch {
        Batch {
            tag: self.tag.clone(),
            encoding,
            body,
            count,
            received: Time::now(),
            values,
            origins: Vec::new(),
        }
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

/// The body that stands in `range` of a buffer.
fn share(buffer: &mut Option<Buffer>, range: Range<usize>) -> Bytes {
    match buffer.take_if(|_| range.len() > COPY_BYTES_MAX) {
        Some(buffer) => buffer.freeze().slice(range),
        None => {
            let found = buffer.as_ref().and_then(|buffer| buffer.get(range));
            Bytes::copy_from_slice(found.unwrap_or_default())
        }
    }
}

impl Ship {
    /// The journal; nothing in it can panic half way, so a poisoned lock is whole.
    pub(super) fn journal(&self) -> std::sync::MutexGuard<'_, super::journal::Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
