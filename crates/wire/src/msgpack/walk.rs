//! Validates a stream of entries while it arrives.

use super::{Malformed, Plain, Shape, entry_shape, is_array, skip};

/// Validates a stream of `[time, record]` entries while it grows. Every call of [`Walker::walk`] gets all bytes of the
/// stream received so far, and continues where the previous call stopped: only the head of an incomplete value is
/// examined twice. Complete entries are counted. Misfits, which are valid MessagePack but not `[time, map]`, are
/// skipped and counted separately.
///
/// When the stream has ended and its length is not [`Walker::whole`], its last entry is truncated.
#[derive(Clone, Debug, Default)]
pub struct Walker {
    /// The offset of the first value that was not skipped yet. It may be inside an incomplete entry.
    at: usize,
    /// The number of values that are missing from the incomplete entry at `whole`; 0 if no entry is incomplete.
    open: u64,
    whole: usize,
    entries: u32,
    misfits: u32,
    /// Whether any value had another form than `92 time record`, for example an entry with metadata.
    nested: bool,
    plain: Plain,
}

impl Walker {
    /// The state at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Validates the rest of `bytes`, which must begin with the bytes of the previous call.
    ///
    /// # Errors
    /// [`Malformed`]: the stream cannot be read beyond [`Walker::whole`].
    pub fn walk(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        if self.open > 0 {
            self.at = skip(bytes, self.at, &mut self.open)?;
            if self.open > 0 {
                return Ok(());
            }
            self.judge(bytes);
        }
        let mut good = 0;
        let walked = loop {
            let entry = self.at;
            let rest = bytes.get(entry..).unwrap_or_default();
            let (sure, start, open) = match *rest {
                // Nearly all entries have this head of 12 bytes: an EventTime, and a map of at most 15 pairs.
                [0x92, 0xd7, 0, _, _, _, _, _, _, _, _, map @ 0x80..=0x8f, ..] => {
                    let (at, open) = self.plain.skip(bytes, entry + 12, u16::from(map & 0x0f));
                    (true, at, open)
                }
                [] => break Ok(()),
                _ => match other_head(rest) {
                    Some((size, pairs)) => {
                        let (at, open) = self.plain.skip_rare(bytes, entry + size, pairs);
                        (true, at, open)
                    }
                    None => (false, entry, 1),
                },
            };
            if open == 0 {
                good += 1;
                (self.at, self.whole) = (start, start);
                continue;
            }
            self.open = open;
            self.at = match skip(bytes, start, &mut self.open) {
                Ok(at) => at,
                Err(malformed) => break Err(malformed),
            };
            if self.open > 0 {
                break Ok(());
            }
            if sure {
                good += 1;
                self.whole = self.at;
            } else {
                self.judge(bytes);
            }
        };
        self.entries = self.entries.saturating_add(good);
        walked
    }

    /// Counts the complete value `whole..at` as an entry or a misfit.
    fn judge(&mut self, bytes: &[u8]) {
        let entry = bytes.get(self.whole..self.at).unwrap_or_default();
        self.nested |= !matches!(entry, [0x92, time, ..] if !is_array(*time));
        match entry_shape(entry) {
            Shape::Good => self.entries = self.entries.saturating_add(1),
            Shape::Timeless | Shape::Mark | Shape::Misfit => {
                self.misfits = self.misfits.saturating_add(1)
            }
        }
        self.whole = self.at;
    }

    /// The number of valid entries before [`Walker::whole`].
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The number of complete values before [`Walker::whole`] that are not valid entries, including those whose time is
    /// nil and the marks of groups.
    pub fn misfits(&self) -> u32 {
        self.misfits
    }

    /// Whether every value before [`Walker::whole`] begins with the array marker `92` and has no metadata beside its
    /// time.
    pub fn is_plain(&self) -> bool {
        !self.nested
    }

    /// The offset after the last complete entry or misfit.
    pub fn whole(&self) -> usize {
        self.whole
    }
}

/// Reads the less common heads of entries without metadata. Returns the size of the head (up to the first pair) and the
/// number of pairs; `None` if [`Walker::judge`] must examine the complete value.
#[inline(never)]
fn other_head(entry: &[u8]) -> Option<(usize, u16)> {
    match *entry {
        [0x92, 0xd7, 0, _, _, _, _, _, _, _, _, 0xde, a, b, ..] => {
            Some((14, u16::from_be_bytes([a, b])))
        }
        // A time that is an integer: the seconds since 1970.
        [0x92, 0xce, _, _, _, _, map @ 0x80..=0x8f, ..] => Some((7, u16::from(map & 0x0f))),
        [0x92, 0xce, _, _, _, _, 0xde, a, b, ..] => Some((9, u16::from_be_bytes([a, b]))),
        _ => None,
    }
}
