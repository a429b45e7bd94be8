//! Separates the valid entries of a payload from misfits, which are values that are not entries. Only payloads with
//! misfits need this.

use millstream_record::Time;

use crate::msgpack::{Reader, Shape, entry_shape, is_array, write_time};

/// The numbers of sorted values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sifted {
    /// Entries in `good`.
    pub good: u32,
    /// Values in `bad`.
    pub bad: u32,
}

/// Appends the valid entries of `payload` to `good` and all other values to `bad`. Both keep their order, and the values
/// stay unchanged. An entry whose time is nil is appended to `good`, too, but gets the time `received`. Stops where the
/// payload becomes unreadable, at [`Check::whole`](super::Check::whole).
pub fn sift(payload: &[u8], received: Time, good: &mut Vec<u8>, bad: &mut Vec<u8>) -> Sifted {
    let mut reader = Reader::new(payload);
    let mut sifted = Sifted::default();
    while let Ok(value) = reader.value() {
        match entry_shape(value) {
            Shape::Good => good.extend_from_slice(value),
            Shape::Timeless => {
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
            Shape::Misfit => {
                bad.extend_from_slice(value);
                sifted.bad = sifted.bad.saturating_add(1);
                continue;
            }
        }
        sifted.good = sifted.good.saturating_add(1);
    }
    sifted
}

/// Appends `pair`, which is a nil time (or `[nil, metadata]`) and a record ([`Shape::Timeless`]). The time `received` replaces nil.
pub fn write_timed(pair: &[u8], received: Time, out: &mut Vec<u8>) {
    let mut reader = Reader::new(pair);
    if reader.peek().is_ok_and(is_array) {
        let _ = reader.array_len();
        out.push(0x92);
    }
    write_time(out, received);
    // Nil is one byte.
    out.extend_from_slice(pair.get(reader.position() + 1..).unwrap_or_default());
}
