//! The reader of one file: from bytes on the disk to batches, in order, until it is told to stop or the file is gone.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Bytes are read into a pooled buffer that the batch then owns; the part of a line at its end is read again with the
//! next batch. Every read begins a little before the offset and checks those bytes against the mark, so a file that was
//! truncated is noticed even when it has grown past the offset again. It promises that everything before the settled mark
//! is settled, and that after a failure it goes on from there. How it waits is `rest.rs`, how it begins again `anew.rs`, how it
//! sends `send.rs`, how lines that are too long are dealt with `long_line.rs`.

use std::{
    fs, io,
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_pipeline::{condition::Condition, node::SourceContext, stop::Stop};
use millstream_record::{Buffer, FileId, Tag, Values};
use millstream_sys::disk::read_at;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    gzip::{Candidate, Inflater},
    identity::{Inode, Mark, Stat},
    pace::Pace,
    shared::Common,
    tracked::Tracked,
};
use crate::{
    flight::Flight,
    framing::{self, Found, Framer, TooLong},
};

/// Bytes of one read, and so of a batch: it stays in the second-level cache, and what a batch costs does not show.
pub(super) const READ_BYTES: usize = 512 << 10;
/// The same where `rate_max` is lower.
const READ_BYTES_MIN: usize = 4 << 10;

/// Where a reader begins.
#[derive(Clone, Debug)]
pub(super) enum Begin {
    /// At the first byte of the inode's `generation`th content; `appeared`: it was not there at the first start, so it
    /// may be a copy of another.
    Fresh { generation: u16, appeared: bool },
    /// At a mark of a known file.
    At(FileId, Mark),
    /// At a mark of a file that nobody knows yet: a durable channel is told first.
    Announce(FileId, Mark),
    /// A compressed file: at the first of these places that is there and fits, else at the beginning.
    /// The last: only if one of them fits.
    Gzip(Option<FileId>, Vec<Candidate>, bool),
}

/// The reader of one file.
pub(super) struct Reader {
    pub(super) common: Arc<Common>,
    pub(super) context: SourceContext,
    pub(super) stop: Stop,
    pub(super) tracked: Arc<Tracked>,
    pub(super) file: Option<fs::File>,
    pub(super) id: Option<FileId>,
    pub(super) generation: u16,
    /// May be a copy of another file.
    pub(super) appeared: bool,
    /// Where the next batch begins.
    pub(super) next: Mark,
    /// A mark that a durable channel does not know yet.
    announce: bool,
    pub(super) flight: Flight<Mark>,
    pub(super) tag: Tag,
    pub(super) values: Arc<Values>,
    /// Bytes of the next read: more than usual only for a long line.
    pub(super) read_bytes: usize,
    /// Bytes behind `next` that hold no newline.
    pub(super) partial: u64,
    /// Up to where the end of a line that is too long was looked for.
    pub(super) searched: u64,
    pub(super) pace: Pace,
    /// Makes the records, where they are more than plain lines.
    pub(super) framer: Option<Framer>,
    /// Since when a record is open that may be whole.
    pub(super) open_since: Option<Instant>,
    /// All that is left becomes records.
    pub(super) closing: bool,
    /// What the file is inflated by, if it is compressed, and the right to do so.
    pub(super) inflater: Option<Inflater>,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    candidates: Option<(Option<FileId>, Vec<Candidate>, bool)>,
    /// It could not be removed or renamed.
    pub(super) stays: bool,
    /// Holds while the file cannot be read.
    pub(super) failing: Option<Condition>,
}

/// What a look at the file came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something was sent, or there is more to read.
    On,
    /// There is no whole line left.
    End,
    /// The file holds another content than before.
    Replaced,
    /// What was sent has to be sent again.
    Again,
}

/// How a reader ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    /// Which inode it read.
    pub inode: Inode,
    /// Where the file goes on, if anything is known of it.
    pub left_at: Option<(FileId, Mark)>,
    /// False: it died.
    pub in_order: bool,
    /// Of a compressed file: all of so many bytes was read.
    pub compressed: Option<u64>,
}

impl Reader {
    pub(super) fn new(
        common: Arc<Common>,
        context: SourceContext,
        stop: Stop,
        tracked: Arc<Tracked>,
        begin: Begin,
    ) -> Self {
        let path = tracked.state().path.clone();
        let options = &common.options;
        let values = options.values_of(&path, &context.host);
        let is_gzip = matches!(begin, Begin::Gzip(..));
        let framer = Some(options.framer.clone()).filter(|framer| is_gzip || !framer.is_plain());
        let pace = Pace::new(common.lag.clone(), tracked.lag.clone());
        let mut candidates = None;
        let (id, next, generation, appeared, announce) = match begin {
            Begin::Gzip(id, places, only) => {
                candidates = Some((id, places, only));
                (None, Mark::default(), 0, false, false)
            }
            Begin::Fresh {
                generation,
                appeared,
            } => (None, Mark::default(), generation, appeared, false),
            Begin::At(id, mark) => (
                Some(id),
                mark,
                super::identity::generation(&id),
                false,
                false,
            ),
            Begin::Announce(id, mark) => (
                Some(id),
                mark,
                super::identity::generation(&id),
                false,
                true,
            ),
        };
        let mut reader = Self {
            tag: options.tag_of(&path, &context.name, &values),
            framer,
            open_since: None,
            closing: false,
            inflater: None,
            permit: None,
            candidates,
            stays: false,
            failing: None,
            context,
            stop,
            tracked,
            file: None,
            id: None,
            generation,
            appeared,
            next,
            announce,
            flight: Flight::new(next),
            values: Arc::new(values),
            read_bytes: READ_BYTES,
            partial: 0,
            searched: 0,
            pace,
            common,
        };
        reader.read_bytes = reader.first_read();
        if let Some(id) = id {
            reader.adopt(id);
        }
        reader
    }

    /// Reads until it is told to stop, or the file is gone or, with `--once`, at its end; then waits for the answers. Begins when
    /// `after` was read to its end.
    pub(super) async fn run(mut self, after: Option<Arc<Tracked>>) -> Ended {
        if let Some(after) = after {
            tokio::select! {
                () = after.read.notified() => {}
                () = self.stop.stopped() => {}
            }
        }
        if std::mem::take(&mut self.announce) {
            self.announce_start().await;
        }
        if let Some((id, candidates, only)) = self.candidates.take() {
            match self.start_gzip(id, &candidates).await {
                Ok(()) if only && self.id.is_none() => return self.ended(),
                Ok(()) if self.inflater.is_some() => {}
                Ok(()) => return self.ended(),
                Err(error) => {
                    let _ = self.troubled(&error).await;
                    return self.ended();
                }
            }
        }
        while !self.stop.is_stopped() {
            match self.flight.collect() {
                Ok(true) => self.publish(),
                Ok(false) => {}
                Err(_) => self.go_back().await,
            }
            if self.flight.is_full() {
                self.flight.answered().await;
                continue;
            }
            let step = self.step().await;
            if step.is_ok() {
                self.failing = None;
            }
            match step {
                Ok(Step::On) => self.take_turn().await,
                Ok(Step::End) => {
                    if self.rest().await {
                        break;
                    }
                }
                Ok(Step::Replaced) => self.begin_anew().await,
                Ok(Step::Again) => self.go_back().await,
                Err(error) => {
                    if self.troubled(&error).await {
                        break;
                    }
                }
            }
        }
        // What failed now is read again at the next start.
        let _ = self.flight.land().await;
        self.publish();
        self.ended()
    }

    fn ended(&self) -> Ended {
        let is_read = self.flight.settled() == self.next && !self.stop.is_stopped();
        Ended {
            inode: self.tracked.inode,
            left_at: self.id.map(|id| (id, self.flight.settled())),
            in_order: true,
            compressed: self
                .file_len()
                .filter(|_| is_read && self.inflater.is_some()),
        }
    }

    /// Bytes of a read; fewer where a file is read slowly.
    pub(super) fn first_read(&self) -> usize {
        match usize::try_from(self.common.options.rate_max) {
            Ok(rate @ 1..) => READ_BYTES.min(rate.max(READ_BYTES_MIN)),
            _ => READ_BYTES,
        }
    }

    /// Lets the consumer on this thread take the batch while it is in the cache, and other files have a turn. A reader
    /// that is as fast as the writer lets some lines gather.
    async fn take_turn(&mut self) {
        let rate = self.common.options.rate_max;
        if rate > 0 {
            let owed = std::mem::take(&mut self.pace.owed);
            self.pause(Duration::from_secs_f64(owed as f64 / rate as f64))
                .await;
        }
        let nap = if self.pace.at_end() {
            self.pace.woken()
        } else {
            None
        };
        match nap {
            Some(nap) => self.pause(nap).await,
            None => tokio::task::yield_now().await,
        }
    }

    /// Looks at the file and sends what whole lines there are, up to one batch.
    pub(super) async fn step(&mut self) -> io::Result<Step> {
        if self.file.is_none() && !self.open()? {
            return Ok(Step::End);
        }
        if let Some(inflater) = self.inflater.take() {
            return self.step_gzip(inflater).await;
        }
        let Some(file) = &self.file else {
            return Ok(Step::End);
        };
        let len = Stat::of(file)?.len;
        self.pace.lag(len.saturating_sub(self.next.offset));
        let Some(available) = len.checked_sub(self.next.offset) else {
            return Ok(Step::Replaced);
        };
        if available == self.partial && !self.closing && !self.is_quiet() {
            let same =
                self.next.covered() == 0 || Mark::read(file, self.next.offset)? == Some(self.next);
            return Ok(if same { Step::End } else { Step::Replaced });
        }
        if std::mem::take(&mut self.appeared) && self.is_copy(len).await? {
            return Ok(Step::On);
        }
        let covered = self.next.covered();
        let wanted = usize::try_from(available)
            .unwrap_or(usize::MAX)
            .min(self.read_bytes);
        // One byte more: a newline may have to be put at the end.
        let Some(mut buffer) = self.reserve(covered + wanted + 1).await else {
            return Ok(Step::End);
        };
        let Some(file) = &self.file else {
            return Ok(Step::End);
        };
        read_at(
            file,
            &mut buffer,
            covered + wanted,
            self.next.offset - covered as u64,
        )?;
        match buffer.get(..covered) {
            Some(before) if self.next.fits(before) => {}
            _ => return Ok(Step::Replaced),
        }
        let text = &buffer[covered..];
        if text.first() == Some(&0)
            && let Some(step) = self.pass_hole(text, len).await?
        {
            return Ok(step);
        }
        if self.framer.is_some() {
            let more = (text.len() as u64) < available;
            return self.frame_text(&buffer, covered, more).await;
        }
        match framing::find(text, self.common.options.line_max) {
            Found::Lines(bytes) => {
                let mark = Mark::new(self.next.offset + bytes as u64, &buffer[..covered + bytes]);
                self.send(buffer, covered..covered + bytes, mark).await?;
                Ok(Step::On)
            }
            Found::Partial if text.len() == wanted && (wanted as u64) < available => {
                self.read_bytes = (wanted * 2).min(self.common.options.line_max.saturating_add(1));
                Ok(Step::On)
            }
            Found::Partial => {
                self.partial = text.len() as u64;
                Ok(Step::End)
            }
            Found::TooLong => self.long_line(buffer, covered, len).await,
        }
    }

    /// A buffer; None when it is time to stop: memory may be short because nothing moves any more.
    pub(super) async fn reserve(&mut self, bytes: usize) -> Option<Buffer> {
        tokio::select! {
            biased;
            buffer = self.context.pool.reserve(bytes) => Some(buffer),
            () = self.stop.stopped() => None,
        }
    }

    /// What becomes of a line that is too long.
    pub(super) fn too_long(&self) -> TooLong {
        self.common.options.too_long
    }

    pub(super) fn path(&self) -> String {
        self.tracked.state().path.display().to_string()
    }
}
