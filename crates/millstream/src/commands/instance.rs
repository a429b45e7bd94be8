//! The running instance that a command talks to.

use std::{
    io::{ErrorKind, Read},
    net::SocketAddr,
    path::PathBuf,
};

use clap::Args;
use millstream_config::{Api, Secret, read_file};
use millstream_net::ClientFiles;
use serde_json::Value;

use crate::{
    client::{Answer, Client},
    config, exit, page,
};

/// The maximum size of a file with a token in bytes.
const TOKEN_FILE_MAX: u64 = 1 << 16;
/// The environment variable that holds a token.
const TOKEN: &str = "MILLSTREAM_TOKEN";

/// The maximum number of bytes that are read of an answer that refuses a request.
const REFUSAL_MAX: u64 = 64 << 10;

/// The running instance, by its configuration or address.
#[derive(Args)]
pub struct Instance {
    /// Configuration files and directories of the instance; only `api.listen` and `api.tls` are taken from them.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    #[command(flatten)]
    remote: Remote,
}

/// The options for an instance at another address: address, token and certificates.
#[derive(Args)]
pub struct Remote {
    /// The address of the instance, instead of the configured one: `ADDRESS:PORT`, or a URL (`https://HOST:PORT`).
    #[arg(long, visible_alias = "url", value_name = "URL")]
    api: Option<String>,
    /// The file with the token of the instance. Default: the environment variable MILLSTREAM_TOKEN.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The roots of the instance's certificate. Default: those of the system.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The client certificate to present.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key of the client certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// The address of an instance, and whether it needs TLS.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    address: String,
    is_secured: bool,
}

impl Instance {
    /// A client of the instance. On failure prints why, and returns the exit code.
    pub fn client(&self) -> Result<Client, u8> {
        self.remote.client(&self.config)
    }
}

impl Remote {
    /// A client of the instance with this configuration. On failure prints why, and returns the exit code.
    pub fn client(&self, config: &[PathBuf]) -> Result<Client, u8> {
        let place = match &self.api {
            Some(api) => Place::of(api),
            None => configured(config)?,
        };
        let fail = |text: String| page::complain(&text, exit::FAILED);
        let tls = match place.is_secured {
            true => {
                let own = self.cert.clone().zip(self.key.clone());
                let files = ClientFiles::read(self.ca.clone(), own, true);
                Some(files.map_err(fail)?.current())
            }
            false => None,
        };
        let token = self.token().map_err(fail)?;
        if token.is_some() && self.api.as_ref().is_some_and(|api| place.exposes(api)) {
            let address = &place.address;
            return Err(fail(format!(
                "the token would pass the network to {address} without encryption: write https://{address}, or http://{address} if it may"
            )));
        }
        Ok(Client {
            address: place.address,
            tls,
            token,
        })
    }

    fn token(&self) -> Result<Option<Secret>, String> {
        let text = match &self.token_file {
            Some(file) => {
                let failed =
                    |why: String| format!("cannot read the token in {}: {why}", file.display());
                let bytes = read_file(file, TOKEN_FILE_MAX);
                let bytes = bytes.map_err(|error| failed(error.to_string()))?;
                let text = String::from_utf8(bytes);
                Some(text.map_err(|_| failed("it is not UTF-8".to_owned()))?)
            }
            None => std::env::var(TOKEN).ok(),
        };
        let text = text.map(|text| text.trim().to_owned());
        match (text.filter(|text| !text.is_empty()), &self.token_file) {
            (Some(text), _) if text.chars().any(char::is_control) => {
                Err("the token has more than one line".to_owned())
            }
            (None, Some(file)) => Err(format!("there is no token in {}", file.display())),
            (text, _) => Ok(text.map(Secret::new)),
        }
    }
}

/// The address of the instance with this configuration. On failure prints why, and returns the exit code.
fn configured(config: &[PathBuf]) -> Result<Place, u8> {
    let is_default = config == [PathBuf::from("/etc/millstream")];
    let api = match is_default && !config[0].exists() {
        true => Api::default(),
        false => config::api(config).map_err(|problems| config::complain(&problems))?,
    };
    Place::first(&api).ok_or_else(|| {
        let text = "`api.listen` is empty there: the instance cannot be asked";
        page::complain(text, exit::FAILED)
    })
}

impl Place {
    /// Parses a URL or an address.
    fn of(url: &str) -> Self {
        let (is_secured, rest) = match url.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, url.strip_prefix("http://").unwrap_or(url)),
        };
        let address = rest.trim_end_matches('/');
        let has_port = address
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        let address = match (has_port, is_secured) {
            (true, _) => address.to_owned(),
            (false, true) => format!("{address}:443"),
            (false, false) => format!("{address}:8687"),
        };
        Self {
            address,
            is_secured,
        }
    }

    /// Whether a token would be sent to another machine without encryption, and `url` does not explicitly begin with
    /// `http://`.
    fn exposes(&self, url: &str) -> bool {
        !self.is_secured && !is_local(&self.address) && !url.starts_with("http://")
    }

    /// Returns the first loopback address in `api.listen`, or the first address if no loopback address is listed. `None` if
    /// `api.listen` is empty.
    fn first(api: &Api) -> Option<Self> {
        let mut all = api.listen.iter();
        let local = all.clone().find(|address| is_local(address));
        let is_secured = local.is_none() && api.tls.is_some();
        // An instance that listens on all addresses can be reached on loopback.
        let address = local.or_else(|| all.next())?;
        let all = [("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")];
        let reached = all.iter().find_map(|(any, own)| {
            let port = address.strip_prefix(any)?;
            Some(format!("{own}{port}"))
        });
        Some(Self {
            address: reached.unwrap_or_else(|| address.clone()),
            is_secured,
        })
    }
}

/// Whether an address is a loopback address.
fn is_local(address: &str) -> bool {
    let socket = address.parse::<SocketAddr>();
    address.starts_with("localhost:") || socket.is_ok_and(|it| it.ip().is_loopback())
}

impl Client {
    /// Requests a page, and returns its JSON.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        match self.ask("GET", path)? {
            (200, body) => self.parse(&body),
            (code, body) => Err(self.refused(code, &body)),
        }
    }

    /// Sends a POST without a body, and returns the JSON of the answer. An answer that reports a failure of the
    /// operation is returned as well.
    pub fn post(&self, path: &str) -> Result<Value, String> {
        match self.ask("POST", path)? {
            (200 | 202 | 409 | 422, body) => self.parse(&body),
            (code, body) => Err(self.refused(code, &body)),
        }
    }

    /// Sends a GET, and returns the answer. The caller reads the body as it arrives.
    pub fn stream(&self, path: &str) -> Result<Answer, String> {
        let answer = self
            .open("GET", path)
            .map_err(|error| self.lost("GET", &error))?;
        match answer.code {
            200 => Ok(answer),
            code => {
                let mut body = String::new();
                let _ = answer.body.take(REFUSAL_MAX).read_to_string(&mut body);
                Err(self.refused(code, &body))
            }
        }
    }

    fn ask(&self, method: &str, path: &str) -> Result<(u16, String), String> {
        self.request(method, path)
            .map_err(|error| self.lost(method, &error))
    }

    fn lost(&self, method: &str, error: &std::io::Error) -> String {
        // A read that times out fails with `WouldBlock`.
        if error.kind() == ErrorKind::WouldBlock {
            let but = match method {
                "GET" => "",
                _ => "; it may still do what it was asked for",
            };
            return format!(
                "the instance at {self} takes connections and does not answer in time{but}"
            );
        }
        format!(
            "no instance answers at {self}: {error}; is `millstream run` running, and is this its `api.listen`?"
        )
    }

    fn refused(&self, code: u16, body: &str) -> String {
        match code {
            404 | 405 if body.trim().is_empty() => {
                format!("the instance at {self} is of a version that cannot do this")
            }
            _ => format!("{self} answers {code}: {}", body.trim()),
        }
    }

    fn parse(&self, body: &str) -> Result<Value, String> {
        serde_json::from_str(body)
            .map_err(|error| format!("{self} answers, but not as Millstream does: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use millstream_config::Node;

    use super::*;

    #[test]
    fn a_url_names_host_port_and_encryption() {
        for (url, address, is_secured) in [
            ("127.0.0.1:1", "127.0.0.1:1", false),
            ("http://agg:1/", "agg:1", false),
            ("https://agg:1", "agg:1", true),
            ("https://agg", "agg:443", true),
            ("agg", "agg:8687", false),
            ("[::1]:1", "[::1]:1", false),
        ] {
            let place = Place {
                address: address.to_owned(),
                is_secured,
            };
            assert_eq!(Place::of(url), place, "{url}");
        }
    }

    #[test]
    fn the_address_on_loopback_is_preferred() {
        for (api, address, is_secured) in [
            (
                "{ listen: [\"10.0.0.1:1\", \"127.0.0.1:2\"], tls: mesh }",
                "127.0.0.1:2",
                false,
            ),
            ("{ listen: \"0.0.0.0:1\" }", "127.0.0.1:1", false),
            ("{ listen: \"[::]:1\", tls: mesh }", "[::1]:1", true),
            ("{ listen: \"10.0.0.0:1\" }", "10.0.0.0:1", false),
        ] {
            let api: Api = Node::parse("t", api).unwrap().read().unwrap();
            let place = Place::first(&api).unwrap();
            assert_eq!((&*place.address, place.is_secured), (address, is_secured));
        }
    }

    #[test]
    fn a_token_is_sent_over_the_network_in_clear_text_only_on_demand() {
        for (url, exposes) in [
            ("agg:1", true),
            ("10.0.0.1:1", true),
            ("http://agg:1", false),
            ("https://agg:1", false),
            ("localhost:1", false),
            ("127.0.0.1:1", false),
            ("[::1]:1", false),
        ] {
            assert_eq!(Place::of(url).exposes(url), exposes, "{url}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let remote = |api: &str| Remote {
            api: Some(api.to_owned()),
            token_file: Some(file.clone()),
            ca: None,
            cert: None,
            key: None,
        };
        assert_eq!(remote("agg:1").client(&[]).err(), Some(exit::FAILED));
        assert!(remote("http://agg:1").client(&[]).is_ok());
        std::fs::write(&file, "\n").unwrap();
        let empty = remote("http://agg:1").token().err().unwrap();
        assert!(empty.contains("no token in"), "{empty}");
    }

    #[test]
    fn an_instance_that_does_not_answer_in_time_is_not_reported_as_missing() {
        let client = Client {
            address: "agg:1".to_owned(),
            tls: None,
            token: None,
        };
        let late = |method| client.lost(method, &ErrorKind::WouldBlock.into());
        assert!(late("GET").ends_with("does not answer in time"));
        assert!(late("POST").ends_with("may still do what it was asked for"));
        let absent = client.lost("GET", &ErrorKind::ConnectionRefused.into());
        assert!(absent.contains("is `millstream run` running"), "{absent}");
    }
}
