//! `format: json`: one object per record. The record's own fields come first, in their order. Of a field that a record has twice, only
//! the last value is written.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! The loop handles text, small numbers, nil and booleans, and leaves other values to [`crate::json`]. Most of its speed comes
//! from the previous record: adjacent records usually have the same keys in the same order, and often the same values except
//! for the last one. Bytes that equal those of the previous record are not parsed again; their JSON is copied.

use millstream_record::Batch;

use super::{
    Reason,
    add::Added,
    value::{map_at, other, text_at},
    write::{Of, Write},
};
use crate::{
    json::{self, Unfit, append_string},
    msgpack::{Head, Reader},
    record::MESSAGE,
    room::Room,
};

/// The number of fields of the previous record whose keys are remembered.
const KEYS_MAX: usize = 32;
/// The longest key that is remembered, in bytes with its head.
const KEY_BYTES: usize = 16;
/// The maximum length of `,"key":"`, the bytes that precede a text value.
const TEXT_BYTES: usize = KEY_BYTES + 8;

/// The key of a field in the previous record. The next record often has the same key at the same index.
#[derive(Clone, Copy, Debug)]
struct Key {
    /// The encoded key, and a mask of the bytes that belong to it.
    bytes: u128,
    mask: u128,
    /// The length of the encoded key; 0 if none is remembered.
    size: usize,
    /// `,"key":"`, and its length.
    text: [u8; TEXT_BYTES],
    length: usize,
    /// The bit of the added field with this name; 0 if there is none.
    named: u64,
}

impl Key {
    const NONE: Self = Self {
        bytes: 0,
        mask: u128::MAX,
        size: 0,
        text: [0; TEXT_BYTES],
        length: 0,
        named: 0,
    };

    /// Remembers the key at the start of `bytes`, for which `text` was written. The remembered text also has the quote that
    /// opens a text value.
    #[inline(never)]
    fn learn(bytes: &[u8], size: usize, text: &[u8], named: u64) -> Self {
        let mut key = Self::NONE;
        let (Some(start), Some(place)) = (bytes.first_chunk(), key.text.get_mut(..text.len()))
        else {
            return Self::NONE;
        };
        if !(1..=KEY_BYTES).contains(&size) || text.len() >= TEXT_BYTES {
            return Self::NONE;
        }
        place.copy_from_slice(text);
        if let Some(quote) = key.text.get_mut(text.len()) {
            *quote = b'"';
        }
        key.mask = u128::MAX >> (8 * (KEY_BYTES - size));
        key.bytes = u128::from_le_bytes(*start) & key.mask;
        (key.size, key.length, key.named) = (size, text.len() + 1, named);
        key
    }

    #[inline(always)]
    fn is_at(&self, body: &[u8], at: usize) -> bool {
        let start = body.get(at..).and_then(<[u8]>::first_chunk);
        start.is_some_and(|start| u128::from_le_bytes(*start) & self.mask == self.bytes)
            && self.size > 0
    }
}

/// The maximum length, in bytes, of the MessagePack and of the JSON of a remembered [`Front`] (all fields of a record except the
/// last).
const FRONT_BYTES_MAX: usize = 512;
/// Once this many consecutive records have not had the remembered front, only one of every [`NOW_AND_THEN`] further records is
/// used to learn a new front.
const PATIENCE: u32 = 16;
const NOW_AND_THEN: u32 = 64;

/// All fields of a record except the last. The next record often begins with the same fields, such as the header fields of a
/// syslog message or of a pod's log line.
#[derive(Debug, Default)]
struct Front {
    /// The encoded fields; empty if none are remembered.
    bytes: Vec<u8>,
    /// The JSON of these fields.
    text: Vec<u8>,
    fields: usize,
    seen: u64,
    /// With these fields and the keys of the previous record, a record has no field twice.
    distinct: Distinct,
    /// The number of consecutive records with another front.
    misses: u32,
}

impl Front {
    #[inline(always)]
    fn is_at(&self, body: &[u8], at: usize, left: u32) -> bool {
        let there = body.get(at..).unwrap_or_default();
        !self.bytes.is_empty() && self.fields < left as usize && there.starts_with(&self.bytes)
    }

    #[inline(always)]
    fn is_asked_for(&mut self) -> bool {
        self.misses = self.misses.wrapping_add(1);
        self.misses < PATIENCE || self.misses.is_multiple_of(NOW_AND_THEN)
    }

    #[inline(never)]
    fn learn(&mut self, bytes: &[u8], text: &[u8], fields: usize, seen: u64) {
        self.bytes.clear();
        self.text.clear();
        if bytes.len() <= FRONT_BYTES_MAX && text.len() <= FRONT_BYTES_MAX {
            self.bytes.extend_from_slice(bytes);
            self.text.extend_from_slice(text);
        }
        (self.fields, self.seen) = (fields, seen);
        self.distinct = Distinct::default();
    }
}

/// The first `fields` remembered keys differ, unless one of them was replaced since.
#[derive(Clone, Copy, Debug, Default)]
struct Distinct {
    fields: usize,
    /// The value of [`Json::replaced`] at that time.
    replaced: u64,
}

impl Distinct {
    #[inline(always)]
    fn covers(self, fields: u32, replaced: u64) -> bool {
        fields as usize <= self.fields && self.replaced == replaced
    }
}

#[derive(Debug)]
pub(super) struct Json {
    added: Added,
    delimiter: Box<[u8]>,
    /// The keys of the previous record, by field index.
    keys: Box<[Key; KEYS_MAX]>,
    /// How many keys were replaced, or were not remembered.
    replaced: u64,
    distinct: Distinct,
    front: Front,
    /// The JSON before the text of a line: `{"message":`
    line_head: Vec<u8>,
    /// The added fields that a line already has, as a bit set: bit n stands for the added field with index n.
    line_seen: u64,
}

impl Json {
    pub(super) fn new(added: Added, delimiter: Box<[u8]>) -> Self {
        let mut line_head = vec![b'{'];
        append_string(MESSAGE.as_bytes(), &mut line_head);
        line_head.push(b':');
        Self {
            line_seen: added.named(MESSAGE.as_bytes()),
            added,
            delimiter,
            keys: Box::new([Key::NONE; KEYS_MAX]),
            replaced: 0,
            distinct: Distinct::default(),
            front: Front::default(),
            line_head,
        }
    }

    fn close(&self, room: &mut Room<'_>) {
        room.both(b"}", &self.delimiter);
    }
}

impl Write for Json {
    fn begin(&mut self, batch: &Batch) {
        self.added.begin(batch);
    }

    fn line(&mut self, room: &mut Room<'_>, line: &[u8], of: Of<'_>) -> Result<(), Reason> {
        room.bytes(&self.line_head);
        json::string(room, line, 0, line.len());
        self.added
            .write(room, of.shared, of.line(line), self.line_seen, true)?;
        self.close(room);
        Ok(())
    }

    #[inline]
    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        _start: usize,
        head: Head,
        of: Of<'_>,
    ) -> Result<usize, Reason> {
        let (left, at) = map_at(body, head.record)?;
        let (end, seen) = self.fields(room, body, at, left)?;
        let event = of.packed(body, head);
        self.added.write(room, of.shared, event, seen, left > 0)?;
        self.close(room);
        Ok(end)
    }
}

impl Json {
    /// Writes the `left` remaining fields of a record, which begin at `at`. Returns the offset after these fields, and a bit set:
    /// bit n is set if one of these fields has the name of the added field with index n.
    #[inline]
    fn fields(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        mut at: usize,
        left: u32,
    ) -> Result<(usize, u64), Unfit> {
        if left == 0 {
            room.byte(b'{');
            return Ok((at, 0));
        }
        let (mut seen, mut first, last) = (0, 0, left as usize - 1);
        let (start, written) = (at, room.position());
        let mut learns = false;
        let mut distinct = self.distinct;
        if self.front.is_at(body, at, left) {
            distinct = self.front.distinct;
            room.bytes(&self.front.text);
            at += self.front.bytes.len();
            (first, seen) = (self.front.fields, self.front.seen);
            self.front.misses = 0;
        } else if last > 0 {
            learns = self.front.is_asked_for();
        }
        for index in first..=last {
            if index == last && learns {
                let bytes = body.get(start..at).unwrap_or_default();
                self.front.learn(bytes, room.since(written), index, seen);
            }
            match self.keys.get(index) {
                Some(key) if key.is_at(body, at) => {
                    at += key.size;
                    seen |= key.named;
                    if let Some((start, length)) = text_at(body, at) {
                        let (text, count) = (&key.text, key.length);
                        json::string_behind(room, text, count, body, start, length, b"\"");
                        at = start + length;
                    } else {
                        room.bytes(key.text.get(..key.length - 1).unwrap_or_default());
                        at = other(room, body, at)?;
                    }
                }
                _ => at = self.other_field(room, body, at, index, &mut seen)?,
            }
        }
        if distinct.covers(left, self.replaced) || self.compare(body, start, left, first)? {
            return Ok((at, seen));
        }
        room.back_to(written);
        self.without_repeats(room, body, start, left)
    }

    /// Whether a record has no field twice. If so, notes which keys were compared. The first `first` fields are those of the front.
    #[inline(never)]
    fn compare(
        &mut self,
        body: &[u8],
        start: usize,
        left: u32,
        first: usize,
    ) -> Result<bool, Unfit> {
        if !json::differ(body, start, left)? {
            return Ok(false);
        }
        let keys = self.keys.get(first..left as usize);
        if keys.is_some_and(|keys| keys.iter().all(|key| key.size > 0)) {
            let distinct = Distinct {
                fields: left as usize,
                replaced: self.replaced,
            };
            match first {
                0 => self.distinct = distinct,
                _ => self.front.distinct = distinct,
            }
        }
        Ok(true)
    }

    /// Writes the fields of a record that has a field twice.
    #[cold]
    fn without_repeats(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        start: usize,
        left: u32,
    ) -> Result<(usize, u64), Unfit> {
        let mut copy = Vec::new();
        let end = json::pairs_without(body, start, left, &mut copy)?;
        let (left, at) = map_at(&copy, 0)?;
        let (_, seen) = self.fields(room, &copy, at, left)?;
        Ok((end, seen))
    }

    /// Writes a field whose key differs from the one at this index in the previous record. Returns the offset after the field.
    #[inline(never)]
    fn other_field(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        at: usize,
        index: usize,
        seen: &mut u64,
    ) -> Result<usize, Unfit> {
        let open = if index == 0 { b'{' } else { b',' };
        let before = room.position();
        self.replaced += 1;
        let value = match text_at(body, at) {
            Some((start, length)) => {
                json::string_between(room, &[open, b'"'], body, start, length, b"\":");
                let end = start + length;
                let named = self.added.named(body.get(start..end).unwrap_or_default());
                *seen |= named;
                if let (Some(place), Some(bytes)) = (self.keys.get_mut(index), body.get(at..)) {
                    *place = Key::learn(bytes, end - at, room.since(before), named);
                }
                end
            }
            None => {
                room.byte(open);
                let end = self.other_key(room, body, at, seen)?;
                room.byte(b':');
                end
            }
        };
        if let Some((start, length)) = text_at(body, value) {
            json::string_between(room, b"\"", body, start, length, b"\"");
            return Ok(start + length);
        }
        other(room, body, value)
    }

    /// Writes a key that is not a short text: bin, numbers, booleans.
    #[cold]
    #[inline(never)]
    fn other_key(
        &self,
        room: &mut Room<'_>,
        body: &[u8],
        at: usize,
        seen: &mut u64,
    ) -> Result<usize, Unfit> {
        let before = room.position();
        let mut reader = Reader::at(body, at);
        json::key(room, body, &mut reader)?;
        let mut again = Reader::at(body, at);
        *seen |= match again.bytes() {
            Ok(name) => self.added.named(name),
            // The key is not a text, so it was written as a number, a boolean or null in quotes, without escapes.
            Err(_) => match room.since(before) {
                [b'"', name @ .., b'"'] => self.added.named(name),
                _ => 0,
            },
        };
        Ok(reader.position())
    }
}
