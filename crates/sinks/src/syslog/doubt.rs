//! Estimates what a broken connection may have lost.
//!
//! ```text
//! The messages written to a server, oldest first:
//!
//! | read by the server's program | perhaps in its system's buffer         | not acknowledged by its system |
//!                                <- 256 KiB + 6 MiB or twice its window -> <--- reported by our system --->
//! ```
//! Syslog has no acknowledgements, so a sender cannot know more. This module computes an upper bound of the middle part. Whether a
//! program stores a message that it has read is not visible to the sender.

use std::collections::VecDeque;

/// Maximum bytes of written messages that are remembered: more than the buffers of both systems hold by default
/// (net.ipv4.tcp_wmem and tcp_rmem: 4 and 6 MiB).
const BYTES_MAX: u64 = 16 << 20;

/// A peer announces half of its free receive buffer as its TCP window, so an empty buffer has the size of this many windows.
const WINDOWS: u64 = 2;
/// The default maximum of a receive buffer (net.ipv4.tcp_rmem). The peer's buffer is assumed to have at least this size, because the
/// window of a buffer that is nearly full does not show the size of the buffer.
const BUFFER_BYTES: u64 = 6 << 20;
/// Bytes that the peer's program may have read and not processed: rsyslog reads 128 KiB at a time.
const PROGRAM_BYTES: u64 = 256 << 10;

/// The messages that were last written to one connection.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    lengths: VecDeque<u32>,
    bytes: u64,
    /// The largest window that the peer has announced, which may be 0; `None` without TCP.
    window: Option<u64>,
}

/// How many messages may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// The peer's system has not acknowledged them.
    pub(super) unacknowledged: u64,
    /// The peer's system has acknowledged them, but its program may not have read them.
    pub(super) in_doubt: u64,
}

impl Doubt {
    /// Notes that a message was completely written.
    pub(super) fn wrote(&mut self, length: usize) {
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

    /// Returns how many messages a broken connection may have lost, and forgets all messages. `unsent`: bytes that the peer's system
    /// has not acknowledged. `read`: whether the peer closed the connection gracefully. In this case, the peer's program has read
    /// everything that the peer's system has received.
    pub(super) fn broken(&mut self, unsent: u64, read: bool) -> Lost {
        let beyond = match (read, self.window) {
            (true, _) | (_, None) => 0,
            (false, Some(window)) => BUFFER_BYTES.max(WINDOWS * window) + PROGRAM_BYTES,
        };
        let (mut lost, mut bytes) = (Lost::default(), 0);
        for length in self.lengths.iter().rev() {
            if bytes >= unsent.saturating_add(beyond) {
                break;
            }
            if bytes < unsent {
                lost.unacknowledged += 1;
            } else {
                lost.in_doubt += 1;
            }
            bytes += u64::from(*length);
        }
        *self = Self::default();
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubt(messages: usize) -> Doubt {
        let mut doubt = Doubt::default();
        (0..messages).for_each(|_| doubt.wrote(100_000));
        doubt.window(Some(4_500_000));
        doubt.window(Some(250_000));
        doubt
    }

    #[test]
    fn unacknowledged_messages_and_those_that_fit_the_window_may_be_lost() {
        let lost = |unacknowledged, in_doubt| Lost {
            unacknowledged,
            in_doubt,
        };
        assert_eq!(doubt(150).broken(0, false), lost(0, 93));
        assert_eq!(doubt(150).broken(150_000, false), lost(2, 93));
        assert_eq!(doubt(150).broken(150_000, true), lost(2, 0));
        assert_eq!(doubt(3).broken(150_000, false), lost(2, 1));
        assert_eq!(doubt(0).broken(0, false), lost(0, 0));
        let mut full = Doubt::default();
        (0..150).for_each(|_| full.wrote(100_000));
        full.window(Some(0));
        assert_eq!(full.broken(0, false), lost(0, 66));
    }

    #[test]
    fn a_new_connection_has_no_message_in_doubt_and_memory_is_bounded() {
        let mut doubt = doubt(20);
        doubt.broken(100_000, false);
        assert_eq!(doubt.broken(100, false), Lost::default());
        for _ in 0..100_000 {
            doubt.wrote(1000);
        }
        assert!(doubt.bytes <= BYTES_MAX);
    }
}
