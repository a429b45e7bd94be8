//! The option `listen`: addresses as URLs, and the schemes that a source supports.

use std::{borrow::Cow, fmt, path::PathBuf, str::FromStr};

use millstream_config::{Node, Problem};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

mod hint;

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `tcp://ADDRESS:PORT`: a stream.
    Tcp,
    /// `udp://ADDRESS:PORT`: datagrams.
    Udp,
    /// `unix:///PATH`: a stream.
    Unix,
    /// `unixgram:///PATH`: datagrams, as for `/dev/log`.
    Unixgram,
    /// `relp://ADDRESS:PORT`: a TCP stream that speaks RELP.
    Relp,
}

/// The schemes that a source supports, each with its default port; `None` if a URL must have a port.
pub type Takes = &'static [(Scheme, Option<u16>)];

impl Scheme {
    const ALL: [Self; 5] = [Self::Tcp, Self::Udp, Self::Unix, Self::Unixgram, Self::Relp];

    /// Its name in a URL.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Unix => "unix",
            Self::Unixgram => "unixgram",
            Self::Relp => "relp",
        }
    }

    fn is_path(self) -> bool {
        matches!(self, Self::Unix | Self::Unixgram)
    }

    /// The syntax of a URL, for messages.
    fn form(self) -> String {
        let name = self.name();
        match self.is_path() {
            true => format!("{name}:///PATH"),
            false => format!("{name}://ADDRESS:PORT"),
        }
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    pub(crate) scheme: Scheme,
    pub(crate) at: At,
}

/// The part of an address after the scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// A host, with brackets if it is an IPv6 address, and a port.
    Host(String, Option<u16>),
    /// A name in the file system.
    Path(PathBuf),
}

impl Listen {
    /// The scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Checks the schemes of a list, and returns the addresses with their default ports. Adds problems to `problems`, at `listen`.
    pub(crate) fn check(
        all: &[Self],
        takes: Takes,
        options: &Node,
        problems: &mut Vec<Problem>,
    ) -> Vec<Self> {
        if all.is_empty() {
            problems.push(options.problem_at("listen", "`listen` names no address"));
        }
        let mut checked = Vec::new();
        for (number, listen) in all.iter().enumerate() {
            match listen.taken(takes) {
                Ok(listen) if checked.contains(&listen) && !listen.is_any_port() => {
                    problems.push(problem(
                        options,
                        number,
                        format!("`{listen}` is in the list already"),
                    ))
                }
                Ok(listen) => checked.push(listen),
                Err(why) => problems.push(problem(options, number, why)),
            }
        }
        checked
    }

    fn is_any_port(&self) -> bool {
        matches!(self.at, At::Host(_, Some(0)))
    }

    fn taken(&self, takes: Takes) -> Result<Self, String> {
        let Some((_, default)) = takes.iter().find(|(scheme, _)| *scheme == self.scheme) else {
            let forms: Vec<_> = takes.iter().map(|(scheme, _)| scheme.form()).collect();
            return Err(format!(
                "`{self}` is not supported here: use one of {}",
                forms.join(", ")
            ));
        };
        let at = match (&self.at, default) {
            (At::Host(_, None), None) => {
                return Err(format!("`{self}` names no port: write {self}:PORT"));
            }
            (At::Host(host, None), default) => At::Host(host.clone(), *default),
            (at, _) => at.clone(),
        };
        Ok(Self {
            scheme: self.scheme,
            at,
        })
    }
}

/// A problem with the element `number` of the list, or with the option if it is not a list.
fn problem(options: &Node, number: usize, text: String) -> Problem {
    options.problem_at(&format!("listen.{number}"), text)
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Scheme::ALL.into_iter().find_map(|scheme| {
            let rest = text.strip_prefix(scheme.name())?.strip_prefix("://")?;
            Some((scheme, rest))
        });
        let Some((scheme, rest)) = found else {
            return Err(hint::no_address(text));
        };
        let at = if scheme.is_path() {
            path(text, rest)?
        } else {
            host(text, rest)?
        };
        Ok(Self { scheme, at })
    }
}

fn path(text: &str, path: &str) -> Result<At, String> {
    if path.is_empty() {
        return Err(format!(
            "`{text}` names no path: write {text}/run/NAME.sock"
        ));
    }
    Ok(At::Path(path.into()))
}

fn host(text: &str, address: &str) -> Result<At, String> {
    // In an IPv6 address the port follows the closing bracket.
    let behind = address.rsplit(']').next().unwrap_or(address);
    let (host, port) = match behind.rsplit_once(':') {
        Some((_, port)) => {
            let number = port.parse::<u16>();
            let number = number.map_err(|_| {
                format!("`{port}` in `{text}` is not a port: write a number from 1 to 65535")
            })?;
            let host = address.get(..address.len() - port.len() - 1);
            (host.unwrap_or_default(), Some(number))
        }
        None => (address, None),
    };
    if matches!(host, "" | "*") {
        return Err(hint::no_address(text));
    }
    Ok(At::Host(host.to_owned(), port))
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme.name();
        match &self.at {
            At::Host(host, Some(port)) => write!(f, "{scheme}://{host}:{port}"),
            At::Host(host, None) => write!(f, "{scheme}://{host}"),
            At::Path(path) => write!(f, "{scheme}://{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Address)
    }
}

/// Reads an address. A bare number is an error that suggests the full address.
struct Address;

impl Visitor<'_> for Address {
    type Value = Listen;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address such as \"tcp://0.0.0.0:24224\" or \"unix:///run/NAME.sock\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Listen, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, port: u64) -> Result<Listen, E> {
        self.visit_str(&port.to_string())
    }
}

impl JsonSchema for Listen {
    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "The protocol and the address, such as `tcp://ADDRESS:PORT` or `unix:///PATH`.",
            "examples": ["tcp://0.0.0.0:24224", "unix:///run/millstream.sock"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKES: Takes = &[
        (Scheme::Tcp, Some(24224)),
        (Scheme::Relp, None),
        (Scheme::Unix, None),
    ];

    fn checked(yaml: &str) -> Result<Vec<String>, Vec<String>> {
        let options = Node::parse("t.yaml", yaml).unwrap();
        let all: Vec<Listen> = options.find("listen").unwrap().read().unwrap();
        let mut problems = Vec::new();
        let all = Listen::check(&all, TAKES, &options, &mut problems);
        match problems.is_empty() {
            true => Ok(all.iter().map(Listen::to_string).collect()),
            false => Err(problems
                .iter()
                .map(|p| format!("{} {}", p.place.column, p.message))
                .collect()),
        }
    }

    #[test]
    fn a_url_without_a_port_gets_the_default_port_of_its_scheme() {
        let all = checked(
            "listen: ['tcp://0.0.0.0', 'tcp://[::]', 'tcp://[::1]:7', 'relp://a:1', 'unix:///x y']",
        );
        let wanted = [
            "tcp://0.0.0.0:24224",
            "tcp://[::]:24224",
            "tcp://[::1]:7",
            "relp://a:1",
            "unix:///x y",
        ];
        assert_eq!(all.unwrap(), wanted);
    }

    #[test]
    fn each_invalid_address_is_reported_with_its_column() {
        assert_eq!(
            checked("listen: ['tcp://a', 'udp://a:1', 'relp://a', 'tcp://a:24224']").unwrap_err(),
            [
                "21 `udp://a:1` is not supported here: use one of tcp://ADDRESS:PORT, relp://ADDRESS:PORT, unix:///PATH",
                "34 `relp://a` names no port: write relp://a:PORT",
                "46 `tcp://a:24224` is in the list already",
            ]
        );
        assert_eq!(
            checked("listen: []").unwrap_err(),
            ["9 `listen` names no address"]
        );
    }

    #[test]
    fn an_invalid_address_is_an_error() {
        for text in [
            "",
            "*:1",
            "tcp://*",
            "a:1",
            "http://a:1",
            "tcp://",
            "tcp://:1",
            "tcp://a:b",
            "tcp://a:99999",
            "unix://",
            "tcp:/a:1",
        ] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}
