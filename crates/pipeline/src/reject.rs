//! Rejected records: `[time, {"node", "reason", "tag", "message"}]`, where `message` has the original bytes. The values of the
//! batch (`peer`, `host`, `path`), which name the sender, are fields as well.

use std::fmt::Write;

use bytes::Bytes;
use millstream_record::{Batch, Encoding, Time};
use millstream_wire::{
    json,
    msgpack::{
        Reader, entry_head, write_array_len, write_bin, write_map_len, write_str, write_time,
    },
};

/// The maximum number of bytes that a record takes in addition to its texts.
const BESIDE_BYTES: usize = 96;
/// The maximum number of bytes that a value takes in addition to its name and text.
const BESIDE_VALUE_BYTES: usize = 10;
/// Fields that every rejected record has. A value of the batch with one of these names is left out.
const OWN: [&str; 4] = ["node", "reason", "tag", "message"];

/// Builds the batch for `NODE.rejected`. Each item of `records` has the original bytes of one record of `from`.
pub fn batch<'a>(
    node: &str,
    from: &Batch,
    records: impl IntoIterator<Item = &'a [u8]>,
    reason: &str,
) -> Batch {
    let mut body = Vec::new();
    let mut count = 0;
    for record in records {
        write(&mut body, node, from, record, reason);
        count += 1;
    }
    envelope(node, from, body.into(), count)
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
    write_array_len(body, 2);
    write_time(body, from.received);
    let fields = OWN.len() + values(from).count();
    write_map_len(body, u32::try_from(fields).unwrap_or(u32::MAX));
    let own = [
        ("node", node),
        ("reason", reason),
        ("tag", from.tag.as_str()),
    ];
    for (key, value) in own.into_iter().chain(values(from)) {
        write_str(body, key.as_bytes());
        write_str(body, value.as_bytes());
    }
    write_str(body, b"message");
    write_bin(body, record);
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

/// A rejected record, as read from the bytes of [`write()`].
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Its original bytes.
    pub message: &'a [u8],
}

impl<'a> Rejected<'a> {
    /// Reads the record at the start of `bytes`; `None` if [`write()`] did not write it.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let head = entry_head(bytes, 0).ok()?;
        let mut rejected = Self {
            time: head.time?,
            ..Self::default()
        };
        let mut reader = Reader::at(bytes, head.record);
        for _ in 0..reader.map_len().ok()? {
            let key = reader.bytes().ok()?;
            let value = reader.bytes().ok()?;
            let text = std::str::from_utf8(value);
            match key {
                b"message" => rejected.message = value,
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

    /// The original record in a readable form.
    pub fn original(&self) -> Original<'a> {
        if let Ok(text) = std::str::from_utf8(self.message) {
            return Original::Text(text);
        }
        // A text and an entry cannot be confused: an entry begins with the marker of an array, and no UTF-8 text begins with that byte.
        let mut record = Vec::new();
        match entry_head(self.message, 0) {
            Ok(head) if json::write_value(self.message, head.record, &mut record).is_ok() => {
                Original::Entry(head.time, String::from_utf8_lossy(&record).into_owned())
            }
            _ => Original::Binary(self.message),
        }
    }
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
            assert_eq!((read.time, read.message), (from.received, message));
            assert_eq!(read.values, [("peer", "10.0.0.1")]);
            assert_eq!(read.original(), original);
            for cut in 0..batch.body.len() {
                assert_eq!(Rejected::read(&batch.body[..cut]), None);
            }
        }
        assert_eq!(Rejected::read(entry), None);
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
