//! serde's view of a node: a `Deserializer` that tracks the path to every part, so that an error knows its place.
//!
//! A value whose problem was already reported ([`Value::Invalid`]) ends the read with the error [`Kind::Invalid`]. This error holds a
//! stand-in: a value of the requested type. The caller replaces the invalid value by the stand-in and reads again.

use serde::Deserializer;
use serde::de::{
    DeserializeSeed, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::error::{Kind, ReadError, Step};
use crate::node::{Key, Map, Node, Text, Value};
use crate::one_or_many::ONE_OR_MANY;
use crate::place::Place;
use crate::scalar;

/// Reads one node.
#[derive(Clone, Copy)]
pub(crate) struct NodeReader<'a>(pub(crate) &'a Node);

impl<'a> NodeReader<'a> {
    /// Fails if the node is invalid. `stand_in` makes the stand-in for the error.
    fn check(self, stand_in: impl FnOnce() -> Option<Value>) -> Result<(), ReadError> {
        match self.0.is_invalid() {
            true => Err(ReadError::new(Kind::Invalid(stand_in()))),
            false => Ok(()),
        }
    }

    fn any<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.0.value {
            Value::Text(text) => typed_text(text, visitor),
            Value::List(list) => visitor.visit_seq(ListReader {
                elements: list.iter(),
                index: 0,
            }),
            Value::Map(map) => visitor.visit_map(MapReader {
                map,
                entries: map.entries.iter(),
                current: None,
            }),
            scalar => visit_scalar(scalar, visitor),
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.0.value {
            Value::Text(text) => visitor.visit_str(&text.text),
            _ => self.any(visitor),
        }
    }

    /// Reads a choice: a word, or a map with the word as its only name.
    fn choice<'de, V: Visitor<'de>>(
        self,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match &self.0.value {
            Value::Text(text) => visitor.visit_enum(WordReader(&text.text)),
            Value::Map(map) => match map.entries.as_slice() {
                [(key, node)] => visitor.visit_enum(ChoiceReader {
                    key,
                    content: NodeReader(node),
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

/// Reads a text for an option that does not request a text. An unquoted text that contains a substitution is read as the type that it
/// looks like. Any other text is read as a text.
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

/// The stand-in for every text. It is also a valid size, duration, path and regular expression.
const STAND_IN_TEXT: &str = "0";

fn empty_map() -> Value {
    Value::Map(Map::default())
}

/// Defines one method for each type that serde can request: `$inner` reads the node, `$stand_in` is a value of that type.
macro_rules! read_as {
    ($inner:ident, $stand_in:expr; $($method:ident($($arg:ident: $type:ty),*))*) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value, ReadError> {
            $(let _ = $arg;)*
            self.check(|| $stand_in)?;
            self.$inner(visitor).map_err(|error| error.at(self.0))
        }
    )*};
}

impl<'de> Deserializer<'de> for NodeReader<'_> {
    type Error = ReadError;

    read_as! { any, None; deserialize_any() }
    read_as! { any, Some(Value::Bool(false)); deserialize_bool() }
    read_as! { any, Some(Value::Integer(1));
        deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64() deserialize_i128()
        deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128()
    }
    read_as! { any, Some(Value::Float(1.0)); deserialize_f32() deserialize_f64() }
    read_as! { any, Some(Value::Null); deserialize_unit() deserialize_unit_struct(name: &'static str) }
    read_as! { any, Some(Value::List(Vec::new())); deserialize_seq() }
    read_as! { any, Some(empty_map()); deserialize_map() }
    read_as! { text, Some(Value::Text(Text::new(STAND_IN_TEXT)));
        deserialize_char() deserialize_str() deserialize_string() deserialize_identifier()
        deserialize_bytes() deserialize_byte_buf()
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.check(|| {
            let element = Node {
                value: Value::Invalid,
                place: self.0.place.clone(),
            };
            Some(Value::List(vec![element; len]))
        })?;
        self.any(visitor).map_err(|error| error.at(self.0))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.check(|| Some(Value::Null))?;
        let is_none = match &self.0.value {
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
        .map_err(|error| error.at(self.0))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if name != ONE_OR_MANY {
            return visitor.visit_newtype_struct(self);
        }
        self.check(|| Some(Value::List(Vec::new())))?;
        match &self.0.value {
            Value::List(_) => self.any(visitor),
            _ => visitor.visit_seq(One(Some(self))),
        }
        .map_err(|error| error.at(self.0))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.check(|| Some(empty_map()))?;
        // Derived code would accept a list and assign its elements to the options in order.
        match &self.0.value {
            Value::List(_) => Err(ReadError::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.any(visitor),
        }
        .map_err(|error| error.at(self.0))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.check(|| first_choice(variants, &self.0.place))?;
        self.choice(variants, visitor)
            .map_err(|error| error.at(self.0))
    }
}

/// Returns a map with the first of several choices as its name. The value in the map is read only if this choice takes a value.
fn first_choice(variants: &[&str], place: &Place) -> Option<Value> {
    let key = Key {
        text: (*variants.first()?).to_owned(),
        place: place.clone(),
    };
    let content = Node {
        value: Value::Invalid,
        place: place.clone(),
    };
    let mut map = Map::default();
    map.entries.push((key, content));
    Some(Value::Map(map))
}

struct ListReader<'a> {
    elements: std::slice::Iter<'a, Node>,
    index: usize,
}

impl<'de> SeqAccess<'de> for ListReader<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        let Some(node) = self.elements.next() else {
            return Ok(None);
        };
        let index = self.index;
        self.index += 1;
        seed.deserialize(NodeReader(node))
            .map(Some)
            .map_err(|error| error.at(node).under(Step::Index(index)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.elements.len())
    }
}

/// A single value where a list is allowed as well.
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
    map: &'a Map,
    entries: std::slice::Iter<'a, (Key, Node)>,
    current: Option<&'a (Key, Node)>,
}

impl<'de> MapAccess<'de> for MapReader<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        self.current = self.entries.next();
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
            return Err(ReadError::custom("the value was requested before its name"));
        };
        seed.deserialize(NodeReader(node))
            .map_err(|error| error.at(node).under(Step::Name(key.text.clone())))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// A name in a map: a text, or a number if the map has numbers as keys.
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

/// A choice written as a word.
struct WordReader<'a>(&'a str);

impl<'de> EnumAccess<'de> for WordReader<'_> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ReadError> {
        let word: serde::de::value::StrDeserializer<'_, ReadError> = self.0.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl WordReader<'_> {
    fn wants_value(&self) -> ReadError {
        ReadError::custom(format!("`{0}` needs a value: {{ {0}: ... }}", self.0))
    }
}

impl<'de> VariantAccess<'de> for WordReader<'_> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, ReadError> {
        Err(self.wants_value())
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, ReadError> {
        Err(self.wants_value())
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, ReadError> {
        Err(self.wants_value())
    }
}

/// A choice written as a map: the name is the choice, the value belongs to it.
struct ChoiceReader<'a> {
    key: &'a Key,
    content: NodeReader<'a>,
}

impl<'de, 'a> EnumAccess<'de> for ChoiceReader<'a> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ReadError> {
        let word: serde::de::value::StrDeserializer<'_, ReadError> =
            self.key.text.as_str().into_deserializer();
        let value = seed
            .deserialize(word)
            .map_err(|error| error.at_place(&self.key.place, &self.key.text))?;
        Ok((value, self))
    }
}

impl ChoiceReader<'_> {
    fn inside(&self, error: ReadError) -> ReadError {
        error
            .at(self.content.0)
            .under(Step::Name(self.key.text.clone()))
    }
}

impl<'de> VariantAccess<'de> for ChoiceReader<'_> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        match &self.content.0.value {
            Value::Null | Value::Invalid => Ok(()),
            Value::Map(map) if map.entries.is_empty() => Ok(()),
            _ => {
                let error = ReadError::custom(format!("`{}` takes no value", self.key.text));
                Err(self.inside(error))
            }
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        seed.deserialize(self.content)
            .map_err(|error| self.inside(error))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.content
            .deserialize_tuple(len, visitor)
            .map_err(|error| self.inside(error))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.content
            .deserialize_struct("", fields, visitor)
            .map_err(|error| self.inside(error))
    }
}
