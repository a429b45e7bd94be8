//! Encodes batches as chunks: splits large ones, converts records where the peer needs another format, compresses payloads, and
//! writes the head and the options of each frame.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! A packed batch (MessagePack entries) is usually sent unchanged: its body becomes the payload and is neither copied nor decoded.
//! Lines are sent as lines between two Millstreams and become `[time, {"message": line}]` for all other receivers. Records are
//! parsed only for `add`, for `time: integer` and to drop metadata. The fields of `add` can make records thousands of times longer,
//! so with `add` a part is encoded in pieces. The encoder promises that every record of a batch is either encoded or rejected.

use std::io;

use bytes::Bytes;
use millstream_record::{Batch, Buffer, Encoding, Pool};
use millstream_wire::{
    compression::{Codec, compress},
    format::{self, Part},
    forward::{Compressed, OPTION_BYTES_MAX, Options, write_frame_head, write_options},
    msgpack::{entry_head, metadata_len, skip, write_array_len, write_int, write_time},
};
use tokio::time::Instant;

use crate::sending::{Refused, parts, unencoded};

use super::{
    bundle::Bundle,
    chunk::{Chunk, Name, PART_BYTES_MAX},
    options::{Compression, Metadata, Peer, TimeForm},
};

/// A record that `add` makes longer than this is rejected: a Millstream would refuse its frame (`limits.frame`, 64 MiB) on every
/// resend. The difference is for the tag and the options.
const RECORD_BYTES_MAX: usize = (64 << 20) - (64 << 10);
/// Maximum growth of a line that becomes an entry: the heads of array and map, an EventTime, the key, the head of the text.
const ENTRY_BYTES: usize = 1 + 10 + 1 + 8 + 5;

/// A smaller payload is copied out of its buffer. Otherwise a few bytes that wait for an ack would keep a whole buffer (64 KiB or
/// more) in memory.
const SMALL_BYTES: usize = 32 << 10;

/// Copies small payloads, so that they take no more memory than they need.
pub(super) fn compact(bytes: Bytes) -> Bytes {
    if bytes.len() < SMALL_BYTES {
        Bytes::copy_from_slice(&bytes)
    } else {
        bytes
    }
}

/// Makes chunks. Each lane (parallel task of the sink) has one encoder.
pub(super) struct Encoder {
    pub(super) peer: Peer,
    pub(super) time: TimeForm,
    pub(super) metadata: Metadata,
    pub(super) compression: Compression,
    /// Whether chunks carry ids, which makes the peer ack them.
    pub(super) ack: bool,
    /// Whether chunks hold the batches from which they were made, so that their records can be rejected after `retry.give_up`.
    pub(super) keep_source: bool,
    /// Whether the sink adds fields to records.
    pub(super) adds: bool,
    /// Writes records as MessagePack, with the fields of `add`.
    pub(super) format: format::Encoder,
    pub(super) pool: Pool,
    /// Number of records whose metadata was dropped since the last report.
    pub(super) dropped: u64,
}

/// An encoded part, or a piece of it.
pub(super) struct Payload {
    pub(super) bytes: Bytes,
    /// Number of records in it.
    pub(super) count: u32,
    /// The offset in the part's body at which the next piece begins.
    pub(super) end: usize,
    /// Records that could not be encoded, each with its range in the part's body.
    pub(super) refused: Vec<Refused>,
}

impl Encoder {
    /// Returns the encoding that a batch has on the wire.
    pub(super) fn encoding(&self, batch: &Batch) -> Encoding {
        match self.peer {
            Peer::Millstream if !self.adds => batch.encoding,
            Peer::Millstream | Peer::Any => Encoding::Packed,
        }
    }

    /// Whether the body of a batch can be sent unchanged as its payload.
    fn passes(&self, batch: &Batch) -> bool {
        let same = batch.encoding == self.encoding(batch) && !self.adds;
        // `plain` means that the source has validated the batch and found no metadata. Otherwise the entries are searched.
        let fits = || self.metadata == Metadata::Keep || batch.plain || !has_metadata(&batch.body);
        let as_they_are = || self.time == TimeForm::Event && fits();
        same && (batch.encoding == Encoding::Lines || as_they_are())
    }

    /// Splits a batch into parts that fit into one chunk each. The same batch is always split between the same records.
    pub(super) fn parts(&self, batch: Batch) -> Vec<Batch> {
        let growth = if self.encoding(&batch) == batch.encoding {
            0
        } else {
            ENTRY_BYTES
        };
        let fits = |bytes: usize, records: usize| {
            bytes.saturating_add(records.saturating_mul(growth)) <= PART_BYTES_MAX
        };
        parts(batch, fits)
    }

    /// Returns the payload of a part before compression, from the offset `start` in its body: the part's own body, without a copy,
    /// wherever possible. The same part always becomes the same payloads.
    pub(super) fn payload(&mut self, part: &Batch, start: usize) -> Payload {
        if self.passes(part) {
            return Payload {
                bytes: part.body.clone(),
                count: part.count,
                end: part.len(),
                refused: Vec::new(),
            };
        }
        let likely = part.len() + part.count as usize * ENTRY_BYTES;
        let mut out = self.pool.take(likely.min(PART_BYTES_MAX));
        let mut refused = Vec::new();
        let done = self.append(part, start, PART_BYTES_MAX, &mut out, &mut refused);
        Payload {
            bytes: compact(out.freeze()),
            count: done.records,
            end: done.end,
            refused,
        }
    }

    /// Appends the payload of a part, from the offset `start` in its body, to `out`. With `add`, stops before the record that would
    /// make `out` longer than `bytes_max`, but not before the first one.
    pub(super) fn append(
        &mut self,
        part: &Batch,
        start: usize,
        bytes_max: usize,
        out: &mut Buffer,
        refused: &mut Vec<Refused>,
    ) -> Part {
        let whole = Part {
            records: part.count,
            end: part.len(),
        };
        if self.passes(part) {
            out.extend_from_slice(&part.body);
            return whole;
        }
        if self.time == TimeForm::Event && self.metadata == Metadata::Keep {
            return self.encode(part, start, bytes_max, out, refused);
        }
        if !self.adds && part.encoding == Encoding::Packed {
            self.dropped += plain_heads(&part.body, self.time, out);
            return whole;
        }
        let mut packed = self.pool.take(part.len().min(PART_BYTES_MAX));
        let room = bytes_max.saturating_sub(out.len());
        let done = self.encode(part, start, room, &mut packed, refused);
        self.dropped += plain_heads(&packed, self.time, out);
        done
    }

    /// Like [`Encoder::append`], for the format's entries.
    fn encode(
        &mut self,
        part: &Batch,
        start: usize,
        bytes_max: usize,
        out: &mut Buffer,
        refused: &mut Vec<Refused>,
    ) -> Part {
        let bytes_max = if self.adds { bytes_max } else { usize::MAX };
        let before = out.len();
        let mut rejects = Vec::new();
        let range = start..part.len();
        let mut done = self
            .format
            .encode_within(part, range, bytes_max, out, &mut rejects);
        // All records of the piece before the first one that is encoded are rejected.
        let first = rejects.last().map_or(start, |reject| reject.range.end);
        let rejects = rejects.into_iter();
        refused.extend(rejects.map(unencoded));
        let bytes = out.len() - before;
        if self.adds && done.records == 1 && bytes > RECORD_BYTES_MAX {
            out.truncate(before);
            done.records = 0;
            let reason = format!(
                "with the fields of `add` the record has {bytes} bytes, and receivers accept at most {RECORD_BYTES_MAX}"
            );
            refused.push((first..done.end, reason.into()));
        }
        done
    }

    /// Builds a chunk from a bundle. If the bundle has only one part, the chunk is an ordinary frame with the payload of this part.
    pub(super) fn chunk_of(&self, name: Name, bundle: Bundle) -> io::Result<Chunk> {
        let Bundle {
            mut parts, source, ..
        } = bundle;
        let mut chunk = match parts.pop() {
            Some((part, payload)) if parts.is_empty() => self.chunk(name, &part, payload),
            last => {
                parts.extend(last);
                self.bundle(name, &parts)
            }
        }?;
        chunk.source = source;
        Ok(chunk)
    }

    /// Builds the chunk with this payload and with the tag and values of `part`. Compresses the payload if the options say so.
    pub(super) fn chunk(&self, name: Name, part: &Batch, payload: Bytes) -> io::Result<Chunk> {
        let options = self.options(part);
        let form = (part.tag.as_str(), self.encoding(part));
        self.frame(name, form, part.count, payload, options)
    }

    /// Builds a chunk whose payload is a frame for each of these parts.
    fn bundle(&self, name: Name, parts: &[(Batch, Bytes)]) -> io::Result<Chunk> {
        let bytes = parts.iter().map(|(_, payload)| payload.len()).sum();
        let mut frames = self.pool.take(bytes);
        for (part, payload) in parts {
            let tag = part.tag.as_str().as_bytes();
            write_frame_head(&mut frames, tag, self.encoding(part), length(payload)?);
            frames.extend_from_slice(payload);
            write_within(&mut frames, self.options(part));
        }
        let records = parts
            .iter()
            .fold(0_u32, |sum, (part, _)| sum.saturating_add(part.count));
        let options = Options {
            frames: Some(parts.len() as u64),
            ..Options::default()
        };
        let tag = parts.first().map_or("", |(part, _)| part.tag.as_str());
        let payload = compact(frames.freeze());
        self.frame(name, (tag, Encoding::Packed), records, payload, options)
    }

    /// The options that describe the records of a part.
    fn options(&self, part: &Batch) -> Options<'static> {
        let mut options = Options {
            size: Some(part.count.into()),
            ..Options::default()
        };
        if self.peer == Peer::Millstream {
            options.received = Some(part.received);
            options.values = (!part.values.is_empty()).then(|| (*part.values).clone());
        }
        options
    }

    fn frame(
        &self,
        name: Name,
        (tag, encoding): (&str, Encoding),
        records: u32,
        payload: Bytes,
        options: Options<'_>,
    ) -> io::Result<Chunk> {
        let (payload, compressed) = self.compress(payload)?;
        let mut head = Vec::with_capacity(16 + tag.len());
        write_frame_head(&mut head, tag.as_bytes(), encoding, length(&payload)?);
        let Name {
            number,
            id,
            flow,
            place,
        } = name;
        let id = if self.ack { id } else { Vec::new() };
        let mut written = Vec::with_capacity(256);
        let described = Options {
            chunk: self.ack.then_some(&*id),
            size: Some(records.into()),
            compressed,
            ..options
        };
        write_within(&mut written, described);
        Ok(Chunk {
            number,
            records,
            flow,
            place,
            copy: None,
            lease: 0,
            id,
            head,
            payload,
            options: written,
            made: Instant::now(),
            begun: false,
            again: false,
            source: Vec::new(),
        })
    }

    fn compress(&self, payload: Bytes) -> io::Result<(Bytes, Compressed)> {
        let (codec, compressed) = match self.compression {
            Compression::None => return Ok((payload, Compressed::No)),
            Compression::Gzip => (Codec::Gzip, Compressed::Gzip),
            Compression::Zstd => (Codec::Zstd, Compressed::Zstd),
        };
        // Text usually shrinks to less than half. The buffer grows for payloads that do not.
        let mut out = self.pool.take(payload.len() / 2);
        compress(codec, &payload, &mut out)?;
        Ok((compact(out.freeze()), compressed))
    }
}

/// Writes an option map. A receiver would refuse a map above [`OPTION_BYTES_MAX`] on every resend, so such a map is written without the
/// values: losing them is better than never delivering the records.
fn write_within(out: &mut Vec<u8>, options: Options<'_>) {
    let start = out.len();
    write_options(out, &options);
    if out.len() - start > OPTION_BYTES_MAX {
        out.truncate(start);
        let options = Options {
            values: None,
            ..options
        };
        write_options(out, &options);
    }
}

/// The length of a payload in the head of its frame.
fn length(payload: &Bytes) -> io::Result<u32> {
    u32::try_from(payload.len()).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// Whether any entry has metadata beside its time.
fn has_metadata(packed: &[u8]) -> bool {
    let mut at = 0;
    while let Ok(head) = entry_head(packed, at) {
        // The first byte of an entry is its array head; the time, or the array with the metadata, follows.
        if matches!(packed.get(at + 1), Some(0x90..=0x9f | 0xdc | 0xdd))
            || packed.get(at) != Some(&0x92)
        {
            return true;
        }
        let mut open = 1;
        let Ok(end) = skip(packed, head.record, &mut open) else {
            return false;
        };
        at = end;
    }
    false
}

/// Appends the entries of `packed` to `out` without their metadata, with times in the given form. Returns how many entries had
/// metadata.
fn plain_heads(packed: &[u8], form: TimeForm, out: &mut Vec<u8>) -> u64 {
    let (mut at, mut dropped) = (0, 0);
    while let Ok(head) = entry_head(packed, at) {
        let mut open = 1;
        let Ok(end) = skip(packed, head.record, &mut open) else {
            return dropped;
        };
        dropped += u64::from(metadata_len(packed, at) > 0);
        let time = head.time.unwrap_or_default();
        write_array_len(out, 2);
        match form {
            TimeForm::Event => write_time(out, time),
            TimeForm::Integer => write_int(out, time.seconds()),
        }
        out.extend_from_slice(packed.get(head.record..end).unwrap_or_default());
        at = end;
    }
    dropped
}
