//! The stream of one open file: turns written bytes into parcels, in order. A parcel is a batch, and the unfinished bytes after
//! its records.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! A stream keeps the rule, tag and path with which its file was opened, even if the file is renamed. It never waits:
//! `open_file.rs` sends the parcels. Unfinished bytes of earlier writes stay in the stream until the parcel that contains them
//! was sent ([`Stream::advance`]). They are restored if the parcel is not kept ([`Stream::rewind`]), so a write that fails loses
//! no bytes of another write.

use std::{ops::Range, sync::Arc, time::Instant};

use millstream_pipeline::meters::Meter;
use millstream_record::{Buffer, Values};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{
    batcher::Batcher,
    cutter::{Cutter, CutterBefore, Cuttings, Mode, Records},
    journal::Left,
    parcel::Parcel,
    rules::{Rule, values},
    shipper::Shipper,
    tee::Tee,
    unfinished::{LineBefore, Place, UnfinishedLine},
    writers::Writers,
};
use crate::tagging::shown;

/// The writing side of an open file, for the program that takes the mount over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct KeptWriting {
    /// The path at which the file was opened.
    pub path: String,
    /// The unfinished bytes.
    pub tail: Vec<u8>,
    pub mode: Mode,
}

/// The stream of one open file.
pub(super) struct Stream {
    rule: Arc<Rule>,
    /// The receiver of copies.
    tee: Option<Arc<Tee>>,
    /// The number of changes of the options that the rule follows.
    changes: u64,
    cutter: Cutter,
    line: UnfinishedLine,
    writers: Writers,
    batcher: Batcher,
    too_long: Meter,
    /// Whether unfinished bytes go into the journal before their write is answered.
    journals: bool,
    /// The time of the last write, if lines are joined. `None` before the first write. Also `None` once [`Stream::quiet`] has
    /// handled the pause after a write, until the next write.
    last_write: Option<Instant>,
}

/// The state of a stream before it advanced.
#[derive(Debug)]
pub(super) struct Before {
    cutter: CutterBefore,
    line: LineBefore,
}

impl Stream {
    /// The stream of a file in the mount.
    pub(super) fn new(shipper: &Shipper, path: &str) -> Self {
        // The number is read first: if the options change in between, the stream gets its rule once more.
        let changes = shipper.changes();
        let rule = shipper.options().rules.of(path);
        let context = &shipper.context;
        Self {
            tee: shipper.tee(&rule, path),
            changes,
            cutter: Cutter::new(rule.boundaries.clone()),
            line: UnfinishedLine::new(shipper.unfinished.clone()),
            writers: Writers::new(context.host.clone(), (&*shown(path)).into()),
            batcher: batcher(shipper, &rule, path),
            too_long: shipper.meters.too_long.clone(),
            journals: shipper.durable,
            last_write: None,
            rule,
        }
    }

    /// The stream of a file in the plain directory below the mount (the directory that the mount hides). That file holds the
    /// unfinished bytes, so they need no journal.
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

    /// The stream of a file that was open when an earlier program ended. `left` is its line in the journal.
    pub(super) fn kept(shipper: &Shipper, kept: KeptWriting, left: Option<Left>) -> Self {
        let mut stream = Self::new(shipper, &kept.path);
        let all = shipper.unfinished.clone();
        let bytes = kept.tail.len();
        stream.line = match left {
            Some(left) => {
                let (slot, generation) = (left.slot, left.generation);
                UnfinishedLine::recovered(all, Place { slot, generation }, bytes)
            }
            None => {
                let mut line = UnfinishedLine::new(all);
                line.grow(bytes);
                line
            }
        };
        if stream.joins() && bytes > 0 {
            stream.last_write = Some(Instant::now());
        }
        stream.cutter = stream.cutter.with_tail(kept.tail).in_mode(kept.mode);
        stream
    }

    /// The state that the next program needs to continue this stream.
    pub(super) fn keep(&self) -> KeptWriting {
        KeptWriting {
            path: self.path().to_owned(),
            tail: self.cutter.tail().to_vec(),
            mode: self.cutter.mode(),
        }
    }

    pub(super) fn rule(&self) -> &Arc<Rule> {
        &self.rule
    }

    /// Where copies of records go: to `tee`, and to the command of the rule. `None` if there are no copies.
    pub(super) fn copies(&self) -> Option<(Option<Arc<Tee>>, Arc<Rule>)> {
        let is_copied = self.tee.is_some() || self.rule.exec.is_some();
        is_copied.then(|| (self.tee.clone(), self.rule.clone()))
    }

    /// Whether lines are joined.
    pub(super) fn joins(&self) -> bool {
        self.cutter.boundaries().wait().is_some()
    }

    /// Follows the rules in force, which a reload may have changed. They apply to the next record, which may have begun already.
    pub(super) fn update(&mut self, shipper: &Shipper) {
        let changes = shipper.changes();
        if self.changes != changes {
            self.changes = changes;
            let path = self.writers.path();
            let rule = shipper.options().rules.of(path);
            self.batcher = batcher(shipper, &rule, path);
            self.tee = shipper.tee(&rule, path);
            self.rule = rule;
        }
        self.cutter.change(&self.rule.boundaries);
    }

    /// The file's path below the mount, as it was opened.
    pub(super) fn path(&self) -> &str {
        self.writers.path()
    }

    /// Makes the parcel of a write by `thread`. The written bytes are the range `data` of the buffer. Takes the buffer if records
    /// stay in it.
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

    /// Makes the parcel of all unfinished bytes, because the file is closed.
    pub(super) fn finish(&mut self) -> Result<Parcel, Errno> {
        self.parcel_of_tail(self.cutter.cut_end())
    }

    /// Makes a parcel of the joined lines if nothing was written for the rule's `wait`. Returns `None` if something was written
    /// within this time, or if there is nothing to send.
    pub(super) fn quiet(&mut self) -> Result<Option<Parcel>, Errno> {
        let waited = self.cutter.boundaries().wait().zip(self.last_write);
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

    /// Makes a parcel with an empty batch, whose only purpose is to carry an origin.
    pub(super) fn empty(&mut self) -> Result<Parcel, Errno> {
        let batch = self.batcher.empty(self.writers.last());
        let parcel = self.parcel_of_tail(Cuttings::none(Mode::default()))?;
        Ok(Parcel {
            batch: Some(batch),
            ..parcel
        })
    }

    /// Makes [`Stream::quiet`] wait for the rule's `wait` once more, because the last parcel that it made could not be sent.
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

    /// Removes the unfinished bytes that a parcel contains, because the parcel was sent. Returns the state before the removal.
    pub(super) fn advance(&mut self, parcel: &Parcel) -> Before {
        Before {
            line: self.line.advance(parcel.leaves, parcel.stay),
            cutter: self.cutter.advance(parcel.stay, parcel.mode),
        }
    }

    /// Restores the unfinished bytes that a parcel contained, because it was not kept.
    pub(super) fn rewind(&mut self, before: Before) {
        self.cutter.rewind(before.cutter);
        self.line.rewind(&before.line);
    }

    /// Adds the unfinished end of a write. Returns the number of bytes of the write that can be acknowledged. With a durable
    /// channel, first writes the unfinished bytes to the journal. If that fails, they are not accepted.
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
        if self.joins() {
            self.last_write = Some(Instant::now());
        }
        Ok(parcel.bytes)
    }

    /// Writes the unfinished bytes to the journal. Returns whether there are any.
    pub(super) fn journal_unfinished(&mut self) -> Result<bool, Errno> {
        self.line.write(self.writers.path(), self.cutter.tail())?;
        Ok(!self.cutter.tail().is_empty())
    }

    /// The state of the unfinished bytes in the journal.
    pub(super) fn line(&mut self) -> &mut UnfinishedLine {
        &mut self.line
    }
}

fn batcher(shipper: &Shipper, rule: &Arc<Rule>, path: &str) -> Batcher {
    let context = &shipper.context;
    let values = values(path, &context.host);
    let tag = rule.tag.tag(&context.name, Some(path), &values);
    let filtered = shipper.meters.filtered.clone();
    Batcher::new(context.name.clone(), tag, rule.clone(), filtered)
}
