//! Puts records back in order where branches of a chain meet again.
//!
//! A processor receives a whole batch at a time. So where the branches after a `route` meet again, all records of one branch would
//! come before all records of the other, and the order of the records of a tag would depend on where batches end. To prevent this,
//! each record carries its number in the chain's input, and the merge sorts by this number.

use std::sync::Arc;

use bytes::Bytes;
use millstream_record::{Batch, Encoding};
use millstream_wire::record::records;

use crate::{
    output::{ByHead, Head},
    partition::Partition,
    plan::{ChainPlan, Step},
};

/// A batch within a chain.
#[derive(Clone)]
pub(super) struct Piece {
    pub(super) batch: Batch,
    /// The number of each record in the chain's input, ascending. Empty if the chain does not number records.
    pub(super) numbers: Arc<[u32]>,
}

/// Whether records of one tag can take different branches of a chain and meet again.
pub(super) fn ways_meet(plan: &ChainPlan) -> bool {
    let end = plan.nodes.len();
    let place = |step: Step| match step {
        Step::Node(at) => at,
        Step::End => end,
    };
    let mut within = vec![0; end + 1];
    let ports = plan.nodes.iter().flat_map(|node| {
        let distinct = move |port: &usize| node.joined(*port) == *port;
        let numbers = (0..node.ports.len()).filter(distinct);
        numbers.map(|port| &node.ports[port])
    });
    for hop in ports.flat_map(|port| &port.hops) {
        within[place(hop.to)] += 1;
    }
    let meets = |steps: &[usize]| steps.iter().any(|hops| *hops > 1);
    let from_outside = plan.entries.iter().any(|hops| {
        let mut steps = within.clone();
        hops.iter().for_each(|hop| steps[place(hop.to)] += 1);
        meets(&steps)
    });
    // One processor can give records different tags, and a later one can give them the same tag again.
    let retags = plan.nodes.iter();
    let retags = retags.filter(|node| node.processor.changes_tags()).count();
    let repeats = plan.nodes.iter().any(|node| {
        node.tasks.partition == Partition::Broadcast && node.tasks.count.unwrap_or(1) > 1
    });
    from_outside || retags > 1 || repeats
}

/// Sorts the pieces by tag, and the records that have the same tag and values by number. Records with equal numbers come from one
/// record of the input. They keep the order of their pieces.
pub(super) fn merge(pieces: Vec<Piece>) -> Vec<Piece> {
    if pieces.len() < 2 {
        return pieces;
    }
    let mut groups: Vec<Vec<Piece>> = Vec::new();
    let mut places = ByHead::default();
    for piece in pieces {
        let head = Head::of(&piece.batch);
        let at = *places.entry(head).or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.push(piece),
            None => groups.push(vec![piece]),
        }
    }
    groups.sort_by(|a, b| a[0].batch.tag.as_str().cmp(b[0].batch.tag.as_str()));
    groups.into_iter().flat_map(merge_alike).collect()
}

/// Merges pieces with the same tag and values.
fn merge_alike(pieces: Vec<Piece>) -> Vec<Piece> {
    let follows = |pair: &[Piece]| pair[0].numbers.last() < pair[1].numbers.first();
    if pieces.windows(2).all(follows) {
        return pieces;
    }
    let mut order = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let all = piece.numbers.iter().zip(records(&piece.batch));
        order.extend(all.map(|(number, (range, _))| (*number, at, range)));
    }
    order.sort_by_key(|(number, ..)| *number);
    let mut merged: Vec<Merged> = Vec::new();
    for (number, at, range) in order {
        let batch = &pieces[at].batch;
        if merged
            .last()
            .is_none_or(|last| last.encoding != batch.encoding)
        {
            merged.push(Merged::new(batch.encoding));
        }
        if let Some(last) = merged.last_mut() {
            last.plain &= batch.plain;
            last.body.extend_from_slice(&batch.body[range]);
            last.numbers.push(number);
        }
    }
    let head = &pieces[0].batch;
    merged
        .into_iter()
        .map(|merged| merged.close(head))
        .collect()
}

/// A piece that is being built by the merge.
struct Merged {
    encoding: Encoding,
    plain: bool,
    body: Vec<u8>,
    numbers: Vec<u32>,
}

impl Merged {
    fn new(encoding: Encoding) -> Self {
        Self {
            encoding,
            plain: true,
            body: Vec::new(),
            numbers: Vec::new(),
        }
    }

    fn close(self, head: &Batch) -> Piece {
        Piece {
            batch: Batch {
                encoding: self.encoding,
                plain: self.plain,
                body: Bytes::from(self.body),
                // A batch counts its records in a `u32`, so the length fits.
                count: self.numbers.len() as u32,
                ..head.clone()
            },
            numbers: self.numbers.into(),
        }
    }
}
