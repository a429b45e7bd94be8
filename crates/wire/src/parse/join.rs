//! Writes the parts of a record around its parsed fields: the head (array header, time and metadata), the other fields (all
//! except the one whose text is parsed), and the lengths of maps.

use std::ops::Range;

use millstream_record::Time;

use super::{Fault, others::Others};
use crate::{
    msgpack::{
        Reader, entry_head, is_array, write_array_len, write_map_len, write_str, write_time,
    },
    record::{FieldPath, MESSAGE, Record},
};

/// One record to parse.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A line without its newline.
    Line(&'a [u8]),
    /// An entry `[time, record]` of the packed encoding, or `[[time, metadata], record]`.
    Entry(&'a [u8]),
}

/// A record whose head and other fields have been written to the output.
pub(super) struct Begun<'a> {
    /// The text to parse.
    pub(super) text: &'a [u8],
    /// The event time before parsing.
    pub(super) time: Time,
    /// The offset of the record's map in the output. The header of the map is one byte until [`set_map_len`] writes it.
    pub(super) map_at: usize,
    /// The number of other fields in the map.
    pub(super) others: u32,
    /// Whether the entry is `[time, record]` without metadata.
    pub(super) plain: bool,
}

/// How the parsed fields are combined with the other fields of the record.
#[derive(Debug)]
pub(super) struct Joint {
    /// The field whose text is parsed.
    pub(super) field: FieldPath,
    /// Whether that field stays in the record.
    pub(super) keep: bool,
    /// The field that gets the parsed fields as a map. If it is `None`, they become fields of the record.
    pub(super) into: Option<Box<[u8]>>,
}

impl Joint {
    /// Appends the head of the record, and its fields except the one whose text is parsed.
    #[inline]
    pub(super) fn begin<'a>(
        &self,
        input: Input<'a>,
        received: Time,
        others: &mut Others,
        out: &mut Vec<u8>,
    ) -> Result<Begun<'a>, Fault> {
        match input {
            Input::Line(line) => self.line(line, received, others, out),
            Input::Entry(entry) => self.entry(entry, received, others, out),
        }
    }

    fn line<'a>(
        &self,
        line: &'a [u8],
        received: Time,
        others: &mut Others,
        out: &mut Vec<u8>,
    ) -> Result<Begun<'a>, Fault> {
        if self.field.find(Record::Line(line)).is_none() {
            return Err(Fault::NoField);
        }
        write_array_len(out, 2);
        write_time(out, received);
        let map_at = out.len();
        out.push(0x80);
        others.begin(out.len());
        let mut count = 0;
        if self.keep && self.into.as_deref() != Some(MESSAGE.as_bytes()) {
            count = 1;
            if self.into.is_none() {
                others.push(Some(MESSAGE.as_bytes()), out.len());
            }
            write_str(out, MESSAGE.as_bytes());
            write_str(out, line);
        }
        Ok(Begun {
            text: line,
            time: received,
            map_at,
            others: count,
            plain: true,
        })
    }

    fn entry<'a>(
        &self,
        entry: &'a [u8],
        received: Time,
        others: &mut Others,
        out: &mut Vec<u8>,
    ) -> Result<Begun<'a>, Fault> {
        let head = entry_head(entry, 0)?;
        let plain = match head.time {
            Some(_) => {
                out.extend_from_slice(entry.get(..head.record).unwrap_or_default());
                !entry.get(1).is_some_and(|marker| is_array(*marker))
                    && entry.first() == Some(&0x92)
            }
            None => {
                write_array_len(out, 2);
                write_time(out, received);
                true
            }
        };
        let map_at = out.len();
        out.push(0x80);
        others.begin(out.len());
        let (text, count) = self.copy(entry, head.record, others, out)?;
        Ok(Begun {
            text: Reader::at(entry, text)
                .bytes()
                .map_err(|_| Fault::NotText)?,
            time: head.time.unwrap_or(received),
            map_at,
            others: count,
            plain,
        })
    }

    /// Appends those fields of the map at `at` that stay in the record. Returns the offset of the text to parse, and the number
    /// of appended fields.
    fn copy(
        &self,
        entry: &[u8],
        at: usize,
        others: &mut Others,
        out: &mut Vec<u8>,
    ) -> Result<(usize, u32), Fault> {
        let target = match self.field.top_name() {
            Some(_) => None,
            None => Some(self.target(entry, at)?),
        };
        let name = self.field.top_name().map(str::as_bytes);
        let mut reader = Reader::at(entry, at);
        let length = reader.map_len()?;
        let (mut found, mut count) = (None, 0);
        // Adjacent fields that stay are copied as one range.
        let mut same = reader.position();
        for _ in 0..length {
            let pair = reader.position();
            let key = match reader.bytes() {
                Ok(key) => Some(key),
                Err(_) => {
                    reader.skip()?;
                    None
                }
            };
            let value = reader.position();
            reader.skip()?;
            let end = reader.position();
            if found.is_none() && target.is_none() && key == name {
                found = Some(value);
                if !self.keep {
                    flush(entry, same..pair, out);
                    same = end;
                    continue;
                }
            } else if let Some(target) = target
                && (value..end).contains(&target)
            {
                found = Some(target);
                if !self.keep {
                    self.push(others, key, out.len() + (pair - same));
                    flush(entry, same..value, out);
                    write_without(entry, value, target, &mut others.behind, out)?;
                    count += 1;
                    same = end;
                    continue;
                }
            }
            if key.is_some() && key == self.into.as_deref() {
                flush(entry, same..pair, out);
                same = end;
                continue;
            }
            self.push(others, key, out.len() + (pair - same));
            count += 1;
        }
        flush(entry, same..reader.position(), out);
        Ok((found.ok_or(Fault::NoField)?, count))
    }

    /// Notes a field that a parsed field may replace. With `into`, the parsed fields are in a separate map, so they replace no
    /// field.
    #[inline]
    fn push(&self, others: &mut Others, name: Option<&[u8]>, at: usize) {
        if self.into.is_none() {
            others.push(name, at);
        }
    }

    /// Returns the offset of the text to parse. This function is called only if [`Joint::field`] is inside another field.
    fn target(&self, entry: &[u8], map: usize) -> Result<usize, Fault> {
        let record = Record::Packed(entry.get(map..).unwrap_or_default());
        match self.field.find(record) {
            Some(crate::record::Value::Packed(rest)) => Ok(entry.len() - rest.len()),
            _ => Err(Fault::NoField),
        }
    }
}

fn flush(entry: &[u8], range: Range<usize>, out: &mut Vec<u8>) {
    out.extend_from_slice(entry.get(range).unwrap_or_default());
}

/// Appends the map at `at` without the pair whose value is at `target`. This pair may be in a nested map. `behind` is a buffer:
/// for each map around the nested map, it gets the range of the pairs after the one that contains the nested map.
#[cold]
fn write_without(
    entry: &[u8],
    mut at: usize,
    target: usize,
    behind: &mut Vec<Range<usize>>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    behind.clear();
    loop {
        let mut reader = Reader::at(entry, at);
        let length = reader.map_len()?;
        let first = reader.position();
        let mut left = length;
        let (pair, value, end) = loop {
            left = left.checked_sub(1).ok_or(Fault::Malformed)?;
            let pair = reader.position();
            reader.skip()?;
            let value = reader.position();
            reader.skip()?;
            if (value..reader.position()).contains(&target) {
                break (pair, value, reader.position());
            }
        };
        reader.values(2 * u64::from(left))?;
        let rest = end..reader.position();
        if value == target {
            write_map_len(out, length - 1);
            flush(entry, first..pair, out);
            flush(entry, rest, out);
            break;
        }
        write_map_len(out, length);
        flush(entry, first..value, out);
        behind.push(rest);
        at = value;
    }
    while let Some(rest) = behind.pop() {
        flush(entry, rest, out);
    }
    Ok(())
}

/// Writes the header of the map at `at`, for which one byte is reserved.
#[inline]
pub(super) fn set_map_len(out: &mut Vec<u8>, at: usize, length: u32) {
    if length < 16 {
        if let Some(head) = out.get_mut(at) {
            *head = 0x80 | length as u8;
        }
        return;
    }
    let [b3, b2, b1, b0] = length.to_be_bytes();
    match u16::try_from(length) {
        Ok(_) => replace(out, at..at + 1, &[0xde, b1, b0]),
        Err(_) => replace(out, at..at + 1, &[0xdf, b3, b2, b1, b0]),
    }
}

/// Sets the time of the entry at `start`, and keeps its metadata.
#[inline]
pub(super) fn set_time(out: &mut Vec<u8>, start: usize, time: Time) -> Result<(), Fault> {
    if let Some([0x92, 0xd7, 0, stamp @ ..]) = out.get_mut(start..)
        && let Some(stamp) = stamp.first_chunk_mut::<8>()
        && let Ok(seconds) = u32::try_from(time.seconds())
    {
        *stamp = (u64::from(seconds) << 32 | u64::from(time.subsec_nanos())).to_be_bytes();
        return Ok(());
    }
    set_any_time(out, start, time)
}

#[cold]
fn set_any_time(out: &mut Vec<u8>, start: usize, time: Time) -> Result<(), Fault> {
    let mut reader = Reader::at(out, start);
    reader.array_len()?;
    if is_array(reader.peek()?) {
        reader.array_len()?;
    }
    let at = reader.position();
    reader.skip()?;
    let range = at..reader.position();
    match u32::try_from(time.seconds()) {
        Ok(seconds) => {
            let [a, b, c, d] = seconds.to_be_bytes();
            let [e, f, g, h] = time.subsec_nanos().to_be_bytes();
            replace(out, range, &[0xd7, 0, a, b, c, d, e, f, g, h]);
        }
        // The time is before 1970 or after 2106, which EventTime cannot hold.
        Err(_) => {
            let [a, b, c, d, e, f, g, h] = time.seconds().to_be_bytes();
            replace(out, range, &[0xd3, a, b, c, d, e, f, g, h]);
        }
    }
    Ok(())
}

/// Replaces `range` by a few bytes, which may have another length.
fn replace(out: &mut Vec<u8>, range: Range<usize>, by: &[u8]) {
    let (end, old, new) = (out.len(), range.end, range.start + by.len());
    if new > old {
        out.resize(end + (new - old), 0);
    }
    out.copy_within(old..end, new);
    out.truncate(end + new - old);
    if let Some(place) = out.get_mut(range.start..new) {
        place.copy_from_slice(by);
    }
}
