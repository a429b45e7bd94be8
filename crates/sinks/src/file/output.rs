//! One output file: its state, writes to its end, and its pages in the page cache.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`

use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_record::Time;
use millstream_sys::disk::{File, Metadata};
use millstream_wire::compression::{Codec, codec_of};

use super::{
    compress::is_cut,
    failure::cannot,
    pending::Chain,
    table::{HEAD_BYTES, Head, Row},
};

/// The kernel groups cached pages in pieces of up to this size, and drops only whole pieces.
const FOLIO_BYTES: u64 = 2 << 20;

/// A file to which the sink writes, or wrote until the file was renamed.
pub(super) struct Output {
    /// The path under which the file is written.
    pub(super) path: PathBuf,
    /// The open and locked file. None while it is closed, for example because other files need its descriptor.
    pub(super) file: Option<Arc<dyn File>>,
    /// The file is in the journal, so bytes may be written to it.
    pub(super) entered: bool,
    /// This run has synced the directory, so the name is durable. (An earlier run may have been killed before it synced the directory.)
    pub(super) named: bool,
    /// The file was rotated, or another process has moved it away: it leaves the journal with the next commit.
    pub(super) let_go: bool,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// The length of the file up to the end of its last whole record.
    pub(super) length: u64,
    pub(super) records: u64,
    /// The length at the last commit.
    pub(super) committed: u64,
    /// The first bytes, up to 64.
    pub(super) head: Vec<u8>,
    /// The receive time of the first record, and the time at which the file was started.
    pub(super) since: Time,
    pub(super) begun: Instant,
    /// Bytes were written since the last fdatasync.
    pub(super) unsynced: bool,
    /// Offset from which the page cache may still hold pages of this file.
    pub(super) cached_from: u64,
    /// This run has written to the file.
    pub(super) ours: bool,
    /// The `latest` link to this file was requested.
    pub(super) linked: bool,
    /// The bytes after `length` are the rest of a failed write: the sink has tried to cut them off, but that failed, too.
    pub(super) torn: bool,
    /// The file ends within a line that another process wrote, so the next write starts with a newline.
    pub(super) open_line: bool,
    /// The file was compressed before this run opened it, and ends within a member or frame.
    pub(super) cut: bool,
    /// The file is in the list of outputs that the next commit looks at.
    pub(super) changed: bool,
    /// The pieces that wait to be written.
    pub(super) chain: Chain,
    /// The times of the last write and of the last check whether the file still has its name.
    pub(super) written: Instant,
    pub(super) checked: Instant,
    /// The value of `Files::uses` at the last use of this file: the file with the lowest value is the least recently used one.
    pub(super) used: u64,
}

impl Output {
    /// Creates the output of a file that is not open yet.
    pub(super) fn new(path: &Path, since: Time, now: Instant) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
            entered: false,
            named: false,
            let_go: false,
            device: 0,
            inode: 0,
            length: 0,
            records: 0,
            committed: 0,
            head: Vec::new(),
            since,
            begun: now,
            unsynced: false,
            cached_from: 0,
            ours: false,
            linked: false,
            torn: false,
            open_line: false,
            cut: false,
            changed: false,
            chain: Chain::default(),
            written: now,
            checked: now,
            used: 0,
        }
    }

    /// Creates the output of a file that is in the journal.
    pub(super) fn from_row(row: &Row, now: Instant) -> Self {
        let age = Time::now().0.saturating_sub(row.since.0);
        let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
        Self {
            entered: true,
            device: row.device,
            inode: row.inode,
            length: row.committed,
            records: row.records,
            committed: row.committed,
            cached_from: row.committed,
            begun: now.checked_sub(age).unwrap_or(now),
            ..Self::new(&row.path, row.since, now)
        }
    }

    /// Returns the row with which the file enters the journal.
    pub(super) fn row(&self) -> Row {
        Row {
            path: self.path.clone(),
            renamed: None,
            device: self.device,
            inode: self.inode,
            committed: self.committed,
            records: self.records,
            since: self.since,
            head: Head::of(&self.head),
        }
    }

    /// Whether the file is empty and no record waits to be written to it.
    pub(super) fn is_empty(&self) -> bool {
        self.length + self.chain.bytes == 0
    }

    /// Whether all records of the file are committed, and none waits to be written.
    pub(super) fn is_clean(&self) -> bool {
        self.length == self.committed && self.chain.is_empty() && !self.unsynced
    }

    /// Starts using `file`, which has the name of this output and is open and locked. `codec` is the compression of the sink.
    pub(super) fn attach(
        &mut self,
        file: Arc<dyn File>,
        found: Metadata,
        codec: Option<Codec>,
    ) -> Result<(), Failure> {
        if !self.entered {
            (self.device, self.inode) = (found.device, found.inode);
            (self.length, self.committed) = (found.len, found.len);
            self.cached_from = found.len;
        }
        let head = usize::try_from(self.length)
            .unwrap_or(HEAD_BYTES)
            .min(HEAD_BYTES);
        if self.head.len() < head {
            self.read_head(&*file, head)?;
        }
        // Recovery has checked the files that are in the journal.
        let to_check = |codec: &Codec| !self.entered && codec_of(&self.head) == Some(*codec);
        if let Some(codec) = codec.filter(to_check) {
            self.cut = is_cut(codec, &*file, self.length)
                .map_err(|error| cannot("read", &self.path, &error))?;
        }
        self.file = Some(file);
        Ok(())
    }

    fn read_head(&mut self, file: &dyn File, bytes: usize) -> Result<(), Failure> {
        self.head.clear();
        file.read_at(&mut self.head, bytes, 0)
            .map_err(|error| cannot("read", &self.path, &error))?;
        Ok(())
    }

    /// Compares the length of the file with its length after the last write, so that the next write goes to the end even if another
    /// process has changed the length. `lines` says whether every record ends with a newline. In this case, if the file ends within
    /// a line, the next write begins with a newline.
    pub(super) fn measure(&mut self, lines: bool, reporter: &Reporter) -> Result<(), Failure> {
        let Some(file) = self.file.clone() else {
            return Ok(());
        };
        let found = file.metadata();
        let found = found
            .map_err(|error| cannot("look at", &self.path, &error))?
            .len;
        if self.ours && found == self.length {
            self.torn = false;
            return Ok(());
        }
        self.adapt_to(&*file, found, reporter)?;
        match lines {
            true => self.look_for_open_line(&*file, reporter),
            false => Ok(()),
        }
    }

    /// Truncates the rest of a failed write. If another process has changed the length instead, continues at the new end.
    #[cold]
    fn adapt_to(
        &mut self,
        file: &dyn File,
        found: u64,
        reporter: &Reporter,
    ) -> Result<(), Failure> {
        if self.torn && found > self.length {
            file.truncate(self.length)
                .map_err(|error| cannot("truncate", &self.path, &error))?;
        } else if found != self.length {
            let (path, expected) = (self.path.display(), self.length);
            reporter.warn(
                "length",
                format_args!("{path} has {found} bytes instead of {expected}: another process writes or cuts it"),
            );
            self.length = found;
            self.committed = self.committed.min(found);
            if found < expected {
                self.records = 0;
                let head = usize::try_from(found).unwrap_or(usize::MAX);
                self.read_head(file, head.min(HEAD_BYTES))?;
            }
        }
        self.torn = false;
        Ok(())
    }

    /// Checks whether the last byte is a newline.
    #[cold]
    fn look_for_open_line(&mut self, file: &dyn File, reporter: &Reporter) -> Result<(), Failure> {
        let mut last = Vec::new();
        if let Some(at) = self.length.checked_sub(1) {
            file.read_at(&mut last, 1, at)
                .map_err(|error| cannot("read", &self.path, &error))?;
        }
        self.open_line = !last.is_empty() && last != b"\n";
        if self.open_line {
            let path = self.path.display();
            let text = format_args!("{path} ends within a line; the next record starts a new line");
            reporter.warn("line", text);
        }
        Ok(())
    }

    /// Appends `parts`, which are the pending records of the file. If that fails, the file is truncated to the last whole record
    /// and the records stay pending.
    pub(super) fn append(
        &mut self,
        parts: &[IoSlice<'_>],
        uncached: bool,
        now: Instant,
    ) -> Result<(), Failure> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        self.unsynced = true;
        let written = match uncached {
            true => file.write_uncached_at(parts, self.length),
            false => file.write_at(parts, self.length),
        };
        if let Err(error) = written {
            self.torn = file.truncate(self.length).is_err();
            return Err(cannot("write", &self.path, &error));
        }
        for part in parts {
            let room = HEAD_BYTES - self.head.len();
            self.head.extend_from_slice(&part[..part.len().min(room)]);
            self.length += part.len() as u64;
        }
        self.records += std::mem::take(&mut self.chain).records;
        self.written = now;
        self.ours = true;
        self.open_line = false;
        Ok(())
    }

    /// Waits until bytes `start..end` are on disk. Returns immediately for a closed file, because closing has synced it.
    pub(super) fn wait_for_disk(&self, start: u64, end: u64) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.unsynced) else {
            return Ok(());
        };
        match file.finish_writeback(start, end - start) {
            // The file system cannot sync a part of a file.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => file.sync(),
            other => other,
        }
    }

    /// Drops the cached pages before `end` if at least `least` bytes were added since the last drop. The caller makes sure that all
    /// bytes before `end` are on disk.
    pub(super) fn drop_cache(&mut self, end: u64, least: u64) {
        let Some(file) = &self.file else { return };
        if end.saturating_sub(self.cached_from) >= least.max(1) {
            let from = self.cached_from.saturating_sub(FOLIO_BYTES);
            // The call is only a hint: a file system that does not support it keeps the pages.
            let _ = file.let_go(from, end - from);
            self.cached_from = end;
        }
    }
}
