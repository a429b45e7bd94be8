//! The primitive types of Kafka's protocol: big-endian integers, and values preceded by their length. "Flexible" versions of
//! requests use compact types, whose length is a variable-length integer, and tagged fields.
//!
//! Source: the protocol guide of Apache Kafka, "Protocol Primitive Types". A reader never reads beyond the input, and
//! rejects a count that the remaining bytes cannot hold.

/// Appends primitive types.
pub(super) trait Put {
    fn i8(&mut self, value: i8);
    fn i16(&mut self, value: i16);
    fn i32(&mut self, value: i32);
    fn i64(&mut self, value: i64);
    /// STRING.
    fn string(&mut self, value: &str);
    /// NULLABLE_STRING.
    fn nullable(&mut self, value: Option<&str>);
    /// BYTES.
    fn bytes(&mut self, value: &[u8]);
    /// The length of an ARRAY.
    fn count(&mut self, count: usize);
    /// COMPACT_STRING.
    fn compact_string(&mut self, value: &str);
    /// The length of a COMPACT_ARRAY.
    fn compact_count(&mut self, count: usize);
    /// Tagged fields: none.
    fn no_tags(&mut self);
}

impl Put for Vec<u8> {
    fn i8(&mut self, value: i8) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn i16(&mut self, value: i16) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn string(&mut self, value: &str) {
        // The length always fits, because names from peers were checked against much lower limits.
        let length = i16::try_from(value.len()).unwrap_or(0);
        self.i16(length);
        let bytes = value.as_bytes().get(..usize::from(length.unsigned_abs()));
        self.extend_from_slice(bytes.unwrap_or_default());
    }

    fn nullable(&mut self, value: Option<&str>) {
        match value {
            Some(value) => self.string(value),
            None => self.i16(-1),
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        self.count(value.len());
        self.extend_from_slice(value);
    }

    fn count(&mut self, count: usize) {
        self.i32(i32::try_from(count).unwrap_or(i32::MAX));
    }

    fn compact_string(&mut self, value: &str) {
        self.compact_count(value.len());
        self.extend_from_slice(value.as_bytes());
    }

    fn compact_count(&mut self, count: usize) {
        // An UNSIGNED_VARINT: seven bits in each byte, the lowest first. The value is `count + 1`, because 0 stands for null.
        let mut rest = count + 1;
        while rest > 0x7f {
            self.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.push(rest as u8);
    }

    fn no_tags(&mut self) {
        self.push(0);
    }
}

/// Reads primitive types; `None` if the input ends early or is invalid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Take<'a>(pub(super) &'a [u8]);

impl<'a> Take<'a> {
    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn i8(&mut self) -> Option<i8> {
        self.fixed().map(i8::from_be_bytes)
    }

    pub(super) fn i16(&mut self) -> Option<i16> {
        self.fixed().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Option<i32> {
        self.fixed().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Option<i64> {
        self.fixed().map(i64::from_be_bytes)
    }

    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    /// NULLABLE_STRING.
    pub(super) fn nullable(&mut self) -> Option<Option<String>> {
        match self.i16()? {
            -1 => Some(None),
            length => {
                let bytes = self.slice(usize::try_from(length).ok()?)?;
                Some(Some(String::from_utf8_lossy(bytes).into_owned()))
            }
        }
    }

    /// STRING.
    pub(super) fn string(&mut self) -> Option<String> {
        self.nullable()?
    }

    /// BYTES.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.i32()?;
        self.slice(usize::try_from(length).ok()?)
    }

    /// ARRAY, each element read by `read`. A null array is read as an empty one.
    pub(super) fn array<T>(&mut self, read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = match self.i32()? {
            -1 => 0,
            count => usize::try_from(count).ok()?,
        };
        self.elements(count, read)
    }

    /// Reads elements one by one. The announced count may be wrong, so memory for that count is not allocated in advance.
    fn elements<T>(
        &mut self,
        count: usize,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(read(self)?);
        }
        Some(all)
    }

    /// UNSIGNED_VARINT.
    fn varint(&mut self) -> Option<usize> {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let [byte] = self.fixed()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return usize::try_from(u32::try_from(value).ok()?).ok();
            }
        }
        None
    }

    /// COMPACT_NULLABLE_STRING.
    pub(super) fn compact_nullable(&mut self) -> Option<Option<String>> {
        let Some(length) = self.varint()?.checked_sub(1) else {
            return Some(None);
        };
        let bytes = self.slice(length)?;
        Some(Some(String::from_utf8_lossy(bytes).into_owned()))
    }

    /// COMPACT_ARRAY, each element read by `read`. A null array is read as an empty one.
    pub(super) fn compact_array<T>(
        &mut self,
        read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.varint()?.saturating_sub(1);
        self.elements(count, read)
    }

    /// Skips tagged fields.
    pub(super) fn tags(&mut self) -> Option<()> {
        for _ in 0..self.varint()? {
            let (_tag, length) = (self.varint()?, self.varint()?);
            self.slice(length)?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_read_back() {
        let mut out = Vec::new();
        out.i8(-1);
        out.i16(-2);
        out.i32(3);
        out.i64(-4);
        out.string("five");
        out.nullable(None);
        out.bytes(b"six");
        out.count(2);
        out.i16(7);
        out.i16(8);
        let mut take = Take(&out);
        assert_eq!(take.i8(), Some(-1));
        assert_eq!(take.i16(), Some(-2));
        assert_eq!(take.i32(), Some(3));
        assert_eq!(take.i64(), Some(-4));
        assert_eq!(take.string().as_deref(), Some("five"));
        assert_eq!(take.nullable(), Some(None));
        assert_eq!(take.bytes(), Some(&b"six"[..]));
        assert_eq!(take.array(Take::i16), Some(vec![7, 8]));
        assert!(take.0.is_empty());
    }

    #[test]
    fn compact_values_read_back() {
        // Around the lengths that need a second and a third byte.
        for length in [0, 1, 126, 127, 128, 16_382, 16_383] {
            let mut out = Vec::new();
            out.compact_string(&"x".repeat(length));
            out.compact_count(1);
            out.i16(7);
            out.no_tags();
            let mut take = Take(&out);
            let text = take.compact_nullable().unwrap().unwrap();
            assert_eq!(text.len(), length);
            assert_eq!(take.compact_array(Take::i16), Some(vec![7]));
            assert_eq!(take.tags(), Some(()));
            assert!(take.0.is_empty());
        }
        // The example of the protocol guide of Protocol Buffers.
        assert_eq!(Take(&[0xac, 0x02]).varint(), Some(300));
        assert_eq!(Take(&[0]).compact_nullable(), Some(None));
    }

    #[test]
    fn truncated_or_invalid_input_reads_as_none() {
        assert_eq!(Take(&[0]).i16(), None);
        assert_eq!(Take(&[0, 5, b'a']).string(), None);
        assert_eq!(Take(&[0x80, 0]).nullable(), None);
        assert_eq!(Take(&[0x7f, 0xff, 0xff, 0xff, 1]).bytes(), None);
        // Two billion elements in three bytes.
        assert_eq!(
            Take(&[0x7f, 0xff, 0xff, 0xff, 1, 2, 3]).array(Take::i16),
            None
        );
        let four_billion = [0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2];
        assert_eq!(Take(&four_billion).compact_array(Take::i16), None);
        assert_eq!(Take(&four_billion).compact_nullable(), None);
        assert_eq!(Take(&four_billion).tags(), None);
        // More than 32 bits, and more than five bytes.
        assert_eq!(Take(&[0xff, 0xff, 0xff, 0xff, 0x10]).varint(), None);
        assert_eq!(Take(&[0x80, 0x80, 0x80, 0x80, 0x80, 0]).varint(), None);
    }
}
