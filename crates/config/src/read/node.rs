//! serde's view of a node: a `Deserializer` that keeps the way to every part, so that an error finds its place.

use std::cell::Cell;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use super::choice::{ChoiceReader, WordReader};
use super::dummy::Dummy;
use super::error::{Kind, ReadError, Step};
use crate::node::{Key, Map, Node, Text, Value};
use crate::one_or_many::ONE_OR_MANY;
use crate::scalar;

/// Reads one node.
#[derive(Clone, Copy)]
pub(crate) struct NodeReader<'a> {
    pub(crate) node: &'a Node,
    /// Set when a value had to be made up because a problem has been told about the real one.
    pub(crate) made_up: &'a Cell<bool>,
}

impl<'a> NodeReader<'a> {
    fn with(self, node: &'a Node) -> Self {
        Self { node, ..self }
    }

    /// The dummy if the node cannot be read.
    fn dummy(self) -> Option<Dummy> {
        if !self.node.is_invalid() {
            return None;
        }
        self.made_up.set(true);
        Some(Dummy::new())
    }

    fn any<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.node.value {
            Value::Text(text) => typed_text(text, visitor),
            Value::List(list) => visitor.visit_seq(ListReader {
                reader: self,
                rest: list.iter(),
                index: 0,
            }),
            Value::Map(map) => visitor.visit_map(MapReader {
                reader: self,
                map,
                rest: map.entries.iter(),
                current: None,
            }),
            scalar => visit_scalar(scalar, visitor),
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.node.value {
            Value::Text(text) => visitor.visit_str(&text.text),
            _ => self.any(visitor),
        }
    }

    /// A word, or a map whose only name is the word.
    fn choice<'de, V: Visitor<'de>>(
        self,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match &self.node.value {
            Value::Text(text) => visitor.visit_enum(WordReader(&text.text)),
            Value::Map(map) => match map.entries.as_slice() {
                [(key, node)] => visitor.visit_enum(ChoiceReader {
                    key,
                    content: self.with(node),
                }),
                _ => Err(ReadError::new(Kind::Wanted(format!(
                    "exactly one of {}",
                    crate::words::join(known)
                )))),
            },
            _ => Err(ReadError::new(Kind::Wanted(format!(
                "one of {}",
                crate::words::join(known)
            )))),
        }
    }
}

/// An unquoted text that took a substitution is what it looks like, unless a text is wanted.
fn typed_text<'de, V: Visitor<'de>>(text: &Text, visitor: V) -> Result<V::Value, ReadError> {
    match text.typed_by_reader {
        true => match scalar::plain(&text.text) {
            Value::Text(text) => visitor.visit_str(&text.text),
            typed => visit_scalar(&typed, visitor),
        },
        false => visitor.visit_str(&text.text),
    }
}

fn visit_scalar<'de, V: Visitor<'de>>(value: &Value, visitor: V) -> Result<V::Value, ReadError> {
    match value {
        Value::Bool(value) => visitor.visit_bool(*value),
        Value::Float(value) => visitor.visit_f64(*value),
        Value::Integer(value) => match (u64::try_from(*value), i64::try_from(*value)) {
            (Ok(value), _) => visitor.visit_u64(value),
            (_, Ok(value)) => visitor.visit_i64(value),
            _ => visitor.visit_i128(*value),
        },
        _ => visitor.visit_unit(),
    }
}

/// One method per hint that makes no difference: `$inner` reads, the dummy stands in, an error learns its place.
macro_rules! read_as {
    ($inner:ident: $($method:ident($($arg:ident: $type:ty),*))*) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value, ReadError> {
            if let Some(dummy) = self.dummy() {
                return dummy.$method($($arg,)* visitor);
            }
            $(let _ = $arg;)*
            self.$inner(visitor).map_err(|error| error.at(self.node))
        }
    )*};
}

impl<'de> Deserializer<'de> for NodeReader<'_> {
    type Error = ReadError;

    read_as! { any:
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_i128() deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128()
        deserialize_f32() deserialize_f64() deserialize_unit() deserialize_unit_struct(name: &'static str)
        deserialize_seq() deserialize_tuple(len: usize) deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_map()
    }
    read_as! { text:
        deserialize_char() deserialize_str() deserialize_string() deserialize_identifier()
        deserialize_bytes() deserialize_byte_buf()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        if let Some(dummy) = self.dummy() {
            return dummy.deserialize_option(visitor);
        }
        let is_none = match &self.node.value {
            Value::Null => true,
            Value::Text(text) => {
                text.typed_by_reader && matches!(scalar::plain(&text.text), Value::Null)
            }
            _ => false,
        };
        match is_none {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
        .map_err(|error| error.at(self.node))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if name != ONE_OR_MANY {
            return visitor.visit_newtype_struct(self);
        }
        if let Some(dummy) = self.dummy() {
            return dummy.deserialize_seq(visitor);
        }
        match &self.node.value {
            Value::List(_) => self.any(visitor),
            _ => visitor.visit_seq(One(Some(self))),
        }
        .map_err(|error| error.at(self.node))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if let Some(dummy) = self.dummy() {
            return dummy.deserialize_struct(name, fields, visitor);
        }
        // derived code would take a list as the options in their order
        match &self.node.value {
            Value::List(_) => Err(ReadError::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.any(visitor),
        }
        .map_err(|error| error.at(self.node))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if let Some(dummy) = self.dummy() {
            return dummy.deserialize_enum(name, variants, visitor);
        }
        self.choice(variants, visitor)
            .map_err(|error| error.at(self.node))
    }
}

struct ListReader<'a> {
    reader: NodeReader<'a>,
    rest: std::slice::Iter<'a, Node>,
    index: usize,
}

impl<'de> SeqAccess<'de> for ListReader<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        let Some(node) = self.rest.next() else {
            return Ok(None);
        };
        let index = self.index;
        self.index += 1;
        seed.deserialize(self.reader.with(node))
            .map(Some)
            .map_err(|error| error.at(node).under(Step::Index(index)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// A single value where a list may stand as well.
struct One<'a>(Option<NodeReader<'a>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        self.0.take().map(|one| seed.deserialize(one)).transpose()
    }
}

struct MapReader<'a> {
    reader: NodeReader<'a>,
    map: &'a Map,
    rest: std::slice::Iter<'a, (Key, Node)>,
    current: Option<&'a (Key, Node)>,
}

impl<'de> MapAccess<'de> for MapReader<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        self.current = self.rest.next();
        let Some((key, _)) = self.current else {
            return Ok(None);
        };
        seed.deserialize(KeyReader(&key.text))
            .map(Some)
            .map_err(|mut error| {
                if let Kind::UnknownName { known, .. } = &mut error.kind {
                    known.extend(&self.map.asked);
                }
                error
                    .at_place(&key.place, &key.text)
                    .under(Step::Name(key.text.clone()))
            })
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let Some((key, node)) = self.current.take() else {
            return Err(ReadError::custom("a value was asked for before its name"));
        };
        seed.deserialize(self.reader.with(node))
            .map_err(|error| error.at(node).under(Step::Name(key.text.clone())))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// A name in a map: a text, or a number if the map is keyed by numbers.
struct KeyReader<'a>(&'a str);

macro_rules! read_number_key {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            match scalar::plain(self.0) {
                number @ (Value::Integer(_) | Value::Float(_)) => visit_scalar(&number, visitor),
                _ => visitor.visit_str(self.0),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for KeyReader<'_> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_str(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_enum(WordReader(self.0))
    }

    read_number_key! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64
    }

    forward_to_deserialize_any! {
        bool char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
