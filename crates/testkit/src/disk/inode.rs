//! The bytes of one file: what programs see, what is durable, and the versions in between that a power cut may leave.

use std::collections::BTreeMap;

use crate::Random;

/// The unit in which a disk writes.
const SECTOR: usize = 512;
/// The most versions of one pending sector to remember; more would show nothing new.
const VERSIONS_MAX: usize = 4;

#[derive(Clone, Default)]
pub(super) struct Inode {
    /// The bytes that programs see.
    current: Vec<u8>,
    /// The bytes that are certain to survive a power cut.
    durable: Vec<u8>,
    /// By sector: its versions since the last sync, the newest last.
    pending: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Bytes that `allocate` has reserved.
    allocated: u64,
    /// The handle that holds the lock.
    pub(super) locked_by: Option<u64>,
}

impl Inode {
    pub(super) fn len(&self) -> usize {
        self.current.len()
    }

    /// The bytes that it takes of the capacity of the disk.
    pub(super) fn room(&self) -> u64 {
        self.allocated.max(self.current.len() as u64)
    }

    pub(super) fn read(&self, buffer: &mut Vec<u8>, bytes: usize, offset: usize) -> usize {
        let start = offset.min(self.current.len());
        let end = offset.saturating_add(bytes).min(self.current.len());
        buffer.extend_from_slice(&self.current[start..end]);
        end - start
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.current.len() < end {
            self.current.resize(end, 0);
        }
        self.current[offset..end].copy_from_slice(bytes);
        self.note(offset, end);
    }

    pub(super) fn resize(&mut self, len: usize) {
        let old = self.current.len();
        self.current.resize(len, 0);
        self.allocated = self.allocated.min(len as u64);
        self.note(old.min(len), old.max(len));
    }

    pub(super) fn allocate(&mut self, bytes: u64) {
        self.allocated = self.allocated.max(bytes);
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if self.current.len() < len {
            self.current.resize(len, 0);
        }
    }

    /// Adds the current contents of the sectors from `start` to `end` to the pending versions.
    fn note(&mut self, start: usize, end: usize) {
        for sector in start / SECTOR..end.div_ceil(SECTOR) {
            let from = (sector * SECTOR).min(self.current.len());
            let to = ((sector + 1) * SECTOR).min(self.current.len());
            let versions = self.pending.entry(sector).or_default();
            if versions.len() == VERSIONS_MAX {
                versions.remove(1);
            }
            versions.push(self.current[from..to].to_vec());
        }
    }

    /// A sync that succeeds. Sectors that a failed sync lost count as clean and are not written again.
    pub(super) fn sync(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for (sector, versions) in std::mem::take(&mut self.pending) {
            self.keep(sector, versions.last().map_or(&[], Vec::as_slice));
        }
    }

    /// A sync that fails: some sectors reach the disk, the others never will, and all count as clean.
    pub(super) fn sync_in_part(&mut self, random: &mut Random) {
        self.durable.resize(self.current.len(), 0);
        for (sector, versions) in std::mem::take(&mut self.pending) {
            if random.chance(1, 2) {
                self.keep(sector, versions.last().map_or(&[], Vec::as_slice));
            }
        }
    }

    /// A power cut: a random part of what is pending survives, each sector with odds of `part` in 4.
    pub(super) fn cut_power(&mut self, part: u64, random: &mut Random) {
        if self.durable.len() != self.current.len() && random.chance(part, 4) {
            self.durable.resize(self.current.len(), 0);
        }
        for (sector, versions) in std::mem::take(&mut self.pending) {
            if random.chance(part, 4) {
                let version = random.pick(&versions).map_or(&[][..], Vec::as_slice);
                self.keep(sector, version);
            }
        }
        self.current.clone_from(&self.durable);
        self.allocated = self.allocated.min(self.current.len() as u64);
        self.locked_by = None;
    }

    /// Makes one sector durable, up to the durable length.
    fn keep(&mut self, sector: usize, bytes: &[u8]) {
        let from = (sector * SECTOR).min(self.durable.len());
        let to = (from + bytes.len()).min(self.durable.len());
        self.durable[from..to].copy_from_slice(&bytes[..to - from]);
    }

    pub(super) fn damage(&mut self, offset: usize) -> bool {
        for bytes in [&mut self.current, &mut self.durable] {
            match bytes.get_mut(offset) {
                Some(byte) => *byte ^= 0x10,
                None => return false,
            }
        }
        true
    }
}
