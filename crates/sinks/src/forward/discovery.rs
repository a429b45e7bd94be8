//! Which servers there are: those that the options name, and those that a watched file or a name in DNS says.
//!
//! It promises that a list that cannot be had (a file that is gone or wrong, a name server that does not answer) changes
//! nothing: the last good one stays, and the operator is told. It leaves to the cluster: who joins and who leaves.

use std::{fs, io, net::ToSocketAddrs, path::PathBuf, rc::Rc, time::Duration};

use millstream_config::{Node, OneOrMany};
use millstream_pipeline::{condition::Trouble, report::Reporter};
use tokio::{task::spawn_blocking, time::sleep};

use super::{
    hub::Hub,
    server::{ServerOptions, WEIGHT},
};

/// A list of servers is short: more is another file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where servers are looked up beside those that the options name.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A list as the option `servers` has it.
    File(PathBuf),
    /// `host:port`: every address of the name is a server.
    Dns(String),
}

/// Where servers are known from.
#[derive(Clone, Debug)]
pub(super) struct Discovery {
    /// Named in the options.
    pub(super) servers: Vec<ServerOptions>,
    /// Looked up, and how often.
    pub(super) place: Option<(Place, Duration)>,
}

impl Discovery {
    /// All servers as they are known now, sorted by nothing: first those of the options. May block.
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

    /// Looks again and again, and tells the hub when the list is another. Ends at once if there is nothing to look at.
    pub(super) async fn watch(self, hub: Rc<Hub>, reporter: Reporter) {
        let Some((place, interval)) = self.place.clone() else {
            return;
        };
        let mut known = self.servers.clone();
        let failing = reporter.condition("discovery");
        loop {
            let again = self.clone();
            let found = spawn_blocking(move || again.look()).await;
            let found = found.unwrap_or_else(|died| Err(died.to_string()));
            if found.is_ok() {
                failing.clear();
            }
            match found {
                Ok(servers) if servers != known => {
                    reporter.info("servers", format_args!("{}: {}", place, names(&servers)));
                    known.clone_from(&servers);
                    *hub.servers.borrow_mut() = Some(servers);
                    hub.changed.notify_one();
                }
                Ok(_) => {}
                Err(text) => failing.raise(
                    Trouble::Retrying,
                    format_args!("{text}; the {} servers known before stay", known.len()),
                ),
            }
            sleep(interval).await;
        }
    }
}

impl Place {
    fn look(&self) -> Result<Vec<ServerOptions>, String> {
        match self {
            Self::File(path) => read(path),
            Self::Dns(name) => {
                let found = name.to_socket_addrs();
                let found = found.map_err(|error| format!("looking up {name}: {error}"))?;
                let mut addresses: Vec<_> = found.collect();
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

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Dns(name) => f.write_str(name),
        }
    }
}

/// Reads a file of servers: what stands behind `servers:` in a configuration.
fn read(path: &PathBuf) -> Result<Vec<ServerOptions>, String> {
    let name = path.display().to_string();
    let whole = || {
        let bytes = fs::metadata(path)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(io::Error::other("it is larger than 1 MiB"));
        }
        fs::read_to_string(path)
    };
    let text = whole().map_err(|error| format!("reading {name}: {error}"))?;
    if text.trim().is_empty() {
        // Being written, most likely; an empty list is `[]`.
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
