//! Heartbeats find out whether servers answer. One lane (a parallel task of the sink) sends them for all lanes.
//!
//! A server is silent if it has answered before, but not for the time `silence` (default 5 s). Until a silent server answers again,
//! it gets no chunks, and the chunks that it has are treated as after a broken connection. A server that has never answered is not
//! silent: a firewall may drop datagrams, and the links notice refused connections. Fluentd's phi accrual detector has the same
//! effect after a longer wait (about 37 s at one beat a second) and needs a window of samples; a fixed time is visible in the
//! configuration.

use std::{collections::BTreeMap, io, net::SocketAddr};

use millstream_pipeline::meters::Meter;
use tokio::{
    net::{UdpSocket, lookup_host},
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::options::{Beat, Heartbeat};

/// The state of a server according to heartbeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pulse {
    /// The server has answered before and does not answer any more.
    pub(super) silent: bool,
    /// How often the server has begun to answer again.
    pub(super) returns: u64,
}

/// The pulses of servers, by address.
pub(super) type Pulses = BTreeMap<String, Pulse>;

/// The heartbeats of a sink, shared by its lanes.
#[derive(Clone, Debug)]
pub(super) struct Hearts {
    options: Heartbeat,
    pulses: watch::Sender<Pulses>,
}

impl Hearts {
    pub(super) fn new(options: Heartbeat) -> Self {
        Self {
            options,
            pulses: watch::Sender::default(),
        }
    }

    /// Subscribes to the pulses.
    pub(super) fn subscribe(&self) -> watch::Receiver<Pulses> {
        self.pulses.subscribe()
    }

    /// Whether heartbeats are sent at all.
    pub(super) fn is_on(&self) -> bool {
        self.options.by != Beat::None
    }

    /// Sends heartbeats to a server until dropped, and publishes its pulse. `connect` opens a connection and closes it.
    pub(super) async fn ask(
        &self,
        address: &str,
        unanswered: &Meter,
        connect: impl AsyncFn() -> io::Result<()>,
    ) {
        let silence = self.options.silence.as_duration();
        let interval = self.options.interval.as_duration();
        let (mut answered, mut missed): (Option<Instant>, bool) = (None, false);
        let mut socket = None;
        let _forgets = Forgets {
            pulses: &self.pulses,
            address,
        };
        loop {
            let next = Instant::now() + interval;
            let answer = match self.options.by {
                // A lost datagram is not retransmitted, so waiting longer than `interval` is useless. A lost SYN is retransmitted
                // by the kernel, so a connection gets the whole time `silence`.
                Beat::Udp => timeout(interval, datagram(&mut socket, address)).await,
                _ => timeout(silence, connect()).await,
            };
            if matches!(answer, Ok(Ok(()))) {
                answered = Some(Instant::now());
                if std::mem::take(&mut missed) {
                    self.publish(address, |pulse| {
                        pulse.silent = false;
                        pulse.returns += 1;
                    });
                }
            } else {
                missed = true;
                socket = None;
                unanswered.add(1);
                if answered.is_some_and(|at| at.elapsed() >= silence) {
                    self.publish(address, |pulse| pulse.silent = true);
                }
            }
            sleep_until(next).await;
        }
    }

    fn publish(&self, address: &str, change: impl FnOnce(&mut Pulse)) {
        self.pulses.send_if_modified(|pulses| {
            let pulse = pulses.entry(address.to_owned()).or_default();
            let before = *pulse;
            change(pulse);
            *pulse != before
        });
    }
}

/// Forgets the pulse of a server when no more heartbeats are sent to it. Other lanes may still have chunks for the server. If the
/// server stayed marked as silent, these lanes would never learn that it answers again.
struct Forgets<'a> {
    pulses: &'a watch::Sender<Pulses>,
    address: &'a str,
}

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        self.pulses
            .send_if_modified(|pulses| pulses.remove(self.address).is_some());
    }
}

/// Sends a datagram as fluentd does and waits for any answer.
async fn datagram(socket: &mut Option<UdpSocket>, address: &str) -> io::Result<()> {
    let socket = match socket {
        Some(socket) => socket,
        None => {
            let server = lookup_host(address).await?.next();
            let server = server.ok_or(io::ErrorKind::NotFound)?;
            let any = match server {
                SocketAddr::V4(_) => "0.0.0.0:0",
                SocketAddr::V6(_) => "[::]:0",
            };
            let fresh = UdpSocket::bind(any).await?;
            fresh.connect(server).await?;
            socket.insert(fresh)
        }
    };
    socket.send(&[0]).await?;
    socket.recv(&mut [0; 16]).await?;
    Ok(())
}
