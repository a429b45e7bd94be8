//! The option `tls` as written in the configuration.

use std::{borrow::Cow, fmt, path::PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor},
};

/// The option `tls`: off, `true` (a client with the system's roots), or a block. The loader has replaced the name of a
/// top-level `tls` block by the block.
#[derive(Clone, Debug, Default)]
pub enum Tls {
    /// Missing, or `false`.
    #[default]
    Off,
    /// `true`.
    System,
    /// A block, the node's own or a named one.
    Block(Box<Block>),
}

/// Certificates and their use. A block may serve both listeners and clients; each uses the options that concern it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "TlsBlock")]
pub struct Block {
    /// PEM file with the certificate of this listener or client, and its intermediates. Required for listeners.
    pub cert: Option<PathBuf>,
    /// PEM file with the unencrypted private key.
    pub key: Option<PathBuf>,
    /// PEM file with the roots that the peer's certificate is verified against. Default for clients: the system's
    /// roots.
    pub ca: Option<PathBuf>,
    /// Listeners: whether clients must present a certificate: `none`, `optional` or `required`. Default: `required` if `ca`
    /// is set, otherwise `none`.
    pub client_auth: Option<ClientAuth>,
    /// Clients: name in the server's certificate, if it differs from the address.
    pub server_name: Option<String>,
    /// Clients: whether the server's certificate is verified.
    pub verify: bool,
    /// Minimum TLS version, `"1.2"` or `"1.3"`.
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

/// Client certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// Clients are not asked for a certificate.
    None,
    /// Clients are asked; a certificate that they present must be valid.
    Optional,
    /// Clients must present a valid certificate.
    Required,
}

/// Minimum TLS version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum MinVersion {
    /// TLS 1.2, the default, because fluentd offers no newer version by default.
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
                    _ => Err(E::custom("must be \"1.2\" or \"1.3\"")),
                }
            }
            // Without quotes, the version is a number in YAML.
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
