//! Free buffers for reuse.
//!
//! The buffer that was returned last is reused first, because it is still in the CPU's cache.

/// The smallest buffer. Smaller requests are rounded up, so that buffers fit the next request.
pub(crate) const BUFFER_BYTES_MIN: usize = 64 << 10;
/// The largest buffer that is kept for reuse. Buffers of the hot paths are no larger: a queue holds 2 to 4 MiB.
pub(crate) const KEEP_BYTES_MAX: usize = 4 << 20;
/// The maximum number of free buffers that are kept.
const BUFFERS_MAX: usize = 64;

/// Free buffers, in the order in which they were returned.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// A buffer of the list; valid until the list changes.
#[derive(Debug)]
pub(crate) struct Fitting {
    place: usize,
    pub(crate) capacity: usize,
}

impl FreeList {
    /// The capacity of all free buffers.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Finds a buffer with room for `bytes` that is at most four times as large. If there are several, finds the one
    /// that was returned last.
    pub(crate) fn find(&self, bytes: usize) -> Option<Fitting> {
        let fits = |free: &Vec<u8>| free.capacity() >= bytes && free.capacity() / 4 <= bytes;
        let place = self.buffers.iter().rposition(fits)?;
        let capacity = self.buffers.get(place)?.capacity();
        Some(Fitting { place, capacity })
    }

    /// Removes a buffer from the list.
    pub(crate) fn take(&mut self, fitting: Fitting) -> Vec<u8> {
        self.bytes -= fitting.capacity;
        self.buffers.remove(fitting.place)
    }

    /// Keeps a buffer if its size is within the two limits and the list is not full; otherwise drops it.
    pub(crate) fn keep(&mut self, mut buffer: Vec<u8>) {
        let size = buffer.capacity();
        if (BUFFER_BYTES_MIN..=KEEP_BYTES_MAX).contains(&size) && self.buffers.len() < BUFFERS_MAX {
            buffer.clear();
            self.bytes += size;
            self.buffers.push(buffer);
        }
    }

    /// Drops the oldest buffers until at most `bytes_max` bytes are left.
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
    fn the_last_returned_buffer_that_fits_is_reused_first() {
        let mut free = FreeList::default();
        for kib in [64, 128, 1024, 256] {
            free.keep(Vec::with_capacity(kib << 10));
        }
        // A buffer more than four times as large does not fit.
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
    fn buffers_of_other_sizes_and_beyond_the_limit_are_dropped() {
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
