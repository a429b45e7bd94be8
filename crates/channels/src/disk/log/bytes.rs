//! Reading little-endian fields out of bytes that a disk gave back: nothing in them can make it panic.

/// A reader of fields; every method returns `None` where the bytes end too early.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(super) fn id(&mut self) -> Option<[u8; 16]> {
        self.array()
    }

    /// A name and a value as [`put_text`] wrote them.
    pub(super) fn text(&mut self) -> Option<(&'a str, &'a str)> {
        let (name, value) = (self.u32()?, self.u32()?);
        let name = std::str::from_utf8(self.take(usize::try_from(name).ok()?)?).ok()?;
        let value = std::str::from_utf8(self.take(usize::try_from(value).ok()?)?).ok()?;
        Some((name, value))
    }
}

/// Appends bytes of name (4), bytes of value (4), name, value. Both are far below 4 GiB (`Error::TooLarge` before).
pub(super) fn put_text(out: &mut Vec<u8>, name: &str, value: &str) {
    for text in [name, value] {
        let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&bytes.to_le_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value.as_bytes());
}
