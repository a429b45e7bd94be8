//! The stream of one open file: turns written bytes into parcels, in order.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! A stream keeps the rule, tag and path of the moment its file was opened, also when the file is renamed. It never waits:
//! `open_file.rs` sends the parcels. Bytes that earlier writes left unfinished stay in the stream until their parcel has been
//! handed over ([`Stream::advance`]), and return if it is not kept ([`Stream::rewind`]), so a write that fails loses nothing
//! of another one.

use std::{ops::Range, sync::Arc, time::Instant};

use millstream_pipeline::meters::Meter;
use millstream_record::{Buffer, Values};
use rustix::io::Errno;

use super::{
    batcher::Batcher,
    cutter::{Cutter, CutterBefore, Cuttings, Records},
    journal::Left,
    parcel::Parcel,
    rules::{Rule, values},
    shipper::Shipper,
    unfinished::{LineBefore, Place, UnfinishedLine},
    writers::Writers,
};

/// The stream of one open file.
pub(super) struct Stream {
    rule: Arc<Rule>,
    cutter: Cutter,
    line: UnfinishedLine,
    writers: Writers,
    batcher: Batcher,
    too_long: Meter,
    /// Unfinished bytes go into the journal before their write is answered.
    journals: bool,
    /// With joined lines: the time of the last write, until the stream was checked for records that nothing followed.
    last_write: Option<Instant>,
}

/// The state of a stream before a parcel left.
#[derive(Debug)]
pub(super) struct Before {
    cutter: CutterBefore,
    line: LineBefore,
}

impl Stream {
    /// The stream of a file in the mount.
    pub(super) fn new(shipper: &Shipper, path: &str) -> Self {
        let rule = shipper.options.rules.of(path);
        let context = &shipper.context;
        let tag = rule
            .tag
            .tag(&context.name, Some(path), &values(path, &context.host));
        let filtered = shipper.meters.filtered.clone();
        Self {
            cutter: Cutter::new(rule.boundaries.clone()),
            line: UnfinishedLine::new(shipper.unfinished.clone()),
            writers: Writers::new(context.host.clone(), path.into()),
            batcher: Batcher::new(context.name.clone(), tag, rule.clone(), filtered),
            too_long: shipper.meters.too_long.clone(),
            journals: shipper.durable,
            last_write: None,
            rule,
        }
    }

    /// The stream of a real file, which itself holds its unfinished bytes.
    pub(super) fn of_file(shipper: &Shipper, path: &str) -> Self {
        Self {
            journals: false,
            ..Self::new(shipper, path)
        }
    }

    /// The stream of an unfinished line that an earlier run left in the journal.
    pub(super) fn recovered(shipper: &Shipper, left: Left) -> Self {
        let stream = Self::new(shipper, &left.path);
        let place = Place {
            slot: left.slot,
            generation: left.generation,
        };
        let all = shipper.unfinished.clone();
        Self {
            line: UnfinishedLine::recovered(all, place, left.tail.len()),
            cutter: Cutter::new(stream.rule.boundaries.clone()).with_tail(left.tail),
            ..stream
        }
    }

    pub(super) fn rule(&self) -> &Arc<Rule> {
        &self.rule
    }

    /// The file's path below the mount, as it was opened.
    pub(super) fn path(&self) -> &str {
        self.writers.path()
    }

    /// The parcel of a write by `thread`, whose bytes are in `data` of the buffer. Takes the buffer if records stay in it.
    pub(super) fn write(
        &mut self,
        buffer: &mut Option<Buffer>,
        data: Range<usize>,
        thread: u32,
    ) -> Result<Parcel, Errno> {
        let bytes = buffer.as_mut().ok_or(Errno::IO)?;
        let cuttings = self.cutter.cut(bytes, data.clone());
        let values = self.writers.writes(thread);
        self.parcel(cuttings, buffer, data, values)
    }

    /// The parcel of the end of the file: all that is unfinished.
    pub(super) fn finish(&mut self) -> Result<Parcel, Errno> {
        self.parcel_of_tail(self.cutter.cut_end())
    }

    /// The parcel of joined lines that nothing followed for the rule's `wait`; `None` if there are none.
    pub(super) fn quiet(&mut self) -> Result<Option<Parcel>, Errno> {
        let waited = self.rule.boundaries.wait().zip(self.last_write);
        if waited.is_none_or(|(wait, written)| written.elapsed() < wait) {
            return Ok(None);
        }
        self.last_write = None;
        let cuttings = self.cutter.cut_quiet();
        if cuttings.records == Records::None {
            return Ok(None);
        }
        self.parcel_of_tail(cuttings).map(Some)
    }

    /// The parcel of [`Stream::quiet`] could not be sent: it is due again after the rule's `wait`.
    pub(super) fn wait_again(&mut self) {
        self.last_write = Some(Instant::now());
    }

    fn parcel_of_tail(&mut self, cuttings: Cuttings) -> Result<Parcel, Errno> {
        let values = self.writers.last();
        self.parcel(cuttings, &mut None, 0..0, values)
    }

    fn parcel(
        &mut self,
        cuttings: Cuttings,
        buffer: &mut Option<Buffer>,
        data: Range<usize>,
        values: Arc<Values>,
    ) -> Result<Parcel, Errno> {
        let new = cuttings.unfinished.min(data.len());
        let stay = cuttings.unfinished - new;
        if !self.line.may_take(cuttings.unfinished) {
            return Err(Errno::NOSPC);
        }
        let unfinished = match buffer {
            Some(bytes) => bytes[data.end - new..data.end].to_vec(),
            None => Vec::new(),
        };
        self.too_long.add(cuttings.too_long);
        let leaves = match cuttings.took_tail {
            true => self.line.begin_generation(stay)?,
            false => None,
        };
        let rejected = self.batcher.rejected(&cuttings.rejected, &values);
        let mut batch = self.batcher.batch(cuttings.records, buffer, values);
        if let (Some(batch), Some(leaves)) = (&mut batch, leaves) {
            batch.origins.extend(self.line.origin(leaves));
        }
        Ok(Parcel {
            batch,
            rejected,
            leaves,
            stay,
            unfinished,
            mode: cuttings.mode,
            bytes: data.len(),
        })
    }

    /// The next hop has the parcel: the unfinished bytes in it leave the stream.
    pub(super) fn advance(&mut self, parcel: &Parcel) -> Before {
        Before {
            line: self.line.advance(parcel.leaves, parcel.stay),
            cutter: self.cutter.advance(parcel.stay, parcel.mode),
        }
    }

    /// The parcel was not kept: its unfinished bytes are unfinished again.
    pub(super) fn rewind(&mut self, before: Before) {
        self.cutter.rewind(before.cutter);
        self.line.rewind(&before.line);
    }

    /// Takes in the unfinished end of the write; returns how many bytes of the write can be acknowledged. Behind a durable
    /// channel the journal has every unfinished byte first: what it has no room for is not accepted.
    pub(super) fn accept_unfinished(&mut self, parcel: &Parcel) -> Result<usize, Errno> {
        let unfinished = &parcel.unfinished;
        self.cutter.extend(unfinished);
        if self.journals
            && let Err(error) = self.line.write(self.writers.path(), self.cutter.tail())
        {
            self.cutter.shorten(unfinished.len());
            return match parcel.bytes - unfinished.len() {
                0 => Err(error),
                accepted => Ok(accepted),
            };
        }
        self.line.grow(unfinished.len());
        if self.rule.boundaries.wait().is_some() {
            self.last_write = Some(Instant::now());
        }
        Ok(parcel.bytes)
    }

    /// Writes the unfinished bytes to the journal; returns whether there are any.
    pub(super) fn journal_unfinished(&mut self) -> Result<bool, Errno> {
        self.line.write(self.writers.path(), self.cutter.tail())?;
        Ok(!self.cutter.tail().is_empty())
    }

    /// The unfinished bytes that the journal has.
    pub(super) fn line(&mut self) -> &mut UnfinishedLine {
        &mut self.line
    }
}
