//! The framing of a journal's records, and the search for records in a damaged file.
//!
//! ```text
//! each record begins at a multiple of 8
//! offset bytes
//!      0   4   N: length of the body, not 0
//!      4   4   CRC-32C of the generation of the file (8), the offset of the record (8), N (4) and the body
//!      8   N   body, padded with zeros
//! ```
//! The checksum binds a record to its offset and to the generation of the file, a number that every replacement of the file raises. So
//! stale bytes of an earlier generation are never taken for a record.

use std::ops::Range;

use millstream_sys::checksum::crc32c_of;

use crate::seal::{HEADER_BYTES, u32_at};

/// Bytes before the body of a record.
pub(crate) const HEAD_BYTES: usize = 8;
const ALIGN: usize = 8;
/// The limit on the bytes that a scan checks while it searches for the next valid record, as a multiple of the file's size. The search
/// has to compute a checksum over all bytes that look like a record. The limit suffices for the stale records of an earlier
/// generation, which together are smaller than the file.
const PROOF_FACTOR: usize = 8;

/// A record of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The offset of its body in the file.
    pub at: u64,
    /// Its body.
    pub body: Vec<u8>,
}

/// The number of bytes that a record takes if its body has `body` bytes.
pub(crate) const fn frame_bytes(body: usize) -> usize {
    (HEAD_BYTES + body).next_multiple_of(ALIGN)
}

/// Appends a record, which is meant for the offset `at` of the file, to `out`. The body is the concatenation of `parts`.
pub(crate) fn push(out: &mut Vec<u8>, generation: u64, at: u64, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    debug_assert!(length > 0, "a record has a body");
    let start = out.len();
    // Journals are bounded far below 4 GiB.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    let checksum = checksum(generation, at, length, &out[start + HEAD_BYTES..]);
    out[start + 4..start + HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
    out.resize(start + frame_bytes(length as usize), 0);
}

/// The body of the record at `at`; `None` if there is no valid record.
pub(crate) fn body_at(bytes: &[u8], at: usize, generation: u64, body_max: usize) -> Option<&[u8]> {
    let length = length_at(bytes, at, body_max)?;
    let body = bytes.get(at + HEAD_BYTES..)?.get(..length)?;
    let expected = checksum(generation, at as u64, u32::try_from(length).ok()?, body);
    (u32_at(bytes, at + 4) == Some(expected)).then_some(body)
}

/// The length of the body that the head at `at` states. The checksum is not verified. `None` if no record can have this length.
fn length_at(bytes: &[u8], at: usize, body_max: usize) -> Option<usize> {
    let length = u32_at(bytes, at)? as usize;
    let rest = bytes.len().checked_sub(at + HEAD_BYTES)?;
    (1..=body_max.min(rest)).contains(&length).then_some(length)
}

fn checksum(generation: u64, at: u64, length: u32, body: &[u8]) -> u32 {
    crc32c_of(&[
        &generation.to_le_bytes(),
        &at.to_le_bytes(),
        &length.to_le_bytes(),
        body,
    ])
}

/// The records of a file, or of a file and its copy.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) records: Vec<Record>,
    /// The offset after the last record.
    pub(crate) end: usize,
    /// Ranges that are invalid in both files and are followed by a record. Invalid bytes after the last record are a torn end instead.
    pub(crate) holes: Vec<Range<u64>>,
    /// For each file, the bytes of records that only the other file has.
    pub(crate) lacks: [u64; 2],
}

/// Reads the records after the header. Each record is taken from the file or from its copy, whichever has a valid one.
pub(crate) fn scan(sides: [&[u8]; 2], generation: u64, body_max: usize) -> Scan {
    let mut scan = Scan {
        end: HEADER_BYTES,
        ..Scan::default()
    };
    let length = sides[0].len().max(sides[1].len());
    let mut at = HEADER_BYTES;
    let mut last = 0;
    let mut budget = PROOF_FACTOR * length;
    while at < length {
        let bodies = sides.map(|side| body_at(side, at, generation, body_max));
        let Some(body) = bodies.iter().flatten().next() else {
            let read = sides
                .iter()
                .filter_map(|side| length_at(side, at, body_max));
            budget = budget.saturating_sub(read.sum());
            if budget == 0 {
                break;
            }
            at += ALIGN;
            continue;
        };
        if at > scan.end {
            scan.holes.push(scan.end as u64..at as u64);
        }
        last = frame_bytes(body.len());
        for (lacks, body) in scan.lacks.iter_mut().zip(&bodies) {
            *lacks += if body.is_none() { last as u64 } else { 0 };
        }
        scan.records.push(Record {
            at: (at + HEAD_BYTES) as u64,
            body: body.to_vec(),
        });
        at += last;
        scan.end = at;
    }
    // The copy is written second. If it ends before the last record, a crash came between the two writes, which is not damage.
    if scan.lacks[1] == last as u64 && sides[1].len() <= scan.end - last {
        scan.lacks[1] = 0;
    }
    scan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bodies: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        for body in bodies {
            let at = bytes.len() as u64;
            push(&mut bytes, 7, at, &[body]);
        }
        bytes
    }

    fn bodies(scan: &Scan) -> Vec<&[u8]> {
        scan.records.iter().map(|record| &*record.body).collect()
    }

    #[test]
    fn records_are_found_up_to_a_torn_end() {
        let bytes = file(&[b"one", b"two and more", b"three"]);
        for cut in 0..bytes.len() {
            let scan = scan([&bytes[..cut], &[]], 7, 100);
            assert!(b"one,two and more,three".starts_with(&bodies(&scan).join(&b","[..])));
            assert!(scan.holes.is_empty() && scan.end <= cut.max(HEADER_BYTES).next_multiple_of(8));
        }
        assert_eq!(bodies(&scan([&bytes, &[]], 8, 100)), [b"" as &[u8]; 0]);
        assert_eq!(scan([&bytes, &[]], 7, 5).records.len(), 2);
    }

    #[test]
    fn damage_before_a_record_is_a_hole_and_loses_no_other_record() {
        let mut bytes = file(&[b"one", b"two", b"three"]);
        bytes[HEADER_BYTES + 16 + 9] ^= 1;
        let damaged = scan([&bytes, &[]], 7, 100);
        assert_eq!(bodies(&damaged), [&b"one"[..], b"three"]);
        let hole = HEADER_BYTES as u64 + 16..HEADER_BYTES as u64 + 32;
        assert_eq!(damaged.holes, std::slice::from_ref(&hole));
    }

    #[test]
    fn the_search_for_records_reads_a_bounded_multiple_of_the_file() {
        // Each of these heads looks like a record that takes the rest of the file.
        let found_behind = |heads: usize| {
            let mut bytes = file(&[b"one"]);
            let end = bytes.len() + 2 * 8 * 1000 + 16;
            for _ in 0..heads {
                let rest = end - bytes.len() - HEAD_BYTES;
                bytes.extend_from_slice(&(rest as u64).to_le_bytes());
            }
            let at = bytes.len() as u64;
            push(&mut bytes, 7, at, &[b"two"]);
            bytes.resize(end, 0);
            scan([&bytes, &[]], 7, end).records.len() == 2
        };
        assert!(found_behind(PROOF_FACTOR / 2));
        assert!(!found_behind(1000));
    }

    #[test]
    fn a_file_and_its_copy_complete_each_other() {
        let whole = file(&[b"one", b"two", b"three"]);
        let (mut left, mut right) = (whole.clone(), whole.clone());
        left[HEADER_BYTES + 9] ^= 1;
        right[HEADER_BYTES + 16 + 9] ^= 1;
        let both = scan([&left, &right], 7, 100);
        assert_eq!(bodies(&both), [&b"one"[..], b"two", b"three"]);
        assert_eq!((both.holes.len(), both.lacks), (0, [16, 16]));
        // The last record is not in the copy yet.
        let copy = &whole[..whole.len() - 16];
        assert_eq!(scan([&whole, copy], 7, 100).lacks, [0, 0]);
    }
}
