//! Rejected records: `[time, {"node", "reason", "tag", "message"}]`, where `message` has the original bytes. The values of the
//! batch (`peer`, `host`, `path`), which name the sender, are fields as well.
//!
//! If the original is an entry `[time, record]`, there is no `message`: `event_time` has the entry's time, and `record` its record, so that
//! every sink writes them in a readable form. Both have the original bytes.
//!
//! A peer chooses the length of its tag, and may send many tiny records. So only the first [`BESIDE_BYTES_MAX`] bytes of tags, values
//! and reasons are repeated for each record; all further records of the batch share one rejected record, whose field `records` has
//! their number.

use std::{borrow::Cow, fmt::Write};

use bytes::Bytes;
use millstream_record::{Batch, Encoding, Time};
use millstream_wire::{
    json,
    msgpack::{
        Reader, entry_head, skip, write_array_len, write_bin, write_map_len, write_str, write_time,
        write_uint,
    },
};

/// The maximum number of bytes that a record takes in addition to its texts.
const BESIDE_BYTES: usize = 96;
/// The maximum number of bytes that a value takes in addition to its name and text.
const BESIDE_VALUE_BYTES: usize = 10;
/// The maximum number of bytes that the rejected records of one batch take in addition to their original bytes, before the rest of
/// them is joined.
const BESIDE_BYTES_MAX: usize = 8 << 20;
/// Fields that a rejected record may have. A value of the batch with one of these names is left out.
const OWN: [&str; 7] = [
    "node",
    "reason",
    "tag",
    "records",
    "message",
    "event_time",
    "record",
];
/// The marker of an entry: an array of two values.
const ENTRY: u8 = 0x92;

/// Builds the batch for `NODE.rejected`. Each item of `records` has the original bytes of one record of `from`.
pub fn batch<'a>(
    node: &str,
    from: &Batch,
    records: impl IntoIterator<Item = &'a [u8]>,
    reason: &str,
) -> Batch {
    let mut rejects = Rejects::default();
    for record in records {
        rejects.add(node, from, record, reason);
    }
    rejects.into_batch(node, from)
}

/// The rejected records of one batch, while the batch is processed.
#[derive(Default)]
pub struct Rejects {
    body: Vec<u8>,
    /// The number of records in `body`.
    count: u32,
    /// The number of bytes in `body` that are not original bytes of records.
    beside_bytes: usize,
    rest: Option<Rest>,
}

/// The records that do not get a rejected record each.
struct Rest {
    /// The reason for the first of them.
    reason: String,
    message: Vec<u8>,
    records: u32,
}

impl Rejects {
    /// Adds a record of `from` with the original bytes `record`.
    pub fn add(&mut self, node: &str, from: &Batch, record: &[u8], reason: &str) {
        if self.rest.is_none() {
            let beside_bytes = bytes(node, from, record, reason) - record.len();
            if beside_bytes <= BESIDE_BYTES_MAX - self.beside_bytes {
                self.beside_bytes += beside_bytes;
                self.count += 1;
                return write(&mut self.body, node, from, record, reason);
            }
        }
        let rest = self.rest.get_or_insert_with(|| Rest {
            reason: reason.to_owned(),
            message: Vec::new(),
            records: 0,
        });
        rest.message.extend_from_slice(record);
        if from.encoding == Encoding::Lines && !record.ends_with(b"\n") {
            rest.message.push(b'\n');
        }
        rest.records += 1;
    }

    /// Returns the batch for `NODE.rejected`.
    pub fn into_batch(mut self, node: &str, from: &Batch) -> Batch {
        if let Some(rest) = self.rest {
            let reason = match rest.records {
                1 => rest.reason,
                records => format!(
                    "{records} further records of the batch; the first: {}",
                    rest.reason
                ),
            };
            write_joined(
                &mut self.body,
                node,
                from,
                &rest.message,
                &reason,
                rest.records,
            );
            self.count += 1;
        }
        envelope(node, from, self.body.into(), self.count)
    }
}

/// Returns the maximum number of bytes that [`write`] appends. Callers use it to reserve memory.
pub fn bytes(node: &str, from: &Batch, record: &[u8], reason: &str) -> usize {
    let values = values(from).map(|(name, value)| name.len() + value.len() + BESIDE_VALUE_BYTES);
    let texts = node.len() + from.tag.as_str().len() + reason.len() + record.len();
    texts + values.sum::<usize>() + BESIDE_BYTES
}

fn values(from: &Batch) -> impl Iterator<Item = (&str, &str)> {
    let values = from.values.iter();
    values.filter(|(name, _)| !OWN.contains(name))
}

/// Appends a record to the body that [`envelope`] wraps.
pub fn write(body: &mut Vec<u8>, node: &str, from: &Batch, record: &[u8], reason: &str) {
    let entry = match from.encoding {
        Encoding::Packed => entry(record),
        Encoding::Lines => None,
    };
    let Some((time, map)) = entry else {
        return write_joined(body, node, from, record, reason, 1);
    };
    let start = body.len();
    let at = write_beside(body, node, from, reason, 2);
    write_str(body, b"event_time");
    body.extend_from_slice(time);
    write_str(body, b"record");
    body.extend_from_slice(map);
    // A record that JSON cannot represent stays binary.
    if json::write_value(body, at, &mut Vec::new()).is_err() {
        body.truncate(start);
        write_joined(body, node, from, record, reason, 1);
    }
}

/// The two values of a complete entry.
fn entry(record: &[u8]) -> Option<(&[u8], &[u8])> {
    if record.first() != Some(&ENTRY) {
        return None;
    }
    entry_head(record, 0).ok()?;
    let mut reader = Reader::at(record, 1);
    let (time, map) = (reader.value().ok()?, reader.value().ok()?);
    (reader.position() == record.len()).then_some((time, map))
}

/// Appends one rejected record for `records` records, whose original bytes follow each other in `message`.
fn write_joined(
    body: &mut Vec<u8>,
    node: &str,
    from: &Batch,
    message: &[u8],
    reason: &str,
    records: u32,
) {
    let joined = records != 1;
    write_beside(body, node, from, reason, 1 + usize::from(joined));
    if joined {
        write_str(body, b"records");
        write_uint(body, records.into());
    }
    write_str(body, b"message");
    write_bin(body, message);
}

/// Appends the start of a rejected record, up to its last `more` fields. Returns the offset of its map.
fn write_beside(body: &mut Vec<u8>, node: &str, from: &Batch, reason: &str, more: usize) -> usize {
    write_array_len(body, 2);
    write_time(body, from.received);
    let at = body.len();
    let own = [
        ("node", node),
        ("reason", reason),
        ("tag", from.tag.as_str()),
    ];
    let fields = own.len() + values(from).count() + more;
    write_map_len(body, u32::try_from(fields).unwrap_or(u32::MAX));
    for (key, value) in own.into_iter().chain(values(from)) {
        write_str(body, key.as_bytes());
        write_str(body, value.as_bytes());
    }
    at
}

/// Makes a batch from a body of `count` records that [`write`] appended.
pub fn envelope(node: &str, from: &Batch, body: Bytes, count: u32) -> Batch {
    Batch {
        tag: format!("{node}.rejected").as_str().into(),
        plain: true,
        encoding: Encoding::Packed,
        body,
        count,
        received: from.received,
        values: from.values.clone(),
        origins: Vec::new(),
    }
}

/// The number of records that were rejected with a batch of [`Rejects::into_batch`] or [`envelope`].
pub(crate) fn records(batch: &Batch) -> u64 {
    // Records share a rejected record only if there is little room for more.
    if batch.len() <= BESIDE_BYTES_MAX / 2 {
        return batch.count.into();
    }
    let mut at = 0;
    let all = (0..batch.count).map_while(|_| {
        let start = at;
        let mut open = 1;
        at = skip(&batch.body, start, &mut open).ok()?;
        Some(joined(&batch.body, start).unwrap_or(1))
    });
    all.sum()
}

/// Reads the field `records` of the rejected record at `at`.
fn joined(body: &[u8], at: usize) -> Option<u64> {
    let mut reader = Reader::at(body, entry_head(body, at).ok()?.record);
    for _ in 0..reader.map_len().ok()? {
        if reader.bytes().ok()? == b"records" {
            return reader.int().ok()?.try_into().ok();
        }
        reader.skip().ok()?;
    }
    None
}

/// A rejected record, as read from the bytes of [`write()`].
#[derive(Clone, Debug, PartialEq)]
pub struct Rejected<'a> {
    /// The receive time.
    pub time: Time,
    /// The node that rejected it.
    pub node: &'a str,
    /// The reason.
    pub reason: &'a str,
    /// The tag of its batch.
    pub tag: &'a str,
    /// The values of its batch.
    pub values: Vec<(&'a str, &'a str)>,
    /// The number of records in `message`.
    pub records: u32,
    /// Its original bytes.
    pub message: Cow<'a, [u8]>,
}

impl<'a> Rejected<'a> {
    /// Reads the record at the start of `bytes`; `None` if [`write()`] did not write it.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let head = entry_head(bytes, 0).ok()?;
        Self::of_fields(bytes, head.record, head.time?)
    }

    /// Reads the fields of a rejected record at the offset `at`; its entry has this time.
    pub fn of_fields(bytes: &'a [u8], at: usize, time: Time) -> Option<Self> {
        let mut rejected = Self {
            time,
            node: "",
            reason: "",
            tag: "",
            values: Vec::new(),
            records: 1,
            message: Cow::Borrowed(b""),
        };
        let mut time_of_entry: &[u8] = b"";
        let mut reader = Reader::at(bytes, at);
        for _ in 0..reader.map_len().ok()? {
            let key = reader.bytes().ok()?;
            match key {
                b"records" => {
                    rejected.records = reader.int().ok()?.try_into().ok()?;
                    continue;
                }
                b"event_time" => {
                    time_of_entry = reader.value().ok()?;
                    continue;
                }
                b"record" => {
                    let map = reader.value().ok()?;
                    rejected.message = Cow::Owned([&[ENTRY], time_of_entry, map].concat());
                    continue;
                }
                _ => {}
            }
            let value = reader.bytes().ok()?;
            let text = std::str::from_utf8(value);
            match key {
                b"message" => rejected.message = value.into(),
                b"node" => rejected.node = text.ok()?,
                b"reason" => rejected.reason = text.ok()?,
                b"tag" => rejected.tag = text.ok()?,
                _ => {
                    let name = std::str::from_utf8(key).ok()?;
                    rejected.values.push((name, text.ok()?));
                }
            }
        }
        Some(rejected)
    }

    /// Returns one rejected record for each record in `message`. If `message` does not consist of as many entries or lines as `records`
    /// says, returns the rejected record unchanged.
    pub fn split(self) -> Vec<Self> {
        let messages = match (self.records, &self.message) {
            (records @ 2.., Cow::Borrowed(all)) => {
                entries(all, records).or_else(|| lines(all, records))
            }
            _ => None,
        };
        let Some(messages) = messages else {
            return vec![self];
        };
        let one = |message| Self {
            message: Cow::Borrowed(message),
            records: 1,
            ..self.clone()
        };
        messages.into_iter().map(one).collect()
    }

    /// The original record in a readable form.
    pub fn original(&self) -> Original<'_> {
        if let Ok(text) = std::str::from_utf8(&self.message) {
            return Original::Text(text);
        }
        // A text and an entry cannot be confused: an entry begins with the marker of an array, and no UTF-8 text begins with that byte.
        let mut record = Vec::new();
        match entry_head(&self.message, 0) {
            Ok(head) if json::write_value(&self.message, head.record, &mut record).is_ok() => {
                Original::Entry(head.time, String::from_utf8_lossy(&record).into_owned())
            }
            _ => Original::Binary(&self.message),
        }
    }
}

/// Splits `bytes` into `count` entries of the packed encoding; `None` if they are anything else.
fn entries(bytes: &[u8], count: u32) -> Option<Vec<&[u8]>> {
    let (mut entries, mut at) = (Vec::new(), 0);
    for _ in 0..count {
        let mut open = 1;
        let end = skip(bytes, entry_head(bytes, at).ok()?.record, &mut open).ok()?;
        entries.push(bytes.get(at..end).filter(|_| open == 0)?);
        at = end;
    }
    (at == bytes.len()).then_some(entries)
}

/// Splits `bytes` into `count` lines; `None` if it has another number of lines.
fn lines(bytes: &[u8], count: u32) -> Option<Vec<&[u8]>> {
    let lines: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    (lines.len() == count as usize).then_some(lines)
}

/// The original bytes of a rejected record.
#[derive(Clone, Debug, PartialEq)]
pub enum Original<'a> {
    /// UTF-8 text: a line, a part of a JSON request.
    Text(&'a str),
    /// An entry of the packed encoding: its event time, and its record as JSON.
    Entry(Option<Time>, String),
    /// Anything else.
    Binary(&'a [u8]),
}

/// Returns at most `chars_max` characters of an untrusted text, on one line. Control characters, invisible characters and those that
/// change how the line is displayed are escaped.
pub fn excerpt(text: &str, chars_max: usize) -> String {
    let mut out = String::new();
    for (at, character) in text.chars().enumerate() {
        if at == chars_max {
            out.push('…');
            break;
        }
        match character {
            '"' | '\'' | '\\' => out.push(character),
            // Writing to a String cannot fail.
            other => _ = write!(out, "{}", other.escape_debug()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millstream_record::Values;

    use super::*;

    #[test]
    fn a_rejected_record_is_read_as_it_was_written() {
        let mut values = Values::new();
        for (name, value) in [("peer", "10.0.0.1"), ("reason", "not this")] {
            values.set(name, value);
        }
        let from = Batch {
            tag: "web".into(),
            plain: false,
            encoding: Encoding::Lines,
            body: Bytes::new(),
            count: 0,
            received: Time(1_700_000_000_123_456_789),
            values: Arc::new(values),
            origins: Vec::new(),
        };
        let entry = b"\x92\xce\x60\x00\x00\x00\x81\xa1n\x01";
        let cases: [(&[u8], Original<'_>); 4] = [
            (b"{\"a\":", Original::Text("{\"a\":")),
            (b"", Original::Text("")),
            (
                entry,
                Original::Entry(Some(Time(0x6000_0000 * 1_000_000_000)), "{\"n\":1}".into()),
            ),
            (b"\xff\xfe", Original::Binary(b"\xff\xfe")),
        ];
        for (message, original) in cases {
            let batch = batch("in", &from, [message], "why");
            let read = Rejected::read(&batch.body).unwrap();
            assert_eq!((read.node, read.reason, read.tag), ("in", "why", "web"));
            assert_eq!((read.time, &*read.message), (from.received, message));
            assert_eq!(read.values, [("peer", "10.0.0.1")]);
            assert_eq!(read.original(), original);
            for cut in 0..batch.body.len() {
                assert_eq!(Rejected::read(&batch.body[..cut]), None);
            }
        }
        assert_eq!(Rejected::read(entry), None);
    }

    #[test]
    fn a_rejected_entry_is_a_readable_record_and_keeps_its_bytes() {
        let deep = [&b"\x92\x01\x81\xa1a"[..], &[0x91; 127], &[0xc0]].concat();
        let deepest = [&b"\x92\x01\x81\xa1a"[..], &[0x91; 126], &[0xc0]].concat();
        for (entry, expected) in [
            (
                &b"\x92\xd7\0\x60\0\0\0\0\0\0\0\x82\xa1n\x01\xa1m\x81\xa1x\xc4\x01\xff"[..],
                Some(
                    r#""event_time":"2021-01-14T08:25:36.000000000Z","record":{"n":1,"m":{"x":"/w=="}}}"#,
                ),
            ),
            // A text in bin, metadata, a time that is an integer of another width.
            (
                b"\x92\x92\xcf\0\0\0\0\x60\0\0\0\x81\xa1k\x02\x81\xc4\x01n\x01",
                Some(r#""event_time":[1610612736,{"k":2}],"record":{"n":1}}"#),
            ),
            // These stay binary: a key that is an array, too many levels, an incomplete entry, an entry and more.
            (b"\x92\x01\x81\x90\x01", None),
            (&deep, None),
            (&deepest, Some(r#""event_time":1,"record":{"a":[["#)),
            (b"\x92\x01\x82\xa1n\x01", None),
            (b"\x92\x01\x80\xc0", None),
        ] {
            let from = Batch {
                tag: "t".into(),
                plain: false,
                encoding: Encoding::Packed,
                body: Bytes::new(),
                count: 0,
                received: Time(1_700_000_000_123_456_789),
                values: Arc::default(),
                origins: Vec::new(),
            };
            let batch = batch("in", &from, [entry], "why");
            let head = entry_head(&batch.body, 0).unwrap();
            let mut text = Vec::new();
            json::write_value(&batch.body, head.record, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            match expected {
                Some(end) => assert!(text.contains(end), "{text}"),
                None => assert!(text.contains(r#""message":""#), "{text}"),
            }
            assert_eq!(&*Rejected::read(&batch.body).unwrap().message, entry);
            assert!(batch.len() <= bytes("in", &from, entry, "why"));
        }
    }

    #[test]
    fn records_beyond_the_limit_share_one_rejected_record_and_are_split_again() {
        let entry = b"\x92\xce\x60\x00\x00\x00\x81\xa1n\x01";
        for (encoding, record) in [
            (Encoding::Packed, &entry[..]),
            (Encoding::Lines, b"\x92 line\n"),
            (Encoding::Lines, b"\n"),
        ] {
            let from = Batch {
                tag: "t".repeat(8192).as_str().into(),
                plain: false,
                encoding,
                body: Bytes::new(),
                count: 0,
                received: Time(1_700_000_000_123_456_789),
                values: Arc::default(),
                origins: Vec::new(),
            };
            let batch = batch("n", &from, vec![record; 20_000], "why");
            assert!(batch.len() < BESIDE_BYTES_MAX + 20_000 * record.len() + 10_000);
            let values: Vec<_> = millstream_wire::record::records(&batch).collect();
            assert_eq!(values.len(), batch.count as usize);
            assert_eq!(records(&batch), 20_000);
            let read = values
                .iter()
                .map(|(range, _)| Rejected::read(&batch.body[range.clone()]));
            let mut read: Vec<_> = read.map(Option::unwrap).collect();
            let last = read.last().unwrap();
            assert_eq!(last.records as usize, 20_001 - read.len());
            let reason = format!(
                "{} further records of the batch; the first: why",
                last.records
            );
            assert_eq!(last.reason, reason);
            assert!(read[..read.len() - 1].iter().all(|one| one.reason == "why"));
            let split: Vec<_> = read.drain(..).flat_map(Rejected::split).collect();
            assert_eq!(split.len(), 20_000);
            assert!(
                split
                    .iter()
                    .all(|one| *one.message == *record && one.records == 1)
            );
            assert!(split.iter().all(|one| one.tag == from.tag.as_str()));
        }
    }

    #[test]
    fn a_message_with_another_number_of_records_is_not_split() {
        let rejected = |message, records| Rejected {
            time: Time(7),
            node: "n",
            reason: "why",
            tag: "t",
            values: Vec::new(),
            records,
            message: Cow::Borrowed(message),
        };
        for (message, records) in [
            (&b"a\nb\n"[..], 3),
            (b"a\nb\n", 1),
            (b"\x92\x00\x80\x92\x00", 2),
            (b"", 0),
        ] {
            let whole = rejected(message, records);
            assert_eq!(whole.clone().split(), [whole]);
        }
    }

    #[test]
    fn an_excerpt_is_short_and_stays_on_its_line() {
        assert_eq!(excerpt("{\"ö\":'\\'}", 99), "{\"ö\":'\\'}");
        assert_eq!(
            excerpt("a\nb\r\t\u{1b}[31m\u{202e}\u{0}", 99),
            "a\\nb\\r\\t\\u{1b}[31m\\u{202e}\\0"
        );
        assert_eq!(excerpt("abcdef", 3), "abc…");
        assert_eq!(excerpt("abc", 3), "abc");
    }
}
