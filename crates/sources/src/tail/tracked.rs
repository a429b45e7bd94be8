//! The state of a file that is being read. `run.rs` and the reader share it.
//!
//! A mark is an offset with a checksum of the bytes before it. A head is a checksum of the first line (`identity.rs`).

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use millstream_record::FileId;
use tokio::sync::Notify;

use super::{
    identity::{Inode, Mark, Stat, head_key},
    join::Joint,
    known::Past,
    names::is_rotated,
    watch::Alarm,
};

/// The maximum number of marks that are remembered, each at the end of a batch. A copy that is shorter than the part that was
/// read is compared with an earlier mark. This number suffices for files of any length, because the marks become sparser towards
/// the start: the last mark before any offset is at most a sixteenth of that offset away.
const MARKS_MAX: usize = 400;
const MARK_SPACING: u64 = 16;
/// The maximum number of former contents of one inode that are remembered, because a file may be truncated several times before
/// its copies are checked.
const PREVIOUS_MAX: usize = 32;

/// One file that has a reader.
#[derive(Debug)]
pub(super) struct Tracked {
    pub inode: Inode,
    /// Wakes the reader of the file.
    pub alarm: Arc<Alarm>,
    /// The number of unread bytes.
    pub lag: Arc<AtomicU64>,
    /// Notified when the file was read to its end, or cannot be read. The reader of the next file of the rotation may then
    /// begin.
    pub read: Notify,
    /// Where the reader of the file that has the name now asks for the record that begins in this file.
    pub joint: Arc<Joint>,
    state: Mutex<FileState>,
}

/// The changing state of a file.
#[derive(Debug)]
pub(super) struct FileState {
    /// The current path of the file.
    pub path: PathBuf,
    /// The time since which no matching path leads to the file. None while a matching path leads to it.
    pub rotated: Option<Instant>,
    /// The first path of the file, and when it was renamed. None if it still has its first path.
    pub left: Option<(PathBuf, Instant)>,
    /// Whether log rotation has renamed the file, even if its new path matches.
    pub is_renamed: bool,
    /// The length of the file at the last scan that found it.
    pub len: u64,
    /// The first bytes of the file when its reader began at its first byte. They show that the file was overwritten before it was
    /// read.
    pub start: Option<FileId>,
    /// The identity of the file, and how far it is settled. None until the identity is determined.
    pub settled: Option<(FileId, Mark)>,
    /// The offset up to which the file was sent.
    pub sent: u64,
    /// Marks at ends of batches. They are sparser towards the start of the file.
    pub marks: VecDeque<Mark>,
    /// The former contents of the inode, the latest last.
    pub previous: VecDeque<Previous>,
}

/// A content that the inode held before it was truncated.
#[derive(Clone, Debug)]
pub(super) struct Previous {
    pub id: FileId,
    /// The offset up to which the content was settled. Bytes after this offset exist only in a copy.
    pub settled: u64,
    /// Marks at ends of batches. At most one if the content was truncated while the source did not run.
    pub marks: Vec<Mark>,
    /// The time at which this run noticed the truncation. Holds the start of this run instead if an earlier run has noticed the
    /// truncation.
    pub noticed: Instant,
    /// Whether an earlier run has noticed the truncation. If so, `noticed` is later than the truncation, and a file written
    /// before `noticed` may still be newer than the truncation.
    pub restored: bool,
}

impl From<&Past> for Previous {
    /// For a content that was truncated while the source did not run, or shortly before it stopped.
    fn from(past: &Past) -> Self {
        Self {
            id: past.id,
            settled: past.offset,
            marks: past.marks().collect(),
            noticed: Instant::now(),
            restored: false,
        }
    }
}

impl Tracked {
    /// A file at `path`. `previous` are the contents that its inode held before.
    pub(super) fn new(
        inode: Inode,
        path: PathBuf,
        previous: impl IntoIterator<Item = Previous>,
    ) -> Arc<Self> {
        Arc::new(Self {
            inode,
            alarm: Arc::default(),
            lag: Arc::default(),
            read: Notify::new(),
            joint: Arc::default(),
            state: Mutex::new(FileState {
                path,
                rotated: None,
                left: None,
                is_renamed: false,
                len: 0,
                start: None,
                settled: None,
                sent: 0,
                marks: VecDeque::new(),
                previous: previous.into_iter().collect(),
            }),
        })
    }

    /// Whether this file may be the original of the compressed file at `to`, whose text has the head `head`. If it may be, the
    /// compressed file has to wait, for one of two reasons: the rest of its text is still being read from this file, or this
    /// file was truncated and its reader has not noticed that yet.
    pub(super) fn is_source_of(&self, head: u64, to: &Path) -> bool {
        let (path, last) = {
            let state = self.state();
            // A file that was renamed before its first line was sent may be the original, too.
            if !state.began_as(head) && !state.is_unknown() {
                return false;
            }
            if state.rotated.is_some() {
                return true;
            }
            (state.path.clone(), state.marks.back().copied())
        };
        let mut name = path.clone().into_os_string();
        name.push(".gz");
        // The scan may have seen this file just before the file was renamed or truncated.
        name == to || !self.is_as_read(&path, last).unwrap_or(false)
    }

    /// Whether the path leads to this file, and its bytes still fit the last mark.
    fn is_as_read(&self, path: &Path, last: Option<Mark>) -> io::Result<bool> {
        if Stat::at(path)?.inode != self.inode {
            return Ok(false);
        }
        match last {
            Some(last) => Ok(Mark::read(&fs::File::open(path)?, last.offset)? == Some(last)),
            None => Ok(true),
        }
    }

    /// The number of unread bytes.
    pub(super) fn unread(&self) -> u64 {
        self.lag.load(Ordering::Relaxed)
    }

    /// Locks the state. The guard must not be held across an await.
    pub(super) fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileState {
    /// The number of bytes that were settled before the inode was truncated; 0 if it was not truncated.
    pub(super) fn before(&self) -> u64 {
        self.previous.back().map_or(0, |previous| previous.settled)
    }

    /// Notes that the file has another path now. `originals` are the paths that it may have had before log rotation renamed it the
    /// first time.
    pub(super) fn rename(&mut self, path: &Path, originals: impl Iterator<Item = PathBuf>) {
        let mut befores = originals.chain([self.path.clone()]);
        self.is_renamed |= befores.any(|before| is_rotated(path, &before));
        let before = std::mem::replace(&mut self.path, path.to_path_buf());
        self.left.get_or_insert((before, Instant::now()));
    }

    /// Whether log rotation has renamed or removed the file.
    pub(super) fn is_rotated(&self) -> bool {
        self.rotated.is_some() || self.is_renamed
    }

    /// When log rotation took the path `path` from the file. None if it did not.
    pub(super) fn left_at(&self, path: &Path) -> Option<Instant> {
        let left = self.left.as_ref().filter(|(left, _)| left == path);
        let removed = self.rotated.filter(|_| self.path == path);
        left.map(|(_, at)| *at).or(removed)
    }

    /// The length of the file, if more of it is expected; `unread` bytes of it were not read yet. None for a compressed file, whose
    /// offsets are those of its text.
    pub(super) fn left(&self, unread: u64) -> Option<u64> {
        let settled = self.settled.map_or(0, |(_, mark)| mark.offset);
        let len = settled.max(self.sent + unread);
        let is_gz = self.path.extension().is_some_and(|end| end == "gz");
        (!is_gz && (self.rotated.is_none() || settled < len)).then_some(len)
    }

    /// Whether nothing was sent yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.settled.is_none() && self.previous.is_empty()
    }

    /// Whether the file begins with this head, or did before it was truncated.
    pub(super) fn began_as(&self, head: u64) -> bool {
        let mut ids = self
            .previous
            .iter()
            .map(|previous| previous.id)
            .chain(self.settled.map(|(id, _)| id));
        ids.any(|id| head_key(&id) == head)
    }

    /// Notes that a batch that ends at `mark` was sent.
    pub(super) fn advance(&mut self, mark: Mark) {
        self.sent = mark.offset;
        // After a failure the position goes back. Marks after the position are dropped.
        while self
            .marks
            .back()
            .is_some_and(|last| last.offset >= mark.offset)
        {
            self.marks.pop_back();
        }
        // The last mark is always kept. Marks before it are thinned out.
        let thin = |offset: u64| mark.offset - offset < mark.offset / MARK_SPACING;
        let before_last = self
            .marks
            .len()
            .checked_sub(2)
            .and_then(|at| self.marks.get(at));
        if before_last.is_some_and(|before| thin(before.offset)) {
            self.marks.pop_back();
        } else if self.marks.len() == MARKS_MAX {
            self.marks.pop_front();
        }
        self.marks.push_back(mark);
    }

    /// Moves the current content to the former contents, because the inode holds another one now.
    pub(super) fn replace(&mut self) {
        let marks = std::mem::take(&mut self.marks).into();
        if let Some((id, mark)) = self.settled.take() {
            if self.previous.len() == PREVIOUS_MAX {
                self.previous.pop_front();
            }
            let noticed = Instant::now();
            self.previous.push_back(Previous {
                id,
                settled: mark.offset,
                marks,
                noticed,
                restored: false,
            });
        }
        self.sent = 0;
    }
}
