//! Comparison of a short encoded text in one step.

/// The maximum number of bytes that are compared.
pub(crate) const START_BYTES: usize = 16;

/// The bytes with which an encoded text must start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    bytes: u128,
    /// Covers the bytes that are compared.
    mask: u128,
}

impl Start {
    /// No input starts with it: `bytes` has a bit outside `mask`.
    pub(crate) const NONE: Self = Self { bytes: 1, mask: 0 };

    /// The first `size` of these bytes. `size` is 1 to 16.
    pub(crate) fn new(bytes: &[u8; START_BYTES], size: usize) -> Self {
        let mask = u128::MAX >> (8 * (START_BYTES - size));
        Self {
            bytes: u128::from_le_bytes(*bytes) & mask,
            mask,
        }
    }

    /// A text of at most 15 bytes as a fixstr; `None` if the text is longer.
    pub(crate) fn of_text(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; START_BYTES];
        let (head, room) = bytes.split_first_mut()?;
        *head = 0xa0 | u8::try_from(text.len()).ok()?;
        room.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self::new(&bytes, 1 + text.len()))
    }

    /// Whether the input starts with these bytes.
    #[inline(always)]
    pub(crate) fn is_start_of(self, input: &[u8; START_BYTES]) -> bool {
        u128::from_le_bytes(*input) & self.mask == self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bytes_of_the_text_are_compared() {
        let input = |text: &[u8]| {
            let mut bytes = [0xff; START_BYTES];
            bytes[..text.len()].copy_from_slice(text);
            bytes
        };
        for text in ["", "a", "level", "fifteen bytes !"] {
            let start = Start::of_text(text.as_bytes()).unwrap();
            let mut encoded = vec![0xa0 | text.len() as u8];
            encoded.extend_from_slice(text.as_bytes());
            assert!(start.is_start_of(&input(&encoded)));
            for at in 0..encoded.len() {
                encoded[at] ^= 1;
                assert!(!start.is_start_of(&input(&encoded)), "{text} {at}");
                encoded[at] ^= 1;
            }
        }
        assert!(Start::of_text(b"sixteen bytes !!").is_none());
        assert!(!Start::NONE.is_start_of(&[0; START_BYTES]));
        assert!(!Start::NONE.is_start_of(&[1; START_BYTES]));
    }
}
