//! The option `limits`: bounds on what peers may ask for.

use millstream_config::{Node, Period, Problem, Size};
use schemars::JsonSchema;
use serde::Deserialize;

/// Positions in a batch have 32 bits, and so do lengths on the wire.
const FRAME_BYTES_MAX: u64 = 1 << 30;

/// Bounds on what peers may ask for.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections at a time; more wait in the backlog of the listener. When all are open, one on which nothing ever came is
    /// closed for the next: the oldest, if it is older than a second (counted in `silent_connections_closed`). The limit of
    /// open files bounds the connections of all sources together in the same way.
    pub connections: u32,
    /// Bytes of one frame (chunk, message, request); a connection that sends a longer one is closed.
    pub frame: Size,
    /// Bytes of one payload after decompression; a longer one is treated as one that cannot be read.
    pub decompressed: Size,
    /// How long a peer may take for TLS and to authenticate.
    pub handshake: Period,
    /// A connection on which nothing came for so long, and that waits for no answer, is closed; 0: never.
    pub idle: Period,
    /// A peer that has begun a frame, a head or a body must send at least 1 KiB a second of it, measured over this time, and
    /// must read its answers within it; otherwise the connection is closed. While other messages wait for memory, each second
    /// must bring a sixtieth of the memory that the message holds, measured over at most 5 seconds. 0: no such limit.
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
    /// Everything that is wrong with them, at its place below `options`.
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
