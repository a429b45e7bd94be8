//! Finds named fields of a map in one walk over its bytes.
//!
//! Adjacent records mostly have the same keys in the same order. So the last key at each index of the map is cached,
//! with its length and the wanted name that it equals. One comparison of 16 bytes recognizes a key that equals the cached
//! one, and meanwhile the CPU speculates ahead to the value. Any other key is compared with all names.

use super::start::{START_BYTES, Start};
use crate::msgpack::{Reader, skip};

/// The number of pairs, from the start of a map, whose keys are cached.
const PLACES: usize = 16;
/// The index for a key that equals none of the names.
const UNNAMED: usize = usize::MAX;

/// The last key found at an index of the map.
#[derive(Clone, Copy, Debug)]
struct Key {
    /// The encoded str.
    start: Start,
    /// The length of the encoded str; 0 if no key is cached.
    size: usize,
    /// The index of the name that the key equals, or [`UNNAMED`].
    name: usize,
}

impl Key {
    /// No key.
    const NONE: Self = Self {
        start: Start::NONE,
        size: 0,
        name: UNNAMED,
    };

    #[inline(always)]
    fn is_at(&self, body: &[u8], at: usize) -> bool {
        let start = body.get(at..).and_then(<[u8]>::first_chunk);
        start.is_some_and(|start| self.start.is_start_of(start))
    }
}

/// A pair of a map whose key is one of the names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// The index of the name.
    pub(crate) name: usize,
    /// The offset of the key.
    pub(crate) key: usize,
    /// The offset of the value.
    pub(crate) value: usize,
    /// The offset after the value.
    pub(crate) end: usize,
}

/// The names to find in a map.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    names: Box<[Box<[u8]>]>,
    keys: Box<[Key; PLACES]>,
}

impl Named {
    /// Creates the search for these names, which must all be different.
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = names.into_iter().map(|name| name.as_bytes().into());
        Self {
            names: names.collect(),
            keys: Box::new([Key::NONE; PLACES]),
        }
    }

    /// Walks over the map at `at` and calls `found`, in order, for each pair whose key is one of the names. If a key is
    /// repeated, `found` is called for each of its pairs.
    /// Returns the number of pairs and the offset after the map; `None` if there is no complete map at `at`.
    #[inline(always)]
    pub(crate) fn walk(
        &mut self,
        body: &[u8],
        at: usize,
        mut found: impl FnMut(Pair),
    ) -> Option<(u32, usize)> {
        let (pairs, mut at) = map_at(body, at)?;
        for index in 0..pairs as usize {
            let key = at;
            let name = match self.keys.get(index) {
                Some(known) if known.is_at(body, at) => {
                    at += known.size;
                    known.name
                }
                _ => {
                    let (name, value) = self.other(body, at, index)?;
                    at = value;
                    name
                }
            };
            let value = at;
            at = end_of(body, at)?;
            if name != UNNAMED {
                found(Pair {
                    name,
                    key,
                    value,
                    end: at,
                });
            }
        }
        (at <= body.len()).then_some((pairs, at))
    }

    /// Reads and caches a key that differs from the cached one. Returns the index of its name and the offset of its
    /// value; `None` if the key is incomplete or invalid.
    #[inline(never)]
    fn other(&mut self, body: &[u8], at: usize, index: usize) -> Option<(usize, usize)> {
        let mut reader = Reader::at(body, at);
        let Ok(text) = reader.bytes() else {
            reader.skip().ok()?;
            return Some((UNNAMED, reader.position()));
        };
        let value = reader.position();
        let name = self.names.iter().position(|name| **name == *text);
        let name = name.unwrap_or(UNNAMED);
        let size = value - at;
        if let (Some(place), Some(start)) = (
            self.keys.get_mut(index),
            body.get(at..).and_then(<[u8]>::first_chunk),
        ) && size <= START_BYTES
        {
            *place = Key {
                start: Start::new(start, size),
                size,
                name,
            };
        }
        Some((name, value))
    }
}

/// Returns the number of pairs of the map at `at`, and the offset of the first pair; `None` if there is no map.
#[inline(always)]
pub(crate) fn map_at(body: &[u8], at: usize) -> Option<(u32, usize)> {
    match body.get(at) {
        Some(&marker @ 0x80..=0x8f) => Some((u32::from(marker & 0x0f), at + 1)),
        _ => long_map(body, at),
    }
}

#[cold]
fn long_map(body: &[u8], at: usize) -> Option<(u32, usize)> {
    let mut reader = Reader::at(body, at);
    let pairs = reader.map_len().ok()?;
    Some((pairs, reader.position()))
}

/// Returns the offset after the value at `at`. If the value is truncated, the offset may lie beyond the end of `body`.
#[inline(always)]
fn end_of(body: &[u8], at: usize) -> Option<usize> {
    let size = match *body.get(at..)? {
        [marker @ 0xa0..=0xbf, ..] => 1 + usize::from(marker & 0x1f),
        [0xd9, length, ..] => 2 + usize::from(length),
        [0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff, ..] => 1,
        [0xda, high, low, ..] => 3 + usize::from(u16::from_be_bytes([high, low])),
        [0xcc | 0xd0, ..] => 2,
        [0xcd | 0xd1, ..] => 3,
        [0xca | 0xce | 0xd2, ..] => 5,
        [0xcb | 0xcf | 0xd3, ..] => 9,
        _ => return end_of_other(body, at),
    };
    Some(at + size)
}

#[inline(never)]
fn end_of_other(body: &[u8], at: usize) -> Option<usize> {
    let mut open = 1;
    let end = skip(body, at, &mut open).ok()?;
    (open == 0).then_some(end)
}
