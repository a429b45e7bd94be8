//! A batch of records in the format that brokers store: Kafka's record batch, version 2 of the message format.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! Source: "Message Format" in the documentation of Apache Kafka, `DefaultRecordBatch.java`. A head of 61 bytes is
//! followed by the records, each preceded by its length. In a record, times and offsets are relative to the first record of the
//! batch, and integers are zigzag varints. A record is copied once, into the batch. Sealing a batch compresses its records and
//! computes its checksum (CRC-32C).

use crc_fast::{CrcAlgorithm, checksum};

use super::{compress::Compression, messages::Identity};

/// Length of the head.
pub(super) const HEAD: usize = 61;
/// Where the checksummed part begins.
const SUMMED: usize = 21;
const TRANSACTIONAL: i16 = 1 << 4;

/// A record to be appended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a, H> {
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: &'a [u8],
    /// Milliseconds since 1970.
    pub(super) timestamp: i64,
    /// Names and values.
    pub(super) headers: H,
}

impl<'h, H: Iterator<Item = (&'h [u8], &'h [u8])> + Clone> Parts<'_, H> {
    /// The size of all parts without framing.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.headers.clone();
        let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
        self.key.map_or(0, <[u8]>::len) + self.value.len() + headers
    }
}

/// A batch that records are appended to.
#[derive(Debug)]
pub(super) struct Builder {
    /// The head, still empty, and the records.
    buffer: Vec<u8>,
    count: i32,
    first: i64,
    max: i64,
}

/// The data needed to seal a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seal {
    pub(super) identity: Identity,
    /// Sequence number of the first record.
    pub(super) sequence: i32,
    pub(super) transactional: bool,
    pub(super) compression: Compression,
}

impl Builder {
    /// Builds the batch in `buffer`. The old content of the buffer is discarded.
    pub(super) fn new(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        buffer.resize(HEAD, 0);
        Self {
            buffer,
            count: 0,
            first: 0,
            max: 0,
        }
    }

    /// The size so far, before compression.
    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The maximum number of bytes that a record can add.
    pub(super) fn room_for<'h, H>(parts: &Parts<'_, H>) -> usize
    where
        H: Iterator<Item = (&'h [u8], &'h [u8])> + Clone,
    {
        // The length, the attributes, the time, the offset, the lengths of key and value, and the count of headers.
        let framing = 5 + 1 + 10 + 5 + 5 + 5 + 5;
        let headers = parts.headers.clone();
        let headers: usize = headers
            .map(|(name, value)| name.len() + value.len() + 10)
            .sum();
        framing + parts.key.map_or(0, <[u8]>::len) + parts.value.len() + headers
    }

    /// Appends a record.
    #[inline]
    pub(super) fn append<'h, H>(&mut self, parts: &Parts<'_, H>)
    where
        H: Iterator<Item = (&'h [u8], &'h [u8])> + Clone,
    {
        if self.count == 0 {
            (self.first, self.max) = (parts.timestamp, parts.timestamp);
        }
        self.max = self.max.max(parts.timestamp);
        let after = parts.timestamp.wrapping_sub(self.first);
        let offset = i64::from(self.count);
        let (mut names, mut headers) = (0_i64, 0);
        for (name, value) in parts.headers.clone() {
            names += 1;
            headers += sized(name.len()) + sized(value.len());
        }
        let length = 1
            + width(after)
            + width(offset)
            + parts.key.map_or(1, |key| sized(key.len()))
            + sized(parts.value.len())
            + width(names)
            + headers;
        let out = &mut self.buffer;
        varint(out, signed(length));
        out.push(0);
        varint(out, after);
        varint(out, offset);
        match parts.key {
            Some(key) => put(out, key),
            None => varint(out, -1),
        }
        put(out, parts.value);
        varint(out, names);
        for (name, value) in parts.headers.clone() {
            put(out, name);
            put(out, value);
        }
        self.count += 1;
    }

    /// Seals the batch. Returns the bytes to send. If the batch was compressed, also returns the buffer of the uncompressed records for
    /// reuse.
    ///
    /// # Errors
    ///
    /// Errors of the compressor.
    pub(super) fn seal(self, seal: Seal) -> std::io::Result<(Vec<u8>, Option<Vec<u8>>)> {
        let (mut out, spare) = match seal.compression {
            Compression::None => (self.buffer, None),
            compression => {
                let mut out = vec![0; HEAD];
                compression.append(self.buffer.get(HEAD..).unwrap_or_default(), &mut out)?;
                (out, Some(self.buffer))
            }
        };
        let mut attributes = seal.compression.code();
        if seal.transactional {
            attributes |= TRANSACTIONAL;
        }
        let mut head = Vec::with_capacity(HEAD);
        // The offset of the first record (0, because the broker sets it), then the length of the rest.
        head.extend_from_slice(&0_i64.to_be_bytes());
        let length = i32::try_from(out.len() - 12).unwrap_or(i32::MAX);
        head.extend_from_slice(&length.to_be_bytes());
        // The leader's epoch (unknown), the version, and four bytes for the checksum, which is computed last.
        head.extend_from_slice(&(-1_i32).to_be_bytes());
        head.push(2);
        head.extend_from_slice(&[0; 4]);
        head.extend_from_slice(&attributes.to_be_bytes());
        head.extend_from_slice(&(self.count - 1).to_be_bytes());
        head.extend_from_slice(&self.first.to_be_bytes());
        head.extend_from_slice(&self.max.to_be_bytes());
        head.extend_from_slice(&seal.identity.id.to_be_bytes());
        head.extend_from_slice(&seal.identity.epoch.to_be_bytes());
        head.extend_from_slice(&seal.sequence.to_be_bytes());
        head.extend_from_slice(&self.count.to_be_bytes());
        if let Some(place) = out.get_mut(..HEAD) {
            place.copy_from_slice(&head);
        }
        let summed = out.get(SUMMED..).unwrap_or_default();
        // The library returns the 32 bits of the checksum in a u64.
        let sum = checksum(CrcAlgorithm::Crc32Iscsi, summed) as u32;
        if let Some(place) = out.get_mut(SUMMED - 4..SUMMED) {
            place.copy_from_slice(&sum.to_be_bytes());
        }
        Ok((out, spare))
    }
}

/// The sequence number `count` records after `sequence`. Sequence numbers have 31 bits and wrap around.
pub(super) fn advance(sequence: i32, count: usize) -> i32 {
    let next = (i64::from(sequence) + count as i64) & 0x7fff_ffff;
    i32::try_from(next).unwrap_or(0)
}

fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    varint(out, signed(bytes.len()));
    out.extend_from_slice(bytes);
}

/// The encoded size of a byte string of this length, including the length itself.
fn sized(length: usize) -> usize {
    width(signed(length)) + length
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// The encoded size of a varint.
fn width(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[inline]
fn varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = zigzag(value);
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers<'a> = std::slice::Iter<'a, (&'a [u8], &'a [u8])>;

    fn parts<'a>(
        key: Option<&'a [u8]>,
        value: &'a [u8],
        timestamp: i64,
        headers: &'a [(&'a [u8], &'a [u8])],
    ) -> Parts<'a, std::iter::Copied<Headers<'a>>> {
        let headers = headers.iter().copied();
        Parts {
            key,
            value,
            timestamp,
            headers,
        }
    }

    fn sealed(compression: Compression) -> Vec<u8> {
        let mut builder = Builder::new(vec![9; 3]);
        let headers: &[(&[u8], &[u8])] = &[(b"h", b"v")];
        builder.append(&parts(Some(b"k"), b"one", 1000, headers));
        builder.append(&parts(None, b"two", 998, &[]));
        let (out, _) = builder
            .seal(Seal {
                identity: Identity { id: 7, epoch: 2 },
                sequence: 5,
                transactional: true,
                compression,
            })
            .unwrap();
        out
    }

    /// Written by hand from the documentation of the format. Numbers are zigzag varints: 28 encodes 14.
    const RECORDS: &[u8] = &[
        // The first record: length 14, attributes, time and offset +0, key, value, one header.
        28, 0, 0, 0, 2, b'k', 6, b'o', b'n', b'e', 2, 2, b'h', 2,
        b'v', // The second record: length 9, attributes, time -2, offset +1, no key, value, no header.
        18, 0, 3, 2, 1, 6, b't', b'w', b'o', 0,
    ];

    #[test]
    fn a_batch_has_the_documented_format() {
        let out = sealed(Compression::None);
        let at = |range: std::ops::Range<usize>| out.get(range).unwrap();
        assert_eq!(at(0..8), [0; 8]);
        assert_eq!(
            at(8..12),
            u32::try_from(out.len() - 12).unwrap().to_be_bytes()
        );
        assert_eq!(at(12..17), [255, 255, 255, 255, 2]);
        let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &out[21..]) as u32;
        assert_eq!(at(17..21), sum.to_be_bytes());
        assert_eq!(at(21..23), [0, 16]);
        assert_eq!(at(23..27), 1_i32.to_be_bytes());
        assert_eq!(at(27..35), 1000_i64.to_be_bytes());
        assert_eq!(at(35..43), 1000_i64.to_be_bytes());
        assert_eq!(at(43..51), 7_i64.to_be_bytes());
        assert_eq!(at(51..53), 2_i16.to_be_bytes());
        assert_eq!(at(53..57), 5_i32.to_be_bytes());
        assert_eq!(at(57..61), 2_i32.to_be_bytes());
        assert_eq!(&out[HEAD..], RECORDS);
    }

    #[test]
    fn every_compressed_batch_decompresses_to_its_records() {
        fn read(mut reader: impl std::io::Read) -> Vec<u8> {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        }
        for (compression, code) in [
            (Compression::Gzip, 1),
            (Compression::Snappy, 2),
            (Compression::Lz4, 3),
            (Compression::Zstd, 4),
        ] {
            let out = sealed(compression);
            assert_eq!(out[21..23], [0, 16 + code]);
            let body = out[HEAD..].to_vec();
            let plain = match compression {
                Compression::Gzip => read(flate2::read::GzDecoder::new(&body[..])),
                Compression::Snappy => snap::raw::Decoder::new().decompress_vec(&body).unwrap(),
                Compression::Lz4 => read(lz4_flex::frame::FrameDecoder::new(&body[..])),
                _ => zstd::stream::decode_all(&body[..]).unwrap(),
            };
            assert_eq!(plain, RECORDS, "{compression:?}");
        }
    }

    #[test]
    fn the_computed_size_of_varints_is_exact() {
        for value in [0, -1, 1, 63, 64, -64, -65, 8191, 8192, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            varint(&mut out, value);
            assert_eq!(out.len(), width(value), "{value}");
        }
    }

    #[test]
    fn a_record_never_takes_more_bytes_than_were_reserved_for_it() {
        let long = vec![b'x'; 20_000];
        let headers: &[(&[u8], &[u8])] = &[(b"name", &long), (b"", b"")];
        for key in [None, Some(&long[..]), Some(b"")] {
            for timestamp in [0, 1, i64::MAX] {
                let parts = parts(key, &long, timestamp, headers);
                let mut builder = Builder::new(Vec::new());
                builder.append(&super::tests::parts(None, b"", 0, &[]));
                let before = builder.len();
                builder.append(&parts);
                assert!(builder.len() - before <= Builder::room_for(&parts));
            }
        }
    }

    #[test]
    fn sequence_numbers_wrap_around() {
        assert_eq!(advance(0, 3), 3);
        assert_eq!(advance(i32::MAX, 1), 0);
        assert_eq!(advance(i32::MAX - 1, 3), 1);
    }
}
