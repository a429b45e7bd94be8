//! Flows: records that go to the same server, in order (`balance: { hash: TEMPLATE }`). This module does no I/O.
//!
//! A record's flow is a hash of the template's value. It depends on the record alone, so after a restart a batch is split into the
//! same pieces, even if the servers have changed. A flow has one server at a time, chosen by weighted rendezvous hashing. When a
//! server joins or leaves, only the flows that it gains or loses move. (See Thaler and Ravishankar, "Using name-based mappings to
//! increase hit rates", 1998, and for the weights Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005.)

use millstream_record::{Batch, Pool};
use millstream_wire::{split::Splitter, template::Template};

/// The number of flows: enough to spread them evenly over some tens of servers, few enough that the pieces of a batch stay
/// large.
pub(super) const FLOWS: usize = 64;

/// The number of a flow, below [`FLOWS`].
pub(super) type Flow = u8;

/// Computes the flow of records.
pub(super) struct Flows(Splitter);

impl Flows {
    pub(super) fn new(template: &Template) -> Self {
        Self(Splitter::new(template, hash))
    }

    /// Splits a batch by flow, in the order of the flows; the records of a flow keep their order. A missing value counts as empty,
    /// because its record needs a server, too.
    pub(super) fn split(&mut self, batch: Batch, pool: &Pool) -> Vec<(Flow, Batch)> {
        let parts = self.0.split(batch, FLOWS, pool).into_iter();
        // The cast loses nothing: a flow is below FLOWS.
        parts.map(|(flow, part)| (flow as Flow, part)).collect()
    }
}

/// The rendezvous score of a flow on a server: the highest score wins.
pub(super) fn wish(flow: Flow, server: &str, weight: u32) -> f64 {
    let mut key = server.as_bytes().to_vec();
    key.push(flow);
    // This number is above 0 and below 1, so that its logarithm is finite and not 0. It is made from 53 bits of the hash plus one
    // half.
    let part = ((hash(&key) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -f64::from(weight) / part.ln()
}

/// FNV-1a with 64 bits and the finalizer of SplitMix64, so that all bits depend on all bytes. It must never change: the ids of
/// chunks depend on it.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{lines, packed};

    fn flows(template: &str) -> Flows {
        Flows::new(&template.parse().unwrap())
    }

    /// The server of each flow.
    fn owners(servers: &[(&str, u32)]) -> Vec<usize> {
        let owner = |flow| {
            let wishes = servers
                .iter()
                .map(|(name, weight)| wish(flow, name, *weight));
            let best = wishes.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
            best.unwrap().0
        };
        (0..FLOWS as Flow).map(owner).collect()
    }

    #[test]
    fn every_record_is_in_the_flow_of_its_key_and_in_order() {
        let text: String = (0..1000).map(|n| format!("{} {n}\n", n % 37)).collect();
        let batch = lines("t", &text);
        let pool = Pool::new(1 << 20);
        let parts = flows("{.message}").split(batch.clone(), &pool);
        assert_eq!(parts.len(), FLOWS);
        let records: u32 = parts.iter().map(|(_, part)| part.count).sum();
        assert_eq!(records, 1000);
        for (flow, part) in &parts {
            let numbers: Vec<u32> = std::str::from_utf8(&part.body)
                .unwrap()
                .lines()
                .map(|line| line.split_once(' ').unwrap().1.parse().unwrap())
                .collect();
            assert!(numbers.is_sorted());
            assert_eq!(numbers.len(), part.count as usize);
            for line in part.body.split_inclusive(|byte| *byte == b'\n') {
                assert_eq!(
                    hash(&line[..line.len() - 1]) % FLOWS as u64,
                    u64::from(*flow)
                );
            }
        }
        // The split depends on the records alone: a second split gives the same parts.
        let again = flows("{.message}").split(batch, &pool);
        let same = |(a, b): (&(Flow, Batch), &(Flow, Batch))| a.0 == b.0 && a.1.body == b.1.body;
        assert!(parts.iter().zip(&again).all(same));
    }

    #[test]
    fn a_template_without_record_fields_does_not_split_a_batch_and_a_missing_value_has_a_flow() {
        let pool = Pool::new(1 << 20);
        let batch = packed("t", "a\nb\n");
        for template in ["{tag}", "{missing}"] {
            let parts = flows(template).split(batch.clone(), &pool);
            assert_eq!(parts.len(), 1);
            assert_eq!(parts[0].1.body.as_ptr(), batch.body.as_ptr(), "uncopied");
        }
        assert_eq!(flows("{.missing}").split(batch, &pool).len(), 1);
    }

    #[test]
    fn when_a_server_joins_flows_move_only_to_that_server() {
        let before = owners(&[("a:1", 60), ("b:1", 60), ("c:1", 60)]);
        let after = owners(&[("a:1", 60), ("b:1", 60), ("c:1", 60), ("d:1", 60)]);
        let moved = before.iter().zip(&after).filter(|(b, a)| b != a);
        assert!(moved.clone().all(|(_, after)| *after == 3));
        let count = moved.count();
        assert!((8..=24).contains(&count), "a quarter of 64, about: {count}");
    }

    #[test]
    fn flows_are_spread_by_weight() {
        let owners = owners(&[("a:1", 60), ("b:1", 180)]);
        let heavy = owners.iter().filter(|owner| **owner == 1).count();
        assert!(
            (38..=58).contains(&heavy),
            "three quarters of 64, about: {heavy}"
        );
    }
}
