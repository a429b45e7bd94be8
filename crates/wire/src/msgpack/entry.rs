//! Entries of a packed stream: `[time, record]`.
//!
//! ```text
//! 92 | time | record            time: int, uint; d7 00 s s s s n n n n; c7 08 00 s s s s n n n n
//! 92 | 92 | time | map | record as fluent-bit writes it: with a map of metadata beside the time
//! ```
//!
//! A sender may also write nil, or a float of seconds. The source replaces such a time, so no batch has one ([`Shape::Timeless`]).
//!
//! The header of an array of two may also be `dc 00 02` or `dd 00 00 00 02`.

use millstream_record::Time;

use super::{EVENT_TIME, ReadError, Reader};

/// The head of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The event time; `None` if the entry has nil or a float instead ([`Shape::Timeless`]).
    pub time: Option<Time>,
    /// The offset of the record, which is a map.
    pub record: usize,
    /// The offset of the map of metadata beside the time; 0 if there is none.
    pub metadata: usize,
}

impl Head {
    /// The map of metadata beside the time, and all bytes that follow it; empty if there is none. `bytes`: those that this head was read
    /// from.
    #[inline]
    pub fn metadata(self, bytes: &[u8]) -> &[u8] {
        match self.metadata {
            0 => &[],
            at => bytes.get(at..).unwrap_or_default(),
        }
    }
}

/// The result of [`entry_shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `[time, map]`: valid.
    Good,
    /// `[nil, map]` or `[float, map]`: valid once [`replacing_time`] replaces nil or the float.
    Timeless,
    /// `[[-1, map], map]` or `[[-2, map], map]`: begins or ends a group of Fluent Bit. It is no record.
    Mark,
    /// Anything else.
    Misfit,
}

/// Reads the head of the entry at `at`, for encoders that then read the record. Skips metadata beside the time.
///
/// # Errors
/// [`ReadError`] if there is no entry at `at`; never for an entry of a [`Batch`](millstream_record::Batch).
#[inline]
pub fn entry_head(bytes: &[u8], at: usize) -> Result<Head, ReadError> {
    if bytes.get(at) == Some(&0x92) {
        return pair_head(bytes, at + 1);
    }
    let mut reader = Reader::at(bytes, at);
    match reader.array_len()? {
        2 => pair_head(bytes, reader.position()),
        _ => Err(ReadError::Type),
    }
}

/// Reads the head of an entry that has no array marker, as in a message of the forward protocol with a single record: a
/// time (or `[time, metadata]`) at `at`, then a map.
///
/// # Errors
/// [`ReadError`] for other values.
#[inline]
pub fn pair_head(bytes: &[u8], at: usize) -> Result<Head, ReadError> {
    // Nearly all entries begin with an EventTime and have no metadata.
    if let Some(
        [
            0xd7,
            0,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            0x80..=0x8f | 0xde | 0xdf,
            ..,
        ],
    ) = bytes.get(at..)
    {
        let seconds = u32::from_be_bytes([*a, *b, *c, *d]);
        let nanos = u32::from_be_bytes([*e, *f, *g, *h]);
        return Ok(Head {
            time: Some(Time::from_parts(i64::from(seconds), nanos)),
            record: at + 10,
            metadata: 0,
        });
    }
    any_pair_head(bytes, at)
}

#[cold]
fn any_pair_head(bytes: &[u8], at: usize) -> Result<Head, ReadError> {
    let mut reader = Reader::at(bytes, at);
    let mut metadata = 0;
    let time = if is_array(reader.peek()?) {
        if reader.array_len()? != 2 {
            return Err(ReadError::Type);
        }
        let time = entry_time(&mut reader)?;
        if !is_map(reader.peek()?) {
            return Err(ReadError::Type);
        }
        metadata = reader.position();
        reader.skip()?;
        time
    } else {
        entry_time(&mut reader)?
    };
    if !is_map(reader.peek()?) {
        return Err(ReadError::Type);
    }
    Ok(Head {
        time,
        record: reader.position(),
        metadata,
    })
}

/// Returns the shape of `entry`, which is one complete value.
pub fn entry_shape(entry: &[u8]) -> Shape {
    shape(entry_head(entry, 0))
}

/// Returns the shape of `pair`, which consists of two complete values. If they are valid, they are the elements of an
/// entry: a time (or `[time, metadata]`) and a map.
pub fn pair_shape(pair: &[u8]) -> Shape {
    shape(pair_head(pair, 0))
}

fn shape(head: Result<Head, ReadError>) -> Shape {
    match head {
        Ok(head) if head.metadata > 0 && head.time.is_some_and(is_mark) => Shape::Mark,
        Ok(Head { time: Some(_), .. }) => Shape::Good,
        Ok(Head { time: None, .. }) => Shape::Timeless,
        Err(_) => Shape::Misfit,
    }
}

/// Whether a time stands for the begin (-1) or the end (-2) of a group. In an EventTime, the seconds are the lower 32 bits.
fn is_mark(time: Time) -> bool {
    matches!(time.seconds(), -2..=-1 | 0xffff_fffe..=0xffff_ffff)
}

fn entry_time(reader: &mut Reader<'_>) -> Result<Option<Time>, ReadError> {
    match reader.peek()? {
        0xc0 | 0xca | 0xcb => reader.skip().map(|()| None),
        0xd4..=0xd8 | 0xc7..=0xc9 => {
            let (code, data) = reader.ext()?;
            match *data {
                [a, b, c, d, e, f, g, h] if code == EVENT_TIME => {
                    let seconds = u32::from_be_bytes([a, b, c, d]);
                    let nanos = u32::from_be_bytes([e, f, g, h]);
                    Ok(Some(Time::from_parts(i64::from(seconds), nanos)))
                }
                _ => Err(ReadError::Type),
            }
        }
        _ => {
            let seconds = i64::try_from(reader.int()?).unwrap_or(i64::MAX);
            Ok(Some(Time::from_parts(seconds, 0)))
        }
    }
}

/// Returns the time that replaces the value at the start of `value`: the seconds of a float, to the microsecond, and otherwise the time
/// `received`.
pub fn replacing_time(value: &[u8], received: Time) -> Time {
    let micros = Reader::new(value)
        .float()
        .map(|seconds| (seconds * 1e6).round());
    match micros {
        // A conversion to an integer never overflows: it is saturated.
        Ok(micros) if micros.abs() < (i64::MAX / 1000) as f64 => Time(micros as i64 * 1000),
        _ => received,
    }
}

/// Whether `pair`, an entry without its array marker, has metadata beside its time.
pub fn is_nested(pair: &[u8]) -> bool {
    pair.first().is_some_and(|marker| is_array(*marker))
}

/// The number of metadata pairs that the entry at `at` has beside its time; 0 for `[time, record]`.
pub fn metadata_len(bytes: &[u8], at: usize) -> u32 {
    let mut reader = Reader::at(bytes, at);
    let mut read = || -> Result<u32, ReadError> {
        reader.array_len()?;
        if !is_array(reader.peek()?) {
            return Ok(0);
        }
        reader.array_len()?;
        reader.skip()?;
        reader.map_len()
    };
    read().unwrap_or(0)
}

/// Whether a value that begins with `marker` is an array.
pub(crate) fn is_array(marker: u8) -> bool {
    matches!(marker, 0x90..=0x9f | 0xdc | 0xdd)
}

/// Whether a value that begins with `marker` is a map.
pub(crate) fn is_map(marker: u8) -> bool {
    matches!(marker, 0x80..=0x8f | 0xde | 0xdf)
}
