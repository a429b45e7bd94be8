//! The option `limits`: bounds for peers.

use millstream_config::{Node, Period, Problem, Size};
use schemars::JsonSchema;
use serde::Deserialize;

/// The largest value of `frame` and of `decompressed`. It is limited because offsets in a batch and lengths on the wire have
/// 32 bits.
const FRAME_BYTES_MAX: u64 = 1 << 30;

/// Bounds for peers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum number of open connections; further ones wait in the backlog of the listener. When all are open, the oldest
    /// one that has not sent a byte is evicted if it is older than a second (counted in `silent_connections_closed`). The
    /// limit of open files bounds the connections of all sources together; reaching it also evicts a connection.
    pub connections: u32,
    /// Maximum size of one frame (chunk, message, request); a connection that sends a larger one is closed.
    pub frame: Size,
    /// Maximum size of one payload after decompression; a larger one is treated as unreadable.
    pub decompressed: Size,
    /// Timeout for TLS and authentication.
    pub handshake: Period,
    /// Timeout for a connection that sends nothing and waits for no answer; then it is closed. 0: never.
    pub idle: Period,
    /// Time over which a minimum rate is measured. A peer that has begun a frame, a head or a body must send at least 1 KiB
    /// of it per second, and must read an answer within this time; otherwise the connection is closed. While other messages
    /// wait for memory, the peer must send per second at least a sixtieth of the memory that its message holds; this rate
    /// is measured over at most 5 seconds. 0: no minimum.
    pub progress: Period,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            frame: Size::mib(64),
            decompressed: Size::mib(256),
            handshake: Period::secs(10),
            idle: Period::secs(600),
            progress: Period::secs(30),
        }
    }
}

impl Limits {
    /// Adds a problem for each invalid limit, at its option below `options`.
    pub(crate) fn check(&self, options: &Node, problems: &mut Vec<Problem>) {
        let mut refuse = |path: &str, text: &str| {
            problems.push(options.problem_at(path, format!("`{path}` {text}")));
        };
        for (path, size) in [
            ("limits.frame", self.frame),
            ("limits.decompressed", self.decompressed),
        ] {
            if size.is_zero() || size.as_bytes() > FRAME_BYTES_MAX {
                refuse(path, "must lie between 1B and 1GiB");
            }
        }
        if self.connections == 0 {
            refuse("limits.connections", "must be at least 1");
        }
        if self.handshake.is_zero() {
            refuse("limits.handshake", "must be longer than 0");
        }
    }
}
