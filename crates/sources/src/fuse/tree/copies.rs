//! Recognises copies of files within the mount. `logrotate` makes such copies with its options `copytruncate` and `compress`.
//!
//! The bytes of a copy were shipped when they were written to the original. A file counts as a copy while all bytes that are
//! written to it equal those of an original at the same offsets. The copy may leave out zeros (a hole). Its name must also be the name
//! of the original, now or when it was made, with a suffix (`app.log.1` for `app.log`), and the writing process must have read the
//! original recently. So two unrelated logs that begin with the same bytes do not count as copies. The bytes of a compressed copy differ from those of its original. So of a compressed copy, only the
//! first bytes are checked: they show that the file is compressed. It may have any name.

use std::{collections::VecDeque, os::unix::ffi::OsStrExt, sync::Arc};

use rustix::io::Errno;

use super::node::{CopyState, Nodes};
use crate::{compressed::is_compressed, fuse::recent::Spill};

/// The number of recent reads that are remembered. Several programs may copy at a time.
const READS_MAX: usize = 16;

/// The first bytes of gzip. No text begins with them.
const GZIP: &[u8] = b"\x1f\x8b";

/// The kind of a write to the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) enum WriteKind {
    /// Data to ship.
    New,
    /// The first bytes of a copy.
    CopyBegins,
    /// A later part of a copy.
    Copy,
    /// Garbage with which `shred` overwrites a file.
    Shred,
    /// The first bytes of a compressed file that is no copy.
    CompressedBegins,
    /// A later part of such a file.
    Compressed,
}

impl WriteKind {
    /// The kind of a write after which the state of the file is `copy`. Before the write, it was `before`.
    pub(super) fn of(copy: CopyState, before: CopyState) -> Self {
        match copy {
            CopyState::Unknown | CopyState::No => Self::New,
            CopyState::Of(_) | CopyState::Compressed if before == CopyState::Unknown => {
                Self::CopyBegins
            }
            CopyState::Of(_) | CopyState::Compressed => Self::Copy,
            CopyState::NewCompressed if before == CopyState::Unknown => Self::CompressedBegins,
            CopyState::NewCompressed => Self::Compressed,
        }
    }
}

/// The recent reads: for each one, the file and the thread that has read it. The latest read comes first.
#[derive(Debug, Default)]
pub(super) struct RecentReads(VecDeque<(u64, u32)>);

/// The knowledge of the tree about a write: whether it may be a part of a copy.
#[derive(Clone, Debug)]
pub(in crate::fuse) enum Suspicion {
    /// The state of the file after the write is known.
    None(CopyState),
    /// The write begins a copy if one of these files has the same bytes.
    Begins(Vec<Original>),
    /// The write continues a copy if this file has the same bytes. Bytes that were dropped since they were read count as the same.
    Continues(Original),
}

/// A file that may be the original of a copy.
#[derive(Clone, Debug)]
pub(in crate::fuse) struct Original {
    number: u64,
    size: u64,
    /// `None` if nothing can be read back: all its bytes read as zeros.
    spill: Option<Arc<Spill>>,
}

impl Original {
    /// Whether a read of the file at `offset` returns exactly these bytes.
    fn holds(&self, offset: u64, data: &[u8], trust: bool) -> bool {
        match &self.spill {
            Some(spill) => spill.holds(self.size, offset, data, trust),
            None => {
                offset.saturating_add(data.len() as u64) <= self.size
                    && data.iter().all(|byte| *byte == 0)
            }
        }
    }
}

impl Suspicion {
    /// The state of the file after a write. Reads from the originals.
    pub(in crate::fuse) fn resolve(self, offset: u64, data: &[u8]) -> CopyState {
        let original = match self {
            Self::None(state) => return state,
            Self::Begins(originals) => originals
                .into_iter()
                .find(|original| original.holds(offset, data, false)),
            Self::Continues(original) => Some(original).filter(|of| of.holds(offset, data, true)),
        };
        original.map_or(CopyState::No, |original| CopyState::Of(original.number))
    }
}

impl RecentReads {
    /// Notes that a thread has read from a file.
    pub(super) fn note(&mut self, node: u64, thread: u32) {
        let read = (node, thread);
        if self.0.front() != Some(&read) {
            self.0.retain(|other| *other != read);
            self.0.truncate(READS_MAX - 1);
            self.0.push_front(read);
        }
    }

    /// Decides whether a write may be a part of a copy, before the write is applied. `is_writer` returns whether a thread belongs
    /// to the writing process.
    pub(super) fn judge(
        &self,
        nodes: &Nodes,
        number: u64,
        data: &[u8],
        is_writer: impl Fn(u32) -> bool,
    ) -> Result<Suspicion, Errno> {
        Ok(match nodes.file(number)?.copy {
            CopyState::Unknown if !data.is_empty() => self.first(nodes, number, data, is_writer),
            CopyState::Of(other) => {
                original(nodes, other).map_or(Suspicion::None(CopyState::No), Suspicion::Continues)
            }
            state => Suspicion::None(state),
        })
    }

    /// The suspicion of a file whose first write is `data`.
    fn first(
        &self,
        nodes: &Nodes,
        number: u64,
        data: &[u8],
        is_writer: impl Fn(u32) -> bool,
    ) -> Suspicion {
        let mut reads = self.0.iter().filter(|(_, thread)| is_writer(*thread));
        // Some programs write the first two bytes of gzip alone.
        if is_compressed(data) || data == GZIP {
            // Logback and Log4j2 give an archive another name than a suffix makes: `app.1.log.gz` of
            // `app.log`.
            let is_copy = reads.any(|(other, _)| *other != number);
            return Suspicion::None(match is_copy {
                true => CopyState::Compressed,
                false => CopyState::NewCompressed,
            });
        }
        let originals = reads.filter(|(other, _)| extends(nodes, number, *other));
        let originals = originals.filter_map(|(other, _)| original(nodes, *other));
        Suspicion::Begins(originals.collect())
    }
}

/// A file as the original of a copy. `None` if it is gone.
fn original(nodes: &Nodes, number: u64) -> Option<Original> {
    Some(Original {
        number,
        size: nodes.file(number).ok()?.size,
        spill: nodes.get(number).ok()?.spill.clone(),
    })
}

/// Whether the name of a file is the name of `other`, or the name that `other` was made with, and a suffix.
fn extends(nodes: &Nodes, number: u64, other: u64) -> bool {
    let name = |number| Some(nodes.get(number).ok()?.place.as_ref()?.1.as_bytes());
    let first_name = nodes
        .file(other)
        .ok()
        .map(|file| file.first_name.as_bytes());
    let extends = |of: &[u8]| {
        let suffix = name(number).and_then(|name| name.strip_prefix(of));
        let first = suffix.and_then(|suffix| suffix.first());
        first.is_some_and(|byte| !byte.is_ascii_alphanumeric())
    };
    number != other && [name(other), first_name].into_iter().flatten().any(extends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recent_read_is_remembered_once_and_old_ones_are_forgotten() {
        let mut reads = RecentReads::default();
        for node in 0..100 {
            reads.note(node, 1);
            reads.note(node, 1);
            reads.note(7, 2);
        }
        assert_eq!(reads.0.len(), READS_MAX);
        assert_eq!(
            reads.0.iter().take(2).collect::<Vec<_>>(),
            [&(7, 2), &(99, 1)]
        );
    }
}
