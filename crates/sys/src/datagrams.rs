//! Receives many datagrams with one system call, and counts those that the kernel dropped.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! std and rustix receive one datagram per call; `recvmmsg` receives all that have arrived. It also
//! returns the senders' addresses. [`dropped`] tells how many datagrams were dropped because the
//! socket's buffer was full (`SO_MEMINFO`).

use std::{
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

/// The option that returns the counters of a socket's memory (Linux 4.12), their number, and the
/// index of the number of drops. Source: `sock_diag.h` and `asm-generic/socket.h`.
const SO_MEMINFO: libc::c_int = 55;
const MEMINFO_VALUES: usize = 9;
const MEMINFO_DROPS: usize = 8;
/// The number of spare bytes after the longest possible datagram in each slot. They keep the slots from beginning in the same cache
/// set.
const SPREAD_BYTES: usize = 5 * 64;

/// Receives datagrams into its own memory.
pub struct Receiver {
    bytes_max: usize,
    data: Vec<u8>,
    names: Vec<libc::sockaddr_storage>,
    received: Vec<Slot>,
}

/// The datagram in a slot.
#[derive(Clone, Copy, Default)]
struct Slot {
    length: usize,
    truncated: bool,
    from: Option<IpAddr>,
}

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The sender's address; `None` for a Unix socket. An IPv4-mapped address becomes an IPv4 address.
    pub from: Option<IpAddr>,
    /// Whether the datagram was longer than `bytes_max`, so that its end is missing.
    pub truncated: bool,
}

impl Receiver {
    /// A receiver of up to `count` datagrams per call, each of at most `bytes_max` bytes. Memory that no datagram reaches is never
    /// touched.
    pub fn new(count: usize, bytes_max: usize) -> Self {
        let count = count.max(1);
        // SAFETY: sockaddr_storage is plain data, for which all zeros are valid.
        #[allow(unsafe_code)]
        let name: libc::sockaddr_storage = unsafe { mem::zeroed() };
        Self {
            bytes_max,
            data: vec![0; count * (bytes_max + SPREAD_BYTES)],
            names: vec![name; count],
            received: vec![Slot::default(); count],
        }
    }

    /// The maximum number of datagrams per call.
    pub fn capacity(&self) -> usize {
        self.received.len()
    }

    /// Receives the datagrams that have arrived; returns how many, or [`io::ErrorKind::WouldBlock`] if there are none.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let stride = self.bytes_max + SPREAD_BYTES;
        let mut vectors: Vec<libc::iovec> = self
            .data
            .chunks_exact_mut(stride)
            .map(|slot| libc::iovec {
                iov_base: slot.as_mut_ptr().cast(),
                iov_len: self.bytes_max,
            })
            .collect();
        let places = vectors.iter_mut().zip(&mut self.names);
        let mut headers: Vec<libc::mmsghdr> =
            places.map(|(vector, name)| header(vector, name)).collect();
        // SAFETY: each header points to its own vector and name, with their true sizes, and each
        // vector to
        // `bytes_max` bytes of its slot in `data`. All of them outlive the call and do not move during it, and the kernel does
        // not keep the pointers. The timeout is null.
        #[allow(unsafe_code)]
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (header, slot) in headers.iter().take(count).zip(&mut self.received) {
            *slot = Slot {
                length: (header.msg_len as usize).min(self.bytes_max),
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                from: None,
            };
        }
        for (slot, name) in self.received.iter_mut().zip(&self.names).take(count) {
            slot.from = address(name);
        }
        Ok(count)
    }

    /// The datagrams of the last call, which returned `count`.
    pub fn datagrams(&self, count: usize) -> impl Iterator<Item = Datagram<'_>> {
        let stride = self.bytes_max + SPREAD_BYTES;
        let slots = self.data.chunks_exact(stride).zip(&self.received);
        slots.take(count).map(|(data, slot)| Datagram {
            bytes: data.get(..slot.length).unwrap_or(data),
            from: slot.from,
            truncated: slot.truncated,
        })
    }
}

/// The number of datagrams that the kernel has dropped since the socket was made, because its
/// buffer was full. The number wraps after `u32::MAX`. It is known at once, while a number that
/// comes with the next datagram (`SO_RXQ_OVFL`) is missing for as long as none arrives or none is
/// read.
pub fn dropped(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut values = [0_u32; MEMINFO_VALUES];
    let mut length = mem::size_of_val(&values) as libc::socklen_t;
    // SAFETY: the pointers are to an array and to its true size in bytes, and both outlive the
    // call. Any bytes are valid numbers.
    #[allow(unsafe_code)]
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(values[MEMINFO_DROPS])
}

fn header(vector: &mut libc::iovec, name: &mut libc::sockaddr_storage) -> libc::mmsghdr {
    name.ss_family = libc::AF_UNSPEC as libc::sa_family_t;
    // SAFETY: all zeros are a valid mmsghdr: null pointers with lengths of 0.
    #[allow(unsafe_code)]
    let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
    header.msg_hdr.msg_iov = vector;
    header.msg_hdr.msg_iovlen = 1;
    header.msg_hdr.msg_name = ptr::from_mut(name).cast();
    header.msg_hdr.msg_namelen = mem::size_of_val(name) as libc::socklen_t;
    header
}

fn address(name: &libc::sockaddr_storage) -> Option<IpAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family shows that the kernel has written a sockaddr_in; a sockaddr_storage is large and aligned enough.
            #[allow(unsafe_code)]
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, with a sockaddr_in6.
            #[allow(unsafe_code)]
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            Some(IpAddr::from(Ipv6Addr::from(name.sin6_addr.s6_addr)).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::UdpSocket,
        os::{fd::AsFd, unix::net::UnixDatagram},
    };

    use super::*;

    #[test]
    fn several_datagrams_arrive_with_their_senders() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut receiver = Receiver::new(4, 10);
        let none = receiver.receive(server.as_fd()).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for text in ["one", "", "longer than ten", "four", "five"] {
            client
                .send_to(text.as_bytes(), server.local_addr().unwrap())
                .unwrap();
        }
        let mut take = || {
            let count = receiver.receive(server.as_fd()).unwrap();
            let seen = receiver.datagrams(count);
            seen.map(|seen| {
                (
                    String::from_utf8_lossy(seen.bytes).into_owned(),
                    seen.truncated,
                    seen.from,
                )
            })
            .collect::<Vec<_>>()
        };
        let home = Some(IpAddr::from(Ipv4Addr::LOCALHOST));
        let expected = [
            ("one", false),
            ("", false),
            ("longer tha", true),
            ("four", false),
        ];
        assert_eq!(
            take(),
            expected.map(|(text, truncated)| (text.to_owned(), truncated, home))
        );
        assert_eq!(take(), [("five".to_owned(), false, home)]);
    }

    #[test]
    fn a_unix_datagram_has_no_sender_address_and_an_ipv6_datagram_has_one() {
        let (one, two) = UnixDatagram::pair().unwrap();
        one.send(b"x").unwrap();
        let mut receiver = Receiver::new(2, 10);
        assert_eq!(receiver.receive(two.as_fd()).unwrap(), 1);
        assert_eq!(receiver.datagrams(1).next().unwrap().from, None);
        let Ok(server) = UdpSocket::bind("[::1]:0") else {
            // This machine has no IPv6.
            return;
        };
        server.send_to(b"y", server.local_addr().unwrap()).unwrap();
        assert_eq!(receiver.receive(server.as_fd()).unwrap(), 1);
        assert_eq!(
            receiver.datagrams(1).next().unwrap().from,
            Some(Ipv6Addr::LOCALHOST.into())
        );
    }

    #[test]
    fn datagrams_that_the_kernel_drops_are_counted() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(dropped(server.as_fd()).unwrap(), 0);
        rustix::net::sockopt::set_socket_recv_buffer_size(&server, 4096).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mut receiver, text) = (Receiver::new(64, 2048), [b'x'; 1000]);
        let sent = 200;
        for _ in 0..sent {
            client.send_to(&text, server.local_addr().unwrap()).unwrap();
        }
        let mut taken = 0;
        while let Ok(count) = receiver.receive(server.as_fd()) {
            taken += count;
        }
        // No further datagram is needed.
        assert!(taken < sent);
        assert_eq!(dropped(server.as_fd()).unwrap(), (sent - taken) as u32);
    }
}
