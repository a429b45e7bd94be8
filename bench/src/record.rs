//! The numbered record: the generator writes it, and the verifier checks it without further information.
//!
//! A record is one line of text of a fixed length. Its content follows from (run, flow, kind, number, length). So the verifier
//! builds the expected text and compares every byte; it needs no copy of the sent records.
//!
//! ```text
//!  0   4  "mb1 "
//!  4   8  run, lower-case hex: identifies one start of the generator, and later starts that resume it with the same ledger
//! 12   1  "."
//! 13   4  flow, hex: one connection, or one of several sequences in a file
//! 17   1  " "
//! 18   1  kind: "d" a data record, "e" the end record
//! 19  16  number, decimal: data records are numbered from 0; in an end record, the flow's number of data records
//! 35   1  " "
//! 36   8  check, hex: a hash of all of the above and of the length
//! 44   1  " "
//! 45   n  padding: byte i is ALPHABET[(number + i) % 64]
//! ```
//!
//! `generate` encodes this text, for example in MessagePack; `verify` finds out which records arrived.

use std::fmt;

/// The start of every record; the `1` is the version of this layout.
pub const MAGIC: &[u8; 4] = b"mb1 ";
/// The bytes before the padding, and so the length of the shortest record.
pub const HEAD: usize = 45;
/// The length of the longest record: the longest line that Millstream accepts by default.
pub const TEXT_MAX: usize = 1 << 20;
/// The padding repeats after this number of records. Records whose numbers differ by a multiple of it differ only in the head.
pub const PERIOD: u64 = 64;

const KIND_AT: usize = 18;
const NUMBER_AT: usize = 19;
const CHECK_AT: usize = 36;
const ALPHABET: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
/// Padding is copied and compared in pieces of this size, a multiple of the period.
const PIECE: usize = 4096;

/// `PATTERN[phase..]` is the padding of the records whose number is `phase` modulo 64.
static PATTERN: [u8; PIECE + 64] = {
    let mut pattern = [0; PIECE + 64];
    let mut at = 0;
    while at < pattern.len() {
        pattern[at] = ALPHABET[at % 64];
        at += 1;
    }
    pattern
};

/// Identifies one sequence of numbered records in a run of the generator: a connection, or one of several sequences in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    /// The run of the generator.
    pub run: u32,
    /// The flow in that run.
    pub flow: u16,
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}.{:04x}", self.run, self.flow)
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A data record.
    Data,
    /// The last record of a flow. Its number is the count of data records.
    End,
}

/// The fields of a record. Together with the length they determine every byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The flow.
    pub flow: FlowId,
    /// Data or end.
    pub kind: Kind,
    /// The number of a data record; in an end record, the flow's number of data records.
    pub number: u64,
}

/// The part of the check that all records of a flow, kind and length share.
#[derive(Clone, Copy, Debug)]
pub struct Key(u64);

impl Key {
    /// The key for records of `len` bytes.
    pub fn new(flow: FlowId, kind: Kind, len: usize) -> Self {
        let who = u64::from(flow.run) << 16 | u64::from(flow.flow);
        Self(mix(mix(who)
            ^ (len as u64) << 1
            ^ u64::from(kind == Kind::End)))
    }
}

/// Fills `text` with a record. The length of `text`, at least [`HEAD`], is the length of the record.
pub fn write(text: &mut [u8], record: Record) {
    let key = Key::new(record.flow, record.kind, text.len());
    let (head, padding) = text.split_at_mut(HEAD);
    write_head(head, key, record);
    let phase = (record.number % PERIOD) as usize;
    for piece in padding.chunks_mut(PIECE) {
        let len = piece.len();
        piece.copy_from_slice(&PATTERN[phase..phase + len]);
    }
}

fn write_head(head: &mut [u8], key: Key, record: Record) {
    head.fill(b' ');
    head[..4].copy_from_slice(MAGIC);
    head[4..12].copy_from_slice(&hex(record.flow.run));
    head[12] = b'.';
    head[13..17].copy_from_slice(&hex(u32::from(record.flow.flow))[4..]);
    head[KIND_AT] = match record.kind {
        Kind::Data => b'd',
        Kind::End => b'e',
    };
    renumber(head, key, record.number);
}

/// Replaces the number of a record. The new number must differ from the old one by a multiple of [`PERIOD`], because the padding is
/// not changed. This is the generator's inner loop.
#[inline]
pub fn renumber(text: &mut [u8], key: Key, number: u64) {
    let head: &mut [u8; HEAD] = (&mut text[..HEAD])
        .try_into()
        .expect("the slice has this length");
    let digits = decimal(number);
    head[NUMBER_AT..NUMBER_AT + 16].copy_from_slice(&digits);
    let check = (mix(key.0 ^ number) >> 32) as u32;
    head[CHECK_AT..CHECK_AT + 8].copy_from_slice(&hex(check));
}

/// Parses a record and compares every byte with the one that its fields and length determine. `None` if any byte differs.
pub fn check(text: &[u8]) -> Option<Record> {
    if text.len() < HEAD || text.len() > TEXT_MAX || !text.starts_with(MAGIC) {
        return None;
    }
    let record = Record {
        flow: FlowId {
            run: u32::try_from(parse(&text[4..12], 16)?).ok()?,
            flow: u16::try_from(parse(&text[13..17], 16)?).ok()?,
        },
        kind: match text[KIND_AT] {
            b'd' => Kind::Data,
            b'e' => Kind::End,
            _ => return None,
        },
        number: parse(&text[NUMBER_AT..NUMBER_AT + 16], 10)?,
    };
    let mut head = [0; HEAD];
    let key = Key::new(record.flow, record.kind, text.len());
    write_head(&mut head, key, record);
    if head != text[..HEAD] {
        return None;
    }
    let phase = (record.number % PERIOD) as usize;
    let right = |piece: &[u8]| piece == &PATTERN[phase..phase + piece.len()];
    text[HEAD..].chunks(PIECE).all(right).then_some(record)
}

/// Parses at most 16 digits in base 10 or 16. `None` if a character is not a digit.
fn parse(digits: &[u8], base: u64) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, &digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' if base == 16 => digit - b'a' + 10,
            _ => return None,
        };
        Some(value * base + u64::from(digit))
    })
}

/// Spreads every bit of the input over the output, with the final step of a well-known family of 64-bit hashes.
#[inline]
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (value ^ value >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Returns eight hex digits without a loop: spreads the nibbles over eight bytes, then turns all bytes into ASCII together.
#[inline]
fn hex(value: u32) -> [u8; 8] {
    let x = u64::from(value);
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    let x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (x + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (x + 0x3030_3030_3030_3030 + letters * 0x27).to_be_bytes()
}

/// Returns sixteen decimal digits.
#[inline]
fn decimal(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    digits[..8].copy_from_slice(&decimal8((number / 100_000_000 % 100_000_000) as u32));
    digits[8..].copy_from_slice(&decimal8((number % 100_000_000) as u32));
    digits
}

/// Returns the eight decimal digits of a number below 100,000,000. Splits the number into two lanes of four digits, then four lanes
/// of two, then eight of one. A multiplication and a shift replace each division by 100 and 10; the result is exact for values this
/// small.
#[inline]
fn decimal8(value: u32) -> [u8; 8] {
    let x = u64::from(value / 10_000) | u64::from(value % 10_000) << 32;
    let hundreds = (x * 10_486) >> 20 & 0x0000_007f_0000_007f;
    let x = hundreds | (x - hundreds * 100) << 16;
    let tens = (x * 103) >> 10 & 0x000f_000f_000f_000f;
    let x = tens | (x - tens * 10) << 8;
    (x | 0x3030_3030_3030_3030).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest number, because numbers have 16 digits.
    const NUMBER_MAX: u64 = 9_999_999_999_999_999;
    const FLOW: FlowId = FlowId {
        run: 0x5f3a_9c01,
        flow: 0x2a,
    };

    fn data(number: u64) -> Record {
        Record {
            flow: FLOW,
            kind: Kind::Data,
            number,
        }
    }

    #[test]
    fn a_record_has_the_documented_layout() {
        let mut text = [0; 60];
        write(&mut text, data(1_234_567_890_123));
        let text = std::str::from_utf8(&text).unwrap();
        assert!(
            text.starts_with("mb1 5f3a9c01.002a d0001234567890123 "),
            "{text}"
        );
        // 1234567890123 % 64 = 11, the letter l
        assert!(text.ends_with(" lmnopqrstuvwxyz"), "{text}");
    }

    #[test]
    fn records_of_every_length_and_number_are_read_back() {
        for len in [HEAD, HEAD + 1, 100, 255, 256, 5000, 70_000] {
            for number in [0, 1, 63, 64, 99_999_999, 100_000_000, NUMBER_MAX] {
                for kind in [Kind::Data, Kind::End] {
                    let mut text = vec![0; len];
                    let record = Record {
                        flow: FLOW,
                        kind,
                        number,
                    };
                    write(&mut text, record);
                    assert_eq!(check(&text), Some(record));
                }
            }
        }
    }

    #[test]
    fn any_single_changed_byte_is_noticed() {
        let mut text = [0; 120];
        write(&mut text, data(77_123));
        for at in 0..text.len() {
            for flip in 1..=255u8 {
                let mut broken = text;
                broken[at] ^= flip;
                assert_eq!(check(&broken), None, "byte {at} xor {flip}");
            }
        }
    }

    #[test]
    fn a_cut_or_grown_record_is_noticed() {
        let mut text = [0; 130];
        write(&mut text[..120], data(5));
        for len in 0..120 {
            assert_eq!(check(&text[..len]), None, "{len}");
        }
        // More bytes that continue the padding do not make a valid longer record: the check depends on the length.
        for at in 120..130 {
            text[at] = ALPHABET[(5 + at - HEAD) % 64];
            assert_eq!(check(&text[..=at]), None);
        }
    }

    #[test]
    fn a_renumbered_record_equals_a_newly_written_one() {
        let mut patched = [0; 100];
        write(&mut patched, data(3));
        let key = Key::new(FLOW, Kind::Data, 100);
        for number in (3..200_000).step_by(64).chain([1 << 40 | 3]) {
            renumber(&mut patched, key, number);
            let mut fresh = [0; 100];
            write(&mut fresh, data(number));
            assert_eq!(patched, fresh);
        }
    }

    #[test]
    fn digits_are_those_of_the_standard_library() {
        for number in (0..100_000_000u64).step_by(997).chain([99_999_999]) {
            assert_eq!(
                decimal(number).as_slice(),
                format!("{number:016}").as_bytes()
            );
        }
        for value in [0, 9, 10, 0x1234_abcd, u32::MAX, 0x0a0b_0c0d, 0x9a9a_9a9a] {
            assert_eq!(hex(value).as_slice(), format!("{value:08x}").as_bytes());
        }
    }
}
