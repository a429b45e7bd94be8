//! The other fields of a record: all fields except the one whose text is parsed. A parsed field replaces the other fields that
//! have its name.

use std::ops::Range;

use super::Fault;
use crate::msgpack::Reader;

/// Up to this many fields are compared one by one. If a record has more, they are sorted by name, so that no record takes
/// quadratic time.
const FEW: usize = 16;
/// The capacity (in elements) that each buffer may keep for the next record.
const KEPT: usize = 1 << 12;

/// The offsets of the other fields in the output. An offset takes four bytes and a field at least two, so the offsets take at most
/// twice as much memory as the fields.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// The offset of the first of these fields in the output.
    base: usize,
    /// A set of hashes of the names: each name sets one bit. If the bit of a name is not set, no field has the name.
    names: u64,
    /// The offsets of all fields, relative to `base`.
    places: Vec<u32>,
    /// The same offsets, sorted by name. The list is filled only if there are more than [`FEW`] fields and a name was looked up.
    sorted: Vec<u32>,
    /// For each element of `sorted`: whether its name was looked up before.
    seen: Vec<bool>,
    /// The offsets of replaced fields.
    replaced: Vec<u32>,
    /// A buffer for the function that removes a nested field from its map.
    pub(super) behind: Vec<Range<usize>>,
}

impl Others {
    /// Starts a record whose other fields begin at the offset `base` of the output.
    pub(super) fn begin(&mut self, base: usize) {
        self.base = base;
        self.names = 0;
        for places in [&mut self.places, &mut self.sorted, &mut self.replaced] {
            places.clear();
            places.shrink_to(KEPT);
        }
        self.seen.clear();
        self.seen.shrink_to(KEPT);
    }

    /// Adds the field at the offset `at` of the output. `name` is `None` if its key is not text.
    #[inline]
    pub(super) fn push(&mut self, name: Option<&[u8]>, at: usize) {
        self.names |= name.map_or(0, bit);
        // The conversion cannot fail: no body reaches 4 GiB.
        self.places
            .push(u32::try_from(at - self.base).unwrap_or(u32::MAX));
    }

    /// Marks the other fields with this name as replaced by a parsed field.
    #[inline(always)]
    pub(super) fn replace(&mut self, name: &[u8], out: &[u8]) {
        if self.names & bit(name) != 0 {
            self.find(name, out);
        }
    }

    #[inline(never)]
    fn find(&mut self, name: &[u8], out: &[u8]) {
        let base = self.base;
        let key = |place: &u32| key_at(out, base + *place as usize);
        if self.places.len() <= FEW {
            for place in &self.places {
                if key(place) == Some(name) && !self.replaced.contains(place) {
                    self.replaced.push(*place);
                }
            }
            return;
        }
        if self.sorted.is_empty() {
            self.sorted.extend_from_slice(&self.places);
            self.sorted
                .sort_unstable_by_key(|place| (key(place), *place));
            self.seen.resize(self.sorted.len(), false);
        }
        let start = self.sorted.partition_point(|place| key(place) < Some(name));
        let behind = self.sorted.get(start..).unwrap_or_default();
        let same = behind.iter().take_while(|place| key(place) == Some(name));
        if behind.first().is_some_and(|first| key(first) == Some(name))
            && let Some(seen @ false) = self.seen.get_mut(start)
        {
            *seen = true;
            self.replaced.extend(same);
        }
    }

    /// Removes the replaced fields from the output, and returns their number.
    pub(super) fn remove_replaced(&mut self, out: &mut Vec<u8>) -> Result<u32, Fault> {
        if self.replaced.is_empty() {
            return Ok(0);
        }
        self.replaced.sort_unstable();
        self.replaced.dedup();
        remove(self.base, &self.replaced, out)?;
        Ok(self.replaced.len() as u32)
    }
}

/// The parsed fields whose names come from the text, so that a name may be repeated. The last field of a name remains.
#[derive(Debug, Default)]
pub(super) struct Own {
    names: u64,
    /// The offsets of the fields in the output, relative to the first one.
    places: Vec<u32>,
    base: usize,
    /// Whether two names may be equal.
    repeats: bool,
}

impl Own {
    /// Starts a record whose parsed fields begin at the offset `base` of the output.
    pub(super) fn begin(&mut self, base: usize) {
        self.base = base;
        self.names = 0;
        self.repeats = false;
        self.places.clear();
        self.places.shrink_to(KEPT);
    }

    /// Adds the field at the offset `at` of the output.
    #[inline]
    pub(super) fn push(&mut self, name: &[u8], at: usize) {
        let bit = bit(name);
        self.repeats |= self.names & bit != 0;
        self.names |= bit;
        self.places
            .push(u32::try_from(at - self.base).unwrap_or(u32::MAX));
    }

    /// Removes the repeated fields from the output, except the last one of each name. Returns the number of removed fields.
    pub(super) fn remove_repeats(&mut self, out: &mut Vec<u8>) -> Result<u32, Fault> {
        match self.repeats {
            false => Ok(0),
            true => self.compare(out),
        }
    }

    #[inline(never)]
    fn compare(&mut self, out: &mut Vec<u8>) -> Result<u32, Fault> {
        let base = self.base;
        let key = |place: &u32| key_at(out, base + *place as usize);
        let mut sorted = self.places.clone();
        sorted.sort_unstable_by_key(|place| (key(place), *place));
        let pairs = sorted.iter().zip(sorted.iter().skip(1));
        let mut removed: Vec<u32> = pairs
            .filter(|(one, next)| key(one) == key(next))
            .map(|(one, _)| *one)
            .collect();
        if removed.is_empty() {
            return Ok(0);
        }
        removed.sort_unstable();
        remove(base, &removed, out)?;
        Ok(removed.len() as u32)
    }
}

/// Removes the fields at these places, which are relative to `base` and in order.
fn remove(base: usize, places: &[u32], out: &mut Vec<u8>) -> Result<(), Fault> {
    let (mut to, mut from) = (None, 0);
    for place in places {
        let start = base + *place as usize;
        let end = {
            let mut reader = Reader::at(out, start);
            reader.values(2)?;
            reader.position()
        };
        let kept = match to {
            None => start,
            Some(to) => {
                out.copy_within(from..start, to);
                to + (start - from)
            }
        };
        (to, from) = (Some(kept), end);
    }
    let to = to.unwrap_or(out.len());
    let rest = out.len() - from;
    out.copy_within(from.., to);
    out.truncate(to + rest);
    Ok(())
}

/// Returns one of 64 bits, chosen by the length, the first byte and the last byte of a name.
#[inline(always)]
fn bit(name: &[u8]) -> u64 {
    let end = |byte: Option<&u8>| usize::from(byte.copied().unwrap_or(0));
    1 << ((name.len() ^ (end(name.first()) << 2) ^ end(name.last())) & 63)
}

/// Returns the name of the field at `at`, or `None` if its key is not text.
fn key_at(out: &[u8], at: usize) -> Option<&[u8]> {
    Reader::at(out, at).bytes().ok()
}
