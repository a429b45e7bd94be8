//! The part of MessagePack that this program needs to read messages: skipping values, and reading strings, arrays and maps.
//!
//! This code has no recursion, allocates nothing and panics on no input. It distinguishes incomplete input from invalid input. Numbers
//! and extensions can be skipped but not decoded, and there is no encoder.

/// The bytes are invalid: a value begins with 0xc1, which is not a type. More bytes cannot make them valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Reads a big-endian number of 1, 2 or 4 bytes; `None` if it is incomplete.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let digits = bytes.get(at..at.checked_add(width)?)?;
    Some(digits.iter().fold(0, |n, &byte| n << 8 | usize::from(byte)))
}

/// The extent of a value. `end` is the offset at which the value ends. For an array or a map, it is the offset at which the length
/// field ends and the first element begins. `inside` is the number of values directly in an array or map: its elements, or its keys
/// and values. It is 0 for other values.
struct Head {
    end: usize,
    inside: usize,
}

/// Reads the head of the value at `at`. `None` if the head is incomplete.
fn head(bytes: &[u8], at: usize) -> Result<Option<Head>, Broken> {
    let Some(&code) = bytes.get(at) else {
        return Ok(None);
    };
    let fixed = |len: usize| {
        Ok(Some(Head {
            end: at + len,
            inside: 0,
        }))
    };
    // `width` is the size of the length field in bytes. `extra` is the number of further bytes that the length does not include: 1 for
    // the type of an extension. `per` is the number of values per counted element: 1 in an array, 2 in a map, 0 for other types.
    let (width, extra, per) = match code {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => return fixed(1),
        0x80..=0x8f => {
            let inside = 2 * usize::from(code & 0x0f);
            return Ok(Some(Head {
                end: at + 1,
                inside,
            }));
        }
        0x90..=0x9f => {
            let inside = usize::from(code & 0x0f);
            return Ok(Some(Head {
                end: at + 1,
                inside,
            }));
        }
        0xa0..=0xbf => return fixed(1 + usize::from(code & 0x1f)),
        0xc1 => return Err(Broken),
        0xcc | 0xd0 => return fixed(2),
        0xcd | 0xd1 => return fixed(3),
        0xca | 0xce | 0xd2 => return fixed(5),
        0xcb | 0xcf | 0xd3 => return fixed(9),
        0xd4 => return fixed(3),
        0xd5 => return fixed(4),
        0xd6 => return fixed(6),
        0xd7 => return fixed(10),
        0xd8 => return fixed(18),
        0xc4 | 0xd9 => (1, 0, 0),
        0xc5 | 0xda => (2, 0, 0),
        0xc6 | 0xdb => (4, 0, 0),
        0xc7 => (1, 1, 0),
        0xc8 => (2, 1, 0),
        0xc9 => (4, 1, 0),
        0xdc => (2, 0, 1),
        0xdd => (4, 0, 1),
        0xde => (2, 0, 2),
        0xdf => (4, 0, 2),
    };
    let Some(count) = number(bytes, at + 1, width) else {
        return Ok(None);
    };
    let start = at + 1 + width;
    Ok(Some(match per {
        0 => Head {
            end: start.saturating_add(extra).saturating_add(count),
            inside: 0,
        },
        per => Head {
            end: start,
            inside: count.saturating_mul(per),
        },
    }))
}

/// The offset at which the value at `at` ends; `None` if it is incomplete.
pub fn skip(bytes: &[u8], at: usize) -> Result<Option<usize>, Broken> {
    let (mut at, mut left) = (at, 1usize);
    while left > 0 {
        let Some(head) = head(bytes, at)? else {
            return Ok(None);
        };
        if head.end > bytes.len() {
            return Ok(None);
        }
        at = head.end;
        left = (left - 1).saturating_add(head.inside);
    }
    Ok(Some(at))
}

/// An iterator over the elements of an array.
pub struct Array<'a> {
    bytes: &'a [u8],
    at: usize,
    left: usize,
}

impl<'a> Array<'a> {
    /// Reads the array in `bytes`. `None` if the value is not an array, or its head is incomplete.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let array = matches!(bytes.first()?, 0x90..=0x9f | 0xdc | 0xdd);
        let head = head(bytes, 0).ok()??;
        array.then_some(Self {
            bytes,
            at: head.end,
            left: head.inside,
        })
    }
}

impl<'a> Iterator for Array<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let end = skip(self.bytes, self.at).ok()??;
        let value = &self.bytes[self.at..end];
        self.at = end;
        Some(value)
    }
}

/// A map. Every search scans it from its first key.
pub struct Map<'a> {
    bytes: &'a [u8],
    at: usize,
    pairs: usize,
}

impl<'a> Map<'a> {
    /// Reads the map in `bytes`. `None` if the value is not a map, or its head is incomplete.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let map = matches!(bytes.first()?, 0x80..=0x8f | 0xde | 0xdf);
        let head = head(bytes, 0).ok()??;
        map.then_some(Self {
            bytes,
            at: head.end,
            pairs: head.inside / 2,
        })
    }

    /// The value of the first key with this name; `None` without such a key.
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        let mut at = self.at;
        for _ in 0..self.pairs {
            let key_end = skip(self.bytes, at).ok()??;
            let value_end = skip(self.bytes, key_end).ok()??;
            if text(&self.bytes[at..key_end]) == Some(name) {
                return Some(&self.bytes[key_end..value_end]);
            }
            at = value_end;
        }
        None
    }
}

/// The bytes of a string or binary; `None` if the value is neither.
pub fn text(value: &[u8]) -> Option<&[u8]> {
    let start = match value.first()? {
        0xa0..=0xbf => 1,
        0xc4 | 0xd9 => 2,
        0xc5 | 0xda => 3,
        0xc6 | 0xdb => 5,
        _ => return None,
    };
    value.get(start..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_complete_invalid_or_incomplete() {
        // [1, "ab", {"k": [nil, 2^32]}, ext, float64]
        let value = [
            0x95, 0x01, 0xa2, b'a', b'b', 0x81, 0xa1, b'k', 0x92, 0xc0, 0xcf, 0, 0, 0, 1, 0, 0, 0,
            0, 0xd7, 0x00, 1, 2, 3, 4, 5, 6, 7, 8, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(skip(&value, 0), Ok(Some(value.len())));
        for cut in 0..value.len() {
            assert_eq!(skip(&value[..cut], 0), Ok(None), "{cut}");
        }
        assert_eq!(skip(&[0x92, 0xc1], 0), Err(Broken));
        assert_eq!(Array::read(&value).unwrap().count(), 5);
    }

    #[test]
    fn a_huge_length_is_incomplete_input_and_allocates_nothing() {
        assert_eq!(skip(&[0xdf, 0xff, 0xff, 0xff, 0xff], 0), Ok(None));
        assert_eq!(skip(&[0xdb, 0xff, 0xff, 0xff, 0xff, 1], 0), Ok(None));
        let deep = vec![0x91; 100_000];
        assert_eq!(skip(&deep, 0), Ok(None));
    }

    #[test]
    fn a_map_is_searched_by_name() {
        let map = [0x82, 0xa1, b'a', 0x01, 0xa1, b'b', 0xc4, 0x01, b'x'];
        let map = Map::read(&map).unwrap();
        assert_eq!(map.get(b"b").and_then(text), Some(&b"x"[..]));
        assert_eq!(map.get(b"c"), None);
    }
}
