//! Writes pending records into files, and commits the written files.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read back -> process -> encode -> [write] -> [settle]`
//!
//! The order of a commit (docs/delivery.md): write all pending records, fdatasync every file that has grown, sync the directories
//! in which names have changed, then append {position, lengths} to the journal in one step. A file is entered in the journal before
//! its first byte is written. After a failed write the file is truncated to the last whole record, and the write can be retried.

use std::{
    collections::HashSet,
    ffi::OsStr,
    io::IoSlice,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millstream_pipeline::{
    failure::Failure,
    meters::{Meter, NodeMeters},
    report::Reporter,
};
use millstream_record::{Position, Time};
use millstream_wire::compression::codec_of;

use super::{
    compress::Compressor,
    dirty::Dirty,
    files::Files,
    latest::Latest,
    ledger::Ledger,
    naming,
    output::Output,
    pending::{GATHER_BYTES, PIECE_BYTES, Pending, WRITE_BYTES},
    recover::Recovered,
    rotate::{Due, Rotation, Rules},
    table::{Change, Head, ROWS_MAX},
};

/// If records for several files are pending, their amount may be up to this many times the limit for one file.
const SHARES_MAX: usize = 4;
/// Minimum time between two calls of [`Writer::tick`], even if files become due in close succession.
const TICK_MIN: Duration = Duration::from_millis(50);

/// How files are written.
#[derive(Clone, Debug, Default)]
pub(super) struct Style {
    /// The first bytes of every file.
    pub(super) header: Bytes,
    /// Maximum number of bytes that are written and not yet on disk; 0: no limit.
    pub(super) dirty_max: u64,
    /// Whether every record ends with a newline.
    pub(super) lines: bool,
    /// Whether the path is a template, so that records choose it.
    pub(super) templated: bool,
}

/// Writes into files and commits.
pub(super) struct Writer {
    pub(super) files: Files,
    pub(super) pending: Pending,
    pub(super) ledger: Ledger,
    pub(super) latest: Latest,
    rotation: Rotation,
    /// The inodes of the files that this run has written. These files are not in doubt (see [`Writer::is_over`]). None means that
    /// no file is in doubt: the journal was intact at the start, or there are too many files to remember.
    trusted: Option<HashSet<u64>>,
    style: Style,
    compressor: Option<Compressor>,
    dirty: Dirty,
    reporter: Reporter,
    written: Meter,
}

impl Writer {
    /// Creates a writer that continues from the recovered state.
    pub(super) fn new(
        mut files: Files,
        recovered: Recovered,
        rules: Rules,
        style: Style,
        reporter: Reporter,
        meters: &NodeMeters,
    ) -> Result<Self, Failure> {
        let Recovered {
            journal,
            table,
            doubtful,
        } = recovered;
        let codec = files.handling().codec;
        for (id, row) in &table.rows {
            let output = Output::from_row(row, files.now);
            files.outputs.adopt(*id, output);
        }
        Ok(Self {
            latest: Latest::new(files.handling().mode),
            files,
            pending: Pending::default(),
            ledger: Ledger::new(table, journal),
            rotation: Rotation::new(rules, meters.counter("files_rotated")),
            trusted: doubtful.then(HashSet::new),
            compressor: codec.map(Compressor::new).transpose()?,
            dirty: Dirty::new(style.dirty_max),
            style,
            reporter,
            written: meters.counter("bytes_written"),
        })
    }

    /// Returns the reason why no file can have this path. Returns None if such a file exists or can be created. Also returns None,
    /// without a check, if the records do not choose the path. If no file can have such a path, the records wait until an operator
    /// has made the path possible. Creates the directory if files are renamed.
    fn misfit(&mut self, path: &[u8]) -> Option<String> {
        if !self.style.templated {
            return None;
        }
        let rules = &self.rotation.rules;
        // A compressed file is renamed if it was damaged.
        let renames = rules.is_any() || self.holds();
        let file = Path::new(OsStr::from_bytes(path));
        let why = naming::misfit(path, renames, rules.keep > 0).or_else(|| self.files.misfit(file));
        if why.is_some() || !renames {
            return why;
        }
        // Only the file system of the directory knows how long a name may be. If the directory cannot be created, the failure is
        // reported when the file is opened.
        self.files.make_directory(file).ok()?;
        let longest = naming::rotated(file, Time::default(), u64::MAX);
        let why = self.files.misfit(&longest)?;
        Some(format!(
            "no file can be rotated from {}: {why}",
            file.display()
        ))
    }

    /// Returns the number of the file for `path` and a batch received at `received`, or why no file can have this path. If this run
    /// does not know the length or the first bytes of the file yet, the file is opened immediately: the length decides which
    /// records fit, and the first bytes show the compression.
    pub(super) fn file(
        &mut self,
        path: &[u8],
        received: Time,
    ) -> Result<Result<u32, String>, Failure> {
        if !self.files.outputs.is_known(path)
            && let Some(why) = self.misfit(path)
        {
            return Ok(Err(why));
        }
        let id = self.files.of(path, received);
        let output = self.files.outputs.get(id);
        let unseen = output.head.is_empty() && output.length > 0;
        if output.file.is_none()
            && (!output.entered || unseen)
            && let Err(failure) = self.files.open(id)
        {
            return self.unopened(id, path, failure);
        }
        Ok(Ok(id))
    }

    /// Handles the `failure` to open output `id`. If no file can have its path, returns the reason; otherwise returns the failure.
    /// The path is checked again because all its directories exist only now, and the name may be too long for their file system.
    #[cold]
    fn unopened(
        &mut self,
        id: u32,
        path: &[u8],
        failure: Failure,
    ) -> Result<Result<u32, String>, Failure> {
        // The failure of a sync concerns other files and must end this run.
        if self.files.sync_failed {
            return Err(failure);
        }
        let output = self.files.outputs.get(id);
        if !output.entered && output.chain.is_empty() {
            self.files.remove(id);
        }
        self.misfit(path).map(Err).ok_or(failure)
    }

    /// Whether records received at `received` must go to a new file of the same name. There are three reasons. The file is older
    /// than `interval`. The file has another compression or ends within a member, so no tool could read the new records. Or the
    /// journal was damaged at the start and does not know the file, which may then end within a record or hold records that the
    /// channel redelivers.
    pub(super) fn is_over(&self, id: u32, received: Time) -> bool {
        let output = self.files.outputs.get(id);
        // The compression is checked only until this run writes to the file: uncompressed records of this run may begin like a
        // compressed file.
        let foreign = !output.ours
            && output.length > 0
            && (output.cut || codec_of(&output.head) != self.files.handling().codec);
        let known = |files: &HashSet<u64>| output.entered || files.contains(&output.inode);
        let doubtful = self.trusted.as_ref().is_some_and(|files| !known(files));
        foreign || doubtful && output.length > 0 || self.rotation.rules.is_old(output, received)
    }

    /// Whether this number of bytes and records still fits into the file.
    pub(super) fn fits(&self, id: u32, bytes: usize, records: u32) -> bool {
        let output = self.files.outputs.get(id);
        let header = match output.length {
            0 => self.style.header.len(),
            _ => 0,
        };
        let bytes = (header + bytes) as u64;
        self.rotation.rules.fits(output, bytes, u64::from(records))
    }

    /// Whether a compressed file that seemed full still has room, because compression has made the written records much shorter.
    pub(super) fn has_room(&self, id: u32) -> bool {
        let output = self.files.outputs.get(id);
        self.holds() && !output.let_go && self.rotation.rules.has_room(output)
    }

    /// Assigns the text encoded since `start` (an offset in `pending.buffer`) to file `id`.
    pub(super) fn add_encoded(&mut self, id: u32, start: usize, records: u64) {
        let chain = &mut self.files.outputs.get_mut(id).chain;
        self.pending.encoded(id, chain, start, records);
    }

    /// Assigns these bytes to file `id`.
    pub(super) fn add_shared(&mut self, id: u32, bytes: Bytes, records: u64) {
        if self.holds() {
            // The bytes are copied because they wait for a while: if they were shared, they would keep the whole batch in memory,
            // and the batch may be much larger.
            let start = self.pending.buffer.len();
            self.pending.buffer.extend_from_slice(&bytes);
            self.add_encoded(id, start, records);
        } else {
            let chain = &mut self.files.outputs.get_mut(id).chain;
            self.pending.shared(id, chain, bytes, records);
        }
    }

    /// Whether pending records wait until the next checkpoint, or until there are enough for a full piece (`PIECE_BYTES`). They do
    /// so only with compression.
    pub(super) fn holds(&self) -> bool {
        self.compressor.is_some()
    }

    /// Whether pending records should be written now. The limit is higher for several files, so that each file still gets a large
    /// write.
    pub(super) fn is_full(&self) -> bool {
        let files = self.pending.waiting.len();
        let share = files.clamp(1, SHARES_MAX);
        let bytes = self.pending.bytes();
        match self.compressor {
            Some(_) => bytes >= share * PIECE_BYTES,
            None => bytes >= share * WRITE_BYTES || files >= self.files.handling().open_max,
        }
    }

    /// Writes all pending records. After an error, this method can be called again: records that were written are no longer
    /// pending.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        let open_max = self.files.handling().open_max;
        // Prepares and writes at most `open_max` files at a time, because all of them stay open until they are written.
        while !self.pending.waiting.is_empty() {
            let first = self.pending.waiting.len().saturating_sub(open_max);
            for waiting in &mut self.pending.waiting[first..] {
                self.files.ready(waiting)?;
                let output = self.files.outputs.get_mut(*waiting);
                self.ledger.enter(*waiting, output);
            }
            self.ledger.note()?;
            while let Some(id) = self.pending.waiting.get(first..).and_then(<[u32]>::last) {
                self.write(*id)?;
                self.pending.waiting.pop();
            }
        }
        self.pending.clear();
        self.latest.set(&mut self.files, &self.reporter);
        Ok(())
    }

    /// Writes the pending records of file `id`.
    fn write(&mut self, id: u32) -> Result<(), Failure> {
        if !self.files.open(id)? {
            return Err(Failure::disk(format!(
                "{} was moved away while it was written; a new file is started",
                self.files.outputs.get(id).path.display()
            )));
        }
        let handling = self.files.handling();
        let output = self.files.outputs.get_mut(id);
        output.measure(self.style.lines, &self.reporter)?;
        let mut parts = self.pending.parts(&output.chain);
        if output.length == 0 {
            parts.insert(0, IoSlice::new(&self.style.header));
        }
        if output.open_line {
            parts.insert(0, IoSlice::new(b"\n"));
        }
        if let Some(compressor) = &mut self.compressor {
            parts = vec![IoSlice::new(compressor.piece(&parts)?)];
        }
        let start = output.length;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let uncached = handling.drops_cache && bytes >= GATHER_BYTES;
        output.append(&parts, uncached, self.files.now)?;
        self.trusted = self.trusted.take().filter(|files| files.len() < ROWS_MAX);
        if let Some(trusted) = &mut self.trusted {
            trusted.insert(output.inode);
        }
        self.written.add(bytes as u64);
        self.files.outputs.mark_changed(id);
        self.dirty
            .wrote(&mut self.files, id, start, bytes as u64, uncached)
    }

    /// Makes everything written so far durable and committed, up to `position` of the channel.
    pub(super) fn commit(&mut self, position: Option<Position>) -> Result<(), Failure> {
        self.flush()?;
        let changed = self.files.outputs.take_changed();
        self.files.sync(&changed)?;
        self.dirty.clear();
        self.files.sync_directories()?;
        let mut gone = Vec::new();
        for id in changed {
            let output = self.files.outputs.get_mut(id);
            output.changed = false;
            output.named = true;
            if output.let_go {
                self.ledger.change(Change::Leave(id));
                gone.push(id);
            } else if output.length != output.committed {
                output.committed = output.length;
                let head = Head::of(&output.head);
                self.ledger
                    .change(Change::Grow(id, output.length, output.records, head));
            }
        }
        let table = self.ledger.table();
        let (channel, position) = (table.channel, position.or(table.position));
        self.ledger.change(Change::Commit(channel, position));
        gone.extend(self.retire_rows());
        self.ledger.note()?;
        gone.into_iter().for_each(|id| self.files.remove(id));
        self.rotation.prune(&self.files, &self.reporter);
        Ok(())
    }

    /// If the table would get too many rows (there is one for each output), removes up to a tenth of the rows from the journal, the
    /// least recently used first. Returns the numbers of their outputs.
    fn retire_rows(&mut self) -> Vec<u32> {
        let outputs = &self.files.outputs;
        if outputs.iter().count() < ROWS_MAX {
            return Vec::new();
        }
        let idle = outputs
            .iter()
            .filter(|(_, output)| output.is_clean() && !output.let_go);
        let mut idle: Vec<_> = idle.map(|(id, output)| (output.used, id)).collect();
        idle.sort_unstable();
        idle.truncate(ROWS_MAX / 10);
        let idle: Vec<u32> = idle.into_iter().map(|(_, id)| id).collect();
        for id in &idle {
            if self.files.outputs.get(*id).entered {
                self.ledger.change(Change::Leave(*id));
            }
        }
        idle
    }

    /// Rotates file `id`, which has no pending records.
    pub(super) fn rotate(&mut self, id: u32, time: Time) -> Result<(), Failure> {
        self.rotation
            .rotate(&mut self.files, &mut self.ledger, id, time)
    }

    /// Returns a time before which no file that is written now becomes due for rotation or closing.
    pub(super) fn soonest_due(&self) -> Instant {
        self.rotation.rules.soonest(self.files.now)
    }

    /// Rotates and closes the files that are due. Requires that no records are pending. Returns when to call it again, if ever.
    pub(super) fn tick(&mut self) -> Result<Option<Instant>, Failure> {
        let now = self.files.now;
        let mut rotated = false;
        for (id, due, what) in self.dues() {
            if due > now {
                continue;
            }
            if what == Due::Rotate {
                self.rotate(id, Time::now())?;
                rotated = true;
                continue;
            }
            self.files.close(&[id])?;
            let output = self.files.outputs.get(id);
            if output.is_clean() && !self.rotation.rules.remembers(output) {
                if output.entered {
                    self.ledger.change(Change::Leave(id));
                }
                self.files.remove(id);
            }
        }
        // If some written records are not committed yet, their commit follows soon and includes the changes made here.
        if self.is_clean() {
            if rotated {
                self.commit(None)?;
            }
            self.ledger.note()?;
        }
        let next = self.dues().into_iter().map(|(_, due, _)| due).min();
        Ok(next.map(|due| due.max(now + TICK_MIN)))
    }

    /// Whether everything written is committed. If so, another commit would only record changed names.
    fn is_clean(&self) -> bool {
        let committed = |id: &u32| {
            let output = self.files.outputs.get(*id);
            output.length == output.committed
        };
        self.pending.is_empty() && self.files.outputs.changed().iter().all(committed)
    }

    fn dues(&self) -> Vec<(u32, Instant, Due)> {
        let dues = self.files.outputs.iter().filter_map(|(id, output)| {
            let (due, what) = self.rotation.rules.due(output)?;
            Some((id, due, what))
        });
        dues.collect()
    }
}
