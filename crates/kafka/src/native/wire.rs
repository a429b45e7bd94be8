//! The primitive types of Kafka's protocol before "flexible" versions: big-endian integers, and values preceded by their
//! length.
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
        // Names from peers were checked against much lower limits, so the length always fits.
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
    pub(super) fn array<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = match self.i32()? {
            -1 => 0,
            count => usize::try_from(count).ok()?,
        };
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(read(self)?);
        }
        Some(all)
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
    }
}
