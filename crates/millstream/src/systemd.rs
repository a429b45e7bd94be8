//! systemd: readiness over `NOTIFY_SOCKET` (sd_notify(3)), descriptors that it stores between two starts of the service, and whether
//! stderr is the journal.

use std::{
    env,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags},
};

/// The longest wait for the manager when a descriptor is stored.
const STORE_MAX: Duration = Duration::from_secs(2);

/// Sends a state such as `READY=1` to systemd, if `NOTIFY_SOCKET` is set. Errors are ignored.
pub fn notify(state: &str) {
    if let Ok(socket) = connected() {
        // A service manager that hangs must not block the main thread.
        let _ = socket.set_nonblocking(true);
        let _ = socket.send(state.as_bytes());
    }
}

/// Whether systemd stores descriptors for this service (`FileDescriptorStoreMax=`). It says so since version 254.
pub fn has_store() -> bool {
    let max = env::var("FDSTORE").ok().and_then(|max| max.parse().ok());
    max.is_some_and(|max: u32| max > 0) && env::var_os("NOTIFY_SOCKET").is_some()
}

/// Stores descriptors until the next start of the service, each under its name. Returns whether systemd has received them.
pub fn store(descriptors: &[(String, OwnedFd)]) -> bool {
    let store = || -> io::Result<()> {
        let socket = connected()?;
        socket.set_write_timeout(Some(STORE_MAX))?;
        for (name, descriptor) in descriptors {
            let state = format!("FDSTORE=1\nFDNAME={name}");
            send_with(&socket, &state, descriptor.as_fd())?;
        }
        await_received(&socket)
    };
    store()
        .inspect_err(|error| tracing::error!("systemd does not store descriptors: {error}"))
        .is_ok()
}

/// Removes the descriptors with these names from systemd's store.
pub fn unstore(names: &[String]) {
    for name in names {
        notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }
}

/// Waits until systemd has handled all earlier messages: only then it closes its end of the pipe.
fn await_received(socket: &UnixDatagram) -> io::Result<()> {
    let (ours, theirs) = io::pipe()?;
    send_with(socket, "BARRIER=1", theirs.as_fd())?;
    drop(theirs);
    let mut ended = [PollFd::new(&ours, PollFlags::empty())];
    let max = Timespec::try_from(STORE_MAX).map_err(io::Error::other)?;
    match poll(&mut ended, Some(&max))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

fn send_with(socket: &UnixDatagram, state: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let state = [IoSlice::new(state.as_bytes())];
    rustix::net::sendmsg(socket, &state, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A socket that is connected to `NOTIFY_SOCKET`.
fn connected() -> io::Result<UnixDatagram> {
    let path = env::var_os("NOTIFY_SOCKET").ok_or(io::ErrorKind::NotFound)?;
    // A leading `@` means an abstract address, which has no file.
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address?)?;
    Ok(socket)
}

/// Whether stderr is the journal: then `JOURNAL_STREAM` names the device and the inode of stderr (systemd.exec(5)).
pub fn stderr_is_journal() -> bool {
    let named = env::var("JOURNAL_STREAM").unwrap_or_default();
    let Some((device, inode)) = named.split_once(':') else {
        return false;
    };
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|stat| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}
