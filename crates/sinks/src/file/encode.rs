//! Turns batches into pieces: finds the file of each record and encodes its bytes.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read back -> process -> [encode] -> write -> settle`
//!
//! If the path cannot differ between the records of a batch, it is rendered once; otherwise neighboring records with the same path
//! are handled together. Lines that are written unchanged stay in the buffer of their batch and are not copied. A record is never
//! split between two files. A record that cannot be encoded or has no path is rejected, with the reason.

use std::{ffi::OsString, mem::replace, ops::Range, os::unix::ffi::OsStringExt, path::PathBuf};

use millstream_pipeline::{failure::Failure, inlet::Inlet, report::Reporter};
use millstream_record::{Batch, Encoding};
use millstream_wire::{
    format::{Encoder, Reason, Reject},
    record::records,
    template::{Depends, Missing, Renderer},
};

use super::{config::Settings, patient::PatientWriter, pending::WRITE_BYTES};
use crate::sending::{Refused, by_reason, refuse, unencoded};

/// Encoded text is written when there is this much of it, also within a span. Fields that are added can make records thousands of
/// times longer.
const ENCODED_BYTES_MAX: usize = 8 << 20;

/// Neighboring records of a batch that go to the same file.
#[derive(Clone, Debug)]
struct Span {
    /// The range of the records in the body of the batch.
    range: Range<usize>,
    /// Number of records. It is correct only if the body is written unchanged, and is not used otherwise.
    records: u32,
}

/// The records of a span that are left, and whether they are left because the file is full.
type Left = (Span, bool);

/// Encodes batches for the files their records belong to.
pub(super) struct Encode {
    path: Renderer,
    latest: Option<Renderer>,
    encoder: Encoder,
    /// Buffers for the path of the current span, and for the path of the next record.
    name: Vec<u8>,
    next_name: Vec<u8>,
    /// Records of the current batch that cannot be encoded or lack a value that their path needs.
    rejects: Vec<Reject>,
    /// Records whose path cannot be a file, each with the reason.
    refused: Vec<Refused>,
    reporter: Reporter,
}

impl Encode {
    pub(super) fn new(settings: &Settings, reporter: Reporter) -> Self {
        Self {
            path: settings.path(),
            latest: settings.latest(),
            encoder: settings.format.encoder(),
            name: Vec::new(),
            next_name: Vec::new(),
            rejects: Vec::new(),
            refused: Vec::new(),
            reporter,
        }
    }

    /// The first bytes of every file.
    pub(super) fn header(&self) -> &[u8] {
        self.encoder.header()
    }

    /// Encodes a batch and hands it to the writer. [`Encode::reject`] then rejects the records that cannot be written.
    pub(super) async fn batch(
        &mut self,
        batch: &Batch,
        out: &mut PatientWriter,
    ) -> Result<(), Failure> {
        match self.path.depends() {
            Depends::Nothing | Depends::Batch => self.in_one_file(batch, out).await,
            // All lines of a batch have the same time.
            Depends::Time if batch.encoding == Encoding::Lines => {
                self.in_one_file(batch, out).await
            }
            _ => self.in_many_files(batch, out).await,
        }
    }

    /// Encodes a batch whose records all have the same path.
    async fn in_one_file(&mut self, batch: &Batch, out: &mut PatientWriter) -> Result<(), Failure> {
        self.name.clear();
        if let Err(missing) = self.path.render_batch(batch, &mut self.name) {
            let ranges = records(batch).map(|(range, _)| range);
            self.rejects
                .extend(ranges.map(|range| no_path(range, &missing)));
            return Ok(());
        }
        let whole = 0..batch.body.len();
        if whole.len() <= WRITE_BYTES || self.encoder.passes(batch) {
            let records = batch.count;
            let range = whole;
            return self.place(batch, Span { range, records }, out).await;
        }
        // A large batch is encoded in steps, so that its encoded text is never in memory as a whole.
        let mut range = 0..0;
        for (record, _) in records(batch) {
            range.end = record.end;
            if range.len() >= WRITE_BYTES {
                let range = replace(&mut range, record.end..record.end);
                self.place(batch, Span { range, records: 0 }, out).await?;
            }
        }
        self.place(batch, Span { range, records: 0 }, out).await
    }

    /// Encodes a batch whose records may have different paths.
    async fn in_many_files(
        &mut self,
        batch: &Batch,
        out: &mut PatientWriter,
    ) -> Result<(), Failure> {
        let by_time = self.path.depends() == Depends::Time;
        let mut span: Option<Span> = None;
        let mut time = batch.received;
        for (range, record) in records(batch) {
            let grows = span
                .as_ref()
                .is_some_and(|span| range.end - span.range.start < WRITE_BYTES);
            if !(grows && by_time && self.path.same_time(time, record.time)) {
                time = record.time;
                self.next_name.clear();
                let named = self.path.render(batch.into(), record, &mut self.next_name);
                if named.is_err() || !grows || self.next_name != self.name {
                    if let Some(span) = span.take() {
                        self.place(batch, span, out).await?;
                    }
                    std::mem::swap(&mut self.name, &mut self.next_name);
                }
                if let Err(missing) = named {
                    self.rejects.push(no_path(range, &missing));
                    continue;
                }
            }
            match &mut span {
                Some(span) => (span.range.end, span.records) = (range.end, span.records + 1),
                None => span = Some(Span { range, records: 1 }),
            }
        }
        match span {
            Some(span) => self.place(batch, span, out).await,
            None => Ok(()),
        }
    }

    /// Puts the records into the file whose path is in `self.name`. If the file is full, rotates it and puts the remaining
    /// records into a new file with the same name.
    async fn place(
        &mut self,
        batch: &Batch,
        mut span: Span,
        out: &mut PatientWriter,
    ) -> Result<(), Failure> {
        while !span.range.is_empty() {
            let id = match out.file(&self.name, batch.received).await? {
                Ok(id) => id,
                Err(why) => {
                    refuse(&mut self.refused, batch, span.range, &why);
                    return Ok(());
                }
            };
            self.link(id, batch, &span, out);
            let start = span.range.start;
            let (left, is_full) = self.put(id, batch, span, out);
            if out.writer.is_full() || !left.range.is_empty() {
                out.flush().await?;
            }
            if is_full && (left.range.start == start || !out.writer.has_room(id)) {
                out.writer.rotate(id, batch.received)?;
            }
            span = left;
        }
        Ok(())
    }

    /// Puts records into file `id` until it is full or enough is encoded. Returns the records that are left.
    fn put(&mut self, id: u32, batch: &Batch, mut span: Span, out: &mut PatientWriter) -> Left {
        let writer = &mut out.writer;
        let range = span.range.clone();
        if self.encoder.passes(batch) {
            if !writer.fits(id, range.len(), span.records) {
                return put_some_shared(id, batch, span, out);
            }
            span.range.start = range.end;
            writer.add_shared(id, batch.body.slice(range), u64::from(span.records));
            return (span, false);
        }
        let (buffer, rejects) = (&mut writer.pending.buffer, &mut self.rejects);
        let (start, before) = (buffer.len(), rejects.len());
        let most = start + ENCODED_BYTES_MAX;
        let part = (self.encoder).encode_until(batch, range, most, buffer, rejects);
        if part.records > 0 {
            if !writer.fits(id, writer.pending.buffer.len() - start, part.records) {
                writer.pending.buffer.truncate(start);
                self.rejects.truncate(before);
                return self.put_some_encoded(id, batch, span, out);
            }
            writer.add_encoded(id, start, u64::from(part.records));
        }
        span.range.start = part.end;
        (span, false)
    }

    /// Encodes records one by one and puts as many into file `id` as fit. Returns the records that did not fit. The first record of
    /// a file always fits, however long it is.
    fn put_some_encoded(
        &mut self,
        id: u32,
        batch: &Batch,
        mut span: Span,
        out: &mut PatientWriter,
    ) -> Left {
        let writer = &mut out.writer;
        for (range, _) in records(&part(batch, &span)) {
            let range = span.range.start + range.start..span.range.start + range.end;
            let start = writer.pending.buffer.len();
            let buffer = &mut writer.pending.buffer;
            let records =
                self.encoder
                    .encode_range(batch, range.clone(), buffer, &mut self.rejects);
            let bytes = buffer.len() - start;
            if records == 0 {
                continue;
            }
            let is_empty = writer.files.outputs.get(id).is_empty();
            if !is_empty && !writer.fits(id, bytes, records) {
                writer.pending.buffer.truncate(start);
                span.range.start = range.start;
                return (span, true);
            }
            writer.add_encoded(id, start, u64::from(records));
        }
        span.range.start = span.range.end;
        (span, false)
    }

    /// Requests the `latest` link to a file when the file gets its first records of this run.
    fn link(&mut self, id: u32, batch: &Batch, span: &Span, out: &mut PatientWriter) {
        let output = out.writer.files.outputs.get_mut(id);
        let Some(latest) = self.latest.as_mut().filter(|_| !output.linked) else {
            return;
        };
        output.linked = true;
        let first = part(batch, span);
        let Some((_, record)) = records(&first).next() else {
            return;
        };
        let mut link = Vec::new();
        match latest.render(batch.into(), record, &mut link) {
            Ok(()) => {
                let link = PathBuf::from(OsString::from_vec(link));
                out.writer.latest.request(link, &output.path, record.time);
            }
            Err(missing) => self.reporter.warn("latest", missing),
        }
    }

    /// Rejects the records of `batch` that cannot be written: sends them to the sink's `rejected` port. Records with the same
    /// reason leave together.
    pub(super) async fn reject(&mut self, batch: &Batch, inlet: &mut Inlet) {
        let rejects = self.rejects.drain(..);
        self.refused.extend(rejects.map(unencoded));
        for (reason, records) in by_reason(batch, &self.refused) {
            inlet.reject(batch, records, &reason).await;
        }
        self.refused.clear();
    }
}

/// Puts as many records as fit into file `id`, without a copy. Returns the records that did not fit. The first record of a file
/// always fits, however long it is.
fn put_some_shared(id: u32, batch: &Batch, span: Span, out: &mut PatientWriter) -> Left {
    let writer = &mut out.writer;
    let (mut bytes, mut count) = (0, 0);
    for (range, _) in records(&part(batch, &span)) {
        let first = writer.files.outputs.get(id).is_empty() && count == 0;
        if !first && !writer.fits(id, range.end, count + 1) {
            break;
        }
        (bytes, count) = (range.end, count + 1);
    }
    let middle = span.range.start + bytes;
    if bytes > 0 {
        let body = batch.body.slice(span.range.start..middle);
        writer.add_shared(id, body, u64::from(count));
    }
    let left = Span {
        range: middle..span.range.end,
        records: span.records.saturating_sub(count),
    };
    let is_full = !left.range.is_empty();
    (left, is_full)
}

/// The records of a span as a batch.
fn part(batch: &Batch, span: &Span) -> Batch {
    Batch {
        tag: batch.tag.clone(),
        plain: false,
        encoding: batch.encoding,
        body: batch.body.slice(span.range.clone()),
        count: span.records,
        received: batch.received,
        values: batch.values.clone(),
        origins: Vec::new(),
    }
}

fn no_path(range: Range<usize>, missing: &Missing) -> Reject {
    Reject {
        range,
        reason: Reason::Missing(missing.clone()),
    }
}
