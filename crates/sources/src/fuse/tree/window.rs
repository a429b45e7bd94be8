//! The last bytes of a file, to be read again by `tail -f` and its like.

use super::contents::SIZE_MAX;

/// Bytes of a file from `start` on, without a gap, up to the last that was written or a little before.
#[derive(Debug)]
pub(super) struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// Nothing yet; what stands before `start` is not there to be read.
    pub(super) fn starting_at(start: u64) -> Self {
        Self {
            start,
            bytes: Vec::new(),
        }
    }

    /// How many bytes it holds.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Takes in what is written; keeps at least the last `keep` bytes and at most twice as many.
    pub(super) fn write(&mut self, offset: u64, data: &[u8], keep: usize) {
        let end = offset.saturating_add(data.len() as u64);
        if end > SIZE_MAX || data.is_empty() {
            return;
        }
        // Of a large write the last bytes are enough.
        let skip = data.len().saturating_sub(keep);
        let (offset, data) = (offset + skip as u64, &data[skip..]);
        let gap = offset.checked_sub(self.end());
        match gap.map(usize::try_from) {
            Some(Ok(gap)) if gap + data.len() <= keep => {
                self.bytes.resize(self.bytes.len() + gap, 0);
                self.bytes.extend_from_slice(data);
            }
            // Farther than a window behind the last bytes: those are history.
            Some(_) => {
                self.bytes.clear();
                self.start = offset;
                self.bytes.extend_from_slice(data);
            }
            None => self.write_over(offset, data),
        }
        if self.bytes.len() > keep.saturating_mul(2) {
            let old = self.bytes.len() - keep;
            self.bytes.drain(..old);
            self.start += old as u64;
        }
    }

    /// Writes from inside the window on, or from before it.
    fn write_over(&mut self, offset: u64, data: &[u8]) {
        let before = self.start.saturating_sub(offset);
        let Some(data) = usize::try_from(before)
            .ok()
            .and_then(|before| data.get(before..))
        else {
            return;
        };
        let at = usize::try_from(offset.max(self.start) - self.start).unwrap_or(usize::MAX);
        let inside = data.len().min(self.bytes.len().saturating_sub(at));
        if let Some(target) = self.bytes.get_mut(at..at + inside) {
            target.copy_from_slice(&data[..inside]);
            self.bytes.extend_from_slice(&data[inside..]);
        }
    }

    /// The file is now only `size` bytes long.
    pub(super) fn truncate(&mut self, size: u64) {
        match size.checked_sub(self.start) {
            Some(left) => self
                .bytes
                .truncate(usize::try_from(left).unwrap_or(usize::MAX)),
            None => *self = Self::starting_at(size),
        }
    }

    /// The bytes from `from` to `to`, which is not behind the end of the file; None if the first are no longer here.
    pub(super) fn read(&self, from: u64, to: u64) -> Option<Vec<u8>> {
        if from >= to {
            return Some(Vec::new());
        }
        let at = usize::try_from(from.checked_sub(self.start)?).ok()?;
        let wanted = usize::try_from(to - from).ok()?;
        let there = self.bytes.get(at..).unwrap_or_default();
        let mut read = there[..there.len().min(wanted)].to_vec();
        // A file that was made longer than what was written has zeros there.
        read.resize(wanted, 0);
        Some(read)
    }
}
