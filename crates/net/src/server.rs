//! The listening side: from options to bound sockets to connections on the data threads.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    node::{Checked, SourceContext},
};
use tokio::task::JoinSet;

use crate::{
    accept::{Desk, Listener, accept},
    access::SocketAccess,
    bind::{Bound, BoundSocket, Datagrams},
    connection::Connection,
    limits::Limits,
    listen::{Listen, Scheme, Takes},
    room::Room,
    tls::{ServerTls, Tls},
};

/// The listeners of a source: checked, then bound, then serving.
#[derive(Debug)]
pub struct Server {
    listens: Vec<Listen>,
    socket: SocketAccess,
    tls: Option<Arc<ServerTls>>,
    handshake: Duration,
    connections: u32,
    bound: Vec<Bound>,
}

impl Server {
    /// Checks the options of this crate in the `options` of a source, and reads the certificates.
    pub fn check(
        options: &Node,
        listen: &[Listen],
        takes: Takes,
        limits: &Limits,
        tls: &Tls,
        socket: &SocketAccess,
    ) -> Checked<Self> {
        let mut problems = Vec::new();
        let listens = Listen::check(listen, takes, options, &mut problems);
        limits.check(options, &mut problems);
        socket.check(listen, options, &mut problems);
        let tls = ServerTls::check(tls, options).unwrap_or_else(|found| {
            problems.extend(found);
            None
        });
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            listens,
            socket: socket.clone(),
            tls: tls.map(Arc::new),
            handshake: limits.handshake.as_duration(),
            connections: limits.connections,
            bound: Vec::new(),
        })
    }

    /// Binds every address. A failure names the address and says what to do.
    pub fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        for listen in &self.listens {
            let bound = Bound::new(context, listen, &self.socket)?;
            let tls = if self.tls.is_some() && is_stream(&bound) {
                " with TLS"
            } else {
                ""
            };
            let hint = bound.path().and_then(|path| self.socket.hint(path));
            let hint = hint.unwrap_or_default();
            let text = format_args!("listening on {}{tls}{hint}", bound.name());
            // Every address is logged: there are few of them, and each is logged once.
            context.reporter.apart().info("listening", text);
            self.bound.push(bound);
        }
        Ok(())
    }

    /// The configured addresses, with default ports filled in.
    #[must_use]
    pub fn listens(&self) -> &[Listen] {
        &self.listens
    }

    /// Its TLS, for tests.
    #[cfg(test)]
    pub(crate) fn tls(&self) -> Option<Arc<ServerTls>> {
        self.tls.clone()
    }

    /// The bound addresses except unix sockets, with the ports that the system chose for port 0.
    #[must_use]
    pub fn addresses(&self) -> Vec<(Scheme, SocketAddr)> {
        let all = self.bound.iter();
        all.filter_map(|bound| Some((bound.listen.scheme(), bound.address()?)))
            .collect()
    }

    /// The bound datagram sockets, for the source to read. Each call returns new handles.
    pub fn datagrams(&self) -> Result<Vec<Datagrams>, Failure> {
        let clone = |bound: &Bound| match &bound.socket {
            BoundSocket::Udp(socket) => Some(socket.try_clone().map(Datagrams::Udp)),
            BoundSocket::Unixgram(socket, _) => Some(socket.try_clone().map(Datagrams::Unix)),
            BoundSocket::Tcp(_) | BoundSocket::Unix(..) => None,
        };
        let all: io::Result<_> = self.bound.iter().filter_map(clone).collect();
        all.map_err(cannot_watch)
    }

    /// Accepts connections until the source is stopped. Then closes the listeners, and returns when the last connection has
    /// ended.
    ///
    /// `each` serves one connection to its end, on a data thread. The meter `connections` counts open connections,
    /// `peer_connections` the open connections of each peer, `handshakes_failed` the connections whose handshake failed, and
    /// `silent_connections_closed` the evicted connections.
    pub async fn serve<F, T>(&mut self, context: &SourceContext, each: F) -> Result<(), Failure>
    where
        F: Fn(Connection) -> T + Clone + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        let mut listeners = JoinSet::new();
        let room = Arc::new(Room::new(self.connections, context));
        let desk = Desk {
            context: context.clone(),
            room: room.clone(),
            tls: self.tls.clone(),
            handshake: self.handshake,
            open: context.meters.gauge("connections"),
            peers: context.meters.census("peer_connections", "peer"),
            failed: context.meters.counter("handshakes_failed"),
        };
        for bound in &self.bound {
            if let Some(listener) = Listener::new(bound).map_err(cannot_watch)? {
                let accepting = accept(listener, desk.clone(), each.clone());
                listeners.spawn_local(accepting);
            }
        }
        let mut stop = context.stop.clone();
        while let Some(ended) = listeners.join_next().await {
            ended.map_err(|error| Failure::us(format!("a listener died: {error}")))?;
        }
        stop.stopped().await;
        self.bound.clear();
        room.emptied(self.connections).await;
        Ok(())
    }
}

fn is_stream(bound: &Bound) -> bool {
    matches!(bound.socket, BoundSocket::Tcp(_) | BoundSocket::Unix(..))
}

fn cannot_watch(error: io::Error) -> Failure {
    Failure::us(format!("cannot watch a listener: {error}"))
}
