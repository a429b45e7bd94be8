//! The option `compression`: each piece written to a file becomes a gzip member or a zstd frame.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! The compressor keeps no state between two pieces. So every committed length is the end of a whole stream, one compressor serves
//! thousands of files, and a piece whose write failed can be compressed again. A piece contains all text that waits for the file.
//! The piece is written at the next checkpoint, or once four mebibytes wait (more if they belong to several files). Smaller pieces
//! would compress badly, so nothing is written earlier.

use std::io::{self, IoSlice};

use millstream_pipeline::failure::Failure;
use millstream_sys::disk::File;
use millstream_wire::compression::{Codec, Members, ends_whole};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The number of bytes at the end of a file that are searched for the start of the last member: the number for the first attempt,
/// and the maximum. A member that this sink wrote is shorter than the maximum, unless it contains a batch that is longer.
const END_BYTES: [u64; 2] = [64 << 10, 32 << 20];

/// How files are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compression {
    /// No compression.
    #[default]
    None,
    /// gzip (RFC 1952), as `zcat` reads it.
    Gzip,
    /// zstd (RFC 8878), as `zstdcat` reads it: several times faster than gzip, and the files are smaller.
    Zstd,
}

impl Compression {
    /// Returns the codec, or None without compression.
    pub(super) fn codec(self) -> Option<Codec> {
        match self {
            Self::None => None,
            Self::Gzip => Some(Codec::Gzip),
            Self::Zstd => Some(Codec::Zstd),
        }
    }
}

/// A compressor and the last piece that it has made.
pub(super) struct Compressor {
    members: Members,
    piece: Vec<u8>,
}

impl Compressor {
    pub(super) fn new(codec: Codec) -> Result<Self, Failure> {
        let members = Members::new(codec)
            .map_err(|error| Failure::us(format!("cannot start to compress: {error}")))?;
        Ok(Self {
            members,
            piece: Vec::new(),
        })
    }

    /// Compresses the parts into one piece.
    pub(super) fn piece(&mut self, parts: &[IoSlice<'_>]) -> Result<&[u8], Failure> {
        self.piece.clear();
        let slices: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        self.members
            .append(&slices, &mut self.piece)
            .map_err(|error| Failure::us(format!("cannot compress: {error}")))?;
        Ok(&self.piece)
    }
}

/// Whether a file of `length` bytes ends within a member or frame. A member that is appended to such a file could not be read.
pub(super) fn is_cut(codec: Codec, file: &dyn File, length: u64) -> io::Result<bool> {
    let [mut bytes, bytes_max] = END_BYTES;
    let mut end = Vec::new();
    loop {
        let start = length.saturating_sub(bytes);
        end.clear();
        file.read_at(&mut end, (length - start) as usize, start)?;
        match ends_whole(codec, &end) {
            Some(whole) => return Ok(!whole),
            None if start == 0 || bytes >= bytes_max => return Ok(true),
            None => bytes *= 8,
        }
    }
}
