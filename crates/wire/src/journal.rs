//! systemd's Journal Export Format, as `journalctl -o export` writes it, converted to entries of the packed
//! encoding (MessagePack `[time, map]`).
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! ```text
//! __CURSOR=s=739ad4...\n        a field: name, `=`, value, newline
//! __REALTIME_TIMESTAMP=1342540861416351\n
//! MESSAGE\n                     a field whose value is not plain text:
//! nnnnnnnn                      the length of the value, 64 bits, little endian
//! value \n                      that many bytes, and a newline
//! \n                            an empty line ends the entry
//! ```
//!
//! Specification: <https://systemd.io/JOURNAL_EXPORT_FORMATS/#journal-export-format>. No length in the text causes an
//! allocation. An incomplete entry waits for more bytes, up to a limit that the caller sets.

use memchr::memchr;
use millstream_record::Time;

use crate::msgpack::{write_array_len, write_map_len, write_str, write_time};

/// The longest accepted name of a field, with a margin: the journal allows 64 bytes.
const NAME_BYTES_MAX: usize = 256;
/// The maximum number of fields of an entry that becomes a record. It includes a margin: journald takes 1024 fields from a
/// program, and adds some.
pub const FIELDS_MAX: u32 = 2048;

/// An entry, with the values of the two fields that its consumer needs: the cursor and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The fields of the entry, in the export format.
    pub fields: &'a [u8],
    /// The number of fields.
    pub count: u32,
    /// `__CURSOR`: the text by which the journal finds this entry again, to resume after it; empty if the field is missing.
    pub cursor: &'a [u8],
    /// `__REALTIME_TIMESTAMP`; `None` if it is missing or not a number.
    pub time: Option<Time>,
    /// The length of the entry in bytes, including the empty line that ends it.
    pub length: usize,
}

/// The item at the start of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned<'a> {
    /// A complete entry.
    Entry(Entry<'a>),
    /// An entry with more than [`FIELDS_MAX`] fields. Its end may not have arrived yet.
    TooManyFields {
        /// The first [`FIELDS_MAX`] fields.
        fields: &'a [u8],
        /// `__CURSOR`, which the journal writes first; empty if it is not among these fields.
        cursor: &'a [u8],
    },
    /// This many newlines between entries.
    Blank(usize),
    /// An incomplete entry: read more bytes.
    Partial,
}

/// The bytes have another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} at byte {offset} of an entry in journal export format")]
pub struct Malformed {
    /// The offset from the start of the entry.
    pub offset: usize,
    /// The error.
    pub message: &'static str,
}

/// A field and the offset of the next one.
struct Field<'a> {
    name: &'a [u8],
    value: &'a [u8],
    next: usize,
}

/// Reads the field at `at`; `None` if it is incomplete.
fn field(text: &[u8], at: usize) -> Result<Option<Field<'_>>, Malformed> {
    let wrong = |message| Malformed {
        offset: at,
        message,
    };
    let rest = text.get(at..).unwrap_or_default();
    let head = rest.get(..NAME_BYTES_MAX + 1).unwrap_or(rest);
    let Some(length) = memchr::memchr2(b'=', b'\n', head) else {
        return match head.len() > NAME_BYTES_MAX {
            true => Err(wrong("a field without a name")),
            false => Ok(None),
        };
    };
    let (name, value) = rest.split_at(length);
    if name.is_empty() {
        return Err(wrong("a field without a name"));
    }
    if value.first() == Some(&b'=') {
        let value = value.get(1..).unwrap_or_default();
        let Some(end) = memchr(b'\n', value) else {
            return Ok(None);
        };
        return Ok(Some(Field {
            name,
            value: value.get(..end).unwrap_or_default(),
            next: at + length + 1 + end + 1,
        }));
    }
    let behind = value.get(1..).unwrap_or_default();
    let Some((size, data)) = behind.split_first_chunk::<8>() else {
        return Ok(None);
    };
    let too_long = || wrong("a field that is too long");
    let size = usize::try_from(u64::from_le_bytes(*size)).map_err(|_| too_long())?;
    let next = (at + length + 1 + 8 + 1)
        .checked_add(size)
        .ok_or_else(too_long)?;
    match (data.get(..size), data.get(size)) {
        (Some(value), Some(b'\n')) => Ok(Some(Field { name, value, next })),
        (Some(_), Some(_)) => Err(wrong("a value that does not end at its length")),
        _ => Ok(None),
    }
}

/// Returns the item at the start of `text`.
///
/// # Errors
/// The bytes cannot be an entry, whatever follows them.
pub fn scan(text: &[u8]) -> Result<Scanned<'_>, Malformed> {
    let blank = text.iter().take_while(|byte| **byte == b'\n').count();
    if blank > 0 {
        return Ok(Scanned::Blank(blank));
    }
    let (mut at, mut count) = (0, 0);
    let (mut cursor, mut time) = (&[][..], None);
    while text.get(at).is_some_and(|byte| *byte != b'\n') {
        if count == FIELDS_MAX {
            let fields = text.get(..at).unwrap_or_default();
            return Ok(Scanned::TooManyFields { fields, cursor });
        }
        let Some(Field { name, value, next }) = field(text, at)? else {
            return Ok(Scanned::Partial);
        };
        match name {
            b"__CURSOR" => cursor = value,
            b"__REALTIME_TIMESTAMP" => time = micros(value),
            _ => {}
        }
        count += 1;
        at = next;
    }
    if at >= text.len() {
        return Ok(Scanned::Partial);
    }
    Ok(Scanned::Entry(Entry {
        fields: text.get(..at).unwrap_or_default(),
        count,
        cursor,
        time,
        length: at + 1,
    }))
}

/// Returns the cursor of an incomplete entry, if the field `__CURSOR` has arrived.
pub fn cursor(text: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    while let Ok(Some(Field { name, value, next })) = field(text, at) {
        if name == b"__CURSOR" {
            return Some(value);
        }
        at = next;
    }
    None
}

fn micros(digits: &[u8]) -> Option<Time> {
    let micros: i64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(Time(micros.checked_mul(1000)?))
}

impl Entry<'_> {
    /// Appends the entry as `[time, {NAME: value, ...}]`, with all fields in order. A name that occurs several times,
    /// which the journal allows, gets a list of its values.
    pub fn write(&self, received: Time, out: &mut Vec<u8>) {
        write_array_len(out, 2);
        write_time(out, self.time.unwrap_or(received));
        let mut at = 0;
        let mut fields = Vec::with_capacity(self.count as usize);
        while let Ok(Some(Field { name, value, next })) = field(self.fields, at) {
            fields.push((name, value));
            at = next;
        }
        let is_first = |index: usize| {
            let name = fields.get(index).map(|field| field.0);
            fields.iter().take(index).all(|field| Some(field.0) != name)
        };
        let firsts: Vec<usize> = (0..fields.len()).filter(|index| is_first(*index)).collect();
        write_map_len(out, u32::try_from(firsts.len()).unwrap_or(u32::MAX));
        for index in firsts {
            let Some((name, value)) = fields.get(index) else {
                continue;
            };
            write_str(out, name);
            let same = fields.iter().skip(index).filter(|field| field.0 == *name);
            let times = same.clone().count();
            if times == 1 {
                write_str(out, value);
                continue;
            }
            write_array_len(out, u32::try_from(times).unwrap_or(u32::MAX));
            for (_, value) in same {
                write_str(out, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::msgpack::Walker;

    fn binary(name: &str, value: &[u8]) -> Vec<u8> {
        let length = (value.len() as u64).to_le_bytes();
        [name.as_bytes(), b"\n", &length, value, b"\n"].concat()
    }

    fn entry(text: &[u8]) -> Entry<'_> {
        match scan(text).unwrap() {
            Scanned::Entry(entry) => entry,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn text_and_binary_fields_become_a_record_with_their_time() {
        let text = [
            b"__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=1342540861416351\n_PID=7\nMESSAGE=a=b\n",
            &binary("BLOB", b"x\ny\0")[..],
            b"\n__CURSOR=next",
        ]
        .concat();
        let entry = entry(&text);
        assert_eq!(entry.cursor, b"s=1;i=2");
        assert_eq!(
            entry.time,
            Some(Time::from_parts(1_342_540_861, 416_351_000))
        );
        assert_eq!((entry.count, entry.length), (5, text.len() - 13));
        let mut out = Vec::new();
        entry.write(Time(0), &mut out);
        let read = rmpv::decode::read_value(&mut &out[..]).unwrap();
        let fields = read[1].as_map().unwrap();
        let field = |name: &str| {
            let found = fields.iter().find(|field| field.0.as_str() == Some(name));
            match &found.unwrap().1 {
                rmpv::Value::String(text) => text.as_bytes().to_vec(),
                other => panic!("{other}"),
            }
        };
        assert_eq!(field("MESSAGE"), b"a=b");
        assert_eq!(field("BLOB"), b"x\ny\0");
        assert_eq!(field("_PID"), b"7");
    }

    #[test]
    fn a_repeated_name_has_a_list_of_values() {
        let text = b"A=1\nB=2\nA=3\n\n";
        let mut out = Vec::new();
        entry(text).write(Time(0), &mut out);
        let read = rmpv::decode::read_value(&mut &out[..]).unwrap();
        let list = rmpv::Value::Array(vec!["1".into(), "3".into()]);
        let fields = vec![("A".into(), list), ("B".into(), "2".into())];
        assert_eq!(read[1], rmpv::Value::Map(fields));
    }

    #[test]
    fn an_incomplete_entry_waits_for_its_end() {
        let text = [b"A=1\n", &binary("B", b"\n\n")[..], b"C=2\n\n"].concat();
        for end in 1..text.len() {
            assert_eq!(scan(&text[..end]), Ok(Scanned::Partial), "{end} bytes");
        }
        assert_eq!(entry(&text).count, 3);
        assert_eq!(cursor(b"A=1\n__CURSOR=c\nMESSAGE=goes on"), Some(&b"c"[..]));
        assert_eq!(cursor(b"A=1\n__CURS"), None);
        assert_eq!(scan(b"\n\nA=1"), Ok(Scanned::Blank(2)));
        assert_eq!(scan(b""), Ok(Scanned::Partial));
    }

    #[test]
    fn an_entry_with_too_many_fields_is_not_read_to_its_end() {
        let most = format!("__CURSOR=c\n{}", "F=x\n".repeat(FIELDS_MAX as usize - 1));
        assert_eq!(entry(format!("{most}\n").as_bytes()).count, FIELDS_MAX);
        let more = format!("{most}ONE_MORE");
        let expected = Scanned::TooManyFields {
            fields: most.as_bytes(),
            cursor: b"c",
        };
        assert_eq!(scan(more.as_bytes()), Ok(expected));
    }

    #[test]
    fn invalid_entries_are_rejected() {
        assert!(scan(b"=value\n\n").is_err());
        assert!(scan(&[b'x'; 300]).is_err());
        let wrong_end = [b"A\n\x01\0\0\0\0\0\0\0", &b"xy\n\n"[..]].concat();
        assert!(scan(&wrong_end).is_err());
        let endless = [b"A\n", &[0xff; 8][..], b"x"].concat();
        assert!(scan(&endless).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic_and_records_are_valid(
            text in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'='), Just(0_u8), any::<u8>()], 0..60),
        ) {
            if let Ok(Scanned::Entry(entry)) = scan(&text) {
                prop_assert!(entry.length <= text.len());
                let mut out = Vec::new();
                entry.write(Time(0), &mut out);
                let mut walker = Walker::new();
                walker.walk(&out).unwrap();
                prop_assert_eq!((walker.entries(), walker.whole()), (1, out.len()));
            }
        }

        #[test]
        fn an_entry_with_any_binary_values_is_complete(
            fields in prop::collection::vec(("[A-Z_]{1,20}", prop::collection::vec(any::<u8>(), 0..50)), 1..20),
        ) {
            let mut text = Vec::new();
            for (name, value) in &fields {
                text.extend(binary(name, value));
            }
            text.push(b'\n');
            let entry = entry(&text);
            prop_assert_eq!(entry.count as usize, fields.len());
            prop_assert_eq!(entry.length, text.len());
        }
    }
}
