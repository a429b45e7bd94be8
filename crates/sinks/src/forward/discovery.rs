//! The list of servers: those that the options name, and those that a watched file or a DNS name lists.
//!
//! Discovery promises that a list that cannot be read (a missing or wrong file, a name server that does not answer) changes
//! nothing: the last good list stays in use, and the operator sees a condition. The cluster handles servers that join and leave.

use std::{
    fmt, io,
    net::ToSocketAddrs,
    path::{Path, PathBuf},
    time::Duration,
};

use millstream_config::{Node, OneOrMany, read_file};
use millstream_pipeline::{condition::Trouble, report::Reporter};
use tokio::{task::spawn_blocking, time::sleep};

use super::{
    options::{Config, DiscoveryOptions},
    server::{ServerOptions, WEIGHT, address},
};

/// A larger file is refused: it cannot be a list of servers.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where servers are looked up in addition to those that the options name.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A file with a list in the format of the option `servers`.
    File(PathBuf),
    /// `host:port`: every address of the name is a server.
    Dns(String),
}

/// The sources of the list of servers.
#[derive(Clone, Debug)]
pub(super) struct Discovery {
    /// The servers that the options name.
    pub(super) servers: Vec<ServerOptions>,
    /// Where more servers are looked up, and how often.
    pub(super) place: Option<(Place, Duration)>,
}

impl Discovery {
    /// Takes the servers and the lookup out of checked options.
    pub(super) fn of(config: &mut Config, options: &Node) -> Self {
        let discovery = config.discovery.take();
        Self {
            servers: std::mem::take(&mut config.servers.0),
            place: discovery.and_then(|discovery| {
                let interval = discovery.interval.as_duration();
                Some((Place::of(discovery, options)?, interval))
            }),
        }
    }

    /// Looks up all servers, those of the options first. May block.
    pub(super) fn look(&self) -> Result<Vec<ServerOptions>, String> {
        let mut servers = self.servers.clone();
        if let Some((place, _)) = &self.place {
            for server in place.look()? {
                if servers.iter().all(|known| known.address != server.address) {
                    servers.push(server);
                }
            }
        }
        Ok(servers)
    }

    /// Looks up the servers periodically and calls `changed` with each new list. Returns immediately if nothing has to be looked
    /// up.
    pub(super) async fn watch(self, reporter: Reporter, changed: impl Fn(Vec<ServerOptions>)) {
        let Some((place, interval)) = self.place.clone() else {
            return;
        };
        let mut known = self.servers.clone();
        let failing = reporter.condition("discovery");
        loop {
            let discovery = self.clone();
            let looked = spawn_blocking(move || discovery.look()).await;
            let looked = looked.unwrap_or_else(|panic| Err(panic.to_string()));
            if looked.is_ok() {
                failing.clear();
            }
            match looked {
                Ok(servers) if servers != known => {
                    reporter.info("servers", format_args!("{}: {}", place, names(&servers)));
                    known.clone_from(&servers);
                    changed(servers);
                }
                Ok(_) => {}
                Err(text) => failing.raise(
                    Trouble::Retrying,
                    format_args!(
                        "{text}; keeps the {} servers that were known before",
                        known.len()
                    ),
                ),
            }
            sleep(interval).await;
        }
    }
}

impl Place {
    /// Reads the option. Returns None if it has neither a file nor a valid DNS name. A relative path is relative to the
    /// configuration file in which it is written.
    fn of(discovery: DiscoveryOptions, options: &Node) -> Option<Self> {
        let written = options.find("discovery.file").unwrap_or(options);
        let file = discovery
            .file
            .map(|path| Self::File(written.place.resolve(path)));
        file.or_else(|| Some(Self::Dns(address(&discovery.dns?).ok()?)))
    }

    fn look(&self) -> Result<Vec<ServerOptions>, String> {
        match self {
            Self::File(path) => read(path),
            Self::Dns(name) => {
                let looked = name.to_socket_addrs();
                let looked = looked.map_err(|error| format!("looking up {name}: {error}"))?;
                let mut addresses: Vec<_> = looked.collect();
                addresses.sort_unstable();
                addresses.dedup();
                Ok(addresses
                    .into_iter()
                    .map(|address| ServerOptions {
                        address: address.to_string(),
                        weight: WEIGHT,
                        standby: false,
                    })
                    .collect())
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Dns(name) => f.write_str(name),
        }
    }
}

/// Reads a file of servers, in the format of the option `servers`.
fn read(path: &Path) -> Result<Vec<ServerOptions>, String> {
    let name = path.display().to_string();
    let bytes = read_file(path, FILE_BYTES_MAX);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let text = text.map_err(|error| format!("reading {name}: {error}"))?;
    if text.trim().is_empty() {
        // Most likely a tool has just begun to write the file.
        return Err(format!("{name} is empty; an empty list is written []"));
    }
    let node = Node::parse(&name, &text).map_err(|problems| problems.render(false))?;
    let servers: OneOrMany<ServerOptions> = node
        .read()
        .map_err(|problems| millstream_config::Problems(problems).render(false))?;
    Ok(servers.0)
}

fn names(servers: &[ServerOptions]) -> String {
    let names: Vec<_> = servers.iter().map(|server| &*server.address).collect();
    match names.len() {
        0 => "no server".to_owned(),
        1 => format!("1 server, {}", names[0]),
        count => format!("{count} servers, {}", names.join(", ")),
    }
}
