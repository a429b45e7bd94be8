//! Writes the record of a message: see the layout in [`super`].

use millstream_record::Time;

use super::{
    header::{Header, Received},
    known::{FIELDS_BYTES, Known},
    priority::{self, MAP_AT, START_BYTES, TIME_AT},
    structured,
    text::str_or_bin,
    time::Moment,
};
use crate::{record::MESSAGE, room::Room};

/// Offsets of a record's parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Where the record starts.
    pub(super) start: usize,
    /// Where the value of the last field, `message`, starts.
    pub(super) message: usize,
}

/// The range of the fields from `host` to `msgid`, and their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) count: u8,
}

/// The maximum length of cached words (the bytes between the time and the text), in bytes.
pub(super) const WORDS: usize = 64;
/// The maximum length of cached structured data, in bytes.
pub(super) const DATA: usize = 128;
/// The key of the text.
const MESSAGE_KEY: [u8; 8] = *b"\xa7message";

/// Appends the record of a message whose words are cached. Returns `None` if its time does not fit into an EventTime.
#[inline(always)]
pub(super) fn again(
    priority: u8,
    moment: &Moment,
    known: &Known<WORDS>,
    data: &mut Known<DATA>,
    structured: bool,
    mut message: &[u8],
    room: &mut Room<'_>,
) -> Option<Written> {
    let seconds = u32::try_from(moment.seconds).ok()?;
    let start = room.position();
    let template = priority::start(Some(priority));
    // Facility, severity and the message are 3 fields.
    let mut fields = 3 + known.count;
    let mut bytes = template.bytes;
    let stamp = u64::from(seconds) << 32 | u64::from(moment.nanos);
    if let Some(place) = bytes.get_mut(TIME_AT..).and_then(<[u8]>::first_chunk_mut) {
        *place = stamp.to_be_bytes();
    }
    bytes[MAP_AT] = 0x80 | fields;
    let ahead = room.ahead(START_BYTES + FIELDS_BYTES);
    if let Some(place) = ahead.first_chunk_mut() {
        *place = bytes;
    }
    if let Some(place) = ahead.get_mut(template.length..) {
        known.store(place);
    }
    room.advance(template.length + known.fields_length);
    if structured && let Some(behind) = structured_data(message, data, room) {
        fields += 1;
        room.patch(start + MAP_AT, &[0x80 | fields]);
        message = behind;
    }
    Some(self::message(start, message, room))
}

/// Appends the structured data at the start of `message`, from the cache if possible. Returns the bytes after it, or `None` if
/// `message` does not begin with valid structured data.
#[inline(always)]
fn structured_data<'a>(
    message: &'a [u8],
    data: &mut Known<DATA>,
    room: &mut Room<'_>,
) -> Option<&'a [u8]> {
    if let Some(behind) = data.behind(message) {
        data.store(room.ahead(FIELDS_BYTES));
        room.advance(data.fields_length);
        return Some(structured::without_mark(behind));
    }
    let start = room.position();
    let (behind, message_at) = structured::write(message, room)?;
    // Data is cached only with the space after it. Otherwise `[a]` would also match in `[a]x`, which is not structured data.
    if let Some(words) = message.get(..message_at)
        && words.last() == Some(&b' ')
    {
        data.learn(words, room.since(start), 1);
    }
    Some(behind)
}

/// Appends the text, which is the last field.
#[inline(always)]
fn message(start: usize, message: &[u8], room: &mut Room<'_>) -> Written {
    room.bytes(&MESSAGE_KEY);
    let at = room.position();
    str_or_bin(message, room);
    Written { start, message: at }
}

/// Appends the record. Also returns the range of its fields from `host` to `msgid`.
#[inline(always)]
pub(super) fn write(
    header: &Header<'_>,
    from: &Received<'_>,
    data: &mut Known<DATA>,
    room: &mut Room<'_>,
) -> (Written, Fields) {
    let start = room.position();
    let template = priority::start(header.priority);
    let time = header.time.unwrap_or(from.now);
    // The message is 1 field; facility and severity are 2.
    let mut fields = 1 + 2 * u8::from(header.priority.is_some());
    let map_at = match u32::try_from(time.seconds()) {
        Ok(seconds) => {
            let mut bytes = template.bytes;
            let stamp = u64::from(seconds) << 32 | u64::from(time.subsec_nanos());
            if let Some(place) = bytes.get_mut(TIME_AT..).and_then(<[u8]>::first_chunk_mut) {
                *place = stamp.to_be_bytes();
            }
            if let Some(place) = room.ahead(START_BYTES).first_chunk_mut() {
                *place = bytes;
            }
            room.advance(template.length);
            start + MAP_AT
        }
        Err(_) => far_away(template, time, room),
    };
    let (fields_start, before) = (room.position(), fields);
    let mut text = |key: Key<'_>, value: &[u8]| {
        fields += 1;
        key.write(room);
        str_or_bin(value, room);
    };
    let host = if header.host.is_empty() {
        from.host
    } else {
        header.host
    };
    if !host.is_empty() {
        text(Key(b"\xa4host"), host);
    }
    if let Some(peer) = from.peer {
        text(Key(b"\xa4peer"), peer);
    }
    if !header.app.is_empty() {
        text(Key(b"\xa3app"), header.app);
    }
    if !header.procid.is_empty() {
        text(Key(b"\xa6procid"), header.procid);
    }
    if !header.msgid.is_empty() {
        text(Key(b"\xa5msgid"), header.msgid);
    }
    let named = Fields {
        start: fields_start,
        end: room.position(),
        count: fields - before,
    };
    let mut message = header.message;
    if header.structured
        && let Some(behind) = structured_data(message, data, room)
    {
        fields += 1;
        message = behind;
    }
    fields += rare(header, room);
    room.patch(map_at, &[0x80 | fields]);
    (self::message(start, message, room), named)
}

const _: () = assert!(MESSAGE.len() + 1 == MESSAGE_KEY.len());

/// A key, as MessagePack with its header.
struct Key<'a>(&'a [u8]);

impl Key<'_> {
    #[inline(always)]
    fn write(&self, room: &mut Room<'_>) {
        room.bytes(self.0);
    }
}

/// Writes the beginning of a record whose time is before 1970 or after 2106. The time is an integer (`d3` and eight bytes). Returns
/// the offset of the map's header.
#[cold]
fn far_away(template: &priority::Start, time: Time, room: &mut Room<'_>) -> usize {
    room.bytes(&[0x92, 0xd3]);
    room.bytes(&time.seconds().to_be_bytes());
    let map_at = room.position();
    room.byte(0x80);
    let fields = template.bytes.get(priority::BARE_BYTES..template.length);
    room.bytes(fields.unwrap_or_default());
    map_at
}

/// Writes the fields that only few messages have, and returns their number.
#[inline(always)]
fn rare(header: &Header<'_>, room: &mut Room<'_>) -> u8 {
    if header.sequence.is_empty() && header.timestamp.is_empty() {
        return 0;
    }
    let mut fields = 0;
    for (key, value) in [
        (&b"\xa8sequence"[..], header.sequence),
        (b"\xa9timestamp", header.timestamp),
    ] {
        if !value.is_empty() {
            room.bytes(key);
            str_or_bin(value, room);
            fields += 1;
        }
    }
    fields
}
