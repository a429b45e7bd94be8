//! Staging: what of a group is new, and the frames it becomes.
//!
//! `read -> decode -> send -> [keep] -> take -> process -> encode -> write -> settle`
//!
//! Step 1 and 2 of Keep: origins are looked up and what is kept already is cut out; the rest becomes frames in memory.

use std::{collections::HashSet, sync::Arc};

use bytes::{Bytes, BytesMut};
use millstream_record::{Batch, ChunkOrigin, Encoding, FileOrigin, Origin, Position, Time, Values};

use super::{
    Error,
    commit::{Log, Staged},
    frame::{Kind, Stamp, encode_head},
    ids::IdRecord,
    key::{Identity, Key, identity},
    window::{Known, seconds},
};

/// A group is no larger: one chunk of a peer is at most 256 MiB when decompressed.
const GROUP_BYTES_MAX: u64 = 1 << 30;

/// What is known so far of the group that is being sifted.
#[derive(Default)]
struct Sifted {
    /// Keys of chunks that earlier parts of the group bring, and that this part does.
    earlier: HashSet<Key, foldhash::fast::RandomState>,
    keys: Vec<Key>,
    files: Vec<FileOrigin>,
    /// Something in it waits for frames that are staged already.
    pending: bool,
}

/// A piece of a body that is kept already: start, end, records.
type Cut = (u32, u32, u32);

impl Log {
    /// Stages a group: everything that one source batch became, in order; it is kept whole or not at all. `graph` is a
    /// hash of what stands between source and channel where the source feeds several channels, else 0. `now` is the time of a clock that
    /// never jumps: ages are counted in it. Returns the seq
    /// at which the group is kept (compare with [`Log::kept`]); 0 if it is kept already. What came before is cut out.
    pub fn append(&mut self, group: Vec<Batch>, graph: u64, now: Time) -> Result<u64, Error> {
        self.alive()?;
        check_size(&group)?;
        self.keep_time = self.keep_time.max(now);
        let mut sifted = Sifted::default();
        let mut parts = Vec::with_capacity(group.len());
        for batch in group {
            let mut ids = Vec::new();
            if let Some(batch) = self.sift(batch, graph, &mut sifted, &mut ids) {
                parts.push((batch, ids));
            }
            sifted.earlier.extend(sifted.keys.drain(..));
        }
        for origin in &sifted.files {
            self.files.stage(origin);
        }
        if parts.is_empty() {
            return Ok(if sifted.pending { self.next_seq - 1 } else { 0 });
        }
        self.stage(parts, graph);
        Ok(self.next_seq - 1)
    }

    fn stage(&mut self, parts: Vec<(Batch, Vec<IdRecord>)>, graph: u64) {
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let window_end = self.window.end();
        let mut closed = self.window.take_closed();
        for (part, (batch, mut ids)) in (0..count).zip(parts) {
            let position = Position {
                epoch: self.epoch,
                seq: self.next_seq,
            };
            self.next_seq += 1;
            let stamp = Stamp {
                kind: Kind::Batch,
                position,
                keep_time: self.keep_time,
                graph,
                part,
                parts: count,
            };
            let mut head = Vec::new();
            encode_head(&mut head, &stamp, Some(&batch), &closed);
            let seconds = seconds(self.keep_time);
            let closed = std::mem::take(&mut closed).into_iter();
            let closed = closed.map(|connection| IdRecord::Closed {
                connection,
                seconds,
            });
            ids.splice(0..0, closed);
            self.staged.push_back(Staged {
                head,
                body: batch.body.clone(),
                position,
                ends_group: part + 1 == count,
                ids,
                files: files_of(&batch).copied().collect(),
                batch: Some(batch),
                window_end,
            });
        }
    }

    /// Drops what is staged and not kept, so that the log can be closed although there is no room; returns its records. Only
    /// [`Log::commit`] and [`Log::close`] may follow: the window takes chunks for repeats that are dropped here.
    pub fn drop_staged(&mut self) -> u64 {
        let kept = self.kept().seq;
        let mut records = 0;
        // What is staged again after a failed sync is kept already and stays.
        while let Some(frame) = self.staged.pop_back_if(|frame| frame.position.seq > kept) {
            self.next_seq = frame.position.seq;
            records += frame.batch.map_or(0, |batch| u64::from(batch.count));
            for id in frame.ids {
                if let IdRecord::Closed { connection, .. } = id {
                    self.window.put_back_closed(connection);
                }
            }
        }
        records
    }

    /// Cuts out of one part what is kept already; `None` if nothing is left of it.
    fn sift(
        &mut self,
        mut batch: Batch,
        graph: u64,
        sifted: &mut Sifted,
        ids: &mut Vec<IdRecord>,
    ) -> Option<Batch> {
        if batch.origins.is_empty() {
            return Some(batch);
        }
        let mut cuts: Vec<Cut> = Vec::new();
        let mut origins = Vec::with_capacity(batch.origins.len());
        for origin in std::mem::take(&mut batch.origins) {
            match origin {
                Origin::Chunk(chunk) => {
                    if self.is_new(&chunk, &batch, graph, sifted, ids) {
                        origins.push(Origin::Chunk(chunk));
                    } else {
                        self.repeats += 1;
                        cuts.push((chunk.start, chunk.end, chunk.records));
                    }
                }
                Origin::File(file) => match self.cut_file(&file, &batch, sifted) {
                    FileCut::Keep => {
                        sifted.files.push(file);
                        origins.push(Origin::File(file));
                    }
                    FileCut::Part(cut, begin) => {
                        cuts.push(cut);
                        sifted.files.push(file);
                        origins.push(Origin::File(FileOrigin { begin, ..file }));
                    }
                    FileCut::Drop => return None,
                },
            }
        }
        let emptied = !cuts.is_empty() && origins.is_empty();
        batch.origins = origins;
        if !cuts.is_empty() {
            cut_out(&mut batch, &mut cuts);
        }
        (!emptied || !batch.is_empty()).then_some(batch)
    }

    /// Looks a chunk up and notes it if it is new: one step, as nobody else has the window.
    fn is_new(
        &mut self,
        chunk: &ChunkOrigin,
        batch: &Batch,
        graph: u64,
        sifted: &mut Sifted,
        ids: &mut Vec<IdRecord>,
    ) -> bool {
        let key = self.keys.key(chunk, &batch.tag, graph);
        // One chunk may have become several parts.
        if sifted.earlier.contains(&key) {
            return true;
        }
        self.window.follow(chunk.connection);
        let identity = identity(&chunk.id);
        match self.window.look_up(&key, identity, chunk.connection) {
            Known::New => {}
            Known::Kept => return false,
            Known::Pending => {
                sifted.pending = true;
                return false;
            }
        }
        let seconds = seconds(self.keep_time);
        self.window.insert(key, identity, chunk.connection, seconds);
        sifted.keys.push(key);
        ids.push(IdRecord::Chunk {
            key,
            connection: chunk.connection,
            seconds,
            proved: identity == Identity::Unique,
        });
        true
    }

    /// What of a part of a file is kept already.
    fn cut_file(&self, file: &FileOrigin, batch: &Batch, sifted: &mut Sifted) -> FileCut {
        // A batch without a byte sets the position: a file that was found, or that was cut off.
        let Some(next) = self.files.next(&file.file) else {
            return FileCut::Keep;
        };
        if (batch.is_empty() && file.begin == file.next) || file.begin >= next {
            return FileCut::Keep;
        }
        if file.next <= next {
            sifted.pending |= self.files.is_staged(&file.file);
            return FileCut::Drop;
        }
        let known = next - file.begin;
        let exact =
            batch.encoding == Encoding::Lines && batch.body.len() as u64 == file.next - file.begin;
        let Some(piece) = usize::try_from(known)
            .ok()
            .filter(|_| exact)
            .and_then(|known| batch.body.get(..known))
            .filter(|piece| piece.ends_with(b"\n"))
        else {
            // It is no longer the file's bytes, so nobody can tell what is known: rather twice than not at all.
            return FileCut::Keep;
        };
        let lines = piece.iter().filter(|byte| **byte == b'\n').count();
        let (Ok(end), Ok(lines)) = (u32::try_from(piece.len()), u32::try_from(lines)) else {
            return FileCut::Keep;
        };
        FileCut::Part((0, end, lines), next)
    }
}

enum FileCut {
    Keep,
    /// This piece is kept already; the rest begins at that byte of the file.
    Part(Cut, u64),
    Drop,
}

pub(super) fn files_of(batch: &Batch) -> impl Iterator<Item = &FileOrigin> {
    batch.origins.iter().filter_map(|origin| match origin {
        Origin::File(file) => Some(file),
        Origin::Chunk(_) => None,
    })
}

fn check_size(group: &[Batch]) -> Result<(), Error> {
    let bytes = group
        .iter()
        .map(|batch| {
            let origins: usize = batch.origins.iter().map(origin_bytes).sum();
            let values: usize = text_bytes(&batch.values);
            (batch.len() + batch.tag.as_str().len() + values + origins) as u64
        })
        .sum();
    if bytes > GROUP_BYTES_MAX {
        return Err(Error::TooLarge { bytes });
    }
    // A head has a bound of its own; what is beyond it could be written and never read again.
    let head = group.iter().map(|batch| {
        let origins: usize = batch.origins.iter().map(origin_bytes).sum();
        batch.tag.as_str().len() + text_bytes(&batch.values) + origins
    });
    match head.max() {
        Some(head) if head > super::frame::HEAD_BYTES_MAX / 2 => {
            Err(Error::TooLarge { bytes: head as u64 })
        }
        _ => Ok(()),
    }
}

/// At least as many bytes as an origin takes in a head.
fn origin_bytes(origin: &Origin) -> usize {
    match origin {
        Origin::Chunk(chunk) => 64 + chunk.id.len(),
        Origin::File(_) => 64,
    }
}

fn text_bytes(values: &Arc<Values>) -> usize {
    values
        .iter()
        .map(|(name, value)| name.len() + value.len() + 8)
        .sum()
}

/// Takes pieces out of a body, and moves the origins behind them.
fn cut_out(batch: &mut Batch, cuts: &mut [Cut]) {
    cuts.sort_unstable();
    let mut rest = BytesMut::with_capacity(batch.len());
    let mut at = 0;
    for (start, end, records) in cuts.iter() {
        let (start, end) = (*start as usize, *end as usize);
        if let Some(piece) = batch.body.get(at..start) {
            rest.extend_from_slice(piece);
        }
        at = at.max(end.min(batch.body.len()));
        batch.count = batch.count.saturating_sub(*records);
    }
    rest.extend_from_slice(&batch.body[at..]);
    // Origins stand in the order of the body, and so do the cuts.
    let mut cuts = cuts.iter().peekable();
    let mut before = 0;
    for origin in &mut batch.origins {
        if let Origin::Chunk(chunk) = origin {
            while let Some((start, end, _)) = cuts.next_if(|cut| cut.1 <= chunk.start) {
                before += end - start;
            }
            chunk.start = chunk.start.saturating_sub(before);
            chunk.end = chunk.end.saturating_sub(before);
        }
    }
    batch.body = Bytes::from(rest);
}
