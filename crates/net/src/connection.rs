//! An accepted connection and its peer.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use millstream_record::Values;
use tokio::time::Instant;

use crate::{listen::Scheme, stream::Stream};

/// A connection that was accepted and, with `tls`, has completed its handshake.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub stream: Stream,
    /// The other end.
    pub peer: Peer,
    /// The scheme of the listener, for sources with several protocols.
    pub scheme: Scheme,
    /// The time at which `limits.handshake` is over, for protocols with their own authentication.
    pub deadline: Instant,
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// For log lines: address and port, or `unix`.
    pub name: Arc<str>,
    /// The address of the peer; `None` for a unix socket.
    pub ip: Option<IpAddr>,
}

impl Peer {
    pub(crate) fn inet(address: SocketAddr) -> Self {
        // An IPv4 address from an IPv6 socket is shown as IPv4.
        let ip = address.ip().to_canonical();
        Self {
            name: SocketAddr::new(ip, address.port()).to_string().into(),
            ip: Some(ip),
        }
    }

    pub(crate) fn unix() -> Self {
        Self {
            name: "unix".into(),
            ip: None,
        }
    }

    /// Its address without the port, or `unix`.
    pub(crate) fn address(&self) -> Arc<str> {
        match self.ip {
            Some(ip) => ip.to_string().into(),
            None => self.name.clone(),
        }
    }

    /// The values `host` and `peer` of the peer's records. For a unix socket, `host` is `here`, the name of this machine.
    #[must_use]
    pub fn values(&self, here: &Arc<str>) -> Values {
        let mut values = Values::new();
        match self.ip {
            Some(ip) => {
                let ip = ip.to_string();
                values.set("host", ip.as_str());
                values.set("peer", ip);
            }
            None => {
                values.set("host", &**here);
                values.set("peer", "unix");
            }
        }
        values
    }
}
