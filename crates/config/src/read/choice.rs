//! Reads one of several choices: a word (`framing: lines`), or a map with the word as its only name (`framing: {
//! multiline: { ... } }`).

use serde::Deserializer;
use serde::de::{DeserializeSeed, EnumAccess, Error, IntoDeserializer, VariantAccess, Visitor};

use super::error::{ReadError, Step};
use super::node::NodeReader;
use crate::node::{Key, Value};

/// A choice written as a word.
pub(super) struct WordReader<'a>(pub(super) &'a str);

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
pub(super) struct ChoiceReader<'a> {
    pub(super) key: &'a Key,
    pub(super) content: NodeReader<'a>,
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
