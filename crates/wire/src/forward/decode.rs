//! Reads the frames of a connection from the bytes received so far.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep`
//!
//! The connection keeps a read buffer and calls [`Decoder::next`] for the item at its front. Small frames are returned complete.
//! A long payload is announced with its length, so that the connection reads it directly into a buffer that becomes the batch.
//! The decoder then continues after the payload. It remembers how far it has examined an incomplete frame. So after each read it
//! parses only the head of this frame again, however small the reads are.

use std::fmt;

use millstream_record::Encoding;

use super::{
    Compressed, Frame, LINES, OPTION_BYTES_MAX, Options, PAYLOAD_INLINE_MAX, TAG_BYTES_MAX,
    frame::{Value, read_value},
};
use crate::{
    json,
    msgpack::{ReadError, Reader, skip},
};

/// After this many consecutive values that are not frames, the connection is considered to use another protocol. Other
/// servers skip such values forever, and log a line for each byte.
const STRAYS_MAX: u32 = 16;

/// The item at the front of the input.
#[derive(Debug, PartialEq)]
pub enum Step<'a> {
    /// No item is complete: read more bytes. At most white space was consumed.
    More,
    /// A frame.
    Frame(Frame<'a>),
    /// The head of a frame whose payload of `length` bytes follows the consumed bytes. Read the payload, then call
    /// [`Decoder::next`] with the bytes after it.
    Payload(Payload<'a>),
    /// The end of the frame that [`Step::Payload`] began.
    End(Options<'a>),
    /// A heartbeat, which needs no answer.
    Heartbeat,
    /// An array that is not a frame: its bytes in MessagePack, and its chunk id, if any.
    Misfit {
        /// The complete value.
        value: &'a [u8],
        /// The id to acknowledge, as a MessagePack value.
        chunk: Option<&'a [u8]>,
    },
    /// A value that is not an array, to be skipped. Too many in a row are refused ([`Refusal::Garbage`]).
    Stray,
    /// A complete JSON value: all consumed bytes. [`Decoder::convert`] returns the item that the value stands for.
    Json,
}

/// The head of a frame with a long payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a> {
    /// The tag.
    pub tag: &'a [u8],
    /// The encoding of the payload after decompression. The option map after the payload states whether the payload is
    /// compressed.
    pub encoding: Encoding,
    /// The length of the payload in bytes.
    pub length: usize,
}

/// Why the connection cannot be read further. The frame at the front must not be stored or acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The bytes are not MessagePack, or not JSON on a JSON connection.
    Malformed {
        /// The offset in the connection.
        offset: u64,
        /// Whether the connection speaks JSON.
        json: bool,
    },
    /// Too many values that are not frames: another protocol.
    Garbage {
        /// The offset in the connection after the last of these values.
        offset: u64,
    },
    /// A frame above the limit, or an option map above [`OPTION_BYTES_MAX`].
    TooLarge {
        /// The offset of the frame in the connection.
        offset: u64,
        /// The limit.
        bytes_max: usize,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { offset, json } => {
                let format = if *json { "JSON" } else { "MessagePack" };
                write!(f, "not {format} at byte {offset} of the connection")
            }
            Self::Garbage { offset } => write!(
                f,
                "{STRAYS_MAX} consecutive values that are not forward frames, up to byte {offset} of the connection: another protocol?"
            ),
            Self::TooLarge { offset, bytes_max } => write!(
                f,
                "the frame at byte {offset} of the connection is above the limit of {bytes_max} bytes (limits.frame)"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// Reads the frames of a connection.
#[derive(Debug)]
pub struct Decoder {
    frame_bytes_max: usize,
    /// Whether the connection uses JSON; `None` until the first byte, which decides this, was received.
    json: Option<bool>,
    /// After a payload was announced, the number of values that follow it in its frame: 1 if the frame has an option map,
    /// otherwise 0. `None` in any other state.
    behind: Option<u32>,
    /// The state of an incomplete value: `at` is the offset of the part to examine next, and `open` is the number of values that
    /// are still missing. If no value is incomplete, `open` is 0.
    at: usize,
    open: u64,
    scan: json::Scan,
    strays: u32,
    /// The offset of the front of the input in the connection.
    offset: u64,
}

impl Decoder {
    /// The state of a new connection whose frames may have `frame_bytes_max` bytes.
    pub fn new(frame_bytes_max: usize) -> Self {
        Self {
            frame_bytes_max,
            json: None,
            behind: None,
            at: 0,
            open: 0,
            scan: json::Scan::new(),
            strays: 0,
            offset: 0,
        }
    }

    /// Whether the connection uses JSON. Its acks are JSON as well.
    pub fn is_json(&self) -> bool {
        self.json == Some(true)
    }

    /// The number of consumed bytes, including announced payloads.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the frame at the front is incomplete. If so, the end of the connection truncates this frame. `left` is the number
    /// of bytes that were received but not consumed.
    pub fn is_amid(&self, left: usize) -> bool {
        left > 0 || self.behind.is_some()
    }

    /// Whether the input begins with a MessagePack value that was not examined yet.
    pub(super) fn is_between(&self) -> bool {
        self.open == 0 && self.behind.is_none() && self.json == Some(false)
    }

    /// Advances the offset by `bytes`, the length of frames that were read without [`Decoder::next`].
    pub(super) fn pass(&mut self, bytes: usize) {
        if bytes > 0 {
            self.offset += bytes as u64;
            self.strays = 0;
        }
    }

    /// Returns the number of bytes consumed, and the item at the front of `input`. Drop the consumed bytes, then call again.
    /// After [`Step::More`], pass the remaining bytes again, followed by new ones.
    ///
    /// # Errors
    /// [`Refusal`]: close the connection.
    #[inline]
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Step<'a>), Refusal> {
        let Some(first) = input.first() else {
            if self.behind == Some(0) {
                return self.end(input);
            }
            return Ok((0, Step::More));
        };
        if *self.json.get_or_insert(matches!(first, b'{' | b'[')) {
            return self.next_json(input);
        }
        if self.behind.is_some() {
            return self.end(input);
        }
        if self.open == 0 {
            match read_value(input) {
                Ok((end, value)) => return self.judge(input, end, end, value),
                Err(ReadError::Short) => self.open = 1,
                Err(_) => return Err(self.malformed(input)),
            }
        }
        self.cut(input)
    }

    /// Continues an incomplete frame.
    #[cold]
    fn cut<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Step<'a>), Refusal> {
        if let Ok((consumed, values, payload)) = read_payload_head(input)
            && payload.length > PAYLOAD_INLINE_MAX
        {
            if payload.length > self.frame_bytes_max {
                return Err(self.too_large(self.frame_bytes_max));
            }
            (self.at, self.open) = (0, 0);
            self.strays = 0;
            self.behind = Some(values);
            self.offset += (consumed + payload.length) as u64;
            return Ok((consumed, Step::Payload(payload)));
        }
        if !self.continues(input)? {
            if input.len() >= self.frame_bytes_max {
                return Err(self.too_large(self.frame_bytes_max));
            }
            return Ok((0, Step::More));
        }
        match read_value(input) {
            Ok((end, value)) => self.judge(input, end, end, value),
            // Cannot fail: the value was just skipped to its end.
            Err(_) => Err(self.malformed(input)),
        }
    }

    /// Reads the option map after an announced payload.
    fn end<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Step<'a>), Refusal> {
        if self.behind == Some(0) {
            self.behind = None;
            return Ok((0, Step::End(Options::default())));
        }
        self.open = self.open.max(1);
        if !self.continues(input)? {
            if input.len() >= OPTION_BYTES_MAX {
                return Err(self.too_large(OPTION_BYTES_MAX));
            }
            return Ok((0, Step::More));
        }
        let mut reader = Reader::new(input);
        let Ok(options) = Options::read(&mut reader) else {
            return Err(self.malformed(input));
        };
        self.behind = None;
        self.offset += reader.position() as u64;
        Ok((reader.position(), Step::End(options)))
    }

    /// Whether the incomplete value at the front is complete now.
    fn continues(&mut self, input: &[u8]) -> Result<bool, Refusal> {
        match skip(input, self.at, &mut self.open) {
            Ok(at) if self.open > 0 => {
                self.at = at;
                Ok(false)
            }
            Ok(_) => {
                self.at = 0;
                Ok(true)
            }
            Err(malformed) => Err(Refusal::Malformed {
                offset: self.offset + malformed.at as u64,
                json: false,
            }),
        }
    }

    fn next_json(&mut self, input: &[u8]) -> Result<(usize, Step<'static>), Refusal> {
        // These are the bytes that the scan and the parser skip as white space (a form feed is not one of them). With any other
        // set, the result would depend on how the reads are divided.
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        if input.iter().all(is_blank) {
            self.scan = json::Scan::new();
            self.offset += input.len() as u64;
            return Ok((input.len(), Step::More));
        }
        match self.scan.end(input) {
            Some(end) => Ok((end, Step::Json)),
            None if input.len() >= self.frame_bytes_max => {
                Err(self.too_large(self.frame_bytes_max))
            }
            None => Ok((0, Step::More)),
        }
    }

    /// Converts `text`, the bytes of a [`Step::Json`], to MessagePack, and returns the item. `out` must be empty. It gets at most
    /// [`json::packed_bytes_max`] bytes.
    ///
    /// # Errors
    /// [`Refusal`]: close the connection.
    pub fn convert<'a>(&mut self, text: &[u8], out: &'a mut Vec<u8>) -> Result<Step<'a>, Refusal> {
        let at = match json::to_msgpack(text, out) {
            Ok(json::Progress::Consumed(_)) => match out.first() {
                Some(0x80..=0x9f | 0xdc..=0xdf) => None,
                // A number or a literal, which no JSON client of the protocol sends.
                _ => Some(0),
            },
            Ok(json::Progress::NeedMore) => Some(text.len()),
            Err(error) => Some(error.offset),
        };
        if let Some(at) = at {
            return Err(Refusal::Malformed {
                offset: self.offset + at as u64,
                json: true,
            });
        }
        self.offset += text.len() as u64;
        match read_value(out) {
            Ok((end, value)) => sort(out, end, value, &mut self.strays).ok_or(Refusal::Garbage {
                offset: self.offset,
            }),
            Err(_) => Err(Refusal::Malformed {
                offset: self.offset,
                json: true,
            }),
        }
    }

    #[inline]
    fn judge<'a>(
        &mut self,
        input: &'a [u8],
        consumed: usize,
        end: usize,
        value: Value<'a>,
    ) -> Result<(usize, Step<'a>), Refusal> {
        self.offset += consumed as u64;
        sort(input, end, value, &mut self.strays)
            .map(|step| (consumed, step))
            .ok_or(Refusal::Garbage {
                offset: self.offset,
            })
    }

    #[cold]
    fn malformed(&self, input: &[u8]) -> Refusal {
        let at = skip(input, 0, &mut 1).unwrap_or_else(|malformed| malformed.at);
        Refusal::Malformed {
            offset: self.offset + at as u64,
            json: false,
        }
    }

    #[cold]
    fn too_large(&self, bytes_max: usize) -> Refusal {
        Refusal::TooLarge {
            offset: self.offset,
            bytes_max,
        }
    }
}

/// Returns the step for a complete value; `None` after too many consecutive strays.
#[inline]
fn sort<'a>(input: &'a [u8], end: usize, value: Value<'a>, strays: &mut u32) -> Option<Step<'a>> {
    let bytes = input.get(..end).unwrap_or(input);
    let step = match value {
        Value::Frame(frame) => Step::Frame(frame),
        Value::Heartbeat => Step::Heartbeat,
        Value::Misfit(chunk) => Step::Misfit {
            value: bytes,
            chunk,
        },
        Value::Stray => {
            *strays += 1;
            return (*strays < STRAYS_MAX).then_some(Step::Stray);
        }
    };
    *strays = 0;
    Some(step)
}

/// Reads the head of a frame with a payload. Returns the length of the head, the number of values after the payload, and the
/// content of the head.
fn read_payload_head(input: &[u8]) -> Result<(usize, u32, Payload<'_>), ReadError> {
    let mut reader = Reader::new(input);
    let values = match reader.array_len()? {
        length @ 2..=3 => length - 2,
        _ => return Err(ReadError::Type),
    };
    let tag = reader.bytes()?;
    if tag.len() > TAG_BYTES_MAX {
        return Err(ReadError::Type);
    }
    let (encoding, length) = match reader.peek()? {
        0xc7..=0xc9 => match reader.ext_head()? {
            (LINES, length) => (Encoding::Lines, length),
            _ => return Err(ReadError::Type),
        },
        _ => (Encoding::Packed, reader.bytes_head()?),
    };
    let payload = Payload {
        tag,
        encoding,
        length,
    };
    Ok((reader.position(), values, payload))
}

impl Frame<'_> {
    /// Whether the body is plain entries or lines: not compressed, and not metrics or traces.
    pub fn is_plain(&self) -> bool {
        self.options.is_plain()
    }
}

impl Options<'_> {
    /// Whether the payload is plain entries or lines: not compressed, and not metrics or traces.
    pub fn is_plain(&self) -> bool {
        self.compressed == Compressed::No && self.signal == super::Signal::Logs
    }
}
