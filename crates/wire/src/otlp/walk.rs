//! Reads a request: its resources, their scopes, and the records of a scope, one by one. The code is generic over the encoding.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`

use std::{borrow::Cow, fmt::Debug};

use millstream_record::Time;

use super::{
    Bad, LEVELS_MAX, Next,
    record::{CONTEXT_BYTES_MAX, Context, Entry, Plain},
};
use crate::msgpack::{
    write_array_len, write_bin, write_bool, write_f64, write_int, write_map_len, write_nil,
    write_str, write_uint,
};

/// The functions that parse the messages of one encoding. Each message is passed as a slice of the request.
pub(super) trait Encoding<'a> {
    /// The elements of a repeated field that were not read yet.
    type List: Copy + Debug;

    /// Returns the elements of a repeated field of `message`.
    fn list(message: &'a [u8], field: Named) -> Result<Self::List, Bad>;

    /// Returns the number of elements in a list.
    fn count(list: &Self::List) -> Result<u32, Bad>;

    /// Returns the next element, or `None` at the end.
    fn next(list: &mut Self::List) -> Result<Option<&'a [u8]>, Bad>;

    /// Returns the bytes of a list that were not read yet.
    fn unread(list: &Self::List) -> &'a [u8];

    /// Returns the resource of a ResourceLogs, or the scope of a ScopeLogs, by its field name. Returns `None` if it is not set.
    fn context(message: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>, Bad>;

    /// Returns a text of a resource, a scope, or the message around it. It is empty if not set.
    fn text(message: &'a [u8], field: Named) -> Result<&'a [u8], Bad>;

    /// Returns a number of a resource or scope. It is 0 if not set.
    fn number(message: &'a [u8], field: Named) -> Result<u64, Bad>;

    /// Returns the fields of a log record.
    fn record(message: &'a [u8]) -> Result<LogRecord<'a, Self::List>, Bad>;

    /// Returns key and AnyValue of a KeyValue.
    fn pair(message: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Bad>;

    /// Returns the value of an AnyValue.
    fn any(message: &'a [u8]) -> Result<Any<'a, Self::List>, Bad>;
}

/// A field: its number in protobuf, and its two names in JSON (that of protobuf's JSON mapping, and that of the
/// specification).
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) number: u32,
    pub(super) names: [&'static [u8]; 2],
}

const fn named(number: u32, camel: &'static [u8], snake: &'static [u8]) -> Named {
    Named {
        number,
        names: [camel, snake],
    }
}

const RESOURCE_LOGS: Named = named(1, b"resourceLogs", b"resource_logs");
const SCOPE_LOGS: Named = named(2, b"scopeLogs", b"scope_logs");
const LOG_RECORDS: Named = named(2, b"logRecords", b"log_records");
const RESOURCE_ATTRIBUTES: Named = named(1, b"attributes", b"attributes");
const RESOURCE_DROPPED: Named = named(2, b"droppedAttributesCount", b"dropped_attributes_count");
const SCOPE_NAME: Named = named(1, b"name", b"name");
const SCOPE_VERSION: Named = named(2, b"version", b"version");
const SCOPE_ATTRIBUTES: Named = named(3, b"attributes", b"attributes");
const SCOPE_DROPPED: Named = named(4, b"droppedAttributesCount", b"dropped_attributes_count");
/// Of a ResourceLogs, and of a ScopeLogs.
const SCHEMA_URL: Named = named(3, b"schemaUrl", b"schema_url");
pub(super) const RECORD_ATTRIBUTES: Named = named(6, b"attributes", b"attributes");
pub(super) const VALUES: Named = named(1, b"values", b"values");

/// The parts of a log record.
#[derive(Debug)]
pub(super) struct LogRecord<'a, L> {
    pub(super) plain: Plain<'a>,
    /// An AnyValue.
    pub(super) body: Option<&'a [u8]>,
    /// KeyValues; `None` if there are none.
    pub(super) attributes: Option<L>,
}

/// The value of an AnyValue.
#[derive(Debug)]
pub(super) enum Any<'a, L> {
    Nil,
    Text(&'a [u8]),
    Bool(bool),
    Int(i64),
    Double(f64),
    Bytes(Cow<'a, [u8]>),
    /// AnyValues.
    List(L),
    /// KeyValues.
    Map(L),
}

/// The state of reading a request.
#[derive(Debug)]
pub(super) struct Logs<'a, E: Encoding<'a>> {
    /// The request; `None` after reading has begun.
    request: Option<&'a [u8]>,
    resources: Option<E::List>,
    scopes: Option<E::List>,
    records: Option<E::List>,
    /// The next record, until the output has enough free capacity for it.
    waiting: Option<&'a [u8]>,
    context: Context,
    values: Values<'a, E>,
}

impl<'a, E: Encoding<'a>> Logs<'a, E> {
    pub(super) fn new(request: &'a [u8]) -> Self {
        Self {
            request: Some(request),
            resources: None,
            scopes: None,
            records: None,
            waiting: None,
            context: Context::default(),
            values: Values { levels: Vec::new() },
        }
    }

    pub(super) fn next(&mut self, received: Time, out: &mut Vec<u8>) -> Next<'a> {
        loop {
            if let Some(record) = self.waiting {
                let room = self.context.room(record.len());
                if out.capacity() - out.len() < room {
                    return Next::Room(room);
                }
                self.waiting = None;
                return match self.record(record, received, out) {
                    Ok(()) => Next::Record,
                    Err(bad) => Next::Bad(record, bad),
                };
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return Next::End,
                Err((bytes, bad)) => return Next::Bad(bytes, bad),
            }
        }
    }

    /// Makes one step toward the next record. Returns `false` at the end of the request. An error contains the part of the
    /// request that could not be read; the next call continues after this part.
    fn advance(&mut self) -> Result<bool, (&'a [u8], Bad)> {
        if self.records.is_some() {
            self.waiting = element::<E>(&mut self.records)?;
        } else if self.scopes.is_some() {
            if let Some(scope) = element::<E>(&mut self.scopes)? {
                self.begin_scope(scope).map_err(|bad| (scope, bad))?;
            }
        } else if self.resources.is_some() {
            if let Some(resource) = element::<E>(&mut self.resources)? {
                self.begin_resource(resource)
                    .map_err(|bad| (resource, bad))?;
            }
        } else if let Some(request) = self.request.take() {
            let list = E::list(request, RESOURCE_LOGS).map_err(|bad| (request, bad))?;
            self.resources = Some(list);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn begin_resource(&mut self, message: &'a [u8]) -> Result<(), Bad> {
        self.context.resource_schema.clear();
        self.context.resource_dropped = 0;
        let map = &mut self.context.resource;
        map.clear();
        if let Some(resource) = E::context(message, b"resource")? {
            let attributes = E::list(resource, RESOURCE_ATTRIBUTES)?;
            if E::count(&attributes)? > 0 {
                self.values.map(attributes, map)?;
            }
            self.context.resource_dropped = E::number(resource, RESOURCE_DROPPED)?;
        }
        let schema = schema_url::<E>(message)?;
        self.context.resource_schema.extend_from_slice(schema);
        self.scopes = Some(E::list(message, SCOPE_LOGS)?);
        Ok(())
    }

    fn begin_scope(&mut self, message: &'a [u8]) -> Result<(), Bad> {
        let map = &mut self.context.scope;
        map.clear();
        let schema = schema_url::<E>(message)?;
        let scope = E::context(message, b"scope")?;
        let (mut name, mut version, mut dropped): (&[u8], &[u8], _) = (&[], &[], 0);
        let mut attributes = None;
        if let Some(scope) = scope {
            (name, version) = (E::text(scope, SCOPE_NAME)?, E::text(scope, SCOPE_VERSION)?);
            dropped = E::number(scope, SCOPE_DROPPED)?;
            let list = E::list(scope, SCOPE_ATTRIBUTES)?;
            attributes = (E::count(&list)? > 0).then_some(list);
        }
        let texts = [("name", name), ("version", version), ("schema_url", schema)];
        let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let length = texts.clone().count() + usize::from(attributes.is_some());
        let length = length + usize::from(dropped > 0);
        if length > 0 {
            write_map_len(map, length as u32);
        }
        for (name, text) in texts {
            write_str(map, name.as_bytes());
            write_str(map, text);
        }
        if dropped > 0 {
            write_str(map, b"dropped_attributes_count");
            write_uint(map, dropped);
        }
        if let Some(attributes) = attributes {
            write_str(map, b"attributes");
            self.values.map(attributes, map)?;
        }
        self.records = Some(E::list(message, LOG_RECORDS)?);
        Ok(())
    }

    fn record(&mut self, message: &'a [u8], received: Time, out: &mut Vec<u8>) -> Result<(), Bad> {
        let record = E::record(message)?;
        let mut entry = Entry::begin(&record.plain, received, out);
        let written = self.fields(&record, &mut entry);
        match written {
            Ok(()) => entry.end(&self.context),
            Err(_) => entry.undo(),
        }
        written
    }

    fn fields(
        &mut self,
        record: &LogRecord<'a, E::List>,
        entry: &mut Entry<'_>,
    ) -> Result<(), Bad> {
        if let Some(body) = record.body {
            entry.message();
            self.values.any(body, entry.out)?;
        }
        entry.plain(&record.plain)?;
        if let Some(attributes) = record.attributes {
            entry.name("attributes");
            self.values.map(attributes, entry.out)?;
        }
        Ok(())
    }
}

/// Returns the schema URL of a ResourceLogs or ScopeLogs.
fn schema_url<'a, E: Encoding<'a>>(message: &'a [u8]) -> Result<&'a [u8], Bad> {
    match E::text(message, SCHEMA_URL)? {
        url if url.len() > CONTEXT_BYTES_MAX => Err(Bad::TooLong),
        url => Ok(url),
    }
}

/// Returns the next element of a list, or `None` if there is none. A list that ends or cannot be read is closed.
fn element<'a, E: Encoding<'a>>(
    open: &mut Option<E::List>,
) -> Result<Option<&'a [u8]>, (&'a [u8], Bad)> {
    let Some(list) = open else {
        return Ok(None);
    };
    let unread = E::unread(list);
    let next = E::next(list);
    if !matches!(next, Ok(Some(_))) {
        *open = None;
    }
    next.map_err(|bad| (unread, bad))
}

/// Writes values as MessagePack, without recursion. The stack is reused for all values, so that it is allocated once.
#[derive(Debug)]
struct Values<'a, E: Encoding<'a>> {
    /// The lists that are being written, and whether their elements are pairs.
    levels: Vec<(E::List, bool)>,
}

impl<'a, E: Encoding<'a>> Values<'a, E> {
    /// Writes an AnyValue.
    fn any(&mut self, value: &'a [u8], out: &mut Vec<u8>) -> Result<(), Bad> {
        self.levels.clear();
        self.begin(value, out)?;
        self.finish(out)
    }

    /// Writes KeyValues as a map.
    fn map(&mut self, pairs: E::List, out: &mut Vec<u8>) -> Result<(), Bad> {
        self.levels.clear();
        self.open(pairs, true, out)?;
        self.finish(out)
    }

    /// Writes the elements of all open lists.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Bad> {
        while let Some((list, is_map)) = self.levels.last_mut() {
            let is_map = *is_map;
            let Some(element) = E::next(list)? else {
                self.levels.pop();
                continue;
            };
            if !is_map {
                self.begin(element, out)?;
                continue;
            }
            let (key, value) = E::pair(element)?;
            write_str(out, key);
            self.begin(value, out)?;
        }
        Ok(())
    }

    /// Writes a scalar, or the header of a list or map.
    fn begin(&mut self, value: &'a [u8], out: &mut Vec<u8>) -> Result<(), Bad> {
        match E::any(value)? {
            Any::Nil => write_nil(out),
            Any::Text(text) => write_str(out, text),
            Any::Bool(bool) => write_bool(out, bool),
            Any::Int(int) => write_int(out, int),
            Any::Double(double) => write_f64(out, double),
            Any::Bytes(bytes) => write_bin(out, &bytes),
            Any::List(list) => self.open(list, false, out)?,
            Any::Map(pairs) => self.open(pairs, true, out)?,
        }
        Ok(())
    }

    fn open(&mut self, list: E::List, is_map: bool, out: &mut Vec<u8>) -> Result<(), Bad> {
        if self.levels.len() >= LEVELS_MAX {
            return Err(Bad::TooDeep);
        }
        let count = E::count(&list)?;
        match is_map {
            true => write_map_len(out, count),
            false => write_array_len(out, count),
        }
        self.levels.push((list, is_map));
        Ok(())
    }
}
