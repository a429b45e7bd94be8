//! The listening side: options to bound sockets to connections on the data threads.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    meters::Meter,
    node::{Checked, SourceContext},
    report::Reporter,
    stop::Stop,
};
use millstream_record::Values;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    bind::{Bound, BoundSocket, Datagrams},
    limits::Limits,
    listen::{Listen, Scheme, Takes},
    stream::{Stream, Unwatched},
    tls::{ServerTls, Tls},
};

/// After an error of `accept` (no more open files) a listener is left alone for so long.
const PAUSE: Duration = Duration::from_millis(100);

/// The listeners of one source: checked, then bound, then serving.
#[derive(Debug)]
pub struct Server {
    listens: Vec<Listen>,
    tls: Option<Arc<ServerTls>>,
    handshake: Duration,
    connections: u32,
    bound: Vec<Bound>,
    /// One permit for each connection that is open.
    room: Arc<Semaphore>,
}

/// A connection that was accepted and, with `tls`, has finished its handshake.
#[derive(Debug)]
pub struct Connection {
    /// Its bytes.
    pub stream: Stream,
    /// The other end.
    pub peer: Peer,
    /// What it came by, if several speak differently.
    pub scheme: Scheme,
    /// When `limits.handshake` is over, for protocols that authenticate by themselves.
    pub deadline: Instant,
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// For log lines: address and port, or `unix`.
    pub name: Arc<str>,
    /// Its address; None behind a unix socket.
    pub ip: Option<IpAddr>,
}

impl Peer {
    fn inet(address: SocketAddr) -> Self {
        // An address of IPv4 that came by a socket of IPv6 is shown as what it is.
        let ip = address.ip().to_canonical();
        Self {
            name: SocketAddr::new(ip, address.port()).to_string().into(),
            ip: Some(ip),
        }
    }

    fn unix() -> Self {
        Self {
            name: "unix".into(),
            ip: None,
        }
    }

    /// The values `host` and `peer` of what it sends; `here`: what `host` is for this machine.
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

impl Server {
    /// Checks the options that a network source has of this crate, as its `options` hold them, and reads the
    /// certificates.
    pub fn check(
        options: &Node,
        listen: &[Listen],
        takes: Takes,
        limits: &Limits,
        tls: &Tls,
    ) -> Checked<Self> {
        let mut problems = Vec::new();
        let listens = Listen::check(listen, takes, options, &mut problems);
        limits.check(options, &mut problems);
        let tls = ServerTls::check(tls, options).unwrap_or_else(|found| {
            problems.extend(found);
            None
        });
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            listens,
            tls: tls.map(Arc::new),
            handshake: limits.handshake.as_duration(),
            connections: limits.connections,
            bound: Vec::new(),
            room: Arc::new(Semaphore::new(limits.connections as usize)),
        })
    }

    /// Binds every address. A failure names the address and what to do.
    pub fn bind(&mut self, reporter: &Reporter) -> Result<(), Failure> {
        for listen in &self.listens {
            let bound = Bound::new(listen)?;
            let tls = if self.tls.is_some() && is_stream(&bound) {
                " with TLS"
            } else {
                ""
            };
            let text = format_args!("listening at {}{tls}", bound.name());
            reporter.info("listening", text);
            self.bound.push(bound);
        }
        Ok(())
    }

    /// What it listens at, with all ports filled in.
    #[must_use]
    pub fn listens(&self) -> &[Listen] {
        &self.listens
    }

    /// Its TLS, for tests.
    #[cfg(test)]
    pub(crate) fn tls(&self) -> Option<Arc<ServerTls>> {
        self.tls.clone()
    }

    /// The addresses that are bound and no unix sockets, with the ports that the system chose for port 0.
    #[must_use]
    pub fn addresses(&self) -> Vec<(Scheme, SocketAddr)> {
        let all = self.bound.iter();
        all.filter_map(|bound| Some((bound.listen.scheme(), bound.address()?)))
            .collect()
    }

    /// The bound sockets of datagrams, for the source to read. Each call gives handles of its own.
    pub fn datagrams(&self) -> Result<Vec<Datagrams>, Failure> {
        let clone = |bound: &Bound| match &bound.socket {
            BoundSocket::Udp(socket) => Some(socket.try_clone().map(Datagrams::Udp)),
            BoundSocket::Unixgram(socket, _) => Some(socket.try_clone().map(Datagrams::Unix)),
            BoundSocket::Tcp(_) | BoundSocket::Unix(..) => None,
        };
        let all: io::Result<_> = self.bound.iter().filter_map(clone).collect();
        all.map_err(cannot_watch)
    }

    /// Accepts until it is time to stop, then closes the listeners and returns when the last connection has ended.
    ///
    /// `each` serves one connection to its end, on a data thread. The meter `connections` counts those that are open,
    /// `handshakes_failed` those that did not come so far.
    pub async fn serve<F, T>(&mut self, context: &SourceContext, each: F) -> Result<(), Failure>
    where
        F: Fn(Connection) -> T + Clone + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        let mut listeners = JoinSet::new();
        let desk = Desk {
            context: context.clone(),
            tls: self.tls.clone(),
            handshake: self.handshake,
            open: context.meters.gauge("connections"),
            failed: context.meters.counter("handshakes_failed"),
        };
        for bound in &self.bound {
            if let Some(listener) = Listener::new(bound).map_err(cannot_watch)? {
                let accepting = accept(listener, self.room.clone(), desk.clone(), each.clone());
                listeners.spawn_local(accepting);
            }
        }
        let mut stop = context.stop.clone();
        while let Some(ended) = listeners.join_next().await {
            ended.map_err(|error| Failure::us(format!("a listener died: {error}")))?;
        }
        stop.stopped().await;
        self.bound.clear();
        // Every connection gives its permit back when it ends.
        let _ = self.room.acquire_many(self.connections).await;
        Ok(())
    }
}

fn is_stream(bound: &Bound) -> bool {
    matches!(bound.socket, BoundSocket::Tcp(_) | BoundSocket::Unix(..))
}

fn cannot_watch(error: io::Error) -> Failure {
    Failure::us(format!("cannot watch a listener: {error}"))
}

/// A listener on the thread that accepts.
struct Listener {
    scheme: Scheme,
    socket: ListenerSocket,
}

enum ListenerSocket {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Listener {
    fn new(bound: &Bound) -> io::Result<Option<Self>> {
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

    /// The next connection, free to go to another thread.
    async fn accept(&self) -> io::Result<(Unwatched, Peer)> {
        match &self.socket {
            ListenerSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Answers are small and somebody waits for them.
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

/// What the acceptors of a source share.
#[derive(Clone)]
struct Desk {
    context: SourceContext,
    tls: Option<Arc<ServerTls>>,
    handshake: Duration,
    open: Meter,
    failed: Meter,
}

async fn accept<F, T>(listener: Listener, room: Arc<Semaphore>, desk: Desk, each: F)
where
    F: Fn(Connection) -> T + Clone + Send + 'static,
    T: Future<Output = ()> + 'static,
{
    let reporter = &desk.context.reporter;
    let mut stop = desk.context.stop.clone();
    loop {
        let next = async {
            let accepted = listener.accept().await?;
            if room.available_permits() == 0 {
                let text = "all connections that limits.connections allows are open; others wait";
                reporter.warn("connections", text);
            }
            let permit = room.clone().acquire_owned().await;
            // It is never closed.
            Ok::<_, io::Error>((accepted, permit.map_err(io::Error::other)?))
        };
        let next = tokio::select! {
            next = next => next,
            () = stop.stopped() => return,
        };
        match next {
            Ok(((socket, peer), permit)) => {
                let (desk, each, scheme) = (desk.clone(), each.clone(), listener.scheme);
                let threads = desk.context.threads.clone();
                let start = async move || {
                    let _permit = permit;
                    let _open = Open::new(desk.open.clone());
                    if let Some(connection) = desk.greet(socket, peer, scheme).await {
                        // Boxed: until here the task of a peer that sends nothing is small.
                        Box::pin(each(connection)).await;
                    }
                };
                threads.spawn(reporter, start).await;
            }
            Err(error) => {
                let text = format_args!("a connection could not be accepted: {error}");
                reporter.warn("accept", text);
                sleep(PAUSE).await;
            }
        }
    }
}

impl Desk {
    /// The connection on its thread, behind its TLS handshake.
    async fn greet(&self, socket: Unwatched, peer: Peer, scheme: Scheme) -> Option<Connection> {
        let deadline = Instant::now() + self.handshake;
        let reporter = &self.context.reporter;
        let socket = match socket.watch() {
            Ok(socket) => socket,
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

    /// Counts a handshake that failed, and says so where somebody should look at it.
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
            // Port scans and health checks open a connection and close it.
            Fault::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Fault::Io(error) => {
                let text = format_args!("{peer}: the TLS handshake failed: {error}");
                reporter.warn("handshake", text);
            }
        }
    }
}

/// Why there is no TLS.
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

/// Counts a connection as open until it is dropped, also by a panic.
struct Open(Meter);

impl Open {
    fn new(connections: Meter) -> Self {
        connections.add(1);
        Self(connections)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}
