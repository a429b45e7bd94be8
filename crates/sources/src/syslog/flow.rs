//! Makes batches from the messages of one connection or socket, and sends the batches.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> [send] -> keep`

use std::sync::Arc;

use bytes::Bytes;
use millstream_pipeline::{
    delivery::{Receipt, Unsettled},
    reject,
};
use millstream_record::{Batch, Buffer, Encoding, Tag, Time, Values};
use millstream_wire::syslog::{After, Decoder, LeftOver, Received, Run, TooLong};

use super::endpoint::Endpoint;
use crate::flight::Flight;

/// A batch is sent when it has this size. The size is large enough to make the cost per batch negligible, and small enough that the
/// batch is still in the cache when the next hop reads it.
const BATCH_BYTES: usize = 256 << 10;
/// Space beyond [`BATCH_BYTES`] for the record that exceeds it.
const SLACK_BYTES: usize = 16 << 10;
/// A batch of up to this size is copied into an allocation of its exact size, so that a slow stream does not hold buffers of the
/// pool.
const OWN_BYTES_MAX: usize = 16 << 10;

/// Makes batches from messages.
pub(super) struct Flow {
    pub(super) endpoint: Arc<Endpoint>,
    /// When the messages that are being decoded were received.
    pub(super) now: Time,
    decoder: Decoder,
    tag: Tag,
    values: Arc<Values>,
    /// The field `host` of messages that do not name a host.
    host: Box<[u8]>,
    batch: Option<PendingBatch>,
    /// The receipts of records that were rejected since the last batch.
    rejected: Vec<Receipt>,
}

/// A batch that is being filled.
struct PendingBatch {
    body: Buffer,
    count: u32,
    received: Time,
}

impl Flow {
    pub(super) fn new(endpoint: Arc<Endpoint>, values: Values) -> Self {
        Self {
            now: Time::now(),
            decoder: Decoder::new(endpoint.settings.clone()),
            host: values.get("host").unwrap_or_default().as_bytes().into(),
            tag: endpoint.tag.tag(&endpoint.context.name, None, &values),
            values: Arc::new(values),
            batch: None,
            rejected: Vec::new(),
            endpoint,
        }
    }

    /// Begins a batch with space for `bytes` bytes of text, unless there is a batch. `holding`: the caller holds pool memory and
    /// frees it only after this call, so this call must not wait for memory.
    pub(super) async fn begin_batch(&mut self, bytes: usize, holding: bool) {
        if self.batch.is_some() {
            return;
        }
        let pool = &self.endpoint.context.pool;
        let bytes = BATCH_BYTES.max(bytes) + SLACK_BYTES;
        let body = if holding {
            pool.take(bytes)
        } else {
            pool.reserve(bytes).await
        };
        self.batch = Some(PendingBatch {
            body,
            count: 0,
            received: self.now,
        });
    }

    /// Decodes the complete messages in `text`. Returns the number of bytes consumed, and whether everything that can be decoded now
    /// was decoded. The second value is false if the batch is full or a message was rejected: the rest of `text` may then hold more
    /// messages.
    pub(super) async fn decode_stream(&mut self, text: &[u8], after: After) -> (usize, bool) {
        let from = Received {
            now: self.now,
            host: &self.host,
            peer: None,
        };
        let Some(batch) = &mut self.batch else {
            return (0, false);
        };
        let run = self
            .decoder
            .run(text, after, &from, &mut batch.body, BATCH_BYTES);
        let (consumed, full) = (run.consumed, run.full);
        let left_over = run.left_over.is_some();
        self.note(run, text, None).await;
        if full {
            return (consumed, false);
        }
        (consumed, !left_over)
    }

    /// Decodes one whole message. `peer` is the sender of the message. None if all messages of the batch have the same sender, which
    /// is the value `peer` of the batch.
    pub(super) async fn message(&mut self, text: &[u8], peer: Option<&[u8]>) {
        self.begin_batch(text.len(), false).await;
        let from = Received {
            now: self.now,
            host: peer.unwrap_or(&self.host),
            peer,
        };
        if let Some(batch) = &mut self.batch {
            let run = self.decoder.one(text, &from, &mut batch.body);
            self.note(run, text, peer).await;
        }
    }

    /// Decodes a part of a message that is too long.
    pub(super) async fn part(&mut self, text: &[u8], last: bool, peer: Option<&[u8]>) {
        self.begin_batch(text.len(), false).await;
        let from = Received {
            now: self.now,
            host: peer.unwrap_or(&self.host),
            peer,
        };
        if let Some(batch) = &mut self.batch {
            let run = self.decoder.part(text, last, &from, &mut batch.body);
            self.note(run, text, peer).await;
        }
    }

    /// Counts the results of a run, and rejects text that did not become a record.
    async fn note(&mut self, run: Run, text: &[u8], peer: Option<&[u8]>) {
        if let Some(batch) = &mut self.batch {
            batch.count += run.records;
        }
        // Nearly always, all these amounts are 0, and no counter is touched.
        let meters = &self.endpoint.meters;
        for (meter, amount) in [
            (&meters.messages_without_header, u64::from(run.bare)),
            (&meters.messages_too_long, u64::from(run.long)),
            (&meters.messages_cut, u64::from(run.cut)),
            (&meters.bytes_dropped, run.dropped),
        ] {
            if amount > 0 {
                meter.add(amount);
            }
        }
        if run.long > 0 && self.endpoint.settings.too_long == TooLong::Truncate {
            self.warn_of_truncation(peer);
        }
        if let Some((range, why)) = run.left_over {
            let bytes = text.get(range).unwrap_or_default();
            self.reject(bytes, why, peer).await;
        }
    }

    /// Warns about a sender whose message was truncated.
    #[cold]
    fn warn_of_truncation(&self, peer: Option<&[u8]>) {
        let peer = match peer {
            Some(peer) => String::from_utf8_lossy(peer),
            None => self.values.get("peer").unwrap_or_default().into(),
        };
        let text = format_args!("{peer}: a message is longer than line_max; its end is dropped");
        self.endpoint.context.reporter.warn("too_long", text);
    }

    async fn reject(&mut self, bytes: &[u8], why: LeftOver, peer: Option<&[u8]>) {
        let context = &self.endpoint.context;
        let reason = match why {
            LeftOver::TooLong => "a message is longer than line_max",
            LeftOver::NoHeader => "a message has no syslog header",
        };
        let mut from = self.make_batch(Bytes::new(), 0, self.now);
        if let Some(peer) = peer {
            let values = Arc::make_mut(&mut from.values);
            values.set("peer", String::from_utf8_lossy(peer));
        }
        let rejected = reject::batch(&context.name, &from, [bytes], reason);
        let receipt = context.rejects.send(rejected, true).await;
        self.rejected.push(receipt);
    }

    fn make_batch(&self, body: Bytes, count: u32, received: Time) -> Batch {
        Batch {
            tag: self.tag.clone(),
            plain: true,
            encoding: Encoding::Packed,
            body,
            count,
            received,
            values: self.values.clone(),
            origins: Vec::new(),
        }
    }

    /// Whether the batch must be sent before anything else is decoded.
    pub(super) fn is_full(&self) -> bool {
        let is_full = |batch: &PendingBatch| batch.body.len() >= BATCH_BYTES;
        self.batch.as_ref().is_some_and(is_full)
    }

    /// Sends the batch. Returns its receipt, and the receipts of everything rejected since the last batch.
    pub(super) async fn send(&mut self, awaited: bool) -> Vec<Receipt> {
        let mut receipts = std::mem::take(&mut self.rejected);
        if let Some(batch) = self.batch.take()
            && batch.count > 0
        {
            let body = if batch.body.len() <= OWN_BYTES_MAX {
                Bytes::copy_from_slice(&batch.body)
            } else {
                batch.body.freeze()
            };
            let batch = self.make_batch(body, batch.count, batch.received);
            receipts.push(self.endpoint.context.outlet.send(batch, awaited).await);
        }
        receipts
    }

    /// Sends the batch, and waits until `flight` can take another one. Fails if a batch was dropped.
    pub(super) async fn send_in(&mut self, flight: &mut Flight<()>) -> Result<(), Unsettled> {
        for receipt in self.send(flight.is_half_full()).await {
            flight.push(receipt, ());
        }
        let mut answers = flight.collect().map(drop);
        while flight.is_full() {
            flight.answered().await;
            answers = answers.and(flight.collect().map(drop));
        }
        answers
    }
}
