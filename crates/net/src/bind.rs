//! Binds addresses: TCP and unix listeners, UDP and unix datagram sockets.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener, ToSocketAddrs, UdpSocket},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::FileTypeExt,
            net::{UnixDatagram, UnixListener},
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
    access::SocketAccess,
    handover::{self, Live},
    listen::{At, Listen, Scheme},
};

/// Backlog of connections to be accepted; the kernel may use a lower limit.
const BACKLOG: i32 = 1024;
/// The same for unix sockets: as many as the kernel allows (`net.core.somaxconn`), because further clients fail at once.
const LOCAL_BACKLOG: i32 = -1;

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
    pub(crate) fn new(
        context: &SourceContext,
        listen: &Listen,
        access: &SocketAccess,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let advice = advice(listen, &error);
            Failure::config(format!("cannot listen on {listen}: {error}{advice}"))
        };
        let socket = bind(&context.follows, listen, access).map_err(failed)?;
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

    /// The path of a unix socket.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.socket {
            BoundSocket::Unix(_, path) | BoundSocket::Unixgram(_, path) => Some(path),
            BoundSocket::Tcp(_) | BoundSocket::Udp(_) => None,
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
        if let Some(path) = self.path()
            && !handover::keeps(path, &self.live)
        {
            // The file may already be gone.
            let _ = fs::remove_file(path);
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
fn bind(before: &[Arc<str>], listen: &Listen, access: &SocketAccess) -> io::Result<BoundSocket> {
    Ok(match (&listen.at, listen.scheme) {
        (At::Host(host, port), scheme) => {
            let address = format!("{host}:{}", port.unwrap_or_default());
            match scheme {
                Scheme::Udp => BoundSocket::Udp(bind_inet(before, &address, Type::DGRAM)?.into()),
                _ => BoundSocket::Tcp(bind_inet(before, &address, Type::STREAM)?.into()),
            }
        }
        (At::Path(path), Scheme::Unixgram) => {
            let socket = bind_or_take(before, path, Type::DGRAM, access)?;
            BoundSocket::Unixgram(socket.into(), path.clone())
        }
        (At::Path(path), _) => {
            let socket = bind_or_take(before, path, Type::STREAM, access)?;
            BoundSocket::Unix(socket.into(), path.clone())
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

/// Binds `path`, or returns the existing socket at that path, and sets its permissions and owner.
fn bind_or_take(
    before: &[Arc<str>],
    path: &Path,
    kind: Type,
    access: &SocketAccess,
) -> io::Result<Socket> {
    let socket = match handover::take(before, kind, &SockAddr::unix(path)?) {
        Some(socket) => {
            access.apply(path)?;
            socket
        }
        None => bind_path(path, kind, access)?,
    };
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Binds `path`. Replaces a socket that a dead process left behind, but not one that is in use.
fn bind_path(path: &Path, kind: Type, access: &SocketAccess) -> io::Result<Socket> {
    match try_bind_path(path, kind, access) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = fs::metadata(path)?.file_type().is_socket();
            let is_used = || {
                let client = Socket::new(Domain::UNIX, kind, None)?;
                client.connect(&SockAddr::unix(path)?)
            };
            if !is_socket || is_used().is_ok() {
                return Err(error);
            }
            fs::remove_file(path)?;
            try_bind_path(path, kind, access)
        }
        bound => bound,
    }
}

/// Binds `path`. Connections are accepted only when the socket has its owner and its permissions.
fn try_bind_path(path: &Path, kind: Type, access: &SocketAccess) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, kind, None)?;
    access.close(&socket)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let listening = access.apply(path).and_then(|()| match kind {
        Type::STREAM => socket.listen(LOCAL_BACKLOG),
        _ => Ok(()),
    });
    if let Err(error) = listening {
        // The file may already be gone.
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
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
