//! The text of a request to one batch of packed records, and to what is set aside.
//!
//! `read -> [decode] -> send -> keep`

use std::borrow::Cow;

use hyper::StatusCode;
use millstream_record::{Buffer, Time};
use millstream_wire::{
    json::{Progress, to_msgpack, write_value},
    otlp::{self, Form, Logs},
};

use super::{
    answer::Refusal,
    body::{Work, too_large},
    lines::{self, Lines, Places},
};

/// Bad parts of one request are set aside one by one up to so many; more as one: each costs a hundred bytes.
const BAD_SINGLY_MAX: usize = 1024;
/// A batch is taken to be about as large as its text: so one record needs no second buffer.
pub(super) const SPARE_BYTES: usize = 4 << 10;
/// The fault of those.
const REST: &str = "more parts of one request that are no records";
/// So many faults are told.
const ERRORS_MAX: usize = 10;
/// After so many bytes other connections of this thread have their turn.
const YIELD_BYTES: usize = 1 << 20;

/// What a request holds.
pub(super) struct Decoded {
    pub(super) body: Buffer,
    pub(super) records: u32,
    pub(super) bad: Bad,
}

/// What is no record.
#[derive(Default)]
pub(super) struct Bad {
    pub(super) count: u64,
    /// The faults of the first ones, and how many bytes each has.
    faults: Vec<(usize, String)>,
    /// All of them as they came, in memory that counts: those without a fault of their own a line each.
    bytes: Option<Buffer>,
    /// The first of the faults.
    pub(super) errors: Vec<String>,
}

impl Bad {
    async fn add(
        &mut self,
        bytes: &[u8],
        fault: impl FnOnce() -> String,
        work: Work<'_>,
    ) -> Result<(), Refusal> {
        let all = match self.bytes.take() {
            None => work.memory(bytes.len() + 1).await?,
            Some(mut all) => {
                if all.capacity() - all.len() <= bytes.len() {
                    work.enlarge(&mut all, bytes.len() + 1).await?;
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

    /// They have been copied.
    pub(super) fn forget_bytes(&mut self) {
        self.bytes = None;
    }

    /// What is to be set aside one by one, each with its fault; all beyond the first as one.
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

/// The batch that grows.
struct Output<'s> {
    body: Buffer,
    records: u32,
    bad: Bad,
    work: Work<'s>,
}

impl<'s> Output<'s> {
    async fn new(text: &[u8], work: Work<'s>) -> Result<Self, Refusal> {
        Ok(Self {
            body: work.memory(text.len() + SPARE_BYTES).await?,
            records: 0,
            bad: Bad::default(),
            work,
        })
    }

    async fn room(&mut self, bytes: usize) -> Result<(), Refusal> {
        let bytes_max = self.work.shared.decompressed_bytes_max;
        if self.body.len() >= bytes_max {
            return Err(too_large(bytes_max, "limits.decompressed"));
        }
        self.work.enlarge(&mut self.body, bytes).await
    }

    fn done(self) -> Decoded {
        Decoded {
            body: self.body,
            records: self.records,
            bad: self.bad,
        }
    }
}

/// JSON lines, or an array.
pub(super) async fn json(text: &[u8], received: Time, work: Work<'_>) -> Result<Decoded, Refusal> {
    let mut output = Output::new(text, work).await?;
    let (mut lines, mut places) = (Lines::new(text), Places::default());
    let mut turn = YIELD_BYTES;
    loop {
        match lines.next(received, &mut output.body) {
            lines::Next::Record => output.records += 1,
            lines::Next::Bad(range, fault) => {
                let bytes = text.get(range).unwrap_or_default();
                let told = || format!("{}: {} expected", places.of(text, fault.at), fault.expected);
                output.bad.add(bytes, told, work).await?;
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

/// OTLP.
pub(super) async fn otlp(
    text: &[u8],
    form: Form,
    received: Time,
    work: Work<'_>,
) -> Result<Decoded, Refusal> {
    if form == Form::Protobuf {
        return logs(Logs::protobuf(text), text, form, received, work).await;
    }
    let mut packed = work.memory(lines::room(text)).await?;
    let (at, expected) = match to_msgpack(text, &mut packed) {
        Ok(Progress::Consumed(length)) => {
            let behind = length + lines::blank(text.get(length..).unwrap_or_default());
            if behind == text.len() {
                return logs(Logs::json(&packed), text, form, received, work).await;
            }
            // Another request behind it, such as the lines of OTLP's file exporter: nothing of the body is taken.
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
    work: Work<'_>,
) -> Result<Decoded, Refusal> {
    let mut output = Output::new(text, work).await?;
    let mut turn = YIELD_BYTES;
    loop {
        match logs.next(received, &mut output.body) {
            otlp::Next::Record => output.records += 1,
            otlp::Next::Bad(bytes, bad) => {
                let shown = match form {
                    Form::Protobuf => Cow::Borrowed(bytes),
                    Form::Json => Cow::Owned(json_of(bytes)),
                };
                output.bad.add(&shown, || bad.to_string(), work).await?;
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

/// A part of a JSON request as JSON again.
fn json_of(packed: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    // It was JSON, so it can be shown.
    let _ = write_value(packed, 0, &mut text);
    text
}
