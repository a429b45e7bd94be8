//! Writing: what waits goes into the files, and a commit makes it count.
//!
//! `take -> encode -> [write] -> [settle]`
//!
//! The order of a commit (delivery.md): write what waits, fdatasync every file that has grown, sync the directories whose
//! names have changed, then append {position, lengths} to the journal in one step. A file enters the journal before its
//! first byte. A write that fails is cut back to the last whole record and can be tried again.

use std::{
    collections::HashSet,
    ffi::OsStr,
    io::{self, IoSlice},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use millstream_pipeline::{
    failure::Failure,
    meters::{Meter, NodeMeters},
    report::Reporter,
};
use millstream_record::{Position, Time};
use millstream_wire::compression::{Codec, codec_of};

use super::{
    compress::Compressor,
    dirty::Dirty,
    files::Files,
    journal::Journal,
    latest::Latest,
    naming,
    output::Output,
    pending::{GATHER_BYTES, PIECE_BYTES, Pending, WRITE_BYTES},
    recover::Recovered,
    rotate::Rotate,
    table::{Change, Head, ROWS_MAX, Table},
    trouble,
};

/// So many times as much waits at most, for files that are written side by side.
const SHARES_MAX: usize = 4;

/// A running file sink's hands.
pub(super) struct Writer {
    pub(super) files: Files,
    pub(super) pending: Pending,
    /// Files for which something waits.
    waiting: Vec<u32>,
    pub(super) table: Table,
    journal: Journal,
    /// After a start with a journal that had lost something: the files (inodes) that this run has begun.
    trusted: Option<HashSet<u64>>,
    /// Changes of the table that are not in the journal yet.
    changes: Vec<u8>,
    pub(super) rotate: Rotate,
    /// Files that have been rotated since the last commit: afterwards old rotations of them can go.
    pub(super) rotated: Vec<PathBuf>,
    pub(super) style: Style,
    compressor: Option<Compressor>,
    dirty: Dirty,
    pub(super) latest: Latest,
    pub(super) reporter: Reporter,
    written: Meter,
    pub(super) rotated_files: Meter,
}

/// How files are written.
#[derive(Clone, Debug, Default)]
pub(super) struct Style {
    /// None: as the records are.
    pub(super) codec: Option<Codec>,
    /// What every file starts with.
    pub(super) header: Bytes,
    /// So many bytes at most are written and not yet on the disk; 0: no bound.
    pub(super) dirty_max: u64,
    /// Every record ends with a newline.
    pub(super) lines: bool,
}

impl Writer {
    /// A writer that goes on where the recovered table ends, which the journal holds.
    pub(super) fn new(
        mut files: Files,
        recovered: Recovered,
        rotate: Rotate,
        style: Style,
        reporter: Reporter,
        meters: &NodeMeters,
    ) -> Result<Self, Failure> {
        let Recovered {
            journal,
            table,
            doubtful,
        } = recovered;
        for (id, row) in &table.rows {
            let output = Output::from_row(row, files.now);
            files.adopt(*id, output);
        }
        let latest = Latest::new(files.mode);
        Ok(Self {
            files,
            pending: Pending::default(),
            waiting: Vec::new(),
            table,
            journal,
            trusted: doubtful.then(HashSet::new),
            changes: Vec::new(),
            rotate,
            rotated: Vec::new(),
            compressor: style.codec.map(Compressor::new).transpose()?,
            dirty: Dirty::new(style.dirty_max),
            style,
            latest,
            reporter,
            written: meters.counter("bytes_written"),
            rotated_files: meters.counter("files_rotated"),
        })
    }

    /// What was encoded since `start` (a length of `pending.buffer`) goes to file `id`.
    pub(super) fn add_encoded(&mut self, id: u32, start: usize, records: u64) {
        self.wait(id);
        self.pending
            .encoded(&mut self.files.get_mut(id).chain, start, records);
    }

    /// These bytes go to file `id`.
    pub(super) fn add_shared(&mut self, id: u32, bytes: Bytes, records: u64) {
        self.wait(id);
        let chain = &mut self.files.get_mut(id).chain;
        if self.compressor.is_some() {
            // It waits for a while, and the batch it stands in may be much larger.
            let start = self.pending.buffer.len();
            self.pending.buffer.extend_from_slice(&bytes);
            self.pending.encoded(chain, start, records);
        } else {
            self.pending.shared(chain, bytes, records);
        }
    }

    fn wait(&mut self, id: u32) {
        if self.files.get(id).chain.is_empty() {
            self.waiting.push(id);
        }
    }

    /// Writes what waits. After an error it can be called again: what was written does not wait any more.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        // As many at a time as may be open.
        while !self.waiting.is_empty() {
            let first = self.waiting.len().saturating_sub(self.files.open_max());
            for at in first..self.waiting.len() {
                let id = self.files.ready(self.waiting[at])?;
                self.waiting[at] = id;
                self.enter(id);
            }
            self.note()?;
            while let Some(id) = self.waiting.get(first..).and_then(<[u32]>::last).copied() {
                self.write(id)?;
                self.waiting.pop();
            }
        }
        self.pending.clear();
        self.latest.set(&mut self.files, &self.reporter);
        Ok(())
    }

    /// The file stands in the journal from the next note on.
    pub(super) fn enter(&mut self, id: u32) {
        let output = self.files.get_mut(id);
        if !output.entered {
            output.entered = true;
            let row = output.row();
            self.change(Change::Enter(id, row));
        }
    }

    pub(super) fn change(&mut self, change: Change) {
        self.table.apply(&change);
        change.encode(&mut self.changes);
    }

    /// Appends what has changed to the journal.
    pub(super) fn note(&mut self) -> Result<(), Failure> {
        if self.changes.is_empty() {
            return Ok(());
        }
        self.journal.append(&self.changes, || self.table.encode())?;
        self.changes.clear();
        Ok(())
    }

    fn write(&mut self, id: u32) -> Result<(), Failure> {
        if !self.files.open(id)? {
            return Err(Failure::disk(format!(
                "{} was moved away while it was written; it is begun anew",
                self.files.get(id).path.display()
            )));
        }
        self.measure(id)?;
        let now = self.files.now;
        let lets_go = self.files.lets_go;
        let output = self.files.get_mut(id);
        let Some(file) = &output.file else {
            return Ok(());
        };
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
        let uncached = lets_go && bytes >= GATHER_BYTES;
        let written = if uncached {
            file.write_uncached_at(&parts, start)
        } else {
            file.write_at(&parts, start)
        };
        output.unsynced = true;
        if let Err(error) = written {
            output.torn = file.truncate(output.length).is_err();
            return Err(trouble("write", &output.path, &error));
        }
        output.see_head(parts.iter().map(|part| -> &[u8] { part }));
        let chain = std::mem::take(&mut output.chain);
        output.length += bytes as u64;
        output.records += chain.records;
        output.written = now;
        output.ours = true;
        output.open_line = false;
        self.trusted = self.trusted.take().filter(|files| files.len() < ROWS_MAX);
        if let Some(trusted) = &mut self.trusted {
            trusted.insert(output.inode);
        }
        self.written.add(bytes as u64);
        self.files.mark_changed(id);
        self.dirty
            .wrote(&mut self.files, id, start, bytes as u64, uncached)
    }

    /// Looks whether the file is as long as we have left it: the next write goes to its end, whatever others do to it.
    fn measure(&mut self, id: u32) -> Result<(), Failure> {
        let output = self.files.get_mut(id);
        let Some(file) = &output.file else {
            return Ok(());
        };
        let found = file
            .metadata()
            .map_err(|error| trouble("look at", &output.path, &error))?
            .len;
        let is_as_left = output.ours && found == output.length;
        if output.torn && found > output.length {
            file.truncate(output.length)
                .map_err(|error| trouble("cut back", &output.path, &error))?;
        } else if found != output.length {
            let (path, expected) = (output.path.display(), output.length);
            self.reporter.warn(
                "length",
                format_args!("{path} has {found} bytes in place of {expected}: somebody else writes or cuts it"),
            );
            output.length = found;
            output.committed = output.committed.min(found);
            if found < expected {
                output.head.clear();
                output.records = 0;
                let head = usize::try_from(found)
                    .unwrap_or(usize::MAX)
                    .min(super::table::HEAD_BYTES);
                file.read_at(&mut output.head, head, 0)
                    .map_err(|error| trouble("read", &output.path, &error))?;
            }
        }
        output.torn = false;
        if self.style.lines && !is_as_left {
            let mut last = Vec::new();
            if let Some(at) = output.length.checked_sub(1) {
                file.read_at(&mut last, 1, at)
                    .map_err(|error| trouble("read", &output.path, &error))?;
            }
            output.open_line = !last.is_empty() && last != b"\n";
            if output.open_line {
                let path = output.path.display();
                let text =
                    format_args!("{path} ends within a line; the next record begins a new one");
                self.reporter.warn("line", text);
            }
        }
        Ok(())
    }

    /// Makes everything written so far durable and count, up to `position` of the channel.
    pub(super) fn commit(&mut self, position: Option<Position>) -> Result<(), Failure> {
        self.flush()?;
        let changed = std::mem::take(&mut self.files.changed);
        self.files.sync(&changed)?;
        self.dirty.clear();
        self.sync_directories()?;
        for id in &changed {
            let output = self.files.get_mut(*id);
            output.changed = false;
            output.named = true;
            if output.let_go {
                self.change(Change::Leave(*id));
            } else if output.length != output.committed {
                output.committed = output.length;
                let change =
                    Change::Grow(*id, output.length, output.records, Head::of(&output.head));
                self.change(change);
            }
        }
        let position = position.or(self.table.position);
        self.change(Change::Commit(self.table.channel, position));
        let retired = self.retire_rows();
        self.note()?;
        let gone = changed.into_iter().filter(|id| self.files.get(*id).let_go);
        let gone: Vec<u32> = gone.chain(retired).collect();
        gone.into_iter().for_each(|id| self.files.remove(id));
        self.prune();
        Ok(())
    }

    fn sync_directories(&mut self) -> Result<(), Failure> {
        while let Some(directory) = self.files.unsynced_directories.first() {
            match self.files.disk.sync_directory(directory) {
                // Gone with what stood in it, which the next look finds.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(|error| trouble("sync the directory", directory, &error))?,
            }
            self.files.unsynced_directories.pop_first();
        }
        Ok(())
    }

    /// When there are too many, the files used longest ago are forgotten, a tenth at a time.
    fn retire_rows(&mut self) -> Vec<u32> {
        if self.files.iter().count() < ROWS_MAX {
            return Vec::new();
        }
        let idle = self
            .files
            .iter()
            .filter(|(_, output)| output.is_clean() && !output.let_go);
        let mut idle: Vec<_> = idle.map(|(id, output)| (output.used, id)).collect();
        idle.sort_unstable();
        idle.truncate(ROWS_MAX / 10);
        let idle: Vec<u32> = idle.into_iter().map(|(_, id)| id).collect();
        for id in &idle {
            if self.files.get(*id).entered {
                self.change(Change::Leave(*id));
            }
        }
        idle
    }

    /// Whether everything written is committed, so that a commit changes nothing but names.
    pub(super) fn is_clean(&self) -> bool {
        self.pending.is_empty()
            && self
                .files
                .changed
                .iter()
                .all(|id| self.files.get(*id).length == self.files.get(*id).committed)
    }

    /// The file for `path`, as a batch that was received at `received` finds it. One that is new is opened, for its length counts.
    pub(super) fn file(&mut self, path: &[u8], received: Time) -> Result<u32, Failure> {
        let id = self.files.of(path, received);
        let output = self.files.get(id);
        let unseen = output.head.is_empty() && output.length > 0;
        if output.file.is_none() && (!output.entered || unseen) {
            self.files.open(id)?;
        }
        Ok(id)
    }

    /// Whether a file is there that was compressed in another way: what follows would be read by nobody.
    pub(super) fn is_foreign(&self, id: u32) -> bool {
        let output = self.files.get(id);
        // What this run has written may start with anything.
        !output.ours && output.length > 0 && codec_of(&output.head) != self.style.codec
    }

    /// Whether a file is there of which a journal that was lost may have known: it can end within a record, and what the
    /// channel gives again can stand in it.
    pub(super) fn is_doubtful(&self, id: u32) -> bool {
        let output = self.files.get(id);
        let known = |files: &HashSet<u64>| output.entered || files.contains(&output.inode);
        let doubtful = self.trusted.as_ref().is_some_and(|files| !known(files));
        doubtful && output.length > 0
    }

    /// Whether what waits is written before the next cut only when there is much of it.
    pub(super) fn holds(&self) -> bool {
        self.compressor.is_some()
    }

    /// Why no file can have this path, if it is not one already.
    pub(super) fn misfit(&self, path: &[u8]) -> Option<String> {
        if self.files.is_known(path) {
            return None;
        }
        naming::misfit(path, self.rotate.is_any(), self.rotate.keep > 0)
            .or_else(|| self.files.misfit(Path::new(OsStr::from_bytes(path))))
    }

    /// Whether it is time to write. Several files share a larger piece, so that each still gets a large write.
    pub(super) fn is_full(&self) -> bool {
        let share = self.waiting.len().clamp(1, SHARES_MAX);
        match self.compressor {
            Some(_) => self.pending.bytes() >= share * PIECE_BYTES,
            None => {
                self.pending.bytes() >= share * WRITE_BYTES
                    || self.waiting.len() >= self.files.open_max()
            }
        }
    }
}
