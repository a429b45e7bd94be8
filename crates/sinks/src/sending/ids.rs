//! The ids of chunks (`forward`), and of requests and documents (`http`). Receivers recognize a resend by its id.
//!
//! For records from a durable channel, the id of a chunk or a request names the position of the frame (a batch as the channel stores
//! it) and the part of it ([`PartId`]), not the content: after a restart, other processors or options may make something else of the
//! same position, which the receiver must still recognize. For records from memory an id is `RANDOM-COUNTER`. It need not survive a
//! restart, because the source resends unsettled records as new batches.
//!
//! The id of a document (`framing: bulk`) is `CHANNEL.EPOCH.SEQ.NUMBER.CRC`, with the number of the document at this position and the
//! CRC-32C of its bytes (8 hex digits). The server has a document or not, and other processors may give its number to another record.
//! With the checksum, such a record is stored, and never taken for the earlier one.

use std::{
    fmt::{self, Write},
    sync::Arc,
};

use millstream_pipeline::failure::Failure;
use millstream_record::{Position, Time};
use millstream_sys::{checksum::crc32c, random};
use millstream_wire::part_id::PartId;

/// The id of a document from a durable channel.
pub(crate) struct DurableId<'a> {
    pub(crate) channel: u128,
    pub(crate) position: Position,
    /// The number of the document at this position.
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
    /// From positions in a durable channel.
    Durable {
        /// The id of the channel.
        channel: u128,
        /// The name of the sink.
        sink: Arc<str>,
    },
    /// From a random number and a counter.
    Memory {
        /// A random number, different at every start.
        random: u128,
        /// The number of the last id.
        last: u64,
    },
}

impl Ids {
    /// Creates ids for this sink behind this durable channel; `None`: for memory.
    pub(super) fn new(channel: Option<u128>, sink: &Arc<str>) -> Result<Self, Failure> {
        if let Some(channel) = channel {
            let sink = sink.clone();
            return Ok(Self::Durable { channel, sink });
        }
        let random = random::bytes().map_err(|error| {
            Failure::us(format!("the system gave no random number for ids: {error}"))
        })?;
        Ok(Self::Memory {
            random: u128::from_ne_bytes(random),
            last: 0,
        })
    }

    /// Returns the id of a part. `part` is ignored for records from memory, where each id is new.
    pub(crate) fn next(&mut self, part: Part) -> String {
        let mut text = String::with_capacity(128);
        // Writing to a String cannot fail.
        let _ = match self {
            Self::Durable { channel, sink } => {
                let id = PartId {
                    channel: *channel,
                    sink,
                    position: part.position,
                    received: part.received,
                    flow: part.flow,
                    part: part.number,
                    parts: part.parts,
                    sum: part.sum,
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

/// A part of the batch at one position; see [`PartId`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) position: Position,
    pub(crate) received: Time,
    pub(crate) flow: u8,
    pub(crate) number: u32,
    pub(crate) parts: u32,
    pub(crate) sum: u32,
}

/// Numbers the parts of the batch at one position. Processors can turn this batch into several. Each part of these batches needs a
/// different id, and a part must have the same id in every run.
#[derive(Default)]
pub(crate) struct PartNumbers {
    position: Option<Position>,
    /// When the records at this position were received.
    received: Time,
    /// The state of each flow. In `forward`, a flow is the records that are sent to one server, in their order. Other sinks have only
    /// flow 0.
    flows: Vec<Numbered>,
}

/// The parts of a flow that have a number.
#[derive(Clone, Copy, Default)]
struct Numbered {
    parts: u32,
    /// The sum of their checksums.
    sum: u32,
}

impl PartNumbers {
    /// Call this for each batch. All batches at a position were received at the same time.
    pub(crate) fn begin(&mut self, position: Position, received: Time) {
        if self.position != Some(position) {
            self.position = Some(position);
            self.received = received;
            self.flows.clear();
        }
    }

    /// Returns the next part of `flow` at `position`, of which a batch has begun; the first part has the number 0. `is_last`: no part of
    /// this flow follows at this position. `checksum`: the checksum of the part's content, which only a part with followers needs.
    pub(crate) fn next(
        &mut self,
        position: Position,
        flow: u8,
        is_last: bool,
        checksum: impl FnOnce() -> u32,
    ) -> Part {
        debug_assert_eq!(self.position, Some(position));
        let at = usize::from(flow);
        if self.flows.len() <= at {
            self.flows.resize(at + 1, Numbered::default());
        }
        let numbered = &mut self.flows[at];
        let number = numbered.parts;
        numbered.parts += 1;
        let (parts, sum) = match is_last {
            true => (numbered.parts, numbered.sum),
            false => {
                let sum = checksum();
                numbered.sum = numbered.sum.wrapping_add(sum);
                (0, sum)
            }
        };
        Part {
            position,
            received: self.received,
            flow,
            number,
            parts,
            sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_numbered_over_all_batches_of_a_position_for_each_flow() {
        let mut numbers = PartNumbers::default();
        let mut next = |seq, flow, is_last| {
            let position = Position { epoch: 1, seq };
            numbers.begin(position, Time(5));
            let part = numbers.next(position, flow, is_last, || 1);
            (part.number, part.parts)
        };
        assert_eq!(next(1, 0, false), (0, 0));
        assert_eq!(next(1, 0, false), (1, 0));
        assert_eq!(next(1, 2, true), (0, 1));
        assert_eq!(next(1, 0, true), (2, 3));
        assert_eq!([next(2, 0, true), next(2, 2, true)], [(0, 1), (0, 1)]);
    }

    #[test]
    fn the_id_of_the_only_part_of_a_position_does_not_depend_on_its_bytes() {
        let position = Position { epoch: 3, seq: 41 };
        let id = |parts: &[&[u8]]| {
            let mut ids = Ids::new(Some(0xab), &"out".into()).unwrap();
            let mut numbers = PartNumbers::default();
            numbers.begin(position, Time(5));
            let (last, before) = parts.split_last().unwrap();
            let mut sent: Vec<String> = before
                .iter()
                .map(|bytes| ids.next(numbers.next(position, 0, false, || crc32c(bytes))))
                .collect();
            sent.push(ids.next(numbers.next(position, 0, true, || crc32c(last))));
            sent
        };
        let alone = "000000000000000000000000000000ab.out.3.41.5.0.0.1.00000000";
        assert_eq!(id(&[b"x"]), [alone]);
        assert_eq!(id(&[b"y"]), [alone]);
        // CRC-32C's check value (RFC 3720 and the catalogue of CRCs).
        let first = "000000000000000000000000000000ab.out.3.41.5.0.0.0.e3069283";
        let last = "000000000000000000000000000000ab.out.3.41.5.0.1.2.e3069283";
        assert_eq!(id(&[b"123456789", b"x"]), [first, last]);
        assert_eq!(id(&[b"123456789", b"y"]), [first, last]);
        assert_ne!(id(&[b"other", b"x"])[1], last);
    }

    #[test]
    fn behind_memory_ids_never_repeat_and_never_look_like_durable_ones() {
        let new = || Ids::new(None, &"out".into()).unwrap();
        let (mut one, mut other) = (new(), new());
        let part = Part::default();
        let ids = [one.next(part), one.next(part), other.next(part)];
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
        assert!(ids.iter().all(|id| !id.contains('.')));
    }
}
