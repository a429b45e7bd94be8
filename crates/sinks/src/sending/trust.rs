//! How far a connection is trusted whose peer does not acknowledge records (syslog, forward with `ack: false`).
//!
//! ```text
//! connected --> a few bytes --> the peer's system acknowledges them --> the connection lasts --> twice as many bytes --> ...
//! ```
//! A peer that expects TLS or another protocol, or a proxy without a server behind it, accepts a connection, lets its system take
//! what is sent, and closes. If a sender wrote all it has to such connections, it would lose all of it. So a new connection proves
//! itself in rounds. The bytes of a round count as delivered when the peer's system has acknowledged it and the connection has
//! lasted for a while after that. Each round may write twice as much as the one before. After the last round the connection is
//! trusted: from then on, what the peer's system has acknowledged counts as delivered.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes that a TLS session may hold which the system has not got yet.
pub(crate) const TLS_BYTES: u64 = 64 << 10;

/// Bytes of the first round.
const FIRST_BYTES: u64 = 4 << 10;
/// Bytes of the last round.
const LAST_BYTES: u64 = 4 << 20;
/// How long a connection must last after the first round if none before it has failed. Each failed connection doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait after the first round.
const WAIT_MAX: Duration = Duration::from_secs(32);
/// How long a connection must last after each later round.
const ROUND_WAIT: Duration = Duration::from_millis(50);
/// After a connection has lasted this long, its end is no sign of a peer that takes no connection for long.
const LONG: Duration = Duration::from_secs(60);

/// How often connections have failed soon after they were made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShortLived(u32);

impl ShortLived {
    /// Notes that a connection has failed that was made `age` ago. Returns whether it had lasted long: the back-off starts over.
    pub(crate) fn failed(&mut self, age: Duration) -> bool {
        let long = age >= LONG;
        self.0 = if long { 1 } else { self.0.saturating_add(1) };
        long
    }
}

/// The trust in one connection.
#[derive(Debug)]
pub(crate) struct Trust {
    /// How many bytes may be written without a proof; `None`: the connection is trusted.
    window: Option<u64>,
    /// Bytes written, and how many of them count as delivered.
    written: u64,
    proven: u64,
    /// Bytes that the peer's system has acknowledged, and since when: they are proven when the connection has lasted for `wait`.
    pending: Option<(u64, Instant)>,
    wait: Duration,
}

impl Trust {
    /// The trust in a new connection.
    pub(crate) fn new(failed: ShortLived) -> Self {
        let wait = FIRST_WAIT.saturating_mul(1 << failed.0.min(16));
        Self {
            window: Some(FIRST_BYTES),
            written: 0,
            proven: 0,
            pending: None,
            wait: wait.min(WAIT_MAX),
        }
    }

    /// A connection that needs no proof: the system reports exactly what the peer has read.
    pub(crate) fn full() -> Self {
        Self {
            window: None,
            ..Self::new(ShortLived::default())
        }
    }

    /// How many bytes may be written now.
    pub(crate) fn room(&self) -> usize {
        self.window.map_or(usize::MAX, |window| {
            let open = self.written - self.proven;
            usize::try_from(window.saturating_sub(open)).unwrap_or(usize::MAX)
        })
    }

    /// Notes that the system has accepted `bytes` more.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// Notes how many of the written bytes the peer's system has not acknowledged. Returns how many of the bytes that were ever
    /// written to this connection count as delivered.
    pub(crate) fn note(&mut self, unsent: u64) -> u64 {
        let acknowledged = self.written.saturating_sub(unsent);
        let Some(window) = self.window else {
            self.proven = self.proven.max(acknowledged);
            return self.proven;
        };
        if self.pending.is_none() && acknowledged > self.proven {
            self.pending = Some((acknowledged, Instant::now()));
        }
        if let Some((bytes, since)) = self.pending
            && since.elapsed() >= self.wait
        {
            (self.proven, self.pending) = (bytes, None);
            self.wait = ROUND_WAIT;
            self.window = Some(2 * window).filter(|window| *window <= LAST_BYTES);
        }
        self.proven
    }

    /// Whether the first round is over.
    pub(crate) fn has_proof(&self) -> bool {
        self.proven > 0
    }

    /// Returns how many bytes count as delivered on a connection that has ended. `read`: the peer has closed the connection in an
    /// orderly way, after its program had read everything that its system had acknowledged, and not at once.
    pub(crate) fn ended(&mut self, unsent: u64, read: bool) -> u64 {
        if read {
            self.window = None;
        }
        self.note(unsent)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// Writes as much as is allowed, and waits until it is proven. Returns the number of bytes.
    async fn round(trust: &mut Trust) -> usize {
        let bytes = trust.room();
        trust.wrote(bytes);
        let before = trust.note(0);
        advance(Duration::from_millis(250)).await;
        assert_eq!(trust.note(0), before + bytes as u64);
        bytes
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_may_write_twice_as_much_after_each_proof_and_is_trusted_in_the_end() {
        let mut trust = Trust::new(ShortLived::default());
        let mut bytes = 4 << 10;
        while bytes <= 4 << 20 {
            assert_eq!(round(&mut trust).await, bytes);
            bytes *= 2;
        }
        assert_eq!(trust.room(), usize::MAX);
        let before = trust.note(0);
        trust.wrote(100);
        assert_eq!(trust.note(30), before + 70);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_proven_before_it_is_acknowledged_and_the_connection_has_lasted() {
        let mut trust = Trust::new(ShortLived::default());
        trust.wrote(1000);
        advance(Duration::from_secs(5)).await;
        assert_eq!(trust.note(1000), 0);
        assert_eq!(trust.note(200), 0);
        // Later writes do not delay the proof of earlier ones.
        trust.wrote(500);
        advance(Duration::from_millis(250)).await;
        assert_eq!(trust.note(500), 800);
        assert_eq!(trust.ended(300, false), 800);
        assert_eq!(trust.ended(300, true), 1200);
    }

    #[tokio::test(start_paused = true)]
    async fn each_connection_that_fails_early_makes_the_next_one_wait_longer() {
        let mut failed = ShortLived::default();
        for wait in [500, 1000, 2000, 4000] {
            assert!(!failed.failed(Duration::from_secs(3)));
            let mut trust = Trust::new(failed);
            trust.wrote(1);
            assert_eq!(trust.note(0), 0);
            advance(Duration::from_millis(wait - 1)).await;
            assert_eq!(trust.note(0), 0);
            advance(Duration::from_millis(1)).await;
            assert_eq!(trust.note(0), 1);
        }
        assert!(failed.failed(LONG));
        assert_eq!(failed.0, 1);
    }
}
