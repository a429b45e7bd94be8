//! The options `rename` and `set`: maps that keep the order of the configuration file.

use std::{borrow::Cow, collections::BTreeMap, fmt, iter, marker::PhantomData};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};

use crate::{record::FieldPath, template::Template};

/// The option `rename`: the fields and their new names. All fields are renamed at once, so two fields can swap their
/// names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rename {
    /// Pairs of the old and the new path.
    pub fields: Vec<(FieldPath, FieldPath)>,
}

/// The option `set`: fields and their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Set {
    /// The fields and their values, in the order of the configuration file.
    pub fields: Vec<(FieldPath, Setting)>,
}

/// The value that `set` gives a field: a value of any type, in which every text is a template.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// nil.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer below 0.
    Negative(i64),
    /// An integer that is not negative.
    Integer(u64),
    /// A float.
    Float(f64),
    /// A text. A text that is only `{.field}` keeps the type of the field. A text that is only a Unix time, such as
    /// `{time:unix}` or `{time:unix_ms}`, becomes an integer.
    Text(Template),
    /// A list.
    List(Vec<Setting>),
    /// A map.
    Map(Vec<(String, Setting)>),
}

impl Set {
    /// Returns all templates in the values.
    pub fn templates(&self) -> Vec<&Template> {
        let mut templates = Vec::new();
        for (_, setting) in &self.fields {
            setting.collect(&mut templates);
        }
        templates
    }
}

impl Setting {
    fn collect<'a>(&'a self, templates: &mut Vec<&'a Template>) {
        match self {
            Self::Text(template) => templates.push(template),
            Self::List(list) => list.iter().for_each(|one| one.collect(templates)),
            Self::Map(map) => map.iter().for_each(|(_, one)| one.collect(templates)),
            _ => {}
        }
    }
}

impl<'de> Deserialize<'de> for Rename {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a map of fields and their new names, such as `{ .msg: .message }`";
        let fields = deserializer.deserialize_map(InOrder(expected, PhantomData))?;
        Ok(Self { fields })
    }
}

impl<'de> Deserialize<'de> for Set {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a map of fields and their values, such as `{ .env: prod }`";
        let fields = deserializer.deserialize_map(InOrder(expected, PhantomData))?;
        Ok(Self { fields })
    }
}

/// Reads a map with values of type `T` and keeps the order of its pairs. The string describes the expected input in
/// error messages.
struct InOrder<T>(&'static str, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrder<T> {
    type Value = Vec<(FieldPath, T)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        pairs(map)
    }
}

/// Reads the pairs of a map in their order.
fn pairs<'de, M: MapAccess<'de>, K: Deserialize<'de>, V: Deserialize<'de>>(
    mut map: M,
) -> Result<Vec<(K, V)>, M::Error> {
    iter::from_fn(|| map.next_entry().transpose()).collect()
}

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Setting;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Setting, E> {
        Ok(Setting::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Setting, E> {
        Ok(Setting::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Setting, E> {
        Ok(Setting::Integer(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Setting, E> {
        let positive = u64::try_from(value).map(Setting::Integer);
        Ok(positive.unwrap_or(Setting::Negative(value)))
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<Setting, E> {
        Err(E::custom("no record holds an integer of more than 64 bits"))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Setting, E> {
        Ok(Setting::Float(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Setting, E> {
        Template::parse(text).map(Setting::Text).map_err(E::custom)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Setting, S::Error> {
        let all: Result<_, _> = iter::from_fn(|| list.next_element().transpose()).collect();
        all.map(Setting::List)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Setting, M::Error> {
        pairs(map).map(Setting::Map)
    }
}

impl JsonSchema for Rename {
    fn schema_name() -> Cow<'static, str> {
        "Rename".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        <BTreeMap<String, FieldPath>>::json_schema(generator)
    }
}

impl JsonSchema for Set {
    fn schema_name() -> Cow<'static, str> {
        "Set".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        <BTreeMap<String, Setting>>::json_schema(generator)
    }
}

impl JsonSchema for Setting {
    fn schema_name() -> Cow<'static, str> {
        "Setting".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let template = generator.subschema_for::<Template>();
        let one = generator.subschema_for::<Self>();
        json_schema!({
            "description": "A template, or a constant of any type, in which every text is a template",
            "anyOf": [
                template,
                { "type": ["number", "boolean", "null"] },
                { "type": "array", "items": one },
                { "type": "object", "additionalProperties": one },
            ],
        })
    }
}
