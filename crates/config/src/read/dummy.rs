//! A made-up value for an option that is wrong or missing, so that reading goes on and finds the other problems.
//!
//! It never reaches anybody: a read that used it ends in an error. Where no plausible value can be made up, the
//! option is taken out instead.

use serde::Deserializer;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{EnumAccess, IntoDeserializer, VariantAccess, Visitor};

use super::error::{Kind, ReadError};

/// Blocks inside blocks that are made up at most.
const DEPTH_MAX: usize = 8;

/// What every text is made up as: it is also a size, a duration, a path and a regular expression.
const TEXT: &str = "0";

/// Makes up whatever is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Dummy {
    depth: usize,
}

impl Dummy {
    pub(crate) fn new() -> Self {
        Self { depth: 0 }
    }

    fn deeper(self) -> Result<Self, ReadError> {
        match self.depth < DEPTH_MAX {
            true => Ok(Self {
                depth: self.depth + 1,
            }),
            false => Err(ReadError::new(Kind::Told)),
        }
    }
}

impl IntoDeserializer<'_, ReadError> for Dummy {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Whatever a visitor has against a made-up value has been told about already.
fn told(_: ReadError) -> ReadError {
    ReadError::new(Kind::Told)
}

macro_rules! make_up {
    ($($method:ident => $visit:ident($($value:expr)?);)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            visitor.$visit($($value)?).map_err(told)
        }
    )*};
}

impl<'de> Deserializer<'de> for Dummy {
    type Error = ReadError;

    make_up! {
        deserialize_bool => visit_bool(false);
        deserialize_i8 => visit_i8(1);
        deserialize_i16 => visit_i16(1);
        deserialize_i32 => visit_i32(1);
        deserialize_i64 => visit_i64(1);
        deserialize_i128 => visit_i128(1);
        deserialize_u8 => visit_u8(1);
        deserialize_u16 => visit_u16(1);
        deserialize_u32 => visit_u32(1);
        deserialize_u64 => visit_u64(1);
        deserialize_u128 => visit_u128(1);
        deserialize_f32 => visit_f32(1.0);
        deserialize_f64 => visit_f64(1.0);
        deserialize_char => visit_char('0');
        deserialize_str => visit_str(TEXT);
        deserialize_string => visit_str(TEXT);
        deserialize_identifier => visit_str(TEXT);
        deserialize_bytes => visit_bytes(TEXT.as_bytes());
        deserialize_byte_buf => visit_bytes(TEXT.as_bytes());
        deserialize_option => visit_none();
        deserialize_unit => visit_unit();
        deserialize_ignored_any => visit_unit();
    }

    /// Nothing says what is wanted, so nothing can be made up.
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ReadError> {
        Err(ReadError::new(Kind::Told))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_unit().map_err(told)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self.deeper()?).map_err(told)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let nothing = SeqDeserializer::<_, ReadError>::new(std::iter::empty::<Self>());
        visitor.visit_seq(nothing).map_err(told)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let inner = self.deeper()?;
        let elements = SeqDeserializer::<_, ReadError>::new(std::iter::repeat_n(inner, len));
        visitor.visit_seq(elements).map_err(told)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let nothing = MapDeserializer::<_, ReadError>::new(std::iter::empty::<(&str, Self)>());
        visitor.visit_map(nothing).map_err(told)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let inner = self.deeper()?;
        let entries = fields.iter().map(|name| (*name, inner));
        visitor
            .visit_map(MapDeserializer::<_, ReadError>::new(entries))
            .map_err(told)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let Some(word) = variants.first() else {
            return Err(ReadError::new(Kind::Told));
        };
        let inner = self.deeper()?;
        visitor.visit_enum(First { word, inner }).map_err(told)
    }
}

/// The first of several choices.
struct First {
    word: &'static str,
    inner: Dummy,
}

impl<'de> EnumAccess<'de> for First {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: serde::de::DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self), ReadError> {
        let word: serde::de::value::StrDeserializer<'_, ReadError> = self.word.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'de> VariantAccess<'de> for First {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Ok(())
    }

    fn newtype_variant_seed<T: serde::de::DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, ReadError> {
        seed.deserialize(self.inner)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.inner.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.inner.deserialize_struct("", fields, visitor)
    }
}
