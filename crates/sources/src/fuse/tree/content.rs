//! The content of a file: its size, and the bytes written last, which `tail -f` and similar readers can read.

/// The largest size of a file in bytes. Offsets are signed.
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;

/// The size of a file, and a window of its last bytes.
#[derive(Debug, Default)]
pub(super) struct Content {
    size: u64,
    /// The offset at which the window begins.
    start: u64,
    /// The window: contiguous bytes, usually up to the last byte that was written.
    bytes: Vec<u8>,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The size of the window in bytes.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// Truncates or extends the file.
    pub(super) fn resize(&mut self, to: u64) {
        if to < self.size {
            match to.checked_sub(self.start) {
                Some(left) => self
                    .bytes
                    .truncate(usize::try_from(left).unwrap_or(usize::MAX)),
                None => self.restart_at(to),
            }
        }
        self.size = to;
    }

    /// Notes a write, which must end at or below [`SIZE_MAX`]. The window then holds at most twice `keep` bytes. It holds at least
    /// the last `keep` bytes, unless the file is shorter, was truncated, or has a gap there, or the window was dropped. If the write
    /// is `masked`, only its newlines can be read back.
    pub(super) fn write(&mut self, offset: u64, data: &[u8], masked: bool, keep: usize) {
        self.size = self.size.max(offset + data.len() as u64);
        if data.is_empty() {
            return;
        }
        // Only the end of a large write fits.
        let skip = data.len().saturating_sub(keep);
        let (offset, data) = (offset + skip as u64, &data[skip..]);
        if masked {
            self.put(offset, &mask(data), keep);
        } else {
            self.put(offset, data, keep);
        }
    }

    fn put(&mut self, offset: u64, data: &[u8], keep: usize) {
        let end = self.start + self.bytes.len() as u64;
        let gap = offset.checked_sub(end);
        match gap.map(usize::try_from) {
            Some(Ok(gap)) if gap + data.len() <= keep => {
                self.bytes.resize(self.bytes.len() + gap, 0);
                self.bytes.extend_from_slice(data);
            }
            // Gap and data together exceed `keep` bytes, so no byte before the gap has to stay. The window begins anew at the data.
            Some(_) => {
                self.start = offset;
                self.bytes.clear();
                self.bytes.extend_from_slice(data);
            }
            None => self.overwrite(offset, data),
        }
        if self.bytes.len() > keep.saturating_mul(2) {
            let old = self.bytes.len() - keep;
            self.bytes.drain(..old);
            self.start += old as u64;
        }
    }

    /// Overwrites bytes of the window. The write may begin before the window and may extend it.
    fn overwrite(&mut self, offset: u64, data: &[u8]) {
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

    /// Drops the window: the bytes written so far can no longer be read.
    pub(super) fn drop_window(&mut self) {
        self.restart_at(self.size);
    }

    fn restart_at(&mut self, start: u64) {
        self.start = start;
        // Frees the memory.
        self.bytes = Vec::new();
    }

    /// Up to `bytes` bytes from `offset` on. `None` if the first of them are no longer in the window.
    pub(super) fn read(&self, offset: u64, bytes: u64) -> Option<Vec<u8>> {
        let end = offset.saturating_add(bytes).min(self.size);
        if offset >= end {
            return Some(Vec::new());
        }
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let wanted = usize::try_from(end - offset).ok()?;
        let there = self.bytes.get(at..).unwrap_or_default();
        let mut read = there[..there.len().min(wanted)].to_vec();
        // A file that was extended without a write ends with zeros.
        read.resize(wanted, 0);
        Some(read)
    }

    /// Whether a read at `offset` returns exactly these bytes.
    pub(super) fn holds(&self, offset: u64, data: &[u8]) -> bool {
        let bytes = data.len() as u64;
        self.read(offset, bytes).is_some_and(|read| read == data)
    }
}

/// A copy of the bytes in which `*` replaces every byte but the newlines.
fn mask(data: &[u8]) -> Vec<u8> {
    let hide = |byte: &u8| if *byte == b'\n' { b'\n' } else { b'*' };
    data.iter().map(hide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_can_be_read_and_older_ones_cannot() {
        let mut content = Content::default();
        content.write(0, b"0123456789", false, 8);
        content.write(10, b"abcdef", false, 8);
        assert_eq!(content.size(), 16);
        assert_eq!(content.read(8, 100), Some(b"89abcdef".to_vec()));
        assert_eq!(content.read(0, 4), None);
        assert_eq!(content.read(16, 4), Some(Vec::new()));
        // A write across the start of the window, and a write after a gap.
        content.write(6, b"XYZ", false, 8);
        assert_eq!(content.read(8, 2), Some(b"Z9".to_vec()));
        content.write(18, b"gh", false, 8);
        assert_eq!(content.read(14, 9), Some(b"ef\0\0gh".to_vec()));
        assert!(content.held() <= 16);
        content.drop_window();
        assert_eq!((content.held(), content.read(18, 2)), (0, None));
        assert_eq!(content.size(), 20);
    }

    #[test]
    fn a_file_holds_bytes_only_if_all_of_them_can_be_read() {
        let mut content = Content::default();
        content.write(0, b"abc", false, 8);
        assert!(content.holds(0, b"abc") && content.holds(1, b"b"));
        assert!(!content.holds(0, b"abcd") && !content.holds(1, b"x"));
        content.write(3, b"d\n", true, 8);
        assert_eq!(content.read(0, 9), Some(b"abc*\n".to_vec()));
    }
}
