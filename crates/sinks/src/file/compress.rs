//! The option `compression`: what goes into a file in one piece becomes a gzip member or a zstd frame.
//!
//! `take -> encode -> [write] -> settle`
//!
//! Nothing is kept between two pieces, so every length that a commit names is the end of a stream that is whole, thousands
//! of files need one compressor, and a piece whose write failed is made again. A piece is what came until the next cut,
//! or four mebibytes of it: smaller ones would be compressed badly, so nothing is written in between.

use std::io::IoSlice;

use millstream_pipeline::failure::Failure;
use millstream_wire::compression::{Codec, Members};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How files are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip (RFC 1952), as `zcat` reads it.
    Gzip,
    /// zstd (RFC 8878), as `zstdcat` reads it: several times faster, and smaller.
    Zstd,
}

impl Compression {
    /// None: not compressed.
    pub(super) fn codec(self) -> Option<Codec> {
        match self {
            Self::None => None,
            Self::Gzip => Some(Codec::Gzip),
            Self::Zstd => Some(Codec::Zstd),
        }
    }
}

/// A compressor and the last piece it made.
pub(super) struct Compressor {
    members: Members,
    piece: Vec<u8>,
}

impl Compressor {
    pub(super) fn new(codec: Codec) -> Result<Self, Failure> {
        let members = Members::new(codec)
            .map_err(|error| Failure::us(format!("cannot begin to compress: {error}")))?;
        Ok(Self {
            members,
            piece: Vec::new(),
        })
    }

    /// The parts as one piece.
    pub(super) fn piece(&mut self, parts: &[IoSlice<'_>]) -> Result<&[u8], Failure> {
        self.piece.clear();
        let slices: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        self.members
            .append(&slices, &mut self.piece)
            .map_err(|error| Failure::us(format!("cannot compress: {error}")))?;
        Ok(&self.piece)
    }
}
