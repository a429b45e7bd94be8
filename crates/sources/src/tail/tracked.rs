//! What the scan and the reader of one file share, and how a copy of a file is recognised by it.
//!
//! logrotate's `copytruncate` copies a file and then truncates it. Where the copy matches `paths` too, it holds what was
//! read already, under a new inode. A new file that begins as another does is therefore held against the marks of that
//! other: where they fit, it is read from where the other was left, as soon as the other has been truncated.

use std::{
    collections::{HashMap, VecDeque},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicU64},
    time::{Duration, Instant},
};

use millstream_record::FileId;

use super::{
    gzip::Candidate,
    identity::{Inode, Mark, Stat, file_id, read_start},
    watch::Alarm,
};

/// Ends of batches are remembered to hold a copy against that is shorter than what was read: of a file of any length so
/// many that some stand within the last sixteenth before any offset.
const MARKS_MAX: usize = 400;
const MARK_SPACING: u64 = 16;
/// So many contents of one inode are remembered: rotations may follow each other faster than copies are looked at.
const PREVIOUS_MAX: usize = 32;
/// A file that was truncated longer ago than this has no copy that is still to be found.
const COPY_AGE_MAX: Duration = Duration::from_secs(60);

/// One file that has a reader.
#[derive(Debug)]
pub(super) struct Tracked {
    /// Which inode.
    pub inode: Inode,
    /// Wakes its reader.
    pub alarm: Arc<Alarm>,
    /// Bytes that are not read yet.
    pub lag: Arc<AtomicU64>,
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
    marks: VecDeque<Mark>,
    /// The latest last.
    previous: VecDeque<Previous>,
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

impl Tracked {
    /// A file at a path.
    pub(super) fn new(inode: Inode, path: PathBuf, previous: Option<Previous>) -> Arc<Self> {
        Arc::new(Self {
            inode,
            alarm: Arc::default(),
            lag: Arc::default(),
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

/// The files that have a reader, by how they begin. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub(super) struct Heads(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    by_head: HashMap<u64, Vec<Weak<Tracked>>>,
    /// Files without a reader by now that held something of which a copy may still be found.
    lingering: Vec<Arc<Tracked>>,
}

/// What a new file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Likeness {
    /// Like no other.
    Own,
    /// Like one that may be truncated soon.
    Perhaps,
    /// A copy of one that was truncated: read it from there on.
    CopyUpTo(u64),
}

/// The head without its generation.
pub(super) fn key(id: &FileId) -> u64 {
    id.head & 0x0000_ffff_ffff_ffff
}

impl Heads {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a file begins.
    pub(super) fn put(&self, id: &FileId, tracked: &Arc<Tracked>) {
        let mut table = self.lock();
        let alike = table.by_head.entry(key(id)).or_default();
        alike.retain(|other| {
            other
                .upgrade()
                .is_some_and(|other| !Arc::ptr_eq(&other, tracked))
        });
        alike.push(Arc::downgrade(tracked));
    }

    /// The reader of a file has ended: what the file held before it was truncated is remembered while a copy may be found.
    pub(super) fn linger(&self, tracked: Arc<Tracked>) {
        let mut state = tracked.state();
        // Nothing is a copy of what it holds now: nobody would see it truncated.
        state.settled = None;
        let remembers = !state.previous.is_empty();
        drop(state);
        if remembers {
            self.lock().lingering.push(tracked);
        }
    }

    /// What was truncated and began with this head.
    pub(super) fn former(&self, head: u64) -> Vec<Candidate> {
        let table = self.lock();
        let alike = table
            .by_head
            .get(&head)
            .into_iter()
            .flatten()
            .filter_map(Weak::upgrade);
        let previous = |tracked: Arc<Tracked>| {
            let state = tracked.state();
            let former = state
                .previous
                .iter()
                .filter(|previous| key(&previous.id) == head);
            let candidate = |previous: &Previous| {
                let settled = |mark: &&Mark| mark.offset <= previous.settled;
                Candidate {
                    offset: previous.settled,
                    mark: previous.marks.iter().rev().find(settled).copied(),
                }
            };
            former.map(candidate).collect::<Vec<_>>()
        };
        alike.flat_map(previous).collect()
    }

    /// Forgets files that have no reader any more.
    pub(super) fn tidy(&self) {
        let mut table = self.lock();
        table.lingering.retain(|tracked| {
            let state = tracked.state();
            let last = state.previous.back();
            last.is_some_and(|previous| previous.noticed.elapsed() < COPY_AGE_MAX)
        });
        table.by_head.retain(|head, alike| {
            alike.retain(|other| {
                other
                    .upgrade()
                    .is_some_and(|other| other.state().began_as(*head))
            });
            !alike.is_empty()
        });
    }

    /// Holds a new file of `len` bytes against the others.
    pub(super) fn likeness(
        &self,
        new: &Tracked,
        file: &fs::File,
        len: u64,
    ) -> io::Result<Likeness> {
        let head = key(&file_id(new.inode, 0, &read_start(file)?));
        let alike: Vec<_> = {
            let table = self.lock();
            table
                .by_head
                .get(&head)
                .into_iter()
                .flatten()
                .filter_map(Weak::upgrade)
                .collect()
        };
        let mut likeness = Likeness::Own;
        for other in alike.iter().filter(|other| other.inode != new.inode) {
            let (previous, id, marks, path) = {
                let state = other.state();
                let id = state.settled.map(|(id, _)| id);
                (
                    state.previous.clone(),
                    id,
                    Vec::from(state.marks.clone()),
                    state.path.clone(),
                )
            };
            for previous in previous.iter().filter(|previous| key(&previous.id) == head) {
                let copied = match previous.marks.is_empty() {
                    // Truncated while we did not run: the name has to tell.
                    true => is_suffixed(&new.state().path, &path),
                    false => fits(file, len, &previous.marks)?,
                };
                if copied && previous.noticed.elapsed() < COPY_AGE_MAX {
                    return Ok(Likeness::CopyUpTo(previous.settled.min(len)));
                }
            }
            // While it is not truncated, or we have not noticed.
            if id.is_some_and(|id| key(&id) == head)
                && (fits(file, len, &marks)? || begins_alike(file, len, &path, other.inode)?)
            {
                likeness = Likeness::Perhaps;
            }
        }
        Ok(likeness)
    }
}

/// Whether the file has the same bytes before the last mark that lies within it.
fn fits(file: &fs::File, len: u64, marks: &[Mark]) -> io::Result<bool> {
    // That both begin with the same line says too little.
    match marks
        .iter()
        .rev()
        .find(|mark| (1..=len).contains(&mark.offset))
    {
        Some(mark) => Ok(Mark::read(file, mark.offset)? == Some(*mark)),
        None => Ok(false),
    }
}

/// Whether a new file of `len` bytes ends as the one at `path` does there, or that one is shorter by now: then it is being
/// truncated.
fn begins_alike(new: &fs::File, len: u64, path: &Path, inode: Inode) -> io::Result<bool> {
    let Ok(other) = fs::File::open(path) else {
        return Ok(false);
    };
    if Stat::of(&other)?.inode != inode {
        return Ok(false);
    }
    let there = Mark::read(&other, len)?;
    Ok(there.is_none() || there == Mark::read(new, len)?)
}

/// Whether the name of `path` is that of `of` with something behind it.
fn is_suffixed(path: &Path, of: &Path) -> bool {
    match (path.file_name(), of.file_name()) {
        (Some(name), Some(of)) => name.as_encoded_bytes().starts_with(of.as_encoded_bytes()),
        _ => false,
    }
}
