//! Connections of the HTTP interface. Their number is bounded for each listening address, and each connection has a deadline for its next
//! step.
//!
//! A peer must complete the head of a request within [`STEP_MAX`], and read some bytes of the answer in every [`STEP_MAX`]. Between
//! requests, it may be idle for [`IDLE_MAX`]. When a listening address has the maximum number of connections, a new connection evicts the
//! connection that has made no progress for the longest time. So peers that send half a head or never read cannot block the access of
//! monitoring or an operator.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use millstream_net::{Handling, Own, Timed, Times, handover::Live, interface_connections};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpListener,
    sync::oneshot,
    time::Instant,
};

use super::transport::{Names, Tls, Transport};

/// The maximum number of connections of a listening address at a time: enough for dashboards, monitoring and some users.
/// [`connections_max`] is lower if the process may open only few files.
const CONNECTIONS_MAX: usize = 64;
/// The number of connections that are reserved for monitoring and users. Streams of events never take these connections. If
/// [`connections_max`] is less than twice this number, only half of the connections are reserved.
const RESERVED: usize = 8;
/// The maximum time in which the peer must send a whole request head, or read some bytes of an answer.
const STEP_MAX: Duration = Duration::from_secs(10);
/// The time after which an idle connection is closed. Monitoring usually asks more often.
const IDLE_MAX: Duration = Duration::from_secs(75);
const TIMES: Times = Times {
    step: STEP_MAX,
    idle: IDLE_MAX,
};

/// The maximum number of connections of a listening address at a time, within the limit of open files.
fn connections_max() -> usize {
    CONNECTIONS_MAX.min(interface_connections())
}

/// The maximum number of streams of events at a time. Streams make progress every second and are thus never the first to be evicted.
/// Without this limit, they could evict all other connections.
pub fn streams_max() -> usize {
    let most = connections_max();
    most.saturating_sub(RESERVED).max(most / 2)
}

/// A listening address of the interface.
pub struct Listener {
    listener: TcpListener,
    places: Places,
    tls: Option<Arc<Tls>>,
    _live: Live,
}

impl Listener {
    /// Binds the address, or takes the socket of the program that this one replaces. A loopback address does not use `tls`.
    pub async fn bind(address: &str, tls: Option<Arc<Tls>>) -> io::Result<Self> {
        let own = {
            let address = address.to_owned();
            // Resolving a name can block.
            tokio::task::spawn_blocking(move || Own::bind(&address)).await??
        };
        let listener = TcpListener::from_std(own.listener)?;
        let is_local = listener.local_addr()?.ip().is_loopback();
        Ok(Self {
            listener,
            places: Places::default(),
            tls: tls.filter(|_| !is_local),
            _live: own.live,
        })
    }
}

impl Listener {
    /// The address for a browser. `machine` is the name of this machine, which stands for all of its addresses.
    pub fn url(&self, machine: &str) -> Option<String> {
        let address = self.listener.local_addr().ok()?;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Some(match address.ip().is_unspecified() {
            true => format!("{scheme}://{machine}:{}/", address.port()),
            false => format!("{scheme}://{address}/"),
        })
    }
}

impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        let (stream, names) = match &self.tls {
            None => (Transport::Plain(stream), None),
            Some(tls) => {
                let names = Names::default();
                (tls.accept(stream, &names), Some(names))
            }
        };
        let connection = Connection {
            stream: Timed::new(stream, TIMES, STEP_MAX),
            place: self.places.take(),
            names,
        };
        (connection, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The peer of a connection.
#[derive(Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// The names in its certificate; `None` without TLS.
    pub certificate: Option<Names>,
    /// Suspends the deadline of the connection while a request is being handled.
    pub handling: Handling,
}

impl Peer {
    /// The names in the certificate that the peer has presented; empty without a certificate.
    pub fn names(&self) -> &[String] {
        let names = self.certificate.as_ref().and_then(|names| names.get());
        names.map_or(&[], Vec::as_slice)
    }

    /// Whether the connection uses TLS.
    pub fn is_secured(&self) -> bool {
        self.certificate.is_some()
    }
}

impl Connected<IncomingStream<'_, Listener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Self {
        Self {
            address: *stream.remote_addr(),
            certificate: stream.io().names.clone(),
            handling: stream.io().stream.handling(),
        }
    }
}

/// The open connections of one listening address. Each connection has a place; the number of places is limited.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    next: u64,
    connections: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
}

impl Places {
    /// Takes a place for a new connection. If none is free, evicts the connection that made no progress for the longest time.
    fn take(&self) -> Place {
        let mut open = self.lock();
        if open.connections.len() >= connections_max() {
            let oldest = open
                .connections
                .iter()
                .min_by_key(|(_, (progress, _))| *progress);
            if let Some(id) = oldest.map(|(id, _)| *id) {
                open.connections.remove(&id);
            }
        }
        let (evict, evicted) = oneshot::channel();
        let id = open.next;
        open.next += 1;
        open.connections.insert(id, (Instant::now(), evict));
        drop(open);
        Place {
            id,
            evicted,
            places: self.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection in [`Places`]. Dropping this value frees the place.
struct Place {
    id: u64,
    /// Resolves when another connection has taken the place.
    evicted: oneshot::Receiver<()>,
    places: Places,
}

impl Place {
    fn progress(&self) {
        if let Some((progress, _)) = self.places.lock().connections.get_mut(&self.id) {
            *progress = Instant::now();
        }
    }

    fn is_evicted(&mut self, context: &mut Context<'_>) -> bool {
        Pin::new(&mut self.evicted).poll(context).is_ready()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().connections.remove(&self.id);
    }
}

/// One connection. Reads and writes fail after the deadline of the current step, and after another connection has evicted this one.
pub struct Connection {
    stream: Timed<Transport>,
    place: Place,
    /// The names in the client's certificate; `None` without TLS.
    names: Option<Names>,
}

impl Connection {
    /// Fails if another connection has taken the place of this one.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.place.is_evicted(context) {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.place.progress();
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.place.progress();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_interface_evicts_the_connection_without_progress_for_the_longest_time() {
        let places = Places::default();
        let mut taken: Vec<Place> = (0..CONNECTIONS_MAX).map(|_| places.take()).collect();
        taken[0].progress();
        let _new = places.take();
        let gone = |place: &mut Place| {
            place.evicted.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let evicted: Vec<usize> = (0..taken.len())
            .filter(|at| gone(&mut taken[*at]))
            .collect();
        assert_eq!(evicted, [1]);
        assert_eq!(places.lock().connections.len(), CONNECTIONS_MAX);
        drop(taken);
        assert_eq!(places.lock().connections.len(), 1);
    }
}
