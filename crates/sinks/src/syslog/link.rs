//! The connection to the server: a TCP, TLS or unix stream, or datagrams.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll, ready},
};

use millstream_net::{Scheme, Socket, Stream, connect};
use millstream_pipeline::report::Reporter;
use millstream_sys::unsent::{peer_window_bytes, unsent_bytes};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{UdpSocket, UnixDatagram, UnixStream, lookup_host},
    time::timeout,
};

use super::target::Target;
use crate::probe::greeting;

/// A connection.
pub(super) enum Link {
    /// A stream, a second handle of the stream's socket (to ask the system about bytes in flight), and whether the socket is TCP.
    Stream(Box<Stream>, OwnedFd, bool),
    Udp(UdpSocket),
    Unixgram(UnixDatagram),
}

/// How a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer closed the connection gracefully, after its program had read everything that its system had received.
    Closed,
    /// The connection broke, or could not be made.
    Broken(io::Error),
    /// The server's name has another address now.
    Moved,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the server closed it"),
            Self::Broken(error) => error.fmt(f),
            Self::Moved => f.write_str("the name of the server has another address"),
        }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl Link {
    /// Connects, within `retry.timeout`.
    pub(super) async fn connect(target: &Target, reporter: &Reporter) -> io::Result<Self> {
        let limit = target.timeout;
        let late = |_| {
            let text = format!("no answer within {limit:?}");
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        timeout(limit, Self::open(target, reporter))
            .await
            .map_err(late)
            .flatten()
    }

    /// Connects, with the TLS handshake if `tls` is set. Returns what the success proves.
    pub(super) async fn probe(target: &Target, reporter: &Reporter) -> io::Result<&'static str> {
        let Self::Stream(mut stream, ..) = Self::connect(target, reporter).await? else {
            return Ok("the socket accepts datagrams");
        };
        greeting(&mut stream).await?;
        Ok(match target.tls {
            Some(_) => "TLS",
            None => "no TLS",
        })
    }

    async fn open(target: &Target, reporter: &Reporter) -> io::Result<Self> {
        let url = &target.url;
        if let Some(path) = url.path() {
            if url.scheme() == Scheme::Unixgram {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                return Ok(Self::Unixgram(socket));
            }
            let socket = Socket::Unix(UnixStream::connect(path).await?);
            return Self::handshake(target, socket, "localhost", reporter).await;
        }
        let address = target.address().unwrap_or_default();
        if url.scheme() == Scheme::Udp {
            return udp(&address).await;
        }
        let stream = connect(&address, target.timeout, 0).await?;
        let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
        Self::handshake(target, Socket::Tcp(stream), host, reporter).await
    }

    async fn handshake(
        target: &Target,
        socket: Socket,
        host: &str,
        reporter: &Reporter,
    ) -> io::Result<Self> {
        let handle = socket.as_fd().try_clone_to_owned()?;
        let is_tcp = matches!(socket, Socket::Tcp(_));
        let stream = match &target.tls {
            None => Stream::Plain(socket),
            Some(tls) => {
                let secure = tls.connect(socket, host, reporter).await;
                secure.map_err(|error| io::Error::new(error.kind(), format!("TLS: {error}")))?
            }
        };
        Ok(Self::Stream(Box::new(stream), handle, is_tcp))
    }

    /// Writes some of `bytes` (a datagram as a whole) and returns the number written. Does not write to a stream that the peer has
    /// closed.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<usize, End> {
        match self {
            Self::Stream(stream, ..) => {
                poll_fn(|context| {
                    if let Poll::Ready(ended) = poll_ended(stream, context) {
                        return Poll::Ready(Err(ended));
                    }
                    let wrote = ready!(Pin::new(&mut **stream).poll_write(context, bytes));
                    Poll::Ready(wrote.map_err(End::Broken))
                })
                .await
            }
            Self::Udp(socket) => Ok(socket.send(bytes).await?),
            Self::Unixgram(socket) => Ok(socket.send(bytes).await?),
        }
    }

    /// Flushes buffered bytes (of TLS) to the system.
    pub(super) async fn flush(&mut self) -> Result<(), End> {
        if let Self::Stream(stream, ..) = self {
            stream.flush().await?;
        }
        Ok(())
    }

    /// Waits until the peer ends the connection, or until the network reports that a datagram was refused.
    pub(super) async fn ended(&mut self) -> End {
        match self {
            Self::Stream(stream, ..) => poll_fn(|context| poll_ended(stream, context)).await,
            Self::Udp(socket) => loop {
                // Syslog servers send nothing, so any datagram is ignored.
                if let Err(error) = socket.recv(&mut [0; 16]).await {
                    return End::Broken(error);
                }
            },
            Self::Unixgram(_) => std::future::pending().await,
        }
    }

    /// The address of the server; `None` for a path.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Stream(_, handle, true) => SockRef::from(handle).peer_addr().ok()?.as_socket(),
            Self::Udp(socket) => socket.peer_addr().ok(),
            Self::Stream(..) | Self::Unixgram(_) => None,
        }
    }

    /// Whether [`Link::unsent`] tells exactly what the peer's program has not read.
    pub(super) fn tells_what_is_read(&self) -> bool {
        matches!(self, Self::Stream(_, _, false) | Self::Unixgram(_))
    }

    /// Closes the connection gracefully: bytes that were written are still sent.
    pub(super) async fn close(mut self) {
        if let Self::Stream(stream, ..) = &mut self {
            let _ = stream.shutdown().await;
        }
    }

    /// Bytes that the peer's system has not acknowledged (of a unix socket: that the peer has not read).
    pub(super) fn unsent(&self) -> u64 {
        self.handle()
            .map_or(0, |handle| unsent_bytes(handle).unwrap_or(0))
    }

    /// The window that the peer announced last; `None` without TCP.
    pub(super) fn window(&self) -> Option<u64> {
        match self {
            Self::Stream(_, handle, true) => Some(peer_window_bytes(handle.as_fd()).unwrap_or(0)),
            _ => None,
        }
    }

    fn handle(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Stream(_, handle, _) => Some(handle.as_fd()),
            Self::Udp(_) | Self::Unixgram(_) => None,
        }
    }
}

/// Creates a datagram socket to the first usable address of a name.
async fn udp(address: &str) -> io::Result<Link> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(address).await? {
        let any = match address.is_ipv4() {
            true => "0.0.0.0:0",
            false => "[::]:0",
        };
        let socket = UdpSocket::bind(any).await?;
        match socket.connect(address).await {
            Ok(()) => return Ok(Link::Udp(socket)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Is ready when the stream has ended. Syslog servers send nothing, so any bytes are ignored.
fn poll_ended(stream: &mut Stream, context: &mut Context<'_>) -> Poll<End> {
    let mut bytes = [0; 512];
    loop {
        let mut buffer = ReadBuf::new(&mut bytes);
        match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
            Ok(()) if buffer.filled().is_empty() => return Poll::Ready(End::Closed),
            Ok(()) => {}
            Err(error) => return Poll::Ready(End::Broken(error)),
        }
    }
}
