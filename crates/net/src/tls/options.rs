//! The option `tls` as it is written.

use std::{borrow::Cow, fmt, path::PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor},
};

/// The option `tls`: off, `true` (a client with the system's roots), or a block. A name of the top-level `tls` has
/// become its block before this is read.
#[derive(Clone, Debug, Default)]
pub enum Tls {
    /// Left out, or `false`.
    #[default]
    Off,
    /// `true`.
    System,
    /// A block, its own or that of the name.
    Block(Box<Block>),
}

/// Certificates and how they are used. One block may serve listeners and clients: each takes what concerns it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "TlsBlock")]
pub struct Block {
    /// The file of the own certificate and those between it and the root, in PEM. Listeners need it.
    pub cert: Option<PathBuf>,
    /// The file of its private key, in PEM, not encrypted.
    pub key: Option<PathBuf>,
    /// A file of root certificates in PEM, by which the other end is checked. Clients without it use those of the system.
    pub ca: Option<PathBuf>,
    /// Listeners: whether clients show a certificate, `none`, `optional` or `required`; `required` as soon as `ca` is
    /// given.
    pub client_auth: Option<ClientAuth>,
    /// Clients: the name that the server's certificate must have, if it is not that of the address.
    pub server_name: Option<String>,
    /// Clients: whether the server's certificate is checked.
    pub verify: bool,
    /// The oldest version that is spoken, `"1.2"` or `"1.3"`.
    pub min_version: MinVersion,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            cert: None,
            key: None,
            ca: None,
            client_auth: None,
            server_name: None,
            verify: true,
            min_version: MinVersion::Tls12,
        }
    }
}

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// They are not asked.
    None,
    /// They are asked; one that they show must be good.
    Optional,
    /// Without a good one there is no connection.
    Required,
}

/// The oldest version that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum MinVersion {
    /// TLS 1.2: fluentd offers no other by itself.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}

impl<'de> Deserialize<'de> for MinVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = MinVersion;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"1.2\" or \"1.3\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<MinVersion, E> {
                match text {
                    "1.2" => Ok(MinVersion::Tls12),
                    "1.3" => Ok(MinVersion::Tls13),
                    _ => Err(E::custom("possible are \"1.2\" and \"1.3\"")),
                }
            }
            // Without quotes YAML makes a number of it.
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<MinVersion, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl JsonSchema for MinVersion {
    fn schema_name() -> Cow<'static, str> {
        "MinVersion".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["1.2", "1.3"] })
    }
}

impl<'de> Deserialize<'de> for Tls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Tls;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a name of the top-level `tls`, a block such as { cert, key }, or `true`",
                )
            }
            fn visit_bool<E: de::Error>(self, on: bool) -> Result<Tls, E> {
                Ok(if on { Tls::System } else { Tls::Off })
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Tls, M::Error> {
                let block = Block::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Tls::Block(Box::new(block)))
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
        let block = generator.subschema_for::<Block>();
        json_schema!({
            "description": "TLS on every stream socket of the node: a name of the top-level `tls`, a block, or `true` (clients: the roots of the system).",
            "anyOf": [{ "type": "string" }, { "type": "boolean" }, block]
        })
    }
}
