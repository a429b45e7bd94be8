//! Recognises copies of files within the mount. `logrotate` makes such copies with its options `copytruncate` and `compress`.
//!
//! The bytes of a copy were shipped when they were written to the original. A file counts as a copy while all its bytes equal
//! those of an original at the same offsets. Its name must also be the name of the original with a suffix (`app.log.1` for
//! `app.log`), and the writing process must have read the original recently. So two unrelated logs that begin with the same bytes
//! do not count as copies. The bytes of a compressed copy differ from those of its original. So of a compressed copy, only the
//! first bytes are checked: they show that the file is compressed.

use std::{collections::VecDeque, os::unix::ffi::OsStrExt};

use rustix::io::Errno;

use super::node::{CopyState, Nodes};
use crate::compressed::is_compressed;

/// The number of recent reads that are remembered. Several programs may copy at a time.
const READS_MAX: usize = 16;

/// The kind of a write to the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) enum WriteKind {
    /// Data to ship.
    New,
    /// The first bytes of a copy.
    CopyBegins,
    /// A later part of a copy.
    Copy,
}

/// The recent reads: for each one, the file and the thread that has read it. The latest read comes first.
#[derive(Debug, Default)]
pub(super) struct RecentReads(VecDeque<(u64, u32)>);

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

    /// Decides whether a write is a part of a copy, before the write is applied. Returns the new state of the file and the kind of
    /// the write. `is_writer` returns whether a thread belongs to the writing process.
    pub(super) fn judge(
        &self,
        nodes: &Nodes,
        number: u64,
        offset: u64,
        data: &[u8],
        is_writer: impl Fn(u32) -> bool,
    ) -> Result<(CopyState, WriteKind), Errno> {
        let file = nodes.file(number)?;
        let size = file.content.size();
        let is_first = size == 0 && offset == 0;
        let state = match file.copy {
            CopyState::Unknown if is_first && !data.is_empty() => {
                self.first(nodes, number, data, is_writer)
            }
            CopyState::Of(other) if size == offset && holds(nodes, other, offset, data) => {
                CopyState::Of(other)
            }
            CopyState::Compressed => CopyState::Compressed,
            _ => CopyState::No,
        };
        let kind = match state {
            CopyState::Unknown | CopyState::No => WriteKind::New,
            CopyState::Of(_) | CopyState::Compressed if is_first => WriteKind::CopyBegins,
            CopyState::Of(_) | CopyState::Compressed => WriteKind::Copy,
        };
        Ok((state, kind))
    }

    /// The state of a file whose first write is `data`.
    fn first(
        &self,
        nodes: &Nodes,
        number: u64,
        data: &[u8],
        is_writer: impl Fn(u32) -> bool,
    ) -> CopyState {
        let reads = self.0.iter();
        let mut originals = reads
            .filter(|(other, thread)| extends(nodes, number, *other) && is_writer(*thread))
            .map(|(other, _)| *other);
        if is_compressed(data) {
            return match originals.next() {
                Some(_) => CopyState::Compressed,
                None => CopyState::No,
            };
        }
        let is_original = |other: &u64| holds(nodes, *other, 0, data);
        originals
            .find(is_original)
            .map_or(CopyState::No, CopyState::Of)
    }
}

/// Whether the name of a file is the name of `other` with a suffix.
fn extends(nodes: &Nodes, number: u64, other: u64) -> bool {
    let name = |number| Some(nodes.get(number).ok()?.place.as_ref()?.1.as_bytes());
    let suffix = name(number).zip(name(other));
    let suffix = suffix.and_then(|(name, other)| name.strip_prefix(other));
    number != other
        && suffix.is_some_and(|suffix| {
            suffix
                .first()
                .is_some_and(|byte| !byte.is_ascii_alphanumeric())
        })
}

/// Whether a read of the file at `offset` returns exactly these bytes.
fn holds(nodes: &Nodes, number: u64, offset: u64, data: &[u8]) -> bool {
    nodes
        .file(number)
        .is_ok_and(|file| file.content.holds(offset, data))
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
