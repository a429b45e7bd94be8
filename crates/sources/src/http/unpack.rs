//! Decompresses bodies in the formats snappy and lz4.
//!
//! The decoders of the framed formats hold up to 8 MiB, which are not part of the memory of the request. So a body is decompressed
//! without a pause, first to measure its text and then into a buffer of that size: a data thread has one decoder at a time.

use std::io::{self, Read};

use lz4_flex::frame::FrameDecoder as Lz4Decoder;
use snap::{
    raw::{Decoder as SnappyBlock, decompress_len},
    read::FrameDecoder as SnappyDecoder,
};

/// The first bytes of snappy's framing format. `Content-Encoding: snappy` stands for the block format, but old versions of the
/// Collector send frames under this name.
const SNAPPY_FRAMES: &[u8] = b"\xff\x06\x00\x00sNaPpY";
/// No snappy block grows by a larger factor: three bytes copy at most 64.
const BLOCK_FACTOR_MAX: usize = 32;
/// The bytes that are decompressed at a time while the text is measured.
const MEASURED_BYTES: usize = 64 << 10;

/// A format that is decompressed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Snappy,
    Lz4,
}

/// Why a body cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Corrupt,
    Truncated,
    TooLarge,
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Corrupt,
        }
    }
}

impl Packing {
    /// The size of the decompressed text, if it is at most `bytes_max`.
    pub(super) fn measure(self, packed: &[u8], bytes_max: usize) -> Result<usize, Fault> {
        let bytes = match self.frames(packed) {
            Some(frames) => count(frames, bytes_max)?,
            None => {
                let bytes = decompress_len(packed).map_err(|_| Fault::Corrupt)?;
                if bytes > packed.len().saturating_mul(BLOCK_FACTOR_MAX) {
                    return Err(Fault::Corrupt);
                }
                bytes
            }
        };
        match bytes > bytes_max {
            true => Err(Fault::TooLarge),
            false => Ok(bytes),
        }
    }

    /// Fills `text`, which has the measured size.
    pub(super) fn unpack(self, packed: &[u8], text: &mut [u8]) -> Result<(), Fault> {
        match self.frames(packed) {
            Some(mut frames) => Ok(frames.read_exact(text)?),
            None => {
                let mut decoder = SnappyBlock::new();
                let unpacked = decoder.decompress(packed, text);
                unpacked.map(drop).map_err(|_| Fault::Corrupt)
            }
        }
    }

    /// The decoder of a framed format; `None` for snappy's block format.
    fn frames<'a>(self, packed: &'a [u8]) -> Option<Box<dyn Read + 'a>> {
        match self {
            Self::Lz4 => Some(Box::new(Lz4Decoder::new(packed))),
            Self::Snappy if packed.starts_with(SNAPPY_FRAMES) => {
                Some(Box::new(SnappyDecoder::new(packed)))
            }
            Self::Snappy => None,
        }
    }
}

/// Counts the bytes that a decoder returns. Stops behind `bytes_max`.
fn count(mut frames: impl Read, bytes_max: usize) -> Result<usize, Fault> {
    let mut scratch = vec![0; MEASURED_BYTES];
    let mut bytes = 0;
    while bytes <= bytes_max {
        match frames.read(&mut scratch)? {
            0 => break,
            read => bytes += read,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn unpacked(packing: Packing, packed: &[u8], bytes_max: usize) -> Result<Vec<u8>, Fault> {
        let mut text = vec![0; packing.measure(packed, bytes_max)?];
        packing.unpack(packed, &mut text)?;
        Ok(text)
    }

    /// The text in each format that clients send.
    fn packed(text: &[u8]) -> [(Packing, Vec<u8>); 3] {
        let block = snap::raw::Encoder::new().compress_vec(text).unwrap();
        let mut frames = snap::write::FrameEncoder::new(Vec::new());
        frames.write_all(text).unwrap();
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(text).unwrap();
        [
            (Packing::Snappy, block),
            (Packing::Snappy, frames.into_inner().unwrap()),
            (Packing::Lz4, lz4.finish().unwrap()),
        ]
    }

    #[test]
    fn texts_of_all_sizes_are_unpacked_up_to_the_limit() {
        for size in [1, 100, 65_535, 65_536, 65_537, 1 << 20] {
            let text: Vec<u8> = (0..size).map(|n: usize| (n / 7) as u8).collect();
            for (packing, packed) in packed(&text) {
                assert_eq!(
                    unpacked(packing, &packed, size).unwrap(),
                    text,
                    "{packing:?}"
                );
                let short = unpacked(packing, &packed, size - 1);
                assert_eq!(short, Err(Fault::TooLarge), "{packing:?}");
            }
        }
    }

    #[test]
    fn a_damaged_text_is_a_fault() {
        for (packing, packed) in packed(&[b'x'; 100_000]) {
            assert!(unpacked(packing, &packed[..packed.len() / 2], 1 << 20).is_err());
            assert!(unpacked(packing, b"garbage", 1 << 20).is_err());
        }
        // A block that states a huge text.
        let huge = [0xff, 0xff, 0xff, 0xff, 0x0f, 0];
        assert_eq!(
            unpacked(Packing::Snappy, &huge, usize::MAX),
            Err(Fault::Corrupt)
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>, frames: bool) {
            let bytes = match frames {
                true => [SNAPPY_FRAMES, &bytes].concat(),
                false => bytes,
            };
            for packing in [Packing::Snappy, Packing::Lz4] {
                let _ = unpacked(packing, &bytes, 1 << 16);
            }
        }
    }
}
