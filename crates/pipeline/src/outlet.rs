//! A port of a node: batches leave the node here and enter the downstream channels.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Back-pressure starts here: `send` returns only when every consumer has accepted the batch, and the source that reads a socket or a
//! file waits until then. Each batch reaches every consumer whose `tags` take it; a batch that no consumer takes is counted and
//! settled.

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;

use millstream_record::{Batch, FileId};

use crate::{
    channel::{BoxFuture, Channel, Entry, Group, Note},
    delivery::{self, Receipt, Size, Tally, Token},
    meters::{Meter, NodeMeters, histogram::Histogram},
    reject,
    rejection_log::RejectionLog,
    stop::Stop,
    tags::TagFilter,
    taps::{self, Point},
};

/// The interval between two checks whether a channel is full.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(50);

/// A port of a node. Clones share it; when the last clone is dropped, the downstream channels are closed, unless other ports hold them.
#[derive(Clone)]
pub struct Outlet(Arc<Port>);

struct Port {
    wires: ArcSwap<Wires>,
    sent: Meter,
    sent_bytes: Meter,
    sent_batches: Meter,
    tally: Arc<Tally>,
    unclaimed: Meter,
    tap: Point,
    /// The name of the port in samples, see [`taps`].
    name: &'static str,
    /// Returns the number of records of a batch. Records may share a rejected record.
    count: fn(&Batch) -> u64,
}

/// The destinations of a port. A reload replaces them as a whole; a batch that is being sent keeps its destinations.
#[derive(Default)]
pub(crate) struct Wires {
    pub(crate) edges: Vec<Edge>,
    /// The log of rejections; only a port `NAME.rejected` has one.
    pub(crate) log: Option<RejectionLog>,
}

impl Wires {
    /// The channels that the port keeps open.
    fn channels(&self) -> impl Iterator<Item = &dyn Channel> {
        self.edges.iter().filter_map(Edge::channel)
    }

    /// Whether every consumer is a durable channel.
    pub(crate) fn is_durable(&self) -> bool {
        !self.edges.is_empty() && self.channels().all(|channel| channel.id().is_some())
    }

    /// Whether the durable channel with this id is one of the destinations.
    pub(crate) fn leads_to(&self, channel: u128) -> bool {
        self.channels().any(|it| it.id() == Some(channel))
    }
}

/// Refers to a port without keeping the downstream channels open.
pub(crate) struct WeakOutlet(Weak<Port>);

impl WeakOutlet {
    /// Returns the port; `None` if its node has ended.
    pub(crate) fn upgrade(&self) -> Option<Outlet> {
        self.0.upgrade().map(Outlet)
    }
}

/// One consumer of a port.
pub struct Edge {
    /// The tags that the consumer takes; `None`: all.
    pub(crate) tags: Option<TagFilter>,
    pub(crate) link: Link,
    /// The entry (in the consumer's chain) that this port leads to.
    pub(crate) entry: Entry,
}

/// How an edge refers to the channel of its consumer.
pub(crate) enum Link {
    /// Keeps the channel open.
    Open(Arc<Feed>),
    /// Leads from the processors in front of a channel to the same channel, which also takes the records that they reject. This edge does
    /// not keep the channel open, and sends nothing once the channel is closed.
    Back(Weak<Feed>),
}

impl Edge {
    /// A consumer that takes all tags and has no chain.
    pub fn to(feed: Arc<Feed>) -> Self {
        Self {
            tags: None,
            link: Link::Open(feed),
            entry: Entry::default(),
        }
    }

    /// The channel that the edge keeps open.
    fn channel(&self) -> Option<&dyn Channel> {
        match &self.link {
            Link::Open(feed) => Some(feed.channel()),
            Link::Back(_) => None,
        }
    }

    fn takes(&self, tag: &str) -> bool {
        self.tags.as_ref().is_none_or(|tags| tags.takes(tag))
    }

    async fn put(&self, batches: Vec<Batch>, token: Token) {
        let group = Group {
            entry: self.entry.clone(),
            ..Group::new(batches, token)
        };
        match &self.link {
            Link::Open(feed) => feed.put(group).await,
            Link::Back(feed) => {
                // A dropped group fails its receipt.
                if let Some(feed) = feed.upgrade() {
                    feed.put(group).await;
                }
            }
        }
    }
}

/// Keeps a channel open for its producers.
pub struct Feed {
    channel: Arc<dyn Channel>,
    /// Where the batches of a channel node are sampled.
    tap: Option<Point>,
}

impl Feed {
    /// The feed of a channel.
    pub fn new(channel: Arc<dyn Channel>) -> Arc<Self> {
        Arc::new(Self { channel, tap: None })
    }

    /// The feed of a channel that is a node. The batches of the channel are sampled at `tap`.
    pub(crate) fn tapped(channel: Arc<dyn Channel>, tap: Point) -> Arc<Self> {
        let tap = Some(tap);
        Arc::new(Self { channel, tap })
    }

    /// Puts a group into the channel.
    pub(crate) fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        if let Some(tap) = &self.tap {
            tap.see(taps::IN, &group.batches);
        }
        self.channel.put(group)
    }

    /// The channel.
    pub(crate) fn channel(&self) -> &dyn Channel {
        &*self.channel
    }

    /// Refers to the channel without keeping it.
    pub(crate) fn downgrade(&self) -> Weak<dyn Channel> {
        Arc::downgrade(&self.channel)
    }
}

/// Withdraws a batch if its sender stops waiting before every consumer has accepted it.
struct Offer<'r> {
    receipt: &'r Receipt,
    is_taken: bool,
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            // A channel may already have claimed it, and may keep it.
            self.receipt.withdraw();
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.channel.close();
    }
}

impl Outlet {
    /// The port of a node with its consumers. `rejected` selects the names of its meters (`records_rejected` instead of
    /// `records_sent`).
    pub fn new(edges: Vec<Edge>, meters: &NodeMeters, rejected: bool) -> Self {
        let (sent, sent_bytes, sent_batches) = if rejected {
            ("records_rejected", "bytes_rejected", "batches_rejected")
        } else {
            ("records_sent", "bytes_sent", "batches_sent")
        };
        // Only sent records are measured: no peer waits for rejected ones.
        let latency = match rejected {
            true => Histogram::default(),
            false => meters.histogram("ack_seconds"),
        };
        Self(Arc::new(Port {
            wires: ArcSwap::from_pointee(Wires { edges, log: None }),
            sent: meters.counter(sent),
            sent_bytes: meters.counter(sent_bytes),
            sent_batches: meters.counter(sent_batches),
            tally: Arc::new(Tally {
                pending: meters.gauge("pending_records"),
                dropped: meters.counter("records_dropped"),
                pending_bytes: meters.gauge("pending_bytes"),
                latency,
            }),
            unclaimed: meters.counter("records_unclaimed"),
            tap: meters.tap(),
            name: match rejected {
                true => taps::REJECTED,
                false => taps::OUT,
            },
            count: match rejected {
                true => reject::records,
                false => |batch| batch.count.into(),
            },
        }))
    }

    /// Replaces the destinations. Batches of one flow stay in order, because each is sent only after the previous one was taken. Returns
    /// a weak reference to the earlier destinations. They are freed when the batches that were sent to them have arrived.
    pub(crate) fn rewire(&self, wires: Wires) -> Weak<Wires> {
        Arc::downgrade(&self.0.wires.swap(Arc::new(wires)))
    }

    /// Returns a reference to the port that does not keep the downstream channels open.
    pub(crate) fn downgrade(&self) -> WeakOutlet {
        WeakOutlet(Arc::downgrade(&self.0))
    }

    /// Returns the present destinations.
    pub(crate) fn wires(&self) -> Arc<Wires> {
        self.0.wires.load_full()
    }

    /// Sends one batch. Returns when every consumer has accepted it; the receipt resolves when all consumers are done with it.
    /// `awaited` means that a peer waits for an ack. If it is true, consumers settle as soon as they have processed all batches that are
    /// ready. If it is false, they may settle only once a second.
    pub async fn send(&self, batch: Batch, awaited: bool) -> Receipt {
        self.send_group(vec![batch], awaited).await
    }

    /// Sends all batches that result from one batch of a source; a durable channel keeps all of them or none.
    pub async fn send_group(&self, batches: Vec<Batch>, awaited: bool) -> Receipt {
        let wires = self.wires();
        let size = self.note_sent(&wires, &batches);
        let (token, receipt) = delivery::sized(awaited, size, self.0.tally.clone());
        self.deliver(&wires, batches, token).await;
        receipt
    }

    /// Like [`Outlet::send`], but a caller that stops waiting withdraws the batch: its sender has not been told that the batch is
    /// accepted, so the batch does not count as dropped. The caller sends nothing else of the same flow until it has the answer.
    pub async fn offer(&self, batch: Batch, awaited: bool) -> Receipt {
        let wires = self.wires();
        let batches = vec![batch];
        let size = self.note_sent(&wires, &batches);
        let (token, receipt) = delivery::alone(awaited, size, self.0.tally.clone());
        let mut delivering = pin!(self.deliver(&wires, batches, token));
        // Dropped before `delivering`, which holds the token.
        let mut offer = Offer {
            receipt: &receipt,
            is_taken: false,
        };
        delivering.as_mut().await;
        offer.is_taken = true;
        drop(offer);
        receipt
    }

    /// Sends a batch with `token`, so that the receipt of this token also waits for the batch.
    pub(crate) async fn send_with(&self, batch: Batch, token: Token) {
        let wires = self.wires();
        self.note_sent(&wires, std::slice::from_ref(&batch));
        self.deliver(&wires, vec![batch], token).await;
    }

    /// Counts and logs batches that are about to be sent; returns their size.
    fn note_sent(&self, wires: &Wires, batches: &[Batch]) -> Size {
        let records = batches.iter().map(self.0.count).sum();
        self.0.sent.add(records);
        let bytes = batches.iter().map(|batch| batch.len() as u64).sum();
        self.0.sent_bytes.add(bytes);
        self.0.sent_batches.add(batches.len() as u64);
        self.0.tap.see(self.0.name, batches);
        if let Some(log) = &wires.log {
            batches.iter().for_each(|batch| log.note(batch));
        }
        Size { records, bytes }
    }

    async fn deliver(&self, wires: &Wires, batches: Vec<Batch>, token: Token) {
        let port = &*self.0;
        if let [edge @ Edge { tags: None, .. }] = &wires.edges[..] {
            return edge.put(batches, token).await;
        }
        let mut claimed = vec![false; batches.len()];
        for edge in &wires.edges {
            let mut taken = Vec::with_capacity(batches.len());
            for (batch, claimed) in batches.iter().zip(&mut claimed) {
                if edge.takes(batch.tag.as_str()) {
                    *claimed = true;
                    taken.push(batch.clone());
                }
            }
            if !taken.is_empty() {
                edge.put(taken, token.clone()).await;
            }
        }
        let unclaimed = batches.iter().zip(claimed).filter(|(_, claimed)| !claimed);
        port.unclaimed
            .add(unclaimed.map(|(batch, _)| (port.count)(batch)).sum());
        token.settle();
    }

    /// Returns (used, limit) in bytes of the downstream channel with the least free space, relative to its limit. `None` if no channel
    /// has a limit.
    pub fn space(&self) -> Option<(u64, u64)> {
        let wires = self.wires();
        let spaces = wires.channels().filter_map(Channel::space);
        spaces.max_by(|(used, limit), (other_used, other_limit)| {
            let fill = |used: u64, limit: u64| u128::from(used) * u128::from(limit);
            fill(*used, *other_limit).cmp(&fill(*other_used, *limit))
        })
    }

    /// Waits until no downstream channel is full. A source calls this if a batch that it sends must not wait for space.
    pub async fn has_room(&self) {
        self.until_full_is(false).await;
    }

    /// Waits for `wait`, and then until a downstream channel is full. A source that waits for a receipt uses this to notice that the batch
    /// waits for space, which can take very long. A channel that is only slow (a sync, a sink) does not count as full.
    pub async fn is_full_after(&self, wait: Duration) {
        tokio::time::sleep(wait).await;
        self.until_full_is(true).await;
    }

    /// Waits until producers may wait for room in a downstream channel: a durable channel is full, or the queue of a memory channel is.
    pub async fn is_blocked(&self) {
        let is_blocked = |channel: &dyn Channel| channel.waiting().is_some();
        while !self.wires().channels().any(is_blocked) {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }

    async fn until_full_is(&self, full: bool) {
        while self.wires().channels().any(Channel::is_full) != full {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }

    /// Asks every downstream channel to sync everything that was sent before, regardless of its options. The receipt resolves when
    /// that is done.
    pub fn sync(&self) -> Receipt {
        let (token, receipt) = delivery::receipt(true, 0, self.0.tally.clone());
        let wires = self.wires();
        wires
            .channels()
            .for_each(|channel| channel.sync(token.clone()));
        token.settle();
        receipt
    }

    /// Passes a note about senders to every downstream channel.
    pub fn note(&self, note: Note) {
        let wires = self.wires();
        wires.channels().for_each(|channel| channel.note(note));
    }

    /// Waits until everything that was sent to durable channels is kept or dropped; returns at a stop, too. A source that reads files
    /// calls this before it asks for their offsets. Batches of an earlier run of the source may still wait for space in a channel. Until
    /// they are kept, the offsets are too low, and the source would send the same records again.
    pub async fn until_kept(&self, mut stop: Stop) {
        while self.is_durable() && self.pending_records() > 0 {
            tokio::select! {
                () = stop.stopped() => return,
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
        }
    }

    /// Returns for each tailed file the offset up to which it is kept: the lowest one if several channels differ. `None` if some
    /// downstream channel is not durable; then the source stores the offsets itself.
    pub fn file_origins(&self) -> Option<Vec<(FileId, u64)>> {
        let mut all: Option<HashMap<FileId, u64>> = None;
        for channel in self.wires().channels() {
            let origins: HashMap<_, _> = channel.file_origins()?.into_iter().collect();
            all = Some(match all {
                None => origins,
                // A file that some channel does not know must be read from its start.
                Some(before) => before
                    .into_iter()
                    .filter_map(|(file, next)| {
                        origins.get(&file).map(|other| (file, next.min(*other)))
                    })
                    .collect(),
            });
        }
        all.map(|all| all.into_iter().collect())
    }

    /// Returns the offsets up to which the downstream channels have kept one file. If such an offset is within a batch, the channel must
    /// divide the batch there. A source whose batches cannot be divided at every offset ends a batch at each of the returned offsets.
    pub fn file_marks(&self, file: FileId) -> Vec<u64> {
        let wires = self.wires();
        let channels = wires.channels();
        channels
            .filter_map(|channel| channel.file_mark(&file))
            .collect()
    }

    /// The ids of the durable channels among the present destinations.
    pub(crate) fn channel_ids(&self) -> Vec<u128> {
        let wires = self.wires();
        let channels = wires.channels();
        channels.filter_map(Channel::id).collect()
    }

    /// The counter of the records of this port that are in flight. It does not keep the downstream channels open.
    pub(crate) fn tally(&self) -> Arc<Tally> {
        self.0.tally.clone()
    }

    /// Whether every consumer is a durable channel.
    pub fn is_durable(&self) -> bool {
        self.wires().is_durable()
    }

    /// Whether the port has no consumer.
    pub(crate) fn leads_nowhere(&self) -> bool {
        self.wires().edges.is_empty()
    }

    /// Returns the number of records of this port that are in flight.
    pub fn pending_records(&self) -> u64 {
        self.0.tally.pending.get()
    }
}
