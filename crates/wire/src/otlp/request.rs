//! The records of a request in protobuf, one by one.
//!
//! Hop: read [decode] send keep take encode write settle.
//!
//! Resource and scope may stand behind what they are for, so each message is first looked through for them; that steps over
//! its records and does not read them.

use millstream_record::Time;

use super::{
    Bad, Next,
    any::{Values, count},
    protobuf::{Field, Fields},
    record::{AROUND_BYTES_MAX, Around, Entry, Id, Plain},
};
use crate::msgpack::{write_map_len, write_str};

/// A place in a request.
#[derive(Debug)]
pub(super) struct Logs<'a> {
    request: Option<Fields<'a>>,
    resource: Option<Fields<'a>>,
    scope: Option<Fields<'a>>,
    /// The record that waits for room.
    waiting: Option<&'a [u8]>,
    around: Around,
    values: Values<'a>,
}

impl<'a> Logs<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self {
            request: Some(Fields::new(body)),
            resource: None,
            scope: None,
            waiting: None,
            around: Around::default(),
            values: Values::default(),
        }
    }

    pub(super) fn next(&mut self, received: Time, out: &mut Vec<u8>) -> Next<'a> {
        loop {
            if let Some(record) = self.waiting {
                let room = self.around.room(record.len());
                if out.capacity() - out.len() < room {
                    return Next::Room(room);
                }
                self.waiting = None;
                return match self.record(record, received, out) {
                    Ok(()) => Next::Record,
                    Err(bad) => Next::Bad(record, bad),
                };
            }
            if let Err((bytes, bad)) = self.advance() {
                return Next::Bad(bytes, bad);
            }
            if self.waiting.is_none() && self.request.is_none() {
                return Next::End;
            }
        }
    }

    /// One step towards the next record. What cannot be read is left, and given back.
    fn advance(&mut self) -> Result<(), (&'a [u8], Bad)> {
        if let Some(fields) = &mut self.scope {
            let rest = fields.rest();
            match fields.next_of(2) {
                Ok(None) => self.scope = None,
                Ok(record) => self.waiting = record,
                Err(bad) => {
                    self.scope = None;
                    return Err((rest, bad));
                }
            }
            return Ok(());
        }
        if let Some(fields) = &mut self.resource {
            let rest = fields.rest();
            match fields.next_of(2) {
                Ok(None) => self.resource = None,
                Ok(Some(scope)) => self.begin_scope(scope).map_err(|bad| (scope, bad))?,
                Err(bad) => {
                    self.resource = None;
                    return Err((rest, bad));
                }
            }
            return Ok(());
        }
        let Some(fields) = &mut self.request else {
            return Ok(());
        };
        let rest = fields.rest();
        match fields.next_of(1) {
            Ok(None) => self.request = None,
            Ok(Some(resource)) => self
                .begin_resource(resource)
                .map_err(|bad| (resource, bad))?,
            Err(bad) => {
                self.request = None;
                return Err((rest, bad));
            }
        }
        Ok(())
    }

    fn begin_resource(&mut self, message: &'a [u8]) -> Result<(), Bad> {
        let map = &mut self.around.resources;
        map.clear();
        if let Some(resource) = first(message)?
            && count(resource, 1)? > 0
        {
            self.values.map(resource, 1, map)?;
        }
        self.resource = Some(Fields::new(message));
        Ok(())
    }

    fn begin_scope(&mut self, message: &'a [u8]) -> Result<(), Bad> {
        let map = &mut self.around.scope;
        map.clear();
        if let Some(scope) = first(message)? {
            let (mut name, mut version): (&[u8], &[u8]) = (&[], &[]);
            let mut fields = Fields::new(scope);
            while let Some((number, field)) = fields.next()? {
                match (number, field) {
                    (1, Field::Bytes(text)) => name = text,
                    (2, Field::Bytes(text)) => version = text,
                    _ => {}
                }
            }
            let texts = [("name", name), ("version", version)];
            let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
            let attributes = count(scope, 3)? > 0;
            let length = texts.clone().count() as u32 + u32::from(attributes);
            if length > 0 {
                write_map_len(map, length);
            }
            for (name, text) in texts {
                write_str(map, name.as_bytes());
                write_str(map, text);
            }
            if attributes {
                write_str(map, b"attributes");
                self.values.map(scope, 3, map)?;
            }
        }
        self.scope = Some(Fields::new(message));
        Ok(())
    }

    fn record(&mut self, message: &'a [u8], received: Time, out: &mut Vec<u8>) -> Result<(), Bad> {
        let mut plain = Plain::default();
        let (mut body, mut attributes) = (None, 0_u32);
        let mut fields = Fields::new(message);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (1, Field::Fixed64(time)) => plain.time = time,
                (2, Field::Varint(severity)) => plain.severity_number = severity as i64,
                (3, Field::Bytes(text)) => plain.severity_text = text,
                (5, Field::Bytes(value)) => body = Some(value),
                (6, Field::Bytes(_)) => attributes += 1,
                (7, Field::Varint(dropped)) => plain.dropped = dropped,
                (8, Field::Fixed32(flags)) => plain.flags = u64::from(flags),
                (9, Field::Bytes(id)) => plain.trace_id = Id::Bytes(id),
                (10, Field::Bytes(id)) => plain.span_id = Id::Bytes(id),
                (11, Field::Fixed64(time)) => plain.observed = time,
                (12, Field::Bytes(name)) => plain.event_name = name,
                (1..=12, _) if number != 4 => return Err(Bad::Type),
                _ => {}
            }
        }
        let mut entry = Entry::begin(&plain, received, out);
        let written = self.fields(message, &plain, body, attributes, &mut entry);
        match written {
            Ok(()) => entry.end(&self.around),
            Err(_) => entry.undo(),
        }
        written
    }

    fn fields(
        &mut self,
        message: &'a [u8],
        plain: &Plain<'a>,
        body: Option<&'a [u8]>,
        attributes: u32,
        entry: &mut Entry<'_>,
    ) -> Result<(), Bad> {
        if let Some(body) = body {
            entry.message();
            self.values.any(body, entry.out)?;
        }
        entry.plain(plain)?;
        if attributes > 0 {
            entry.name("attributes");
            self.values.map(message, 6, entry.out)?;
        }
        Ok(())
    }
}

/// The message in the field 1: the resource, the scope. The last one counts.
fn first(message: &[u8]) -> Result<Option<&[u8]>, Bad> {
    let mut fields = Fields::new(message);
    let mut found = None;
    while let Some(bytes) = fields.next_of(1)? {
        found = Some(bytes);
    }
    match found {
        Some(bytes) if bytes.len() > AROUND_BYTES_MAX => Err(Bad::TooLong),
        found => Ok(found),
    }
}
