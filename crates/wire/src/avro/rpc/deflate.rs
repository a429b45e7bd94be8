//! Deflate as Flume's agents use it (`compression-type = deflate`): each direction of the connection is one endless
//! zlib stream (RFC 1950), flushed after every call.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! The caller's buffer limits the output of each step. A stream that expands a thousandfold delays its own connection,
//! but takes no additional memory.

use std::fmt;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The compression level that Flume uses.
const LEVEL: u32 = 6;
/// The capacity that is reserved for each compression step; an answer needs one step.
const STEP_BYTES: usize = 256;

/// The bytes are not a zlib stream, or the stream is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the connection is not compressed with zlib, or it is damaged: `compression: deflate` here needs `compression-type = deflate` at the Avro sink, and the other way round"
)]
pub struct Corrupt;

/// The incoming stream.
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
    /// Decompresses from the front of `input` into the spare capacity of `output` and returns the number of input bytes
    /// consumed. If the output is full, call again: more output may be pending, even if the whole input is consumed.
    /// Bytes after the end of the stream are skipped.
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
        // The difference fits into a usize, because it is at most the length of the input.
        Ok((self.engine.total_in() - before) as usize)
    }
}

impl fmt::Debug for Inflate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inflate({} bytes taken)", self.engine.total_in())
    }
}

/// The outgoing stream.
pub struct Deflate(Compress);

impl Default for Deflate {
    fn default() -> Self {
        Self(Compress::new(Compression::new(LEVEL), true))
    }
}

impl Deflate {
    /// Compresses `bytes` and flushes, so that the peer can read all of them.
    pub fn deflate(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut taken = 0;
        loop {
            out.reserve(STEP_BYTES);
            let before = self.0.total_in();
            let rest = bytes.get(taken..).unwrap_or_default();
            // compress_vec fails only after the end of a stream, and this stream never ends.
            let done = self.0.compress_vec(rest, out, FlushCompress::Sync).is_err();
            taken += (self.0.total_in() - before) as usize;
            // If capacity is left, the compressor has no more output.
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
