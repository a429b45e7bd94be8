//! Datagrams: UDP, and unix sockets such as `/dev/log`. One datagram is one message.
//!
//! `[read] -> [decode] -> [send] -> keep`
//!
//! What the system drops because it has no room for it is counted; here nothing is dropped: while the outlet has no room,
//! no more is read.

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
use tokio::{sync::oneshot, time::sleep};

use super::{Shared, flow::Flow};
use crate::{connection::Pace, flight::Flight, framing::piece};

/// So many datagrams are received with one system call.
const DATAGRAMS: usize = 64;
/// No datagram of UDP is longer.
const UDP_BYTES_MAX: usize = 64 << 10;
/// What Linux lets a unix socket send at once by default (`net.core.wmem_default`), and a bit.
const UNIX_BYTES_MAX: usize = 256 << 10;
/// Fewer at a time, as each may be longer.
const UNIX_DATAGRAMS: usize = 16;
/// At a stop so much is still read of what the system holds, or its buffer if that is larger: a flood must not hold up the
/// stop. The buffers of unix sockets are those of their senders.
const REST_BYTES_MAX: usize = 64 << 20;
/// What a datagram takes in the buffer of the system beside its bytes, at least.
const BESIDE_BYTES: usize = 512;
/// After an error of a socket it is left alone for so long.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks the system for room, and for the number of what found none.
pub(super) fn prepare(socket: &Datagrams, bytes: usize, reporter: &Reporter) {
    if let Datagrams::Udp(socket) = socket {
        // Beyond the bound that the administrator set, if we may.
        let set = sockopt::set_socket_recv_buffer_size_force(socket, bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes));
        if let Err(error) = set {
            let text = format_args!("receive_buffer is as the system has it: {error}");
            reporter.warn("receive_buffer", text);
        }
    }
    if let Err(error) = datagrams::count_drops(fd(socket)) {
        let text = format_args!("what the system drops is not counted: {error}");
        reporter.warn("drops", text);
    }
}

fn fd(socket: &Datagrams) -> BorrowedFd<'_> {
    match socket {
        Datagrams::Udp(socket) => socket.as_fd(),
        Datagrams::Unix(socket) => socket.as_fd(),
    }
}

/// Reads all of them, each on a data thread, until it is time to stop.
pub(super) async fn read_all(sockets: Vec<Datagrams>, shared: Arc<Shared>) -> Result<(), Failure> {
    let mut tasks = Vec::new();
    for socket in sockets {
        let (ended, end) = oneshot::channel();
        let (context, shared) = (shared.context.clone(), shared.clone());
        let start = move || async move {
            let _ = ended.send(read(&socket, shared).await);
        };
        context.threads.spawn(&context.reporter, start).await;
        tasks.push(end);
    }
    for task in tasks {
        let died = |_| Failure::us("a reader of datagrams died");
        task.await.map_err(died)??;
    }
    Ok(())
}

/// Reads one socket.
async fn read(socket: &Datagrams, shared: Arc<Shared>) -> Result<(), Failure> {
    let mut values = Values::new();
    let (count, bytes_max) = match socket {
        Datagrams::Udp(_) => (DATAGRAMS, UDP_BYTES_MAX),
        Datagrams::Unix(_) => {
            values.set("host", &*shared.context.host);
            values.set("peer", "unix");
            (UNIX_DATAGRAMS, UNIX_BYTES_MAX)
        }
    };
    let mut stop = shared.context.stop.clone();
    let mut reader = Reader {
        receiver: Receiver::new(count, bytes_max),
        pace: Pace::new(shared.gather),
        flow: Flow::new(shared.clone(), values),
        flight: Flight::new(()),
        peer: Peer::default(),
        dropped: 0,
        lost: false,
    };
    let ended = loop {
        let came = tokio::select! {
            came = readable(socket) => came,
            () = stop.stopped() => break Ok(()),
        };
        if let Err(error) = came {
            let text = format!("cannot watch a socket of datagrams: {error}");
            break Err(Failure::us(text));
        }
        // A flood never leaves this otherwise.
        while reader.take(fd(socket), |_| stop.is_stopped()).await && !stop.is_stopped() {
            sleep(shared.gather).await;
        }
    };
    // What came before the wish to stop is taken: nobody would send it again.
    let buffer = sockopt::socket_recv_buffer_size(fd(socket)).unwrap_or(0);
    let rest = REST_BYTES_MAX.max(buffer);
    reader.take(fd(socket), |bytes| bytes >= rest).await;
    reader.finish().await;
    ended
}

/// Waits until something has come. Afterwards the socket is not watched: a watched one wakes its thread for every
/// datagram, also while it is read by the clock.
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
    /// As the system said last.
    dropped: u32,
    /// Something was dropped before it was settled.
    lost: bool,
}

impl Reader {
    /// Takes everything that is there; `enough`: or stops at so many bytes of the system's buffer. Whether to wait before
    /// the next read, in place of being woken by it.
    async fn take(&mut self, socket: BorrowedFd<'_>, enough: impl Fn(usize) -> bool) -> bool {
        let (mut bytes, mut beside, mut all) = (0, 0, false);
        while !all {
            let count = match self.receiver.receive(socket) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    let reporter = &self.flow.shared.context.reporter;
                    reporter.warn("receive", format_args!("datagrams cannot be read: {error}"));
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
        self.leave().await;
        bytes > 0 && self.pace.is_busy(bytes, Instant::now(), false)
    }

    /// Makes records of the datagrams that came last; their bytes.
    async fn decode(&mut self, count: usize) -> usize {
        self.flow.now = Time::now();
        let (mut bytes, mut cut) = (0, 0);
        let line_max = self.flow.shared.settings.bytes_max;
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
                let mut rest = text;
                while !rest.is_empty() {
                    let length = if rest.len() > line_max {
                        piece(rest, line_max)
                    } else {
                        rest.len()
                    };
                    let (part, behind) = rest.split_at(length);
                    rest = behind;
                    self.flow.part(part, rest.is_empty(), peer).await;
                }
            }
            if self.flow.is_full() {
                let awaited = self.flight.is_half_full();
                for receipt in self.flow.leave(awaited).await {
                    self.flight.push(receipt, ());
                }
            }
        }
        let meters = &self.flow.shared.meters;
        meters.bytes_received.add(bytes as u64);
        meters.datagrams_received.add(count as u64);
        if cut > 0 {
            meters.datagrams_cut.add(cut);
            // One of UDP cannot be so long.
            let most = UNIX_BYTES_MAX >> 10;
            let text = format_args!("unix: a datagram has more than {most} KiB; its end is lost");
            self.flow.shared.context.reporter.warn("cut", text);
        }
        if let Some(dropped) = self.receiver.dropped() {
            let more = dropped.wrapping_sub(self.dropped);
            self.dropped = dropped;
            if more > 0 {
                meters.datagrams_dropped.add(more.into());
                let text = format_args!(
                    "the system dropped {more} datagrams that found no room (receive_buffer)"
                );
                self.flow.shared.context.reporter.warn("dropped", text);
            }
        }
        bytes
    }

    async fn leave(&mut self) {
        let awaited = self.flight.is_half_full();
        for receipt in self.flow.leave(awaited).await {
            self.flight.push(receipt, ());
        }
        self.lost |= self.flight.collect().is_err();
        while self.flight.is_full() {
            self.flight.answered().await;
            self.lost |= self.flight.collect().is_err();
        }
    }

    async fn finish(mut self) {
        self.lost |= self.flight.land().await.is_err();
        if self.lost {
            let text = "messages were dropped before they were settled, and cannot be had again";
            self.flow.shared.context.reporter.error("lost", text);
        }
    }
}

/// The text of the address that was seen last.
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
            // Writing to a String does not fail.
            let _ = write!(self.text, "{ip}");
        }
        self.text.as_bytes()
    }
}
