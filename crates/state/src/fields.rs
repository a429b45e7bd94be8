//! Reads little-endian fields from bytes that come from a disk. No content causes a panic.

/// The bytes that are not read yet. Every method returns `None`, and reads nothing, if too few bytes are left.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Starts at the beginning of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes that are not read yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The next `bytes` bytes.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (first, after) = self.0.split_at_checked(bytes)?;
        self.0 = after;
        Some(first)
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, after) = self.0.split_first_chunk()?;
        self.0 = after;
        Some(*first)
    }

    /// A byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// A number of two bytes.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number of four bytes.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A signed number of eight bytes.
    #[inline]
    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// A number of sixteen bytes.
    #[inline]
    pub fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_order_and_a_field_that_is_cut_off_is_none() {
        let mut fields = Fields::new(b"\x01\x02\x03\x04\x05\x06abc");
        assert_eq!(
            (fields.u16(), fields.u32()),
            (Some(0x0201), Some(0x0605_0403))
        );
        assert_eq!(fields.u64(), None);
        assert_eq!(
            fields.rest(),
            b"abc",
            "a field that is missing takes nothing"
        );
        assert_eq!(
            (fields.take(2), fields.u8()),
            (Some(&b"ab"[..]), Some(b'c'))
        );
        assert_eq!((fields.u8(), fields.take(0)), (None, Some(&b""[..])));
    }
}
