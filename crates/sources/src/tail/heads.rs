//! Recognizes copies of files.
//!
//! logrotate's `copytruncate` copies a file and then truncates it. If `paths` matches the copy, too, the source finds, under a new
//! inode, lines that it has already read. A new file may be a copy of a known file if both have the same head (a checksum of the
//! first line). The new file is then compared with the marks of the known file (checksums of the bytes before certain offsets). If
//! the marks fit, and the new name can come from the name of the known file (`names.rs`), the source waits for a limited time until
//! the known file is truncated. Reading of the copy then begins where the
//! reader of the known file stopped. Recently truncated contents are stored with the positions, including their last marks,
//! because the next run may be the first to find the copy.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use millstream_record::FileId;

use super::{
    identity::{Candidate, Inode, Mark, Stat, file_id, head_key, read_start},
    names::is_rotated,
    positions::Truncated,
    tracked::{Previous, Tracked},
};

/// The time for which a truncated content is remembered. The scans find all copies of it within this time.
const COPY_AGE_MAX: Duration = Duration::from_secs(60);
/// The number of marks of a truncated content that are stored. The spacing of the marks grows with the offset, so the first of
/// the stored marks lies at about two thirds of the length. This suffices, because a copy is nearly as long as its original.
const STORED_MARKS_MAX: usize = 8;

/// The files that have a reader, by head. Clones share the table.
#[derive(Clone, Debug, Default)]
pub(super) struct Heads(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    by_head: HashMap<u64, Vec<Weak<Tracked>>>,
    /// Files without a reader that are kept here, because copies of their former contents may still appear.
    lingering: Vec<Arc<Tracked>>,
}

/// The result of comparing a new file with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Likeness {
    /// No other known file has the same content.
    Own,
    /// The content equals the first part of a longer file that may be truncated soon: the file may be a copy in progress.
    Part,
    /// The content equals that of a file that may be truncated soon, or whose truncation was not noticed yet.
    Perhaps,
    /// A copy of the file at this path, which was truncated. Reading begins at this offset.
    CopyUpTo(u64, PathBuf),
}

impl Heads {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file under its head.
    pub(super) fn put(&self, id: &FileId, tracked: &Arc<Tracked>) {
        let mut table = self.lock();
        let alike = table.by_head.entry(head_key(id)).or_default();
        alike.retain(|other| {
            other
                .upgrade()
                .is_some_and(|other| !Arc::ptr_eq(&other, tracked))
        });
        alike.push(Arc::downgrade(tracked));
    }

    /// Remembers the former contents of a file without a reader for as long as copies of them may appear.
    pub(super) fn linger(&self, tracked: Arc<Tracked>) {
        let mut state = tracked.state();
        // Copies of the current content are not recognized: without a reader, a truncation would not be noticed.
        state.settled = None;
        let remembers = !state.previous.is_empty();
        drop(state);
        if remembers {
            self.lock().lingering.push(tracked);
        }
    }

    /// The recently truncated contents, to be stored. Leaves out contents without marks, whose copies are recognized only by name.
    pub(super) fn truncated(&self) -> Vec<Truncated> {
        let table = self.lock();
        let mut truncated = Vec::new();
        for (head, alike) in &table.by_head {
            for tracked in alike.iter().filter_map(Weak::upgrade) {
                let state = tracked.state();
                let path = state.path.to_string_lossy();
                let recent = |previous: &&Previous| {
                    head_key(&previous.id) == *head && previous.noticed.elapsed() < COPY_AGE_MAX
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

    /// Remembers the truncations that an earlier run noticed. Their age starts at zero again, because no copy can be found while
    /// the source does not run.
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
                restored: true,
            };
            let tracked = Tracked::new(inode, PathBuf::from(path), Some(previous));
            self.put(id, &tracked);
            self.linger(tracked);
        }
    }

    /// Returns for each truncated content with this head the offset up to which the content was settled, and the last mark at or
    /// before this offset.
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
                .filter(|previous| head_key(&previous.id) == head);
            let candidate = |previous: &Previous| {
                let settled = |mark: &&Mark| mark.offset <= previous.settled;
                Candidate {
                    path: state.path.clone(),
                    offset: previous.settled,
                    mark: previous.marks.iter().rev().find(settled).copied(),
                }
            };
            former.map(candidate).collect::<Vec<_>>()
        };
        alike.flat_map(previous).collect()
    }

    /// Forgets files without a reader whose truncations are too old.
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

    /// Compares a new file of `len` bytes with the other files that have the same head.
    pub(super) fn likeness(
        &self,
        new: &Tracked,
        file: &fs::File,
        len: u64,
    ) -> io::Result<Likeness> {
        let head = head_key(&file_id(new.inode, 0, &read_start(file)?));
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
        let written = Stat::of(file)?.written_at();
        let new_path = new.state().path.clone();
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
            // Unrelated files may have the same content, such as the logs of two runs of a job.
            if !is_rotated(&new_path, &path) {
                continue;
            }
            for previous in previous
                .iter()
                .filter(|previous| head_key(&previous.id) == head)
            {
                if previous.noticed.elapsed() >= COPY_AGE_MAX {
                    continue;
                }
                let end = previous.settled.min(len);
                // A copy is complete when its original is truncated. A file that was written after that may only begin like a
                // copy, so only the part up to a mark that fits counts as copied.
                let is_older = written.is_some_and(|written| written < previous.noticed);
                match last_within(&previous.marks, len) {
                    Some(mark) if Mark::read(file, mark.offset)? == Some(mark) => {
                        let is_whole = is_older && !previous.restored;
                        let equal = if is_whole { end } else { end.min(mark.offset) };
                        return Ok(Likeness::CopyUpTo(equal, path));
                    }
                    Some(_) => {}
                    // The content was truncated before a mark was stored, so only the name can show that the new file is a copy.
                    None => {
                        if previous.marks.is_empty() && is_older {
                            by_name = Some(Likeness::CopyUpTo(end, path.clone()));
                        }
                    }
                }
            }
            // The other file is not truncated yet, or its reader has not noticed.
            if id.is_some_and(|id| head_key(&id) == head) {
                match compare(file, len, &marks, &path, other.inode)? {
                    Likeness::Own => {}
                    alike => likeness = alike,
                }
            }
        }
        Ok(by_name.unwrap_or(likeness))
    }
}

/// The last mark of `marks` within the first `len` bytes. Without such a mark, only the first lines are known to be equal, which
/// proves too little.
fn last_within(marks: &[Mark], len: u64) -> Option<Mark> {
    let mut within = marks.iter().rev().copied();
    within.find(|mark| (1..=len).contains(&mark.offset))
}

/// Compares a new file of `len` bytes with the file at `path`, whose reader has noticed no truncation. `marks` are the marks of
/// that reader.
fn compare(
    new: &fs::File,
    len: u64,
    marks: &[Mark],
    path: &Path,
    inode: Inode,
) -> io::Result<Likeness> {
    let Ok(other) = fs::File::open(path) else {
        return Ok(Likeness::Own);
    };
    if Stat::of(&other)?.inode != inode {
        return Ok(Likeness::Own);
    }
    let there = Mark::read(&other, len)?;
    if there.is_some() && there == Mark::read(new, len)? {
        let is_longer = Stat::of(&other)?.len > len;
        return Ok(if is_longer {
            Likeness::Part
        } else {
            Likeness::Perhaps
        });
    }
    // The other file is shorter than the new file, or differs from it. If the other file still holds everything that was read of
    // it, the new file is not its copy.
    let is_truncated = match marks.last() {
        Some(last) => Mark::read(&other, last.offset)? != Some(*last),
        None => false,
    };
    let fits = match last_within(marks, len) {
        Some(mark) => Mark::read(new, mark.offset)? == Some(mark),
        None => true,
    };
    Ok(if is_truncated && fits {
        Likeness::Perhaps
    } else {
        Likeness::Own
    })
}
