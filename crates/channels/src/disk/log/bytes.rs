//! Reading little-endian fields from bytes of a disk. No content can make it panic.

/// A reader of fields. Every method returns `None` if the bytes end too early.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `bytes` bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (first, after) = self.0.split_at_checked(bytes)?;
        self.0 = after;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, after) = self.0.split_first_chunk()?;
        self.0 = after;
        Some(*first)
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

/// Appends the length of the name (4), the length of the value (4), the name and the value. Both are far below 4 GiB: larger
/// groups are refused before (`Error::TooLarge`).
pub(super) fn put_text(out: &mut Vec<u8>, name: &str, value: &str) {
    for text in [name, value] {
        let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&bytes.to_le_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value.as_bytes());
}
