//! Avro object container files with Flume's events, identical to those of Flume's serializer `avro_event`.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! file       "Obj" 01 | map: "avro.schema" -> JSON, "avro.codec" -> name | sync [16] | blocks
//! block      number of records, long | number of bytes, long | the records, compressed by the codec | sync [16]
//! map        long 2 | twice: string, bytes | 00
//!
//! null       the records
//! deflate    RFC 1951, without a header
//! snappy     the raw format of snappy (no frames), then the CRC-32 of the uncompressed records, 4 bytes big endian
//! zstandard  a frame of RFC 8878
//! ```
//!
//! The records are encoded as `format: avro_event` ([`crate::format`]). A block ends when it is full, or when the caller
//! ends it. A file that is truncated after any block is still a complete file.
//!
//! The same records, sync marker and block ends always give the same bytes (no clock, no random numbers), and nothing
//! is allocated per record. The caller decides where the bytes go and when a block ends early.

mod pack;
#[cfg(test)]
mod tests;

use std::{io, ops::Range};

use millstream_record::Batch;
use sha2::{Digest, Sha256};

use crate::format::{Encoder, Reject};

pub use pack::{Codec, Packer};

/// The schema of Flume's events, as Flume writes it.
pub const SCHEMA: &str = r#"{"type":"record","name":"Event","fields":[{"name":"headers","type":{"type":"map","values":"string"}},{"name":"body","type":"bytes"}]}"#;

/// The first bytes of a file.
const MAGIC: &[u8; 4] = b"Obj\x01";
/// Length of the marker between blocks.
const SYNC_BYTES: usize = 16;
/// The size of a full block before compression. A block of this size fits into the second-level cache, and a larger
/// block would not help snappy, which finds repetitions only within this distance.
const BLOCK_BYTES: usize = 64 << 10;
/// The maximum capacity that the block buffer keeps. If a long record has enlarged the buffer further, the buffer
/// shrinks to this size.
const KEPT_BYTES_MAX: usize = 4 * BLOCK_BYTES;

/// The marker between the blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync(pub [u8; SYNC_BYTES]);

impl Sync {
    /// Derives the marker from `seed`, which identifies the file (for example by its sink and its position). Equal seeds
    /// give equal markers; different seeds practically never do.
    pub fn of(seed: &[u8]) -> Self {
        let digest = Sha256::digest(seed);
        let mut sync = [0; SYNC_BYTES];
        for (to, from) in sync.iter_mut().zip(digest) {
            *to = from;
        }
        Self(sync)
    }
}

/// The state of one file: its sync marker and its current block.
#[derive(Debug)]
pub struct Container {
    sync: Sync,
    block: Vec<u8>,
    records: u32,
}

impl Container {
    /// A file with this sync marker.
    pub fn new(sync: Sync) -> Self {
        Self {
            sync,
            block: Vec::new(),
            records: 0,
        }
    }

    /// Appends the header of the file.
    pub fn begin(&self, codec: Codec, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        write_long(out, 2);
        // Flume writes these keys in the order of Java's hash map.
        for (name, value) in [("avro.schema", SCHEMA), ("avro.codec", codec.name())] {
            for text in [name, value] {
                write_long(out, text.len() as u64);
                out.extend_from_slice(text.as_bytes());
            }
        }
        out.push(0);
        out.extend_from_slice(&self.sync.0);
    }

    /// Encodes the records in `range` of the batch's body with an encoder of `format: avro_event`. Appends full blocks
    /// to `out`, and adds to `rejects` the records that cannot be encoded. Returns the number of records that were
    /// encoded.
    ///
    /// # Errors
    /// The codec ran out of memory.
    pub fn encode(
        &mut self,
        encoder: &mut Encoder,
        packer: &mut Packer,
        batch: &Batch,
        range: Range<usize>,
        out: &mut Vec<u8>,
        rejects: &mut Vec<Reject>,
    ) -> io::Result<u32> {
        let mut at = range.start;
        let mut records = 0;
        while at < range.end {
            let block = &mut self.block;
            let part = encoder.encode_until(batch, at..range.end, BLOCK_BYTES, block, rejects);
            at = part.end;
            records += part.records;
            self.records += part.records;
            if self.block.len() >= BLOCK_BYTES {
                self.end_block(packer, out)?;
            }
        }
        Ok(records)
    }

    /// The size of the current block before compression.
    pub fn waiting_bytes(&self) -> usize {
        self.block.len()
    }

    /// Ends the current block if it is not empty. Afterwards `out` holds all records encoded so far.
    ///
    /// # Errors
    /// The codec ran out of memory.
    pub fn end_block(&mut self, packer: &mut Packer, out: &mut Vec<u8>) -> io::Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        let packed = packer.pack(&self.block)?;
        write_long(out, u64::from(self.records));
        write_long(out, packed.bytes() as u64);
        packed.append_to(out);
        out.extend_from_slice(&self.sync.0);
        self.records = 0;
        self.block.clear();
        self.block.shrink_to(KEPT_BYTES_MAX);
        Ok(())
    }
}

/// Writes a non-negative number as an Avro long.
fn write_long(out: &mut Vec<u8>, value: u64) {
    let mut bits = value << 1;
    while bits >= 0x80 {
        out.push(bits as u8 | 0x80);
        bits >>= 7;
    }
    out.push(bits as u8);
}
