//! The number of bytes at which a socket becomes readable (`SO_RCVLOWAT`), which std and rustix do not offer.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Makes a TCP socket readable only when `bytes` bytes have arrived, when its peer has closed, or when the kernel has no room
/// for more. Bytes that have arrived can be read at any time. TCP only: a Unix socket wakes its reader at the first byte.
pub fn wake_from(socket: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    let bytes: libc::c_int = bytes;
    // SAFETY: the pointer is to an int that outlives the call, and its true size is passed. The call only reads it.
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
