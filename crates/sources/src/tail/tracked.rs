//! What the scan and the reader of one file share.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Instant,
};

use millstream_record::FileId;
use tokio::sync::Notify;

use super::{
    heads::key,
    identity::{Inode, Mark, Stat},
    known::Past,
    watch::Alarm,
};

/// Ends of batches are remembered to hold a copy against that is shorter than what was read: of a file of any length so
/// many that some stand within the last sixteenth before any offset.
const MARKS_MAX: usize = 400;
const MARK_SPACING: u64 = 16;
/// So many contents of one inode are remembered: rotations may follow each other faster than copies are looked at.
const PREVIOUS_MAX: usize = 32;

/// One file that has a reader.
#[derive(Debug)]
pub(super) struct Tracked {
    /// Which inode.
    pub inode: Inode,
    /// Wakes its reader.
    pub alarm: Arc<Alarm>,
    /// Bytes that are not read yet.
    pub lag: Arc<AtomicU64>,
    /// Told when it was read to its end, or cannot be: what was written after it may begin.
    pub read: Notify,
    state: Mutex<State>,
}

/// What changes about it.
#[derive(Debug)]
pub(super) struct State {
    /// Its name by now.
    pub path: PathBuf,
    /// Since when no name that matches leads to it.
    pub rotated: Option<Instant>,
    /// Who it is and up to where it is settled.
    pub settled: Option<(FileId, Mark)>,
    /// Up to where it was sent.
    pub sent: u64,
    pub marks: VecDeque<Mark>,
    /// The latest last.
    pub previous: VecDeque<Previous>,
}

/// What the inode held before it was truncated.
#[derive(Clone, Debug)]
pub(super) struct Previous {
    /// Who that was.
    pub id: FileId,
    /// Up to where it was settled: from there on only a copy has it.
    pub settled: u64,
    /// Ends of batches; what is known of them if it was truncated while we did not run: the last one, or none.
    pub marks: Vec<Mark>,
    /// When we noticed.
    pub noticed: Instant,
}

impl From<&Past> for Previous {
    /// A content that was truncated while we did not run, or shortly before.
    fn from(past: &Past) -> Self {
        Self {
            id: past.id,
            settled: past.offset,
            marks: past.marks().collect(),
            noticed: Instant::now(),
        }
    }
}

impl Tracked {
    /// A file at a path.
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
            state: Mutex::new(State {
                path,
                rotated: None,
                settled: None,
                sent: 0,
                marks: VecDeque::new(),
                previous: previous.into_iter().collect(),
            }),
        })
    }

    /// Whether a compressed file at `to` whose text begins with this head may hold what is still being read here: it was made
    /// of it, or of a copy of what was truncated away.
    pub(super) fn is_source_of(&self, head: u64, to: &Path) -> bool {
        let (path, last) = {
            let state = self.state();
            // One that was renamed before its first line was sent may be what the other was made of.
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
        // The walk may have seen it just before it was renamed, and its reader is later than who truncates it.
        name == to || !self.is_as_read(&path, last).unwrap_or(false)
    }

    /// Whether the path leads to it, and what was read last still stands in it.
    fn is_as_read(&self, path: &Path, last: Option<Mark>) -> io::Result<bool> {
        if Stat::at(path)?.inode != self.inode {
            return Ok(false);
        }
        match last {
            Some(last) => Ok(Mark::read(&fs::File::open(path)?, last.offset)? == Some(last)),
            None => Ok(true),
        }
    }

    /// Its state, for a moment.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How much the inode held before it was truncated, as far as it was settled; 0 if it was not.
    pub(super) fn before(&self) -> u64 {
        self.previous.back().map_or(0, |previous| previous.settled)
    }

    /// Nothing of it was sent yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.settled.is_none() && self.previous.is_empty()
    }

    /// Whether it begins, or began before it was truncated, with this head.
    pub(super) fn began_as(&self, head: u64) -> bool {
        let mut ids = self
            .previous
            .iter()
            .map(|previous| previous.id)
            .chain(self.settled.map(|(id, _)| id));
        ids.any(|id| key(&id) == head)
    }

    /// A batch that ends at `mark` was sent.
    pub(super) fn advance(&mut self, mark: Mark) {
        self.sent = mark.offset;
        // After a failure it goes back.
        while self
            .marks
            .back()
            .is_some_and(|last| last.offset >= mark.offset)
        {
            self.marks.pop_back();
        }
        // The last one is always kept, those before it thinly.
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

    /// The content is gone, the inode begins anew.
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
            });
        }
        self.sent = 0;
    }
}
