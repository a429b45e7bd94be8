//! The parsed fields of one record, as they are appended to the output.

use millstream_record::Time;

use super::{
    Fault, Kind,
    others::{Others, Own},
    time::Stamps,
};
use crate::msgpack::{Reader, write_str};

/// The options that concern fields with certain names: the name of the field that holds the time, and the types of fields.
#[derive(Debug, Default)]
pub(super) struct Meaning {
    /// The name of the field that holds the time.
    pub(super) time: Option<Box<[u8]>>,
    pub(super) types: Vec<(Box<[u8]>, Kind)>,
}

impl Meaning {
    fn is_time(&self, name: &[u8]) -> bool {
        self.time.as_deref() == Some(name)
    }

    fn kind(&self, name: &[u8]) -> Option<Kind> {
        let mut types = self.types.iter();
        types
            .find(|(known, _)| **known == *name)
            .map(|(_, kind)| *kind)
    }
}

/// A field whose name is known before a text is parsed.
#[derive(Debug)]
pub(super) struct Slot {
    name: Box<[u8]>,
    /// The name as MessagePack.
    key: Box<[u8]>,
    kind: Option<Kind>,
    is_time: bool,
}

impl Slot {
    /// Creates the field `name`. Its type is `kind`, unless the options set another one.
    pub(super) fn new(name: &str, kind: Option<Kind>, meaning: &Meaning) -> Self {
        let mut key = Vec::new();
        write_str(&mut key, name.as_bytes());
        Self {
            name: name.as_bytes().into(),
            key: key.into(),
            kind: meaning.kind(name.as_bytes()).or(kind),
            is_time: meaning.is_time(name.as_bytes()),
        }
    }
}

/// Appends parsed fields to the output.
pub(super) struct Fields<'a> {
    pub(super) out: &'a mut Vec<u8>,
    /// The number of fields appended.
    pub(super) count: u32,
    /// The event time, if one of the fields held it.
    pub(super) time: Option<Time>,
    /// The event time of the record before parsing.
    pub(super) now: Time,
    pub(super) others: &'a mut Others,
    pub(super) own: &'a mut Own,
    pub(super) meaning: &'a Meaning,
    pub(super) stamps: &'a mut Stamps,
    pub(super) scratch: &'a mut Vec<u8>,
}

impl Fields<'_> {
    /// Appends a field with a text.
    #[inline]
    pub(super) fn text(&mut self, slot: &Slot, text: &[u8]) -> Result<(), Fault> {
        if slot.is_time && self.takes_time(text)? {
            return Ok(());
        }
        self.others.replace(&slot.name, self.out);
        self.count += 1;
        self.out.extend_from_slice(&slot.key);
        match slot.kind {
            None => write_str(self.out, text),
            Some(kind) => kind.write_text(text, self.out),
        }
        Ok(())
    }

    /// Appends a field with a name from the input.
    #[inline]
    pub(super) fn named(&mut self, name: &[u8], text: &[u8]) -> Result<(), Fault> {
        if self.meaning.is_time(name) && self.takes_time(text)? {
            return Ok(());
        }
        self.key(name);
        match self.meaning.kind(name) {
            None => write_str(self.out, text),
            Some(kind) => kind.write_text(text, self.out),
        }
        Ok(())
    }

    /// Appends the name of a field; its value must follow.
    #[inline]
    pub(super) fn key(&mut self, name: &[u8]) {
        self.others.replace(name, self.out);
        self.own.push(name, self.out.len());
        self.count += 1;
        write_str(self.out, name);
    }

    /// Appends all pairs of a MessagePack map, which may be followed by other bytes.
    pub(super) fn map(&mut self, map: &[u8]) -> Result<(), Fault> {
        let mut reader = Reader::new(map);
        let length = reader.map_len()?;
        self.count += length;
        // Pairs that need no change are copied as one range.
        let mut same = reader.position();
        for _ in 0..length {
            let pair = reader.position();
            let name = match reader.bytes() {
                Ok(name) => name,
                Err(_) => {
                    reader.values(2)?;
                    continue;
                }
            };
            let value_at = reader.position();
            let value = reader.value()?;
            let is_time = self.meaning.is_time(name);
            let kind = self.meaning.kind(name);
            if is_time && self.takes_value(value)? {
                self.copy(map, same, pair);
                self.count -= 1;
                same = reader.position();
                continue;
            }
            self.others.replace(name, self.out);
            if let Some(kind) = kind {
                self.copy(map, same, value_at);
                kind.write_value(value, self.scratch, self.out);
                same = reader.position();
            }
        }
        self.copy(map, same, reader.position());
        Ok(())
    }

    fn copy(&mut self, map: &[u8], start: usize, end: usize) {
        self.out
            .extend_from_slice(map.get(start..end).unwrap_or_default());
    }

    /// Reads the event time from the text. Returns whether the field is to be left out of the record.
    fn takes_time(&mut self, text: &[u8]) -> Result<bool, Fault> {
        let read = self.stamps.text(text, self.now);
        self.took(text, read)
    }

    fn takes_value(&mut self, value: &[u8]) -> Result<bool, Fault> {
        let read = self.stamps.value(value, self.now);
        self.took(value, read)
    }

    fn took(&mut self, text: &[u8], read: Option<Time>) -> Result<bool, Fault> {
        match read {
            Some(time) => {
                self.time = Some(time);
                Ok(!self.stamps.keep)
            }
            None if !self.stamps.required => Ok(false),
            None => {
                let fault = self.stamps.fault(text, self.now);
                if self.stamps.strict {
                    return Err(fault);
                }
                self.stamps.unread = Some(fault);
                Ok(false)
            }
        }
    }
}
