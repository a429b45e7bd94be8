//! Turns the bytes of a connection into batches: decodes frames and calls, and gathers the events of several calls in one
//! batch.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> [send] -> keep`

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use millstream_pipeline::delivery::Receipt;
use millstream_record::{Batch, Buffer, Claim, Encoding, Tag, Time, Values};
use millstream_wire::avro::rpc::{
    Calls, Fed, Frames, Inflate, Refusal, Step, write_answer, write_greeting,
};

use super::{end::End, endpoint::Endpoint};
use crate::{
    connection::{Answer, Answers, STASH_BYTES, patiently},
    rest::Rest,
};

/// A gathered batch is sent when it has this size. The size is large enough to make the cost per batch negligible, and small enough
/// that the batch is still in the cache when the next hop reads it.
const GATHER_BYTES: usize = 256 << 10;
/// A batch of up to this size is copied into an allocation of its exact size, so that a slow stream does not hold buffers of the
/// pool.
const OWN_BYTES_MAX: usize = 16 << 10;
/// The initial size of a batch: the smallest buffer of the pool.
const START_BYTES: usize = 64 << 10;
/// How long a connection that holds memory waits for more memory. After that it is closed, because connections that hold memory
/// could otherwise wait for each other.
const MEMORY_WAIT: Duration = Duration::from_secs(30);
/// A batch is sent once the answers to its calls have this many bytes. Without this limit, a peer could make the answers
/// arbitrarily large with many tiny calls.
const ANSWERS_BYTES_MAX: usize = 64 << 10;

/// A batch that is being filled, and the answers to its calls.
struct PendingBatch {
    body: Buffer,
    records: u32,
    received: Time,
    answers: Vec<u8>,
    calls: u64,
}

/// Decodes the bytes of one connection.
pub(super) struct Intake {
    pub(super) endpoint: Arc<Endpoint>,
    peer: Arc<str>,
    tag: Tag,
    values: Arc<Values>,
    answers: Answers,
    inflate: Option<Inflate>,
    frames: Frames,
    calls: Calls,
    /// The first bytes of an incomplete frame header.
    head: Vec<u8>,
    /// An incomplete value of a call.
    partial: Rest,
    batch: Option<PendingBatch>,
    /// The claim on memory for `partial` and `batch`.
    claim: Claim,
}

impl Intake {
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        peer: Arc<str>,
        values: Values,
        answers: Answers,
    ) -> Self {
        Self {
            inflate: endpoint.deflate.then(Inflate::default),
            frames: Frames::new(endpoint.frame_bytes_max),
            calls: Calls::new(),
            head: Vec::new(),
            partial: Rest::default(),
            batch: None,
            claim: endpoint.context.pool.claim(0),
            peer,
            tag: endpoint.tag.tag(&endpoint.context.name, None, &values),
            endpoint,
            values: Arc::new(values),
            answers,
        }
    }

    /// Whether the peer is waiting for answers.
    pub(super) fn is_awaited(&self) -> bool {
        self.answers.open() > 0
    }

    /// The memory that an incomplete call holds, in bytes; None if no call has begun.
    pub(super) fn amid(&self) -> Option<usize> {
        let decoded = self.batch.as_ref().map_or(0, |batch| batch.body.capacity());
        let held = decoded + self.partial.bytes().len();
        self.is_amid().then_some(held)
    }

    /// Whether a call has begun.
    pub(super) fn is_amid(&self) -> bool {
        self.frames.is_amid(self.head.len())
    }

    /// Decodes the bytes of a read.
    pub(super) async fn decode(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.endpoint.meters.bytes_received.add(bytes.len() as u64);
        let Some(mut inflate) = self.inflate.take() else {
            return self.plain(bytes).await;
        };
        let mut buffer = Vec::with_capacity(STASH_BYTES);
        let mut consumed = 0;
        let done = loop {
            buffer.clear();
            match inflate.inflate(bytes.get(consumed..).unwrap_or_default(), &mut buffer) {
                Ok(count) => consumed += count,
                Err(corrupt) => break Err(End::Refused(corrupt.to_string())),
            }
            if let Err(end) = self.plain(&buffer).await {
                break Err(end);
            }
            // If the buffer has free space, the stream has no more output for these bytes.
            if buffer.len() < buffer.capacity() {
                break Ok(());
            }
            // A compressed stream may expand a thousandfold: let other connections of this thread run.
            tokio::task::yield_now().await;
        };
        self.inflate = Some(inflate);
        done
    }

    async fn plain(&mut self, bytes: &[u8]) -> Result<(), End> {
        if self.head.is_empty() {
            let left = self.frames_of(bytes).await?;
            self.head.extend_from_slice(left);
            return Ok(());
        }
        let mut whole = std::mem::take(&mut self.head);
        whole.extend_from_slice(bytes);
        let left = self.frames_of(&whole).await?.len();
        whole.drain(..whole.len() - left);
        self.head = whole;
        Ok(())
    }

    /// Decodes frames. Returns the bytes that are left: an incomplete header.
    async fn frames_of<'b>(&mut self, mut input: &'b [u8]) -> Result<&'b [u8], End> {
        loop {
            let refused = |refusal: Refusal| End::Refused(refusal.to_string());
            let (consumed, step) = self.frames.next(input).map_err(refused)?;
            input = input.get(consumed..).unwrap_or_default();
            match step {
                Step::More => return Ok(input),
                Step::Bytes(count) => {
                    let (piece, behind) = input.split_at(count.min(input.len()));
                    input = behind;
                    self.piece(piece).await?;
                }
                Step::End { serial } => self.end_call(serial).await?,
            }
        }
    }

    /// Decodes a piece of a call.
    async fn piece(&mut self, piece: &[u8]) -> Result<(), End> {
        if self.partial.bytes().is_empty() {
            let consumed = self.feed(piece).await?;
            let left = piece.get(consumed..).unwrap_or_default();
            return match left.is_empty()
                || self.partial.append(left, &self.claim, MEMORY_WAIT).await
            {
                true => Ok(()),
                false => Err(End::NoMemory),
            };
        }
        if !self.partial.append(piece, &self.claim, MEMORY_WAIT).await {
            return Err(End::NoMemory);
        }
        let mut partial = std::mem::take(&mut self.partial);
        let consumed = self.feed(partial.bytes()).await?;
        partial.consume(consumed);
        self.partial = partial;
        Ok(())
    }

    /// Decodes complete values. Returns the number of bytes consumed.
    async fn feed(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let mut consumed = 0;
        loop {
            let wanted = match &mut self.batch {
                None => 0,
                Some(batch) => {
                    let left = bytes.get(consumed..).unwrap_or_default();
                    let (count, fed) = self.calls.feed(left, batch.received, &mut batch.body);
                    consumed += count;
                    match fed {
                        Fed::More => return Ok(consumed),
                        Fed::Room(bytes) => bytes,
                    }
                }
            };
            self.enlarge(wanted).await?;
        }
    }

    /// Begins a batch, or enlarges it by at least `wanted` bytes.
    async fn enlarge(&mut self, wanted: usize) -> Result<(), End> {
        let (length, capacity) = match &self.batch {
            None => (0, START_BYTES / 2),
            Some(batch) => (batch.body.len(), batch.body.capacity()),
        };
        let bytes_max = self.endpoint.decompressed_bytes_max;
        if length + wanted > bytes_max {
            let text = format!(
                "a call whose records have more than {bytes_max} bytes (limits.decompressed)"
            );
            return Err(End::Refused(text));
        }
        let bytes = (capacity * 2).max(length + wanted);
        let Some(batch) = &mut self.batch else {
            let body = match self.partial.bytes().is_empty() {
                true => self.endpoint.context.pool.reserve(bytes).await,
                false => patiently(self.claim.reserve_more(bytes))
                    .await
                    .flatten()
                    .ok_or(End::NoMemory)?,
            };
            self.batch = Some(PendingBatch {
                body,
                records: 0,
                received: Time::now(),
                answers: Vec::new(),
                calls: 0,
            });
            return Ok(());
        };
        if patiently(batch.body.grow_more(&self.claim, bytes)).await != Some(true) {
            return Err(End::NoMemory);
        }
        Ok(())
    }

    /// Ends a complete call: adds its answer to the batch.
    async fn end_call(&mut self, serial: u32) -> Result<(), End> {
        if self.batch.is_none() {
            self.enlarge(0).await?;
        }
        let Some(batch) = &mut self.batch else {
            return Ok(());
        };
        let left = self.partial.bytes().len();
        let outcome = self.calls.end(left, &mut batch.body);
        self.partial.clear();
        batch.calls += 1;
        match outcome.result {
            Ok(Some(records)) => {
                batch.records += records;
                write_answer(&mut batch.answers, serial, outcome.handshake, None);
            }
            Ok(None) => write_greeting(&mut batch.answers, serial, outcome.handshake),
            Err(fault) => {
                batch.calls -= 1;
                self.endpoint.meters.calls_refused.add(1);
                if fault.is_final() {
                    return Err(End::Refused(fault.to_string()));
                }
                let text = fault.to_string();
                write_answer(&mut batch.answers, serial, outcome.handshake, Some(&text));
                let text = format_args!("{}: a call was refused: {fault}", self.peer);
                self.endpoint.context.reporter.warn("call", text);
            }
        }
        if batch.body.len() >= GATHER_BYTES || batch.answers.len() >= ANSWERS_BYTES_MAX {
            self.send_batch().await;
        }
        Ok(())
    }

    /// Sends the complete calls that were gathered. The decoded part of an incomplete call stays for the next batch.
    pub(super) async fn send_batch(&mut self) {
        if self
            .batch
            .as_ref()
            .is_none_or(|batch| batch.answers.is_empty())
        {
            if !self.is_amid() {
                self.batch = None;
            }
            return;
        }
        let Some(mut batch) = self.batch.take() else {
            return;
        };
        let end = self.calls.start().min(batch.body.len());
        if end < batch.body.len() {
            // `take` does not wait for memory: at least as much becomes free when the batch is written.
            let mut body = self.endpoint.context.pool.take(batch.body.len() - end);
            body.extend_from_slice(&batch.body[end..]);
            batch.body.truncate(end);
            self.batch = Some(PendingBatch {
                body,
                records: 0,
                received: batch.received,
                answers: Vec::new(),
                calls: 0,
            });
        }
        self.calls.rebase();
        let mut receipts = Vec::new();
        if batch.records > 0 {
            let sent = self.send(batch.body, batch.records, batch.received);
            receipts.push(sent.await);
        }
        let answer = Answer {
            receipts,
            acks: batch.answers,
            count: batch.calls,
        };
        self.answers.push(answer).await;
    }

    async fn send(&self, body: Buffer, records: u32, received: Time) -> Receipt {
        let large = body.len() > OWN_BYTES_MAX;
        let batch = Batch {
            tag: self.tag.clone(),
            plain: true,
            encoding: Encoding::Packed,
            body: match large {
                true => body.freeze(),
                false => Bytes::copy_from_slice(&body),
            },
            count: records,
            received,
            values: self.values.clone(),
            origins: Vec::new(),
        };
        let receipt = self.endpoint.context.outlet.send(batch, true).await;
        if large {
            // Lets the next hop process the batch while it is in the cache.
            tokio::task::yield_now().await;
        }
        receipt
    }
}
