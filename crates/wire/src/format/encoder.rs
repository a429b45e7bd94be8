//! The encoder of a sink.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! The encoder appends complete records, in order. It reports each record that it cannot write, with the record's range in the
//! body. So every record of a batch is either encoded or rejected. The sink decides when to write and how to handle rejects.

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
    write::{Of, Write},
};
use crate::{
    json::InvalidUtf8,
    msgpack as mp,
    record::{FieldPath, MESSAGE, Record, TimedRecord},
    room::Room,
    template::Renderer,
};

/// Encodes batches according to the options of a sink. Every task needs its own encoder, because an encoder caches formatted
/// times.
#[derive(Debug)]
pub struct Encoder {
    kind: Kind,
    /// The text at the start of a file.
    header: Vec<u8>,
    /// How to write text that is not UTF-8.
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
    // Boxed because of its size: it also holds the first fields of an earlier record.
    Avro(Box<AvroEvent>),
}

/// A record that was written: its range in the batch, its time and its end in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The offset of the record in the batch's body.
    pub start: usize,
    /// The offset of the record's fields: the map of a packed record, the text of a line.
    pub record: usize,
    /// The offset after the record in the body (for a line, after its newline).
    pub end: usize,
    /// The event time of the record.
    pub time: Time,
    /// The offset after the record in the output.
    pub written: usize,
}

impl Mark {
    /// Returns the record, which must be in `batch`.
    pub fn event<'a>(&self, batch: &'a Batch) -> TimedRecord<'a> {
        let record = match batch.encoding {
            Encoding::Lines => {
                let line = batch.body.get(self.record..self.end).unwrap_or_default();
                Record::Line(line.strip_suffix(b"\n").unwrap_or(line))
            }
            Encoding::Packed => Record::Packed(batch.body.get(self.record..).unwrap_or_default()),
        };
        let head = mp::entry_head(&batch.body, self.start);
        let metadata = match (batch.encoding, head) {
            (Encoding::Packed, Ok(head)) => head.metadata(&batch.body),
            _ => &[],
        };
        let time = self.time;
        TimedRecord {
            time,
            record,
            metadata,
        }
    }
}

/// Receives the mark of every record that was written. `()` ignores them at no cost.
trait Notes {
    /// Receives a mark; returns whether to continue.
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

/// Stops the encoder when the output reaches a length.
struct Until {
    written: usize,
    /// The offset in the body after the record that reached this length; `None` if no record has.
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

/// Stops the encoder at the first record that makes the output longer than `bytes_max`.
struct Within {
    bytes_max: usize,
    /// The length of the output after the last record that fits; `None` if no record fits.
    fits: Option<usize>,
    /// The offset in the body at which the encoder has stopped: the start of the record that does not fit, or the end of the first
    /// record, if even that one does not fit.
    end: Option<usize>,
}

impl Notes for Within {
    #[inline(always)]
    fn note(&mut self, mark: Mark) -> bool {
        if mark.written <= self.bytes_max {
            self.fits = Some(mark.written);
            return true;
        }
        self.end = Some(match self.fits {
            Some(_) => mark.start,
            None => mark.end,
        });
        false
    }
}

/// The result of [`Encoder::encode_until`] and [`Encoder::encode_within`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number of records appended.
    pub records: u32,
    /// The offset of the next record in the body.
    pub end: usize,
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

    /// The text that precedes the records: for csv with `header: true` the column names, otherwise empty. The sink writes it at
    /// the start of a file, of a stream, or of a message that holds a complete document.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Whether the output equals the body of the batch, so that the body need not be encoded.
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

    /// Appends the records of a batch to `out`. Adds the records that cannot be written to `rejects`. Returns the number of
    /// records appended to `out`. An escaped byte takes up to six bytes, and fields may be added, so the output can be several
    /// times as long as the body.
    pub fn encode(&mut self, batch: &Batch, out: &mut Vec<u8>, rejects: &mut Vec<Reject>) -> u32 {
        if self.passes(batch) {
            out.extend_from_slice(&batch.body);
            return batch.count;
        }
        self.encode_range(batch, 0..batch.body.len(), out, rejects)
    }

    /// Like [`Encoder::encode`], for the records in `range` of the body. The range must consist of complete records, as
    /// [`crate::record::records`] finds them.
    pub fn encode_range(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        out: &mut Vec<u8>,
        rejects: &mut Vec<Reject>,
    ) -> u32 {
        self.run(batch, range, out, rejects, &mut ())
    }

    /// Like [`Encoder::encode`], for sinks that send records one by one: appends the mark of every written record to `marks`.
    pub fn encode_each(
        &mut self,
        batch: &Batch,
        out: &mut Vec<u8>,
        rejects: &mut Vec<Reject>,
        marks: &mut Vec<Mark>,
    ) -> u32 {
        self.run(batch, 0..batch.body.len(), out, rejects, marks)
    }

    /// Like [`Encoder::encode_range`], but stops after the first appended record at whose end `out` has at least `written` bytes.
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

    /// Like [`Encoder::encode_range`], but stops before `out` becomes longer than `bytes_max`. At least one record is appended, however
    /// long it is. Fields that are added can be much longer than the record, so the output is bounded only in this way.
    pub fn encode_within(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        bytes_max: usize,
        out: &mut Vec<u8>,
        rejects: &mut Vec<Reject>,
    ) -> Part {
        let mut within = Within {
            bytes_max,
            fits: None,
            end: None,
        };
        let end = range.end;
        let mut records = self.run(batch, range, out, rejects, &mut within);
        if let (Some(written), Some(_)) = (within.fits, within.end) {
            out.truncate(written);
            records -= 1;
        }
        Part {
            records,
            end: within.end.unwrap_or(end),
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

/// Returns the offset after the value at `start`. If the value cannot be read, which does not happen in a valid batch, returns
/// the end of the body.
#[cold]
fn behind(body: &[u8], start: usize) -> usize {
    let mut open = 1;
    match mp::skip(body, start, &mut open) {
        Ok(end) if open == 0 => end,
        _ => body.len(),
    }
}
