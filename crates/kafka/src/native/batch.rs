//! A batch of records as brokers store it: the record batch of Kafka, version 2 of the message format.
//!
//! `read -> decode -> send -> keep -> take -> process -> [encode] -> write -> settle`
//!
//! Source: "Message Format" in the documentation of Apache Kafka, `DefaultRecordBatch.java`. The records stand behind a head
//! of 61 bytes, each with its length in front; times and offsets are differences to the first one's, integers zigzag
//! varints. A record is copied once, from where it was made into the batch; the sum (CRC-32C) and the compression are over
//! the whole batch, when it is closed.

use crc_fast::{CrcAlgorithm, checksum};

use super::{compress::Compression, messages::Identity};

/// Bytes in front of the records.
pub(super) const HEAD: usize = 61;
/// Where what the sum is over begins.
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
    /// Bytes of all of them, without what frames them.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.headers.clone();
        let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
        self.key.map_or(0, <[u8]>::len) + self.value.len() + headers
    }
}

/// A batch that records are appended to.
#[derive(Debug)]
pub(super) struct Builder {
    /// The head, not filled in yet, and the records.
    buffer: Vec<u8>,
    count: i32,
    first: i64,
    max: i64,
}

/// How a batch is closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seal {
    pub(super) identity: Identity,
    /// Of the first record.
    pub(super) sequence: i32,
    pub(super) transactional: bool,
    pub(super) compression: Compression,
}

impl Builder {
    /// In a buffer, whose content is forgotten.
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

    /// Bytes so far, before compression.
    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Bytes that a record would add, at most.
    pub(super) fn room_for<'h, H>(parts: &Parts<'_, H>) -> usize
    where
        H: Iterator<Item = (&'h [u8], &'h [u8])> + Clone,
    {
        // Length, attributes, time, offset; key, value and the count of headers.
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

    /// Closes it: the batch as it goes out, and the buffer if that is not it.
    ///
    /// # Errors
    /// Of a compressor.
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
        // The offset of the first record: the broker sets it. What comes behind this length.
        head.extend_from_slice(&0_i64.to_be_bytes());
        let length = i32::try_from(out.len() - 12).unwrap_or(i32::MAX);
        head.extend_from_slice(&length.to_be_bytes());
        // The leader's epoch: not known. The version. The sum.
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
        // 32 bits of the 64.
        let sum = checksum(CrcAlgorithm::Crc32Iscsi, summed) as u32;
        if let Some(place) = out.get_mut(SUMMED - 4..SUMMED) {
            place.copy_from_slice(&sum.to_be_bytes());
        }
        Ok((out, spare))
    }
}

/// The sequence number `count` records after `sequence`: it has 31 bits and begins anew.
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

/// Bytes of a byte string with its length in front.
fn sized(length: usize) -> usize {
    width(signed(length)) + length
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// Bytes of a varint.
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

    /// Put together by hand from the documentation of the format.
    const RECORDS: &[u8] = &[
        // Length 14, attributes, time and offset +0, key, value, one header.
        28, 0, 0, 0, 2, b'k', 6, b'o', b'n', b'e', 2, 2, b'h', 2,
        b'v', // Length 9, time -2, offset +1, no key, no header.
        18, 0, 3, 2, 1, 6, b't', b'w', b'o', 0,
    ];

    #[test]
    fn a_batch_is_as_the_format_says() {
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
    fn every_compression_is_undone_by_its_reader() {
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
    fn varints_have_the_width_that_is_counted() {
        for value in [0, -1, 1, 63, 64, -64, -65, 8191, 8192, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            varint(&mut out, value);
            assert_eq!(out.len(), width(value), "{value}");
        }
    }

    #[test]
    fn room_is_never_less_than_what_a_record_takes() {
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
    fn sequence_numbers_begin_anew_behind_the_last() {
        assert_eq!(advance(0, 3), 3);
        assert_eq!(advance(i32::MAX, 1), 0);
        assert_eq!(advance(i32::MAX - 1, 3), 1);
    }
}
