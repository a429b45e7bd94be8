//! Separates the valid entries of a payload from misfits, which are values that are not entries, and removes the marks of groups. Only
//! payloads with misfits, marks or entries without a time need this.

use millstream_record::Time;

use super::groups::Group;
use crate::msgpack::{Reader, Shape, entry_shape, is_array, replacing_time, write_time};

/// The numbers of sorted values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sifted {
    /// Entries in `good`.
    pub good: u32,
    /// Values in `bad`.
    pub bad: u32,
}

/// Appends the valid entries of `payload` to `good` and all other values to `bad`. Both keep their order, and the values
/// stay unchanged. An entry whose time is nil or a float is appended to `good`, too, with the time [`replacing_time`]. The entries of a
/// group get the metadata of the group, and its marks are removed. Stops where the payload becomes unreadable, at
/// [`Check::whole`](super::Check::whole).
pub fn sift(payload: &[u8], received: Time, good: &mut Vec<u8>, bad: &mut Vec<u8>) -> Sifted {
    let mut reader = Reader::new(payload);
    let mut sifted = Sifted::default();
    let mut group = None;
    while let Ok(value) = reader.value() {
        match (entry_shape(value), group) {
            (Shape::Mark, _) => {
                group = Group::of(value);
                continue;
            }
            (shape @ (Shape::Good | Shape::Timeless), Some(group)) => {
                let time = (shape == Shape::Timeless).then(|| time_of(value, received));
                // Cannot fail: the value has the shape of an entry.
                let _ = Group::write(group, value, time, good);
            }
            (Shape::Good, None) => good.extend_from_slice(value),
            (Shape::Timeless, None) => {
                let mut head = Reader::new(value);
                // Cannot fail: the value has the shape of an entry, so it begins with an array.
                let _ = head.array_len();
                good.push(0x92);
                write_timed(
                    value.get(head.position()..).unwrap_or_default(),
                    received,
                    good,
                );
            }
            (Shape::Misfit, _) => {
                bad.extend_from_slice(value);
                sifted.bad = sifted.bad.saturating_add(1);
                continue;
            }
        }
        sifted.good = sifted.good.saturating_add(1);
    }
    sifted
}

/// The maximum number of bytes that [`sift`] appends to `good`, without the array markers and times that replace nil.
pub fn sifted_bytes_max(payload: &[u8]) -> usize {
    let mut reader = Reader::new(payload);
    let (mut bytes, mut group) = (0_usize, None::<Group<'_>>);
    while let Ok(value) = reader.value() {
        if entry_shape(value) == Shape::Mark {
            group = Group::of(value);
        }
        let more = group.map_or(0, Group::bytes_max);
        bytes = bytes.saturating_add(value.len()).saturating_add(more);
    }
    bytes
}

/// The time of an entry without a valid one ([`Shape::Timeless`]).
fn time_of(entry: &[u8], received: Time) -> Time {
    let mut reader = Reader::new(entry);
    let _ = reader.array_len();
    if reader.peek().is_ok_and(is_array) {
        let _ = reader.array_len();
    }
    replacing_time(entry.get(reader.position()..).unwrap_or_default(), received)
}

/// Appends `pair`, which is nil or a float (or `[nil, metadata]`) and a record ([`Shape::Timeless`]). [`replacing_time`] replaces the
/// first value.
pub fn write_timed(pair: &[u8], received: Time, out: &mut Vec<u8>) {
    let mut reader = Reader::new(pair);
    if reader.peek().is_ok_and(is_array) {
        let _ = reader.array_len();
        out.push(0x92);
    }
    let value = pair.get(reader.position()..).unwrap_or_default();
    write_time(out, replacing_time(value, received));
    let _ = reader.skip();
    out.extend_from_slice(pair.get(reader.position()..).unwrap_or_default());
}
