//! How a copy of a file is recognised.
//!
//! logrotate's `copytruncate` copies a file and then truncates it. Where the copy matches `paths` too, it holds what was
//! read already, under a new inode. A new file that begins as another does is therefore held against the marks of that
//! other: where they fit, it is read from where the other was left, as soon as the other has been truncated. What was
//! truncated lately stands in the positions too, with its last marks: its copy may be found by the next run only.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use millstream_record::FileId;

use super::{
    gzip::Candidate,
    identity::{Inode, Mark, Stat, file_id, read_start},
    positions::Truncated,
    tracked::{Previous, Tracked},
};

/// A file that was truncated longer ago than this has no copy that is still to be found.
const COPY_AGE_MAX: Duration = Duration::from_secs(60);
/// So many marks of it are stored: by their spacing they reach down to two thirds of it, and a copy is nearly as long.
const STORED_MARKS_MAX: usize = 8;

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

    /// What was truncated lately, to be stored. What an earlier run left without a mark is not: its name alone has to tell.
    pub(super) fn truncated(&self) -> Vec<Truncated> {
        let table = self.lock();
        let mut truncated = Vec::new();
        for (head, alike) in &table.by_head {
            for tracked in alike.iter().filter_map(Weak::upgrade) {
                let state = tracked.state();
                let path = state.path.to_string_lossy();
                let recent = |previous: &&Previous| {
                    key(&previous.id) == *head && previous.noticed.elapsed() < COPY_AGE_MAX
                };
                for previous in state.previous.iter().filter(recent) {
                    let skipped = previous.marks.len().saturating_sub(STORED_MARKS_MAX);
                    truncated.extend(previous.marks[skipped..].iter().map(|mark| Truncated {
                        id: previous.id,
                        mark: *mark,
                        end: previous.settled,
                        path: path.clone().into_owned(),
                    }));
                }
            }
        }
        truncated
    }

    /// Remembers what an earlier run saw truncated, as if it were now: the time in which nobody looked does not count.
    pub(super) fn restore(&self, truncated: Vec<Truncated>) {
        for content in truncated.chunk_by(|one, next| one.id == next.id) {
            let Truncated { id, end, path, .. } = &content[0];
            let inode = Inode {
                device: id.device,
                number: id.inode,
                birth: id.birth,
            };
            let previous = Previous {
                id: *id,
                settled: *end,
                marks: content.iter().map(|one| one.mark).collect(),
                noticed: Instant::now(),
            };
            let tracked = Tracked::new(inode, PathBuf::from(path), Some(previous));
            self.put(id, &tracked);
            self.linger(tracked);
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
        let mut by_name = None;
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
                let copied = Likeness::CopyUpTo(previous.settled.min(len));
                if previous.noticed.elapsed() >= COPY_AGE_MAX {
                    continue;
                }
                if fits(file, len, &previous.marks)? {
                    return Ok(copied);
                }
                // Truncated before a mark of it was stored: only the name shows it.
                if previous.marks.is_empty() && is_suffixed(&new.state().path, &path) {
                    by_name = Some(copied);
                }
            }
            // While it is not truncated, or we have not noticed.
            if id.is_some_and(|id| key(&id) == head)
                && (fits(file, len, &marks)? || begins_alike(file, len, &path, other.inode)?)
            {
                likeness = Likeness::Perhaps;
            }
        }
        Ok(by_name.unwrap_or(likeness))
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
