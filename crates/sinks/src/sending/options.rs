//! The options `retry` and `batch`, which every sink that sends has.

use std::{borrow::Cow, fmt, time::Duration};

use millstream_config::{Period, Size};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

/// How a destination that fails is retried.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retry {
    /// Wait after the first failure; each further failure doubles it.
    pub(crate) first: Period,
    /// Longest wait between two attempts.
    pub(crate) max: Period,
    /// Time limit for a connection attempt, and for silence: the time in which a request is not answered and no byte moves in either
    /// direction.
    pub(crate) timeout: Period,
    /// Time after which records that the destination does not accept leave by `NAME.rejected`; `never` keeps retrying.
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

/// A time limit, or `never`, which is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GiveUp(pub(crate) Option<Duration>);

impl<'de> Deserialize<'de> for GiveUp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
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
        deserializer.deserialize_str(Text)
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

/// How small batches are gathered and sent together.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Batching {
    /// Bytes to gather before they are sent; 0 sends every batch on its own.
    pub(crate) size: Size,
    /// Records to gather before they are sent; 0 sets no limit.
    pub(crate) records: u32,
    /// Time that the first gathered batch waits for more when nothing else is ready.
    pub(crate) linger: Period,
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            size: Size::mib(1),
            records: 0,
            linger: Period::secs(0),
        }
    }
}

impl Batching {
    /// Whether enough is gathered to send it now, although more may be ready.
    pub(crate) fn is_full(&self, bytes: usize, records: usize) -> bool {
        bytes >= self.size.as_usize() || self.records > 0 && records >= self.records as usize
    }
}
