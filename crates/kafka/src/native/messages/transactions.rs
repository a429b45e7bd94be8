//! The requests of a transaction: the producer's identity, the partitions and groups of the transaction, its end.

use super::{Partitions, Request, put_partitions};
use crate::native::wire::{Put, Take};

/// A producer's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Identity {
    pub(in super::super) id: i64,
    pub(in super::super) epoch: i16,
}

impl Identity {
    fn write(self, out: &mut Vec<u8>) {
        out.i64(self.id);
        out.i16(self.epoch);
    }
}

pub(in super::super) struct InitProducerId<'a> {
    pub(in super::super) transactional_id: Option<&'a str>,
    pub(in super::super) timeout_ms: i32,
}

impl Request for InitProducerId<'_> {
    const NAME: &'static str = "InitProducerId";
    const KEY: i16 = 22;
    const VERSIONS: &'static [i16] = &[1];
    type Answer = (i16, Identity);

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.nullable(self.transactional_id);
        out.i32(self.timeout_ms);
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Self::Answer> {
        let _throttled = answer.i32()?;
        let error = answer.i16()?;
        let (id, epoch) = (answer.i64()?, answer.i16()?);
        Some((error, Identity { id, epoch }))
    }
}

/// Reads topics with an error for each partition.
fn take_errors(answer: &mut Take<'_>) -> Option<Vec<(String, i32, i16)>> {
    let topics = answer.array(|topic| {
        let name = topic.string()?;
        let partitions = topic.array(|partition| Some((partition.i32()?, partition.i16()?)))?;
        Some((name, partitions))
    })?;
    let all = topics.into_iter().flat_map(|(name, partitions)| {
        let named = move |(partition, error)| (name.clone(), partition, error);
        partitions.into_iter().map(named)
    });
    Some(all.collect())
}

pub(in super::super) struct AddPartitionsToTxn<'a> {
    pub(in super::super) transactional_id: &'a str,
    pub(in super::super) identity: Identity,
    pub(in super::super) topics: Partitions,
}

impl Request for AddPartitionsToTxn<'_> {
    const NAME: &'static str = "AddPartitionsToTxn";
    const KEY: i16 = 24;
    const VERSIONS: &'static [i16] = &[2];
    type Answer = Vec<(String, i32, i16)>;

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.string(self.transactional_id);
        self.identity.write(out);
        put_partitions(out, &self.topics);
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Self::Answer> {
        let _throttled = answer.i32()?;
        take_errors(answer)
    }
}

pub(in super::super) struct AddOffsetsToTxn<'a> {
    pub(in super::super) transactional_id: &'a str,
    pub(in super::super) identity: Identity,
    pub(in super::super) group: &'a str,
}

impl Request for AddOffsetsToTxn<'_> {
    const NAME: &'static str = "AddOffsetsToTxn";
    const KEY: i16 = 25;
    const VERSIONS: &'static [i16] = &[2];
    type Answer = i16;

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.string(self.transactional_id);
        self.identity.write(out);
        out.string(self.group);
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<i16> {
        let _throttled = answer.i32()?;
        answer.i16()
    }
}

/// Commits an offset with metadata for partition 0 of a topic, in a transaction.
pub(in super::super) struct TxnOffsetCommit<'a> {
    pub(in super::super) transactional_id: &'a str,
    pub(in super::super) identity: Identity,
    pub(in super::super) group: &'a str,
    pub(in super::super) topic: &'a str,
    pub(in super::super) offset: i64,
    pub(in super::super) metadata: &'a str,
}

impl Request for TxnOffsetCommit<'_> {
    const NAME: &'static str = "TxnOffsetCommit";
    const KEY: i16 = 28;
    const VERSIONS: &'static [i16] = &[2];
    type Answer = Vec<(String, i32, i16)>;

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.string(self.transactional_id);
        out.string(self.group);
        self.identity.write(out);
        out.count(1);
        out.string(self.topic);
        out.count(1);
        out.i32(0);
        out.i64(self.offset);
        // The epoch of the leader: unknown.
        out.i32(-1);
        out.nullable(Some(self.metadata));
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<Self::Answer> {
        let _throttled = answer.i32()?;
        take_errors(answer)
    }
}

pub(in super::super) struct EndTxn<'a> {
    pub(in super::super) transactional_id: &'a str,
    pub(in super::super) identity: Identity,
    pub(in super::super) commit: bool,
}

impl Request for EndTxn<'_> {
    const NAME: &'static str = "EndTxn";
    const KEY: i16 = 26;
    const VERSIONS: &'static [i16] = &[2];
    type Answer = i16;

    fn write(&self, _: i16, out: &mut Vec<u8>) {
        out.string(self.transactional_id);
        self.identity.write(out);
        out.i8(self.commit.into());
    }

    fn read(_: i16, answer: &mut Take<'_>) -> Option<i16> {
        let _throttled = answer.i32()?;
        answer.i16()
    }
}
