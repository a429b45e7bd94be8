//! The chain in front of a durable channel: runs where a source puts its batches.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> [process] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! A group of a source stays one group: the channel keeps all of its output, or nothing. Each part of a batch with its own origin (a
//! chunk, or a range of a file) passes through the chain alone, so the channel knows the output of each origin. Afterwards, small
//! batches with the same tag and values are joined again. If a chain filters a whole range of a file, an empty batch remains, so that the
//! channel learns that the range is done.
//!
//! Only if the chain makes very many batches of a group (each record of a large chunk gets another tag), they go to the channel as several
//! groups. Then each group holds a piece of a chunk with a separate key, so the channel recognizes the pieces when the chunk is sent
//! again, and keeps those that are missing.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use millstream_record::{Batch, Charge, ChunkOrigin, Encoding, FileId, FileOrigin, Origin};
use millstream_wire::{
    lines,
    msgpack::{Walker, write_bin},
    part_id::{PartId, id_text},
    split::before_mark,
};
use tokio::{sync, task::yield_now};

use super::{Chain, ChainMaker, Fed, emptied, portion::Portions};
use crate::{
    channel::{BoxFuture, Channel, Entry, Group, Note},
    delivery::Token,
    failure::Failure,
    outlet::{Feed, Outlet},
    output::{ByHead, Head},
    report::Reporter,
    threads,
};

/// The limit of the joined output of several parts, in bytes.
const JOINED_BYTES_MAX: usize = 1 << 20;

/// With more batches than this, the output for a group goes to the channel before the rest of the group is processed.
const OUTPUTS_MAX: usize = 16 << 10;

/// After this many bytes the chain yields to other tasks of the thread.
const TURN_BYTES: usize = 64 << 10;

/// A durable channel with a chain in front of it. When this is dropped, the channel and the ports for rejected records close, unless
/// other handles keep them open.
pub(crate) struct ChainChannel {
    feed: Arc<Feed>,
    maker: Arc<ChainMaker>,
    reporter: Reporter,
    /// For each data thread, the chain of each entry (a port that leads into the chain). `None` before the first batch and after a
    /// failure. A task holds the lock even while it waits for the threads of a processor, so that later groups of the same entry do not
    /// overtake; therefore the lock is asynchronous. Each entry has a separate lock: groups of another entry may pass no processor with
    /// threads, and should not wait.
    lanes: Vec<Lane>,
}

type Lane = Vec<sync::Mutex<Option<Chain>>>;

/// The output for a group.
#[derive(Default)]
struct Processed {
    /// The number of parts that were added.
    parts: usize,
    outputs: Vec<Output>,
    /// For each tag with its values, the index of its last output.
    last: ByHead<usize>,
    rejected: Vec<(Outlet, Batch)>,
    /// Count the memory of the outputs.
    charges: Vec<Charge>,
}

impl ChainChannel {
    /// Returns a channel whose batches pass through a chain first, on `lanes` data threads. Makes one chain immediately, and fails if a
    /// processor cannot run.
    pub(crate) fn new(
        feed: Arc<Feed>,
        maker: Arc<ChainMaker>,
        lanes: usize,
        reporter: Reporter,
    ) -> Result<Self, Failure> {
        let mut first = Some(maker.make()?);
        let entries = maker.plan().entries.len().max(1);
        let mut lane = || -> Lane {
            let chains = (0..entries).map(|_| sync::Mutex::new(first.take()));
            chains.collect()
        };
        Ok(Self {
            lanes: (0..lanes.max(1)).map(|_| lane()).collect(),
            feed,
            maker,
            reporter,
        })
    }

    fn channel(&self) -> &dyn Channel {
        self.feed.channel()
    }

    /// Passes the batches of a group through the chain. Returns the output that has not gone to the channel yet.
    async fn process(
        &self,
        entry: usize,
        batches: Vec<Batch>,
        token: &Token,
    ) -> Result<Processed, Failure> {
        let lane = &self.lanes[threads::lane() % self.lanes.len()];
        let mut place = lane[entry % lane.len()].lock().await;
        // The chain is put back only after a success, so that a failed chain is not used again.
        let mut chain = match place.take() {
            Some(chain) => chain,
            None => self.maker.make()?,
        };
        // Sources that can send a group again name its origin.
        chain.set_comes_again(batches.iter().all(|batch| !batch.origins.is_empty()));
        let (mut processed, mut bytes) = (Processed::default(), 0);
        let mut piece = ChunkPiece::default();
        for batch in batches {
            for part in parts(batch, |file| self.channel().file_mark(file)) {
                if !piece.continues_with(&part) {
                    piece.end_chunk(&mut processed);
                    piece = ChunkPiece::of(&part);
                }
                if processed.is_large() {
                    piece.end(&mut processed);
                    processed = self.relieve(processed, token).await;
                }
                let mut portions = Portions::of(part.batch.clone());
                while !portions.is_done() {
                    if bytes >= TURN_BYTES {
                        bytes = 0;
                        yield_now().await;
                    }
                    if part.files.is_empty() && processed.is_large() {
                        piece.end(&mut processed);
                        processed = self.relieve(processed, token).await;
                    }
                    let (batch, first) = portions.take();
                    bytes += batch.len();
                    piece.records.end = piece.records.end.saturating_add(batch.count);
                    let fed = chain.feed(entry, &batch, first).await?;
                    processed.add(&part, fed);
                }
                processed.end_part(part);
            }
        }
        piece.end_chunk(&mut processed);
        *place = Some(chain);
        Ok(processed)
    }

    /// Lets the output go to the channel.
    async fn relieve(&self, processed: Processed, token: &Token) -> Processed {
        let parts = processed.parts;
        self.keep(processed, Token::clone(token)).await;
        Processed {
            parts,
            ..Processed::default()
        }
    }

    async fn accept(&self, group: Group) {
        let Group {
            batches,
            token,
            entry,
        } = group;
        match self.process(entry.number, batches, &token).await {
            Ok(processed) => self.keep(processed, token).await,
            Err(failure) => {
                // Dropping the token fails the receipt, and the source sends the group again.
                let text = format_args!("{failure}; the group is not accepted");
                self.reporter.error("processor", text);
            }
        }
    }

    async fn keep(&self, mut processed: Processed, token: Token) {
        for (outlet, batch) in std::mem::take(&mut processed.rejected) {
            outlet.send_with(batch, Token::clone(&token)).await;
        }
        let _charges = std::mem::take(&mut processed.charges);
        let batches = processed.batches();
        if batches.is_empty() {
            return token.settle();
        }
        let group = Group {
            batches,
            token,
            entry: Entry::default(),
        };
        self.feed.put(group).await;
    }
}

impl Channel for ChainChannel {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        Box::pin(self.accept(group))
    }

    fn note(&self, note: Note) {
        self.channel().note(note);
    }

    fn sync(&self, token: Token) {
        self.channel().sync(token);
    }

    fn is_full(&self) -> bool {
        self.channel().is_full()
    }

    /// Does nothing: the channel closes when its last feed is dropped.
    fn close(&self) {}

    fn give_up_waiting(&self) {
        self.channel().give_up_waiting();
    }

    fn file_origins(&self) -> Option<Vec<(FileId, u64)>> {
        self.channel().file_origins()
    }

    fn file_mark(&self, file: &FileId) -> Option<u64> {
        self.channel().file_mark(file)
    }

    fn id(&self) -> Option<u128> {
        self.channel().id()
    }
}

/// A part of a batch that passes through the chain alone.
struct Part {
    /// The records, without origins.
    batch: Batch,
    /// The chunk that these records form; `None` if they have no chunk id.
    chunk: Option<ChunkOrigin>,
    /// The ranges of files that the records come from.
    files: Vec<FileOrigin>,
}

/// Divides a batch by its origins. `mark` returns the offset up to which the channel already keeps a file. If this offset is within
/// the batch's range of the file, the range is divided there. Without this division, the channel could not tell, after processing,
/// which output belongs to bytes that it already keeps.
fn parts(mut batch: Batch, mark: impl Fn(&FileId) -> Option<u64>) -> Vec<Part> {
    let (mut chunks, mut files) = (Vec::new(), Vec::new());
    for origin in std::mem::take(&mut batch.origins) {
        match origin {
            Origin::Chunk(chunk) => chunks.push(chunk),
            Origin::File(file) => files.push(file),
        }
    }
    if chunks.is_empty() {
        return match files[..] {
            [file] => parts_of_file(batch, file, mark(&file.file)),
            _ => vec![Part {
                batch,
                chunk: None,
                files,
            }],
        };
    }
    let (mut parts, mut at) = (Vec::new(), 0);
    let mut part = |range: Range<usize>, count, chunk| {
        parts.push(Part {
            batch: slice(&batch, range, count),
            chunk,
            files: files.clone(),
        });
    };
    for chunk in chunks {
        let range = chunk.start as usize..chunk.end as usize;
        if at < range.start {
            // Records without a chunk id stand between the chunks.
            part(at..range.start, records(&batch, at..range.start), None);
        }
        at = range.end;
        part(range, chunk.records, Some(chunk));
    }
    if at < batch.len() {
        part(at..batch.len(), records(&batch, at..batch.len()), None);
    }
    parts
}

/// Divides a range of a file at `mark`, the offset up to which the channel keeps the file.
fn parts_of_file(batch: Batch, file: FileOrigin, mark: Option<u64>) -> Vec<Part> {
    let whole = |batch, file| Part {
        batch,
        chunk: None,
        files: vec![file],
    };
    let mark = mark.filter(|mark| file.begin < *mark && *mark < file.next);
    let before = mark.and_then(|mark| Some((mark, before_mark(&batch, &file, mark)?)));
    match before {
        Some((mark, (at, records))) => {
            let first = slice(&batch, 0..at, records);
            let second = slice(
                &batch,
                at..batch.len(),
                batch.count.saturating_sub(first.count),
            );
            vec![
                whole(first, FileOrigin { next: mark, ..file }),
                whole(
                    second,
                    FileOrigin {
                        begin: mark,
                        ..file
                    },
                ),
            ]
        }
        None => vec![whole(batch, file)],
    }
}

/// The number of records in a range of a batch.
fn records(batch: &Batch, range: Range<usize>) -> u32 {
    let bytes = &batch.body[range];
    match batch.encoding {
        Encoding::Lines => lines::count(bytes),
        Encoding::Packed => {
            let mut walker = Walker::new();
            // The source has validated every entry.
            let _ = walker.walk(bytes);
            walker.entries()
        }
    }
}

fn slice(batch: &Batch, range: Range<usize>, count: u32) -> Batch {
    Batch {
        body: batch.body.slice(range),
        count,
        origins: Vec::new(),
        ..batch.clone()
    }
}

/// The records of a chunk whose output goes to the channel in one group. The output of a chunk may go there in several groups. A range
/// of a file is kept as a whole; the sources that have ranges send small batches.
#[derive(Default)]
struct ChunkPiece {
    chunk: Option<ChunkOrigin>,
    /// Whether an earlier piece of the chunk has gone to the channel.
    is_later: bool,
    /// The records of the chunk that belong to the piece.
    records: Range<u32>,
}

impl ChunkPiece {
    fn of(part: &Part) -> Self {
        Self {
            chunk: part.chunk.clone(),
            is_later: false,
            records: 0..0,
        }
    }

    /// Whether the part belongs to the same chunk. A chunk of another Millstream holds a batch for each tag.
    fn continues_with(&self, part: &Part) -> bool {
        let (Some(own), Some(next)) = (&self.chunk, &part.chunk) else {
            return false;
        };
        own.checksum == next.checksum && own.id == next.id
    }

    /// Gives the output for the piece the key of the piece, and begins the next one, unless the piece has no record yet. The key
    /// depends on the range of the records: if the chunk is divided in another way when it comes again, its pieces are not taken for
    /// pieces that are kept.
    fn end(&mut self, processed: &mut Processed) {
        let Range { start, end } = self.records;
        let Some(own) = self.chunk.as_ref().filter(|_| start < end) else {
            return;
        };
        let (id, checksum) = (
            piece_id(&own.id, start, end),
            piece_checksum(own.checksum, start, end),
        );
        let outputs = processed.outputs.iter_mut();
        for origin in outputs.flat_map(|output| &mut output.batch.origins) {
            if let Origin::Chunk(chunk) = origin
                && chunk.checksum == own.checksum
                && chunk.id == own.id
            {
                (chunk.id, chunk.checksum) = (id.clone(), checksum);
            }
        }
        self.is_later = true;
        self.records = end..end;
    }

    /// Called after the last record of the chunk.
    fn end_chunk(&mut self, processed: &mut Processed) {
        if self.is_later {
            self.end(processed);
        }
    }
}

/// The id of a piece of the chunk with this id. A channel recognizes a part of a position of another Millstream by its id alone, so a
/// piece needs another id. It keeps all other ids, because it distinguishes their pieces by the checksum.
fn piece_id(id: &Bytes, start: u32, end: u32) -> Bytes {
    let text = id_text(id).filter(|_| PartId::of_chunk(id).is_some());
    let Some(text) = text else {
        return id.clone();
    };
    let piece = format!(" records {start}-{end}");
    let mut id = Vec::with_capacity(text.len() + piece.len() + 5);
    write_bin(&mut id, &[text, piece.as_bytes()].concat());
    id.into()
}

/// The checksum that stands for a piece of a chunk with this checksum. Channels store it, so it must never change.
fn piece_checksum(checksum: u32, start: u32, end: u32) -> u32 {
    let range = u64::from(start) << 32 | u64::from(end);
    let mixed = (range ^ (range >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    checksum ^ (mixed >> 32) as u32
}

impl Processed {
    fn is_large(&self) -> bool {
        self.outputs.len() > OUTPUTS_MAX
    }

    /// Adds output of a part, with the origins of the part.
    fn add(&mut self, part: &Part, fed: Fed) {
        let Fed {
            batches,
            rejected,
            charge,
        } = fed;
        self.rejected.extend(rejected);
        self.charges.extend(charge);
        let number = self.parts;
        for mut batch in batches {
            let chunk = part.chunk.as_ref().map(|chunk| ChunkOrigin {
                start: 0,
                end: length(&batch.body),
                records: batch.count,
                ..chunk.clone()
            });
            batch.origins = chunk.map(Origin::Chunk).into_iter().collect();
            // A channel keeps or skips a range of a file as a whole batch, so such a batch is never joined with another one.
            let is_alone = !part.files.is_empty();
            batch
                .origins
                .extend(part.files.iter().copied().map(Origin::File));
            // Only the last output with this tag may grow; otherwise records of the tag would change their order.
            match self.last.get(&Head::of(&batch)).copied() {
                Some(at) if !is_alone && self.outputs[at].takes(&batch) => {
                    self.outputs[at].join(batch, number);
                }
                _ => self.push(Output {
                    is_alone,
                    ..Output::of(batch, number)
                }),
            }
        }
    }

    /// Ends a part. If nothing is left of a range of a file, an empty batch stands for it.
    fn end_part(&mut self, part: Part) {
        let number = self.parts;
        self.parts += 1;
        let has_output = self.outputs.last().is_some_and(|last| last.part == number);
        if !has_output && !part.files.is_empty() {
            let mut empty = emptied(part.batch);
            empty.origins = part.files.into_iter().map(Origin::File).collect();
            self.push(Output::of(empty, number));
        }
    }

    fn push(&mut self, output: Output) {
        let head = Head::of(&output.batch);
        self.last.insert(head, self.outputs.len());
        self.outputs.push(output);
    }

    fn batches(self) -> Vec<Batch> {
        self.outputs.into_iter().map(Output::close).collect()
    }
}

/// An output batch, and the batches joined to it.
struct Output {
    batch: Batch,
    /// The bodies of `batch` and of all batches joined to it. Empty while none is joined.
    body: Vec<u8>,
    is_alone: bool,
    /// The number of the part that the last records come from.
    part: usize,
}

impl Output {
    /// A batch of the part with this number.
    fn of(batch: Batch, part: usize) -> Self {
        Self {
            batch,
            body: Vec::new(),
            is_alone: true,
            part,
        }
    }

    fn takes(&self, other: &Batch) -> bool {
        let own = &self.batch;
        !self.is_alone
            && own.encoding == other.encoding
            && own.received == other.received
            && self.len() + other.len() <= JOINED_BYTES_MAX
    }

    fn len(&self) -> usize {
        self.batch.len().max(self.body.len())
    }

    /// Appends a batch of the part with this number.
    fn join(&mut self, other: Batch, part: usize) {
        if self.body.is_empty() {
            self.body.extend_from_slice(&self.batch.body);
        }
        let start = length(&self.body);
        self.body.extend_from_slice(&other.body);
        self.batch.count += other.count;
        self.batch.plain &= other.plain;
        for origin in other.origins {
            match origin {
                Origin::Chunk(chunk) => {
                    let (start, end) = (start + chunk.start, start + chunk.end);
                    match self.batch.origins.last_mut() {
                        // A chunk must have only one range in a batch: the channel would treat a second range as a repeat.
                        Some(Origin::Chunk(last)) if self.part == part => {
                            last.end = end;
                            last.records += chunk.records;
                        }
                        _ => {
                            let chunk = ChunkOrigin {
                                start,
                                end,
                                ..chunk
                            };
                            self.batch.origins.push(Origin::Chunk(chunk));
                        }
                    }
                }
                file => self.batch.origins.push(file),
            }
        }
        self.part = part;
    }

    fn close(mut self) -> Batch {
        if !self.body.is_empty() {
            self.batch.body = Bytes::from(self.body);
        }
        self.batch
    }
}

/// The length of a batch's body. The limit on messages keeps it below 4 GiB.
fn length(body: &[u8]) -> u32 {
    u32::try_from(body.len()).unwrap_or(u32::MAX)
}
