//! The open batch of one connection or socket: messages become records in it, and it leaves.
//!
//! `read -> [decode] -> [send] -> keep`

use std::sync::Arc;

use bytes::Bytes;
use millstream_pipeline::{delivery::Receipt, reject};
use millstream_record::{Batch, Buffer, Encoding, Tag, Time, Values};
use millstream_wire::syslog::{After, Decoder, LeftOver, Received, Run, TooLong};

use super::Shared;

/// A batch leaves when it has so many bytes: large enough that its own cost vanishes, small enough that it is still in
/// the cache when the next hop reads it.
const BATCH_BYTES: usize = 256 << 10;
/// Room behind that for the record that reaches it.
const SLACK_BYTES: usize = 16 << 10;
/// A smaller batch gets memory of its size, so that a slow stream does not hold buffers of the pool.
const OWN_BYTES_MAX: usize = 16 << 10;

/// Makes batches of messages.
pub(super) struct Flow {
    pub(super) shared: Arc<Shared>,
    /// When what is decoded now was received.
    pub(super) now: Time,
    decoder: Decoder,
    tag: Tag,
    values: Arc<Values>,
    /// The field `host` of messages that name none.
    host: Box<[u8]>,
    open: Option<Open>,
    /// Of what left by the port of rejects since the last batch.
    rejected: Vec<Receipt>,
}

struct Open {
    body: Buffer,
    count: u32,
    received: Time,
}

impl Flow {
    pub(super) fn new(shared: Arc<Shared>, values: Values) -> Self {
        Self {
            now: Time::now(),
            decoder: Decoder::new(shared.settings.clone()),
            host: values.get("host").unwrap_or_default().as_bytes().into(),
            tag: shared.tag.tag(&shared.context.name, None, &values),
            values: Arc::new(values),
            open: None,
            rejected: Vec::new(),
            shared,
        }
    }

    /// Sees to it that a batch is open. `holding`: who asks holds memory of the pool and gives it back by going on.
    pub(super) async fn open(&mut self, bytes: usize, holding: bool) {
        if self.open.is_some() {
            return;
        }
        let pool = &self.shared.context.pool;
        let bytes = BATCH_BYTES.max(bytes) + SLACK_BYTES;
        let body = if holding {
            pool.take(bytes)
        } else {
            pool.reserve(bytes).await
        };
        self.open = Some(Open {
            body,
            count: 0,
            received: self.now,
        });
    }

    /// Takes what stands whole in `text`; how many bytes are done with, and whether all that can be taken was.
    pub(super) async fn stream(&mut self, text: &[u8], after: After) -> (usize, bool) {
        let from = Received {
            now: self.now,
            host: &self.host,
            peer: None,
        };
        let Some(open) = &mut self.open else {
            return (0, false);
        };
        let run = self
            .decoder
            .run(text, after, &from, &mut open.body, BATCH_BYTES);
        let (consumed, full) = (run.consumed, run.full);
        let left_over = run.left_over.is_some();
        self.note(run, text, None).await;
        if full {
            return (consumed, false);
        }
        (consumed, !left_over)
    }

    /// Takes one whole message; `peer`: whom it is from, if the batch does not say.
    pub(super) async fn message(&mut self, text: &[u8], peer: Option<&[u8]>) {
        self.open(text.len(), false).await;
        let from = Received {
            now: self.now,
            host: peer.unwrap_or(&self.host),
            peer,
        };
        if let Some(open) = &mut self.open {
            let run = self.decoder.one(text, &from, &mut open.body);
            self.note(run, text, peer).await;
        }
    }

    /// Takes a part of a message that is too long.
    pub(super) async fn part(&mut self, text: &[u8], last: bool, peer: Option<&[u8]>) {
        self.open(text.len(), false).await;
        let from = Received {
            now: self.now,
            host: peer.unwrap_or(&self.host),
            peer,
        };
        if let Some(open) = &mut self.open {
            let run = self.decoder.part(text, last, &from, &mut open.body);
            self.note(run, text, peer).await;
        }
    }

    /// Counts what was done, and sends on what became no record; `peer`: whom it is from, if the batch does not say.
    async fn note(&mut self, run: Run, text: &[u8], peer: Option<&[u8]>) {
        if let Some(open) = &mut self.open {
            open.count += run.records;
        }
        // Nearly always they are all none: no counter is touched then.
        let meters = &self.shared.meters;
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
        if run.long > 0 && self.shared.settings.too_long == TooLong::Truncate {
            self.warn_of_truncation(peer);
        }
        if let Some((range, why)) = run.left_over {
            let bytes = text.get(range).unwrap_or_default();
            self.reject(bytes, why, peer).await;
        }
    }

    /// Says whose message does not become a record as a whole.
    #[cold]
    fn warn_of_truncation(&self, peer: Option<&[u8]>) {
        let peer = match peer {
            Some(peer) => String::from_utf8_lossy(peer),
            None => self.values.get("peer").unwrap_or_default().into(),
        };
        let text = format_args!("{peer}: a message is longer than line_max; its end is dropped");
        self.shared.context.reporter.warn("too_long", text);
    }

    async fn reject(&mut self, bytes: &[u8], why: LeftOver, peer: Option<&[u8]>) {
        let context = &self.shared.context;
        let reason = match why {
            LeftOver::TooLong => "a message is longer than line_max",
            LeftOver::NoHeader => "a message has no header of syslog",
        };
        let mut from = self.batch(Bytes::new(), 0, self.now);
        if let Some(peer) = peer {
            let values = Arc::make_mut(&mut from.values);
            values.set("peer", String::from_utf8_lossy(peer));
        }
        let rejected = reject::batch(&context.name, &from, [bytes], reason);
        let receipt = context.rejects.send(rejected, true).await;
        self.rejected.push(receipt);
    }

    fn batch(&self, body: Bytes, count: u32, received: Time) -> Batch {
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

    /// Whether the batch must leave before more is taken.
    pub(super) fn is_full(&self) -> bool {
        let full = |open: &Open| open.body.len() >= BATCH_BYTES;
        self.open.as_ref().is_some_and(full)
    }

    /// Sends the open batch; what tells when it, and what was rejected since the last one, is done with.
    pub(super) async fn leave(&mut self, awaited: bool) -> Vec<Receipt> {
        let mut receipts = std::mem::take(&mut self.rejected);
        if let Some(open) = self.open.take()
            && open.count > 0
        {
            let body = if open.body.len() <= OWN_BYTES_MAX {
                Bytes::copy_from_slice(&open.body)
            } else {
                open.body.freeze()
            };
            let batch = self.batch(body, open.count, open.received);
            receipts.push(self.shared.context.outlet.send(batch, awaited).await);
        }
        receipts
    }
}
