//! From a batch to pieces: where each record goes, and its bytes.
//!
//! `take -> [encode] -> write -> settle`
//!
//! A path that all records of a batch share is rendered once; else neighbours with the same path go together. Lines that
//! are written as they came in are shared and not copied. A record is never split between two files. What cannot be
//! encoded, or has no path, is set aside with its reason.

use std::{ffi::OsString, ops::Range, os::unix::ffi::OsStringExt, path::PathBuf};

use millstream_pipeline::failure::Failure;
use millstream_record::{Batch, Encoding};
use millstream_wire::{
    format::{Reason, Reject},
    record::records,
    template::{Depends, Missing},
};

use super::{pending::WRITE_BYTES, run::Running};

/// Some records of a batch that go to the same file.
#[derive(Clone, Debug)]
struct Run {
    /// Where they stand in the body.
    range: Range<usize>,
    /// How many they are; right where it is asked for, which is where the body is written as it is.
    records: u32,
}

impl Running {
    /// Encodes a batch and puts it where it belongs. What cannot be written stands in `rejects` and `refused`
    /// afterwards.
    pub(super) async fn take(&mut self, batch: &Batch) -> Result<(), Failure> {
        let depends = self.path.depends();
        // All lines of a batch have the same time.
        let shared = depends < Depends::Time
            || depends == Depends::Time && batch.encoding == Encoding::Lines;
        if shared {
            self.take_whole(batch).await
        } else {
            self.take_apart(batch).await
        }
    }

    /// All records have the same path.
    async fn take_whole(&mut self, batch: &Batch) -> Result<(), Failure> {
        self.name.clear();
        if let Err(missing) = self.path.render_batch(batch, &mut self.name) {
            let ranges = records(batch).map(|(range, _)| range);
            self.rejects
                .extend(ranges.map(|range| no_path(range, &missing)));
            return Ok(());
        }
        let whole = Run {
            range: 0..batch.body.len(),
            records: batch.count,
        };
        if batch.body.len() <= WRITE_BYTES || self.encoder.passes(batch) {
            return self.place(batch, whole).await;
        }
        // Step by step, so that the encoded text of a large batch does not stand in memory as a whole.
        let mut start = 0;
        let mut end = 0;
        for (range, _) in records(batch) {
            end = range.end;
            if end - start >= WRITE_BYTES {
                self.place(
                    batch,
                    Run {
                        range: start..end,
                        records: 0,
                    },
                )
                .await?;
                start = end;
            }
        }
        self.place(
            batch,
            Run {
                range: start..end,
                records: 0,
            },
        )
        .await
    }

    /// Each record says where it goes.
    async fn take_apart(&mut self, batch: &Batch) -> Result<(), Failure> {
        let by_time = self.path.depends() == Depends::Time;
        let mut run: Option<Run> = None;
        let mut time = batch.received;
        for (range, event) in records(batch) {
            let grows = run
                .as_ref()
                .is_some_and(|run| range.end - run.range.start < WRITE_BYTES);
            if !(grows && by_time && self.path.same_time(time, event.time)) {
                time = event.time;
                self.next_name.clear();
                let named = self.path.render(batch.into(), event, &mut self.next_name);
                if named.is_err() || !grows || self.next_name != self.name {
                    if let Some(run) = run.take() {
                        self.place(batch, run).await?;
                    }
                    std::mem::swap(&mut self.name, &mut self.next_name);
                }
                if let Err(missing) = named {
                    self.rejects.push(no_path(range, &missing));
                    continue;
                }
            }
            match &mut run {
                Some(run) => (run.range.end, run.records) = (range.end, run.records + 1),
                None => run = Some(Run { range, records: 1 }),
            }
        }
        match run {
            Some(run) => self.place(batch, run).await,
            None => Ok(()),
        }
    }

    /// Puts the records into the file called `name`, and what does not fit there any more into the next one of that name.
    async fn place(&mut self, batch: &Batch, mut run: Run) -> Result<(), Failure> {
        if self.path.depends() > Depends::Nothing
            && let Some(why) = self.writer.misfit(&self.name)
        {
            let start = run.range.start;
            for (range, _) in millstream_wire::record::records(&part(batch, &run)) {
                self.refused
                    .push((start + range.start..start + range.end, why.clone()));
            }
            return Ok(());
        }
        while !run.range.is_empty() {
            let id = self.file(batch.received).await?;
            self.link(id, batch, &run);
            let left = self.put(id, batch, run.clone());
            if self.writer.is_full() || left.is_some() {
                self.flush().await?;
            }
            let Some(left) = left else { return Ok(()) };
            let some = left.range.start > run.range.start;
            if !(some && self.writer.has_room(id)) {
                self.writer.rotate(id, batch.received)?;
            }
            run = left;
        }
        Ok(())
    }

    /// Puts records into file `id` until it is full; returns those that did not fit.
    fn put(&mut self, id: u32, batch: &Batch, run: Run) -> Option<Run> {
        if self.encoder.passes(batch) {
            if self.writer.fits(id, run.range.len(), run.records) {
                self.writer
                    .add_shared(id, batch.body.slice(run.range), u64::from(run.records));
                return None;
            }
            return self.put_some_shared(id, batch, run);
        }
        let (start, rejects) = (self.writer.pending.buffer.len(), self.rejects.len());
        let buffer = &mut self.writer.pending.buffer;
        let records =
            self.encoder
                .encode_range(batch, run.range.clone(), buffer, &mut self.rejects);
        let bytes = buffer.len() - start;
        if records == 0 {
            return None;
        }
        if self.writer.fits(id, bytes, records) {
            self.writer.add_encoded(id, start, u64::from(records));
            return None;
        }
        self.writer.pending.buffer.truncate(start);
        self.rejects.truncate(rejects);
        self.put_some_encoded(id, batch, run)
    }

    /// As many records as fit, as they are.
    fn put_some_shared(&mut self, id: u32, batch: &Batch, run: Run) -> Option<Run> {
        let (mut bytes, mut records) = (0, 0);
        for (range, _) in millstream_wire::record::records(&part(batch, &run)) {
            let output = self.writer.files.get(id);
            let first = output.is_empty() && records == 0;
            if !first && !self.writer.fits(id, range.end, records + 1) {
                break;
            }
            (bytes, records) = (range.end, records + 1);
        }
        let middle = run.range.start + bytes;
        if bytes > 0 {
            let body = batch.body.slice(run.range.start..middle);
            self.writer.add_shared(id, body, u64::from(records));
        }
        let left = Run {
            range: middle..run.range.end,
            records: run.records.saturating_sub(records),
        };
        (!left.range.is_empty()).then_some(left)
    }

    /// As many records as fit, encoded one by one.
    fn put_some_encoded(&mut self, id: u32, batch: &Batch, run: Run) -> Option<Run> {
        for (range, _) in millstream_wire::record::records(&part(batch, &run)) {
            let range = run.range.start + range.start..run.range.start + range.end;
            let start = self.writer.pending.buffer.len();
            let buffer = &mut self.writer.pending.buffer;
            let records =
                self.encoder
                    .encode_range(batch, range.clone(), buffer, &mut self.rejects);
            let bytes = buffer.len() - start;
            if records == 0 {
                continue;
            }
            let output = self.writer.files.get(id);
            if !output.is_empty() && !self.writer.fits(id, bytes, records) {
                self.writer.pending.buffer.truncate(start);
                return Some(Run {
                    range: range.start..run.range.end,
                    records: 0,
                });
            }
            self.writer.add_encoded(id, start, u64::from(records));
        }
        None
    }

    /// A file that gets its first records of this run asks for the link.
    fn link(&mut self, id: u32, batch: &Batch, run: &Run) {
        let output = self.writer.files.get_mut(id);
        let Some(latest) = self.latest.as_mut().filter(|_| !output.linked) else {
            return;
        };
        output.linked = true;
        let first = part(batch, run);
        let Some((_, event)) = records(&first).next() else {
            return;
        };
        let mut link = Vec::new();
        match latest.render(batch.into(), event, &mut link) {
            Ok(()) => {
                let link = PathBuf::from(OsString::from_vec(link));
                self.writer.latest.ask(link, &output.path, event.time);
            }
            Err(missing) => self.reporter.warn("latest", missing),
        }
    }
}

/// The records of a run as a batch.
fn part(batch: &Batch, run: &Run) -> Batch {
    Batch {
        tag: batch.tag.clone(),
        plain: false,
        encoding: batch.encoding,
        body: batch.body.slice(run.range.clone()),
        count: run.records,
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
