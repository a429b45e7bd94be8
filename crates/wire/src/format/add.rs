//! The option `add`: fields from templates. A field that the record already has is never overwritten.
//!
//! A template that is a single placeholder keeps the type of its value: `{.n}` copies n unchanged, `{time:unix_ms}` is a
//! number. All other templates give text.

use std::{borrow::Cow, fmt};

use jiff::tz::TimeZone;
use millstream_record::Batch;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
};

use super::{
    OptionError, Reason,
    avro::datum,
    escape::{self, Cell},
    value::{Plain, plain},
};
use crate::{
    json::{self, InvalidUtf8, append_string},
    lines::str_head,
    msgpack::{self, write_int, write_str},
    record::{TimedRecord, Value},
    rfc3339::Rfc3339,
    room::Room,
    template::{Depends, Missing, Place, Renderer, Shared, Single, Template, Unix, write_number},
};

/// The maximum number of fields that can be added. The fields of `add` that a record already has are stored as the bits of a `u64`.
const FIELDS_MAX: usize = 64;

/// The JSON before the text of an added field is `,"name":"`. If it has at most this many bytes (a name of up to 19 letters), it is
/// copied as a block of constant size.
const TEXT_HEAD_BYTES: usize = 24;

/// The fields to add and their templates, in order, and the default fields that are left out.
///
/// ```text
/// add: { env: prod }               env, and the format's default: the event time, in `time`
/// add: { env: prod, time: null }   only env
/// add: { at: "{time:unix}" }       only at, because it holds the event time
/// add: {}                          nothing
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Add {
    /// The fields.
    pub fields: Vec<(String, Template)>,
    /// The names of default fields that are not added, because the option gives them the value `null`.
    pub without: Vec<String>,
}

/// The field that a format adds by default, so that the event time is not lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventTime {
    name: &'static str,
    template: &'static str,
}

impl EventTime {
    /// For json, ltsv and csv.
    pub(super) const TEXT: Self = Self {
        name: "time",
        template: "{time}",
    };
    /// For avro_event. Flume's interceptors and sinks use this header.
    pub(super) const MILLIS: Self = Self {
        name: "timestamp",
        template: "{time:unix_ms}",
    };

    fn field(self) -> (String, Template) {
        let template = Template::parse(self.template).expect("the text is a template");
        (self.name.to_owned(), template)
    }
}

impl Add {
    /// Returns the fields to add: the format's default field, then those of the option. The default is left out if the option
    /// is empty, contains a `null`, or adds a field with the name of the default or with the event time.
    pub(super) fn with_default(
        option: Option<&Self>,
        default: Option<EventTime>,
    ) -> Result<Vec<(String, Template)>, OptionError> {
        let Some(add) = option else {
            return Ok(default.map(EventTime::field).into_iter().collect());
        };
        let is_default = |name: &String| default.is_some_and(|default| default.name == name);
        if let Some(name) = add.without.iter().find(|name| !is_default(name)) {
            let help = match default {
                Some(EventTime { name, .. }) => format!(
                    "give it a template; `{name}: null` leaves out the event time, which is added by default"
                ),
                None => "give it a template, or leave it out".to_owned(),
            };
            let message = format!("`{name}` has no template");
            return Err(OptionError::new("add", message, help));
        }
        let has_time =
            |(name, template): &(String, Template)| is_default(name) || template.shows_event_time();
        let is_left_out = add.fields.is_empty() || !add.without.is_empty();
        let default = default.filter(|_| !is_left_out && !add.fields.iter().any(has_time));
        let default = default.map(EventTime::field).into_iter();
        Ok(default.chain(add.fields.iter().cloned()).collect())
    }
}

impl From<Vec<(String, Template)>> for Add {
    fn from(fields: Vec<(String, Template)>) -> Self {
        Self {
            fields,
            without: Vec::new(),
        }
    }
}

impl Serialize for Add {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields.iter().map(|(name, it)| (name, Some(it)));
        let without = self.without.iter().map(|name| (name, None));
        serializer.collect_map(fields.chain(without))
    }
}

impl<'de> Deserialize<'de> for Add {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Add;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of new fields and templates")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Add, M::Error> {
                let mut add = Add::default();
                while let Some((name, template)) = map.next_entry::<String, Option<Template>>()? {
                    match template {
                        Some(template) => add.fields.push((name, template)),
                        None => add.without.push(name),
                    }
                }
                Ok(add)
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl JsonSchema for Add {
    fn schema_name() -> Cow<'static, str> {
        "Add".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        <std::collections::BTreeMap<String, Option<Template>>>::json_schema(generator)
    }
}

/// The encoding of the added values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Json,
    Packed,
    Ltsv,
    Csv,
    Avro,
}

/// The option `add`, prepared for one encoding.
#[derive(Debug)]
pub(super) struct Added {
    target: Target,
    fields: Vec<Field>,
    invalid_utf8: Option<InvalidUtf8>,
    rfc3339: Rfc3339,
    /// Buffer for a text before it is encoded.
    text: Vec<u8>,
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Field {
    name: Box<[u8]>,
    /// The encoded key, such as `"name":` in JSON.
    key: Box<[u8]>,
    /// For JSON: the bytes `,"name":"` and their number. These bytes precede a text, unless the field is the first one of the
    /// object. The number is 0 if the bytes do not fit.
    text_head: ([u8; TEXT_HEAD_BYTES], usize),
    source: Source,
}

#[derive(Debug)]
enum Source {
    Time,
    Unix(Unix),
    Field(Place, Option<Box<str>>, Missing),
    /// A text that is the same for all records of a batch: its renderer, its encoding for the current batch, and the missing
    /// value if the template needs one.
    Batch(Box<Renderer>, Vec<u8>, Option<Missing>),
    Text(Box<Renderer>),
}

impl Added {
    pub(super) fn new(
        fields: &[(String, Template)],
        target: Target,
        zone: &TimeZone,
        invalid_utf8: Option<InvalidUtf8>,
    ) -> Result<Self, OptionError> {
        if fields.len() > FIELDS_MAX {
            return Err(OptionError::new(
                "add",
                format!("{} fields", fields.len()),
                format!("at most {FIELDS_MAX} can be added"),
            ));
        }
        let fields = fields.iter().map(|(name, template)| {
            let mut key = Vec::new();
            match target {
                Target::Json => {
                    append_string(name.as_bytes(), &mut key);
                    key.push(b':');
                }
                Target::Packed => write_str(&mut key, name.as_bytes()),
                Target::Ltsv => {
                    let mut room = Room::new(&mut key);
                    escape::label(&mut room, name.as_bytes());
                    room.byte(b':');
                }
                // The names are in the header.
                Target::Csv => {}
                Target::Avro => datum::string(&mut Room::new(&mut key), name.as_bytes()),
            }
            Field {
                name: name.as_bytes().into(),
                text_head: text_head(&key),
                key: key.into(),
                source: source(template, zone, invalid_utf8),
            }
        });
        Ok(Self {
            target,
            fields: fields.collect(),
            invalid_utf8,
            rfc3339: Rfc3339::new(),
            text: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// The index of the field with this name.
    pub(super) fn index_of(&self, name: &[u8]) -> Option<usize> {
        self.fields.iter().position(|field| *field.name == *name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Prepares values that are constant for the batch.
    pub(super) fn begin(&mut self, batch: &Batch) {
        for field in &mut self.fields {
            if let Source::Batch(renderer, value, missing) = &mut field.source {
                self.text.clear();
                value.clear();
                *missing = renderer.render_batch(batch, &mut self.text).err();
                let mut room = Room::with(value, self.invalid_utf8);
                write_text(self.target, &mut room, &self.text);
            }
        }
    }

    /// Returns the bit of the added field with this name; 0 if there is none.
    #[inline(always)]
    pub(super) fn named(&self, name: &[u8]) -> u64 {
        let mut bit = 1;
        let mut bits = 0;
        for field in &self.fields {
            // Names rarely have the same length, so the lengths are compared first.
            if field.name.len() == name.len() && *field.name == *name {
                bits |= bit;
            }
            bit <<= 1;
        }
        bits
    }

    /// The number of fields to add to a record that already has the fields in `seen`.
    pub(super) fn count(&self, seen: u64) -> u32 {
        self.fields.len() as u32 - seen.count_ones()
    }

    /// Writes the added fields whose bits are not in `seen`. `begun` is whether other fields precede them, so that a separator
    /// is needed.
    #[inline]
    pub(super) fn write(
        &mut self,
        room: &mut Room<'_>,
        shared: Shared<'_>,
        event: TimedRecord<'_>,
        seen: u64,
        begun: bool,
    ) -> Result<(), Reason> {
        let mut comma = begun;
        for index in 0..self.fields.len() {
            if seen >> index & 1 == 1 {
                continue;
            }
            let Some(field) = self.fields.get(index) else {
                break;
            };
            // The most frequent case: the event time in JSON, written in blocks of constant size.
            if let (Source::Time, Target::Json, true) = (&field.source, self.target, comma)
                && let (head, length @ 1..) = &field.text_head
            {
                room.three(head, *length, &self.rfc3339.text(event.time), *b"\"");
                continue;
            }
            match self.target {
                Target::Json if comma => room.byte(b','),
                Target::Ltsv if comma => room.byte(b'\t'),
                _ => {}
            }
            comma = true;
            room.bytes(&field.key);
            self.write_value(index, room, shared, event)?;
        }
        Ok(())
    }

    /// Writes the value of the field at this index.
    #[inline]
    pub(super) fn write_value(
        &mut self,
        index: usize,
        room: &mut Room<'_>,
        shared: Shared<'_>,
        event: TimedRecord<'_>,
    ) -> Result<(), Reason> {
        let Some(field) = self.fields.get_mut(index) else {
            return Ok(());
        };
        self.text.clear();
        match &mut field.source {
            Source::Time => write_text(self.target, room, &self.rfc3339.text(event.time)),
            Source::Unix(unit) => {
                let number = unit.of(event.time);
                match self.target {
                    Target::Packed => write_int(&mut self.text, number),
                    _ => write_number(number, &mut self.text),
                }
                match self.target {
                    Target::Avro => datum::string(room, &self.text),
                    _ => room.bytes(&self.text),
                }
            }
            Source::Field(place, default, missing) => {
                let found = place.find(event);
                let found = found.filter(|value| default.is_none() || !value.is_nil());
                match (found, default) {
                    (Some(value), _) => copy(self.target, room, value, &mut self.scratch)?,
                    (None, Some(default)) => write_text(self.target, room, default.as_bytes()),
                    (None, None) => return Err(missing.clone().into()),
                }
            }
            Source::Batch(_, value, None) => room.bytes(value),
            Source::Batch(_, _, Some(missing)) => return Err(missing.clone().into()),
            Source::Text(renderer) => {
                renderer.render(shared, event, &mut self.text)?;
                write_text(self.target, room, &self.text);
            }
        }
        Ok(())
    }
}

fn text_head(key: &[u8]) -> ([u8; TEXT_HEAD_BYTES], usize) {
    let head = [b",", key, b"\""].concat();
    let mut padded = [0; TEXT_HEAD_BYTES];
    match padded.get_mut(..head.len()) {
        Some(room) => room.copy_from_slice(&head),
        None => return (padded, 0),
    }
    (padded, head.len())
}

fn source(template: &Template, zone: &TimeZone, invalid_utf8: Option<InvalidUtf8>) -> Source {
    match template.single() {
        Single::Time => Source::Time,
        Single::Unix(unit) => Source::Unix(unit),
        Single::Field(place, default) => {
            let missing = Missing {
                name: place.to_string().into(),
            };
            Source::Field(place.clone(), default.map(Into::into), missing)
        }
        Single::No => {
            let renderer = Renderer::text(template, zone.clone()).invalid_utf8(invalid_utf8);
            let renderer = Box::new(renderer);
            if template.depends() <= Depends::Batch {
                Source::Batch(renderer, Vec::new(), None)
            } else {
                Source::Text(renderer)
            }
        }
    }
}

fn write_text(target: Target, room: &mut Room<'_>, text: &[u8]) {
    match target {
        Target::Json => json::string(room, text, 0, text.len()),
        Target::Packed => {
            str_head(room, text.len());
            room.bytes(text);
        }
        Target::Ltsv => escape::Value::text(room, text),
        Target::Csv => Cell::text(room, text),
        Target::Avro => datum::string(room, text),
    }
}

/// Copies the value of a record's field with its type.
fn copy(
    target: Target,
    room: &mut Room<'_>,
    value: Value<'_>,
    scratch: &mut Vec<u8>,
) -> Result<(), Reason> {
    match (target, value) {
        (_, Value::Line(line)) => write_text(target, room, line),
        (Target::Json, Value::Packed(bytes)) => {
            json::value(room, bytes, 0)?;
        }
        (Target::Packed, Value::Packed(bytes)) => {
            let value = msgpack::Reader::new(bytes).value();
            room.bytes(value.map_err(json::Unfit::from)?);
        }
        (Target::Ltsv, Value::Packed(bytes)) => {
            plain::<escape::Value>(room, bytes, 0, scratch)?;
        }
        (Target::Csv, Value::Packed(bytes)) => {
            plain::<Cell>(room, bytes, 0, scratch)?;
        }
        (Target::Avro, Value::Packed(bytes)) => {
            datum::value(room, bytes, 0)?;
        }
    }
    Ok(())
}
