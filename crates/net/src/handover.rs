//! Listening sockets that outlive the process. systemd opens some before the process starts (sd_listen_fds(3)), and a process that
//! upgrades itself passes its sockets to the next program: those of sources, and those of the program's own interface.
//!
//! A source binds as usual. If the process inherited a socket with that address, the source gets the inherited socket. A source may
//! replace another one in a reload, under the same name or a new one. If both have the same address, the new source gets the socket
//! on which the replaced source still listens. Connections and datagrams that arrive during the switch wait in the socket, so no
//! sender is refused.
//!
//! A source can also leave other descriptors to the next program, each under a name: the session of a mount, for example
//! ([`leave`], [`take_named`]). They reach the next program in this process, or the next start of the service through systemd's
//! store of descriptors.

use std::{
    env,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::Path,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use millstream_sys::{child::LISTENERS, inherited};
use rustix::io::{FdFlags, fcntl_setfd};
use socket2::{SockAddr, SockRef, Socket, Type};

/// The first file descriptor that systemd passes.
const SYSTEMD_FIRST: RawFd = 3;

static SOCKETS: Mutex<Sockets> = Mutex::new(Sockets {
    inherited: Vec::new(),
    live: Vec::new(),
    kept: Vec::new(),
    named: Vec::new(),
    left: Vec::new(),
    next: Next::Nothing,
});

struct Sockets {
    /// Sockets that the process inherited and that no source has taken yet.
    inherited: Vec<Socket>,
    /// Sockets on which sources listen.
    live: Vec<Listening>,
    /// Sockets that stay open for the next program.
    kept: Vec<Arc<OwnedFd>>,
    /// Named descriptors that the process inherited and that no source has taken yet.
    named: Vec<Named>,
    /// The descriptors that sources have left to the next program.
    left: Vec<Left>,
    next: Next,
}

/// A descriptor and its name.
pub type Named = (String, OwnedFd);

/// The names of descriptors that a program leaves to the next one begin with this text.
pub const NAMED: &str = "left.";

/// The receiver of the descriptors that sources leave at a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is none: a source must leave nothing.
    Nothing,
    /// The program that replaces this one in the same process.
    Program,
    /// The service manager, which passes it to the next start of the service.
    Manager,
}

/// The descriptors that a source leaves to the next program.
struct Left {
    descriptors: Vec<Named>,
    /// Cleans up if no program follows.
    abandon: Box<dyn FnOnce() + Send>,
}

/// A socket on which a source listens.
struct Listening {
    source: Arc<str>,
    socket: Weak<OwnedFd>,
    /// The handle of the source that has taken this socket over. While that handle exists, no other source can take the socket.
    follower: Weak<OwnedFd>,
}

impl Listening {
    /// The socket, for a source that wants to take it over. `None` if the source that listens on it has ended, or if another source
    /// has already taken it over.
    fn to_follow(&self) -> Option<Arc<OwnedFd>> {
        let is_followed = self.follower.strong_count() > 0;
        self.socket.upgrade().filter(|_| !is_followed)
    }
}

fn sockets() -> MutexGuard<'static, Sockets> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A second handle of a listening socket. A source holds this handle for as long as the source listens on the socket.
#[derive(Debug)]
pub struct Live {
    handle: Option<Arc<OwnedFd>>,
}

impl Live {
    /// Registers a socket of this source. If the socket cannot be duplicated, it cannot be handed over later.
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

/// Takes over the sockets that the process was started with. Call this once, before the process opens any file. Returns whether this
/// program has replaced another one in the same process.
pub fn inherit() -> bool {
    let before = from_before();
    let is_replaced = before.is_some();
    let mut sockets = sockets();
    // systemd's numbers are those of the first program in this process. The programs after it get everything from the one before.
    let all = before.unwrap_or_else(|| from_systemd().collect());
    for (number, name) in all {
        let Ok(descriptor) = inherited::adopt(number) else {
            continue;
        };
        if name.starts_with(NAMED) {
            sockets.named.push((name, descriptor));
            continue;
        }
        let socket = Socket::from(descriptor);
        if socket.local_addr().is_ok() {
            sockets.inherited.push(socket);
        }
    }
    is_replaced
}

/// The names of the descriptors that the process inherited and that no source has taken.
pub fn names() -> Vec<String> {
    let sockets = sockets();
    sockets.named.iter().map(|(name, _)| name.clone()).collect()
}

/// Takes the inherited descriptors whose names begin with `prefix`. Returns them with the rest of their names.
pub fn take_named(prefix: &str) -> Vec<Named> {
    let mut sockets = sockets();
    let (taken, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut sockets.named)
        .into_iter()
        .partition(|(name, _)| name.starts_with(prefix));
    sockets.named = rest;
    let strip = |(name, descriptor): Named| (name[prefix.len()..].to_owned(), descriptor);
    taken.into_iter().map(strip).collect()
}

/// The receiver of the descriptors that sources leave at a stop.
pub fn next() -> Next {
    sockets().next
}

/// Sets who gets what sources leave. Call this before the stop.
pub fn set_next(next: Next) {
    sockets().next = next;
}

/// Leaves descriptors to the next program. `abandon` runs if no program follows.
pub fn leave(descriptors: Vec<Named>, abandon: impl FnOnce() + Send + 'static) {
    sockets().left.push(Left {
        descriptors,
        abandon: Box::new(abandon),
    });
}

/// Passes the descriptors that sources have left to `store`, which returns whether it has stored them for the next start of the
/// service. Descriptors that it has not stored are abandoned.
pub fn store_left(mut store: impl FnMut(&[Named]) -> bool) {
    let left = std::mem::take(&mut sockets().left);
    for left in left {
        if !store(&left.descriptors) {
            // The descriptors are closed first, so that nothing waits for this process.
            drop(left.descriptors);
            (left.abandon)();
        }
    }
}

/// The file descriptors that `LISTEN_FDS` announces, if `LISTEN_PID` is this process, with the names in `LISTEN_FDNAMES`.
fn from_systemd() -> impl Iterator<Item = (RawFd, String)> {
    let count: RawFd = match named("LISTEN_PID") == Some(process::id()) {
        true => named("LISTEN_FDS").unwrap_or(0),
        false => 0,
    };
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<String> = names.split(':').map(str::to_owned).collect();
    let names = names.into_iter().chain(std::iter::repeat(String::new()));
    (SYSTEMD_FIRST..SYSTEMD_FIRST.saturating_add(count)).zip(names)
}

fn named<T: std::str::FromStr>(variable: &str) -> Option<T> {
    env::var(variable).ok()?.parse().ok()
}

/// The file descriptors in the variable [`LISTENERS`] (`PID:N,N=NAME`: the process and the descriptors, some with a name), if the
/// previous program ran in this process.
fn from_before() -> Option<Vec<(RawFd, String)>> {
    let value = env::var(LISTENERS).ok()?;
    let (process, numbers) = value.split_once(':')?;
    let number = |text: &str| {
        let (number, name) = text.split_once('=').unwrap_or((text, ""));
        Some((number.parse().ok()?, name.to_owned()))
    };
    (process.parse() == Ok(process::id())).then(|| numbers.split(',').filter_map(number).collect())
}

/// Returns the socket of this type and address that the process inherited, or on which one of these sources listens.
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

/// Whether a socket has this type and this address.
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

/// Ensures that the sockets on which sources currently listen stay open for the next program, even after these sources have
/// ended, and that sources leave what they can to it.
pub fn keep() {
    let mut sockets = sockets();
    sockets.next = Next::Program;
    let live = sockets.live.iter();
    sockets.kept = live.filter_map(|live| live.socket.upgrade()).collect();
}

/// Whether the path of a unix socket must stay when `live` is dropped, because the next program or another source listens on it.
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
    let stays = |descriptor: &OwnedFd| {
        fcntl_setfd(descriptor, FdFlags::empty()).ok()?;
        Some(descriptor.as_raw_fd())
    };
    let kept = sockets.kept.iter();
    let kept = kept.filter_map(|kept| Some(stays(kept)?.to_string()));
    let left = sockets.left.iter().flat_map(|left| &left.descriptors);
    let left = left.filter_map(|(name, left)| Some(format!("{}={name}", stays(left)?)));
    let numbers: Vec<_> = kept.chain(left).collect();
    (
        LISTENERS,
        format!("{}:{}", process::id(), numbers.join(",")),
    )
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
        // Only one source can take the socket over.
        assert!(take(&both[..1]).is_none());
        assert!(keeps(&path, &live));
        // The first reload fails, the second one succeeds.
        drop((follower, second));
        let second = take(&both).unwrap();
        let follower = Live::of(&both[1], &second);
        drop((live, first));
        assert!(!keeps(&path, &follower));
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn keep_holds_the_sockets_of_running_sources_but_not_of_ended_ones() {
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
