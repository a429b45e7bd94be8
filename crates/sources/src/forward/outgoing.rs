//! What a connection makes of its frames: small ones are gathered, others go on at once; answers follow in their order.
//!
//! `read -> decode -> [send] -> keep`

use std::sync::Arc;

use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use millstream_pipeline::reject;
use millstream_record::{Batch, Buffer, Claim, Encoding, Tag, Time, Values};
use millstream_wire::{
    forward::{Check, Form, Frame, message_head, write_ack, write_json_ack, write_timed},
    msgpack::{Shape, is_nested},
};

use super::{
    Shared,
    end::End,
    gather::{Chunk, GATHER_BYTES, Gather, OWN_BYTES_MAX},
    payload::Arrived,
};
use crate::connection::{Answer, Answers, STASH_BYTES, patiently};

/// A batch at least this large is read by the next hop before this one goes on, while it is in the cache.
const YIELD_BYTES: usize = 64 << 10;
/// Most bytes that a time in place of nil adds to a message, with its array markers.
const TIME_BYTES: usize = 16;

/// The way out of one connection.
pub(super) struct Outgoing {
    pub(super) shared: Arc<Shared>,
    /// The connection's number.
    pub(super) number: u64,
    pub(super) peer: Arc<str>,
    /// What all its records share.
    pub(super) values: Arc<Values>,
    pub(super) answers: Answers,
    pub(super) gather: Gather,
    /// The sender's tag of the last frame, and ours for it: most frames have the tag of the one before.
    sent_tag: Vec<u8>,
    tag: Tag,
    /// When the bytes that are being decoded came.
    pub(super) now: Time,
    /// Whether acks are JSON.
    pub(super) json: bool,
    /// Whether a chunk id has come since the last look.
    pub(super) asked: bool,
    /// Whether one has ever come.
    pub(super) identified: bool,
}

impl Outgoing {
    pub(super) fn new(
        shared: Arc<Shared>,
        number: u64,
        peer: Arc<str>,
        values: Values,
        answers: Answers,
    ) -> Self {
        Self {
            number,
            peer,
            sent_tag: Vec::new(),
            tag: shared.tag.tag("", None, &values),
            shared,
            values: Arc::new(values),
            answers,
            gather: Gather::default(),
            now: Time::default(),
            json: false,
            asked: false,
            identified: false,
        }
    }

    /// A frame that stands whole in the read buffer; `input` starts with it.
    pub(super) async fn frame(&mut self, frame: &Frame<'_>, input: &[u8]) -> Result<(), End> {
        self.note_asked(frame.options.chunk);
        let (encoding, plain) = match frame.form {
            Form::Message(shape) => return self.message(frame, shape, input).await,
            Form::Forward(_) => (Encoding::Packed, true),
            Form::Packed => (Encoding::Packed, frame.is_plain()),
            Form::Lines => (Encoding::Lines, frame.is_plain()),
        };
        let mut check = Check::new(encoding);
        let sound = check.feed(frame.body).is_ok();
        let whole = sound && check.whole() == frame.body.len() && check.misfits() == 0;
        let ours = frame.options.values.is_some() || frame.options.received.is_some();
        if !plain || !whole || ours {
            self.leave().await;
            let mut options = frame.options.clone();
            if let Form::Forward(_) = frame.form {
                options.compressed = Default::default();
                options.signal = Default::default();
            }
            let claim = self.shared.context.pool.claim(0);
            let arrived = Arrived {
                tag: self.tag(frame.tag),
                encoding,
                body: self.own(frame.body, &claim).await?,
                check,
                sound,
                claim,
            };
            return self.payload(arrived, &options).await;
        }
        if frame.body.is_empty() {
            // The TCP heartbeat `["", []]`, or an empty chunk: there is nothing to keep.
            self.leave().await;
            self.answer(Vec::new(), frame.options.chunk).await;
            return Ok(());
        }
        self.room(frame.tag, encoding, frame.body.len()).await?;
        let Some((body, count)) = self.gather.body() else {
            return Ok(());
        };
        let start = body.len();
        body.extend_from_slice(frame.body);
        *count += check.records();
        if !check.is_plain() {
            self.gather.set_nested();
        }
        self.chunk(frame, start, check.records());
        Ok(())
    }

    /// Notes whether the peer waits for an ack.
    pub(super) fn note_asked(&mut self, chunk: Option<&[u8]>) {
        self.asked |= chunk.is_some();
        self.identified |= chunk.is_some();
    }

    async fn message(&mut self, frame: &Frame<'_>, shape: Shape, input: &[u8]) -> Result<(), End> {
        if shape == Shape::Misfit {
            self.leave().await;
            let tag = self.tag(frame.tag);
            let reason = "the time is no time or the record is no map";
            let receipt = self
                .reject(tag, [frame.body], reason, frame.options.chunk)
                .await;
            self.answer(vec![receipt], frame.options.chunk).await;
            return Ok(());
        }
        let bytes = frame.body.len() + TIME_BYTES;
        self.room(frame.tag, Encoding::Packed, bytes).await?;
        let now = self.now;
        let Some((body, count)) = self.gather.body() else {
            return Ok(());
        };
        let start = body.len();
        body.push(0x92);
        if shape == Shape::Timeless {
            write_timed(frame.body, now, body);
        } else {
            body.extend_from_slice(frame.body);
        }
        *count += 1;
        if is_nested(frame.body) {
            self.gather.set_nested();
        }
        self.chunk(frame, start, 1);
        if frame.options.chunk.is_none()
            && !self.json
            && let Some(head) = message_head(input)
        {
            self.gather.set_head(head);
        }
        Ok(())
    }

    /// An array that is no frame: it is set aside.
    pub(super) async fn misfit(&mut self, value: &[u8], chunk: Option<&[u8]>) {
        self.note_asked(chunk);
        self.leave().await;
        let reason = "an array that is no frame of the forward protocol";
        let receipt = self.reject(Tag::from(""), [value], reason, chunk).await;
        self.answer(vec![receipt], chunk).await;
    }

    /// A value that is no frame: it is stepped over.
    pub(super) fn stray(&self) {
        self.shared.meters.values_skipped.add(1);
        let text = format_args!(
            "{} sent a value that is no frame of the forward protocol; stepped over",
            self.peer
        );
        self.shared.context.reporter.warn("stray", text);
    }

    /// Makes room in the open batch for a frame of this kind.
    async fn room(&mut self, tag: &[u8], encoding: Encoding, bytes: usize) -> Result<(), End> {
        self.know(tag);
        if self.gather.takes(&self.tag, encoding, bytes) {
            return Ok(());
        }
        self.leave().await;
        // A frame that is longer than the read buffer stands in memory of the pool.
        let claim = (bytes > STASH_BYTES).then(|| self.shared.context.pool.claim(0));
        let body = self.memory(bytes.max(GATHER_BYTES), claim.as_ref()).await?;
        self.gather
            .start(self.tag.clone(), encoding, self.now, body);
        Ok(())
    }

    /// The bytes of a frame in memory of their own.
    async fn own(&mut self, body: &[u8], claim: &Claim) -> Result<Bytes, End> {
        if body.len() <= YIELD_BYTES {
            return Ok(Bytes::copy_from_slice(body));
        }
        let mut buffer = self.memory(body.len(), Some(claim)).await?;
        buffer.extend_from_slice(body);
        Ok(buffer.freeze())
    }

    /// A buffer. `holding`: of a frame that holds others, which waits only for a while, and only if all can be completed.
    pub(super) async fn memory(
        &self,
        bytes: usize,
        holding: Option<&Claim>,
    ) -> Result<Buffer, End> {
        let Some(claim) = holding else {
            return Ok(self.shared.context.pool.reserve(bytes).await);
        };
        let buffer = patiently(claim.reserve_more(bytes)).await.flatten();
        buffer.ok_or(End::NoMemory)
    }

    /// Notes the chunk id of the frame that was appended from `start` on.
    fn chunk(&mut self, frame: &Frame<'_>, start: usize, records: u32) {
        let Some(id) = frame.options.chunk else {
            return;
        };
        let durable = self.shared.durable;
        let chunk = Chunk {
            id,
            length: frame.body.len(),
            checksum: if durable { checksum(frame.body) } else { 0 },
            start,
            records,
        };
        let json = self.json;
        self.gather.chunk(&chunk, durable, |out| ack(json, out, id));
    }

    /// Sends what was gathered.
    pub(super) async fn leave(&mut self) {
        let Some(leaving) = self.gather.leave(self.number, &self.values) else {
            return;
        };
        let receipt = self.send(leaving.batch, leaving.acked > 0).await;
        if leaving.acked > 0 {
            let answer = Answer {
                receipts: vec![receipt],
                acks: leaving.acks,
                count: leaving.acked,
            };
            self.answers.push(answer).await;
        }
    }

    /// Sends a batch, and lets the next hop have it while it is in the cache.
    pub(super) async fn send(
        &self,
        batch: Batch,
        awaited: bool,
    ) -> millstream_pipeline::delivery::Receipt {
        let bytes = batch.len();
        let receipt = self.shared.context.outlet.send(batch, awaited).await;
        if bytes >= YIELD_BYTES {
            tokio::task::yield_now().await;
        }
        receipt
    }

    /// Sets bytes aside by the port `rejected`.
    pub(super) async fn reject<'a>(
        &self,
        tag: Tag,
        items: impl IntoIterator<Item = &'a [u8]>,
        reason: &str,
        chunk: Option<&[u8]>,
    ) -> millstream_pipeline::delivery::Receipt {
        let context = &self.shared.context;
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
        // It counts, so that others wait; waiting itself while it holds the payload, it could wait for ever.
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

    /// Acks a chunk, if it asks for it, when all of `receipts` are good.
    pub(super) async fn answer(
        &mut self,
        receipts: Vec<millstream_pipeline::delivery::Receipt>,
        chunk: Option<&[u8]>,
    ) {
        let Some(id) = chunk else {
            return;
        };
        let mut acks = Vec::new();
        ack(self.json, &mut acks, id);
        let answer = Answer {
            receipts,
            acks,
            count: 1,
        };
        self.answers.push(answer).await;
    }

    /// The tag of what a sender calls so, as text: what is not UTF-8 is replaced.
    pub(super) fn tag(&mut self, sent: &[u8]) -> Tag {
        self.know(sent);
        self.tag.clone()
    }

    fn know(&mut self, sent: &[u8]) {
        if self.sent_tag != sent {
            sent.clone_into(&mut self.sent_tag);
            let sent = String::from_utf8_lossy(sent);
            self.tag = self.shared.tag.tag(&sent, None, &self.values);
        }
    }
}

/// CRC-32C.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    // The library gives every CRC as 64 bits.
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn ack(json: bool, out: &mut Vec<u8>, id: &[u8]) {
    if json {
        // It came as JSON, so JSON can show it.
        let _ = write_json_ack(out, id);
    } else {
        write_ack(out, id);
    }
}
