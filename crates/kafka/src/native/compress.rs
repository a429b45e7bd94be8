//! Compression of the records of a batch.
//!
//! The formats are gzip (RFC 1952), raw Snappy, LZ4 frames with independent blocks, and zstd (RFC 8878). Brokers and consumers accept raw
//! Snappy, which librdkafka also writes.

use std::io::{self, Write as _};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Compression of batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4: saves much at the lowest cost.
    Lz4,
    /// zstd: the smallest result.
    Zstd,
}

impl Compression {
    /// The code of the compression in a batch's attributes.
    pub(super) fn code(self) -> i16 {
        self as i16
    }

    /// Appends the compressed `input`.
    ///
    /// # Errors
    ///
    /// Errors of the compressor.
    pub(super) fn append(self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::None => out.extend_from_slice(input),
            Self::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
                encoder.write_all(input)?;
                encoder.finish()?;
            }
            Self::Snappy => {
                let start = out.len();
                out.resize(start + snap::raw::max_compress_len(input.len()), 0);
                let room = out.get_mut(start..).unwrap_or_default();
                let length = snap::raw::Encoder::new().compress(input, room)?;
                out.truncate(start + length);
            }
            Self::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(out);
                encoder.write_all(input)?;
                encoder.finish()?;
            }
            Self::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(out, 1)?;
                encoder.write_all(input)?;
                encoder.finish()?;
            }
        }
        Ok(())
    }
}
