//! Heartbeats: whether servers answer, asked by one lane for all of them.
//!
//! The rule: a server that has answered, and then not for `silence` (5 s), is silent: it gets nothing, and what it was given is treated as
//! after a broken connection, until it answers again. One that never answered is not judged: a firewall may swallow datagrams, and what
//! refuses connections is noticed by those that carry records. fluentd's phi accrual detector comes to the same with a longer wait
//! (about 37 s at one beat a second) and needs a window of samples to say so; a fixed time can be read off the configuration.

use std::{collections::BTreeMap, io, net::SocketAddr, rc::Rc};

use tokio::{
    net::{UdpSocket, lookup_host},
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    link::Link,
    options::{Beat, Heartbeat},
};

/// How a server is, by its heartbeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pulse {
    /// It has answered before and does not any more.
    pub(super) silent: bool,
    /// How often it began to answer again.
    pub(super) returns: u64,
}

/// How the servers are, by their addresses.
pub(super) type Pulses = BTreeMap<String, Pulse>;

/// What the lanes of a sink share about it.
#[derive(Clone, Debug)]
pub(super) struct Hearts {
    options: Heartbeat,
    told: watch::Sender<Pulses>,
}

impl Hearts {
    pub(super) fn new(options: Heartbeat) -> Self {
        Self {
            options,
            told: watch::Sender::default(),
        }
    }

    /// What is found out from now on.
    pub(super) fn heard(&self) -> watch::Receiver<Pulses> {
        self.told.subscribe()
    }

    /// Whether servers are asked at all.
    pub(super) fn beats(&self) -> bool {
        self.options.by != Beat::None
    }

    /// Lives as long as the link does, and asks its server meanwhile.
    pub(super) async fn accompany(self, link: Rc<Link>) {
        tokio::select! {
            () = link.clone().run() => {}
            () = self.ask(&link) => {}
        }
    }

    /// Asks again and again, and tells what it finds.
    async fn ask(&self, link: &Link) {
        let silence = self.options.silence.as_duration();
        let interval = self.options.interval.as_duration();
        let (mut answered, mut missed): (Option<Instant>, bool) = (None, false);
        let mut socket = None;
        // It may have been a server before.
        self.tell(link, |pulse| pulse.silent = false);
        loop {
            let next = Instant::now() + interval;
            let answer = match self.options.by {
                // A datagram may be lost; a connection is tried again by the kernel meanwhile.
                Beat::Udp => timeout(interval, datagram(&mut socket, &link.address)).await,
                _ => timeout(silence, async { link.connect().await.map(drop) }).await,
            };
            if matches!(answer, Ok(Ok(()))) {
                answered = Some(Instant::now());
                if std::mem::take(&mut missed) {
                    self.tell(link, |pulse| {
                        pulse.silent = false;
                        pulse.returns += 1;
                    });
                }
            } else {
                missed = true;
                socket = None;
                link.meters.heartbeats_unanswered.add(1);
                if answered.is_some_and(|at| at.elapsed() >= silence) {
                    self.tell(link, |pulse| pulse.silent = true);
                }
            }
            sleep_until(next).await;
        }
    }

    fn tell(&self, link: &Link, change: impl FnOnce(&mut Pulse)) {
        self.told.send_if_modified(|pulses| {
            let pulse = pulses.entry(link.address.clone()).or_default();
            let before = *pulse;
            change(pulse);
            *pulse != before
        });
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
