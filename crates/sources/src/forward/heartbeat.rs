//! The UDP heartbeat: any datagram is answered with one byte of zero, as Fluentd and Influent do.

use std::{io, net::UdpSocket, time::Duration};

use millstream_pipeline::report::Reporter;

/// What a sender with `heartbeat_type udp` waits for.
const ANSWER: [u8; 1] = [0];
/// After an error of the socket (not of a datagram) it is left alone for so long.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers until it is dropped.
pub(super) async fn answer(socket: &UdpSocket, reporter: &Reporter) -> io::Result<()> {
    let socket = tokio::net::UdpSocket::from_std(socket.try_clone()?)?;
    // What the datagram holds is of no interest; the rest of a longer one is dropped by the system.
    let mut datagram = [0; 1];
    loop {
        match socket.recv_from(&mut datagram).await {
            Ok((_, peer)) => {
                // A lost answer is as good as a lost datagram: the sender asks again in a second.
                let _ = socket.try_send_to(&ANSWER, peer);
            }
            Err(error) => {
                reporter.warn("heartbeat", format_args!("UDP heartbeat: {error}"));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
