//! The option `auth`: which senders may send, and with which key.

use std::{borrow::Cow, collections::BTreeMap, net::IpAddr, str::FromStr};

use millstream_config::{Node, Problem, Secret};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

/// Authentication of senders: Fluentd's `<security>`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Auth {
    /// Name of this server in the handshake; a sender refuses a server that has the sender's own name. Default: the name of the
    /// machine.
    #[serde(default)]
    pub(super) hostname: Option<String>,
    /// Key that senders must have.
    #[serde(default)]
    shared_key: Option<Secret>,
    /// User names and passwords. If there are any, senders must log in as one of them, in addition to having the key.
    #[serde(default)]
    users: BTreeMap<String, Secret>,
    /// Rules for networks of senders; the first rule whose network contains the address of a sender applies.
    #[serde(default)]
    clients: Vec<Client>,
    /// Whether senders outside the networks of `clients` may send. Senders on unix sockets are in no network. Default: `true`.
    #[serde(default = "anonymous")]
    anonymous: bool,
}

/// The default of Fluentd's `allow_anonymous_source`.
fn anonymous() -> bool {
    true
}

/// A rule for a network of senders.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Client {
    /// Address, or network such as `10.1.0.0/16`.
    network: Network,
    /// Key that these senders must have. Default: the `shared_key` of `auth`.
    #[serde(default)]
    shared_key: Option<Secret>,
    /// Users that may send from this network. Default: all.
    #[serde(default)]
    users: Vec<String>,
}

/// The proofs required of a sender.
#[derive(Clone, Copy)]
pub(super) struct Rule<'a> {
    pub(super) key: &'a Secret,
    users: &'a [String],
}

impl Auth {
    /// Reports options that can be parsed but make no sense; paths are relative to `options`.
    pub(super) fn check(&self, options: &Node, problems: &mut Vec<Problem>) {
        let mut refuse =
            |path: &str, text: &str| problems.push(options.problem_at(path, text.to_owned()));
        let with_own_key = self
            .clients
            .iter()
            .all(|client| client.shared_key.is_some());
        if self.shared_key.is_none() && (self.anonymous || !with_own_key) {
            let text = "`auth` needs a `shared_key`: a text that senders have too";
            refuse("auth", text);
        }
        if !self.anonymous && self.clients.is_empty() {
            let text = "with `anonymous: false` no sender is allowed: name networks in `clients`";
            refuse("auth.anonymous", text);
        }
        let is_empty = |key: &Option<Secret>| key.as_ref().is_some_and(|k| k.expose().is_empty());
        if is_empty(&self.shared_key) {
            refuse(
                "auth.shared_key",
                "the key is empty, so it protects nothing",
            );
        }
        if self.hostname.as_deref() == Some("") {
            refuse("auth.hostname", "the name is empty: senders need one");
        }
        for (number, client) in self.clients.iter().enumerate() {
            let path = |option: &str| format!("auth.clients.{number}.{option}");
            if is_empty(&client.shared_key) {
                refuse(
                    &path("shared_key"),
                    "the key is empty, so it protects nothing",
                );
            }
            for user in &client.users {
                if !self.users.contains_key(user) {
                    refuse(&path("users"), &format!("no user is called `{user}`"));
                }
            }
        }
    }

    /// The proofs required of a sender at this address; None: it may not send.
    pub(super) fn rule(&self, ip: Option<IpAddr>) -> Option<Rule<'_>> {
        let client = self
            .clients
            .iter()
            .find(|c| ip.is_some_and(|ip| c.network.holds(ip)));
        if client.is_none() && !self.anonymous {
            return None;
        }
        let own = client.and_then(|client| client.shared_key.as_ref());
        Some(Rule {
            key: own.or(self.shared_key.as_ref())?,
            users: client.map_or(&[], |client| &client.users),
        })
    }

    /// Whether senders must log in as users.
    pub(super) fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    /// The password of a user, if the user exists and the rule allows the user.
    pub(super) fn password(&self, rule: Rule<'_>, user: &[u8]) -> Option<&Secret> {
        let name = std::str::from_utf8(user).ok()?;
        let is_let_in = rule.users.is_empty() || rule.users.iter().any(|known| known == name);
        self.users.get(name).filter(|_| is_let_in)
    }
}

/// An address, and the number of its leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    fn holds(self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let differing = u32::from(own) ^ u32::from(ip);
                differing.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let differing = u128::from(own) ^ u128::from(ip);
                differing.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not an address or a network: write 10.1.2.3 or 10.1.0.0/16");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most),
            None => Some(most),
        };
        let bits = bits.ok_or_else(wrong)?;
        Ok(Self { address, bits })
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Network {
    fn schema_name() -> Cow<'static, str> {
        "Network".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "examples": ["10.1.0.0/16", "2001:db8::1"] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_the_addresses_with_its_first_bits() {
        let holds = |network: &str, ip: &str| {
            let network: Network = network.parse().unwrap();
            network.holds(ip.parse().unwrap())
        };
        assert!(holds("10.1.0.0/16", "10.1.255.3"));
        assert!(!holds("10.1.0.0/16", "10.2.0.1"));
        assert!(holds("10.1.2.3", "10.1.2.3") && !holds("10.1.2.3", "10.1.2.2"));
        assert!(holds("0.0.0.0/0", "255.1.2.3") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("2001:db8::/33", "2001:db8:7fff::1"));
        assert!(!holds("2001:db8::/33", "2001:db8:8000::1"));
        assert!(holds("::/0", "::1"));
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/",
            "a/8",
            "::/129",
            "10.0.0.0/-1",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
