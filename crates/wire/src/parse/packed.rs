//! The formats JSON and syslog. Their decoders write a whole map instead of single fields.

use jiff::tz::TimeZone;
use memchr::memmem::Finder;
use millstream_record::Time;

use super::{
    Fault,
    fields::{Fields, Meaning},
};
use crate::{
    json::{Progress, to_msgpack},
    msgpack::{entry_head, write_str},
    syslog::{Parsed, Parser, Received},
};

/// The number of bytes that a buffer may keep for the next record.
const KEPT_BYTES: usize = 1 << 20;

/// Reads JSON objects.
#[derive(Debug)]
pub(super) struct Json {
    /// Searches for the name of the field that holds the time.
    time: Option<Finder<'static>>,
    /// The object as MessagePack, if it was not written directly into the output.
    map: Vec<u8>,
}

impl Json {
    pub(super) fn new(meaning: &Meaning) -> Self {
        let time = meaning.time.as_deref().map(|name| {
            let mut key = Vec::new();
            write_str(&mut key, name);
            Finder::new(&key).into_owned()
        });
        Self {
            time,
            map: Vec::new(),
        }
    }

    /// Reads an object. If `direct` is true, and the object cannot contain the field that holds the time, writes the object to the output
    /// at `at`, in place of the empty map there, and returns `true`. Otherwise returns `false`, and [`Json::map`] holds the object.
    #[inline]
    pub(super) fn read(
        &mut self,
        text: &[u8],
        at: usize,
        direct: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        if self.map.capacity() > KEPT_BYTES {
            self.map = Vec::new();
        }
        self.map.clear();
        if !direct {
            object(text, &mut self.map)?;
            return Ok(false);
        }
        out.truncate(at);
        object(text, out)?;
        let map = out.get(at..).unwrap_or_default();
        // The name may also be found in a text or a nested object. Such an object takes the slower path without need, but with the
        // same result.
        if self
            .time
            .as_ref()
            .is_none_or(|time| time.find(map).is_none())
        {
            return Ok(true);
        }
        self.map.extend_from_slice(map);
        out.truncate(at);
        out.push(0x80);
        Ok(false)
    }

    /// Returns the object that was read last, if [`Json::read`] returned `false`.
    pub(super) fn map(&self) -> &[u8] {
        &self.map
    }
}

/// Appends an object, which must be the whole text.
#[inline]
fn object(text: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
    let blank = text.len() - text.trim_ascii_start().len();
    if text.get(blank) != Some(&b'{') {
        return Err(Fault::at(blank, "`{`, the start of a JSON object,"));
    }
    match to_msgpack(text, out)? {
        Progress::NeedMore => Err(Fault::at(text.len(), "the rest of the JSON object")),
        Progress::Consumed(end) => {
            let rest = text.get(end..).unwrap_or_default();
            let behind = rest.trim_ascii_start();
            match behind.is_empty() {
                true => Ok(()),
                false => Err(Fault::at(text.len() - behind.len(), "the end of the text")),
            }
        }
    }
}

/// Reads syslog messages.
#[derive(Debug)]
pub(super) struct Syslog {
    parser: Parser,
    /// A buffer for the message as an entry, if the record also has other fields.
    entry: Vec<u8>,
}

impl Syslog {
    pub(super) fn new(zone: TimeZone) -> Self {
        Self {
            parser: Parser::new(zone),
            entry: Vec::new(),
        }
    }

    /// Appends a message as a complete entry.
    pub(super) fn append(
        &mut self,
        text: &[u8],
        now: Time,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let received = Received {
            now,
            host: b"",
            peer: None,
        };
        match self.parser.message(text, &received, out) {
            Parsed::Header => Ok(()),
            Parsed::Nothing => Err(Fault::at(0, "a priority such as `<13>`, or a time")),
        }
    }

    /// Appends the fields of a message to those of the record.
    pub(super) fn fields(&mut self, text: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
        let mut entry = std::mem::take(&mut self.entry);
        entry.clear();
        self.append(text, fields.now, &mut entry)?;
        let head = entry_head(&entry, 0)?;
        fields.time = head.time;
        fields.map(entry.get(head.record..).unwrap_or_default())?;
        if entry.capacity() <= KEPT_BYTES {
            self.entry = entry;
        }
        Ok(())
    }
}
