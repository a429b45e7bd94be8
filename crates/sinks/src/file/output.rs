//! One output file: what is known of it while it has open business.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_record::Time;
use millstream_sys::disk::File;

use super::{
    pending::Chain,
    table::{HEAD_BYTES, Head, Row},
};

/// A file that is written, or was until it was let go.
pub(super) struct Output {
    /// The name it is written under.
    pub(super) path: PathBuf,
    /// Open, and locked; None while it is closed because others need its place.
    pub(super) file: Option<Arc<dyn File>>,
    /// It stands in the journal: bytes may be written.
    pub(super) entered: bool,
    /// Its name is durable, as far as this run knows: an earlier one may have made the file and died.
    pub(super) named: bool,
    /// It has been rotated or moved away: it leaves with the next cut.
    pub(super) let_go: bool,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Bytes of whole records.
    pub(super) length: u64,
    pub(super) records: u64,
    /// What the last commit says of length.
    pub(super) committed: u64,
    /// The first bytes, up to 64.
    pub(super) head: Vec<u8>,
    /// When its first record was received, and when it was begun.
    pub(super) since: Time,
    pub(super) begun: Instant,
    /// Bytes have been written since the last fdatasync.
    pub(super) unsynced: bool,
    /// From here on pages may be in the page cache that are not needed there.
    pub(super) cached_from: u64,
    /// This run has written to it.
    pub(super) ours: bool,
    /// It was asked for the link to the current file.
    pub(super) linked: bool,
    /// A write has failed half way and could not be cut back: what stands behind `length` is no record.
    pub(super) torn: bool,
    /// It ends within a line, which others have cut or written: a newline is to be written first.
    pub(super) open_line: bool,
    /// It stands in the list of those that the next commit looks at.
    pub(super) changed: bool,
    /// What waits to be written.
    pub(super) chain: Chain,
    /// The last write, and the last look at what stands under its name.
    pub(super) written: Instant,
    pub(super) checked: Instant,
    /// Raised with every use: the lowest is the least recently used.
    pub(super) used: u64,
}

impl Output {
    /// A file that is not open yet.
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
            changed: false,
            chain: Chain::default(),
            written: now,
            checked: now,
            used: 0,
        }
    }

    /// A file that the journal knows.
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

    /// As it enters the journal.
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

    /// Takes the first bytes of what is written at `length`.
    pub(super) fn see_head<'a>(&mut self, parts: impl IntoIterator<Item = &'a [u8]>) {
        for part in parts {
            let room = HEAD_BYTES - self.head.len();
            if room == 0 {
                return;
            }
            self.head.extend_from_slice(&part[..part.len().min(room)]);
        }
    }

    /// Whether it holds nothing and nothing waits for it.
    pub(super) fn is_empty(&self) -> bool {
        self.length + self.chain.bytes == 0
    }

    /// Whether everything it holds is committed, and nothing waits.
    pub(super) fn is_clean(&self) -> bool {
        self.length == self.committed && self.chain.is_empty() && !self.unsynced
    }
}
