//! From how many bytes on a socket wakes who waits for it (`SO_RCVLOWAT`), which std and rustix do not offer.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Who waits to read a TCP socket is woken when `bytes` are there, when its peer has closed, or when the system has no room
/// for so many. What is there can be read at any time. TCP only: a unix socket wakes with the first byte.
pub fn wake_from(socket: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    let bytes: libc::c_int = bytes;
    // SAFETY: the pointer stands for an int that lives until the call returns, and its size is given; the call only reads
    // it.
    #[allow(unsafe_code)]
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            mem::size_of_val(&bytes) as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
