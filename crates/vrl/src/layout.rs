//! Finds the fields of a record that a program reads or changes, and writes the changed record. One pass over the record finds
//! these fields. All other bytes are copied.

use std::ops::Range;

use bytes::Bytes;
use millstream_record::{Encoding, Time};
use millstream_wire::{
    msgpack::{self, Reader, entry_head, write_array_len, write_map_len, write_str, write_time},
    record::MESSAGE,
};
use vrl::value::{KeyString, ObjectMap, Value};

use crate::{decode, decode::Undecodable, encode, encode::TooDeep, fields::Fields};

/// The location of a record in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// A line without its newline.
    Line(Range<usize>),
    /// A map: the offset of its first pair, the number of pairs, and the end of its last pair.
    Map(usize, u32, usize),
}

/// A field of the record that the program reads or changes.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Its index in the plan, which is the list of the fields that the program names.
    field: usize,
    /// The offsets of its key (`key`), of its value (`value`), and of the end of its value (`end`).
    key: usize,
    value: usize,
    end: usize,
    /// Whether it is the first field with this key.
    is_first: bool,
}

/// The change of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate<'a> {
    Untouched,
    Removed,
    Set(&'a Value),
}

/// The layout of one record.
#[derive(Debug)]
pub(crate) struct Layout {
    form: Form,
    /// The bytes of the entry before its record: the array headers, the time and the metadata.
    head: Range<usize>,
    /// The event time, or the receive time for lines and for entries without an event time.
    time: Time,
    /// The fields that the program reads or changes, in the order of the record, including repeated keys.
    found: Vec<Found>,
    /// For each field of the plan, the offset of its first value, or `None` if the record does not have the field.
    values: Vec<Option<usize>>,
    /// The offset of the end of the record.
    end: usize,
}

impl Layout {
    /// Creates the layout of no record.
    pub fn new() -> Self {
        Self {
            end: 0,
            form: Form::Line(0..0),
            head: 0..0,
            time: Time(0),
            found: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Finds `fields` in the record at the offset `start` of `body`.
    pub fn read(
        &mut self,
        body: &[u8],
        encoding: Encoding,
        start: usize,
        received: Time,
        fields: &Fields,
    ) -> Result<(), Undecodable> {
        self.found.clear();
        self.values.clear();
        self.values.resize(fields.names().len(), None);
        self.time = received;
        // No record can be found after invalid bytes, so an invalid record extends to the end of the batch.
        self.end = body.len();
        if encoding == Encoding::Lines {
            let rest = body.get(start..).filter(|rest| !rest.is_empty());
            let rest = rest.ok_or(Undecodable::Malformed)?;
            let line = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            self.form = Form::Line(start..start + line);
            self.head = start..start;
            self.end = (start + line + 1).min(body.len());
            return Ok(());
        }
        let head = entry_head(body, start)?;
        self.time = head.time.unwrap_or(received);
        self.head = start..head.record;
        let mut reader = Reader::at(body, head.record);
        let count = reader.map_len()?;
        let first = reader.position();
        let mut at = first;
        for _ in 0..count {
            at = match short_pair(body, at) {
                Some(pair) => {
                    if fields.may_have(pair.name.len(), pair.first) {
                        self.add(fields.find(pair.name), at, pair.value, pair.end);
                    }
                    pair.end
                }
                None => self.read_long(body, at, fields)?,
            };
        }
        self.form = Form::Map(first, count, at);
        self.end = at;
        Ok(())
    }

    /// Reads a pair for which [`short_pair`] returns `None`. Returns its end.
    #[inline(never)]
    fn read_long(&mut self, body: &[u8], at: usize, fields: &Fields) -> Result<usize, Undecodable> {
        let mut reader = Reader::at(body, at);
        let field = match reader.bytes() {
            Ok(name) => fields.find(name),
            Err(_) => fields.find(decode::key(&mut reader)?.as_bytes()),
        };
        let value = reader.position();
        reader.skip()?;
        self.add(field, at, value, reader.position());
        Ok(reader.position())
    }

    /// Adds a pair of the record, unless the program does not name its field. The arguments are the index of the field and the offsets of
    /// the key, of the value, and of the end of the value.
    #[inline(never)]
    fn add(&mut self, field: Option<usize>, key: usize, value: usize, end: usize) {
        let Some(field) = field else { return };
        let Some(first) = self.values.get_mut(field) else {
            return;
        };
        let is_first = first.is_none();
        first.get_or_insert(value);
        self.found.push(Found {
            field,
            key,
            value,
            end,
            is_first,
        });
    }

    /// The end offset of the record, including the newline of a line; the end of the body if the record is invalid.
    pub fn end(&self) -> usize {
        self.end
    }

    /// The event time, or the receive time if the record has no event time.
    pub fn time(&self) -> Time {
        self.time
    }

    /// Decodes the metadata beside the time; `None` if the record has none.
    pub fn metadata(&self, body: &Bytes) -> Result<Option<ObjectMap>, Undecodable> {
        let head = body.get(self.head.clone()).unwrap_or_default();
        let Some(metadata) = nested_metadata(head) else {
            return Ok(None);
        };
        decode::record(&body.slice_ref(metadata), 0).map(Some)
    }

    /// The bytes of the record, without time and newline.
    pub fn record<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        let range = match &self.form {
            Form::Line(line) => line.clone(),
            Form::Map(_, _, end) => self.head.end..*end,
        };
        body.get(range).unwrap_or_default()
    }

    /// Decodes the value of the field with the index `field` and the name `name`. Returns `None` if the record does not have the
    /// field.
    pub fn value(
        &self,
        body: &Bytes,
        field: usize,
        name: &str,
    ) -> Result<Option<Value>, Undecodable> {
        match &self.form {
            Form::Line(line) if name == MESSAGE => Ok(Some(Value::Bytes(body.slice(line.clone())))),
            Form::Line(_) => Ok(None),
            Form::Map(..) => {
                let value = self.values.get(field).copied().flatten();
                value.map(|at| decode::value(body, at)).transpose()
            }
        }
    }

    /// Decodes the whole record.
    pub fn whole(&self, body: &Bytes) -> Result<Value, Undecodable> {
        match &self.form {
            Form::Line(line) => {
                let text = Value::Bytes(body.slice(line.clone()));
                Ok(Value::Object([(MESSAGE.into(), text)].into()))
            }
            Form::Map(..) => decode::record(body, self.head.end).map(Value::Object),
        }
    }

    /// Appends the changed entry. `fate` returns the change of each field; `time` is the new time, or `None` to keep the old one.
    pub fn write<'a>(
        &self,
        body: &[u8],
        fields: &[KeyString],
        time: Option<Time>,
        fate: impl Fn(usize) -> Fate<'a>,
        out: &mut Vec<u8>,
    ) -> Result<(), TooDeep> {
        self.write_head(body, time, out);
        match &self.form {
            Form::Line(line) => {
                let text = body.get(line.clone()).unwrap_or_default();
                Self::write_line(text, fields, fate, out)
            }
            Form::Map(first, count, end) => {
                let has_new = self.write_map_head(*count, &fate, out);
                let mut copied = *first;
                for found in &self.found {
                    let fate = fate(found.field);
                    if matches!(fate, Fate::Untouched) {
                        continue;
                    }
                    out.extend_from_slice(body.get(copied..found.key).unwrap_or_default());
                    copied = found.end;
                    // Of repeated keys, the first one gets the new value, and the others are removed.
                    if let (Fate::Set(value), true) = (fate, found.is_first) {
                        out.extend_from_slice(body.get(found.key..found.value).unwrap_or_default());
                        encode::value(out, value)?;
                    }
                }
                out.extend_from_slice(body.get(copied..*end).unwrap_or_default());
                if has_new {
                    self.append_new(fields, fate, out)?;
                }
                Ok(())
            }
        }
    }

    /// Writes the number of pairs. Returns whether the program adds fields that the record did not have.
    fn write_map_head<'a>(
        &self,
        count: u32,
        fate: &impl Fn(usize) -> Fate<'a>,
        out: &mut Vec<u8>,
    ) -> bool {
        let stays = |found: &Found| match fate(found.field) {
            Fate::Untouched => true,
            Fate::Set(_) => found.is_first,
            Fate::Removed => false,
        };
        let gone = self.found.iter().filter(|found| !stays(found)).count();
        let missing = self.values.iter().enumerate();
        let new = missing
            .filter(|(field, value)| value.is_none() && matches!(fate(*field), Fate::Set(_)))
            .count();
        // The body has less than 4 GiB, so the number of pairs fits into a `u32`.
        let pairs = (count as usize).saturating_sub(gone).saturating_add(new);
        write_map_len(out, u32::try_from(pairs).unwrap_or(u32::MAX));
        new > 0
    }

    fn append_new<'a>(
        &self,
        fields: &[KeyString],
        fate: impl Fn(usize) -> Fate<'a>,
        out: &mut Vec<u8>,
    ) -> Result<(), TooDeep> {
        for (field, name) in fields.iter().enumerate() {
            if let (Fate::Set(value), false) = (fate(field), self.has(field)) {
                write_str(out, name.as_bytes());
                encode::value(out, value)?;
            }
        }
        Ok(())
    }

    fn has(&self, field: usize) -> bool {
        self.values.get(field).is_some_and(Option::is_some)
    }

    fn write_line<'a>(
        text: &[u8],
        fields: &[KeyString],
        fate: impl Fn(usize) -> Fate<'a>,
        out: &mut Vec<u8>,
    ) -> Result<(), TooDeep> {
        let message = fields.iter().position(|name| name.as_str() == MESSAGE);
        let fate_of_text = message.map_or(Fate::Untouched, &fate);
        let others = || {
            let others = (0..fields.len()).filter(|field| Some(*field) != message);
            others.filter_map(|field| match fate(field) {
                Fate::Set(value) => Some((fields.get(field)?, value)),
                _ => None,
            })
        };
        let has_text = !matches!(fate_of_text, Fate::Removed);
        let pairs = others().count() + usize::from(has_text);
        write_map_len(out, u32::try_from(pairs).unwrap_or(u32::MAX));
        if has_text {
            write_str(out, MESSAGE.as_bytes());
        }
        match fate_of_text {
            Fate::Untouched => write_str(out, text),
            Fate::Set(value) => encode::value(out, value)?,
            Fate::Removed => {}
        }
        for (name, value) in others() {
            write_str(out, name.as_bytes());
            encode::value(out, value)?;
        }
        Ok(())
    }

    /// Appends an entry with the record `root`. If `root` is not an object, the record is `{"message": root}`.
    pub fn write_root(
        &self,
        body: &[u8],
        time: Option<Time>,
        root: &Value,
        out: &mut Vec<u8>,
    ) -> Result<(), TooDeep> {
        self.write_head(body, time, out);
        match root {
            Value::Object(map) => encode::record(out, map),
            other => {
                write_map_len(out, 1);
                write_str(out, MESSAGE.as_bytes());
                encode::value(out, other)
            }
        }
    }

    /// Writes the array header and the time of an entry. If `time` is `None`, the old time is written. Metadata next to the time is
    /// kept.
    fn write_head(&self, body: &[u8], time: Option<Time>, out: &mut Vec<u8>) {
        let old = body.get(self.head.clone()).unwrap_or_default();
        let is_line = matches!(self.form, Form::Line(_));
        match time {
            None if !is_line => out.extend_from_slice(old),
            _ => {
                write_array_len(out, 2);
                let metadata = nested_metadata(old);
                if metadata.is_some() {
                    write_array_len(out, 2);
                }
                write_time(out, time.unwrap_or(self.time));
                out.extend_from_slice(metadata.unwrap_or_default());
            }
        }
    }
}

/// A key and its value.
struct Pair<'a> {
    name: &'a [u8],
    /// The first byte of the name.
    first: u8,
    /// The offset of the value.
    value: usize,
    /// The offset of the end of the value.
    end: usize,
}

/// The length of the longest short key with the head of its value.
const PAIR_HEAD_BYTES: usize = 1 + 31 + 2;

/// Finds the pair at `at` if its key is a str of 1 to 31 bytes and its value is a text or a small number, as in most pairs. All bytes
/// that are examined are in one window, so that its bounds are checked only once.
#[inline(always)]
fn short_pair(body: &[u8], at: usize) -> Option<Pair<'_>> {
    let window: &[u8; PAIR_HEAD_BYTES] = body.get(at..)?.first_chunk()?;
    let length = match window[0] {
        marker @ 0xa1..=0xbf => usize::from(marker & 0x1f),
        _ => return None,
    };
    let size = match window[1 + length] {
        marker @ 0xa0..=0xbf => 1 + usize::from(marker & 0x1f),
        0xd9 => 2 + usize::from(window[2 + length]),
        0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => 1,
        0xcc => 2,
        0xcd => 3,
        _ => return None,
    };
    let value = at + 1 + length;
    let pair = Pair {
        name: &window[1..1 + length],
        first: window[1],
        value,
        end: value + size,
    };
    (pair.end <= body.len()).then_some(pair)
}

/// Returns the metadata from the head of an entry of the form `[[time, metadata], record]`.
fn nested_metadata(head: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader::new(head);
    reader.array_len().ok()?;
    if !msgpack::is_nested(head.get(reader.position()..)?) {
        return None;
    }
    reader.array_len().ok()?;
    reader.skip().ok()?;
    reader.value().ok()
}
