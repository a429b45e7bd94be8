//! Connecting: every attempt resolves the name again and tries its addresses in turn. The lookup and all addresses together
//! have one time limit.

use std::{borrow::Cow, fmt, io, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};

use tokio::{
    net::{TcpSocket, TcpStream, lookup_host},
    time::{Instant, timeout},
};

use crate::{Listen, Scheme, listen::At};

/// Idle connections are probed after this time, so that a vanished peer is noticed and firewalls keep the connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// The name of a server with an open connection is looked up again after this time: see [`has_moved`].
pub const LOOKUP_AGE: Duration = Duration::from_secs(30);
/// A lookup for an open connection that takes longer counts as failed.
const LOOKUP_MAX: Duration = Duration::from_secs(2);

/// The target of a connection, from the URL in the option `url`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    scheme: Scheme,
    at: At,
}

impl Remote {
    /// The scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// `host:port`. If the URL names no port, the argument `port` is used. `None` for a path.
    #[must_use]
    pub fn address(&self, port: u16) -> Option<String> {
        match &self.at {
            At::Host(host, named) => Some(format!("{host}:{}", named.unwrap_or(port))),
            At::Path(_) => None,
        }
    }

    /// The path of a unix socket.
    #[must_use]
    pub fn path(&self) -> Option<&PathBuf> {
        match &self.at {
            At::Path(path) => Some(path),
            At::Host(..) => None,
        }
    }
}

impl FromStr for Remote {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Listen { scheme, at } = text
            .parse()
            .map_err(|why: String| why.replace("address to listen on", "address"))?;
        Ok(Self { scheme, at })
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, at) = (self.scheme, self.at.clone());
        Listen { scheme, at }.fmt(f)
    }
}

/// Connects by TCP to the first address of `host:port` that answers. `limit` is the timeout of the name lookup and of the
/// attempts for all addresses together. `send_buffer` is SO_SNDBUF; 0 keeps the kernel's default.
///
/// # Errors
///
/// The error of the name lookup, or of the last address.
pub async fn connect(address: &str, limit: Duration, send_buffer: u32) -> io::Result<TcpStream> {
    connect_each(address, limit, |address| open(address, send_buffer)).await
}

/// Like [`connect`], but each attempt includes the preparation of the connection (TLS, a greeting).
///
/// # Errors
///
/// The error of the name lookup, or of the last address.
pub async fn connect_each<S>(
    address: &str,
    limit: Duration,
    open: impl AsyncFn(SocketAddr) -> io::Result<S>,
) -> io::Result<S> {
    let late = |_| {
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {limit:?}"),
        )
    };
    let started = Instant::now();
    let addresses = timeout(limit, lookup_host(address)).await.map_err(late)??;
    let addresses: Vec<_> = addresses.collect();
    let left = limit.saturating_sub(started.elapsed());
    // Each address gets an equal share of the time, so that an address that drops all packets leaves time for the others.
    let share = left / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        let opened = timeout(share, open(address)).await;
        match opened.map_err(late).flatten() {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether the name in `host:port` has lost the address `peer` of an open connection. A lookup that fails, or that takes longer than two
/// seconds, changes nothing.
pub async fn has_moved(address: &str, peer: SocketAddr) -> bool {
    let plain = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    match timeout(LOOKUP_MAX, lookup_host(address)).await {
        Ok(Ok(addresses)) => {
            let mut addresses = addresses.peekable();
            addresses.peek().is_some() && addresses.all(|now| plain(now) != plain(peer))
        }
        _ => false,
    }
}

/// Connects to one address, without Nagle's delay and with keepalive probes.
///
/// # Errors
///
/// The error of the system.
pub async fn open(address: SocketAddr, send_buffer: u32) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if send_buffer > 0 {
        socket.set_send_buffer_size(send_buffer)?;
    }
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    let probes = socket2::TcpKeepalive::new().with_time(KEEPALIVE_IDLE);
    socket2::SockRef::from(&stream).set_tcp_keepalive(&probes)?;
    Ok(stream)
}

impl<'de> Deserialize<'de> for Remote {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl JsonSchema for Remote {
    fn schema_name() -> Cow<'static, str> {
        "Remote".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "The protocol and the destination, such as `tcp://HOST:PORT` or `unix:///PATH`.",
            "examples": ["tcp://logs.example:514", "unix:///run/log.sock"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_has_moved_only_if_a_lookup_succeeds_without_the_address_of_the_peer() {
        let peer = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(!has_moved("127.0.0.1:7", peer("127.0.0.1:7")).await);
        assert!(!has_moved("127.0.0.1:7", peer("[::ffff:127.0.0.1]:7")).await);
        assert!(!has_moved("localhost:7", peer("127.0.0.1:7")).await);
        assert!(has_moved("localhost:7", peer("192.0.2.1:7")).await);
        assert!(!has_moved("no-such-name.invalid:7", peer("192.0.2.1:7")).await);
    }
}
