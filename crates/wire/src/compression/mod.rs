//! gzip and zstd for payloads of the forward protocol and for outputs.
//!
//! [`Inflater`] decompresses into a buffer that the caller enlarges. So the caller limits the output, and no size in a header
//! causes an allocation. [`compress`] writes one gzip member or zstd frame that is sent to a peer. [`Members`] writes a
//! sequence of members or frames that is stored in a file.

mod members;
#[cfg(test)]
mod tests;

use std::fmt;

pub use members::{Members, codec_of, ends_whole, whole_bytes};

use flate2::{Decompress, FlushDecompress, Status, write::GzEncoder};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

/// The level of gzip on the wire: it takes a third of the time of the default level, and gives a tenth more bytes.
const GZIP_LEVEL: u32 = 1;
/// Level of zstd on the wire.
const ZSTD_LEVEL: i32 = 1;
/// The largest accepted window of a zstd frame, as a power of two: 16 MiB, enough for every level below 20. (Higher levels
/// need `zstd --ultra`.) The limit bounds the memory of a decoder.
const ZSTD_WINDOW_LOG_MAX: u32 = 24;
/// Window of deflate, as a power of two: the largest one.
const GZIP_WINDOW_BITS: u8 = 15;

/// A compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// RFC 1952, one or more members.
    Gzip,
    /// RFC 8878, one or more frames.
    Zstd,
}

/// Why a payload cannot be decompressed. The fault is the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    /// The payload ends inside a member or frame.
    #[error("the compressed payload ends too early")]
    Truncated,
    /// The payload has another format or is damaged.
    #[error("the payload is not what `compressed` says, or it is damaged")]
    Corrupt,
}

/// The progress of [`Inflater::inflate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inflated {
    /// The whole input is decompressed.
    Done,
    /// The output is full: take its content or enlarge it, then continue. The caller enforces the limit.
    Full,
}

/// Decompresses one payload that is completely in memory.
pub struct Inflater {
    engine: Engine,
    /// Consumed bytes of the input.
    taken: usize,
    /// Whether the next input byte begins a new member or frame.
    between: bool,
    /// The end of the last complete member or frame in the input.
    whole: usize,
}

enum Engine {
    /// The function makes the state for each member.
    Deflate(Decompress, fn() -> Decompress),
    Zstd(Decoder<'static>),
}

impl Inflater {
    /// The state at the start of a payload. `None` if zstd runs out of memory.
    pub fn new(codec: Codec) -> Option<Self> {
        let engine = match codec {
            Codec::Gzip => Engine::Deflate(gzip(), gzip),
            Codec::Zstd => {
                let mut decoder = Decoder::new().ok()?;
                let window = DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX);
                decoder.set_parameter(window).ok()?;
                Engine::Zstd(decoder)
            }
        };
        Some(Self::of(engine))
    }

    /// The state at the start of a payload in zlib's format (RFC 1950), which HTTP calls `deflate`.
    pub fn zlib() -> Self {
        Self::of(Engine::Deflate(zlib(), zlib))
    }

    fn of(engine: Engine) -> Self {
        Self {
            engine,
            taken: 0,
            between: true,
            whole: 0,
        }
    }

    /// Appends decompressed bytes to `output` until its capacity is full or the end of `input` is reached; `input` must be
    /// the same at every call. An empty input gives an empty output.
    ///
    /// # Errors
    /// [`InflateError`]; the output so far may be damaged as well.
    pub fn inflate(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Inflated, InflateError> {
        loop {
            let rest = input.get(self.taken..).unwrap_or_default();
            if self.between && rest.is_empty() {
                return Ok(Inflated::Done);
            }
            if output.len() == output.capacity() {
                return Ok(Inflated::Full);
            }
            let before = (self.taken, output.len());
            match &mut self.engine {
                Engine::Deflate(engine, begin) => {
                    if self.between {
                        *engine = begin();
                    }
                    let read = engine.total_in();
                    let status = engine
                        .decompress_vec(rest, output, FlushDecompress::None)
                        .map_err(|_| InflateError::Corrupt)?;
                    self.taken += (engine.total_in() - read) as usize;
                    self.between = status == Status::StreamEnd;
                }
                Engine::Zstd(engine) => {
                    let mut from = InBuffer::around(rest);
                    let end = output.len();
                    let mut to = OutBuffer::around_pos(output, end);
                    let hint = engine
                        .run(&mut from, &mut to)
                        .map_err(|_| InflateError::Corrupt)?;
                    self.taken += from.pos();
                    self.between = hint == 0;
                }
            }
            if self.between {
                self.whole = self.taken;
            }
            if before == (self.taken, output.len()) && !self.between {
                return Err(InflateError::Truncated);
            }
        }
    }
}

fn gzip() -> Decompress {
    Decompress::new_gzip(GZIP_WINDOW_BITS)
}

fn zlib() -> Decompress {
    Decompress::new(true)
}

impl fmt::Debug for Inflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inflater({} bytes taken)", self.taken)
    }
}

/// Returns the decompressed size that the last member's trailer or the first frame's header claims. Use it only as a guess
/// for the size of the first buffer: it is correct only for honest payloads of one member or frame.
pub fn size_claimed(codec: Codec, input: &[u8]) -> Option<usize> {
    match codec {
        Codec::Gzip => {
            let trailer = input.last_chunk::<4>()?;
            usize::try_from(u32::from_le_bytes(*trailer)).ok()
        }
        Codec::Zstd => {
            let size = zstd::zstd_safe::get_frame_content_size(input).ok()??;
            usize::try_from(size).ok()
        }
    }
}

/// Appends `input` to `output` as one gzip member or zstd frame, at a level for the wire.
///
/// # Errors
/// The library ran out of memory.
pub fn compress(codec: Codec, input: &[u8], output: &mut Vec<u8>) -> std::io::Result<()> {
    use std::io::Write as _;
    match codec {
        Codec::Gzip => {
            let mut encoder = GzEncoder::new(output, flate2::Compression::new(GZIP_LEVEL));
            encoder.write_all(input)?;
            encoder.finish().map(drop)
        }
        Codec::Zstd => zstd::stream::copy_encode(input, output, ZSTD_LEVEL),
    }
}
