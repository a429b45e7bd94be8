//! One server, as described in the options or in a list that discovery has read.

use std::{borrow::Cow, fmt, net::Ipv6Addr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};

/// The port of the forward protocol.
const PORT: u16 = 24224;

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerOptions {
    /// `host:port`.
    pub(super) address: String,
    /// Share of the chunks relative to the weights of the other servers.
    pub(super) weight: u32,
    /// Whether the server gets chunks only while other servers have failed.
    pub(super) standby: bool,
}

/// A server with an address and options.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Server")]
struct ServerMap {
    /// Address: `host[:24224]`.
    address: String,
    /// Share of the chunks relative to the weights of the other servers; a server with weight 0 gets no chunks.
    #[serde(default = "weight")]
    weight: u32,
    /// Whether the server is a standby: it gets chunks only while it has to replace the weight of servers that have failed.
    #[serde(default)]
    standby: bool,
}

/// The default weight, as in fluentd.
pub(super) const WEIGHT: u32 = 60;

fn weight() -> u32 {
    WEIGHT
}

impl<'de> Deserialize<'de> for ServerOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = ServerOptions;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"host[:port]\" or { address, weight, standby }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ServerOptions, E> {
                Ok(ServerOptions {
                    address: address(text).map_err(E::custom)?,
                    weight: weight(),
                    standby: false,
                })
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<ServerOptions, M::Error> {
                let map = ServerMap::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(ServerOptions {
                    address: address(&map.address).map_err(de::Error::custom)?,
                    weight: map.weight,
                    standby: map.standby,
                })
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for ServerOptions {
    fn schema_name() -> Cow<'static, str> {
        "ServerOptions".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "string" }, generator.subschema_for::<ServerMap>()] })
    }
}

/// Checks `host[:port]` and adds the default port if there is none.
pub(super) fn address(text: &str) -> Result<String, String> {
    if text.contains("://") {
        return Err(format!(
            "a server is host[:port] without a scheme, not `{text}`"
        ));
    }
    if let Ok(bare) = text.parse::<Ipv6Addr>() {
        return Ok(format!("[{bare}]:{PORT}"));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (text, ""),
    };
    let known = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    if host.is_empty() || text.contains(char::is_whitespace) || !(known(port) || host == text) {
        return Err(format!(
            "`{text}` is not a server: expected host[:port], such as 10.0.0.1:{PORT}"
        ));
    }
    Ok(if host == text {
        format!("{host}:{PORT}")
    } else {
        text.to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn a_server_without_a_port_gets_the_default_port() {
        assert_eq!(address("10.0.0.1").unwrap(), "10.0.0.1:24224");
        assert_eq!(address("agg.example:5000").unwrap(), "agg.example:5000");
        assert_eq!(address("::1").unwrap(), "[::1]:24224");
        assert_eq!(address("[::1]").unwrap(), "[::1]:24224");
        assert_eq!(address("[::1]:99").unwrap(), "[::1]:99");
    }

    #[test]
    fn text_that_is_not_a_server_is_refused() {
        for text in ["", ":24224", "a:b", "a:0", "a:70000", "tcp://a", "a b"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
