//! A generation: the outputs since the last manifest. A manifest is a file that names the outputs to publish.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read back -> process -> encode -> [write] -> settle`
//!
//! The names of outputs contain the position of the first batch. So a run that reads the same batches again creates the same names,
//! and no other generation does. Memory is bounded. Three kinds of output are finished early and wait for the manifest: a full
//! output, the least recently used output if too many are open, and the largest output if all of them together hold too many bytes.

use std::{collections::HashMap, ops::Range, time::Instant};

use millstream_pipeline::failure::Failure;
use millstream_record::{Batch, Position};
use millstream_wire::{format::Reject, record::records};

use super::{
    Settings,
    chain::Chain,
    encode::{Body, Encode, count, part},
    manifest::Named,
    store::{Place, Store},
};
use crate::sending::records_max;

/// The content of an output is written to the store when this many bytes are in memory.
const PIECE_BYTES: usize = 1 << 20;
/// A manifest is due when there are this many outputs.
const OUTPUTS_MAX: usize = 4096;

/// Maximum number of directories that are remembered as refused.
const REFUSED_MAX: usize = 1024;

/// An open output.
struct Open<O> {
    place: Place,
    /// None if nothing was written yet.
    output: Option<O>,
    body: Box<dyn Body>,
    written: u64,
    records: u64,
    /// The value of [`Generation::uses`] at the last use of this output.
    used: u64,
}

/// The outputs since the last manifest.
pub(super) struct Generation<O> {
    open: HashMap<String, Open<O>, foldhash::fast::RandomState>,
    /// Directories in which no output can be published, and why. At most [`REFUSED_MAX`].
    refused: HashMap<String, String, foldhash::fast::RandomState>,
    finished: Vec<Named>,
    /// Bytes of the outputs that were finished because they were full.
    full_bytes: u64,
    /// The prefix of the names.
    stem: String,
    /// When the first batch with records for outputs arrived (`since`), and when the last one arrived (`touched`).
    pub(super) since: Option<Instant>,
    pub(super) touched: Instant,
    uses: u64,
    /// The number of outputs begun. The name of an output contains its number.
    begun: usize,
    /// Memory of bodies and outputs, in bytes.
    held: usize,
    piece: Vec<u8>,
}

impl<O> Generation<O> {
    pub(super) fn new() -> Self {
        Self {
            open: HashMap::default(),
            refused: HashMap::default(),
            finished: Vec::new(),
            full_bytes: 0,
            stem: String::new(),
            since: None,
            touched: Instant::now(),
            uses: 0,
            begun: 0,
            held: 0,
            piece: Vec::new(),
        }
    }

    /// Whether a manifest is due regardless of the time: at least half of the written bytes are in full outputs, or there are
    /// [`OUTPUTS_MAX`] outputs.
    pub(super) fn is_due(&self) -> bool {
        if self.open.len() + self.finished.len() >= OUTPUTS_MAX {
            return true;
        }
        if self.full_bytes == 0 {
            return false;
        }
        let open = self.open.values().map(|open| open.written);
        let finished = self.finished.iter().map(|named| named.bytes);
        self.full_bytes * 2 >= finished.chain(open).sum()
    }

    /// Notes the arrival of a batch with position `at`. The first batch decides the names of outputs.
    pub(super) fn touch(&mut self, settings: &Settings, chain: &Chain, at: Option<Position>) {
        self.touched = Instant::now();
        if self.since.is_none() {
            self.since = Some(self.touched);
            // Behind memory there is no position. The number of the next manifest is just as unique, as long as the chain exists.
            let Position { epoch, seq } = at.unwrap_or(Position {
                epoch: 0,
                seq: chain.number + 1,
            });
            let Settings { prefix, sink, .. } = settings;
            let id = chain.id >> 64;
            self.stem = format!("{prefix}{sink}-{id:016x}-{epoch}-{seq:010}");
        }
    }

    /// Returns why no output of this directory can be published, or None if it can. Asks the store only if a new output has to
    /// begin. Up to [`REFUSED_MAX`] refusals are remembered for this generation, so that the store is not asked again about these
    /// directories.
    pub(super) async fn misfit<S: Store<Output = O>>(
        &mut self,
        to: &mut To<'_, S>,
        directory: &str,
    ) -> Result<Option<String>, Failure> {
        if self.open.contains_key(directory) {
            return Ok(None);
        }
        if let Some(why) = self.refused.get(directory) {
            return Ok(Some(why.clone()));
        }
        let place = self.next_place(to, directory);
        let found = to.store.misfit(&place).await?;
        if let Some(why) = &found {
            if self.refused.len() >= REFUSED_MAX {
                self.refused.clear();
            }
            self.refused.insert(directory.to_owned(), why.clone());
        }
        Ok(found)
    }

    /// The paths of the next output, if it is in this directory.
    fn next_place<S>(&self, to: &To<'_, S>, directory: &str) -> Place {
        let To {
            settings, chain, ..
        } = to;
        let file = format!("{}-{:04}{}", self.stem, self.begun, settings.extension);
        chain.place(directory, &file)
    }

    /// Adds the records in `range` to outputs of this directory.
    pub(super) async fn add<S: Store<Output = O>>(
        &mut self,
        to: &mut To<'_, S>,
        directory: &str,
        batch: &Batch,
        mut range: Range<usize>,
        rejects: &mut Vec<Reject>,
    ) -> Result<(), Failure> {
        let records_max = records_max(batch) as u64;
        while !range.is_empty() {
            self.uses += 1;
            if !self.open.contains_key(directory) {
                self.begin(to, directory).await?;
            }
            let Some(open) = self.open.get_mut(directory) else {
                return Ok(());
            };
            open.used = self.uses;
            let room = to.settings.rotate.records.saturating_sub(open.records);
            let now = some_records(batch, &range, room.min(records_max));
            range.start = now.end;
            let before = held(to.store, open);
            open.records += u64::from(open.body.encode(batch, now, rejects)?);
            if open.body.held() >= PIECE_BYTES || is_large(open, to) {
                drain(open, to.store, &mut self.piece, false).await?;
            }
            self.held = (self.held + held(to.store, open)).saturating_sub(before);
            if is_large(open, to) || open.records >= to.settings.rotate.records {
                self.full_bytes += self.finish(to.store, directory).await?;
            }
            while self.held > to.settings.held_max {
                let fullest = self
                    .open
                    .iter()
                    .max_by_key(|(_, open)| held(to.store, open));
                let Some(fullest) = fullest.map(|(directory, _)| directory.clone()) else {
                    break;
                };
                self.finish(to.store, &fullest).await?;
            }
        }
        Ok(())
    }

    async fn begin<S: Store<Output = O>>(
        &mut self,
        to: &mut To<'_, S>,
        directory: &str,
    ) -> Result<(), Failure> {
        if self.open.len() >= to.settings.open_max.max(1) {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.used);
            if let Some(oldest) = oldest.map(|(directory, _)| directory.clone()) {
                self.finish(to.store, &oldest).await?;
            }
        }
        let place = self.next_place(to, directory);
        self.begun += 1;
        let open = Open {
            body: to.encode.begin(&place)?,
            place,
            output: None,
            written: 0,
            records: 0,
            used: self.uses,
        };
        self.open.insert(directory.to_owned(), open);
        Ok(())
    }

    /// Finishes one output and returns its size in bytes.
    async fn finish<S: Store<Output = O>>(
        &mut self,
        store: &mut S,
        directory: &str,
    ) -> Result<u64, Failure> {
        let Some(mut open) = self.open.remove(directory) else {
            return Ok(0);
        };
        self.held = self.held.saturating_sub(held(store, &open));
        if open.records == 0 {
            // All its records were rejected, so it holds nothing but a header and is dropped.
            return Ok(0);
        }
        drain(&mut open, store, &mut self.piece, true).await?;
        let output = match open.output {
            Some(output) => output,
            None => store.create(&open.place).await?,
        };
        let ticket = store.finish(output).await?;
        let Place {
            directory, file, ..
        } = open.place;
        self.finished.push(Named {
            directory,
            file,
            ticket,
            bytes: open.written,
            records: open.records,
        });
        Ok(open.written)
    }

    /// Finishes all outputs, returns them, and starts a new generation.
    pub(super) async fn end<S: Store<Output = O>>(
        &mut self,
        store: &mut S,
    ) -> Result<Vec<Named>, Failure> {
        let mut directories: Vec<_> = self.open.keys().cloned().collect();
        directories.sort();
        for directory in directories {
            self.finish(store, &directory).await?;
        }
        let finished = std::mem::take(&mut self.finished);
        let piece = std::mem::take(&mut self.piece);
        *self = Self {
            piece,
            ..Self::new()
        };
        Ok(finished)
    }
}

/// The settings, the chain, the store and the encoder that outputs need.
pub(super) struct To<'a, S> {
    pub(super) settings: &'a Settings,
    pub(super) chain: &'a Chain,
    pub(super) store: &'a mut S,
    pub(super) encode: &'a mut dyn Encode,
}

fn held<S: Store>(store: &S, open: &Open<S::Output>) -> usize {
    open.body.held() + open.output.as_ref().map_or(0, |output| store.held(output))
}

fn is_large<S: Store>(open: &Open<S::Output>, to: &To<'_, S>) -> bool {
    let size = to.settings.rotate.size.min(to.store.output_max());
    open.written + open.body.becomes() as u64 >= size
}

/// Writes the complete pieces of the body to the output. With `end`, also writes the rest.
async fn drain<S: Store>(
    open: &mut Open<S::Output>,
    store: &mut S,
    piece: &mut Vec<u8>,
    end: bool,
) -> Result<(), Failure> {
    piece.clear();
    open.body.drain(piece, end)?;
    if piece.is_empty() {
        return Ok(());
    }
    let output = match &mut open.output {
        Some(output) => output,
        none => none.insert(store.create(&open.place).await?),
    };
    store.append(output, piece).await?;
    open.written += piece.len() as u64;
    if piece.capacity() > 8 * PIECE_BYTES {
        *piece = Vec::new();
    }
    Ok(())
}

/// Returns the range of the first records in `range`: at most `most` records, but at least one.
fn some_records(batch: &Batch, range: &Range<usize>, most: u64) -> Range<usize> {
    if u64::from(batch.count) <= most || u64::from(count(batch, range)) <= most {
        return range.clone();
    }
    let most = usize::try_from(most.max(1)).unwrap_or(usize::MAX);
    let part = part(batch, range);
    let last = records(&part).nth(most - 1);
    let end = last.map_or(range.end, |(last, _)| range.start + last.end);
    range.start..end
}
