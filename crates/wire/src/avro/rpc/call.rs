//! Decodes calls. Their events are converted to entries of the packed encoding (MessagePack `[time, map]`) as the bytes
//! arrive.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! If a value is incomplete, only this value is read again when more bytes have arrived. The decoder never writes beyond the
//! capacity of the output: only the caller enlarges the output.

use millstream_record::Time;

use super::{
    MESSAGE_HEADER,
    handshake::{HANDSHAKE_BYTES_MAX, Match, Request},
};
use crate::{
    avro::{ReadError, Reader},
    msgpack::{write_event_time, write_str},
    record::MESSAGE,
};

/// The longest name of a message, in bytes. The two known names have 6 and 11.
const NAME_BYTES_MAX: usize = 256;
/// The longest head of a text in MessagePack, in bytes.
const STR_HEAD_BYTES: usize = 5;
/// The size of an entry up to its first field: the head of an array of 2, an EventTime, the head of a map of up to 15 fields.
const ENTRY_HEAD_BYTES: usize = 12;
/// The offset of the time in an entry.
const TIME_AT: usize = 1;
/// The offset of the map in an entry.
const MAP_AT: usize = 11;
/// The head of a map grows by at most this many bytes when the number of fields is filled in.
const MAP_GROWS_BYTES: usize = 4;
/// The header with the event time, in milliseconds since 1970.
const TIMESTAMP: &[u8] = b"timestamp";

/// Decodes the calls of one connection.
#[derive(Debug, Default)]
pub struct Calls {
    /// Whether a handshake has succeeded. Later calls have no handshake.
    agreed: bool,
    state: Expected,
    /// The answer to the handshake of this call.
    handshake: Vec<u8>,
    /// The offset in the output at which the entries of this call begin.
    start: usize,
    records: u32,
    entry: Entry,
    is_batch: bool,
}

/// The next part of the call.
#[derive(Debug, Default)]
enum Expected {
    #[default]
    Start,
    Handshake,
    /// Metadata: the number of pairs left in the block.
    Meta(u64),
    Name,
    /// Events: the number of events left in the block.
    Events(u64),
    /// Headers: the number of headers left in the block of headers, and the number of events after this one in the block of
    /// events.
    Headers(u64, u64),
    Body(u64),
    /// The end of the call.
    End,
    /// No part is left: the call was only a handshake or a ping, or its handshake did not match.
    Greeting,
    Refused(Fault),
}

/// The entry being written.
#[derive(Debug, Default)]
struct Entry {
    start: usize,
    fields: u32,
}

/// The progress of [`Calls::feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fed {
    /// All complete values were consumed.
    More,
    /// The output needs this many more bytes: enlarge it, then feed the remaining input.
    Room(usize),
}

/// The result of a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// The answer to the call's handshake; empty if the call had none.
    pub handshake: &'a [u8],
    /// The number of records of the call; they are at the end of the output. `None` if the call was only a handshake or a
    /// ping. After a fault the output contains no record of the call.
    pub result: Result<Option<u32>, Fault>,
}

/// Why a call is refused. The peer is at fault. The call leaves no record in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An impossible number or length.
    #[error("the call contains an invalid number or length")]
    Malformed,
    /// The call ends inside a value.
    #[error("the call ends inside a value")]
    Cut,
    /// Bytes follow the last value of the call: its events have another schema.
    #[error("the call continues after its last value")]
    Longer,
    /// A message that is neither `append` nor `appendBatch`.
    #[error("not a message of AvroSourceProtocol: only `append` and `appendBatch` are supported")]
    Message,
    /// A protocol whose events are not headers and a body.
    #[error("a protocol other than Flume's AvroSourceProtocol")]
    Protocol,
    /// The handshake is missing, invalid or above the size limit.
    #[error("not a handshake of Avro RPC, or one that is too long")]
    Handshake,
}

impl Fault {
    /// Whether the connection must be closed because its handshake failed.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Protocol | Self::Handshake)
    }
}

/// Why a step could not be completed.
enum Stop {
    Short,
    Room(usize),
    Fault(Fault),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Short => Self::Short,
            ReadError::Malformed => Self::Fault(Fault::Malformed),
        }
    }
}

impl Calls {
    /// The state of a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Consumes complete values from the front of `input` and appends the entries to `out`. Returns the number of bytes
    /// consumed; pass the remaining bytes again, followed by new ones. Events without a valid timestamp get the time
    /// `received`.
    pub fn feed(&mut self, input: &[u8], received: Time, out: &mut Vec<u8>) -> (usize, Fed) {
        if let Expected::Start = self.state {
            self.start = out.len();
            self.records = 0;
            self.handshake.clear();
            self.state = if self.agreed {
                Expected::Meta(0)
            } else {
                Expected::Handshake
            };
        }
        let mut taken = 0;
        loop {
            if let Expected::Refused(_) | Expected::Greeting = self.state {
                return (input.len(), Fed::More);
            }
            let mut reader = Reader::at(input, taken);
            match self.step(&mut reader, input, received, out) {
                Ok(()) => taken = reader.position(),
                Err(Stop::Short) => return (taken, Fed::More),
                Err(Stop::Room(bytes)) => return (taken, Fed::Room(bytes)),
                Err(Stop::Fault(fault)) => self.state = Expected::Refused(fault),
            }
        }
    }

    /// Ends the call; `left` is the number of bytes that [`Calls::feed`] did not consume. Afterwards the next call can be fed.
    pub fn end(&mut self, left: usize, out: &mut Vec<u8>) -> Outcome<'_> {
        let result = match std::mem::take(&mut self.state) {
            Expected::End if left == 0 => Ok(Some(self.records)),
            Expected::End => Err(Fault::Longer),
            Expected::Greeting => Ok(None),
            Expected::Refused(fault) => Err(fault),
            Expected::Start if self.agreed => Err(Fault::Cut),
            Expected::Start | Expected::Handshake => Err(Fault::Handshake),
            _ => Err(Fault::Cut),
        };
        if result.is_err() {
            out.truncate(self.start.min(out.len()));
        }
        self.start = out.len();
        Outcome {
            handshake: &self.handshake,
            result,
        }
    }

    /// The offset in the output at which the entries of the current call begin.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Adjusts the stored offsets. The caller must call this method after removing the output in front of [`Calls::start`].
    pub fn rebase(&mut self) {
        self.entry.start = self.entry.start.saturating_sub(self.start);
        self.start = 0;
    }

    /// Reads one value.
    fn step(
        &mut self,
        reader: &mut Reader<'_>,
        input: &[u8],
        received: Time,
        out: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        self.state = match self.state {
            Expected::Handshake => self.handshake(reader, input)?,
            Expected::Meta(0) => match reader.block()? {
                0 => Expected::Name,
                pairs => Expected::Meta(pairs),
            },
            Expected::Meta(pairs) => {
                reader.bytes()?;
                reader.bytes()?;
                Expected::Meta(pairs - 1)
            }
            Expected::Name => self.name(reader, received, out)?,
            Expected::Events(0) => match reader.block()? {
                0 => Expected::End,
                events => Expected::Events(events),
            },
            Expected::Events(events) => {
                self.begin_entry(received, out)?;
                Expected::Headers(0, events - 1)
            }
            Expected::Headers(0, events) => match reader.block()? {
                0 => Expected::Body(events),
                headers => Expected::Headers(headers, events),
            },
            Expected::Headers(headers, events) => {
                let (name, value) = (reader.bytes()?, reader.bytes()?);
                self.header(name, value, out)?;
                Expected::Headers(headers - 1, events)
            }
            Expected::Body(events) => {
                let body = reader.bytes()?;
                self.end_entry(body, out)?;
                match self.is_batch {
                    true => Expected::Events(events),
                    false => Expected::End,
                }
            }
            Expected::End if reader.position() == input.len() => return Err(Stop::Short),
            Expected::End => return Err(Stop::Fault(Fault::Longer)),
            Expected::Start | Expected::Greeting | Expected::Refused(_) => return Err(Stop::Short),
        };
        Ok(())
    }

    fn handshake(&mut self, reader: &mut Reader<'_>, input: &[u8]) -> Result<Expected, Stop> {
        let request = match Request::read(reader) {
            Ok(request) if reader.position() <= HANDSHAKE_BYTES_MAX => request,
            Err(ReadError::Short) if input.len() <= HANDSHAKE_BYTES_MAX => return Err(Stop::Short),
            _ => return Err(Stop::Fault(Fault::Handshake)),
        };
        let matched = request.judge();
        matched.write(&mut self.handshake);
        match matched {
            Match::Both | Match::Client => {
                self.agreed = true;
                Ok(Expected::Meta(0))
            }
            Match::None => Ok(Expected::Greeting),
            Match::Incompatible => Err(Stop::Fault(Fault::Protocol)),
        }
    }

    fn name(
        &mut self,
        reader: &mut Reader<'_>,
        received: Time,
        out: &mut Vec<u8>,
    ) -> Result<Expected, Stop> {
        let length = reader.length()?;
        if length > NAME_BYTES_MAX {
            return Err(Stop::Fault(Fault::Message));
        }
        match reader.take(length)? {
            b"appendBatch" => {
                self.is_batch = true;
                Ok(Expected::Events(0))
            }
            b"append" => {
                self.is_batch = false;
                self.begin_entry(received, out)?;
                Ok(Expected::Headers(0, 0))
            }
            // The empty name is Avro's ping.
            b"" => Ok(Expected::Greeting),
            _ => Err(Stop::Fault(Fault::Message)),
        }
    }

    /// Writes the head of an entry, with the receive time and space for the number of fields.
    fn begin_entry(&mut self, received: Time, out: &mut Vec<u8>) -> Result<(), Stop> {
        ensure(out, ENTRY_HEAD_BYTES)?;
        self.entry = Entry {
            start: out.len(),
            fields: 0,
        };
        out.push(0x92);
        let seconds = u32::try_from(received.seconds()).unwrap_or(0);
        write_event_time(out, seconds, received.subsec_nanos());
        out.push(0x80);
        Ok(())
    }

    fn header(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        let renamed = match name == MESSAGE.as_bytes() {
            true => MESSAGE_HEADER.as_bytes(),
            false => name,
        };
        ensure(out, renamed.len() + value.len() + 2 * STR_HEAD_BYTES)?;
        write_str(out, renamed);
        write_str(out, value);
        self.entry.fields += 1;
        if name == TIMESTAMP
            && let Some((seconds, nanos)) = event_time(value)
            && let Some(rest) = out.get_mut(self.entry.start + TIME_AT + 2..)
            && let Some(place) = rest.first_chunk_mut::<8>()
        {
            *place = (u64::from(seconds) << 32 | u64::from(nanos)).to_be_bytes();
        }
        Ok(())
    }

    fn end_entry(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        let name = MESSAGE.as_bytes();
        let bytes = name.len() + body.len() + 2 * STR_HEAD_BYTES + MAP_GROWS_BYTES;
        ensure(out, bytes)?;
        write_str(out, name);
        write_str(out, body);
        self.records = self.records.saturating_add(1);
        let [b3, b2, b1, b0] = (self.entry.fields + 1).to_be_bytes();
        let place = self.entry.start + MAP_AT;
        match u32::from_be_bytes([b3, b2, b1, b0]) {
            0..=15 => put(out, place, &[0x80 | b0]),
            16..=0xffff => put(out, place, &[0xde, b1, b0]),
            _ => put(out, place, &[0xdf, b3, b2, b1, b0]),
        }
        Ok(())
    }
}

/// Checks that `bytes` more bytes fit into the capacity of `out`.
fn ensure(out: &Vec<u8>, bytes: usize) -> Result<(), Stop> {
    match out.capacity() - out.len() >= bytes {
        true => Ok(()),
        false => Err(Stop::Room(bytes)),
    }
}

/// Replaces the byte at offset `place` by `bytes`, and moves the bytes after it.
fn put(out: &mut Vec<u8>, place: usize, bytes: &[u8]) {
    let end = out.len();
    out.resize(end + bytes.len() - 1, 0);
    out.copy_within(place + 1..end, place + bytes.len());
    if let Some(room) = out.get_mut(place..place + bytes.len()) {
        room.copy_from_slice(bytes);
    }
}

/// Parses milliseconds since 1970 and returns the seconds and nanoseconds of an EventTime. `None` for any other text and for
/// times after 2106.
fn event_time(text: &[u8]) -> Option<(u32, u32)> {
    let millis: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let seconds = u32::try_from(millis / 1000).ok()?;
    Some((seconds, (millis % 1000) as u32 * 1_000_000))
}
