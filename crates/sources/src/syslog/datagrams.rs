//! Datagrams: UDP, and unix sockets such as `/dev/log`. One datagram is one message.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep`
//!
//! Datagrams that the kernel drops because its buffer is full are counted. The source drops none: while the next channel is
//! full, nothing is read.

use std::{
    fmt::Write,
    io::{self, ErrorKind},
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_net::Datagrams;
use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_record::{Time, Values};
use millstream_sys::datagrams::{self, Datagram, Receiver};
use rustix::net::sockopt;
use tokio::{sync::oneshot, task::JoinSet, time::sleep};

use super::{endpoint::Endpoint, flow::Flow};
use crate::{connection::Pace, flight::Flight, framing::piece};

/// The maximum number of datagrams that are received with one system call.
const DATAGRAMS: usize = 64;
/// The longest UDP datagram.
const UDP_BYTES_MAX: usize = 64 << 10;
/// The size of a receive buffer for a unix datagram: a little more than the Linux default limit (`net.core.wmem_default`).
const UNIX_BYTES_MAX: usize = 256 << 10;
/// The maximum number of unix datagrams that are received with one system call. It is smaller than for UDP, because each datagram may
/// be longer.
const UNIX_DATAGRAMS: usize = 16;
/// After a stop, each socket is still read up to a limit. The limit is the larger of this number of bytes and the size of the
/// socket's receive buffer. Without a limit, a flood would delay the stop. The unread bytes of a unix socket are in the buffers of
/// its senders, so the size of its receive buffer does not bound them.
const UNREAD_BYTES_MAX: usize = 64 << 20;
/// The smallest overhead of a datagram in the kernel's buffer, in bytes.
const BESIDE_BYTES: usize = 512;
/// Pause after an error of a socket.
const PAUSE: Duration = Duration::from_millis(100);

/// The time between two looks at the kernel's counts of dropped datagrams.
const LOOK: Duration = Duration::from_secs(1);

/// Sets the size of the receive buffer.
pub(super) fn prepare(socket: &Datagrams, bytes: usize, reporter: &Reporter) {
    if let Datagrams::Udp(socket) = socket {
        // If the process has the privilege, the size may exceed the administrator's limit.
        let set = sockopt::set_socket_recv_buffer_size_force(socket, bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes));
        if let Err(error) = set {
            let text = format_args!(
                "cannot set receive_buffer: {error}; the default of the system applies"
            );
            reporter.warn("receive_buffer", text);
        }
    }
}

/// The sockets, each with the kernel's count of dropped datagrams when it was last read. The kernel
/// counts from the start of a socket, so this value outlives a run of the source.
#[derive(Default)]
pub(super) struct Drops(Vec<(Datagrams, u32)>);

impl Drops {
    /// Begins to count. A socket that a reload has passed on has an earlier count.
    pub(super) fn begin(sockets: Vec<Datagrams>, reporter: &Reporter) -> Self {
        let counted = |socket: Datagrams| match datagrams::dropped(fd(&socket)) {
            Ok(count) => Some((socket, count)),
            Err(error) => {
                let text = format_args!("cannot count datagrams that the kernel drops: {error}");
                reporter.warn("drops", text);
                None
            }
        };
        Self(sockets.into_iter().filter_map(counted).collect())
    }

    /// Adds what was dropped since the last call to the meter, also while nothing is read because
    /// the next channel is full.
    fn count(&mut self, endpoint: &Endpoint) {
        let mut more = 0;
        for (socket, last) in &mut self.0 {
            if let Ok(now) = datagrams::dropped(fd(socket)) {
                more += u64::from(now.wrapping_sub(*last));
                *last = now;
            }
        }
        if more > 0 {
            endpoint.meters.datagrams_dropped.add(more);
            let text = format_args!(
                "the kernel dropped {more} datagrams because its buffer was full (receive_buffer)"
            );
            endpoint.context.reporter.warn("dropped", text);
        }
    }
}

fn fd(socket: &Datagrams) -> BorrowedFd<'_> {
    match socket {
        Datagrams::Udp(socket) => socket.as_fd(),
        Datagrams::Unix(socket) => socket.as_fd(),
    }
}

/// Reads all sockets, each on a data thread, until the source stops. If this future fails, or is dropped because another part of the
/// run has failed, the readers end as at a stop.
pub(super) async fn read_all(
    sockets: Vec<Datagrams>,
    endpoint: Arc<Endpoint>,
    drops: &mut Drops,
) -> Result<(), Failure> {
    let mut ends = JoinSet::new();
    for socket in sockets {
        let (run, end) = oneshot::channel();
        let (context, shared) = (endpoint.context.clone(), endpoint.clone());
        let start = move || read(socket, shared, run);
        context.threads.spawn(&context.reporter, start).await;
        ends.spawn_local(end);
    }
    loop {
        let end = tokio::select! {
            end = ends.join_next() => end,
            () = sleep(LOOK) => {
                drops.count(&endpoint);
                continue;
            }
        };
        match end {
            Some(Ok(Ok(()))) => {}
            Some(_) => return Err(Failure::us("a reader of datagrams failed")),
            None => break,
        }
    }
    drops.count(&endpoint);
    Ok(())
}

/// Reads one socket until the source stops or its run is over.
async fn read(socket: Datagrams, endpoint: Arc<Endpoint>, mut run: oneshot::Sender<()>) {
    let socket = &socket;
    let mut values = Values::new();
    let (count, bytes_max) = match socket {
        Datagrams::Udp(_) => (DATAGRAMS, UDP_BYTES_MAX),
        Datagrams::Unix(_) => {
            values.set("host", &*endpoint.context.host);
            values.set("peer", "unix");
            (UNIX_DATAGRAMS, UNIX_BYTES_MAX)
        }
    };
    let mut stop = endpoint.context.stop.clone();
    let mut reader = Reader {
        receiver: Receiver::new(count, bytes_max),
        pace: Pace::new(endpoint.gather),
        flow: Flow::new(endpoint.clone(), values),
        flight: Flight::new(()),
        peer: Peer::default(),
        lost: false,
    };
    loop {
        let came = tokio::select! {
            came = readable(socket) => came,
            () = stop.stopped() => break,
            // The next run has a reader for the socket.
            () = run.closed() => break,
        };
        if let Err(error) = came {
            // For example, the process has too many open files for a moment.
            let text = format_args!("cannot watch a datagram socket: {error}; retrying");
            endpoint.context.reporter.warn("socket", text);
            sleep(PAUSE).await;
        }
        // Ends the loop even during a flood.
        let is_over = || stop.is_stopped() || run.is_closed();
        while reader.receive_all(fd(socket), |_| is_over()).await && !is_over() {
            sleep(endpoint.gather).await;
        }
    }
    // Read what arrived before the stop, because the senders would not send it again.
    let buffer = sockopt::socket_recv_buffer_size(fd(socket)).unwrap_or(0);
    let unread = UNREAD_BYTES_MAX.max(buffer);
    reader
        .receive_all(fd(socket), |bytes| bytes >= unread)
        .await;
    reader.finish().await;
    let _ = run.send(());
}

/// Waits until a datagram arrives. The socket is watched only during the wait: a watched socket would wake its thread for every
/// datagram, even while the socket is read at intervals.
async fn readable(socket: &Datagrams) -> io::Result<()> {
    match socket {
        Datagrams::Udp(socket) => {
            let watched = tokio::net::UdpSocket::from_std(socket.try_clone()?)?;
            watched.readable().await
        }
        Datagrams::Unix(socket) => {
            let watched = tokio::net::UnixDatagram::from_std(socket.try_clone()?)?;
            watched.readable().await
        }
    }
}

struct Reader {
    receiver: Receiver,
    pace: Pace,
    flow: Flow,
    flight: Flight<()>,
    peer: Peer,
    /// Whether a batch was dropped before it was settled.
    lost: bool,
}

impl Reader {
    /// Receives datagrams until none is available, or until `enough` returns true. The argument of `enough` is the number of bytes
    /// that were freed in the kernel's buffer. Returns true if the caller should read again after a pause, and false if it should
    /// wait for the next datagram.
    async fn receive_all(
        &mut self,
        socket: BorrowedFd<'_>,
        enough: impl Fn(usize) -> bool,
    ) -> bool {
        let (mut bytes, mut beside, mut all) = (0, 0, false);
        while !all {
            let count = match self.receiver.receive(socket) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    let reporter = &self.flow.endpoint.context.reporter;
                    reporter.warn("receive", format_args!("cannot receive datagrams: {error}"));
                    sleep(PAUSE).await;
                    break;
                }
            };
            all = count < self.receiver.capacity();
            bytes += self.decode(count).await;
            beside += count * BESIDE_BYTES;
            if enough(bytes + beside) {
                break;
            }
        }
        self.send_batch().await;
        bytes > 0 && self.pace.is_busy(bytes, Instant::now(), false)
    }

    /// Decodes the datagrams that were received last. Returns their size in bytes.
    async fn decode(&mut self, count: usize) -> usize {
        self.flow.now = Time::now();
        let (mut bytes, mut cut) = (0, 0);
        let line_max = self.flow.endpoint.settings.bytes_max;
        for Datagram {
            bytes: text,
            from,
            truncated,
        } in self.receiver.datagrams(count)
        {
            bytes += text.len();
            cut += u64::from(truncated);
            let peer = from.map(|ip| self.peer.text(ip));
            if text.len() <= line_max {
                self.flow.message(text, peer).await;
            } else {
                let mut left = text;
                while !left.is_empty() {
                    let length = if left.len() > line_max {
                        piece(left, line_max)
                    } else {
                        left.len()
                    };
                    let (part, behind) = left.split_at(length);
                    left = behind;
                    self.flow.part(part, left.is_empty(), peer).await;
                }
            }
            if self.flow.is_full() {
                let awaited = self.flight.is_half_full();
                for receipt in self.flow.send(awaited).await {
                    self.flight.push(receipt, ());
                }
            }
        }
        let meters = &self.flow.endpoint.meters;
        meters.bytes_received.add(bytes as u64);
        meters.datagrams_received.add(count as u64);
        if cut > 0 {
            meters.datagrams_cut.add(cut);
            // Only for unix sockets: a UDP datagram cannot be that long.
            let most = UNIX_BYTES_MAX >> 10;
            let text = format_args!("unix: a datagram is longer than {most} KiB; its end is lost");
            self.flow.endpoint.context.reporter.warn("cut", text);
        }
        bytes
    }

    async fn send_batch(&mut self) {
        self.lost |= self.flow.send_in(&mut self.flight).await.is_err();
    }

    async fn finish(mut self) {
        self.lost |= self.flight.land().await.is_err();
        if self.lost {
            let text =
                "messages were dropped before they were settled, and cannot be received again";
            self.flow.endpoint.context.reporter.error("lost", text);
        }
    }
}

/// The address of the last sender, as text.
#[derive(Default)]
struct Peer {
    ip: Option<IpAddr>,
    text: String,
}

impl Peer {
    fn text(&mut self, ip: IpAddr) -> &[u8] {
        if self.ip != Some(ip) {
            self.ip = Some(ip);
            self.text.clear();
            // Writing to a String cannot fail.
            let _ = write!(self.text, "{ip}");
        }
        self.text.as_bytes()
    }
}
