//! Encodes the records of batches as items of requests.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`

use std::{io::Write as _, ops::Range};

use jiff::tz::TimeZone;
use millstream_record::{Batch, Position};
use millstream_wire::{
    format::{self, Mark, Reject},
    otlp,
    record::{TimedRecord, records},
    template::Renderer,
};

use super::options::{Action, Bulk, DocumentId};
use crate::sending::{DurableId, Refused, unencoded};

/// An item that is not part of a request yet. The ranges refer to the fields of [`Output`]. `around`: with OTLP, the range of the
/// item's resource and scope; otherwise empty.
#[derive(Clone, Debug)]
pub(super) struct Encoded {
    pub(super) text: Range<usize>,
    pub(super) around: Range<usize>,
    pub(super) mark: Mark,
}

/// An encoded batch.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) text: Vec<u8>,
    pub(super) around: Vec<u8>,
    pub(super) items: Vec<Encoded>,
    /// Records that cannot be encoded: their byte ranges in the batch's body, and why.
    pub(super) rejects: Vec<Refused>,
}

/// Encodes items. Each lane (parallel task of the sink) has one encoder.
pub(super) enum Encoder {
    /// Items as `format` writes them.
    Plain(format::Encoder, Scratch),
    /// Items with an action line before each.
    Bulk(format::Encoder, Box<Actions>, Scratch),
    /// OTLP log records.
    Otlp(otlp::Encoder),
}

/// Buffers that are reused.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    text: Vec<u8>,
    marks: Vec<Mark>,
    rejects: Vec<Reject>,
}

impl Encoder {
    /// Encodes a batch, or a part of one, into `out`. `first`: the index of the part's first record in the whole batch. `position`:
    /// the id of the durable channel, and the batch's position in it.
    pub(super) fn encode(
        &mut self,
        batch: &Batch,
        position: Option<(u128, Position)>,
        first: usize,
        out: &mut Output,
    ) {
        out.text.clear();
        out.around.clear();
        out.items.clear();
        out.rejects.clear();
        match self {
            Self::Plain(encoder, scratch) => plain(encoder, batch, scratch, out),
            Self::Bulk(encoder, actions, scratch) => {
                let place = position.map(|(channel, position)| (channel, position, first));
                actions.encode(encoder, batch, place, scratch, out);
            }
            Self::Otlp(encoder) => logs(encoder, batch, out),
        }
    }
}

fn plain(encoder: &mut format::Encoder, batch: &Batch, scratch: &mut Scratch, out: &mut Output) {
    scratch.marks.clear();
    encoder.encode_each(
        batch,
        &mut out.text,
        &mut scratch.rejects,
        &mut scratch.marks,
    );
    let mut start = 0;
    out.items.extend(scratch.marks.drain(..).map(|mark| {
        let text = start..mark.written;
        start = mark.written;
        Encoded {
            text,
            around: 0..0,
            mark,
        }
    }));
    out.rejects.extend(scratch.rejects.drain(..).map(unencoded));
}

fn logs(encoder: &mut otlp::Encoder, batch: &Batch, out: &mut Output) {
    let mut around = 0..0;
    for (range, timed) in records(batch) {
        let start = out.text.len();
        let before = out.around.len();
        let written = encoder.record(
            batch.into(),
            timed,
            batch.received,
            &mut out.text,
            &mut out.around,
        );
        if let Err(unfit) = written {
            out.rejects.push((range, unfit.to_string().into()));
            continue;
        }
        // Neighboring records usually share resource and scope, which are then stored once.
        let (last, new) = (out.around.get(around.clone()), out.around.get(before..));
        if !around.is_empty() && last == new {
            out.around.truncate(before);
        } else {
            around = before..out.around.len();
        }
        out.items.push(Encoded {
            text: start..out.text.len(),
            around: around.clone(),
            mark: Mark {
                start: range.start,
                record: record_at(batch, &timed),
                end: range.end,
                time: timed.time,
                written: out.text.len(),
            },
        });
    }
}

/// The byte offset of a record's fields in its batch; 0 for an entry without a record.
fn record_at(batch: &Batch, timed: &TimedRecord<'_>) -> usize {
    use millstream_wire::record::Record;
    let bytes = match timed.record {
        Record::None => return 0,
        Record::Line(bytes) | Record::Packed(bytes) => bytes,
    };
    (bytes.as_ptr() as usize).saturating_sub(batch.body.as_ptr() as usize)
}

/// The action lines of documents.
#[derive(Debug)]
pub(super) struct Actions {
    action: Action,
    index: Renderer,
    id: Id,
    pipeline: Option<String>,
    text: Vec<u8>,
}

#[derive(Debug)]
enum Id {
    None,
    Position,
    Template(Box<Renderer>),
}

impl Actions {
    pub(super) fn new(bulk: &Bulk, zone: &TimeZone) -> Self {
        Self {
            action: bulk.action,
            index: Renderer::text(&bulk.index, zone.clone()),
            id: match &bulk.id {
                DocumentId::None => Id::None,
                DocumentId::Position => Id::Position,
                DocumentId::Template(template) => {
                    Id::Template(Box::new(Renderer::text(template, zone.clone())))
                }
            },
            pipeline: bulk.pipeline.clone(),
            text: Vec::new(),
        }
    }

    fn encode(
        &mut self,
        encoder: &mut format::Encoder,
        batch: &Batch,
        place: Option<(u128, Position, usize)>,
        scratch: &mut Scratch,
        out: &mut Output,
    ) {
        scratch.text.clear();
        scratch.marks.clear();
        encoder.encode_each(
            batch,
            &mut scratch.text,
            &mut scratch.rejects,
            &mut scratch.marks,
        );
        out.rejects.extend(scratch.rejects.drain(..).map(unencoded));
        let mut document = 0;
        for (number, mark) in (0..).zip(&scratch.marks) {
            let text = scratch.text.get(document..mark.written).unwrap_or_default();
            document = mark.written;
            let start = out.text.len();
            // When the position is read again, processors may produce a different record with this number. The checksum in the id keeps
            // the server from mistaking the new record for the earlier one.
            let id = place.map(|(channel, position, first)| DurableId {
                channel,
                position,
                number: first + number,
                bytes: text,
            });
            if let Err(why) = self.line(batch, mark, id, &mut out.text) {
                out.text.truncate(start);
                out.rejects.push((mark.start..mark.end, why.into()));
                continue;
            }
            out.text.extend_from_slice(text);
            out.text.push(b'\n');
            out.items.push(Encoded {
                text: start..out.text.len(),
                around: 0..0,
                mark: *mark,
            });
        }
    }

    /// `{"create":{"_index":"logs","_id":"..."}}`
    fn line(
        &mut self,
        batch: &Batch,
        mark: &Mark,
        id: Option<DurableId<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let timed = mark.event(batch);
        out.extend_from_slice(match self.action {
            Action::Create => b"{\"create\":{\"_index\":",
            Action::Index => b"{\"index\":{\"_index\":",
        });
        self.text.clear();
        let rendered = self.index.render(batch.into(), timed, &mut self.text);
        rendered.map_err(|missing| missing.to_string())?;
        string(&self.text, out);
        self.text.clear();
        match (&mut self.id, id) {
            (Id::Position, Some(id)) => {
                // Writing to a vector cannot fail.
                let _ = write!(self.text, "{id}");
            }
            (Id::Template(renderer), _) => {
                let rendered = renderer.render(batch.into(), timed, &mut self.text);
                rendered.map_err(|missing| missing.to_string())?;
            }
            (Id::None | Id::Position, _) => {}
        }
        if !self.text.is_empty() {
            out.extend_from_slice(b",\"_id\":");
            string(&self.text, out);
        }
        if let Some(pipeline) = &self.pipeline {
            out.extend_from_slice(b",\"pipeline\":");
            string(pipeline.as_bytes(), out);
        }
        out.extend_from_slice(b"}}\n");
        Ok(())
    }
}

/// A JSON string.
fn string(text: &[u8], out: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(text);
    // Text always serializes, and writing to a vector cannot fail.
    let _ = serde_json::to_writer(out, &text);
}
