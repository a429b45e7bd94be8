//! systemd: readiness over `NOTIFY_SOCKET` (sd_notify(3)), and whether stderr is the journal.

use std::{
    env,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

/// Sends a state such as `READY=1` to systemd, if `NOTIFY_SOCKET` is set. Errors are ignored.
pub fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    // A leading `@` means an abstract address, which has no file.
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        // A service manager that hangs must not block the main thread.
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
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
