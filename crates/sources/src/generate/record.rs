//! The text of a generated record. The layout is that of millbench, implemented separately so that its verifier stays independent.
//!
//! ```text
//!  0   4  "mb1 "
//!  4   8  run, lower-case hex
//! 12   1  "."
//! 13   4  flow, hex: 0000
//! 17   1  " "
//! 18   1  kind: "d" a data record, "e" the end record
//! 19  16  number, decimal; in the end record: the number of data records
//! 35   1  " "
//! 36   8  check, hex: the upper half of mix(mix(mix(run << 16 | flow) ^ length << 1 ^ is_end) ^ number)
//! 44   1  " "
//! 45   n  padding: byte i is ALPHABET[(number + i) % 64]
//! ```

use millstream_record::Time;
use millstream_wire::msgpack::{
    write_array_len, write_map_len, write_str, write_str_head, write_time,
};

/// Bytes before the padding, and so the shortest record.
pub(super) const HEAD_BYTES: usize = 45;
/// Numbers have 16 digits.
pub(super) const NUMBER_MAX: u64 = 9_999_999_999_999_999;

const NUMBER_AT: usize = 19;
const CHECK_AT: usize = 36;
const ALPHABET: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";

/// Spreads every bit of the input over the output.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (value ^ value >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The bytes before the text of a packed record: `[time, {"message": TEXT}]`.
pub(super) fn packed_head(size: usize, time: Time) -> Vec<u8> {
    let mut head = Vec::new();
    write_array_len(&mut head, 2);
    write_time(&mut head, time);
    write_map_len(&mut head, 1);
    write_str(&mut head, b"message");
    write_str_head(&mut head, u32::try_from(size).unwrap_or(u32::MAX));
    head
}

/// The records of one run.
pub(super) struct Series {
    /// The head of a data record without its number and check.
    head: [u8; HEAD_BYTES],
    /// The alphabet, repeated for the longest padding.
    padding: Vec<u8>,
    size: usize,
    records: u64,
    /// The part of the check that depends on the run and the size: of a data record, and of the end record.
    keys: [u64; 2],
}

impl Series {
    /// `records` records of `size` bytes; 0: without an end.
    pub(super) fn new(run: u32, size: usize, records: u64) -> Self {
        let mut head = [b' '; HEAD_BYTES];
        head[..4].copy_from_slice(b"mb1 ");
        head[4..12].copy_from_slice(&hex(run));
        head[12..17].copy_from_slice(b".0000");
        head[18] = b'd';
        let padding = ALPHABET
            .iter()
            .copied()
            .cycle()
            .take(size + ALPHABET.len())
            .collect();
        Self {
            head,
            padding,
            size,
            records,
            keys: [0, 1]
                .map(|is_end| mix(mix(u64::from(run) << 16) ^ ((size as u64) << 1) ^ is_end)),
        }
    }

    /// The length of a record.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Appends record `number`. The end record follows the last data record.
    pub(super) fn write(&self, number: u64, out: &mut Vec<u8>) {
        let is_end = self.records > 0 && number == self.records;
        let mut head = self.head;
        if is_end {
            head[18] = b'e';
        }
        let (upper, lower) = (number / 100_000_000, number % 100_000_000);
        head[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&decimal(upper));
        head[NUMBER_AT + 8..NUMBER_AT + 16].copy_from_slice(&decimal(lower));
        let check = (mix(self.keys[usize::from(is_end)] ^ number) >> 32) as u32;
        head[CHECK_AT..CHECK_AT + 8].copy_from_slice(&hex(check));
        out.extend_from_slice(&head);
        let phase = (number % ALPHABET.len() as u64) as usize;
        out.extend_from_slice(&self.padding[phase..phase + self.size - HEAD_BYTES]);
    }
}

/// The eight digits of a number below 10^8. All are computed at once: halves, quarters, digits.
fn decimal(value: u64) -> [u8; 8] {
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let upper = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = upper | ((fours - 100 * upper) << 16);
    let upper = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    let ones = upper | ((twos - 10 * upper) << 8);
    (ones + 0x3030_3030_3030_3030).to_le_bytes()
}

/// The eight hexadecimal digits of a number, all at once.
fn hex(value: u32) -> [u8; 8] {
    let bytes = u64::from(value.swap_bytes());
    let bytes = (bytes | (bytes << 16)) & 0x0000_ffff_0000_ffff;
    let bytes = (bytes | (bytes << 8)) & 0x00ff_00ff_00ff_00ff;
    let nibbles = ((bytes >> 4) & 0x000f_000f_000f_000f) | ((bytes & 0x000f_000f_000f_000f) << 8);
    let letters = ((nibbles + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    // From '0', and from 'a' - 10.
    (nibbles + 0x3030_3030_3030_3030 + letters * 0x27).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_standard_library() {
        let mut value = 0_u64;
        for step in 0..20_000_u64 {
            value = mix(value ^ step);
            let number = value % 10_u64.pow((step % 9) as u32);
            assert_eq!(decimal(number), format!("{number:08}").as_bytes());
            assert_eq!(
                hex(value as u32),
                format!("{:08x}", value as u32).as_bytes()
            );
        }
        assert_eq!(&decimal(99_999_999), b"99999999");
        assert_eq!(&hex(u32::MAX), b"ffffffff");
    }

    fn text(series: &Series, number: u64) -> String {
        let mut out = Vec::new();
        series.write(number, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_record_has_the_layout_of_millbench() {
        let series = Series::new(0x5f3a_9c01, 60, 0);
        let record = text(&series, 1_234_567_890_123);
        assert!(
            record.starts_with("mb1 5f3a9c01.0000 d0001234567890123 "),
            "{record}"
        );
        // 1234567890123 % 64 = 11, the letter l.
        assert!(record.ends_with(" lmnopqrstuvwxyz"), "{record}");
        assert_eq!(record.len(), 60);
    }

    #[test]
    fn the_end_record_has_the_number_of_data_records() {
        let series = Series::new(1, 45, 7);
        assert_eq!(&text(&series, 6)[17..36], " d0000000000000006 ");
        assert_eq!(&text(&series, 7)[17..36], " e0000000000000007 ");
    }
}
