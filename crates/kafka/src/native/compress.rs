//! How the records of a batch are compressed.
//!
//! gzip (RFC 1952), Snappy in its plain form (which brokers and consumers take, as librdkafka has written it for years), the
//! frame format of LZ4 with independent blocks, zstd (RFC 8878).

use std::io::{self, Write as _};

/// How the records of a batch are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Compression {
    /// Not at all.
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Compression {
    /// By the name that the property `compression.type` has for it.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "gzip" => Self::Gzip,
            "snappy" => Self::Snappy,
            "lz4" => Self::Lz4,
            "zstd" => Self::Zstd,
            _ => return None,
        })
    }

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
