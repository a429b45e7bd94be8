//! Listeners: TCP (with UDP for heartbeats on the same port) and unix sockets; connections are dealt over the data threads.

use std::{
    borrow::Cow,
    io,
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket},
    os::unix::{
        fs::FileTypeExt,
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_record::Values;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};
use socket2::{Domain, Socket, Type};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::sleep,
};

use super::{Shared, connection::serve, heartbeat, socket::Plain};

/// The port of the protocol.
const PORT: u16 = 24224;
/// Connections that wait to be accepted; the system takes less where it allows less.
const BACKLOG: i32 = 1024;
/// After an error of `accept` (no more open files) a listener is left alone for so long.
const PAUSE: Duration = Duration::from_millis(100);

/// One address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listen {
    /// Host and port.
    Tcp(String),
    /// A unix socket.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            return match path {
                "" => Err(format!(
                    "`{text}` names no path: write unix:///run/millstream.sock"
                )),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let Some(address) = text.strip_prefix("tcp://") else {
            return Err(format!(
                "`{text}` is no address to listen at: write tcp://0.0.0.0:{PORT} or unix:///PATH"
            ));
        };
        // A colon behind the last bracket of an IPv6 address begins the port.
        let behind = address.rsplit(']').next().unwrap_or(address);
        match behind.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_err() => {
                Err(format!("`{port}` in `{text}` is no port"))
            }
            Some(_) if address.starts_with(':') => Err(format!(
                "`{text}` names no host: write tcp://0.0.0.0:{PORT} for all"
            )),
            Some(_) => Ok(Self::Tcp(address.to_owned())),
            None if address.is_empty() => Err(format!("`{text}` names no host")),
            None => Ok(Self::Tcp(format!("{address}:{PORT}"))),
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl JsonSchema for Listen {
    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "tcp://ADDRESS:PORT or unix:///PATH",
            "examples": ["tcp://0.0.0.0:24224", "unix:///run/millstream.sock"]
        })
    }
}

/// An address that is bound.
pub(super) struct Bound {
    pub(super) listener: Listener,
    /// Answers heartbeats.
    datagrams: Option<UdpSocket>,
}

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

enum Stream {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Bound {
    /// Binds it.
    pub(super) fn new(listen: &Listen, reporter: &Reporter) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::config(format!("cannot listen at {listen}: {error}"));
        match listen {
            Listen::Unix(path) => {
                let listener = bind_unix(path).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self {
                    listener: Listener::Unix(listener, path.clone()),
                    datagrams: None,
                })
            }
            Listen::Tcp(address) => {
                let listener = bind_tcp(address).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                let datagrams = UdpSocket::bind(address).and_then(|socket| {
                    socket.set_nonblocking(true)?;
                    Ok(socket)
                });
                if let Err(error) = &datagrams {
                    reporter.warn(
                        "heartbeat",
                        format_args!("no UDP heartbeats at {address}: {error}"),
                    );
                }
                reporter.info("listening", format_args!("listening at tcp://{address}"));
                Ok(Self {
                    listener: Listener::Tcp(listener),
                    datagrams: datagrams.ok(),
                })
            }
        }
    }

    /// Removes the name of a unix socket.
    pub(super) fn remove(&self) {
        if let Listener::Unix(_, path) = &self.listener {
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_tcp(address: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        let bind = || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            // A restart must not wait for the connections of the process before.
            socket.set_reuse_address(true)?;
            socket.set_nonblocking(true)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            Ok(TcpListener::from(socket))
        };
        match bind() {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A socket that a process left behind when it died is replaced; one that somebody listens at is not.
fn bind_unix(path: &PathBuf) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::metadata(path)?.file_type().is_socket();
            if !is_socket || UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// A listener on the thread that accepts.
enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Accepting {
    fn new(listener: &Listener) -> io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(listener) => {
                Self::Tcp(tokio::net::TcpListener::from_std(listener.try_clone()?)?)
            }
            Listener::Unix(listener, _) => {
                Self::Unix(tokio::net::UnixListener::from_std(listener.try_clone()?)?)
            }
        })
    }

    /// The next connection, free to go to another thread.
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Acks are small and somebody waits for them.
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream.into_std()?, peer))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(Stream::Unix(stream.into_std()?))
            }
        }
    }
}

/// Accepts until it is time to stop. What is open then goes on.
pub(super) async fn accept_all(
    bound: &[Bound],
    room: &Arc<Semaphore>,
    shared: &Arc<Shared>,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::us(format!("cannot watch a listener: {error}"));
    let mut listeners = JoinSet::new();
    let mut others = JoinSet::new();
    for bound in bound {
        let listener = Accepting::new(&bound.listener).map_err(failed)?;
        listeners.spawn_local(accept(listener, room.clone(), shared.clone()));
        if let Some(socket) = &bound.datagrams {
            let (socket, reporter) = (
                socket.try_clone().map_err(failed)?,
                shared.context.reporter.clone(),
            );
            others.spawn_local(async move {
                if let Err(error) = heartbeat::answer(&socket, &reporter).await {
                    reporter.warn("heartbeat", format_args!("no UDP heartbeats: {error}"));
                }
            });
        }
    }
    while let Some(ended) = listeners.join_next().await {
        ended.map_err(|error| Failure::us(format!("a listener died: {error}")))?;
    }
    Ok(())
}

async fn accept(listener: Accepting, room: Arc<Semaphore>, shared: Arc<Shared>) {
    let reporter = &shared.context.reporter;
    let mut stop = shared.context.stop.clone();
    loop {
        let next = async {
            let stream = listener.accept().await?;
            if room.available_permits() == 0 {
                let text = "all connections that limits.connections allows are open; others wait";
                reporter.warn("connections", text);
            }
            let permit = room.clone().acquire_owned().await;
            // It is never closed.
            Ok::<_, io::Error>((stream, permit.map_err(io::Error::other)?))
        };
        let next = tokio::select! {
            next = next => next,
            () = stop.stopped() => return,
        };
        match next {
            Ok((stream, permit)) => {
                let task = shared.clone();
                let start = move || converse(stream, permit, task);
                shared.context.threads.spawn(reporter, start).await;
            }
            Err(error) => {
                let text = format_args!("a connection could not be accepted: {error}");
                reporter.warn("accept", text);
                sleep(PAUSE).await;
            }
        }
    }
}

/// One connection on its thread. Its permit goes back when it ends.
async fn converse(stream: Stream, permit: OwnedSemaphorePermit, shared: Arc<Shared>) {
    let _permit = permit;
    let mut values = Values::new();
    match stream {
        Stream::Tcp(stream, address) => {
            // An address of IPv4 that came by a socket of IPv6 is shown as what it is.
            let host = address.ip().to_canonical().to_string();
            values.set("host", host.as_str());
            values.set("peer", host);
            let peer = address.to_string().into();
            serve(Plain::Tcp(stream), peer, values, shared).await;
        }
        Stream::Unix(stream) => {
            values.set("host", &*shared.context.host);
            values.set("peer", "unix");
            serve(Plain::Unix(stream), "unix".into(), values, shared).await;
        }
    }
}
