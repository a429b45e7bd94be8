//! The contract of a channel: what it accepts from outlets and what its readers give to inlets.
//!
//! `read -> decode -> send -> [keep] -> [read back] -> process -> encode -> write -> settle`

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use millstream_record::{Batch, FileId, Position};
use tokio::sync::oneshot;

use crate::{
    delivery::{Receipt, Token},
    failure::Failure,
    tags::TagFilter,
};

/// Everything that one batch of a source became. A durable channel keeps all of it or nothing.
#[derive(Debug)]
pub struct Group {
    /// Its batches, in order; at least one.
    pub batches: Vec<Batch>,
    /// Settled by the channel when the group is kept (durable) or by the consumer (memory).
    pub token: Token,
    /// The entry of the consumer's chain through which it arrives.
    pub entry: Entry,
}

/// An entry of a consumer's chain. Channels carry it to the reader and do not look into it.
#[derive(Clone, Default)]
pub struct Entry {
    /// Its number; 0 without a chain.
    pub number: usize,
    /// Behind memory: what makes the chain, if there is one. A batch keeps its chain, because a reload may replace it while the
    /// batch waits.
    pub(crate) chain: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({})", self.number)
    }
}

impl Group {
    /// A group for a consumer without a chain.
    pub fn new(batches: Vec<Batch>, token: Token) -> Self {
        Self {
            batches,
            token,
            entry: Entry::default(),
        }
    }

    /// Bytes of all bodies.
    pub fn len(&self) -> usize {
        self.batches.iter().map(Batch::len).sum()
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Facts about senders that a source knows and a channel needs to recognize repeats (docs/delivery.md, "Repeats").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The peer of this connection closed it in order, after the last ack.
    ConnectionClosed(u64),
    /// This connection ended in any other way, so the last acks may not have arrived.
    ConnectionBroken(u64),
}

/// The option `behind` of a sink: how far it may be behind a durable channel, and what happens beyond that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// Limit of the kept bytes that the sink has not settled; 0: only the channel's limit.
    pub size: u64,
    /// Limit of the age of the oldest batch that the sink has not settled; 0: none.
    pub age: Duration,
    /// The action beyond a limit, or when the channel is full.
    pub then: Then,
}

/// The action when a consumer is too far behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The sources wait for the consumer.
    #[default]
    Block,
    /// The oldest batches are dropped for this consumer alone, counted and logged.
    Skip,
}

/// A consumer of a durable channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// The name of the sink, and of its cursor.
    pub name: Arc<str>,
    /// How far it may be behind.
    pub behind: Behind,
    /// The tags that it takes; `None`: all.
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

/// A channel between producers and consumers, shared by all threads.
pub trait Channel: Send + Sync {
    /// Waits until there is room, then accepts the group. A channel that has stopped drops it, which fails the receipt.
    fn put(&self, group: Group) -> BoxFuture<'_, ()>;
    /// Passes on what a source knows about its senders. Never waits.
    fn note(&self, _note: Note) {}
    /// Settles the token when everything put before it is as safe as this channel can make it, regardless of the option `sync`:
    /// synced, if the channel is durable. Memory settles it at once; only the receipts of the groups tell when sinks are done.
    /// Never waits.
    fn sync(&self, token: Token) {
        token.settle();
    }
    /// Whether groups that `put` has accepted wait for space that consumers or the disk must free. `put` may still accept more, up
    /// to the bound of its queue; those groups are kept when there is space again, however late.
    fn is_full(&self) -> bool {
        false
    }
    /// (used, limit) of the batches that wait in memory for consumers, in bytes. `None` if the channel holds none in memory.
    fn fill(&self) -> Option<(u64, u64)> {
        None
    }
    /// No more groups will come: keeps what was accepted, then lets the readers end.
    fn close(&self);
    /// The drain deadline has passed: keeps as many groups as fit, drops the rest (which fails their receipts), accepts nothing
    /// more, and closes.
    fn give_up_waiting(&self) {}
    /// The offset up to which each tailed file is kept, for a durable channel. `None` for memory: the source keeps its own
    /// positions.
    fn file_origins(&self) -> Option<Vec<(FileId, u64)>> {
        None
    }
    /// The offset up to which one tailed file is kept; `None` if no part of it is.
    fn file_mark(&self, file: &FileId) -> Option<u64> {
        let origins = self.file_origins()?;
        origins
            .into_iter()
            .find(|(id, _)| id == file)
            .map(|(_, next)| next)
    }
    /// Returns a reader for a consumer that has none: a new consumer, or one whose reader was dropped. The sender is dropped
    /// without an answer if the channel ends.
    fn attach(&self, _consumer: Consumer) -> oneshot::Receiver<Result<Box<dyn Reader>, String>> {
        let (answer, receiver) = oneshot::channel();
        let _ = answer.send(Err("it keeps nothing for consumers".to_owned()));
        receiver
    }
    /// About how many kept bytes this consumer has not settled.
    fn unsettled_bytes(&self, _consumer: &str) -> u64 {
        0
    }
    /// Changes its options to those of another configuration of its type ([`ChannelConfig::options`]). Returns false if only a
    /// restart can do that.
    ///
    /// [`ChannelConfig::options`]: crate::node::ChannelConfig::options
    fn change(&self, _options: Box<dyn Any + Send>) -> bool {
        false
    }
    /// Removes a consumer that no sink reads for, and gives up what only this consumer has not settled. The error is the reason why
    /// that is impossible. The sender is dropped without an answer if the channel ends.
    fn forget(&self, _consumer: &str) -> oneshot::Receiver<Result<(), String>> {
        let (answer, receiver) = oneshot::channel();
        let _ = answer.send(Err("it keeps nothing for consumers".to_owned()));
        receiver
    }
    /// Moves a consumer past everything up to `to`, permanently; its sink must be restarted. Returns the number of records that the
    /// consumer had not settled, or the reason why it cannot be moved. The sender is dropped without an answer if the channel ends.
    fn skip(&self, _consumer: &str, _to: Position) -> oneshot::Receiver<Result<u64, String>> {
        let (answer, receiver) = oneshot::channel();
        let _ = answer.send(Err("it keeps nothing for consumers".to_owned()));
        receiver
    }
    /// Its durable identity (`None` for memory). Positions of different channels cannot be compared.
    fn id(&self) -> Option<u128> {
        None
    }
}

/// Creates the queues in front of a sink: number of lanes and bytes of each -> the channel and its readers.
pub type OpenMemory = fn(usize, usize) -> (Arc<dyn Channel>, Vec<Box<dyn Reader>>);

/// One batch as a reader delivers it.
#[derive(Debug)]
pub struct Delivered {
    /// The batch.
    pub batch: Batch,
    /// Its position, behind a durable channel.
    pub position: Option<Position>,
    /// Behind memory: the tokens to settle together with the batch.
    pub token: Option<Token>,
    /// The entry of the consumer's chain, from [`Group::entry`].
    pub entry: Entry,
    /// Whether this is the last batch that its position became. A chain makes several batches of one, and only the last may be
    /// settled.
    pub last: bool,
    /// The receipts of records that the chain rejected. The batch is settled only when they are kept.
    pub rejected: Vec<Receipt>,
}

impl Delivered {
    /// A batch as a channel delivers it.
    pub fn new(batch: Batch, position: Option<Position>, token: Option<Token>) -> Self {
        Self {
            batch,
            position,
            token,
            entry: Entry::default(),
            last: true,
            rejected: Vec::new(),
        }
    }
}

/// The range that a valid position of a sink lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The last position that the consumer committed, in this run or an earlier one. A sink writes its own position first, so if
    /// that is lower it is damaged or an old copy. `None`: it never committed, or an operator moved the cursor.
    pub committed: Option<Position>,
    /// The newest kept position. No later one can be read again.
    pub kept: Position,
}

/// Reads a channel for one consumer, on the consumer's thread. May block on a read from the page cache.
pub trait Reader: Send {
    /// Continues after `after`, the position of a sink that keeps its own (it wins over the cursor), or else after the cursor.
    /// Called before the first batch and again whenever the consumer restarts.
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure>;
    /// The next batch; `None` when the channel is closed and read to its end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>>;
    /// Marks everything up to `position` as settled by this consumer: moves its cursor and syncs it. Not called for memory.
    fn commit(&mut self, position: Position) -> Result<(), Failure>;
    /// The position up to which this consumer has settled, by its cursor. `None` for memory.
    fn settled(&self) -> Option<Position> {
        None
    }
    /// The bounds of this consumer's position, to check the position of a sink that keeps its own. `None` for memory.
    fn bounds(&self) -> Option<Bounds> {
        None
    }
    /// Whether a checkpoint should be early because the channel is nearly full.
    fn hurry(&self) -> bool {
        false
    }
}
