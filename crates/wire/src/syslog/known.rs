//! A cache of the bytes between the time and the text of the last message (its words), and of the fields that they contain: host,
//! app, procid, msgid. Structured data is cached in the same way.
//!
//! ```text
//! <13>Nov 21 06:40:31 web-1 sshd[4242]: TEXT
//!                     [     words     ]          a4"host" a5"web-1" a3"app" a4"sshd" a6"procid" a4"4242"
//! ```
//!
//! A stream repeats the same words many times. Equal bytes have the same meaning, so their fields are copied instead of parsed.
//! If a message has other words, its record is written without the cache.

/// The maximum length of cached fields, in bytes. Longer fields are not cached.
pub(super) const FIELDS_BYTES: usize = 256;
/// Fields of at most this many bytes are copied with a store of this constant size. Most fields are that short.
pub(super) const FIELDS_MOSTLY: usize = 64;

/// Bytes with all bits set, then zeros. The mask for any length is a window of this array.
const MASK: [u8; 2 * MASK_BYTES] = {
    let mut mask = [0; 2 * MASK_BYTES];
    let mut at = 0;
    while at < MASK_BYTES {
        mask[at] = 0xff;
        at += 1;
    }
    mask
};
const MASK_BYTES: usize = 128;

/// The words of a message, up to `WORDS` bytes, and their fields.
#[derive(Clone, Debug)]
pub(super) struct Known<const WORDS: usize> {
    words: [u8; WORDS],
    /// All bits are set in the bytes that belong to the words. All other bytes are 0.
    mask: [u8; WORDS],
    /// The length of the words, or 0 if the cache is empty.
    length: usize,
    /// The encoded fields, as in a record.
    pub(super) fields: [u8; FIELDS_BYTES],
    pub(super) fields_length: usize,
    /// The number of fields.
    pub(super) count: u8,
}

impl<const WORDS: usize> Known<WORDS> {
    pub(super) fn new() -> Self {
        Self {
            words: [0; WORDS],
            mask: [0; WORDS],
            length: 0,
            fields: [0; FIELDS_BYTES],
            fields_length: 0,
            count: 0,
        }
    }

    /// Returns the text after the cached words, or `None` if `text` does not begin with them.
    #[inline(always)]
    pub(super) fn behind<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        let same = match text.first_chunk::<WORDS>() {
            Some(start) => {
                let pairs = start.iter().zip(&self.words).zip(&self.mask);
                // The fold has no early exit, so that the compiler vectorizes it.
                pairs.fold(0, |differ, ((a, b), mask)| differ | ((a ^ b) & mask)) == 0
            }
            None => text.starts_with(self.words.get(..self.length)?),
        };
        if same && self.length > 0 {
            text.get(self.length..)
        } else {
            None
        }
    }

    /// Stores the fields at the start of `place`. May overwrite bytes after them.
    #[inline(always)]
    pub(super) fn store(&self, place: &mut [u8]) {
        if self.fields_length <= FIELDS_MOSTLY {
            if let (Some(place), Some(fields)) =
                (place.first_chunk_mut(), self.fields.first_chunk())
            {
                let fields: &[u8; FIELDS_MOSTLY] = fields;
                *place = *fields;
            }
        } else if let Some(place) = place.first_chunk_mut() {
            *place = self.fields;
        }
    }

    /// Caches words and their `count` fields. If they are too long, the cache is empty afterwards.
    #[inline(always)]
    pub(super) fn learn(&mut self, words: &[u8], fields: &[u8], count: u8) {
        self.length = 0;
        let (Some(place), Some(room)) = (
            self.words.get_mut(..words.len()),
            self.fields.get_mut(..fields.len()),
        ) else {
            return;
        };
        place.copy_from_slice(words);
        room.copy_from_slice(fields);
        let mask = MASK.get(MASK_BYTES - words.len()..);
        if let Some(mask) = mask.and_then(<[u8]>::first_chunk) {
            self.mask = *mask;
            self.length = words.len();
            self.fields_length = fields.len();
            self.count = count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = 64;

    #[test]
    fn words_are_known_only_if_all_of_them_are_equal() {
        let mut known = Known::<WORDS>::new();
        assert_eq!(known.behind(&[0; 100]), None, "at first nothing is known");
        for length in 1..=WORDS {
            let words = vec![b'w'; length];
            known.learn(&words, b"fields", 2);
            for more in [0, 1, 200] {
                let text = [&words[..], &vec![b't'; more]].concat();
                assert_eq!(known.behind(&text), Some(&text[length..]));
                for at in 0..length {
                    let mut other = text.clone();
                    other[at] ^= 0x80;
                    assert_eq!(known.behind(&other), None);
                }
            }
            assert_eq!(known.behind(&words[1..]), None, "the words are truncated");
        }
    }

    #[test]
    fn words_that_are_too_long_are_not_cached() {
        let mut known = Known::<WORDS>::new();
        known.learn(b"words", b"fields", 1);
        known.learn(&[b'w'; WORDS + 1], b"fields", 1);
        assert_eq!(known.behind(&[b'w'; 100]), None);
        assert_eq!(known.behind(b"words and more"), None);
        known.learn(b"words", &[0; FIELDS_BYTES + 1], 1);
        assert_eq!(known.behind(b"words and more"), None);
    }
}
