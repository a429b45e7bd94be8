//! Reads leases of format version 1, which earlier releases wrote.
//!
//! ```text
//! header  0 "MSLEASES" | 8 version u32 | 12 channel id, 16 bytes | 28 crc u32 of 0..28
//! record  0 length of the body u16 | 2 kind u16 | 4 crc u32 of kind and body | 8 body
//! ```
//! Kinds and bodies are those of the current version. CRCs are CRC-32C.

use std::ops::Range;

use millstream_state::{Fields, Recovered};
use millstream_sys::checksum::{crc32c, crc32c_of};

use super::{FORMAT, LEASE, LEASE_BYTES, SERVER, SERVER_BYTES_MAX, TITLE};

const HEADER_BYTES: usize = 32;
const VERSION: u32 = 1;

/// Reads the records of a file. An incomplete record at the end is ignored. Invalid bytes before a valid record, or an invalid
/// header, are reported as a hole.
pub(super) fn read(bytes: &[u8]) -> Recovered {
    let Some(channel) = channel(bytes) else {
        return Recovered {
            holes: hole(0..bytes.len()),
            ..Recovered::default()
        };
    };
    let mut bodies = vec![[&TITLE.to_le_bytes(), channel].concat()];
    let mut holes = Vec::new();
    let (mut at, mut end) = (HEADER_BYTES, HEADER_BYTES);
    while let Some(unread) = bytes.get(at..).filter(|unread| !unread.is_empty()) {
        let Some((body, length)) = record(unread) else {
            at += 1;
            continue;
        };
        holes.extend(hole(end..at));
        bodies.push(body);
        at += length;
        end = at;
    }
    Recovered {
        holes,
        ..Recovered::of(bodies)
    }
}

fn hole(range: Range<usize>) -> Vec<Range<u64>> {
    let hole = range.start as u64..range.end as u64;
    (!hole.is_empty()).then_some(hole).into_iter().collect()
}

/// Returns the channel id, or None if the header is not valid.
fn channel(bytes: &[u8]) -> Option<&[u8]> {
    let (text, sum) = bytes.get(..HEADER_BYTES)?.split_last_chunk::<4>()?;
    let mut fields = Fields::new(text.strip_prefix(FORMAT.format.magic)?);
    let is_whole = crc32c(text).to_le_bytes() == *sum && fields.u32()? == VERSION;
    is_whole.then_some(fields.rest())
}

/// Returns the record at the start of `bytes`, converted to the current version, and its length in the file. Returns None if there
/// is no valid record.
fn record(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut fields = Fields::new(bytes);
    let (length, kind, sum) = (usize::from(fields.u16()?), fields.u16()?, fields.u32()?);
    let lengths = match kind {
        SERVER => 4..=SERVER_BYTES_MAX,
        LEASE => LEASE_BYTES..=LEASE_BYTES,
        _ => return None,
    };
    let body = fields.take(length).filter(|_| lengths.contains(&length))?;
    let kind = kind.to_le_bytes();
    (crc32c_of(&[&kind, body]) == sum).then(|| ([&kind, body].concat(), 8 + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of [`golden`] without its checksum.
    const GOLDEN: &[u8] = b"MSLEASES\x01\0\0\0\
        \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07";

    /// A file of version 1 for channel 7: server 0 is `a:1`, and it has a lease of part 2 of the batch at position 1.5 (epoch 1,
    /// sequence 5).
    fn golden() -> Vec<u8> {
        let mut bytes = GOLDEN.to_vec();
        bytes.extend(crc32c(GOLDEN).to_le_bytes());
        let records: [(u16, &[u8]); 2] = [
            (SERVER, b"\0\0\0\0a:1"),
            (LEASE, b"\x01\0\0\0\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"),
        ];
        for (kind, body) in records {
            bytes.extend((body.len() as u16).to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(crc32c_of(&[&kind.to_le_bytes(), body]).to_le_bytes());
            bytes.extend(body);
        }
        bytes
    }

    #[test]
    fn a_file_of_version_1_is_read_and_damage_in_it_is_a_hole() {
        let whole = golden();
        let recovered = read(&whole);
        assert_eq!(recovered.records.len(), 3);
        assert_eq!(recovered.holes, []);
        let mut damaged = whole.clone();
        damaged[HEADER_BYTES + 10] ^= 1;
        let recovered = read(&damaged);
        assert_eq!(recovered.records.len(), 2);
        assert!(matches!(&recovered.holes[..], [hole] if *hole == (32..32 + 15)));
        damaged[9] ^= 1;
        assert!(matches!(&read(&damaged).holes[..], [hole] if *hole == (0..whole.len() as u64)));
        assert_eq!(read(&whole[..whole.len() - 1]).holes, [], "a torn end");
        assert_eq!(read(b"").holes, []);
    }

    #[test]
    fn leases_of_version_1_are_converted() {
        use std::{io::IoSlice, path::Path, sync::Arc};

        use millstream_record::Position;
        use millstream_sys::disk::{Disk, Open};
        use millstream_testkit::SimulatedDisk;

        use super::super::{Leases, Turn};

        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
        disk.create_directory(Path::new("/out")).unwrap();
        let file = disk.open(Path::new("/out/leases"), Open::Create).unwrap();
        file.write_at(&[IoSlice::new(&golden())], 0).unwrap();
        drop(file);
        let place = (Position { epoch: 1, seq: 5 }, 2);
        // The first open reads version 1 and writes the current version, which the second open reads.
        for _ in 0..2 {
            let open = Leases::open(disk.clone(), Path::new("/out"), 7, &Turn::default());
            let leases = open.unwrap();
            assert_eq!(leases.holder(place), Some("a:1"));
            assert_eq!(leases.damaged_bytes(), 0);
        }
    }
}
