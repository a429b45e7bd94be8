//! The ids of chunks (`forward`), and of requests and documents (`http`). Receivers recognize a resend by its id.
//!
//! For records from a durable channel an id is `CHANNEL.EPOCH.SEQ.NUMBER.CRC`: the channel's id (32 hex digits), the position of the
//! frame (a batch as the channel stores it), the number of the part (or document) at this position, and the CRC-32C of its bytes (8
//! hex digits). The split of a frame into parts depends on its bytes alone. So the same bytes have the same id after a restart, and
//! different bytes (if a new version splits frames differently, or other processors change the records) have a different id. For
//! records from memory an id is `RANDOM-COUNTER`. It need not survive a restart, because the source resends unsettled records as new
//! batches.

use std::fmt::{self, Write};

use millstream_pipeline::failure::Failure;
use millstream_record::Position;
use millstream_sys::{checksum::crc32c, random};

/// The id of bytes from a durable channel.
pub(crate) struct DurableId<'a> {
    pub(crate) channel: u128,
    pub(crate) position: Position,
    /// The number of the bytes at this position.
    pub(crate) number: usize,
    pub(crate) bytes: &'a [u8],
}

impl fmt::Display for DurableId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            position,
            number,
            bytes,
        } = self;
        let crc = crc32c(bytes);
        write!(f, "{channel:032x}.{position}.{number}.{crc:08x}")
    }
}

/// Makes ids.
#[derive(Debug)]
pub(crate) enum Ids {
    /// From positions in the durable channel with this id.
    Durable(u128),
    /// From a random number and a counter.
    Memory {
        /// A random number, different at every start.
        random: u128,
        /// The number of the last id.
        last: u64,
    },
}

impl Ids {
    /// Creates ids for this durable channel; `None`: for memory.
    pub(super) fn new(channel: Option<u128>) -> Result<Self, Failure> {
        if let Some(channel) = channel {
            return Ok(Self::Durable(channel));
        }
        let random = random::bytes().map_err(|error| {
            Failure::us(format!("the system gave no random number for ids: {error}"))
        })?;
        Ok(Self::Memory {
            random: u128::from_ne_bytes(random),
            last: 0,
        })
    }

    /// Returns the id of a part. `stored`: the bytes of the part as the channel stores them.
    pub(crate) fn next(
        &mut self,
        position: Option<Position>,
        part: usize,
        stored: &[u8],
    ) -> String {
        let mut text = String::with_capacity(96);
        // Writing to a String cannot fail.
        let _ = match self {
            Self::Durable(channel) => {
                let id = DurableId {
                    channel: *channel,
                    position: position.unwrap_or_default(),
                    number: part,
                    bytes: stored,
                };
                write!(text, "{id}")
            }
            Self::Memory { random, last } => {
                *last += 1;
                write!(text, "{random:032x}-{last}")
            }
        };
        text
    }
}

/// Numbers the parts of the batch at one position. Processors can turn this batch into several. Each part of these batches needs a
/// different id, and a part must have the same id in every run.
#[derive(Default)]
pub(crate) struct PartNumbers {
    position: Option<Position>,
    /// The next number of each flow. In `forward`, a flow is the records that are sent to one server, in their order. Other sinks
    /// have only flow 0.
    next: Vec<usize>,
}

impl PartNumbers {
    /// Returns the number of the next part of `flow` at `position`, starting with 0.
    pub(crate) fn next(&mut self, position: Option<Position>, flow: u8) -> usize {
        if position != self.position {
            self.position = position;
            self.next.clear();
        }
        let flow = usize::from(flow);
        if self.next.len() <= flow {
            self.next.resize(flow + 1, 0);
        }
        let number = self.next[flow];
        self.next[flow] += 1;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_numbered_over_all_batches_of_a_position_for_each_flow() {
        let position = |seq| Some(Position { epoch: 1, seq });
        let mut numbers = PartNumbers::default();
        let mut next = |seq, flow| numbers.next(position(seq), flow);
        assert_eq!(
            [next(1, 0), next(1, 0), next(1, 2), next(1, 0)],
            [0, 1, 0, 2]
        );
        assert_eq!([next(2, 0), next(2, 2)], [0, 0]);
    }

    #[test]
    fn behind_a_durable_channel_an_id_depends_on_position_and_bytes_alone() {
        let position = Some(Position { epoch: 3, seq: 41 });
        let id = |part, stored: &[u8]| {
            let mut ids = Ids::new(Some(0xab)).unwrap();
            ids.next(position, part, stored)
        };
        // CRC-32C's check value (RFC 3720 and the catalogue of CRCs).
        assert_eq!(
            id(0, b"123456789"),
            "000000000000000000000000000000ab.3.41.0.e3069283"
        );
        assert_eq!(id(1, b"x"), id(1, b"x"));
        assert_ne!(id(1, b"x"), id(1, b"y"));
        assert_ne!(id(0, b"x"), id(1, b"x"));
    }

    #[test]
    fn behind_memory_ids_never_repeat_and_never_look_like_durable_ones() {
        let (mut one, mut other) = (Ids::new(None).unwrap(), Ids::new(None).unwrap());
        let ids = [
            one.next(None, 0, b""),
            one.next(None, 0, b""),
            other.next(None, 0, b""),
        ];
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
        assert!(ids.iter().all(|id| !id.contains('.')));
    }
}
