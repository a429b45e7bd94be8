//! The options of an edit: maps in the order of the file.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};

use crate::{record::FieldPath, template::Template};

/// The option `rename`: the fields and their new names, all renamed at once, so two fields can swap their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rename {
    /// From and to.
    pub fields: Vec<(FieldPath, FieldPath)>,
}

/// The option `set`: fields and their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Set {
    /// In the order of the file.
    pub fields: Vec<(FieldPath, Setting)>,
}

/// The value of a field: a constant, in which every text is a template.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// nil.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer below 0.
    Negative(i64),
    /// Any other integer.
    Integer(u64),
    /// A float.
    Float(f64),
    /// A text. If it is a single `{.field}`, `{time:unix}` or another number of the time, the value keeps its type.
    Text(Template),
    /// A list.
    List(Vec<Setting>),
    /// A map.
    Map(Vec<(String, Setting)>),
}

impl Set {
    /// Its templates.
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
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Rename;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of fields and their new names, such as `{ .msg: .message }`")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Rename, M::Error> {
                let mut fields = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    fields.push(pair);
                }
                Ok(Rename { fields })
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl<'de> Deserialize<'de> for Set {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Set;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of fields and their values, such as `{ .env: prod }`")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Set, M::Error> {
                let mut fields = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    fields.push(pair);
                }
                Ok(Set { fields })
            }
        }
        deserializer.deserialize_map(InOrder)
    }
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
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            all.push(one);
        }
        Ok(Setting::List(all))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Setting, M::Error> {
        let mut all = Vec::new();
        while let Some(pair) = map.next_entry()? {
            all.push(pair);
        }
        Ok(Setting::Map(all))
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
