//! The codecs that compress the blocks of a file. Blocks are independent, so one packer serves all files of a sink.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`

use std::{fmt, io};

use crc_fast::{CrcAlgorithm, checksum};
use flate2::{Compress, Compression, FlushCompress, Status};

use crate::compression::{self, Members};

/// Level of deflate; Avro's default.
const DEFLATE_LEVEL: u32 = 6;
/// The step in bytes by which the output grows when a block does not fit.
const STEP_BYTES: usize = 64 << 10;

/// Compression of a file's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// No compression.
    #[default]
    Null,
    /// RFC 1951.
    Deflate,
    /// Snappy with a CRC-32.
    Snappy,
    /// RFC 8878.
    Zstandard,
}

impl Codec {
    /// The name of the codec in the file header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Deflate => "deflate",
            Self::Snappy => "snappy",
            Self::Zstandard => "zstandard",
        }
    }
}

/// Compresses blocks. The same block always gives the same bytes.
pub struct Packer {
    engine: Engine,
    /// The compressed block. For snappy the vector is never shortened, because every enlargement zeroes the new bytes.
    packed: Vec<u8>,
}

enum Engine {
    Null,
    Deflate(Compress),
    // Boxed, because the encoder contains a large hash table.
    Snappy(Box<snap::raw::Encoder>),
    Zstandard(Members),
}

/// A block as written to the file.
pub(super) struct Packed<'a> {
    bytes: &'a [u8],
    crc: Option<u32>,
}

impl Packed<'_> {
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len() + self.crc.map_or(0, |crc| size_of_val(&crc))
    }

    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bytes);
        if let Some(crc) = self.crc {
            out.extend_from_slice(&crc.to_be_bytes());
        }
    }
}

impl Packer {
    /// A packer for this codec.
    ///
    /// # Errors
    /// The library ran out of memory.
    pub fn new(codec: Codec) -> io::Result<Self> {
        let engine = match codec {
            Codec::Null => Engine::Null,
            Codec::Deflate => {
                // Deflate without a header does not state the window, so a reader assumes the largest one.
                Engine::Deflate(Compress::new(Compression::new(DEFLATE_LEVEL), false))
            }
            Codec::Snappy => Engine::Snappy(Box::new(snap::raw::Encoder::new())),
            Codec::Zstandard => Engine::Zstandard(Members::new(compression::Codec::Zstd)?),
        };
        Ok(Self {
            engine,
            packed: Vec::new(),
        })
    }

    pub(super) fn pack<'a>(&'a mut self, block: &'a [u8]) -> io::Result<Packed<'a>> {
        let packed = &mut self.packed;
        let mut crc = None;
        let bytes = match &mut self.engine {
            Engine::Null => block,
            Engine::Deflate(compress) => {
                packed.clear();
                deflate(compress, block, packed)?;
                &packed[..]
            }
            Engine::Snappy(encoder) => {
                let most = snap::raw::max_compress_len(block.len());
                if packed.len() < most {
                    packed.resize(most, 0);
                }
                let length = encoder.compress(block, packed)?;
                // The library returns the 32-bit CRC in a u64.
                crc = Some(checksum(CrcAlgorithm::Crc32IsoHdlc, block) as u32);
                packed.get(..length).unwrap_or_default()
            }
            Engine::Zstandard(members) => {
                packed.clear();
                members.append(&[block], packed)?;
                &packed[..]
            }
        };
        Ok(Packed { bytes, crc })
    }
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.engine {
            Engine::Null => "Packer(null)",
            Engine::Deflate(_) => "Packer(deflate)",
            Engine::Snappy(_) => "Packer(snappy)",
            Engine::Zstandard(_) => "Packer(zstandard)",
        })
    }
}

fn deflate(compress: &mut Compress, block: &[u8], packed: &mut Vec<u8>) -> io::Result<()> {
    compress.reset();
    loop {
        packed.reserve(STEP_BYTES);
        let taken = usize::try_from(compress.total_in()).unwrap_or(usize::MAX);
        let rest = block.get(taken..).unwrap_or_default();
        let status = compress.compress_vec(rest, packed, FlushCompress::Finish);
        if status.map_err(io::Error::other)? == Status::StreamEnd {
            return Ok(());
        }
    }
}
