//! How much of the data written to a socket is still in flight, which std and rustix do not show.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
};

/// The bytes that were written and that the peer's kernel has not acknowledged (TCP), or that the peer has not read (Unix
/// sockets): `SIOCOUTQ`.
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes an int through the pointer, which is to an int that outlives the call.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match result {
        0 => Ok(u64::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The peer's receive window as it last advertised it, in bytes (TCP).
pub fn peer_window_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    /// `struct tcp_info` up to `tcpi_snd_wnd` (Linux 5.4), in words of 32 bits: 57 come before it.
    const WORDS: usize = 58;
    let mut info = [0_u32; WORDS];
    let mut length = mem::size_of_val(&info) as libc::socklen_t;
    // SAFETY: the call writes at most `length` bytes through the pointer, which is to an array of that size.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(u64::from(info[WORDS - 1])),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
        os::{fd::AsFd, unix::net::UnixStream},
    };

    use super::*;

    #[test]
    fn a_unix_socket_shows_how_much_was_not_read() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        assert_eq!(unsent_bytes(writer.as_fd()).unwrap(), 0);
        writer.write_all(b"twelve bytes").unwrap();
        // The kernel counts its own overhead, too.
        assert!(unsent_bytes(writer.as_fd()).unwrap() >= 12);
        drop(reader);
    }

    #[test]
    fn tcp_shows_the_window_and_how_much_is_not_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let window = peer_window_bytes(writer.as_fd()).unwrap();
        assert!((1 << 10..1 << 30).contains(&window), "{window}");
        writer.set_nonblocking(true).unwrap();
        let block = [0; 1 << 16];
        let mut written = 0;
        while let Ok(bytes) = writer.write(&block) {
            written += bytes as u64;
        }
        // The peer does not read: some bytes are in its receive buffer, the others are still in the send buffer of this socket.
        let unsent = unsent_bytes(writer.as_fd()).unwrap();
        assert!(unsent > 0 && unsent <= written, "{unsent} of {written}");
    }
}
