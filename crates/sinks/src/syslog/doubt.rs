//! Estimates what a broken connection may have lost.
//!
//! ```text
//! The messages written to a server, oldest first:
//!
//! | read by the server's program | perhaps in its system's buffer         | not acknowledged by its system, |
//!                                <- 256 KiB + 6 MiB or twice its window -> or not proven: sent again      |
//! ```
//! Syslog has no acknowledgements, so a sender cannot know more. This module computes an upper bound of the middle part. Whether a
//! program stores a message that it has read is not visible to the sender.

use std::collections::VecDeque;

/// Maximum bytes of messages that are remembered: more than the buffers of both systems hold by default
/// (net.ipv4.tcp_wmem and tcp_rmem: 4 and 6 MiB).
const BYTES_MAX: u64 = 16 << 20;

/// A peer announces half of its free receive buffer as its TCP window, so an empty buffer has the size of this many windows.
const WINDOWS: u64 = 2;
/// The default maximum of a receive buffer (net.ipv4.tcp_rmem). The peer's buffer is assumed to have at least this size, because the
/// window of a buffer that is nearly full does not show the size of the buffer.
const BUFFER_BYTES: u64 = 6 << 20;
/// Bytes that the peer's program may have read and not processed: rsyslog reads 128 KiB at a time.
const PROGRAM_BYTES: u64 = 256 << 10;

/// The last messages of one connection that count as delivered.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    lengths: VecDeque<u32>,
    bytes: u64,
    /// The largest window that the peer has announced, which may be 0; `None` without TCP.
    window: Option<u64>,
}

impl Doubt {
    /// Notes that a message counts as delivered.
    pub(super) fn delivered(&mut self, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.lengths.push_back(length);
        self.bytes += u64::from(length);
        while self.bytes > BYTES_MAX
            && let Some(first) = self.lengths.pop_front()
        {
            self.bytes -= u64::from(first);
        }
    }

    /// Notes the window that the peer has announced.
    pub(super) fn window(&mut self, bytes: Option<u64>) {
        self.window = self.window.max(bytes);
    }

    /// Returns how many delivered messages a broken connection may have lost, and forgets all messages. `read`: whether the peer closed
    /// the connection gracefully. In this case, the peer's program has read everything that the peer's system has received.
    pub(super) fn broken(&mut self, read: bool) -> u64 {
        let most = match (read, self.window) {
            (true, _) | (_, None) => 0,
            (false, Some(window)) => BUFFER_BYTES.max(WINDOWS * window) + PROGRAM_BYTES,
        };
        let (mut lost, mut bytes) = (0, 0);
        for length in self.lengths.iter().rev() {
            if bytes >= most {
                break;
            }
            lost += 1;
            bytes += u64::from(*length);
        }
        *self = Self::default();
        lost
    }

    /// Returns how many delivered datagrams are lost if no socket receives them: the last one. Forgets all messages.
    pub(super) fn refused(&mut self) -> u64 {
        let last = std::mem::take(self).lengths.pop_back();
        u64::from(last.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubt(messages: usize) -> Doubt {
        let mut doubt = Doubt::default();
        (0..messages).for_each(|_| doubt.delivered(100_000));
        doubt.window(Some(4_500_000));
        doubt.window(Some(250_000));
        doubt
    }

    #[test]
    fn messages_that_fit_the_buffers_of_the_peer_may_be_lost() {
        assert_eq!(doubt(150).broken(false), 93);
        assert_eq!(doubt(150).broken(true), 0);
        assert_eq!(doubt(3).broken(false), 3);
        assert_eq!(doubt(0).broken(false), 0);
        assert_eq!(doubt(3).refused(), 1);
        assert_eq!(doubt(0).refused(), 0);
        let mut full = Doubt::default();
        (0..150).for_each(|_| full.delivered(100_000));
        full.window(Some(0));
        assert_eq!(full.broken(false), 66);
    }

    #[test]
    fn a_new_connection_has_no_message_in_doubt_and_memory_is_bounded() {
        let mut doubt = doubt(20);
        doubt.broken(false);
        assert_eq!(doubt.broken(false), 0);
        for _ in 0..100_000 {
            doubt.delivered(1000);
        }
        assert!(doubt.bytes <= BYTES_MAX);
    }
}
