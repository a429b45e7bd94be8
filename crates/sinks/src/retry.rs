//! The option `retry`, the same for every sink that sends.

use std::{borrow::Cow, fmt, time::Duration};

use millstream_config::Period;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

/// How a destination that fails is tried again.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retry {
    /// The wait after the first failure; each further one doubles it.
    pub(crate) first: Period,
    /// No wait is longer.
    pub(crate) max: Period,
    /// How long it may take to accept a connection or to answer.
    pub(crate) timeout: Period,
    /// After how long records that it does not take leave by `NAME.rejected`; `never`: they wait.
    pub(crate) give_up: GiveUp,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            first: Period::secs(1),
            max: Period::secs(60),
            timeout: Period::secs(30),
            give_up: GiveUp(None),
        }
    }
}

/// `never`, or after how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GiveUp(pub(crate) Option<Duration>);

impl<'de> Deserialize<'de> for GiveUp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = GiveUp;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`never` or a duration such as 6h")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<GiveUp, E> {
                if text == "never" {
                    return Ok(GiveUp(None));
                }
                let period: Period = text.parse().map_err(E::custom)?;
                Ok(GiveUp(Some(period.as_duration())))
            }
        }
        deserializer.deserialize_str(Read)
    }
}

impl JsonSchema for GiveUp {
    fn schema_name() -> Cow<'static, str> {
        "GiveUp".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "const": "never" }, generator.subschema_for::<Period>()] })
    }
}
