//! Turns the text of a request into one batch of packed records, and collects the parts that are not records.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep`

use std::borrow::Cow;

use hyper::StatusCode;
use millstream_record::{Buffer, Time};
use millstream_wire::{
    json::{Progress, packed_bytes_max, to_msgpack, write_value},
    otlp::{self, Form, Logs},
};

use super::{
    answer::Refusal,
    lines::{self, Lines, Places},
    memory::{RequestMemory, SPARE_BYTES},
};

/// The maximum number of bad parts of a request that become one rejected record each. All further bad parts become one record
/// together, because each record costs about a hundred bytes.
const BAD_SINGLY_MAX: usize = 1024;
/// The fault in the record with all further bad parts.
const REST: &str = "further parts of a request that are not records";
/// The maximum number of faults that an answer names.
const ERRORS_MAX: usize = 10;
/// After this many bytes, other connections of the thread get a turn.
const YIELD_BYTES: usize = 1 << 20;

/// The content of a request.
pub(super) struct Decoded {
    pub(super) body: Buffer,
    pub(super) records: u32,
    pub(super) bad: Bad,
}

/// The parts that are not records.
#[derive(Default)]
pub(super) struct Bad {
    pub(super) count: u64,
    /// The faults of the first parts, each with the length of its part.
    faults: Vec<(usize, String)>,
    /// All parts, in memory of the pool: as received, or (for OTLP in JSON) written as JSON again. A newline follows each part
    /// that has no entry in `faults`.
    bytes: Option<Buffer>,
    /// The first faults, for the answer.
    pub(super) errors: Vec<String>,
}

impl Bad {
    async fn add(
        &mut self,
        bytes: &[u8],
        fault: impl FnOnce() -> String,
        memory: RequestMemory<'_>,
    ) -> Result<(), Refusal> {
        let all = match self.bytes.take() {
            None => memory.reserve(bytes.len() + 1).await?,
            Some(mut all) => {
                if all.capacity() - all.len() <= bytes.len() {
                    memory.enlarge(&mut all, bytes.len() + 1).await?;
                }
                all
            }
        };
        let all = self.bytes.insert(all);
        all.extend_from_slice(bytes);
        self.count += 1;
        if self.faults.len() < BAD_SINGLY_MAX {
            let fault = fault();
            if self.errors.len() < ERRORS_MAX {
                self.errors.push(fault.clone());
            }
            self.faults.push((bytes.len(), fault));
        } else {
            all.push(b'\n');
        }
        Ok(())
    }

    /// Frees the parts after they were copied.
    pub(super) fn forget_bytes(&mut self) {
        self.bytes = None;
    }

    /// The parts to reject, each with its fault: the first ones one by one, all further ones together.
    pub(super) fn items(&self) -> impl Iterator<Item = (&[u8], &str)> {
        let mut left = self.bytes.as_ref().map_or(&b""[..], |bytes| bytes);
        let mut faults = self.faults.iter();
        std::iter::from_fn(move || match faults.next() {
            Some((length, fault)) => {
                let (item, behind) = left.split_at_checked(*length)?;
                left = behind;
                Some((item, &**fault))
            }
            None if left.is_empty() => None,
            None => Some((std::mem::take(&mut left), REST)),
        })
    }
}

/// The batch in progress.
struct Output<'s> {
    body: Buffer,
    records: u32,
    bad: Bad,
    memory: RequestMemory<'s>,
}

impl<'s> Output<'s> {
    async fn new(text: &[u8], memory: RequestMemory<'s>) -> Result<Self, Refusal> {
        Ok(Self {
            body: memory.reserve(text.len() + SPARE_BYTES).await?,
            records: 0,
            bad: Bad::default(),
            memory,
        })
    }

    async fn room(&mut self, bytes: usize) -> Result<(), Refusal> {
        let bytes_max = self.memory.endpoint.decompressed_bytes_max;
        if self.body.len() >= bytes_max {
            return Err(Refusal::too_large(bytes_max, "limits.decompressed"));
        }
        self.memory.enlarge(&mut self.body, bytes).await
    }

    fn done(self) -> Decoded {
        Decoded {
            body: self.body,
            records: self.records,
            bad: self.bad,
        }
    }
}

/// Decodes JSON lines, or a JSON array of records.
pub(super) async fn json(
    text: &[u8],
    received: Time,
    memory: RequestMemory<'_>,
) -> Result<Decoded, Refusal> {
    let mut output = Output::new(text, memory).await?;
    let (mut lines, mut places) = (Lines::new(text), Places::default());
    let mut turn = YIELD_BYTES;
    loop {
        match lines.next(received, &mut output.body) {
            lines::Next::Record => output.records += 1,
            lines::Next::Bad(range, found) => {
                let bytes = text.get(range).unwrap_or_default();
                let fault =
                    || format!("{}: {} expected", places.of(text, found.at), found.expected);
                output.bad.add(bytes, fault, memory).await?;
            }
            lines::Next::Room(bytes) => output.room(bytes).await?,
            lines::Next::End => return Ok(output.done()),
        }
        if lines.position() >= turn {
            turn = lines.position() + YIELD_BYTES;
            tokio::task::yield_now().await;
        }
    }
}

/// Decodes an OTLP request.
pub(super) async fn otlp(
    text: &[u8],
    form: Form,
    received: Time,
    memory: RequestMemory<'_>,
) -> Result<Decoded, Refusal> {
    if form == Form::Protobuf {
        return logs(Logs::protobuf(text), text, form, received, memory).await;
    }
    let mut packed = memory.reserve(packed_bytes_max(text)).await?;
    let (at, expected) = match to_msgpack(text, &mut packed) {
        Ok(Progress::Consumed(length)) => {
            let behind = length + lines::blank(text.get(length..).unwrap_or_default());
            if behind == text.len() {
                return logs(Logs::json(&packed), text, form, received, memory).await;
            }
            // More text follows the request. For example, a file of the OTLP file exporter holds several requests, one per line.
            // The whole body is rejected.
            (behind, "the end of the request")
        }
        Ok(Progress::NeedMore) => (text.len(), "more of the request"),
        Err(error) => (error.offset, error.expected),
    };
    let place = Places::default().of(text, at);
    let fault = format!("{place}: {expected} expected");
    Err(Refusal::new(StatusCode::BAD_REQUEST, fault))
}

async fn logs(
    mut logs: Logs<'_>,
    text: &[u8],
    form: Form,
    received: Time,
    memory: RequestMemory<'_>,
) -> Result<Decoded, Refusal> {
    let mut output = Output::new(text, memory).await?;
    let mut turn = YIELD_BYTES;
    loop {
        match logs.next(received, &mut output.body) {
            otlp::Next::Record => output.records += 1,
            otlp::Next::Bad(bytes, bad) => {
                let shown = match form {
                    Form::Protobuf => Cow::Borrowed(bytes),
                    Form::Json => Cow::Owned(json_of(bytes)),
                };
                output.bad.add(&shown, || bad.to_string(), memory).await?;
            }
            otlp::Next::Room(bytes) => output.room(bytes).await?,
            otlp::Next::End => return Ok(output.done()),
        }
        if output.body.len() >= turn {
            turn = output.body.len() + YIELD_BYTES;
            tokio::task::yield_now().await;
        }
    }
}

/// The JSON text of a part of a request.
fn json_of(packed: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    // The part was JSON, so it can be written as JSON.
    let _ = write_value(packed, 0, &mut text);
    text
}
