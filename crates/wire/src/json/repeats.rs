//! Keys that a map has twice. Senders may write such maps, but readers of JSON disagree about them, or refuse them (Elasticsearch). So only
//! the last value of a key is written as JSON.
//!
//! Such maps are rare. Writers only notice them, and then write a copy of the value without repeats.

use std::collections::HashMap;

use super::{DEPTH_MAX, Unfit};
use crate::msgpack::{Reader, write_array_len, write_map_len};

/// Maps with at most this many keys are compared key by key.
const FEW: usize = 32;

/// Notices repeated keys of a map, while it is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Keys {
    /// The offset of the first pair.
    first: usize,
    /// A bit for each key so far. A key whose bit is not set is new.
    bits: u64,
    /// Whether the keys are known to differ.
    differ: bool,
}

impl Keys {
    /// Begins a map of `pairs` pairs, of which the first one is at `at`. Returns false if a key is repeated.
    #[inline]
    pub(super) fn begin(&mut self, bytes: &[u8], at: usize, pairs: u32) -> Result<bool, Unfit> {
        self.first = at;
        self.differ = pairs < 2;
        if pairs as usize > FEW {
            self.differ = differ(bytes, at, pairs)?;
            return Ok(self.differ);
        }
        Ok(true)
    }

    /// Notes the key in `start..end` of `bytes`. Returns false if it is repeated.
    #[inline]
    pub(super) fn note(&mut self, bytes: &[u8], start: usize, end: usize) -> bool {
        if self.differ {
            return true;
        }
        let key = bytes.get(start..end).unwrap_or_default();
        let bit = bit(key);
        let is_new = self.bits & bit == 0;
        self.bits |= bit;
        is_new || !self.has(bytes, start, key)
    }

    /// Whether one of the keys before `until` is `key`.
    #[inline(never)]
    fn has(&self, bytes: &[u8], until: usize, key: &[u8]) -> bool {
        let mut reader = Reader::at(bytes, self.first);
        while reader.position() < until {
            match (reader.value(), reader.skip()) {
                (Ok(other), Ok(())) if other != key => {}
                (Ok(_), Ok(())) => return true,
                _ => return false,
            }
        }
        false
    }
}

/// One of 64 bits, chosen by the length and by the first and last bytes of a key.
#[inline(always)]
fn bit(key: &[u8]) -> u64 {
    let at = |index: usize| key.get(index).copied().unwrap_or(0);
    let mixed = u64::from(at(0)) ^ u64::from(at(1)) << 8 ^ u64::from(at(key.len() / 2)) << 16;
    let mixed = mixed ^ u64::from(key.last().copied().unwrap_or(0)) << 24;
    1 << (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// Whether the `pairs` pairs at `at` have different keys.
#[inline(never)]
pub(crate) fn differ(bytes: &[u8], at: usize, pairs: u32) -> Result<bool, Unfit> {
    let mut keys = Keys {
        first: at,
        ..Keys::default()
    };
    let mut reader = Reader::at(bytes, at);
    if pairs as usize <= FEW {
        for _ in 0..pairs {
            let start = reader.position();
            reader.skip()?;
            if !keys.note(bytes, start, reader.position()) {
                return Ok(false);
            }
            reader.skip()?;
        }
        return Ok(true);
    }
    let mut all = Vec::new();
    for _ in 0..pairs {
        all.push(reader.value()?);
        reader.skip()?;
    }
    all.sort_unstable();
    Ok(all.windows(2).all(|pair| matches!(pair, [a, b] if a != b)))
}

/// Appends the value at `at` without repeated keys: the last value of each key remains. Returns the offset after the value.
#[cold]
pub(crate) fn without(bytes: &[u8], at: usize, out: &mut Vec<u8>) -> Result<usize, Unfit> {
    let mut reader = Reader::at(bytes, at);
    value(&mut reader, 0, out)?;
    Ok(reader.position())
}

/// Appends the pairs at `at` as a map without repeated keys. Returns the offset after them.
#[cold]
pub(crate) fn pairs_without(
    bytes: &[u8],
    at: usize,
    pairs: u32,
    out: &mut Vec<u8>,
) -> Result<usize, Unfit> {
    let mut reader = Reader::at(bytes, at);
    map(&mut reader, pairs, 1, out)?;
    Ok(reader.position())
}

fn value(reader: &mut Reader<'_>, depth: usize, out: &mut Vec<u8>) -> Result<(), Unfit> {
    match reader.peek()? {
        0x80..=0x8f | 0x90..=0x9f | 0xdc..=0xdf if depth == DEPTH_MAX => Err(Unfit::TooDeep),
        0x80..=0x8f | 0xde | 0xdf => {
            let pairs = reader.map_len()?;
            map(reader, pairs, depth + 1, out)
        }
        0x90..=0x9f | 0xdc | 0xdd => {
            let length = reader.array_len()?;
            write_array_len(out, length);
            (0..length).try_for_each(|_| value(reader, depth + 1, out))
        }
        _ => {
            out.extend_from_slice(reader.value()?);
            Ok(())
        }
    }
}

fn map(reader: &mut Reader<'_>, pairs: u32, depth: usize, out: &mut Vec<u8>) -> Result<(), Unfit> {
    // Each key, and the index of its last value.
    let mut last = HashMap::new();
    let mut ahead = *reader;
    for index in 0..pairs {
        last.insert(ahead.value()?, index);
        ahead.skip()?;
    }
    write_map_len(out, u32::try_from(last.len()).unwrap_or(u32::MAX));
    for index in 0..pairs {
        let key = reader.value()?;
        if last.get(key) == Some(&index) {
            out.extend_from_slice(key);
            value(reader, depth, out)?;
        } else {
            reader.skip()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Progress, to_msgpack, write_value};

    fn written(json: &str) -> String {
        let (mut packed, mut out) = (Vec::new(), Vec::new());
        let read = to_msgpack(json.as_bytes(), &mut packed).unwrap();
        assert_eq!(read, Progress::Consumed(json.len()));
        assert_eq!(write_value(&packed, 0, &mut out).unwrap(), packed.len());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_last_value_of_a_repeated_key_is_written() {
        for (json, expected) in [
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (
                r#"{"a":1,"b":2,"a":3,"c":4,"b":5}"#,
                r#"{"a":3,"c":4,"b":5}"#,
            ),
            (
                r#"{"x":{"y":[{"a":1,"a":{"b":1,"b":2}}]},"z":{"a":1}}"#,
                r#"{"x":{"y":[{"a":{"b":2}}]},"z":{"a":1}}"#,
            ),
            (r#"[{"a":1,"b":1},{"a":1}]"#, r#"[{"a":1,"b":1},{"a":1}]"#),
        ] {
            assert_eq!(written(json), expected);
        }
    }

    #[test]
    fn repeats_are_found_in_maps_of_any_size() {
        for count in [2, 5, 16, 31, 32, 33, 64, 1000] {
            for repeated in [0, count / 2, count - 1] {
                let names: Vec<_> = (0..count).map(|n| format!("\"k{n}\":0")).collect();
                let plain = format!("{{{}}}", names.join(","));
                assert_eq!(written(&plain), plain);
                let json = format!("{{{},\"k{repeated}\":1}}", names.join(","));
                let found = written(&json);
                assert_eq!(found.matches(&format!("\"k{repeated}\":")).count(), 1);
                assert!(found.ends_with(":1}"), "{found}");
                assert_eq!(found.matches(':').count(), count);
            }
        }
    }
}
