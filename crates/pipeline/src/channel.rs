//! The contract of a channel: what it takes from outlets and what its readers give to inlets.
//!
//! `read -> decode -> send -> [keep] -> [take] -> process -> encode -> write -> settle`

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use millstream_record::{Batch, FileId, Position};

use crate::{delivery::Token, failure::Failure, tags::TagFilter};

/// Everything that one batch of a source became: a durable channel keeps all of it or nothing.
#[derive(Debug)]
pub struct Group {
    /// Its batches, in order; at least one.
    pub batches: Vec<Batch>,
    /// Settled by the channel when the group is kept (durable) or by the consumer (memory).
    pub token: Token,
}

impl Group {
    /// Bytes of all bodies.
    pub fn len(&self) -> usize {
        self.batches.iter().map(Batch::len).sum()
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a source knows of its senders that a channel needs for telling repeats apart (delivery.md, "Repeats").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The peer of this connection closed it in an orderly way after our last ack.
    ConnectionClosed(u64),
    /// This connection has ended in any other way: what was last acked on it may not have arrived.
    ConnectionBroken(u64),
}

/// How far a consumer of a durable channel may be behind, and what happens then: the option `behind` of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// Bytes that are kept and that it has not settled; 0: no bound but the channel's own.
    pub size: u64,
    /// Age of the oldest batch that it has not settled; 0: no bound.
    pub age: Duration,
    /// What happens beyond a bound, or when the channel is full.
    pub then: Then,
}

/// What happens when a consumer is too far behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The sources wait for it.
    #[default]
    Block,
    /// The oldest is dropped for this consumer alone; it is counted and logged.
    Skip,
}

/// A consumer of a durable channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// The sink's name: its cursor is called so.
    pub name: Arc<str>,
    /// How far it may be behind.
    pub behind: Behind,
    /// Which tags it takes; None: all.
    pub tags: Option<TagFilter>,
}

impl Consumer {
    /// Whether it takes batches with this tag.
    pub fn takes(&self, tag: &str) -> bool {
        self.tags.as_ref().is_none_or(|tags| tags.takes(tag))
    }
}

impl From<&str> for Consumer {
    fn from(name: &str) -> Self {
        Self {
            name: name.into(),
            behind: Behind::default(),
            tags: None,
        }
    }
}

/// A future that a trait object returns; one allocation per batch.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Stands between producers and consumers. Shared by all threads.
pub trait Channel: Send + Sync {
    /// Waits until there is room, then takes the group. A channel that has stopped drops it, which fails the receipt.
    fn put(&self, group: Group) -> BoxFuture<'_, ()>;
    /// Tells it what a source knows of its senders. Never waits.
    fn note(&self, _note: Note) {}
    /// Settles the token when everything that was put before is as safe as this channel can make it, whatever its policy:
    /// synced where it is durable. Behind memory the receipts of what was put say more. Never waits.
    fn sync(&self, token: Token) {
        token.settle();
    }
    /// Whether what it has taken waits for room that its consumers or the disk must make. `put` may take more all the same,
    /// up to the bound of its queue; that is kept when there is room again, however long it takes.
    fn is_full(&self) -> bool {
        false
    }
    /// No more groups will come: keep what was taken, then let the readers end.
    fn close(&self);
    /// The time to drain is over: keeps what was put as far as there is room for it, drops the rest (which fails its
    /// receipts), takes nothing more, and closes.
    fn give_up_waiting(&self) {}
    /// For a durable channel: where every tailed file goes on. None: nothing durable, the source keeps its own.
    fn file_origins(&self) -> Option<Vec<(FileId, u64)>> {
        None
    }
    /// Its durable identity (None for memory): positions mean something only together with it.
    fn id(&self) -> Option<u128> {
        None
    }
}

/// One batch as a reader delivers it.
#[derive(Debug)]
pub struct Delivered {
    /// The batch.
    pub batch: Batch,
    /// Behind a durable channel: where it stands.
    pub position: Option<Position>,
    /// Behind memory: what is settled with it.
    pub token: Option<Token>,
}

/// Between which positions that of a sink must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The last position that the consumer has committed, here or in an earlier run. A sink writes its own position before
    /// that, so a lower one is damaged or of an earlier time. None: it never committed, or an operator has moved it.
    pub committed: Option<Position>,
    /// The newest position that is kept: nothing behind it can come again.
    pub kept: Position,
}

/// One consumer's way through a channel. Lives on the consumer's thread; may block it for a read from the page cache.
pub trait Reader: Send {
    /// Goes on after `after`, which a sink that owns its position says (it wins over the cursor), else after the cursor.
    /// Called before the first batch and again whenever the consumer starts anew.
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure>;
    /// The next batch; `None` when the channel is closed and read to its end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>>;
    /// Everything up to `position` is settled by this consumer: moves its cursor and syncs it. Not called for memory.
    fn commit(&mut self, position: Position) -> Result<(), Failure>;
    /// Everything up to this is settled by this consumer, as its cursor says. None: memory.
    fn settled(&self) -> Option<Position> {
        None
    }
    /// What the channel knows of this consumer for sure, to compare with the position of a sink that keeps its own. None:
    /// memory.
    fn bounds(&self) -> Option<Bounds> {
        None
    }
    /// Whether a cut should come early, as the channel is nearly full.
    fn hurry(&self) -> bool {
        false
    }
}
