//! The acks of one connection: which chunks asked for one, and what is written for them.
//!
//! `keep -> [settle]`

use millstream_pipeline::delivery::Receipt;
use millstream_wire::forward::{write_ack, write_json_ack};

use crate::connection::{Answer, Answers};

/// The acks of one connection.
pub(super) struct Acks {
    answers: Answers,
    /// Whether the peer speaks JSON, and so expects JSON.
    pub(super) json: bool,
    /// Whether a chunk id has come since the last [`Acks::is_awaited`].
    asked: bool,
    /// Whether one has ever come.
    identified: bool,
}

impl Acks {
    pub(super) fn new(answers: Answers) -> Self {
        Self {
            answers,
            json: false,
            asked: false,
            identified: false,
        }
    }

    /// A frame has come, with the id of a chunk if its sender waits for an ack.
    pub(super) fn note(&mut self, chunk: Option<&[u8]>) {
        self.asked |= chunk.is_some();
        self.identified |= chunk.is_some();
    }

    /// Whether the peer has ever sent the id of a chunk.
    pub(super) fn is_identified(&self) -> bool {
        self.identified
    }

    /// Whether acks are not written yet.
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
            // An id that came as JSON can be written as JSON.
            let _ = write_json_ack(out, id);
        } else {
            write_ack(out, id);
        }
    }

    /// Acks the chunk, if there is one, when all of `receipts` are good.
    pub(super) async fn answer(&self, receipts: Vec<Receipt>, chunk: Option<&[u8]>) {
        if let Some(id) = chunk {
            let mut acks = Vec::new();
            self.write(&mut acks, id);
            self.send(receipts, acks, 1).await;
        }
    }

    /// Writes `acks`, which are those of `count` chunks, when all of `receipts` are good.
    pub(super) async fn send(&self, receipts: Vec<Receipt>, acks: Vec<u8>, count: u64) {
        let answer = Answer {
            receipts,
            acks,
            count,
        };
        self.answers.push(answer).await;
    }
}
