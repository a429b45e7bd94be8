//! Validates a stream of entries while it arrives.

use super::{Malformed, Plain, Shape, entry_shape, is_array, skip};

/// Walks a stream of `[time, record]` entries that grows. It is fed the same bytes with more behind them and goes on where
/// it stopped: no byte is looked at twice but for the head of a value that was cut. Entries are counted as they become
/// whole; a misfit (well-formed, but no `[time, map]`) is counted and its neighbours go on.
///
/// At the end of the stream it is whole when [`Walker::whole`] is its length; else its last entry is cut.
#[derive(Clone, Debug, Default)]
pub struct Walker {
    /// Where the next value stands.
    at: usize,
    /// Values that are owed to the entry begun at `whole`; 0 = none begun.
    open: u64,
    whole: usize,
    entries: u32,
    misfits: u32,
    /// An entry was not simply `92 time record`.
    nested: bool,
    plain: Plain,
}

impl Walker {
    /// At the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on to the end of `bytes`, which start with what it was fed before.
    ///
    /// # Errors
    /// [`Malformed`]: from there on nothing can be read; what stands before [`Walker::whole`] can.
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
            // What nearly all entries look like, told by the first 12 bytes: EventTime and a small map.
            let rest = bytes.get(entry..).unwrap_or_default();
            let (sure, start, open) = match *rest {
                [0x92, 0xd7, 0, _, _, _, _, _, _, _, _, map @ 0x80..=0x8f, ..] => {
                    let (at, open) = self.plain.skip(bytes, entry + 12, map & 0x0f);
                    if open == 0 {
                        good += 1;
                        (self.at, self.whole) = (at, at);
                        continue;
                    }
                    (true, at, open)
                }
                [] => break Ok(()),
                _ => (false, entry, 1),
            };
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

    /// Counts the entry `whole..at`, which is complete.
    fn judge(&mut self, bytes: &[u8]) {
        let entry = bytes.get(self.whole..self.at).unwrap_or_default();
        self.nested |= !matches!(entry, [0x92, time, ..] if !is_array(*time));
        match entry_shape(entry) {
            Shape::Good => self.entries = self.entries.saturating_add(1),
            Shape::Timeless | Shape::Misfit => self.misfits = self.misfits.saturating_add(1),
        }
        self.whole = self.at;
    }

    /// Good entries that stand before [`Walker::whole`].
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Whole values before [`Walker::whole`] that are no good entries (those whose time is nil among them).
    pub fn misfits(&self) -> u32 {
        self.misfits
    }

    /// Whether every entry before [`Walker::whole`] is `[time, record]`, without metadata beside its time.
    pub fn is_plain(&self) -> bool {
        !self.nested
    }

    /// The byte after the last whole entry.
    pub fn whole(&self) -> usize {
        self.whole
    }
}
