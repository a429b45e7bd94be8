//! Bytes of a connection to batches: frames, calls, and the batch that calls are gathered in.
//!
//! `read -> [decode] -> [send] -> keep`

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use millstream_record::{Batch, Buffer, Claim, Encoding, Tag, Time, Values};
use millstream_wire::avro::rpc::{
    Calls, Fault, Fed, Frames, Inflate, Refusal, Step, write_answer, write_greeting,
};

use super::Shared;
use crate::{
    connection::{Answer, Answers, STASH_BYTES, Unanswered, patiently},
    rest::Rest,
};

/// A gathered batch leaves when it has so many bytes: large enough that its own cost vanishes, small enough that it is
/// still in the cache when the next hop reads it.
const GATHER_BYTES: usize = 256 << 10;
/// A smaller batch gets memory of its size, so that a slow stream does not hold buffers of the pool.
const OWN_BYTES_MAX: usize = 16 << 10;
/// What a batch starts with: the smallest buffer of the pool.
const START_BYTES: usize = 64 << 10;
/// How long a connection that holds memory waits for more of it. Then it gives up what it holds, as all who hold some
/// could be waiting for each other.
const MEMORY_WAIT: Duration = Duration::from_secs(30);
/// Answers that are gathered for one batch: the calls behind them are written by the peer, so they need a bound.
const ANSWERS_BYTES_MAX: usize = 64 << 10;

/// Why a connection ends.
pub(super) enum End {
    /// The peer has closed it, between two calls.
    Closed,
    /// The peer has closed it within a call.
    Cut,
    /// The process wants to end.
    Stopped,
    /// Nothing came for too long.
    Idle,
    /// What came is not the protocol.
    Refused(String),
    /// There is no memory for its call beside what others hold.
    NoMemory,
    /// The peer does not go on with a call that it has begun.
    Slow,
    /// The connection broke.
    Broken,
    /// Answers cannot be written, or must not.
    Unanswered(Unanswered),
}

/// The batch that is open, and what its callers are told when it is done.
struct Open {
    body: Buffer,
    records: u32,
    received: Time,
    answers: Vec<u8>,
    calls: u64,
}

/// The reading side of a connection, behind its socket.
pub(super) struct Intake {
    pub(super) shared: Arc<Shared>,
    peer: Arc<str>,
    tag: Tag,
    values: Arc<Values>,
    answers: Answers,
    inflate: Option<Inflate>,
    frames: Frames,
    calls: Calls,
    /// A frame's head that is cut.
    head: Vec<u8>,
    /// A value of a call that is cut.
    rest: Rest,
    open: Option<Open>,
    /// The memory of both.
    claim: Claim,
}

impl Intake {
    pub(super) fn new(
        shared: Arc<Shared>,
        peer: Arc<str>,
        values: Values,
        answers: Answers,
    ) -> Self {
        Self {
            inflate: shared.deflate.then(Inflate::default),
            frames: Frames::new(shared.frame_bytes_max),
            calls: Calls::new(),
            head: Vec::new(),
            rest: Rest::default(),
            open: None,
            claim: shared.context.pool.claim(0),
            peer,
            tag: shared.tag.tag(&shared.context.name, None, &values),
            shared,
            values: Arc::new(values),
            answers,
        }
    }

    /// Whether the peer waits for answers.
    pub(super) fn is_awaited(&self) -> bool {
        self.answers.open() > 0
    }

    /// What a call that has begun holds; None: none has begun.
    pub(super) fn amid(&self) -> Option<usize> {
        let decoded = self.open.as_ref().map_or(0, |open| open.body.capacity());
        let held = decoded + self.rest.bytes().len();
        self.is_amid().then_some(held)
    }

    /// Whether a call has begun.
    pub(super) fn is_amid(&self) -> bool {
        self.frames.is_amid(self.head.len())
    }

    /// Takes what a read brought.
    pub(super) async fn take(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.shared.meters.bytes_received.add(bytes.len() as u64);
        let Some(mut inflate) = self.inflate.take() else {
            return self.plain(bytes).await;
        };
        let mut buffer = Vec::with_capacity(STASH_BYTES);
        let mut taken = 0;
        let done = loop {
            buffer.clear();
            match inflate.inflate(bytes.get(taken..).unwrap_or_default(), &mut buffer) {
                Ok(count) => taken += count,
                Err(corrupt) => break Err(End::Refused(corrupt.to_string())),
            }
            if let Err(end) = self.plain(&buffer).await {
                break Err(end);
            }
            // Room that is left says that nothing more is there.
            if buffer.len() < buffer.capacity() {
                break Ok(());
            }
            // A stream may expand a thousandfold: other connections of this thread wait.
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

    /// Takes frames apart; what is left is a head that is cut.
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

    /// A piece of a call.
    async fn piece(&mut self, piece: &[u8]) -> Result<(), End> {
        if self.rest.bytes().is_empty() {
            let taken = self.feed(piece).await?;
            let left = piece.get(taken..).unwrap_or_default();
            return match left.is_empty() || self.rest.append(left, &self.claim, MEMORY_WAIT).await {
                true => Ok(()),
                false => Err(End::NoMemory),
            };
        }
        if !self.rest.append(piece, &self.claim, MEMORY_WAIT).await {
            return Err(End::NoMemory);
        }
        let mut rest = std::mem::take(&mut self.rest);
        let taken = self.feed(rest.bytes()).await?;
        rest.consume(taken);
        self.rest = rest;
        Ok(())
    }

    /// Decodes what is whole; gives the bytes taken.
    async fn feed(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let mut taken = 0;
        loop {
            let wanted = match &mut self.open {
                None => 0,
                Some(open) => {
                    let left = bytes.get(taken..).unwrap_or_default();
                    let (count, fed) = self.calls.feed(left, open.received, &mut open.body);
                    taken += count;
                    match fed {
                        Fed::More => return Ok(taken),
                        Fed::Room(bytes) => bytes,
                    }
                }
            };
            self.enlarge(wanted).await?;
        }
    }

    /// Opens a batch, or makes it larger by at least `wanted` bytes.
    async fn enlarge(&mut self, wanted: usize) -> Result<(), End> {
        let (length, capacity) = match &self.open {
            None => (0, START_BYTES / 2),
            Some(open) => (open.body.len(), open.body.capacity()),
        };
        let bytes_max = self.shared.decompressed_bytes_max;
        if length + wanted > bytes_max {
            let text = format!(
                "a call whose records have more than {bytes_max} bytes (limits.decompressed)"
            );
            return Err(End::Refused(text));
        }
        let bytes = (capacity * 2).max(length + wanted);
        let Some(open) = &mut self.open else {
            let body = match self.rest.bytes().is_empty() {
                true => self.shared.context.pool.reserve(bytes).await,
                false => patiently(self.claim.reserve_more(bytes))
                    .await
                    .flatten()
                    .ok_or(End::NoMemory)?,
            };
            self.open = Some(Open {
                body,
                records: 0,
                received: Time::now(),
                answers: Vec::new(),
                calls: 0,
            });
            return Ok(());
        };
        if patiently(open.body.grow_more(&self.claim, bytes)).await != Some(true) {
            return Err(End::NoMemory);
        }
        Ok(())
    }

    /// A call is whole.
    async fn end_call(&mut self, serial: u32) -> Result<(), End> {
        if self.open.is_none() {
            self.enlarge(0).await?;
        }
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let left = self.rest.bytes().len();
        let outcome = self.calls.end(left, &mut open.body);
        self.rest.clear();
        open.calls += 1;
        match outcome.result {
            Ok(Some(records)) => {
                open.records += records;
                write_answer(&mut open.answers, serial, outcome.handshake, None);
            }
            Ok(None) => write_greeting(&mut open.answers, serial, outcome.handshake),
            Err(fault) => {
                open.calls -= 1;
                self.shared.meters.calls_refused.add(1);
                if fault.is_final() {
                    return Err(End::Refused(fault.to_string()));
                }
                let text = fault.to_string();
                write_answer(&mut open.answers, serial, outcome.handshake, Some(&text));
                tell(&self.shared, &self.peer, fault);
            }
        }
        if open.body.len() >= GATHER_BYTES || open.answers.len() >= ANSWERS_BYTES_MAX {
            self.leave().await;
        }
        Ok(())
    }

    /// Sends what was gathered of whole calls. What is decoded of a call that is not whole stays.
    pub(super) async fn leave(&mut self) {
        if self
            .open
            .as_ref()
            .is_none_or(|open| open.answers.is_empty())
        {
            if !self.is_amid() {
                self.open = None;
            }
            return;
        }
        let Some(mut open) = self.open.take() else {
            return;
        };
        let end = self.calls.start().min(open.body.len());
        if end < open.body.len() {
            // The pool gives without waiting: this is no more than what goes back when the batch is written.
            let mut body = self.shared.context.pool.take(open.body.len() - end);
            body.extend_from_slice(&open.body[end..]);
            open.body.truncate(end);
            self.open = Some(Open {
                body,
                records: 0,
                received: open.received,
                answers: Vec::new(),
                calls: 0,
            });
        }
        self.calls.rebase();
        let mut receipts = Vec::new();
        if open.records > 0 {
            receipts.push(self.send(open.body, open.records, open.received).await);
        }
        let answer = Answer {
            receipts,
            acks: open.answers,
            count: open.calls,
        };
        self.answers.push(answer).await;
    }

    async fn send(
        &self,
        body: Buffer,
        records: u32,
        received: Time,
    ) -> millstream_pipeline::delivery::Receipt {
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
        let receipt = self.shared.context.outlet.send(batch, true).await;
        if large {
            // The next hop has it while it is in the cache.
            tokio::task::yield_now().await;
        }
        receipt
    }
}

fn tell(shared: &Shared, peer: &str, fault: Fault) {
    let text = format_args!("{peer}: a call was refused: {fault}");
    shared.context.reporter.warn("call", text);
}

/// Counts the end of a connection and says so, where it is worth a line.
pub(super) fn report(end: &End, peer: &str, shared: &Shared) {
    let (reporter, meters) = (&shared.context.reporter, &shared.meters);
    match end {
        End::Closed | End::Stopped | End::Idle | End::Broken => {}
        End::Cut => {
            meters.calls_cut.add(1);
            let text = format_args!("{peer} closed within a call: nothing of it is kept");
            reporter.warn("cut", text);
        }
        End::Refused(reason) => {
            meters.connections_refused.add(1);
            let text = format_args!("{peer}: {reason}; connection closed");
            reporter.warn("refused", text);
        }
        End::NoMemory => {
            meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: no memory for its call beside what others hold (memory_max); connection closed"
            );
            reporter.warn("memory", text);
        }
        End::Slow => {
            meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: too few bytes a second of a call that it has begun (limits.progress); connection closed"
            );
            reporter.warn("slow", text);
        }
        End::Unanswered(Unanswered::Write(error)) => {
            let text = format_args!("{peer} takes no more answers: {error}");
            reporter.info("unanswered", text);
        }
        End::Unanswered(Unanswered::Unsettled) => {
            let text = format_args!(
                "{peer}: a batch was lost on its way within Millstream and is not answered; its agent sends it again"
            );
            reporter.warn("unsettled", text);
        }
    }
}
