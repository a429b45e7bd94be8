//! How the records of a batch are compressed.
//!
//! gzip (RFC 1952), Snappy in its plain form (which brokers and consumers take, as librdkafka has written it for years), the
//! frame format of LZ4 with independent blocks, zstd (RFC 8878).

use std::io::{self, Write as _};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How batches of records are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4: the cheapest that saves much.
    Lz4,
    /// zstd: the smallest.
    Zstd,
}

impl Compression {
    /// Its number in a batch's attributes.
    pub(super) fn code(self) -> i16 {
        self as i16
    }

    /// Appends what `input` becomes.
    ///
    /// # Errors
    /// Of the compressor.
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
