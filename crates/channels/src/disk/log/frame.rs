//! The frame: one batch in a segment.
//!
//! ```text
//! offset bytes
//!      0   4   mark "MSF2"
//!      4   4   CRC-32C over channel id (16), segment number (8), offset in the segment (8), bytes 8..H
//!      8   4   H: bytes of the head (the fields before 96, tag, values, origins)
//!     12   4   B: bytes of the body
//!     16   4   CRC-32C of the body
//!     20   4   epoch
//!     24   8   seq
//!     32   8   keep time, nanoseconds since 1970; it never goes back and never jumps (keep_clock.rs)
//!     40   8   synced: the bytes of this segment that were durable when this frame was written
//!     48   8   0
//!     56   4   records in the body
//!     60   4   number of this part in its group, from 0
//!     64   4   parts of the group; a group without its last part is ignored
//!     68   1   kind: 1 batch, 2 end of the segment, 3 end of the segment after a clean stop
//!     69   1   encoding of the body: 1 lines, 2 packed; 0 without a batch
//!     70   1   1: every entry is known to be plain (`[time, record]`); 0: unknown
//!     71   1   0
//!     72   4   T: bytes of the tag
//!     76   4   number of shared values
//!     80   4   number of origins
//!     84   4   0
//!     88   8   receive time of the batch, nanoseconds since 1970
//!     96   T   tag, UTF-8
//!              values: each bytes of name (4), bytes of value (4), name, value
//!              origins: see origins.rs
//!      H   B   body
//!    H+B   -   zeros up to a multiple of 8
//! ```
//!
//! Frames of format version 1 have the mark "MSF1" and no receive time: the tag begins at 88, and the batch was received at
//! the keep time.
//!
//! All numbers are little-endian. The CRC covers the place of the frame (channel, segment and offset). So old frames in a recycled segment
//! are invalid, and so are frames of another channel.

use std::sync::Arc;

use bytes::Bytes;
use millstream_record::{Batch, Encoding, Origin, Position, Tag, Time, Values};
use millstream_state::Fields;
use millstream_sys::checksum::{crc32c, crc32c_of};

use super::{
    ChannelId,
    origins::{decode_origins, encode_origins},
    text::{put_text, take_text},
};

/// Bytes of the part of a head that has a fixed size.
pub(super) const FIXED_BYTES: usize = 96;
/// Bytes of the fixed part of a head in format version 1.
const FIXED_BYTES_1: usize = 88;
/// The maximum size of a head in bytes. A larger head on disk is damage.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 20;
/// Frames begin at multiples of this.
pub(super) const ALIGNMENT: u64 = 8;
const MARK: &[u8; 4] = b"MSF2";
const MARK_1: &[u8; 4] = b"MSF1";

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Batch = 1,
    /// Nothing follows in this segment.
    End = 2,
    /// Nothing follows in this segment, and the channel was closed cleanly.
    CleanEnd = 3,
}

/// The place of a frame, which the frame's CRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) channel: ChannelId,
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// Why the bytes at a place are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The mark is wrong, or the lengths are impossible.
    NoFrame,
    /// The head is cut off, or its CRC does not match its place and bytes.
    Head,
    /// The CRC matches but the fields are invalid: another program wrote them.
    Fields,
}

/// The lengths of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) head: usize,
    pub(super) body: usize,
}

impl Lengths {
    /// Reads the lengths from the first 16 bytes, before the CRC is checked. Returns `None` if the mark or the lengths cannot belong to a
    /// frame.
    pub(super) fn peek(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let fixed = fixed_bytes(fields.take(4)?)?;
        fields.take(4)?;
        let head = usize::try_from(fields.u32()?).ok()?;
        let body = usize::try_from(fields.u32()?).ok()?;
        (fixed..=HEAD_BYTES_MAX)
            .contains(&head)
            .then_some(Self { head, body })
    }

    /// Bytes of the whole frame with the zeros at its end.
    pub(super) fn total(self) -> u64 {
        (self.head as u64 + self.body as u64).next_multiple_of(ALIGNMENT)
    }
}

/// Bytes of the fixed part of a head with this mark; `None` if it is not a mark.
fn fixed_bytes(mark: &[u8]) -> Option<usize> {
    if mark == MARK {
        Some(FIXED_BYTES)
    } else if mark == MARK_1 {
        Some(FIXED_BYTES_1)
    } else {
        None
    }
}

/// A valid head.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) position: Position,
    pub(super) keep_time: Time,
    pub(super) received: Time,
    pub(super) synced: u64,
    pub(super) count: u32,
    pub(super) part: u32,
    pub(super) parts: u32,
    pub(super) encoding: Option<Encoding>,
    pub(super) plain: bool,
    pub(super) tag: Tag,
    pub(super) values: Arc<Values>,
    pub(super) origins: Vec<Origin>,
    /// Connections that the peer closed in an orderly way after it had received all acknowledgements.
    pub(super) closed: Vec<u64>,
    pub(super) lengths: Lengths,
    body_checksum: u32,
}

impl Head {
    /// Whether the frame is the last part of its group.
    pub(super) fn ends_group(&self) -> bool {
        self.part + 1 == self.parts
    }

    /// Whether `body` is intact and belongs to this head.
    pub(super) fn fits_body(&self, body: &[u8]) -> bool {
        body.len() == self.lengths.body && crc32c(body) == self.body_checksum
    }

    /// The batch of this frame; `None` for the end of a segment.
    pub(super) fn batch(self, body: Bytes) -> Option<Batch> {
        Some(Batch {
            tag: self.tag,
            plain: self.plain,
            encoding: self.encoding?,
            body,
            count: self.count,
            received: self.received,
            values: self.values,
            origins: self.origins,
        })
    }
}

/// The fields of a head that do not come from the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub(super) kind: Kind,
    pub(super) position: Position,
    pub(super) keep_time: Time,
    pub(super) part: u32,
    pub(super) parts: u32,
}

/// Appends the head of a frame to `out`. Leaves out the fields that depend on the place of the frame; [`seal`] writes these fields.
pub(super) fn encode_head(out: &mut Vec<u8>, stamp: &Stamp, batch: Option<&Batch>, closed: &[u64]) {
    let start = out.len();
    let body = batch.map_or(&[][..], |batch| &batch.body);
    out.extend_from_slice(MARK);
    out.extend_from_slice(&[0; 8]);
    put_u32(out, body.len());
    put_u32(out, crc32c(body) as usize);
    out.extend_from_slice(&stamp.position.epoch.to_le_bytes());
    out.extend_from_slice(&stamp.position.seq.to_le_bytes());
    out.extend_from_slice(&stamp.keep_time.0.to_le_bytes());
    out.extend_from_slice(&[0; 16]);
    put_u32(out, batch.map_or(0, |batch| batch.count as usize));
    put_u32(out, stamp.part as usize);
    put_u32(out, stamp.parts as usize);
    let encoding = batch.map_or(0, |batch| batch.encoding as u8);
    let plain = batch.is_some_and(|batch| batch.plain);
    out.extend_from_slice(&[stamp.kind as u8, encoding, u8::from(plain), 0]);
    let tag = batch.map_or("", |batch| batch.tag.as_str());
    let origins = batch.map_or(&[][..], |batch| &batch.origins);
    put_u32(out, tag.len());
    put_u32(out, batch.map_or(0, |batch| batch.values.len()));
    put_u32(out, origins.len() + closed.len());
    put_u32(out, 0);
    let received = batch.map_or(stamp.keep_time, |batch| batch.received);
    out.extend_from_slice(&received.0.to_le_bytes());
    out.extend_from_slice(tag.as_bytes());
    for (name, value) in batch.iter().flat_map(|batch| batch.values.iter()) {
        put_text(out, name, value);
    }
    encode_origins(out, origins, closed, tag);
    let bytes = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    out[start + 8..start + 12].copy_from_slice(&bytes.to_le_bytes());
}

/// Completes a head: writes `synced`, and then the CRC, which depends on the place of the frame.
pub(super) fn seal(head: &mut [u8], place: &Place, synced: u64) {
    head[40..48].copy_from_slice(&synced.to_le_bytes());
    let crc = head_checksum(head, place);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Reads a head. `bytes` begins at the frame and holds at least the whole head.
pub(super) fn decode_head(bytes: &[u8], place: &Place) -> Result<Head, Misfit> {
    let lengths = Lengths::peek(bytes).ok_or(Misfit::NoFrame)?;
    let head = bytes.get(..lengths.head).ok_or(Misfit::Head)?;
    let mut fields = Fields::new(&head[4..]);
    if fields.u32() != Some(head_checksum(head, place)) {
        return Err(Misfit::Head);
    }
    decode_fields(head, lengths).ok_or(Misfit::Fields)
}

fn decode_fields(head: &[u8], lengths: Lengths) -> Option<Head> {
    let mut fields = Fields::new(&head[16..]);
    let body_checksum = fields.u32()?;
    let position = Position {
        epoch: fields.u32()?,
        seq: fields.u64()?,
    };
    let keep_time = Time(fields.i64()?);
    let synced = fields.u64()?;
    fields.take(8)?;
    let (count, part, parts) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let kind = match fields.u8()? {
        1 => Kind::Batch,
        2 => Kind::End,
        3 => Kind::CleanEnd,
        _ => return None,
    };
    let encoding = match (fields.u8()?, kind) {
        (1, Kind::Batch) => Some(Encoding::Lines),
        (2, Kind::Batch) => Some(Encoding::Packed),
        (_, Kind::Batch) => return None,
        _ => None,
    };
    let plain = fields.u8()? == 1;
    fields.take(1)?;
    let tag_bytes = fields.u32()?;
    let (values_count, origins_count) = (fields.u32()?, fields.u32()?);
    fields.take(4)?;
    let received = match fixed_bytes(&head[..4])? {
        FIXED_BYTES => Time(fields.i64()?),
        _ => keep_time,
    };
    let tag = Tag::from(std::str::from_utf8(fields.take(tag_bytes as usize)?).ok()?);
    let mut values = Values::new();
    for _ in 0..values_count {
        let (name, value) = take_text(&mut fields)?;
        values.set(name, value);
    }
    let (origins, closed) = decode_origins(&mut fields, origins_count, &tag)?;
    (part < parts).then(|| Head {
        kind,
        position,
        keep_time,
        received,
        synced,
        count,
        part,
        parts,
        encoding,
        plain,
        tag,
        values: Arc::new(values),
        origins,
        closed,
        lengths,
        body_checksum,
    })
}

fn head_checksum(head: &[u8], place: &Place) -> u32 {
    let mut prefix = [0; 32];
    prefix[..16].copy_from_slice(&place.channel.0);
    prefix[16..24].copy_from_slice(&place.segment.to_le_bytes());
    prefix[24..].copy_from_slice(&place.offset.to_le_bytes());
    crc32c_of(&[&prefix, &head[8..]])
}

/// Appends a number. Lengths always fit, because they are checked before a frame is encoded (`Error::TooLarge`).
fn put_u32(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
