//! The contract of a channel: what it accepts from outlets and what its readers give to inlets.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
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

/// Returns the name of the pump that fills a channel. No node of a configuration has such a name, because of the dot.
pub(crate) fn pump_of(channel: &str) -> Arc<str> {
    format!("{channel}.input").into()
}

/// All batches that result from one batch of a source. A durable channel keeps all of them or none.
#[derive(Debug)]
pub struct Group {
    /// Its batches, in order; at least one.
    pub batches: Vec<Batch>,
    /// A durable channel settles it when the group is kept. If the channel is a memory channel, the consumer settles it.
    pub token: Token,
    /// The entry (of the consumer's chain) through which the group arrives.
    pub entry: Entry,
}

/// An entry of a consumer's chain: the point at which a producer's port leads into the chain. Channels carry it to the reader and do
/// not look into it.
#[derive(Clone, Default)]
pub struct Entry {
    /// The index of the entry; 0 if there is no chain.
    pub number: usize,
    /// For a batch that waits in memory: the maker of the chain that it will pass through, if there is one. The batch holds the maker,
    /// because a reload may replace the consumer's chain in the meantime.
    pub(crate) chain: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({})", self.number)
    }
}

impl Group {
    /// A group for a consumer that has no chain.
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
    /// The peer of this connection closed it in an orderly way, after the last ack.
    ConnectionClosed(u64),
    /// This connection ended in any other way, so the last acks may not have arrived.
    ConnectionBroken(u64),
}

/// The option `behind` of a sink: how far it may be behind a durable channel, and what happens beyond that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// Limit of the kept bytes that the sink has not settled; 0: only the channel's own limit applies.
    pub size: u64,
    /// Limit of the age of the oldest batch that the sink has not settled; 0: no limit.
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
    /// Waits for space, then accepts the group. A channel that has stopped drops the group, which fails its receipt.
    fn put(&self, group: Group) -> BoxFuture<'_, ()>;
    /// Takes a note of a source about its senders. Never waits.
    fn note(&self, _note: Note) {}
    /// Settles the token when everything that was put earlier is as safe as this channel can make it: a durable channel syncs it to
    /// the disk, regardless of the option `sync`. A memory channel settles the token immediately; only the receipts of the groups
    /// show when the sinks are done. Never waits.
    fn sync(&self, token: Token) {
        token.settle();
    }
    /// Whether groups that `put` has accepted wait for space that consumers or the disk must free. `put` may accept further groups, up
    /// to the bound of its queue, but they are kept only when there is space again.
    fn is_full(&self) -> bool {
        false
    }
    /// While producers may wait for room: a number that changes whenever consumers free room. `None`: no producer waits. For a durable
    /// channel, room in the log counts; for a memory channel, room in a queue.
    fn waiting(&self) -> Option<u64> {
        self.is_full().then_some(0)
    }
    /// Returns (used, limit) in bytes for the batches that wait in memory for consumers. `None`: the channel holds no batches in memory.
    fn fill(&self) -> Option<(u64, u64)> {
        None
    }
    /// Returns (used, limit) in bytes of the space for accepted batches. A full channel has no free space left. `None`: the channel has
    /// no such limit.
    fn space(&self) -> Option<(u64, u64)> {
        self.fill()
    }
    /// Called when no more groups will be put: keeps the groups that were accepted, then lets the readers end.
    fn close(&self);
    /// Called when the deadline of a stop has passed, and when a reload has removed a channel that stays full: keeps as many groups as fit, drops the rest (which fails their receipts), accepts no
    /// further groups, and closes.
    fn give_up_waiting(&self) {}
    /// Returns for each tailed file the offset up to which a durable channel has kept it. `None` for memory: the source then stores
    /// the offsets itself.
    fn file_origins(&self) -> Option<Vec<(FileId, u64)>> {
        None
    }
    /// Returns the offset up to which one tailed file is kept; `None` if nothing of the file is kept.
    fn file_mark(&self, file: &FileId) -> Option<u64> {
        let origins = self.file_origins()?;
        origins
            .into_iter()
            .find(|(id, _)| id == file)
            .map(|(_, next)| next)
    }
    /// Requests a reader for a consumer that has none: a new consumer, or one whose reader was dropped. A new consumer is durable before
    /// the answer: from then on, the channel keeps everything for it. The receiver closes without an answer if the channel ends.
    fn attach(&self, _consumer: Consumer) -> oneshot::Receiver<Result<Attached, String>> {
        let (answer, receiver) = oneshot::channel();
        let _ = answer.send(Err("it keeps nothing for consumers".to_owned()));
        receiver
    }
    /// Returns approximately how many kept bytes this consumer has not settled.
    fn unsettled_bytes(&self, _consumer: &str) -> u64 {
        0
    }
    /// Returns a function that tells how many bytes the slowest consumer has not settled, also after the channel is closed. `None` for
    /// memory, where nothing stays.
    fn backlog(&self) -> Option<Backlog> {
        None
    }
    /// Prepares to apply the options of another configuration of the same type ([`ChannelConfig::options`]). The returned step applies
    /// them; before it is called, nothing changes. `None` if only a restart can apply them.
    ///
    /// [`ChannelConfig::options`]: crate::node::ChannelConfig::options
    fn change(&self, _options: Box<dyn Any + Send>) -> Option<Apply> {
        None
    }
    /// Removes a consumer that no sink uses any more, and drops all batches that only this consumer has not settled. The error is the
    /// reason why the consumer cannot be removed. The receiver closes without an answer if the channel ends.
    fn forget(&self, _consumer: &str) -> oneshot::Receiver<Result<(), String>> {
        let (answer, receiver) = oneshot::channel();
        let _ = answer.send(Err("it keeps nothing for consumers".to_owned()));
        receiver
    }
    /// Notes that no sink reads for this consumer any more, and that it stays because it has not settled everything. A condition of
    /// the channel says so until the consumer is forgotten or a sink reads for it again.
    fn abandon(&self, _consumer: &str) {}
    /// Moves a consumer past everything up to `to`, permanently; its sink must be restarted. The answer is the number of records that
    /// the consumer had not settled, or the reason why it cannot be moved. The receiver closes without an answer if the channel ends.
    fn skip(&self, _consumer: &str, _to: Position) -> oneshot::Receiver<Result<u64, String>> {
        let (answer, receiver) = oneshot::channel();
        let _ = answer.send(Err("it keeps nothing for consumers".to_owned()));
        receiver
    }
    /// Returns the durable identity of the channel (`None` for memory). Positions of different channels cannot be compared.
    fn id(&self) -> Option<u128> {
        None
    }
}

/// The reader of a consumer that has joined a running channel.
pub struct Attached {
    /// The reader.
    pub reader: Box<dyn Reader>,
    /// Whether the channel did not know the consumer before.
    pub is_new: bool,
}

/// Tells how many bytes the slowest consumer of a channel has not settled ([`Channel::backlog`]).
pub type Backlog = Box<dyn Fn() -> u64 + Send>;

/// Applies changed options to a channel.
pub type Apply = Box<dyn FnOnce() + Send>;

/// Creates the memory channel in front of a sink. Takes the number of lanes and the bytes of each lane's queue. Returns the channel
/// and one reader for each lane.
pub type OpenMemory = fn(usize, usize) -> (Arc<dyn Channel>, Vec<Box<dyn Reader>>);

/// One batch as a reader delivers it.
#[derive(Debug)]
pub struct Delivered {
    /// The batch.
    pub batch: Batch,
    /// The position of the batch in a durable channel; `None` if it comes from memory.
    pub position: Option<Position>,
    /// The token to settle together with the batch, if it comes from memory. Of several batches that a chain makes from one batch, only the
    /// last has the token.
    pub token: Option<Token>,
    /// The entry of the consumer's chain, from [`Group::entry`].
    pub entry: Entry,
    /// Whether this is the last of the batches that a chain made from one delivered batch. A checkpoint may follow only the last one.
    pub last: bool,
    /// The receipts of records that the chain rejected. The batch is settled only when those records are kept.
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

/// The range of valid positions for a sink that stores its own position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The last position that the consumer committed, in this run or an earlier one. A sink stores its own position before it commits
    /// here, so a lower position in the sink is damaged or comes from an old copy. `None`: the consumer has never committed, or an
    /// operator moved the cursor.
    pub committed: Option<Position>,
    /// The newest position that the channel has kept. A later position in the sink is invalid.
    pub kept: Position,
}

/// Reads a channel for one consumer, on the consumer's thread. May block on a read from the page cache.
pub trait Reader: Send {
    /// Continues after the position `after`, which comes from a sink that stores its own position; `None`: continues after the cursor.
    /// Called before the first batch and again whenever the consumer restarts.
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure>;
    /// Returns the next batch; `None` when the channel is closed and read to its end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>>;
    /// Marks everything up to `position` as settled by this consumer: moves its cursor and syncs it. Not called for memory.
    fn commit(&mut self, position: Position) -> Result<(), Failure>;
    /// Returns the position of this consumer's cursor. `None` for memory.
    fn settled(&self) -> Option<Position> {
        None
    }
    /// Returns the range of valid positions, for a sink that stores its own position. `None` for memory.
    fn bounds(&self) -> Option<Bounds> {
        None
    }
    /// Whether the next checkpoint should come early, because the channel is nearly full.
    fn hurry(&self) -> bool {
        false
    }
}
