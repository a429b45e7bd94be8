//! The encoder of a sink.
//!
//! Hop: read decode send keep take [encode] write settle.
//!
//! Promises: what it appends is whole records, in order; what it could not write it names, with its place in the body;
//! encoded and rejected together are the records of the batch. Leaves to others: when to write, and what becomes of
//! rejects.

use std::ops::Range;

use jiff::tz::TimeZone;
use millstream_record::{Batch, Encoding, Time};

use super::{
    Add, Format, OptionError, Options, Reason, Reject,
    add::{Added, EventTime, Target},
    avro::AvroEvent,
    csv::Csv,
    json::Json,
    ltsv::Ltsv,
    msgpack::Msgpack,
    raw::Raw,
    template::Text,
};
use crate::{
    json::InvalidUtf8,
    msgpack as mp,
    record::{FieldPath, MESSAGE, Record, TimedRecord},
    room::Room,
    template::{Renderer, Shared},
};

/// Batches to bytes, as the options of one sink say. One per task: it remembers times.
#[derive(Debug)]
pub struct Encoder {
    kind: Kind,
    /// What a file starts with.
    header: Vec<u8>,
    /// How text that is not UTF-8 is written.
    invalid_utf8: Option<InvalidUtf8>,
}

#[derive(Debug)]
enum Kind {
    Json(Json),
    Ltsv(Ltsv),
    Csv(Csv),
    Raw(Raw),
    Msgpack(Msgpack),
    Template(Text),
    // It remembers what the record before began with.
    Avro(Box<AvroEvent>),
}

/// One format: writes single records. After an error part of the record is written; the caller takes it back.
pub(super) trait Write {
    /// Prepares what is the same for all records of a batch.
    fn begin(&mut self, batch: &Batch);

    /// Writes a line.
    fn line(&mut self, room: &mut Room<'_>, line: &[u8], of: Of<'_>) -> Result<(), Reason>;

    /// Writes the record at `head` of `body`, whose entry starts at `start`; gives the offset behind it.
    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        start: usize,
        head: mp::Head,
        of: Of<'_>,
    ) -> Result<usize, Reason>;
}

/// Where a record stands, in the batch and in what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its first byte in the batch's body.
    pub start: usize,
    /// Where its fields begin: a packed record's map; of a line, its text.
    pub record: usize,
    /// The byte behind it in the body (behind the newline of a line).
    pub end: usize,
    /// Its event time.
    pub time: Time,
    /// The byte behind it in what was written.
    pub written: usize,
}

impl Mark {
    /// The record, out of the batch that it is of.
    pub fn event<'a>(&self, batch: &'a Batch) -> TimedRecord<'a> {
        let record = match batch.encoding {
            Encoding::Lines => {
                let line = batch.body.get(self.record..self.end).unwrap_or_default();
                Record::Line(line.strip_suffix(b"\n").unwrap_or(line))
            }
            Encoding::Packed => Record::Packed(batch.body.get(self.record..).unwrap_or_default()),
        };
        let time = self.time;
        TimedRecord { time, record }
    }
}

/// Who wants to know where the records stand: a list of marks, or nobody, who costs nothing.
trait Notes {
    /// Takes note; whether more is wanted.
    fn note(&mut self, mark: Mark) -> bool;
}

impl Notes for () {
    #[inline(always)]
    fn note(&mut self, _: Mark) -> bool {
        true
    }
}

impl Notes for Vec<Mark> {
    #[inline(always)]
    fn note(&mut self, mark: Mark) -> bool {
        self.push(mark);
        true
    }
}

/// No more than fills what is written up to an offset.
struct Until {
    written: usize,
    /// The byte behind the last record in the body.
    end: Option<usize>,
}

impl Notes for Until {
    #[inline(always)]
    fn note(&mut self, mark: Mark) -> bool {
        let more = mark.written < self.written;
        if !more {
            self.end = Some(mark.end);
        }
        more
    }
}

/// What [`Encoder::encode_until`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Records that were appended.
    pub records: u32,
    /// Where in the body the next record starts.
    pub end: usize,
}

/// What a record is of.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    pub(super) shared: Shared<'a>,
    pub(super) received: Time,
}

impl<'a> Of<'a> {
    pub(super) fn line(self, line: &'a [u8]) -> TimedRecord<'a> {
        TimedRecord {
            time: self.received,
            record: Record::Line(line),
        }
    }

    #[inline(always)]
    pub(super) fn packed(self, body: &'a [u8], head: mp::Head) -> TimedRecord<'a> {
        TimedRecord {
            time: head.time.unwrap_or(self.received),
            record: Record::Packed(body.get(head.record..).unwrap_or_default()),
        }
    }
}

impl Encoder {
    pub(super) fn new(options: &Options, zone: &TimeZone) -> Result<Self, OptionError> {
        let add = |target, default| {
            let fields = Add::with_default(options.add.as_ref(), default)?;
            Added::new(&fields, target, zone, options.invalid_utf8)
        };
        let delimiter = |default: &str| {
            let delimiter = options.delimiter.as_deref().unwrap_or(default);
            Box::from(delimiter.as_bytes())
        };
        let kind = match options.format {
            Format::Json => Kind::Json(Json::new(
                add(Target::Json, Some(EventTime::TEXT))?,
                delimiter("\n"),
            )),
            Format::Ltsv => Kind::Ltsv(Ltsv::new(
                add(Target::Ltsv, Some(EventTime::TEXT))?,
                delimiter("\n"),
            )),
            Format::Csv => {
                let columns = options.columns.as_deref().unwrap_or_default();
                let added = add(Target::Csv, Some(EventTime::TEXT))?;
                Kind::Csv(Csv::new(columns, added, delimiter("\n")))
            }
            Format::Raw => {
                let field = options.field.clone();
                let field = field.unwrap_or_else(|| FieldPath::top(MESSAGE));
                Kind::Raw(Raw::new(field, delimiter("\n")))
            }
            Format::Msgpack => Kind::Msgpack(Msgpack::new(add(Target::Packed, None)?)),
            Format::Template => {
                let template = options.template.as_ref();
                let template = template.ok_or_else(|| {
                    OptionError::new("template", "no `template`", "`format: template` needs one")
                })?;
                let renderer = Renderer::text(template, zone.clone());
                let renderer = renderer.invalid_utf8(options.invalid_utf8);
                Kind::Template(Text::new(renderer, delimiter("")))
            }
            Format::AvroEvent => {
                let field = options.field.clone();
                let field = field.unwrap_or_else(|| FieldPath::top(MESSAGE));
                let added = add(Target::Avro, Some(EventTime::MILLIS))?;
                let headers = options.headers.unwrap_or_default();
                Kind::Avro(Box::new(AvroEvent::new(field, added, headers)))
            }
        };
        let header = match &kind {
            Kind::Csv(csv) if options.header == Some(true) => csv.header(),
            _ => Vec::new(),
        };
        Ok(Self {
            kind,
            header,
            invalid_utf8: options.invalid_utf8,
        })
    }

    /// What stands once before all records of a file (or of a stream, or a message that is a document of its own): the
    /// names of csv's columns. Nearly always nothing.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Whether the bytes of the batch's body are the output: who has them need not encode.
    pub fn passes(&self, batch: &Batch) -> bool {
        match &self.kind {
            Kind::Raw(raw) => {
                let is_lines = batch.encoding == Encoding::Lines;
                is_lines && raw.passes_lines() && self.invalid_utf8.is_none()
            }
            Kind::Msgpack(msgpack) => batch.encoding == Encoding::Packed && msgpack.passes_packed(),
            _ => false,
        }
    }

    /// Appends the records of a batch to `out`, and those that cannot be written to `rejects`; gives the number of
    /// records that were appended. `out` grows to at most about six times the body.
    pub fn encode(&mut self, batch: &Batch, out: &mut Vec<u8>, rejects: &mut Vec<Reject>) -> u32 {
        if self.passes(batch) {
            out.extend_from_slice(&batch.body);
            return batch.count;
        }
        self.encode_range(batch, 0..batch.body.len(), out, rejects)
    }

    /// As [`Encoder::encode`] for the records that stand in `range` of the body: one or more whole ones, as
    /// [`crate::record::records`] gives their places.
    pub fn encode_range(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        out: &mut Vec<u8>,
        rejects: &mut Vec<Reject>,
    ) -> u32 {
        self.run(batch, range, out, rejects, &mut ())
    }

    /// As [`Encoder::encode`], for sinks that send each record by itself: appends to `marks` where every record that was
    /// written stands.
    pub fn encode_each(
        &mut self,
        batch: &Batch,
        out: &mut Vec<u8>,
        rejects: &mut Vec<Reject>,
        marks: &mut Vec<Mark>,
    ) -> u32 {
        self.run(batch, 0..batch.body.len(), out, rejects, marks)
    }

    /// As [`Encoder::encode_range`], up to the record with which `out` holds `written` bytes or more.
    pub fn encode_until(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        written: usize,
        out: &mut Vec<u8>,
        rejects: &mut Vec<Reject>,
    ) -> Part {
        let mut until = Until { written, end: None };
        let end = range.end;
        let records = self.run(batch, range, out, rejects, &mut until);
        Part {
            records,
            end: until.end.unwrap_or(end),
        }
    }

    fn run(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        out: &mut Vec<u8>,
        rejects: &mut Vec<Reject>,
        notes: &mut impl Notes,
    ) -> u32 {
        let room = Room::with(out, self.invalid_utf8);
        match &mut self.kind {
            Kind::Json(format) => run(format, batch, range, room, rejects, notes),
            Kind::Ltsv(format) => run(format, batch, range, room, rejects, notes),
            Kind::Csv(format) => run(format, batch, range, room, rejects, notes),
            Kind::Raw(format) => run(format, batch, range, room, rejects, notes),
            Kind::Msgpack(format) => run(format, batch, range, room, rejects, notes),
            Kind::Template(format) => run(format, batch, range, room, rejects, notes),
            Kind::Avro(format) => run(&mut **format, batch, range, room, rejects, notes),
        }
    }
}

fn run(
    format: &mut impl Write,
    batch: &Batch,
    range: Range<usize>,
    mut room: Room<'_>,
    rejects: &mut Vec<Reject>,
    notes: &mut impl Notes,
) -> u32 {
    format.begin(batch);
    let of = Of {
        shared: batch.into(),
        received: batch.received,
    };
    let body = batch.body.get(..range.end).unwrap_or(&batch.body);
    match batch.encoding {
        Encoding::Lines => lines(format, body, range.start, of, &mut room, rejects, notes),
        Encoding::Packed => packed(format, body, range.start, of, &mut room, rejects, notes),
    }
}

fn lines(
    format: &mut impl Write,
    body: &[u8],
    mut start: usize,
    of: Of<'_>,
    room: &mut Room<'_>,
    rejects: &mut Vec<Reject>,
    notes: &mut impl Notes,
) -> u32 {
    let mut encoded = 0;
    for line in crate::lines::lines(body.get(start..).unwrap_or_default()) {
        let before = room.position();
        let end = (start + line.len() + 1).min(body.len());
        match format.line(room, line, of) {
            Ok(()) => {
                encoded += 1;
                let more = notes.note(Mark {
                    start,
                    record: start,
                    end,
                    time: of.received,
                    written: room.position(),
                });
                if !more {
                    break;
                }
            }
            Err(reason) => {
                room.back_to(before);
                rejects.push(Reject {
                    range: start..end,
                    reason,
                });
            }
        }
        start = end;
    }
    encoded
}

fn packed(
    format: &mut impl Write,
    body: &[u8],
    mut start: usize,
    of: Of<'_>,
    room: &mut Room<'_>,
    rejects: &mut Vec<Reject>,
    notes: &mut impl Notes,
) -> u32 {
    let mut encoded = 0;
    while start < body.len() {
        let before = room.position();
        let head = mp::entry_head(body, start);
        let result = match head {
            Ok(head) => format
                .packed(room, body, start, head, of)
                .map(|end| (head, end)),
            Err(error) => Err(Reason::Unfit(error.into())),
        };
        match result {
            Ok((head, end)) => {
                encoded += 1;
                let more = notes.note(Mark {
                    start,
                    record: head.record,
                    end,
                    time: head.time.unwrap_or(of.received),
                    written: room.position(),
                });
                if !more {
                    break;
                }
                start = end;
            }
            Err(reason) => {
                room.back_to(before);
                let range = start..behind(body, start);
                start = range.end;
                rejects.push(Reject { range, reason });
            }
        }
    }
    encoded
}

/// The offset behind the value at `start`; where none can be read (which no batch holds), the end of it all.
#[cold]
fn behind(body: &[u8], start: usize) -> usize {
    let mut open = 1;
    match mp::skip(body, start, &mut open) {
        Ok(end) if open == 0 => end,
        _ => body.len(),
    }
}
