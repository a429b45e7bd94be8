//! The options `tls` and `auth`, shared by sink and source.

use std::{borrow::Cow, fmt, path::PathBuf};

use millstream_config::Secret;
use millstream_net::ClientFiles;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};

fn yes() -> bool {
    true
}

/// `true`, or a block of options.
#[derive(Clone, Debug)]
pub enum Tls {
    /// `true`: TLS with the system's certificates. `false`: no TLS.
    Switch(bool),
    /// TLS with these options.
    Block(TlsBlock),
}

impl Tls {
    /// Reads the files; `None` if TLS is off.
    pub fn read(&self) -> Option<Result<ClientFiles, String>> {
        match self {
            Self::Switch(false) => None,
            Self::Switch(true) => Some(ClientFiles::read(None, None, true)),
            Self::Block(tls) => {
                let file = |path: &Option<String>| path.as_ref().map(PathBuf::from);
                let own = file(&tls.cert).zip(file(&tls.key));
                Some(ClientFiles::read(file(&tls.ca), own, tls.verify))
            }
        }
    }
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

/// Encryption of connections.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsBlock {
    /// File with the trusted certificates. Default: the system's.
    #[serde(default)]
    pub ca: Option<String>,
    /// File with the client's certificate, for brokers that require one.
    #[serde(default)]
    pub cert: Option<String>,
    /// File with the key of the client's certificate.
    #[serde(default)]
    pub key: Option<String>,
    /// Whether the broker's certificate and name are verified.
    #[serde(default = "yes")]
    pub verify: bool,
}

/// Authentication.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// Mechanism.
    pub sasl: Mechanism,
    /// User name.
    pub username: String,
    /// Password.
    pub password: Secret,
}

/// Authentication mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// Name and password in plain text; use TLS.
    Plain,
    /// Challenge and response with SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// Challenge and response with SHA-512.
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

impl Mechanism {
    /// Kafka's name of the mechanism.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}
