//! The names of the options of a struct, as its derived `Deserialize` reports them.

use std::cell::Cell;

use serde::Deserializer;
use serde::de::{DeserializeOwned, Visitor};
use serde::forward_to_deserialize_any;

use super::error::{Kind, ReadError};

/// Returns the names of the options of a struct that derives `Deserialize`; empty for any other type.
#[must_use]
pub fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    let names = Cell::new([].as_slice());
    // The call always fails. Only the names that it requests matter.
    let _ = T::deserialize(Probe(&names));
    names.get()
}

struct Probe<'a>(&'a Cell<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ReadError> {
        Err(ReadError::new(Kind::Invalid(None)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, ReadError> {
        self.0.set(fields);
        Err(ReadError::new(Kind::Invalid(None)))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
