//! Accepts connections and moves each to a data thread. The TLS handshake takes place on that thread.

use std::{io, sync::Arc, time::Duration};

use millstream_pipeline::{meters::Meter, node::SourceContext, stop::Stop, tables::Census};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    bind::{Bound, BoundSocket},
    connection::{Connection, Peer},
    listen::Scheme,
    room::{Room, Silence},
    stream::{Socket, Stream, Unwatched},
    tls::ServerTls,
};

/// The longest time between an error of `accept` and the next `accept`. The usual cause of an error is that no file
/// descriptor is left, so the listener evicts a silent connection in this time.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener on the accepting thread.
pub(crate) struct Listener {
    scheme: Scheme,
    socket: ListenerSocket,
}

enum ListenerSocket {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Listener {
    pub(crate) fn new(bound: &Bound) -> io::Result<Option<Self>> {
        let socket = match &bound.socket {
            BoundSocket::Tcp(listener) => {
                let listener = listener.try_clone()?;
                ListenerSocket::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            BoundSocket::Unix(listener, _) => {
                let listener = listener.try_clone()?;
                ListenerSocket::Unix(tokio::net::UnixListener::from_std(listener)?)
            }
            BoundSocket::Udp(_) | BoundSocket::Unixgram(..) => return Ok(None),
        };
        let scheme = bound.listen.scheme();
        Ok(Some(Self { scheme, socket }))
    }

    /// The next connection, not yet registered with the runtime of a thread.
    async fn accept(&self) -> io::Result<(Unwatched, Peer)> {
        match &self.socket {
            ListenerSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Answers are small and the peer waits for them, so they are sent without delay.
                stream.set_nodelay(true)?;
                Ok((Unwatched::Tcp(stream.into_std()?), Peer::inet(peer)))
            }
            ListenerSocket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Unwatched::Unix(stream.into_std()?), Peer::unix()))
            }
        }
    }
}

/// The state that all listeners of a source share.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) context: SourceContext,
    pub(crate) room: Arc<Room>,
    pub(crate) tls: Option<Arc<ServerTls>>,
    pub(crate) handshake: Duration,
    pub(crate) open: Meter,
    pub(crate) peers: Census,
    pub(crate) failed: Meter,
}

/// Accepts connections from one listener until the source is stopped. `each` serves one connection to its end, on a
/// data thread.
pub(crate) async fn accept<F, T>(listener: Listener, desk: Desk, each: F)
where
    F: Fn(Connection) -> T + Clone + Send + 'static,
    T: Future<Output = ()> + 'static,
{
    let reporter = &desk.context.reporter;
    let mut stop = desk.context.stop.clone();
    loop {
        let next = async {
            let accepted = listener.accept().await?;
            Ok::<_, io::Error>((accepted, desk.room.place().await?))
        };
        let next = tokio::select! {
            next = next => next,
            () = stop.stopped() => return,
        };
        match next {
            Ok(((socket, peer), place)) => {
                let silence = desk.room.silence(peer.name.clone());
                let (desk, each, scheme) = (desk.clone(), each.clone(), listener.scheme);
                let threads = desk.context.threads.clone();
                let start = async move || {
                    let _place = place;
                    let _open = OpenConnection::new(desk.open.clone());
                    let _peer = desk.peers.join(peer.address());
                    if let Some(connection) = desk.greet(socket, silence, peer, scheme).await {
                        // The future is boxed, so that the task of a silent peer is small.
                        Box::pin(each(connection)).await;
                    }
                };
                threads.spawn(reporter, start).await;
            }
            Err(error) => {
                let text = format_args!("a connection could not be accepted: {error}");
                reporter.warn("accept", text);
                let _ = timeout(PAUSE, desk.room.free_descriptor()).await;
            }
        }
    }
}

impl Desk {
    /// Registers the connection on its thread and does its TLS handshake.
    async fn greet(
        &self,
        socket: Unwatched,
        silence: Silence,
        peer: Peer,
        scheme: Scheme,
    ) -> Option<Connection> {
        let deadline = Instant::now() + self.handshake;
        let reporter = &self.context.reporter;
        let socket = match socket.watch() {
            Ok(socket) => Socket::accepted(socket, silence),
            Err(error) => {
                let text = format_args!("{}: the connection cannot be watched: {error}", peer.name);
                reporter.warn("watch", text);
                return None;
            }
        };
        let stream = match &self.tls {
            None => Stream::Plain(socket),
            Some(tls) => {
                let accepted = tls.accept(socket, reporter);
                match shake(accepted, deadline, self.context.stop.clone()).await {
                    Ok(stream) => stream,
                    Err(fault) => {
                        self.note(&peer, fault);
                        return None;
                    }
                }
            }
        };
        Some(Connection {
            stream,
            peer,
            scheme,
            deadline,
        })
    }

    /// Counts a failed handshake, and logs it if an operator should look at it.
    fn note(&self, peer: &Peer, fault: Fault) {
        self.failed.add(1);
        let reporter = &self.context.reporter;
        let peer = &peer.name;
        match fault {
            Fault::Stopped => {}
            Fault::Late => {
                let text = format_args!("{peer}: no TLS handshake within limits.handshake; closed");
                reporter.warn("handshake", text);
            }
            // Port scans and health checks open a connection and close it at once, so this error is not logged.
            Fault::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Fault::Io(error) => {
                let text = format_args!("{peer}: the TLS handshake failed: {error}");
                reporter.warn("handshake", text);
            }
        }
    }
}

/// Why a handshake failed.
enum Fault {
    Stopped,
    Late,
    Io(io::Error),
}

async fn shake(
    accepted: impl Future<Output = io::Result<Stream>>,
    deadline: Instant,
    mut stop: Stop,
) -> Result<Stream, Fault> {
    tokio::select! {
        done = timeout_at(deadline, accepted) => match done {
            Ok(done) => done.map_err(Fault::Io),
            Err(_) => Err(Fault::Late),
        },
        () = stop.stopped() => Err(Fault::Stopped),
    }
}

/// Counts a connection as open until it is dropped, even by a panic.
struct OpenConnection(Meter);

impl OpenConnection {
    fn new(connections: Meter) -> Self {
        connections.add(1);
        Self(connections)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}
