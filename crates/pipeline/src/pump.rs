//! Moves batches from one durable channel into another one.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> [keep] -> read back -> process -> encode -> write -> settle`
//!
//! A pump reads the first channel as a sink does: it has a cursor, and it runs the chain that belongs to the second channel. All batches
//! that the chain makes from the batch at one position of the first channel form one group, with this position as their origin. The
//! second channel therefore keeps all of them or none, and knows the last position of the first channel whose batches it has kept. It
//! recognizes batches that a restarted pump sends again. If the chain makes very many batches (each record of a large batch gets another
//! tag), they form several groups. All groups but the last one have the origin of a chunk with an id instead, so the second channel
//! recognizes them, too.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use millstream_record::{Batch, ChunkOrigin, FileId, FileOrigin, Origin, Position};

use crate::{
    delivery::Receipt,
    failure::Failure,
    inlet::{Checkpoint, Inlet, Item},
    node::{LocalFuture, Placement, Sink, SinkContext},
    outlet::Outlet,
    promise::{Guarantee, Promise},
    stop::Stop,
};

/// The number of bits that the sequence number of a position takes in the offset of an origin; the other bits hold the epoch.
/// A channel that keeps 100,000 batches a second uses up these bits in five years. The bits of the epoch allow a million unclean restarts.
const SEQ_BITS: u32 = 44;

/// With more batches than this, a part of the batches of a position forms a group.
const GROUP_MAX: usize = 16 << 10;

/// The sink that fills a channel from another one.
pub(crate) struct Pump {
    /// Leads only to the second channel, which closes when the pump has ended.
    outlet: Outlet,
}

impl Pump {
    /// Returns a pump that fills the channel that `outlet` leads to.
    pub(crate) fn new(outlet: Outlet) -> Arc<Self> {
        Arc::new(Self { outlet })
    }

    async fn pump(&self, inlet: &mut Inlet, stop: Stop) -> Result<(), Failure> {
        let places = Places::of(inlet.channel_id().unwrap_or_default());
        let marks = self.outlet.file_marks(places.0);
        let kept = marks.into_iter().max().map(Places::position);
        // The cursor may be ahead of `kept`: positions without any output leave no origin in the second channel.
        inlet.resume(kept.max(inlet.settled()))?;
        let (mut group, mut flights) = (Vec::new(), VecDeque::new());
        // The number of groups of the present position that were sent.
        let mut pieces = 0;
        loop {
            settle(&mut flights, inlet).await?;
            let item = tokio::select! {
                biased;
                item = inlet.next() => item?,
                kept = front(&mut flights) => {
                    kept?;
                    continue;
                }
            };
            match item {
                Some(Item::Batch(batch, position)) => {
                    group.push(batch);
                    let is_within = inlet.is_within();
                    if !is_within || group.len() > GROUP_MAX {
                        let group = std::mem::take(&mut group);
                        let group = match is_within {
                            true => places.piece(group, position, pieces),
                            false => places.mark(group, position)?,
                        };
                        pieces = if is_within { pieces + 1 } else { 0 };
                        let receipt = tokio::select! {
                            biased;
                            receipt = self.outlet.send_group(group, false) => receipt,
                            () = self.is_stuck(stop.clone()) => return Ok(()),
                        };
                        flights.push_back(Flight::Group(receipt));
                    }
                }
                Some(Item::Checkpoint(checkpoint)) => {
                    flights.push_back(Flight::Checkpoint(checkpoint));
                }
                None => break,
            }
        }
        while !flights.is_empty() {
            tokio::select! {
                biased;
                kept = front(&mut flights) => kept?,
                () = self.is_stuck(stop.clone()) => return Ok(()),
            }
            settle(&mut flights, inlet).await?;
        }
        Ok(())
    }

    /// Resolves after a stop, once the second channel is full. The pump need not wait for space then, because the first channel keeps
    /// everything for the next start.
    async fn is_stuck(&self, mut stop: Stop) {
        stop.stopped().await;
        self.outlet.is_full_after(Duration::ZERO).await;
    }
}

impl Sink for Pump {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(self.pump(inlet, context.stop))
    }

    fn promise(&self, _durable: bool) -> Promise {
        let condition = "the channel behind it recognizes positions that it has kept";
        Promise::new(Guarantee::ExactlyOnce, condition)
    }
}

/// An item between the two channels.
enum Flight {
    /// Resolves when the group is kept.
    Group(Receipt),
    /// Can be settled when it is at the front of the queue, because all groups before it are kept then.
    Checkpoint(Checkpoint),
}

/// Removes groups that are kept from the front, and settles the checkpoints between them.
async fn settle(flights: &mut VecDeque<Flight>, inlet: &mut Inlet) -> Result<(), Failure> {
    while let Some(first) = flights.pop_front() {
        match first {
            Flight::Checkpoint(checkpoint) => inlet.settle(checkpoint).await?,
            Flight::Group(receipt) => match receipt.try_outcome() {
                Some(outcome) => outcome.map_err(|_| unkept())?,
                None => {
                    flights.push_front(Flight::Group(receipt));
                    break;
                }
            },
        }
    }
    Ok(())
}

/// Waits until the first item can be removed from the queue; forever if the queue is empty.
async fn front(flights: &mut VecDeque<Flight>) -> Result<(), Failure> {
    match flights.front_mut() {
        Some(Flight::Group(receipt)) => receipt.await.map_err(|_| unkept()),
        Some(Flight::Checkpoint(_)) => Ok(()),
        None => std::future::pending().await,
    }
}

fn unkept() -> Failure {
    Failure::us("the channel did not keep a batch; it is read again")
}

/// Presents the positions of a channel as offsets in a file, so that the second channel treats them like a tailed file.
struct Places(FileId);

impl Places {
    /// Returns the file that stands for the channel with this id.
    fn of(channel: u128) -> Self {
        let halves = [channel >> 64, channel];
        let [device, inode] = halves.map(|half| half as u64);
        Self(FileId {
            device,
            inode,
            // With the latest possible birth, this file is the last one that the second channel forgets when it knows too many files.
            birth: i64::MAX,
            head: u64::from_be_bytes(*b"position"),
        })
    }

    /// Returns the batches with their position as their only origin.
    fn mark(&self, group: Vec<Batch>, position: Option<Position>) -> Result<Vec<Batch>, Failure> {
        let begin = position.and_then(Self::offset).ok_or_else(|| {
            Failure::us("the channel has used up all its positions; drain it, remove its directory")
        })?;
        let origin = FileOrigin {
            file: self.0,
            begin,
            next: begin + 1,
        };
        let marked = |batch| Batch {
            origins: vec![Origin::File(origin)],
            ..batch
        };
        Ok(group.into_iter().map(marked).collect())
    }

    /// Returns a part of the batches of a position, with the origin of a chunk. The key of the chunk depends on the content: after a
    /// reload, other processors may make other batches of the position.
    fn piece(&self, group: Vec<Batch>, position: Option<Position>, number: u32) -> Vec<Batch> {
        let Position { epoch, seq } = position.unwrap_or_default();
        let FileId { device, inode, .. } = self.0;
        // A chunk's id is a value of MessagePack; this one is binary data.
        let mut id = vec![0xc4, 33, b'p'];
        for part in [device, inode, seq] {
            id.extend(part.to_be_bytes());
        }
        id.extend(epoch.to_be_bytes());
        id.extend(number.to_be_bytes());
        let id = Bytes::from(id);
        let hash = group.iter().fold(FNV_FIRST, |hash, batch| {
            fnv(fnv(hash, batch.tag.as_str().as_bytes()), &batch.body)
        });
        let marked = |batch: Batch| {
            let chunk = ChunkOrigin {
                id: id.clone(),
                tag: "".into(),
                connection: 0,
                length: (hash >> 32) as u32,
                checksum: hash as u32,
                start: 0,
                end: u32::try_from(batch.len()).unwrap_or(u32::MAX),
                records: batch.count,
            };
            Batch {
                origins: vec![Origin::Chunk(chunk)],
                ..batch
            }
        };
        group.into_iter().map(marked).collect()
    }

    /// Converts a position to an offset; offsets have the same order as positions. `None` if the position does not fit.
    fn offset(Position { epoch, seq }: Position) -> Option<u64> {
        let is_exact = seq >> SEQ_BITS == 0 && u64::from(epoch) < u64::MAX >> SEQ_BITS;
        is_exact.then_some(u64::from(epoch) << SEQ_BITS | seq)
    }

    /// Returns the last position before an offset.
    fn position(next: u64) -> Position {
        let offset = next.saturating_sub(1);
        Position {
            epoch: u32::try_from(offset >> SEQ_BITS).unwrap_or(u32::MAX),
            seq: offset & ((1 << SEQ_BITS) - 1),
        }
    }
}

/// The hash FNV-1a of nothing.
const FNV_FIRST: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues the hash FNV-1a. Channels store it, so it must never change.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(hash, step)
}

#[cfg(test)]
mod tests {
    use millstream_testkit::lines;

    use super::*;

    #[test]
    fn a_piece_of_a_position_has_the_same_key_when_it_is_made_again_and_another_one_if_it_differs()
    {
        let places = Places::of(7 << 64 | 9);
        let key = |texts: &[&str], number| {
            let group = texts.iter().map(|text| lines("t", text)).collect();
            let position = Position { epoch: 1, seq: 3 };
            let piece = places.piece(group, Some(position), number);
            let keys = piece.iter().map(|batch| match &batch.origins[..] {
                [Origin::Chunk(chunk)] => {
                    assert_eq!((chunk.start, chunk.end), (0, batch.len() as u32));
                    (chunk.id.clone(), chunk.length, chunk.checksum)
                }
                other => panic!("one chunk: {other:?}"),
            });
            let mut keys: Vec<_> = keys.collect();
            keys.dedup();
            assert_eq!(keys.len(), 1);
            keys.remove(0)
        };
        let first = key(&["a\n", "b\n"], 0);
        assert_eq!(first, key(&["a\n", "b\n"], 0));
        assert_ne!(first, key(&["a\n", "c\n"], 0));
        assert_ne!(first, key(&["a\n", "b\n"], 1));
    }

    #[test]
    fn offsets_have_the_order_of_positions_and_convert_back_to_them() {
        let position = |epoch, seq| Position { epoch, seq };
        let all = [
            position(0, 1),
            position(1, 0),
            position(1, (1 << SEQ_BITS) - 1),
            position(2, 7),
            position((1 << 20) - 2, 9),
        ];
        let offsets: Vec<_> = all.map(Places::offset).into_iter().flatten().collect();
        assert_eq!(offsets.len(), all.len());
        assert!(offsets.is_sorted());
        for (offset, position) in offsets.into_iter().zip(all) {
            assert_eq!(Places::position(offset + 1), position);
        }
        assert_eq!(Places::offset(position(1, 1 << SEQ_BITS)), None);
        assert_eq!(Places::offset(position(1 << 20, 1)), None);
    }

    #[test]
    fn different_channels_are_different_files() {
        let (first, second) = (Places::of(1 << 64), Places::of(1));
        assert_ne!(first.0, second.0);
        assert_eq!((first.0.device, first.0.inode), (1, 0));
    }
}
