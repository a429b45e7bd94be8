//! The channel `memory`: a short queue per data thread. Every edge for which the configuration names no channel uses it.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> [keep] -> [read back] -> process -> encode -> write -> settle`
//!
//! This channel stores nothing durably. A group is settled only when the consumer has settled all of its batches. Queues are short (4 MiB),
//! so that a batch is still in the CPU's cache when the consumer gets it. If a queue is full, producers wait. There is one lane per data
//! thread, so a batch stays on its thread.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use millstream_config::{Node, Problem, Size};
use millstream_pipeline::{
    channel::{BoxFuture, Channel, Consumer, Delivered, Group, Reader},
    failure::Failure,
    node::{Build, ChannelConfig, ChannelContext, Component, Opened},
    promise::{Guarantee, Promise},
    threads,
};
use millstream_record::Position;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Semaphore;

#[cfg(test)]
mod tests;

/// The entry in the list of channels.
pub const COMPONENT: Component = Component {
    name: "memory",
    summary: "A short queue in memory; every edge that names no other channel is one.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Channel(build),
};

/// Options of the channel `memory`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// Bytes of batches that may wait for each consumer and data thread. When the queue is full, producers wait.
    size_max: Size,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            size_max: Size::bytes(SIZE_MAX),
        }
    }
}

/// The default of `size_max`: a queue is short, so that a batch is still in the CPU's cache when its consumer reads it.
pub const SIZE_MAX: u64 = 4 << 20;

fn build(_name: &str, options: &Node) -> Result<Box<dyn ChannelConfig>, Vec<Problem>> {
    Ok(Box::new(options.read::<Config>()?))
}

impl ChannelConfig for Config {
    fn open(&self, _: ChannelContext, _: &[Consumer]) -> Result<Opened, Failure> {
        Err(Failure::us(
            "a memory channel is created with its consumers and cannot be opened",
        ))
    }

    fn memory_bytes(&self) -> Option<usize> {
        Some(self.size_max.as_usize())
    }

    fn promise(&self) -> Promise {
        Promise::new(
            Guarantee::AtMostOnce,
            "what is in the queue is lost when the process ends",
        )
    }
}

/// A batch counts as at least this many bytes in a queue: the memory of a batch without its body.
const BATCH_BYTES: usize = 256;

/// The queues in front of one consumer. Data thread `k` puts its batches into lane `k`.
pub struct MemoryChannel {
    lanes: Vec<Lane>,
    closed: AtomicBool,
}

struct Lane {
    room: Semaphore,
    room_bytes: usize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Delivered, usize)>,
    /// The number of batches that were read.
    taken: u64,
    reader: Option<Waker>,
}

impl MemoryChannel {
    /// Creates a channel with `lanes` queues of `size_max` bytes each, and the reader of each lane.
    pub fn open(lanes: usize, size_max: usize) -> (Arc<dyn Channel>, Vec<Box<dyn Reader>>) {
        let room_bytes = size_max.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let lane = |_| Lane {
            room: Semaphore::new(room_bytes),
            room_bytes,
            queue: Mutex::default(),
        };
        let channel = Arc::new(Self {
            lanes: (0..lanes.max(1)).map(lane).collect(),
            closed: AtomicBool::new(false),
        });
        let reader = |lane| {
            Box::new(MemoryReader {
                channel: channel.clone(),
                lane,
            }) as Box<dyn Reader>
        };
        let readers = (0..lanes.max(1)).map(reader).collect();
        (channel, readers)
    }
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let reader = self.lock().reader.take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Channel for MemoryChannel {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let lane = &self.lanes[threads::lane() % self.lanes.len()];
            let Group {
                batches,
                token,
                entry,
            } = group;
            for batch in batches {
                // A batch that is larger than the queue takes all room of the queue.
                let bytes = batch.len().max(BATCH_BYTES).min(lane.room_bytes);
                let Ok(room) = lane.room.acquire_many(bytes as u32).await else {
                    return;
                };
                room.forget();
                let delivered = Delivered {
                    entry: entry.clone(),
                    ..Delivered::new(batch, None, Some(token.clone()))
                };
                lane.lock().waiting.push_back((delivered, bytes));
                lane.wake();
            }
            token.settle();
        })
    }

    fn fill(&self) -> Option<(u64, u64)> {
        let fill = |lane: &Lane| {
            let room = lane.room_bytes as u64;
            let free = lane.room.available_permits() as u64;
            (room.saturating_sub(free), room)
        };
        let fills = self.lanes.iter().map(fill);
        Some(fills.fold((0, 0), |(used, limit), lane| {
            (used + lane.0, limit + lane.1)
        }))
    }

    fn waiting(&self) -> Option<u64> {
        // The first producer that waits takes all free room. A closed channel has no producers.
        let is_open = !self.closed.load(Ordering::Acquire);
        let mut lanes = self.lanes.iter();
        let is_full = lanes.any(|lane| lane.room.available_permits() == 0);
        let taken = || self.lanes.iter().map(|lane| lane.lock().taken).sum();
        (is_open && is_full).then(taken)
    }

    fn give_up_waiting(&self) {
        // A producer drops its group, which fails the group's receipt. The readers still read what is in the queues.
        self.lanes.iter().for_each(|lane| lane.room.close());
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.lanes.iter().for_each(Lane::wake);
    }
}

/// Reads one lane.
struct MemoryReader {
    channel: Arc<MemoryChannel>,
    lane: usize,
}

impl Reader for MemoryReader {
    fn resume(&mut self, _after: Option<Position>) -> Result<(), Failure> {
        Ok(())
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        let lane = &self.channel.lanes[self.lane];
        let mut queue = lane.lock();
        if let Some((delivered, bytes)) = queue.waiting.pop_front() {
            queue.taken += 1;
            drop(queue);
            lane.room.add_permits(bytes);
            return Poll::Ready(Ok(Some(delivered)));
        }
        if self.channel.closed.load(Ordering::Acquire) {
            return Poll::Ready(Ok(None));
        }
        queue.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn commit(&mut self, _position: Position) -> Result<(), Failure> {
        Ok(())
    }
}

impl Drop for MemoryReader {
    fn drop(&mut self) {
        // No more batches will be read. Closing the queue ends the wait of producers. Dropping the queued batches drops their tokens, and
        // so fails them.
        let lane = &self.channel.lanes[self.lane];
        lane.room.close();
        lane.lock().waiting.clear();
    }
}
