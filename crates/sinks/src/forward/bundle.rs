//! Bundles: everything that one position of a durable channel became travels in one chunk (`peer: millstream`).
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! Processors can make several batches from one position, for example one for each tag. If they were several chunks, a crash could
//! leave the receiver with some of them. The resend could then be different, because the processors can be edited before the next
//! start, and neither side could tell which of its records the receiver has. A receiver keeps a bundle as a whole or not at all, so it has
//! the position or nothing of it. Only a position above [`PART_BYTES_MAX`] becomes several chunks. With `balance: hash`, each flow of a
//! position has its own chunk, because flows go to different servers.

use std::collections::BTreeMap;

use bytes::Bytes;
use millstream_record::{Batch, Position};
use millstream_sys::checksum::crc32c;
use millstream_wire::forward::BUNDLE_FRAMES_MAX;

use super::{chunk::PART_BYTES_MAX, flow::Flow};

/// Bytes of a frame in addition to its tag, values and payload.
const FRAME_BYTES: usize = 64;

/// The content of one chunk.
pub(super) struct Bundle {
    /// The number of the chunk in the lane.
    pub(super) number: u64,
    pub(super) flow: Option<Flow>,
    /// Each part with its payload. The body of a part is not used.
    pub(super) parts: Vec<(Batch, Bytes)>,
    /// The batches in it, which are rejected after `retry.give_up`; empty if that option is not set.
    pub(super) source: Vec<Batch>,
    bytes: usize,
}

impl Bundle {
    pub(super) fn new(number: u64, flow: Option<Flow>) -> Self {
        Self {
            number,
            flow,
            parts: Vec::new(),
            source: Vec::new(),
            bytes: 0,
        }
    }

    pub(super) fn push(&mut self, part: Batch, payload: Bytes, source: Option<Batch>) {
        self.bytes += bytes(&part, &payload);
        self.parts.push((part, payload));
        self.source.extend(source);
    }

    /// A checksum of its tags and payloads.
    pub(super) fn checksum(&self) -> u32 {
        let mut sums = Vec::with_capacity(self.parts.len() * 8);
        for (part, payload) in &self.parts {
            let tag = part.tag.as_str().as_bytes();
            sums.extend(crc32c(tag).to_le_bytes());
            sums.extend(crc32c(payload).to_le_bytes());
        }
        crc32c(&sums)
    }

    fn has_room(&self, part: &Batch, payload: &Bytes) -> bool {
        self.parts.len() < BUNDLE_FRAMES_MAX && self.bytes + bytes(part, payload) <= PART_BYTES_MAX
    }
}

/// Approximate bytes of a frame in a bundle.
fn bytes(part: &Batch, payload: &Bytes) -> usize {
    let values = part.values.iter();
    let values: usize = values.map(|(name, text)| name.len() + text.len()).sum();
    FRAME_BYTES + part.tag.as_str().len() + values + payload.len()
}

/// The bundles of the current position, one for each flow, which are not chunks yet.
#[derive(Default)]
pub(super) struct Bundles {
    position: Option<Position>,
    bundles: BTreeMap<Option<Flow>, Bundle>,
}

impl Bundles {
    /// The position of the bundles; `None` if there are none.
    pub(super) fn position(&self) -> Option<Position> {
        self.position.filter(|_| !self.bundles.is_empty())
    }

    /// Removes and returns the bundle of this flow, if it has no room for a part with this payload.
    pub(super) fn full(
        &mut self,
        flow: Option<Flow>,
        part: &Batch,
        payload: &Bytes,
    ) -> Option<Bundle> {
        let bundle = self.bundles.get(&flow)?;
        match bundle.has_room(part, payload) {
            true => None,
            false => self.bundles.remove(&flow),
        }
    }

    /// Returns the bundle of this flow. If there is none, begins one with a number from `number`.
    pub(super) fn get(
        &mut self,
        position: Position,
        flow: Option<Flow>,
        number: impl FnOnce() -> u64,
    ) -> &mut Bundle {
        self.position = Some(position);
        let bundle = self.bundles.entry(flow);
        bundle.or_insert_with(|| Bundle::new(number(), flow))
    }

    /// Removes and returns all bundles, in the order of their flows.
    pub(super) fn leave(&mut self) -> impl Iterator<Item = Bundle> + use<> {
        std::mem::take(&mut self.bundles).into_values()
    }
}
