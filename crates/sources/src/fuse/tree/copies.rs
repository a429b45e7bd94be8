//! Copies of files within the mount, as `logrotate` makes them with `copytruncate` and `compress`.
//!
//! What such a copy holds was shipped when it was written to the original. A file is a copy as long as all of its bytes are those that
//! could be read at the same place of another, whose name it extends by a suffix (`app.log.1` of `app.log`) and which the process that
//! writes has read lately: a program that begins two logs alike reads neither. A compressed copy holds other bytes: its first ones tell.

use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

use super::{Kind, Tree};
use crate::compressed::is_compressed;

/// So many files and who read them are remembered: several programs may copy at a time.
const READ_LATELY_MAX: usize = 16;

/// Whether what stands in a file is a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyState {
    /// Nothing was written yet.
    Open,
    /// All of it stands in this file, too.
    Of(u64),
    /// It is another file, compressed.
    Compressed,
    /// It is none.
    No,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Wrote {
    /// Something to ship.
    New,
    /// The first bytes of a copy.
    CopyBegins,
    /// More of a copy.
    Copy,
}

impl Tree {
    /// A thread has read from a file.
    pub(in crate::fuse) fn was_read(&mut self, number: u64, thread: u32) {
        let read = (number, thread);
        if self.read_lately.front() != Some(&read) {
            self.read_lately.retain(|other| *other != read);
            self.read_lately.truncate(READ_LATELY_MAX - 1);
            self.read_lately.push_front(read);
        }
    }

    /// What is being written to a file, before it is. `is_writer` says whether a thread is of the process that writes.
    pub(super) fn compare(
        &mut self,
        number: u64,
        offset: u64,
        data: &[u8],
        is_writer: impl Fn(u32) -> bool,
    ) -> Result<Wrote, Errno> {
        let Kind::File { size, copy, .. } = &self.get(number)?.kind else {
            return Err(Errno::BADF);
        };
        let is_first = *size == 0 && offset == 0;
        let follows = *size == offset;
        let now = match *copy {
            CopyState::Open if is_first && !data.is_empty() => self.begins(number, data, is_writer),
            CopyState::Of(other) if follows && self.holds(other, offset, data) => {
                CopyState::Of(other)
            }
            CopyState::Compressed => CopyState::Compressed,
            _ => CopyState::No,
        };
        if let Kind::File { copy, .. } = &mut self.get_mut(number)?.kind {
            *copy = now;
        }
        Ok(match now {
            CopyState::Open | CopyState::No => Wrote::New,
            CopyState::Of(_) | CopyState::Compressed if is_first => Wrote::CopyBegins,
            CopyState::Of(_) | CopyState::Compressed => Wrote::Copy,
        })
    }

    /// What a file is whose first bytes these are.
    fn begins(&self, number: u64, data: &[u8], is_writer: impl Fn(u32) -> bool) -> CopyState {
        let originals = self.read_lately.iter();
        let mut originals = originals
            .filter(|(other, thread)| self.extends(number, *other) && is_writer(*thread))
            .map(|(other, _)| *other);
        if is_compressed(data) {
            return match originals.next() {
                Some(_) => CopyState::Compressed,
                None => CopyState::No,
            };
        }
        let is_original = |other: &u64| self.holds(*other, 0, data);
        originals
            .find(is_original)
            .map_or(CopyState::No, CopyState::Of)
    }

    /// Whether the name of a file is that of `other` with a suffix.
    fn extends(&self, number: u64, other: u64) -> bool {
        let name = |number| Some(self.get(number).ok()?.place.as_ref()?.1.as_bytes());
        let suffix = name(number).zip(name(other));
        let suffix = suffix.and_then(|(name, other)| name.strip_prefix(other));
        number != other
            && suffix.is_some_and(|suffix| {
                suffix
                    .first()
                    .is_some_and(|byte| !byte.is_ascii_alphanumeric())
            })
    }

    /// Whether these bytes can be read from a file.
    fn holds(&self, number: u64, offset: u64, data: &[u8]) -> bool {
        match self.get(number).map(|node| &node.kind) {
            Ok(Kind::File { size, window, .. }) => {
                let end = offset.saturating_add(data.len() as u64);
                end <= *size && window.read(offset, end).is_some_and(|there| there == data)
            }
            _ => false,
        }
    }
}
