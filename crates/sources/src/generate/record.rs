//! The text of a generated record. The layout is that of millbench. It is implemented separately, so that millbench's verifier
//! stays independent of this source.
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

use std::ops::Range;

use millstream_record::Time;
use millstream_wire::msgpack::{
    write_array_len, write_map_len, write_str, write_str_head, write_time,
};

/// The number of bytes before the padding, and the length of the shortest record.
pub(super) const HEAD_BYTES: usize = 45;
/// The largest number of a record: numbers have 16 digits.
pub(super) const NUMBER_MAX: u64 = 9_999_999_999_999_999;

const KIND_AT: usize = 18;
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

/// The number of records after which the padding repeats.
const CYCLE: u64 = ALPHABET.len() as u64;
/// A cycle of records is stored if it has at most this many bytes, so that it stays in the first levels of the CPU's cache.
const CYCLE_BYTES_MAX: usize = 64 << 10;

/// The records of one run, in the form in which a batch holds them: each record has a prefix and a suffix of constant length.
///
/// Consecutive records differ in the number, the check and the padding. The padding repeats after 64 records. So 64 records are
/// copied in one step, and the numbers and checks are written over the copies.
pub(super) struct Series {
    /// A prefix and the text of a data record before the padding, with spaces in place of the number and the check.
    head: Vec<u8>,
    /// Offset of the text in `head`.
    text_at: usize,
    /// The alphabet, repeated for the longest padding.
    padding: Vec<u8>,
    suffix: &'static [u8],
    size: usize,
    /// The number of the end record; `u64::MAX`: no end.
    end: u64,
    /// The part of the check that depends on the run and the size: first for data records, then for the end record.
    keys: [u64; 2],
    /// The records 0 to 63, without their numbers and checks; empty if they are too large.
    cycle: Vec<u8>,
}

impl Series {
    /// A series of `records` data records of `size` bytes and an end record. If `records` is 0, the series has no end. Each record has
    /// a prefix as long as `prefix` before it, and `suffix` after it.
    pub(super) fn new(
        run: u32,
        size: usize,
        records: u64,
        prefix: &[u8],
        suffix: &'static [u8],
    ) -> Self {
        let mut text = [b' '; HEAD_BYTES];
        text[..4].copy_from_slice(b"mb1 ");
        text[4..12].copy_from_slice(&hex(run));
        text[12..17].copy_from_slice(b".0000");
        text[KIND_AT] = b'd';
        let padding = ALPHABET.iter().copied().cycle();
        let mut series = Self {
            head: [prefix, &text].concat(),
            text_at: prefix.len(),
            padding: padding.take(size + ALPHABET.len()).collect(),
            suffix,
            size,
            end: if records > 0 { records } else { u64::MAX },
            keys: [0, 1]
                .map(|is_end| mix(mix(u64::from(run) << 16) ^ ((size as u64) << 1) ^ is_end)),
            cycle: Vec::new(),
        };
        if series.bytes() <= CYCLE_BYTES_MAX / CYCLE as usize {
            let mut cycle = Vec::new();
            for number in 0..CYCLE {
                series.copy(number, &mut cycle);
            }
            series.cycle = cycle;
        }
        series
    }

    /// The length of the text of a record.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The length of a record with its prefix and suffix.
    pub(super) fn bytes(&self) -> usize {
        self.text_at + self.size + self.suffix.len()
    }

    /// Appends the records with these numbers, each after `prefix`. The end record follows the last data record.
    pub(super) fn write(&self, numbers: Range<u64>, prefix: &[u8], out: &mut Vec<u8>) {
        let bytes = self.bytes();
        let mut next = numbers.start;
        // The first twelve digits hardly ever change.
        let mut digits = Digits::of(next);
        while next < numbers.end {
            let phase = next % CYCLE;
            let count = (CYCLE - phase).min(numbers.end - next);
            let start = out.len();
            let range = phase as usize * bytes..(phase + count) as usize * bytes;
            match self.cycle.get(range) {
                Some(records) => out.extend_from_slice(records),
                None => (next..next + count).for_each(|number| self.copy(number, out)),
            }
            let records = out[start..].chunks_exact_mut(bytes);
            for (record, number) in records.zip(next..) {
                if number >= digits.end {
                    digits = Digits::of(number);
                }
                self.patch(record, number, &digits, prefix);
            }
            next += count;
        }
    }

    /// Appends a record with the padding of `number`, but without its number and check.
    fn copy(&self, number: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        let phase = (number % CYCLE) as usize;
        out.extend_from_slice(&self.padding[phase..phase + self.size - HEAD_BYTES]);
        out.extend_from_slice(self.suffix);
    }

    /// Writes the parts of a record that its copy lacks: the prefix, the kind, the number and the check.
    #[inline(always)]
    fn patch(&self, record: &mut [u8], number: u64, digits: &Digits, prefix: &[u8]) {
        if !prefix.is_empty() {
            record[..prefix.len()].copy_from_slice(prefix);
        }
        let text = record.get_mut(self.text_at..);
        let Some(text) = text.and_then(<[u8]>::first_chunk_mut::<HEAD_BYTES>) else {
            return;
        };
        let is_end = number == self.end;
        if is_end {
            text[KIND_AT] = b'e';
        }
        text[NUMBER_AT..NUMBER_AT + 16].copy_from_slice(&digits.of_first);
        let last = four((number + DIGITS_SPAN - digits.end) as u32);
        text[NUMBER_AT + 12..NUMBER_AT + 16].copy_from_slice(&last);
        let check = (mix(self.keys[usize::from(is_end)] ^ number) >> 32) as u32;
        text[CHECK_AT..CHECK_AT + 8].copy_from_slice(&hex(check));
    }
}

/// How many consecutive numbers share all digits but the last four.
const DIGITS_SPAN: u64 = 10_000;

/// The sixteen digits of the first of [`DIGITS_SPAN`] consecutive numbers.
struct Digits {
    of_first: [u8; 16],
    /// The first number after these numbers.
    end: u64,
}

impl Digits {
    /// The digits for the [`DIGITS_SPAN`] numbers that include `number`.
    fn of(number: u64) -> Self {
        let first = number - number % DIGITS_SPAN;
        let mut of_first = [0; 16];
        of_first[..8].copy_from_slice(&decimal(first / 100_000_000));
        of_first[8..].copy_from_slice(&decimal(first % 100_000_000));
        Self {
            of_first,
            end: first + DIGITS_SPAN,
        }
    }
}

/// The four digits of a number below 10^4, computed in two steps: halves, digits.
#[inline(always)]
fn four(value: u32) -> [u8; 4] {
    let upper = (value * 10_486) >> 20;
    let twos = upper | ((value - 100 * upper) << 16);
    let upper = ((twos * 103) >> 10) & 0x000f_000f;
    let ones = upper | ((twos - 10 * upper) << 8);
    (ones + 0x3030_3030).to_le_bytes()
}

/// The eight digits of a number below 10^8, computed in parallel in three steps: halves, quarters, digits.
fn decimal(value: u64) -> [u8; 8] {
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let upper = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = upper | ((fours - 100 * upper) << 16);
    let upper = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    let ones = upper | ((twos - 10 * upper) << 8);
    (ones + 0x3030_3030_3030_3030).to_le_bytes()
}

/// The eight hexadecimal digits of a number, computed in parallel.
fn hex(value: u32) -> [u8; 8] {
    let bytes = u64::from(value.swap_bytes());
    let bytes = (bytes | (bytes << 16)) & 0x0000_ffff_0000_ffff;
    let bytes = (bytes | (bytes << 8)) & 0x00ff_00ff_00ff_00ff;
    let nibbles = ((bytes >> 4) & 0x000f_000f_000f_000f) | ((bytes & 0x000f_000f_000f_000f) << 8);
    let letters = ((nibbles + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    // A value below ten is added to '0', a larger one to 'a' - 10.
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
        assert!((0..10_000).all(|number| four(number) == format!("{number:04}").as_bytes()));
        assert_eq!(&decimal(99_999_999), b"99999999");
        assert_eq!(&hex(u32::MAX), b"ffffffff");
    }

    fn text(series: &Series, number: u64) -> String {
        let mut out = Vec::new();
        series.write(number..number + 1, b"", &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_record_has_the_layout_of_millbench() {
        let series = Series::new(0x5f3a_9c01, 60, 0, b"", b"");
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
        let series = Series::new(1, 45, 7, b"", b"");
        assert_eq!(&text(&series, 6)[17..36], " d0000000000000006 ");
        assert_eq!(&text(&series, 7)[17..36], " e0000000000000007 ");
    }

    #[test]
    fn records_written_together_equal_those_written_one_by_one() {
        // Sizes on both sides of the largest one whose cycle is stored; numbers on both sides of 10^8.
        for size in [45, 46, 99, 1000, 1020, 1030, 5000] {
            let single = Series::new(9, size, 100_000_050, b"", b"");
            let many = Series::new(9, size, 100_000_050, b"....", b"\n");
            for (first, count) in [(0, 1), (0, 64), (5, 200), (63, 2), (99_999_910, 141)] {
                let numbers = first..first + count;
                let mut out = b"before".to_vec();
                many.write(numbers.clone(), b"1234", &mut out);
                let record = |number| format!("1234{}\n", text(&single, number));
                let expected: String = numbers.map(record).collect();
                assert_eq!(
                    out,
                    format!("before{expected}").as_bytes(),
                    "{size} {first}"
                );
            }
        }
    }
}
