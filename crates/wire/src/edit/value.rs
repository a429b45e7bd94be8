//! The values of `set`. A value that is the same for all records of a batch is rendered once per batch.

use std::{ops::Range, sync::Arc};

use jiff::tz::TimeZone;

use super::option::Setting;
use crate::{
    msgpack::{
        Reader, write_array_len, write_bool, write_f64, write_int, write_map_len, write_nil,
        write_str, write_uint,
    },
    record::{Record, TimedRecord, Value},
    template::{Depends, Missing, Place, Renderer, Shared, Single, Template, Unix},
};

/// The values of an edit, in the order in which `set` lists the fields.
#[derive(Clone, Debug)]
pub(super) struct Values {
    values: Box<[Pieces]>,
    /// The encoded values; those that are the same for the whole batch come first.
    encoded: Vec<u8>,
    /// The length of the part of `encoded` with the values that are the same for the whole batch.
    of_batch: usize,
    /// The range of each value in `encoded`.
    ranges: Box<[Range<usize>]>,
    text: Vec<u8>,
}

/// A value, flattened: the heads of its maps and lists, and its scalars, in the order of the encoding.
#[derive(Clone, Debug)]
struct Pieces {
    pieces: Vec<Piece>,
    depends: Depends,
}

#[derive(Clone, Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// Copies a field with its type. Holds the place of the field, the encoded default that is written if the field is
    /// missing, and the name of the field for errors.
    Field(Place, Option<Box<[u8]>>, Arc<str>),
    Unix(Unix),
    Text(Box<Renderer>),
}

impl Values {
    pub(super) fn new<'a>(
        settings: impl IntoIterator<Item = &'a Setting>,
        zone: &TimeZone,
    ) -> Self {
        let values: Box<[Pieces]> = settings
            .into_iter()
            .map(|setting| {
                let mut value = Pieces {
                    pieces: Vec::new(),
                    depends: Depends::Nothing,
                };
                value.add(setting, zone);
                value
            })
            .collect();
        Self {
            ranges: vec![0..0; values.len()].into(),
            values,
            encoded: Vec::new(),
            of_batch: 0,
            text: Vec::new(),
        }
    }

    /// Renders the values that are the same for the whole batch.
    pub(super) fn begin(&mut self, shared: Shared<'_>) -> Result<(), Missing> {
        self.encoded.clear();
        self.of_batch = 0;
        let none = TimedRecord {
            time: millstream_record::Time(0),
            record: Record::None,
            metadata: &[],
        };
        self.render(|depends| depends <= Depends::Batch, shared, none)?;
        self.of_batch = self.encoded.len();
        Ok(())
    }

    /// Renders the values that depend on the record.
    #[inline]
    pub(super) fn record(
        &mut self,
        shared: Shared<'_>,
        record: TimedRecord<'_>,
    ) -> Result<(), Missing> {
        self.encoded.truncate(self.of_batch);
        self.render(|depends| depends > Depends::Batch, shared, record)
    }

    #[inline]
    fn render(
        &mut self,
        is_due: impl Fn(Depends) -> bool,
        shared: Shared<'_>,
        record: TimedRecord<'_>,
    ) -> Result<(), Missing> {
        for (value, range) in self.values.iter_mut().zip(&mut self.ranges) {
            if is_due(value.depends) {
                let start = self.encoded.len();
                for piece in &mut value.pieces {
                    piece.write(shared, record, &mut self.text, &mut self.encoded)?;
                }
                *range = start..self.encoded.len();
            }
        }
        Ok(())
    }

    /// The encoded values.
    pub(super) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Returns the range that the value with this index has in `Values::encoded`.
    pub(super) fn range(&self, index: usize) -> Range<usize> {
        self.ranges.get(index).cloned().unwrap_or_default()
    }
}

impl Pieces {
    fn add(&mut self, setting: &Setting, zone: &TimeZone) {
        match setting {
            Setting::Null => write_nil(self.bytes()),
            Setting::Bool(value) => write_bool(self.bytes(), *value),
            Setting::Negative(number) => write_int(self.bytes(), *number),
            Setting::Integer(number) => write_uint(self.bytes(), *number),
            Setting::Float(number) => write_f64(self.bytes(), *number),
            Setting::Text(template) => self.template(template, zone),
            Setting::List(list) => {
                write_array_len(self.bytes(), list.len() as u32);
                for one in list {
                    self.add(one, zone);
                }
            }
            Setting::Map(map) => {
                write_map_len(self.bytes(), map.len() as u32);
                for (key, one) in map {
                    write_str(self.bytes(), key.as_bytes());
                    self.add(one, zone);
                }
            }
        }
    }

    fn template(&mut self, template: &Template, zone: &TimeZone) {
        self.depends = self.depends.max(template.depends());
        self.pieces.push(match template.single() {
            Single::Unix(unit) => Piece::Unix(unit),
            Single::Field(place, default) => {
                let default = default.map(|default| {
                    let mut encoded = Vec::new();
                    write_str(&mut encoded, default.as_bytes());
                    encoded.into()
                });
                Piece::Field(place.clone(), default, place.to_string().into())
            }
            Single::Time | Single::No => {
                Piece::Text(Box::new(Renderer::text(template, zone.clone())))
            }
        });
    }

    /// Returns the constant bytes at the end of the value, to which the caller appends.
    fn bytes(&mut self) -> &mut Vec<u8> {
        if !matches!(self.pieces.last(), Some(Piece::Bytes(_))) {
            self.pieces.push(Piece::Bytes(Vec::new()));
        }
        match self.pieces.last_mut() {
            Some(Piece::Bytes(bytes)) => bytes,
            _ => unreachable!("bytes were pushed above"),
        }
    }
}

impl Piece {
    #[inline]
    fn write(
        &mut self,
        shared: Shared<'_>,
        record: TimedRecord<'_>,
        text: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Missing> {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Unix(unit) => write_int(out, unit.of(record.time)),
            Self::Text(renderer) => {
                text.clear();
                renderer.render(shared, record, text)?;
                write_str(out, text);
            }
            Self::Field(place, default, name) => {
                let missing = || Missing { name: name.clone() };
                let found = place.find(record);
                let found = found.filter(|value| default.is_none() || !value.is_nil());
                match (found, default) {
                    (Some(Value::Line(line)), _) => write_str(out, line),
                    (Some(Value::Packed(bytes)), _) => {
                        let value = Reader::new(bytes).value().map_err(|_| missing())?;
                        out.extend_from_slice(value);
                    }
                    (None, Some(default)) => out.extend_from_slice(default),
                    (None, None) => return Err(missing()),
                }
            }
        }
        Ok(())
    }
}
