//! Values of any type, and maps and lists of them, out of protobuf: to MessagePack in one pass, without recursion.

use super::{
    Bad, LEVELS_MAX,
    protobuf::{Field, Fields},
};
use crate::msgpack::{
    write_array_len, write_bin, write_bool, write_f64, write_int, write_map_len, write_nil,
    write_str,
};

/// A list or map that is being written.
#[derive(Clone, Copy, Debug)]
struct Level<'a> {
    fields: Fields<'a>,
    /// The number of its elements' field.
    number: u32,
    is_map: bool,
}

/// Writes values. Keeps its stack from one to the next.
#[derive(Debug, Default)]
pub(super) struct Values<'a> {
    levels: Vec<Level<'a>>,
}

/// An AnyValue.
enum Any<'a> {
    Nil,
    Text(&'a [u8]),
    Bool(bool),
    Int(i64),
    Double(f64),
    List(&'a [u8]),
    Map(&'a [u8]),
    Bytes(&'a [u8]),
}

impl<'a> Values<'a> {
    /// An AnyValue.
    pub(super) fn any(&mut self, value: &'a [u8], out: &mut Vec<u8>) -> Result<(), Bad> {
        self.levels.clear();
        self.begin(value, out)?;
        self.rest(out)
    }

    /// The KeyValues in the field `number` of a message, as a map.
    pub(super) fn map(
        &mut self,
        message: &'a [u8],
        number: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), Bad> {
        self.levels.clear();
        self.open(message, number, true, out)?;
        self.rest(out)
    }

    /// Writes what is open to its end.
    fn rest(&mut self, out: &mut Vec<u8>) -> Result<(), Bad> {
        while let Some(level) = self.levels.last_mut() {
            let Some(element) = level.fields.next_of(level.number)? else {
                self.levels.pop();
                continue;
            };
            if !level.is_map {
                self.begin(element, out)?;
                continue;
            }
            let (key, value) = pair(element)?;
            write_str(out, key);
            self.begin(value, out)?;
        }
        Ok(())
    }

    /// Writes a value, or the head of a list or map.
    fn begin(&mut self, value: &'a [u8], out: &mut Vec<u8>) -> Result<(), Bad> {
        match any(value)? {
            Any::Nil => write_nil(out),
            Any::Text(text) => write_str(out, text),
            Any::Bool(bool) => write_bool(out, bool),
            Any::Int(int) => write_int(out, int),
            Any::Double(double) => write_f64(out, double),
            Any::Bytes(bytes) => write_bin(out, bytes),
            Any::List(list) => self.open(list, 1, false, out)?,
            Any::Map(map) => self.open(map, 1, true, out)?,
        }
        Ok(())
    }

    fn open(
        &mut self,
        message: &'a [u8],
        number: u32,
        is_map: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Bad> {
        if self.levels.len() >= LEVELS_MAX {
            return Err(Bad::TooDeep);
        }
        let count = count(message, number)?;
        if is_map {
            write_map_len(out, count);
        } else {
            write_array_len(out, count);
        }
        self.levels.push(Level {
            fields: Fields::new(message),
            number,
            is_map,
        });
        Ok(())
    }
}

/// How many elements stand in the field `number`.
pub(super) fn count(message: &[u8], number: u32) -> Result<u32, Bad> {
    let mut fields = Fields::new(message);
    let mut count = 0_u32;
    while fields.next_of(number)?.is_some() {
        // Each has two bytes at least, and no request has 8 GiB.
        count = count.saturating_add(1);
    }
    Ok(count)
}

/// Key and value of a KeyValue. The last of each counts.
fn pair(message: &[u8]) -> Result<(&[u8], &[u8]), Bad> {
    let mut fields = Fields::new(message);
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => key = bytes,
            (2, Field::Bytes(bytes)) => value = bytes,
            (1 | 2, _) => return Err(Bad::Type),
            _ => {}
        }
    }
    Ok((key, value))
}

/// The value that an AnyValue is. The last one counts.
fn any(message: &[u8]) -> Result<Any<'_>, Bad> {
    let mut fields = Fields::new(message);
    let mut value = Any::Nil;
    while let Some((number, field)) = fields.next()? {
        value = match (number, field) {
            (1, Field::Bytes(text)) => Any::Text(text),
            (2, Field::Varint(bool)) => Any::Bool(bool != 0),
            (3, Field::Varint(int)) => Any::Int(int as i64),
            (4, Field::Fixed64(bits)) => Any::Double(f64::from_bits(bits)),
            (5, Field::Bytes(list)) => Any::List(list),
            (6, Field::Bytes(map)) => Any::Map(map),
            (7, Field::Bytes(bytes)) => Any::Bytes(bytes),
            (1..=7, _) => return Err(Bad::Type),
            _ => continue,
        };
    }
    Ok(value)
}
