//! The acks of one connection: tracks whether the peer requests acks, and encodes them.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `keep -> [settle]`

use millstream_pipeline::{delivery::Receipt, meters::Meter};
use millstream_wire::forward::{write_ack, write_json_ack};

use crate::connection::{Answer, Answers};

/// The acks of one connection.
pub(super) struct Acks {
    answers: Answers,
    /// Whether the peer speaks JSON, and so expects its acks as JSON.
    pub(super) json: bool,
    /// Whether the peer has sent a chunk id since the last [`Acks::is_awaited`].
    asked: bool,
    /// Whether the peer has ever sent a chunk id.
    identified: bool,
    /// The number of open connections whose peer has sent a chunk id.
    connections: Meter,
}

impl Acks {
    /// `connections` counts the connections whose peers ask for acks.
    pub(super) fn new(answers: Answers, connections: Meter) -> Self {
        Self {
            answers,
            json: false,
            asked: false,
            identified: false,
            connections,
        }
    }

    /// Notes a frame. `chunk` is the chunk id, which a sender adds to a frame if it waits for an ack.
    pub(super) fn note(&mut self, chunk: Option<&[u8]>) {
        self.asked |= chunk.is_some();
        if chunk.is_some() && !self.identified {
            self.identified = true;
            self.connections.add(1);
        }
    }

    /// Whether the peer has ever sent the id of a chunk.
    pub(super) fn is_identified(&self) -> bool {
        self.identified
    }

    /// Whether some acks are not written yet.
    pub(super) fn are_due(&self) -> bool {
        self.answers.open() > 0
    }

    /// Whether the peer waits for acks, or has sent the id of a chunk since the last call.
    pub(super) fn is_awaited(&mut self) -> bool {
        std::mem::take(&mut self.asked) || self.are_due()
    }

    /// Appends the ack of the chunk `id`.
    pub(super) fn write(&self, out: &mut Vec<u8>, id: &[u8]) {
        if self.json {
            // An id that was received as JSON can always be written as JSON.
            let _ = write_json_ack(out, id);
        } else {
            write_ack(out, id);
        }
    }

    /// Acks the chunk, if it has an id, once all `receipts` report success.
    pub(super) async fn answer(&self, receipts: Vec<Receipt>, chunk: Option<&[u8]>) {
        if let Some(id) = chunk {
            let mut acks = Vec::new();
            self.write(&mut acks, id);
            self.send(receipts, acks, 1).await;
        }
    }

    /// Queues `acks` for `count` chunks. They are written once all `receipts` report success.
    pub(super) async fn send(&self, receipts: Vec<Receipt>, acks: Vec<u8>, count: u64) {
        let answer = Answer {
            receipts,
            acks,
            count,
        };
        self.answers.push(answer).await;
    }
}

impl Drop for Acks {
    fn drop(&mut self) {
        if self.identified {
            self.connections.sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::answers;

    #[tokio::test]
    async fn a_peer_waits_from_its_first_chunk_id_until_the_ack_is_written() {
        let (answers, _answering) = answers();
        let connections = Meter::default();
        let mut acks = Acks::new(answers, connections.clone());
        acks.note(None);
        assert!(!acks.is_awaited() && !acks.is_identified());
        acks.note(Some(b"\xa11"));
        assert!(acks.is_awaited() && acks.is_identified());
        assert_eq!(connections.get(), 1);
        assert!(!acks.is_awaited() && !acks.are_due());
        acks.answer(Vec::new(), Some(b"\xa11")).await;
        assert!(acks.are_due() && acks.is_awaited());
        drop(acks);
        assert_eq!(connections.get(), 0);
    }
}
