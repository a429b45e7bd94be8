//! Sends the batches of one connection, in order, and queues their acks.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep`

use std::sync::Arc;

use bytes::Bytes;
use millstream_pipeline::{delivery::Receipt, reject, replay::ADDRESS};
use millstream_record::{Batch, Buffer, ChunkOrigin, Claim, Encoding, Origin, Tag, Time, Values};
use millstream_sys::checksum::crc32c;
use millstream_wire::forward::{Frame, Options};

use super::{
    acks::Acks,
    end::End,
    gather::{Chunk, GATHER_BYTES, Gather, OWN_BYTES_MAX},
    service::Service,
};
use crate::connection::{Stash, patiently};

/// After sending a batch at least this large, the task yields, so that the next hop reads the batch while it is in the cache.
pub(super) const YIELD_BYTES: usize = 64 << 10;

/// The memory of the pool that a connection holds while it handles a frame.
pub(super) enum Holds {
    Nothing,
    /// The read buffer, which was grown. The connection waits for more memory only for a limited time, because other connections may
    /// wait for the memory of this buffer.
    Buffer,
    /// Memory under a claim that covers everything the frame needs, so the connection can wait for the rest without a limit.
    Claimed(Claim),
}

impl Holds {
    /// The memory that a frame in this read buffer holds before it needs more.
    pub(super) fn of(stash: &Stash) -> Self {
        match stash.claim() {
            Some(_) => Self::Buffer,
            None => Self::Nothing,
        }
    }
}

/// Sends the batches of one connection.
pub(super) struct Outgoing {
    pub(super) service: Arc<Service>,
    /// The number of the connection.
    number: u64,
    /// The values that all records of the connection share.
    values: Arc<Values>,
    pub(super) acks: Acks,
    pub(super) gather: Gather,
    /// The last tag received and the tag made from it. Cached, because most frames have the same tag as the one before.
    sent_tag: Vec<u8>,
    tag: Tag,
    /// When the bytes that are being decoded were received.
    pub(super) now: Time,
    /// The memory that the connection holds for the current frame.
    pub(super) holds: Holds,
}

impl Outgoing {
    pub(super) fn new(service: Arc<Service>, number: u64, values: Values, acks: Acks) -> Self {
        Self {
            number,
            sent_tag: Vec::new(),
            tag: service.tag.tag("", None, &values),
            service,
            values: Arc::new(values),
            acks,
            gather: Gather::default(),
            now: Time::default(),
            holds: Holds::Nothing,
        }
    }

    /// Sends the gathered batch. Its chunks are acked once the batch is kept or settled.
    pub(super) async fn flush(&mut self) {
        let Some(gone) = self.gather.take(self.number, &self.values) else {
            return;
        };
        let receipt = self.send(gone.batch, gone.acked > 0).await;
        if gone.acked > 0 {
            self.acks.send(vec![receipt], gone.acks, gone.acked).await;
        }
    }

    /// The number of the connection.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Sends a batch, and yields so that the next hop reads it while it is in the cache.
    pub(super) async fn send(&self, batch: Batch, awaited: bool) -> Receipt {
        let bytes = batch.len();
        let receipt = self.service.context.outlet.send(batch, awaited).await;
        if bytes >= YIELD_BYTES {
            tokio::task::yield_now().await;
        }
        receipt
    }

    /// Makes sure that a frame of this kind and size can be appended to the gathered batch.
    pub(super) async fn prepare(
        &mut self,
        tag: &[u8],
        encoding: Encoding,
        bytes: usize,
    ) -> Result<(), End> {
        self.set_tag(tag);
        if self.gather.takes(&self.tag, encoding, bytes) {
            return Ok(());
        }
        self.flush().await;
        let body = self.buffer(bytes.max(GATHER_BYTES)).await?;
        self.gather
            .start(self.tag.clone(), encoding, self.now, body);
        Ok(())
    }

    /// Notes the id of the frame that was appended to the gathered batch from `start` on.
    pub(super) fn note_chunk(&mut self, frame: &Frame<'_>, start: usize, records: u32) {
        let Some(id) = frame.options.chunk else {
            return;
        };
        let durable = self.service.durable;
        let chunk = Chunk {
            id,
            length: frame.body.len(),
            checksum: if durable { crc32c(frame.body) } else { 0 },
            start,
            records,
        };
        let acks = &self.acks;
        self.gather
            .chunk(&chunk, durable, |out| acks.write(out, id));
    }

    /// Makes a batch with `body`. `received` is the payload from which `body` was decoded, and `options` are the options of its frame.
    pub(super) fn batch(
        &self,
        tag: Tag,
        encoding: Encoding,
        body: Bytes,
        received: &[u8],
        options: &Options<'_>,
        (count, plain): (u32, bool),
    ) -> Batch {
        let origin = options.chunk.filter(|_| self.service.durable).map(|id| {
            Origin::Chunk(ChunkOrigin {
                id: Bytes::copy_from_slice(id),
                tag: tag.clone(),
                connection: self.number,
                length: received.len() as u32,
                checksum: crc32c(received),
                start: 0,
                end: body.len() as u32,
                records: count,
            })
        });
        let values = options.values.as_ref();
        Batch {
            tag,
            plain,
            encoding,
            body,
            count,
            received: options.received.unwrap_or(self.now),
            values: values.map_or_else(|| self.values.clone(), |values| self.add_to(values)),
            origins: origin.into_iter().collect(),
        }
    }

    /// The values that another Millstream has sent, completed by the values of this connection. The value `peer` is always that of
    /// this connection.
    fn add_to(&self, values: &Values) -> Arc<Values> {
        let mut values = values.clone();
        // The value `ADDRESS` directs a batch to one node. Only a replay of rejected records by this process may set it, not a peer.
        values.remove(ADDRESS);
        for (name, text) in self.values.iter() {
            if name == "peer" || values.get(name).is_none() {
                values.set(name, text);
            }
        }
        Arc::new(values)
    }

    /// Sends `items` to the port `rejected`, with the reason.
    pub(super) async fn reject<'a>(
        &self,
        tag: Tag,
        items: impl IntoIterator<Item = &'a [u8]>,
        reason: &str,
        chunk: Option<&[u8]>,
    ) -> Receipt {
        let context = &self.service.context;
        let from = Batch {
            tag,
            plain: false,
            encoding: Encoding::Packed,
            body: Bytes::new(),
            count: 0,
            received: self.now,
            values: self.values.clone(),
            origins: Vec::new(),
        };
        let (node, items) = (&*context.name, items.into_iter().collect::<Vec<_>>());
        let bytes = items
            .iter()
            .map(|item| reject::bytes(node, &from, item, reason));
        // `take` charges the memory without waiting: a wait while this connection holds the payload could last forever. Other
        // connections wait instead.
        let mut body = context.pool.take(bytes.sum());
        for item in &items {
            reject::write(&mut body, node, &from, item, reason);
        }
        let body = if body.len() <= OWN_BYTES_MAX {
            Bytes::copy_from_slice(&body)
        } else {
            body.freeze()
        };
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let batch = reject::envelope(node, &from, body, count);
        context.rejects.send(batch, chunk.is_some()).await
    }

    /// Rejects `item` as a whole, and acks it if it has the id of a chunk.
    pub(super) async fn reject_whole(
        &self,
        tag: Tag,
        item: &[u8],
        reason: &str,
        chunk: Option<&[u8]>,
    ) {
        let receipt = self.reject(tag, [item], reason, chunk).await;
        self.acks.answer(vec![receipt], chunk).await;
    }

    /// Returns a buffer for the frame that is being handled.
    async fn buffer(&self, bytes: usize) -> Result<Buffer, End> {
        let pool = &self.service.context.pool;
        match &self.holds {
            Holds::Nothing => Ok(pool.reserve(bytes).await),
            Holds::Buffer => self.memory(bytes, &pool.claim(0)).await,
            Holds::Claimed(claim) => Ok(claim.reserve(bytes).await),
        }
    }

    /// Returns a buffer for a frame that already holds memory. The buffer may be larger than the rest of `claim`. Waits only for a
    /// limited time. Fails after that time, or if the pool keeps the memory to complete other messages (see [`Claim::extend`]).
    pub(super) async fn memory(&self, bytes: usize, claim: &Claim) -> Result<Buffer, End> {
        let buffer = patiently(claim.reserve_more(bytes)).await.flatten();
        buffer.ok_or(End::NoMemory)
    }

    /// Returns the tag of a batch that was received with the tag `sent`. Bytes that are not UTF-8 are replaced.
    pub(super) fn tag(&mut self, sent: &[u8]) -> Tag {
        self.set_tag(sent);
        self.tag.clone()
    }

    fn set_tag(&mut self, sent: &[u8]) {
        if self.sent_tag != sent {
            sent.clone_into(&mut self.sent_tag);
            let sent = String::from_utf8_lossy(sent);
            self.tag = self.service.tag.tag(&sent, None, &self.values);
        }
    }
}
