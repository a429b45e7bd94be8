//! The UDP heartbeat: any datagram is answered with one byte of zero, as Fluentd and Influent do.

use std::{io, net::SocketAddr, time::Duration};

use millstream_net::{Beside, Scheme};
use millstream_pipeline::{node::SourceContext, report::Reporter};
use tokio::task::JoinSet;

/// The answer that a sender with `heartbeat_type udp` waits for.
const ANSWER: [u8; 1] = [0];
/// The pause after an error of the socket itself, not of a datagram.
const PAUSE: Duration = Duration::from_millis(100);

/// UDP sockets at the addresses of the TCP listeners.
#[derive(Default)]
pub(super) struct Heartbeats(Vec<Beside>);

impl Heartbeats {
    /// Binds the sockets. The source works without heartbeats, so a failure is only logged.
    pub(super) fn bind(&mut self, addresses: &[(Scheme, SocketAddr)], context: &SourceContext) {
        for (_, address) in addresses {
            match Beside::bind(context, *address) {
                Ok(socket) => self.0.push(socket),
                Err(error) => {
                    let text = format_args!("no UDP heartbeats at {address}: {error}");
                    context.reporter.warn("heartbeat", text);
                }
            }
        }
    }

    /// Answers heartbeats until the returned future is dropped.
    pub(super) async fn answer(&self, reporter: &Reporter) {
        let mut tasks = JoinSet::new();
        for Beside { socket, .. } in &self.0 {
            let reporter = reporter.clone();
            match socket.try_clone().and_then(tokio::net::UdpSocket::from_std) {
                Ok(socket) => {
                    tasks.spawn_local(answer(socket, reporter));
                }
                Err(error) => {
                    reporter.warn("heartbeat", format_args!("no UDP heartbeats: {error}"));
                }
            }
        }
        while tasks.join_next().await.is_some() {}
    }
}

async fn answer(socket: tokio::net::UdpSocket, reporter: Reporter) -> io::Result<()> {
    // The content does not matter; the system drops the rest of a longer datagram.
    let mut datagram = [0; 1];
    loop {
        match socket.recv_from(&mut datagram).await {
            Ok((_, peer)) => {
                // A lost answer has the same effect as a lost datagram: the sender asks again within a second.
                let _ = socket.try_send_to(&ANSWER, peer);
            }
            Err(error) => {
                reporter.warn("heartbeat", format_args!("UDP heartbeat: {error}"));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
