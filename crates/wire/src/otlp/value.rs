//! Writes MessagePack values as AnyValues (OTLP's type for a value of any type), without recursion. The same code walks
//! over a value for protobuf and for JSON.

use super::LEVELS_MAX;
use crate::{
    json::{self, Unfit},
    msgpack::Reader,
};

/// A writer for one encoding of AnyValue.
pub(super) trait Target {
    fn nil(&mut self);
    fn bool(&mut self, value: bool);
    fn int(&mut self, value: i64);
    fn double(&mut self, value: f64);
    /// Writes a text that is UTF-8.
    fn text(&mut self, value: &str);
    fn bytes(&mut self, value: &[u8]);
    /// Begins a list or a map.
    fn open(&mut self, is_map: bool);
    /// Begins an element. `key` is the key in a map, and `None` in a list.
    fn element(&mut self, key: Option<&[u8]>, first: bool);
    /// Ends the element.
    fn end_element(&mut self, is_map: bool);
    /// Ends the list or map.
    fn close(&mut self, is_map: bool);
}

/// The lists and maps that are being written. The stack is reused for all values, so that it is allocated once.
#[derive(Debug, Default)]
pub(super) struct Stack {
    levels: Vec<Level>,
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    left: u32,
    is_map: bool,
    begun: bool,
}

impl Stack {
    /// Writes the MessagePack value at the start of `value`.
    pub(super) fn write(&mut self, value: &[u8], target: &mut impl Target) -> Result<(), Unfit> {
        self.levels.clear();
        let mut reader = Reader::new(value);
        self.begin(&mut reader, target)?;
        while let Some(level) = self.levels.last_mut() {
            let first = !std::mem::replace(&mut level.begun, true);
            if !first {
                target.end_element(level.is_map);
            }
            let Some(left) = level.left.checked_sub(1) else {
                target.close(level.is_map);
                self.levels.pop();
                continue;
            };
            level.left = left;
            if level.is_map {
                let key = reader.value()?;
                let key = super::known::key_text(key, &mut self.text);
                target.element(Some(key), first);
            } else {
                target.element(None, first);
            }
            self.begin(&mut reader, target)?;
        }
        Ok(())
    }

    /// Writes a scalar, or begins a list or map.
    fn begin(&mut self, reader: &mut Reader<'_>, target: &mut impl Target) -> Result<(), Unfit> {
        let (left, is_map) = match reader.peek()? {
            0x80..=0x8f | 0xde | 0xdf => (reader.map_len()?, true),
            0x90..=0x9f | 0xdc | 0xdd => (reader.array_len()?, false),
            _ => return self.scalar(reader, target),
        };
        if self.levels.len() >= LEVELS_MAX {
            return Err(Unfit::TooDeep);
        }
        target.open(is_map);
        // `Stack::write` ends an element before it closes a list or map. An empty list or map has no element, so it is
        // closed here.
        self.levels.push(Level {
            left,
            is_map,
            begun: false,
        });
        if left == 0 {
            self.levels.pop();
            target.close(is_map);
        }
        Ok(())
    }

    fn scalar(&mut self, reader: &mut Reader<'_>, target: &mut impl Target) -> Result<(), Unfit> {
        match reader.peek()? {
            0xc0 => {
                reader.nil()?;
                target.nil();
            }
            0xc2 | 0xc3 => target.bool(reader.bool()?),
            0xca | 0xcb => target.double(reader.float()?),
            0x00..=0x7f | 0xe0..=0xff | 0xcc..=0xd3 => {
                let number = reader.int()?;
                match i64::try_from(number) {
                    Ok(number) => target.int(number),
                    Err(_) => target.text(&number.to_string()),
                }
            }
            0xc4..=0xc6 => target.bytes(reader.bytes()?),
            0xa0..=0xbf | 0xd9..=0xdb => {
                let bytes = reader.bytes()?;
                match str::from_utf8(bytes) {
                    Ok(text) => target.text(text),
                    Err(_) => target.bytes(bytes),
                }
            }
            _ => {
                let value = reader.value()?;
                self.text.clear();
                json::write_value(value, 0, &mut self.text)?;
                let text = String::from_utf8_lossy(&self.text);
                target.text(text.trim_matches('"'));
            }
        }
        Ok(())
    }
}
