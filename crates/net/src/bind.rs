//! Binds addresses: TCP and unix listeners, UDP and unix datagram sockets.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs, UdpSocket},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::FileTypeExt,
            net::{UnixDatagram, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use millstream_pipeline::{failure::Failure, node::SourceContext};
use millstream_sys::signals;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::{
    handover::{self, Live},
    listen::{At, Listen, Scheme},
};

/// Backlog of connections to be accepted; the kernel may use a lower limit.
const BACKLOG: i32 = 1024;

/// The maximum time for the lookup of a name to listen on. The main thread waits for it.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// A bound address. Dropping it removes the path of a unix socket, unless the next program or another source listens there.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listen: Listen,
    pub(crate) socket: BoundSocket,
    live: Live,
}

#[derive(Debug)]
pub(crate) enum BoundSocket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
    Udp(UdpSocket),
    Unixgram(UnixDatagram, PathBuf),
}

/// A UDP socket that a source binds in addition to its listeners. It is non-blocking and not registered with a runtime.
#[derive(Debug)]
pub struct Beside {
    /// The socket.
    pub socket: UdpSocket,
    _live: Live,
}

impl Beside {
    /// Binds an address for a source.
    pub fn bind(context: &SourceContext, address: SocketAddr) -> io::Result<Self> {
        let socket = bind_inet(&context.follows, &address.to_string(), Type::DGRAM)?;
        Ok(Self {
            _live: Live::of(&context.name, &socket),
            socket: socket.into(),
        })
    }
}

/// A TCP listener of the program itself, which belongs to no source. It is non-blocking and not registered with a runtime. An upgrade
/// leaves it open for the next program.
#[derive(Debug)]
pub struct Own {
    /// The listener.
    pub listener: TcpListener,
    /// Belongs to the listener: keep both for the same time.
    pub live: Live,
}

impl Own {
    /// Binds an address, or takes the socket that this process inherited for it.
    pub fn bind(address: &str) -> io::Result<Self> {
        let socket = bind_inet(&[], address, Type::STREAM)?;
        // No source has this name, so none takes the socket over in a reload.
        let live = Live::of(&"api.listen".into(), &socket);
        let listener = socket.into();
        Ok(Self { listener, live })
    }
}

/// A bound datagram socket, non-blocking and not registered with a runtime. The source reads it.
#[derive(Debug)]
pub enum Datagrams {
    /// `udp://`
    Udp(UdpSocket),
    /// `unixgram://`
    Unix(UnixDatagram),
}

impl Bound {
    /// Binds an address for a source.
    pub(crate) fn new(context: &SourceContext, listen: &Listen) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let advice = advice(listen, &error);
            Failure::config(format!("cannot listen on {listen}: {error}{advice}"))
        };
        let socket = bind(&context.follows, listen).map_err(failed)?;
        Ok(Self {
            listen: listen.clone(),
            live: Live::of(&context.name, &socket),
            socket,
        })
    }

    /// The address, with the port that the system chose; `None` for a unix socket.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            BoundSocket::Tcp(listener) => listener.local_addr().ok(),
            BoundSocket::Udp(socket) => socket.local_addr().ok(),
            BoundSocket::Unix(..) | BoundSocket::Unixgram(..) => None,
        }
    }

    /// The name for messages.
    pub(crate) fn name(&self) -> String {
        match self.address() {
            Some(address) => format!("{}://{address}", self.listen.scheme.name()),
            None => self.listen.to_string(),
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let BoundSocket::Unix(_, path) | BoundSocket::Unixgram(_, path) = &self.socket
            && !handover::keeps(path, &self.live)
        {
            // The file may already be gone.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
            Self::Unixgram(socket, _) => socket.as_fd(),
        }
    }
}

/// Binds an address. `before` names the sources that this source replaces. If the process inherited a socket with that
/// address, or if a source in `before` listens there, returns the existing socket.
fn bind(before: &[Arc<str>], listen: &Listen) -> io::Result<BoundSocket> {
    Ok(match (&listen.at, listen.scheme) {
        (At::Host(host, port), scheme) => {
            let address = format!("{host}:{}", port.unwrap_or_default());
            match scheme {
                Scheme::Udp => BoundSocket::Udp(bind_inet(before, &address, Type::DGRAM)?.into()),
                _ => BoundSocket::Tcp(bind_inet(before, &address, Type::STREAM)?.into()),
            }
        }
        (At::Path(path), Scheme::Unixgram) => {
            let taken = || UnixDatagram::unbound()?.connect(path);
            let socket = match handover::take(before, Type::DGRAM, &SockAddr::unix(path)?) {
                Some(socket) => socket.into(),
                None => bind_path(path, || UnixDatagram::bind(path), taken)?,
            };
            socket.set_nonblocking(true)?;
            BoundSocket::Unixgram(socket, path.clone())
        }
        (At::Path(path), _) => {
            let taken = || UnixStream::connect(path).map(|_| ());
            let listener: UnixListener =
                match handover::take(before, Type::STREAM, &SockAddr::unix(path)?) {
                    Some(socket) => socket.into(),
                    None => bind_path(path, || UnixListener::bind(path), taken)?,
                };
            listener.set_nonblocking(true)?;
            BoundSocket::Unix(listener, path.clone())
        }
    })
}

/// Resolves `address`, and binds the first of the resulting addresses that can be bound.
fn bind_inet(before: &[Arc<str>], address: &str, kind: Type) -> io::Result<Socket> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in look_up(address)? {
        let bind = || {
            if let Some(socket) = handover::take(before, kind, &address.into()) {
                socket.set_nonblocking(true)?;
                return Ok(socket);
            }
            let socket = Socket::new(Domain::for_address(address), kind, None)?;
            socket.set_nonblocking(true)?;
            if kind == Type::STREAM {
                // Without this option, a restart fails while connections of the previous process are in TIME_WAIT.
                socket.set_reuse_address(true)?;
            }
            socket.bind(&address.into())?;
            if kind == Type::STREAM {
                socket.listen(BACKLOG)?;
            }
            Ok(socket)
        };
        match bind() {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the addresses of `host:port`. A resolver that hangs is not waited for.
fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let (sender, found) = mpsc::sync_channel(1);
    let name = address.to_owned();
    let look = move || {
        signals::hold().keep();
        let found = name.to_socket_addrs().map(Iterator::collect);
        // The wait for the answer may be over.
        let _ = sender.send(found);
    };
    thread::Builder::new().name("lookup".into()).spawn(look)?;
    found.recv_timeout(LOOKUP_MAX).unwrap_or_else(|_| {
        let why = format!("the lookup of this name took longer than {LOOKUP_MAX:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}

/// Binds `path`. Replaces a socket that a dead process left behind, but not one that is in use.
fn bind_path<T>(
    path: &Path,
    bind: impl Fn() -> io::Result<T>,
    connect: impl Fn() -> io::Result<()>,
) -> io::Result<T> {
    match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::metadata(path)?.file_type().is_socket();
            if !is_socket || connect().is_ok() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            bind()
        }
        bound => bound,
    }
}

/// The next step for the operator.
fn advice(listen: &Listen, error: &io::Error) -> &'static str {
    let is_path = matches!(listen.at, At::Path(_));
    match error.kind() {
        io::ErrorKind::AddrInUse if is_path => {
            "; another process listens on it, or it is not a socket: stop that process, or choose another path"
        }
        io::ErrorKind::AddrInUse => {
            "; another source or process listens there (`ss -lntup` shows which process): stop it, or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; this machine does not have this address: 0.0.0.0 means all of its addresses"
        }
        io::ErrorKind::PermissionDenied if is_path => {
            "; this user may not write the directory: give it to the user, or choose another path"
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need the capability CAP_NET_BIND_SERVICE: give it, or choose another port"
        }
        io::ErrorKind::NotFound if is_path => "; make the directory first",
        _ => "",
    }
}
