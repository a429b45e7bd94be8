//! The record that a message becomes: see the drawing in [`super`].

use millstream_record::Time;

use super::{
    parse::{Header, Received},
    priority::{self, MAP_AT, START_BYTES, TIME_AT},
    structured,
};
use crate::{event::MESSAGE, room::Room};

/// Where a record's parts stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Where it begins.
    pub(super) start: usize,
    /// Where the value of `message` begins, which is its last.
    pub(super) message: usize,
}

/// Bytes of the longest head of a str or bin.
const HEAD_BYTES_MAX: usize = 5;

/// Appends the record.
#[inline(always)]
pub(super) fn write(header: &Header<'_>, from: &Received<'_>, room: &mut Room<'_>) -> Written {
    let start = room.position();
    let template = priority::start(header.priority);
    let time = header.time.unwrap_or(from.now);
    // Facility and severity; the message.
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
    let mut message = header.message;
    if header.structured
        && let Some(behind) = structured::write(message, room)
    {
        fields += 1;
        message = behind;
    }
    fields += rare(header, room);
    room.patch(map_at, &[0x80 | fields]);
    Key(b"\xa7message").write(room);
    let at = room.position();
    str_or_bin(message, room);
    Written { start, message: at }
}

const _: () = assert!(MESSAGE.len() == 7);

/// A key with its head.
struct Key<'a>(&'a [u8]);

impl Key<'_> {
    #[inline(always)]
    fn write(&self, room: &mut Room<'_>) {
        room.bytes(self.0);
    }
}

/// The start of a record before 1970 or after 2106: its time is an integer (`d3` and eight bytes). Where the head of the
/// map stands.
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

/// Fields that hardly any message has; how many.
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

/// A str, or a bin if it is not UTF-8.
#[inline(always)]
pub(super) fn str_or_bin(value: &[u8], room: &mut Room<'_>) {
    if value.is_ascii() || str::from_utf8(value).is_ok() {
        text(value, room);
    } else {
        bin(value, room);
    }
}

#[inline(always)]
fn text(value: &[u8], room: &mut Room<'_>) {
    let length = value.len();
    let ahead = room.ahead(HEAD_BYTES_MAX + length);
    let head = match length {
        0..32 => put(ahead, &[0xa0 | length as u8], value),
        32..256 => put(ahead, &[0xd9, length as u8], value),
        256..65_536 => {
            let [high, low] = (length as u16).to_be_bytes();
            put(ahead, &[0xda, high, low], value)
        }
        _ => {
            let [a, b, c, d] = (length as u32).to_be_bytes();
            put(ahead, &[0xdb, a, b, c, d], value)
        }
    };
    room.advance(head + length);
}

#[cold]
fn bin(value: &[u8], room: &mut Room<'_>) {
    bin_head(value.len(), room);
    room.bytes(value);
}

fn bin_head(length: usize, room: &mut Room<'_>) {
    let [a, b, c, d] = (length as u32).to_be_bytes();
    match length {
        0..256 => room.bytes(&[0xc4, d]),
        256..65_536 => room.bytes(&[0xc5, c, d]),
        _ => room.bytes(&[0xc6, a, b, c, d]),
    }
}

/// The head of a str of `length` bytes, or of a bin if `like` is not UTF-8.
pub(super) fn head(like: &[u8], length: usize, room: &mut Room<'_>) {
    if str::from_utf8(like).is_ok() {
        crate::lines::str_head(room, length);
    } else {
        bin_head(length, room);
    }
}

/// Stores a head and a value one behind the other; the bytes of the head.
#[inline(always)]
fn put<const N: usize>(room: &mut [u8], head: &[u8; N], value: &[u8]) -> usize {
    if let Some((first, rest)) = room.split_first_chunk_mut() {
        *first = *head;
        if let Some(rest) = rest.get_mut(..value.len()) {
            rest.copy_from_slice(value);
        }
    }
    N
}
