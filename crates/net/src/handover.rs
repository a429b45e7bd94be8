//! Listening sockets that outlive the process: systemd opens some before it starts (sd_listen_fds(3)), and a process that upgrades itself gives
//! its own to the next program.
//!
//! A source binds as usual. If the process was started with a socket at the address, the source gets that socket. A source that
//! follows another one at a reload, under the same name or a new one, gets the socket on which the other still listens. Connections
//! and datagrams that arrive in between wait in the socket, and no sender is refused.

use std::{
    env,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::Path,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use millstream_sys::inherited;
use rustix::io::{FdFlags, fcntl_setfd};
use socket2::{SockAddr, SockRef, Socket, Type};

/// Names the process and the numbers of the sockets that the previous program has left open: `PID:N,N`.
const VARIABLE: &str = "MILLSTREAM_LISTENERS";
/// The number of the first socket of systemd.
const SYSTEMD_FIRST: RawFd = 3;

static SOCKETS: Mutex<Sockets> = Mutex::new(Sockets {
    inherited: Vec::new(),
    live: Vec::new(),
    kept: Vec::new(),
});

struct Sockets {
    /// Sockets with which the process was started and that no source has taken yet.
    inherited: Vec<Socket>,
    /// Sockets on which sources listen.
    live: Vec<Listening>,
    /// Sockets for the next program.
    kept: Vec<Arc<OwnedFd>>,
}

/// A socket at which a source listens.
struct Listening {
    source: Arc<str>,
    socket: Weak<OwnedFd>,
    /// The handle of the source that has taken it over. While it exists, no other source takes the socket.
    follower: Weak<OwnedFd>,
}

impl Listening {
    /// The handle, unless the source has ended or another source has already taken it over.
    fn to_follow(&self) -> Option<Arc<OwnedFd>> {
        let is_followed = self.follower.strong_count() > 0;
        self.socket.upgrade().filter(|_| !is_followed)
    }
}

fn sockets() -> MutexGuard<'static, Sockets> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds a second handle of a listening socket, for as long as its source listens.
#[derive(Debug)]
pub(crate) struct Live {
    handle: Option<Arc<OwnedFd>>,
}

impl Live {
    /// Registers a socket of this source. If it cannot be duplicated, it closes when this program ends.
    pub(crate) fn of(source: &Arc<str>, socket: impl AsFd) -> Self {
        let Ok(handle) = socket.as_fd().try_clone_to_owned().map(Arc::new) else {
            return Self { handle: None };
        };
        let own = SockRef::from(&*handle);
        let own = own.local_addr().and_then(|at| Ok((at, own.r#type()?)));
        let mut sockets = sockets();
        sockets.live.retain(|live| live.socket.strong_count() > 0);
        for before in &mut sockets.live {
            let is_same = |socket: &OwnedFd| {
                own.as_ref()
                    .is_ok_and(|(at, kind)| is_it(SockRef::from(socket), *kind, at))
            };
            if before.to_follow().is_some_and(|socket| is_same(&socket)) {
                before.follower = Arc::downgrade(&handle);
            }
        }
        sockets.live.push(Listening {
            source: source.clone(),
            socket: Arc::downgrade(&handle),
            follower: Weak::new(),
        });
        Self {
            handle: Some(handle),
        }
    }
}

/// Takes over the sockets that the process was started with. To be called once, before anything is opened.
pub fn inherit() {
    let found = from_systemd().chain(from_before()).filter_map(|number| {
        let socket = Socket::from(inherited::adopt(number).ok()?);
        socket.local_addr().is_ok().then_some(socket)
    });
    let found: Vec<_> = found.collect();
    sockets().inherited = found;
}

/// The numbers in `LISTEN_FDS`, if systemd means this process.
fn from_systemd() -> impl Iterator<Item = RawFd> {
    let count: RawFd = match named("LISTEN_PID") == Some(process::id()) {
        true => named("LISTEN_FDS").unwrap_or(0),
        false => 0,
    };
    SYSTEMD_FIRST..SYSTEMD_FIRST.saturating_add(count)
}

fn named<T: std::str::FromStr>(variable: &str) -> Option<T> {
    env::var(variable).ok()?.parse().ok()
}

/// The numbers in [`VARIABLE`], if the previous program ran in this process.
fn from_before() -> impl Iterator<Item = RawFd> {
    let value = env::var(VARIABLE).unwrap_or_default();
    let (process, numbers) = value.split_once(':').unwrap_or_default();
    let numbers = match process.parse() == Ok(process::id()) {
        true => numbers,
        false => "",
    };
    let numbers: Vec<_> = numbers.split(',').flat_map(str::parse).collect();
    numbers.into_iter()
}

/// The socket of this type at an address that the process was started with, or at which one of these sources listens.
pub(crate) fn take(sources: &[Arc<str>], kind: Type, address: &SockAddr) -> Option<Socket> {
    let mut sockets = sockets();
    let is_it = |socket: SockRef<'_>| is_it(socket, kind, address);
    let mut inherited = sockets.inherited.iter();
    if let Some(at) = inherited.position(|socket| is_it(SockRef::from(socket))) {
        return Some(sockets.inherited.swap_remove(at));
    }
    let before = sockets.live.iter();
    let before = before.filter(|live| sources.contains(&live.source));
    let before = before.filter_map(Listening::to_follow);
    let mut found = before.filter(|live| is_it(SockRef::from(&**live)));
    found.next()?.try_clone().ok().map(Socket::from)
}

/// Whether a socket is of this type and at this address.
fn is_it(socket: SockRef<'_>, kind: Type, address: &SockAddr) -> bool {
    let is_at = socket.local_addr().is_ok_and(|own| is_same(&own, address));
    is_at && socket.r#type().is_ok_and(|own| own == kind)
}

fn is_same(one: &SockAddr, other: &SockAddr) -> bool {
    match (one.as_socket(), one.as_pathname()) {
        (Some(address), _) => other.as_socket() == Some(address),
        (None, Some(path)) => other.as_pathname() == Some(path),
        (None, None) => false,
    }
}

/// Closes the inherited sockets that no source has taken; returns their addresses.
#[must_use]
pub fn close_rest() -> Vec<String> {
    let rest = std::mem::take(&mut sockets().inherited);
    let name = |socket: &Socket| {
        let address = socket.local_addr().ok()?;
        let path = || address.as_pathname().map(|path| path.display().to_string());
        let inet = address.as_socket().map(|address| address.to_string());
        inet.or_else(path)
    };
    rest.iter().filter_map(name).collect()
}

/// Keeps the sockets at which sources listen now for the next program, also when the sources have ended.
pub fn keep() {
    let mut sockets = sockets();
    let live = sockets.live.iter();
    sockets.kept = live.filter_map(|live| live.socket.upgrade()).collect();
}

/// Whether the path of a unix socket stays when `live` closes: the next program or the next source listens there.
pub(crate) fn keeps(path: &Path, live: &Live) -> bool {
    let sockets = sockets();
    let is_there = |socket: &Arc<OwnedFd>| {
        let address = SockRef::from(&**socket).local_addr();
        address.is_ok_and(|address| address.as_pathname() == Some(path))
    };
    let is_other = |socket: &Arc<OwnedFd>| {
        let own = live.handle.as_ref();
        own.is_none_or(|own| !Arc::ptr_eq(own, socket))
    };
    let others = sockets.live.iter().filter_map(|live| live.socket.upgrade());
    sockets.kept.iter().any(is_there) || others.filter(is_other).any(|other| is_there(&other))
}

/// Leaves the kept sockets open for the program that replaces this one in the same process. Returns the environment variable that
/// names them, and its value.
#[must_use]
pub fn hand_over() -> (&'static str, String) {
    let sockets = sockets();
    let left = sockets.kept.iter().filter_map(|kept| {
        fcntl_setfd(kept.as_fd(), FdFlags::empty()).ok()?;
        Some(kept.as_raw_fd().to_string())
    });
    let numbers: Vec<_> = left.collect();
    (VARIABLE, format!("{}:{}", process::id(), numbers.join(",")))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn a_source_gets_the_inherited_socket_of_its_type_at_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let datagrams = UdpSocket::bind(address).unwrap();
        let number = datagrams.as_raw_fd();
        sockets()
            .inherited
            .extend([listener.into(), datagrams.into()]);
        let elsewhere = "127.0.0.1:1".parse::<std::net::SocketAddr>().unwrap();
        assert!(take(&[], Type::STREAM, &elsewhere.into()).is_none());
        let taken = take(&[], Type::DGRAM, &address.into()).unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert!(take(&[], Type::DGRAM, &address.into()).is_none());
        assert!(close_rest().contains(&address.to_string()));
        assert!(take(&[], Type::STREAM, &address.into()).is_none());
    }

    #[test]
    fn one_source_that_follows_another_gets_the_socket_and_its_path_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let first = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let [old, new]: [Arc<str>; 2] = ["old", "new"].map(Into::into);
        let live = Live::of(&old, &first);
        let address = SockAddr::unix(&path).unwrap();
        let take = |sources: &[Arc<str>]| take(sources, Type::STREAM, &address);
        assert!(take(std::slice::from_ref(&new)).is_none());
        let both = [old, new];
        let second = take(&both).unwrap();
        let follower = Live::of(&both[1], &second);
        // Of two sources at one address, only one can follow.
        assert!(take(&both[..1]).is_none());
        assert!(keeps(&path, &live));
        // The reload fails; the next one does not.
        drop((follower, second));
        let second = take(&both).unwrap();
        let follower = Live::of(&both[1], &second);
        drop((live, first));
        assert!(!keeps(&path, &follower));
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn a_live_socket_is_kept_when_its_source_ends_and_others_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["ended", "kept"].map(|name| directory.path().join(name));
        let bind = |path: &Path| std::os::unix::net::UnixListener::bind(path).unwrap();
        let source = "in".into();
        let ended = Live::of(&source, bind(&paths[0]));
        assert!(!keeps(&paths[0], &ended));
        drop(ended);
        let live = Live::of(&source, bind(&paths[1]));
        keep();
        assert!(!keeps(&paths[0], &live) && keeps(&paths[1], &live));
        drop(live);
        let (_, value) = hand_over();
        assert!(value.starts_with(&format!("{}:", process::id())), "{value}");
        assert!(std::os::unix::net::UnixStream::connect(&paths[1]).is_ok());
        sockets().kept.clear();
        assert!(std::os::unix::net::UnixStream::connect(&paths[1]).is_err());
    }
}
