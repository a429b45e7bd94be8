//! Deflate as Flume's agents use it (`compression-type = deflate`): each direction of the connection is one endless zlib
//! stream (RFC 1950), flushed behind every call.
//!
//! Hop: read [decode] send keep take encode write settle. The output of a step is what the caller has room for, so a stream
//! that expands a thousandfold costs time of its own connection and no memory.

use std::fmt;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Flume's own level.
const LEVEL: u32 = 6;
/// Room for a step of compression: an answer takes one.
const STEP_BYTES: usize = 256;

/// The bytes are no zlib stream, or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the connection is not compressed with zlib, or it is damaged: `compression: deflate` here needs `compression-type = deflate` at the Avro sink, and the other way round",
        )
    }
}

impl std::error::Error for Corrupt {}

/// The stream that comes in.
pub struct Inflate {
    engine: Decompress,
    ended: bool,
}

impl Default for Inflate {
    fn default() -> Self {
        Self {
            engine: Decompress::new(true),
            ended: false,
        }
    }
}

impl Inflate {
    /// Decompresses from the front of `input` into the spare room of `output`; gives the bytes taken. When the room is full
    /// there may be more, also after the last byte of the input. What follows the end of the stream is passed over.
    ///
    /// # Errors
    /// [`Corrupt`]: close the connection.
    pub fn inflate(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<usize, Corrupt> {
        if self.ended {
            return Ok(input.len());
        }
        let before = self.engine.total_in();
        match self
            .engine
            .decompress_vec(input, output, FlushDecompress::None)
        {
            Ok(Status::Ok | Status::BufError) => {}
            Ok(Status::StreamEnd) => self.ended = true,
            Err(_) => return Err(Corrupt),
        }
        // Not more than the input has.
        Ok((self.engine.total_in() - before) as usize)
    }
}

impl fmt::Debug for Inflate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inflate({} bytes taken)", self.engine.total_in())
    }
}

/// The stream that goes out.
pub struct Deflate(Compress);

impl Default for Deflate {
    fn default() -> Self {
        Self(Compress::new(Compression::new(LEVEL), true))
    }
}

impl Deflate {
    /// Appends `bytes` to the stream and flushes it, so that the peer can read all of them.
    pub fn deflate(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut taken = 0;
        loop {
            out.reserve(STEP_BYTES);
            let before = self.0.total_in();
            let rest = bytes.get(taken..).unwrap_or_default();
            // It fails only in a state that is never reached: the stream is never ended.
            let done = self.0.compress_vec(rest, out, FlushCompress::Sync).is_err();
            taken += (self.0.total_in() - before) as usize;
            // Room that is left says that everything is out.
            if done || (taken == bytes.len() && out.len() < out.capacity()) {
                return;
            }
        }
    }
}

impl fmt::Debug for Deflate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deflate({} bytes taken)", self.0.total_in())
    }
}
