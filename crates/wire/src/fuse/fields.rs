//! Reads numbers and names from a request, with bounds checks.

/// The unread part of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, behind) = self.0.split_first_chunk()?;
        self.0 = behind;
        Some(*first)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_ne_bytes)
    }

    pub(super) fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    /// A name, up to its terminating NUL.
    pub(super) fn name(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(0, self.0)?;
        let name = self.0.get(..end)?;
        self.0 = self.0.get(end + 1..)?;
        Some(name)
    }
}
