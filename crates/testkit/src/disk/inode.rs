//! The bytes of one file: those that programs see, those that are durable, and the versions that a power cut may leave.

use std::collections::BTreeMap;

use crate::Random;

/// The unit in which a disk writes.
const SECTOR: usize = 512;
/// The maximum number of versions of one pending sector that are stored. More versions would reveal no further bugs.
const VERSIONS_MAX: usize = 4;

#[derive(Clone, Default)]
pub(super) struct Inode {
    /// The bytes that programs see, including those only in the page cache.
    current: Vec<u8>,
    /// The bytes that are certain to survive a power cut.
    durable: Vec<u8>,
    /// For each sector: its versions since the last sync, the newest last.
    pending: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Bytes that `allocate` has reserved.
    allocated: u64,
    /// The handle that holds the file's lock.
    pub(super) locked_by: Option<u64>,
}

impl Inode {
    pub(super) fn len(&self) -> usize {
        self.current.len()
    }

    /// The bytes of the disk's capacity that the file takes.
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

    /// Makes all pending sectors durable. Sectors that an earlier, failed sync lost are no longer pending, so they stay lost.
    pub(super) fn sync(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for (sector, versions) in std::mem::take(&mut self.pending) {
            self.keep(sector, versions.last().map_or(&[], Vec::as_slice));
        }
    }

    /// Makes some pending sectors durable and loses the others, as a failed sync does. No sector is pending afterwards.
    pub(super) fn sync_in_part(&mut self, random: &mut Random) {
        self.durable.resize(self.current.len(), 0);
        for (sector, versions) in std::mem::take(&mut self.pending) {
            if random.chance(1, 2) {
                self.keep(sector, versions.last().map_or(&[], Vec::as_slice));
            }
        }
    }

    /// Keeps a random part of the pending sectors, each with a probability of `part` / 4, as a power cut does.
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
