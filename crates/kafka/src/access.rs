//! The options `tls` and `auth`, the same for the sink and the source.

use std::{borrow::Cow, fmt};

use millstream_config::Secret;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};

fn yes() -> bool {
    true
}

/// `true`, or a block.
#[derive(Clone, Debug)]
pub enum Tls {
    /// With the certificates that the system trusts, or not at all.
    Switch(bool),
    /// With these.
    Block(TlsBlock),
}

impl<'de> Deserialize<'de> for Tls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Tls;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, or { ca, cert, key, verify }")
            }
            fn visit_bool<E>(self, switch: bool) -> Result<Tls, E> {
                Ok(Tls::Switch(switch))
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Tls, M::Error> {
                let block = de::value::MapAccessDeserializer::new(map);
                Ok(Tls::Block(TlsBlock::deserialize(block)?))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl JsonSchema for Tls {
    fn schema_name() -> Cow<'static, str> {
        "Tls".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "boolean" }, generator.subschema_for::<TlsBlock>()] })
    }
}

/// How connections are encrypted.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsBlock {
    /// A file with the certificates that are trusted. Default: those of the system.
    #[serde(default)]
    pub ca: Option<String>,
    /// A file with our certificate, for brokers that want one.
    #[serde(default)]
    pub cert: Option<String>,
    /// A file with its key.
    #[serde(default)]
    pub key: Option<String>,
    /// Whether the broker's certificate and name are checked.
    #[serde(default = "yes")]
    pub verify: bool,
}

/// Who we are.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// How it is shown.
    pub sasl: Mechanism,
    /// The name.
    pub username: String,
    /// The password.
    pub password: Secret,
}

/// How a name and its password are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// As they are; use TLS.
    Plain,
    /// As a challenge and its answer, SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// As a challenge and its answer, SHA-512.
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

impl Mechanism {
    /// The name that brokers have for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}
