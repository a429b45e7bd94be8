//! Reads one complete frame from a slice.

use super::{LINES, OPTION_BYTES_MAX, Options, TAG_BYTES_MAX};
use crate::msgpack::{ReadError, Reader, Shape, is_array, pair_shape};

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A single record. The body is the time and the record, without the array marker 0x92 that begins an entry.
    Message(Shape),
    /// An array of entries. The body is the entries, not validated yet; the number is from the array's head.
    Forward(u32),
    /// A str or bin. The body is its bytes: entries, not validated yet, possibly compressed.
    Packed,
    /// Lines from another Millstream, possibly compressed.
    Lines,
}

/// A frame that is complete in the input.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame<'a> {
    /// The tag; any bytes, or empty.
    pub tag: &'a [u8],
    /// How to read the body.
    pub form: Form,
    /// The records.
    pub body: &'a [u8],
    /// The option map.
    pub options: Options<'a>,
}

/// The kind of a top-level value.
#[derive(Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// Records.
    Frame(Frame<'a>),
    /// Nil.
    Heartbeat,
    /// An array that is not a frame, with its chunk id, if any.
    Misfit(Option<&'a [u8]>),
    /// Anything else.
    Stray,
}

/// Reads the top-level value at the start of `input`; returns its length and the value.
///
/// # Errors
/// [`ReadError::Short`] if the value is incomplete, [`ReadError::Malformed`] if it is invalid.
#[inline]
pub(crate) fn read_value(input: &[u8]) -> Result<(usize, Value<'_>), ReadError> {
    let mut reader = Reader::new(input);
    let marker = reader.peek()?;
    if !is_array(marker) {
        reader.skip()?;
        let value = if marker == 0xc0 {
            Value::Heartbeat
        } else {
            Value::Stray
        };
        return Ok((reader.position(), value));
    }
    match read_frame(&mut reader) {
        Ok(frame) => Ok((reader.position(), Value::Frame(frame))),
        Err(ReadError::Type) => misfit(input),
        Err(other) => Err(other),
    }
}

/// Returns [`ReadError::Type`] if the array is not a frame. An array whose tag or option map is too long is not a frame either,
/// because both stay in memory with every batch.
#[inline]
fn read_frame<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, ReadError> {
    let length = reader.array_len()?;
    if !(2..=4).contains(&length) {
        return Err(ReadError::Type);
    }
    let tag = reader.bytes()?;
    if tag.len() > TAG_BYTES_MAX {
        return Err(ReadError::Type);
    }
    let (form, body, taken) = match reader.peek()? {
        0xa0..=0xbf | 0xd9..=0xdb | 0xc4..=0xc6 => (Form::Packed, reader.bytes()?, 2),
        // If the frame has four elements, this array is not a list of entries: it is the `[time, metadata]` with which
        // fluent-bit begins a single message.
        0x90..=0x9f | 0xdc | 0xdd if length < 4 => {
            let count = reader.array_len()?;
            (Form::Forward(count), reader.values(u64::from(count))?, 2)
        }
        marker => {
            if matches!(marker, 0xd4..=0xd8 | 0xc7..=0xc9) {
                let mut ahead = *reader;
                if ahead.ext_head()?.0 == LINES {
                    let (_, body) = reader.ext()?;
                    return finish(reader, tag, Form::Lines, body, length - 2);
                }
            }
            if length < 3 {
                return Err(ReadError::Type);
            }
            let body = reader.values(2)?;
            (Form::Message(pair_shape(body)), body, 3)
        }
    };
    finish(reader, tag, form, body, length - taken)
}

#[inline]
fn finish<'a>(
    reader: &mut Reader<'a>,
    tag: &'a [u8],
    form: Form,
    body: &'a [u8],
    left: u32,
) -> Result<Frame<'a>, ReadError> {
    let options = match left {
        0 => Options::default(),
        1 => match reader.value()? {
            // A longer map is not read: reading it could take long, and the map would stay in memory with every batch.
            option if option.len() > OPTION_BYTES_MAX => return Err(ReadError::Type),
            option => Options::read(&mut Reader::new(option))?,
        },
        _ => return Err(ReadError::Type),
    };
    Ok(Frame {
        tag,
        form,
        body,
        options,
    })
}

/// Skips an array that is not a frame, and finds its chunk id if its last element is an option map.
#[cold]
fn misfit(input: &[u8]) -> Result<(usize, Value<'_>), ReadError> {
    let mut reader = Reader::new(input);
    let length = reader.array_len()?;
    let mut chunk = None;
    for _ in 0..length {
        let element = reader.value()?;
        chunk = match element.len() {
            ..=OPTION_BYTES_MAX => Options::read(&mut Reader::new(element))?.chunk,
            _ => None,
        };
    }
    Ok((reader.position(), Value::Misfit(chunk)))
}
