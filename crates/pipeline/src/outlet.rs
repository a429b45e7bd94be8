//! Where a node's batches leave by: one port, and the channels that take from it.
//!
//! `read -> decode -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! Here back-pressure starts: `send` returns when every consumer has room, and whoever reads a socket or a file waits
//! for it. It promises that each batch reaches every consumer whose `tags` take it; what nobody takes is counted and
//! settled.

use std::{sync::Arc, time::Duration};

use millstream_record::{Batch, FileId};

use crate::{
    channel::{Channel, Group, Note},
    delivery::{self, Receipt, Tally},
    meters::{Meter, NodeMeters},
    rejection_log::RejectionLog,
    tags::TagFilter,
};

/// How often it is looked whether a full channel has room again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A port of a node. Cloning shares it; when the last clone is dropped, the channels behind it are closed.
#[derive(Clone)]
pub struct Outlet(Arc<Port>);

struct Port {
    edges: Vec<Edge>,
    sent: Meter,
    sent_bytes: Meter,
    tally: Arc<Tally>,
    unclaimed: Meter,
    /// Of a port `NAME.rejected`.
    log: Option<RejectionLog>,
}

/// One consumer of a port.
pub struct Edge {
    /// Which tags it takes; None: all.
    pub tags: Option<TagFilter>,
    /// Where they go. The channel is closed when the last feed of it is dropped.
    pub feed: Arc<Feed>,
}

/// Keeps a channel open for its producers.
pub struct Feed(Arc<dyn Channel>);

impl Feed {
    /// The feed of a channel.
    pub fn new(channel: Arc<dyn Channel>) -> Arc<Self> {
        Arc::new(Self(channel))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Outlet {
    /// The port of a node with its consumers; `name` tells the port's meters apart (`records_sent`, `records_rejected`).
    pub fn new(edges: Vec<Edge>, meters: &NodeMeters, rejected: bool) -> Self {
        Self::with(edges, meters, rejected, None)
    }

    /// A port `NAME.rejected`; what leaves by it is logged.
    pub(crate) fn of_rejects(edges: Vec<Edge>, meters: &NodeMeters, log: RejectionLog) -> Self {
        Self::with(edges, meters, true, Some(log))
    }

    fn with(
        edges: Vec<Edge>,
        meters: &NodeMeters,
        rejected: bool,
        log: Option<RejectionLog>,
    ) -> Self {
        let (sent, sent_bytes) = if rejected {
            ("records_rejected", "bytes_rejected")
        } else {
            ("records_sent", "bytes_sent")
        };
        Self(Arc::new(Port {
            edges,
            sent: meters.counter(sent),
            sent_bytes: meters.counter(sent_bytes),
            tally: Arc::new(Tally {
                pending: meters.gauge("pending_records"),
                dropped: meters.counter("records_dropped"),
            }),
            unclaimed: meters.counter("records_unclaimed"),
            log,
        }))
    }

    /// Sends one batch. Returns when every consumer has taken it in; the receipt tells when all are done with it.
    /// `awaited`: somebody waits for the receipt (a peer for its ack), so consumers settle as soon as nothing more is
    /// ready.
    pub async fn send(&self, batch: Batch, awaited: bool) -> Receipt {
        self.send_group(vec![batch], awaited).await
    }

    /// Sends what one batch of a source became, all of it or nothing where it is kept.
    pub async fn send_group(&self, batches: Vec<Batch>, awaited: bool) -> Receipt {
        let port = &*self.0;
        let records = batches.iter().map(|batch| u64::from(batch.count)).sum();
        port.sent.add(records);
        port.sent_bytes
            .add(batches.iter().map(|batch| batch.len() as u64).sum());
        if let Some(log) = &port.log {
            batches.iter().for_each(|batch| log.note(batch));
        }
        let (token, receipt) = delivery::receipt(awaited, records, port.tally.clone());
        if let [Edge { tags: None, feed }] = &port.edges[..] {
            feed.0.put(Group { batches, token }).await;
            return receipt;
        }
        let mut claimed = vec![false; batches.len()];
        for edge in &port.edges {
            let mut taken = Vec::with_capacity(batches.len());
            for (batch, claimed) in batches.iter().zip(&mut claimed) {
                if edge
                    .tags
                    .as_ref()
                    .is_none_or(|tags| tags.takes(batch.tag.as_str()))
                {
                    *claimed = true;
                    taken.push(batch.clone());
                }
            }
            if !taken.is_empty() {
                edge.feed
                    .0
                    .put(Group {
                        batches: taken,
                        token: token.clone(),
                    })
                    .await;
            }
        }
        let unclaimed = batches.iter().zip(claimed).filter(|(_, claimed)| !claimed);
        port.unclaimed
            .add(unclaimed.map(|(batch, _)| u64::from(batch.count)).sum());
        token.settle();
        receipt
    }

    /// Returns when no channel behind the port is full: for who would rather send nothing than have it wait there.
    pub async fn has_room(&self) {
        self.is_full_or_not(false).await;
    }

    /// Returns when `wait` is over and a channel behind the port is full: for who waits for a receipt and would rather give
    /// up than wait for room. What is only slow (a sync, a sink) is waited for.
    pub async fn is_full_after(&self, wait: Duration) {
        tokio::time::sleep(wait).await;
        self.is_full_or_not(true).await;
    }

    async fn is_full_or_not(&self, full: bool) {
        while self.0.edges.iter().any(|edge| edge.feed.0.is_full()) != full {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Asks every channel behind the port to sync what was sent before, whatever its policy; the receipt says when.
    pub fn sync(&self) -> Receipt {
        let (token, receipt) = delivery::receipt(true, 0, self.0.tally.clone());
        for edge in &self.0.edges {
            edge.feed.0.sync(token.clone());
        }
        token.settle();
        receipt
    }

    /// Tells every channel behind the port what the source knows of its senders.
    pub fn note(&self, note: Note) {
        for edge in &self.0.edges {
            edge.feed.0.note(note);
        }
    }

    /// Where every tailed file goes on, if everything behind the port is durable: the lowest offset where several
    /// channels differ. None: the source keeps its positions itself.
    pub fn file_origins(&self) -> Option<Vec<(FileId, u64)>> {
        let mut all: Option<std::collections::HashMap<FileId, u64>> = None;
        for edge in &self.0.edges {
            let origins: std::collections::HashMap<_, _> =
                edge.feed.0.file_origins()?.into_iter().collect();
            all = Some(match all {
                None => origins,
                // A file that one channel does not know has to be read from its start again.
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

    /// Where the channels behind the port go on with one file, each by itself: a source whose batches cannot be cut by
    /// bytes ends them there.
    pub fn file_marks(&self, file: FileId) -> Vec<u64> {
        let edges = self.0.edges.iter();
        let origins = edges
            .filter_map(|edge| edge.feed.0.file_origins())
            .flatten();
        origins
            .filter(|(id, _)| *id == file)
            .map(|(_, next)| next)
            .collect()
    }

    /// Whether every consumer is a durable channel.
    pub fn is_durable(&self) -> bool {
        !self.0.edges.is_empty() && self.0.edges.iter().all(|edge| edge.feed.0.id().is_some())
    }

    /// Records sent by this port whose fate is open.
    pub fn pending_records(&self) -> u64 {
        self.0.tally.pending.get()
    }
}
