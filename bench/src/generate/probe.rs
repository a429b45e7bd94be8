//! Single numbered messages and the acks expected for them, for measuring response times.

use super::chunk::{Chunk, Mode, Shape, Span};
use crate::record::{FlowId, Kind};

/// Makes messages one after the other.
pub struct Probe {
    chunk: Chunk,
    next: u64,
}

impl Probe {
    /// Creates a probe whose messages have one record with a text of 100 bytes, and an id.
    pub fn new(mode: Mode) -> Self {
        let shape = Shape {
            mode,
            tag: "bench".into(),
            size: 100,
            acks: true,
            base: 0,
        };
        let flow = FlowId { run: 0, flow: 0 };
        Self {
            chunk: Chunk::new(shape, flow),
            next: 0,
        }
    }

    /// Returns a message of one record, and the bytes of the ack that the server must send.
    pub fn next(&mut self) -> (&[u8], Vec<u8>) {
        let span = Span {
            first: self.next,
            count: 1,
            kind: Kind::Data,
        };
        self.next += 1;
        let ids: Vec<_> = self.chunk.ids(span).collect();
        // {"ack": the id, a string of 25 bytes}
        let ack = [b"\x81\xa3ack\xb9", &ids[0][..]].concat();
        (self.chunk.fill(span), ack)
    }
}
