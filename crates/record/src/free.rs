//! Free buffers that wait to be used again.
//!
//! Memory touched for the first time is the largest cost there is, so the buffer that was returned last is handed out first: it
//! is the one that is still in the cache.

/// The smallest buffer that is handed out and kept; smaller wishes are rounded up, so that buffers fit the next wish.
pub(crate) const BUFFER_BYTES_MIN: usize = 64 << 10;
/// Buffers of the hot paths are no larger than this when they are kept for reuse: a queue is 2-4 MiB.
pub(crate) const KEEP_BYTES_MAX: usize = 4 << 20;
/// How many free buffers are kept.
const BUFFERS_MAX: usize = 64;

/// Free buffers, in the order in which they were returned.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// A buffer of the list, until the list changes.
#[derive(Debug)]
pub(crate) struct Fitting {
    place: usize,
    pub(crate) capacity: usize,
}

impl FreeList {
    /// Bytes of all free buffers, by capacity.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The last returned buffer that has room for `bytes` and is not more than four times as large.
    pub(crate) fn find(&self, bytes: usize) -> Option<Fitting> {
        let fits = |free: &Vec<u8>| free.capacity() >= bytes && free.capacity() / 4 <= bytes;
        let place = self.buffers.iter().rposition(fits)?;
        let capacity = self.buffers.get(place)?.capacity();
        Some(Fitting { place, capacity })
    }

    /// Takes a buffer out of the list.
    pub(crate) fn take(&mut self, fitting: Fitting) -> Vec<u8> {
        self.bytes -= fitting.capacity;
        self.buffers.remove(fitting.place)
    }

    /// Keeps a buffer if its size is useful and the list is not full; else drops it.
    pub(crate) fn keep(&mut self, mut buffer: Vec<u8>) {
        let size = buffer.capacity();
        if (BUFFER_BYTES_MIN..=KEEP_BYTES_MAX).contains(&size) && self.buffers.len() < BUFFERS_MAX {
            buffer.clear();
            self.bytes += size;
            self.buffers.push(buffer);
        }
    }

    /// Drops the buffers that were returned first until at most `bytes_max` bytes are left.
    pub(crate) fn shrink(&mut self, bytes_max: usize) {
        while !self.buffers.is_empty() && self.bytes > bytes_max {
            self.bytes -= self.buffers.remove(0).capacity();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_returned_buffer_that_fits_is_used_first() {
        let mut free = FreeList::default();
        for kib in [64, 128, 1024, 256] {
            free.keep(Vec::with_capacity(kib << 10));
        }
        // More than four times as large does not fit.
        let fitting = free.find(100 << 10).unwrap();
        assert_eq!(free.take(fitting).capacity(), 256 << 10);
        let fitting = free.find(100 << 10).unwrap();
        assert_eq!(free.take(fitting).capacity(), 128 << 10);
        assert!(free.find(100 << 10).is_none());
        assert_eq!(free.bytes(), 1088 << 10);
        free.shrink(1 << 20);
        assert_eq!(free.bytes(), 1 << 20);
    }

    #[test]
    fn buffers_of_other_sizes_and_too_many_are_dropped() {
        let mut free = FreeList::default();
        free.keep(Vec::with_capacity(BUFFER_BYTES_MIN - 1));
        free.keep(Vec::with_capacity(KEEP_BYTES_MAX + 1));
        assert_eq!(free.bytes(), 0);
        for _ in 0..=BUFFERS_MAX {
            free.keep(Vec::with_capacity(BUFFER_BYTES_MIN));
        }
        assert_eq!(free.bytes(), BUFFERS_MAX * BUFFER_BYTES_MIN);
    }
}
