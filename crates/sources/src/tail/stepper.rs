//! One step of the reader of a file: reads at the position, cuts the bytes into records and sends them.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Bytes are read into a pooled buffer that the batch then owns. A partial record at the end of a read is read again with the next
//! batch. The position is a mark: an offset and a checksum of the bytes before it. Every read begins a little before the offset,
//! and the reader compares these bytes with the checksum. So a truncation is noticed even if the file has grown past the position
//! again.

use std::{io, path::Path, sync::Arc, time::Instant};

use super::{
    begin::{Begin, GzipBegin},
    blank::{self, Behind, Blank},
    chunk::Chunk,
    context::FileContext,
    copy::{self, Copied},
    decoder::After,
    gzip::{self, GzipText},
    identity::{Mark, Stat, begins_otherwise, generation, is_text, read_start},
    join::{Predecessor, Rest},
    open_file::OpenFile,
    records::{Records, Step},
    tracked::Tracked,
    turns::{self, Turn},
};

/// Reads one file, step by step.
pub(super) struct Stepper {
    pub context: FileContext,
    pub file: OpenFile,
    /// The decompressed text of the file. None if the file is not compressed.
    pub gzip: Option<GzipText>,
    pub records: Records,
    /// The part of the file that is not written yet.
    pub blank: Blank,
    /// Whether the file may be a copy of another one.
    appeared: bool,
    /// The file that had this name before, until it is known whether a record begins in it.
    predecessor: Option<Predecessor>,
    /// The lines at the end of the previous file that belong to the first record of this one.
    rest: Option<Rest>,
}

impl Stepper {
    pub(super) fn new(
        context: FileContext,
        begin: &Begin,
        predecessor: Option<Predecessor>,
    ) -> Self {
        let (id, next, generation, appeared) = match begin {
            Begin::Gzip(_) => (None, Mark::default(), 0, false),
            Begin::Fresh {
                generation,
                appeared,
            } => (None, Mark::default(), *generation, *appeared),
            Begin::At(id, mark) | Begin::Announce(id, mark) => {
                (Some(*id), *mark, generation(id), false)
            }
        };
        let by_line = matches!(begin, Begin::Gzip(_));
        Self {
            file: OpenFile::new(context.common.meters.open_files.clone()),
            gzip: None,
            records: Records::new(&context, id, next, generation, by_line),
            blank: Blank::default(),
            appeared,
            predecessor,
            rest: None,
            context,
        }
    }

    /// Reads at the position, cuts the bytes into records and sends them, as one batch at most.
    pub(super) async fn step(&mut self) -> io::Result<Step> {
        if !self.open().await? {
            return Ok(Step::End);
        }
        if self.records.decoder.wants_start() && self.records.position.next().offset > 0 {
            self.read_start()?;
        }
        if self.gzip.is_some() {
            return self.step_gzip().await;
        }
        let Some(file) = self.file.get() else {
            return Ok(Step::End);
        };
        let next = self.records.position.next();
        let len = Stat::of(file)?.len;
        if !self.blank.is_waiting() {
            self.records.pace.lag(len.saturating_sub(next.offset));
        }
        let Some(available) = len.checked_sub(next.offset) else {
            return Ok(Step::Replaced);
        };
        if !self.records.decoder.is_worthwhile(available) {
            let is_same = next.covered() == 0 || Mark::read(file, next.offset)? == Some(next);
            return Ok(if is_same { Step::End } else { Step::Replaced });
        }
        if std::mem::take(&mut self.appeared) && self.is_copy(len).await? {
            return Ok(Step::Continue);
        }
        if self.rest.is_none() && self.predecessor.is_some() {
            self.ask_predecessor().await;
            return Ok(Step::Continue);
        }
        self.read(next, len, available).await
    }

    /// Reads the first bytes of the text, where the byte order mark is.
    fn read_start(&mut self) -> io::Result<()> {
        let Some(file) = self.file.get() else {
            return Ok(());
        };
        let start = match self.gzip {
            Some(_) => gzip::first_line(file, 2)?,
            None => read_start(file)?,
        };
        self.records.decoder.begins_with(&start);
        Ok(())
    }

    /// Reads at `next`, and sends what was read. `available` bytes follow `next` in the file, which has `len` bytes.
    async fn read(&mut self, next: Mark, len: u64, available: u64) -> io::Result<Step> {
        let Some(file) = self.file.get() else {
            return Ok(Step::End);
        };
        let mark = self.records.next_mark(file)?;
        let readable = mark.map_or(available, |mark| available.min(mark - next.offset));
        let most = match self.blank.is_waiting() {
            true => self.records.decoder.read_bytes().min(blank::READ_BYTES),
            false => self.records.decoder.read_bytes(),
        };
        let wanted = usize::try_from(readable).unwrap_or(usize::MAX).min(most);
        let Some(buffer) = self.context.reserve(Chunk::memory(next, wanted)).await else {
            return Ok(Step::End);
        };
        let Some(file) = self.file.get() else {
            return Ok(Step::End);
        };
        let Some(chunk) = Chunk::read(file, buffer, next, wanted)? else {
            return Ok(Step::Replaced);
        };
        // `shred` overwrites a renamed file from its start. If it did so during the read, it has changed the bytes before the mark
        // by now.
        let is_rotated = self.context.tracked.state().is_rotated();
        if is_rotated && next.covered() > 0 && Mark::read(file, next.offset)? != Some(next) {
            return Ok(Step::Replaced);
        }
        let text = chunk.text();
        let start = self.context.tracked.state().start;
        if next.offset == 0
            && start.is_some_and(|start| begins_otherwise(&start, text))
            && self.is_overwritten()
        {
            return Ok(Step::Replaced);
        }
        if next.offset == 0 {
            self.records.position.begins_with(text);
        }
        let is_complete = self.records.decoder.is_by_line() || text.len() == wanted;
        let after = match text.len() as u64 {
            bytes if mark == Some(next.offset + bytes) => After::Mark,
            // A short read means that the file is shorter than the file system reports. For plain lines, the text then counts as
            // the end of the file. Otherwise the reader would repeat the read immediately, without end.
            bytes if is_complete && bytes < available => After::More,
            _ => After::Nothing,
        };
        let unit = self.context.common.options.framer.unit();
        let nuls = blank::trailing(text, unit);
        if nuls > 0 || blank::is_first(text, unit) {
            return self.step_blank(chunk, nuls, after, len).await;
        }
        self.end_blank(available);
        self.send(chunk, after, len).await
    }

    /// Notes that there is text at the position, and that `unread` bytes follow it.
    fn end_blank(&mut self, unread: u64) {
        if self.blank.is_waiting() {
            self.blank.clear();
            self.records.pace.lag(unread);
        }
    }

    /// [`Stepper::read`] for a chunk that begins with a NUL, or ends with `nuls` NULs.
    async fn step_blank(
        &mut self,
        mut chunk: Chunk,
        nuls: usize,
        after: After,
        len: u64,
    ) -> io::Result<Step> {
        let Some(file) = self.file.get() else {
            return Ok(Step::End);
        };
        let text = chunk.text();
        let unit = self.context.common.options.framer.unit();
        let written = match blank::is_first(text, unit) {
            true => 0,
            false => text.len() - nuls,
        };
        let (truncated, was_truncated) = {
            let state = self.context.tracked.state();
            (state.before(), !state.previous.is_empty())
        };
        let at = self.records.position.next().offset + written as u64;
        let behind = self.blank.look(file, at, &text[written..], truncated);
        let unread = len - self.records.position.next().offset;
        match behind.await? {
            Behind::Nothing => self.records.pace.lag(written as u64),
            Behind::Hole(end) if written == 0 => {
                let wait = self.context.common.options.rotate_wait;
                if self.context.source.once || self.blank.may_skip(was_truncated, wait) {
                    self.blank.clear();
                    self.records.pace.lag(unread);
                    return self.records.skip_hole(file, end).await;
                }
                self.records.pace.lag(unread);
            }
            // Lines before a hole are sent first.
            Behind::Hole(_) if text[..written].contains(&b'\n') => self.records.pace.lag(unread),
            Behind::Hole(_) | Behind::Text => {
                self.end_blank(unread);
                return self.send(chunk, after, len).await;
            }
        }
        if written == 0 {
            self.records.decoder.set_partial(0);
            return Ok(Step::End);
        }
        chunk.truncate(written);
        self.send(chunk, After::Nothing, at).await
    }

    /// Sends the records at the start of a chunk. `len` is the length of the file.
    async fn send(&mut self, chunk: Chunk, after: After, len: u64) -> io::Result<Step> {
        let Some(file) = self.file.get() else {
            return Ok(Step::End);
        };
        let Some(rest) = self.rest.take() else {
            return self.records.send_chunk(file, chunk, after, len).await;
        };
        // If this fails, the reader of the previous file goes back, and is asked again.
        let (step, rest) = self.records.send_joined(file, rest, &chunk, after).await?;
        self.rest = rest;
        if self.rest.is_none() && step == Step::Continue {
            self.predecessor = None;
        }
        Ok(step)
    }

    /// Asks for the lines at the end of the previous file that are no whole record.
    async fn ask_predecessor(&mut self) {
        let Some(predecessor) = &self.predecessor else {
            return;
        };
        let mut answered = predecessor.ask();
        let rest = loop {
            tokio::select! {
                rest = &mut answered => break rest.ok().flatten(),
                () = self.context.stop.stopped() => return,
                // The reader of the previous file may need this turn.
                () = turns::wanted(), if self.file.get().is_some() => self.file.close(),
            }
        };
        let Some(rest) = rest else {
            self.predecessor = None;
            return;
        };
        self.records.decoder.resume(rest.remainder.clone());
        if rest.text.is_empty() {
            rest.token.settle();
            self.predecessor = None;
        } else {
            self.rest = Some(rest);
        }
    }

    /// Answers the reader of the next file: gives it the lines at the end of this file that are no whole record.
    pub(super) fn answer_successor(&mut self) {
        let Some(answer) = self.context.tracked.joint.take() else {
            return;
        };
        let file = self.file.get().filter(|_| self.gzip.is_none());
        let rest = match file.filter(|_| self.rest.is_none()) {
            // If the lines cannot be read, they are read and sent later.
            Some(file) => self.records.give_rest(file).unwrap_or_default(),
            None => None,
        };
        // If the other reader has ended, the token in the answer is dropped, and this reader goes back.
        let _ = answer.send(rest);
    }

    /// [`Stepper::step`] for a compressed file.
    async fn step_gzip(&mut self) -> io::Result<Step> {
        let next = self.records.position.next();
        let (Some(gzip), Some(file)) = (&mut self.gzip, self.file.get()) else {
            return Ok(Step::End);
        };
        if !gzip.is_at(next) {
            let mark = gzip.skip_to(file, next.offset, &self.context).await?;
            return Ok(match mark {
                Some(mark) if mark == next => Step::Continue,
                _ if self.context.stop.is_stopped() => Step::End,
                _ => Step::Replaced,
            });
        }
        let text_bytes = gzip.fill(file, next, self.records.decoder.read_bytes())?;
        let left = match gzip.damage() {
            None => Stat::of(file)?.len.saturating_sub(gzip.compressed_bytes()),
            Some(why) => {
                let path = self.context.path();
                let text = format_args!("{path} is damaged ({why}); the rest of it is lost");
                self.context.source.reporter.error("damaged", text);
                0
            }
        };
        self.records.pace.lag(left + text_bytes);
        if left == 0 && !self.records.decoder.is_worthwhile(text_bytes) {
            return Ok(Step::End);
        }
        self.records.send_text(file, gzip, left > 0).await
    }

    /// Sends the last record although its newline is missing. Returns false if the file has to be read once more.
    pub(super) async fn send_partial(&mut self) -> io::Result<bool> {
        if self.records.decoder.partial() == 0 || self.file.get().is_none() {
            return Ok(true);
        }
        let is_sent = match self.records.decoder.is_by_line() {
            true => {
                self.records.decoder.set_closing(true);
                let step = self.step().await;
                self.records.decoder.set_closing(false);
                step.map(|_| false)?
            }
            false => self.send_partial_line().await?,
        };
        if !is_sent {
            self.records.decoder.set_partial(0);
        }
        Ok(is_sent)
    }

    /// Sends the last line, which has no newline. Returns false if the file has grown or changed.
    async fn send_partial_line(&mut self) -> io::Result<bool> {
        let wanted = usize::try_from(self.records.decoder.partial())
            .unwrap_or(usize::MAX)
            .min(self.context.common.options.line_max);
        let next = self.records.position.next();
        let Some(buffer) = self.context.reserve(Chunk::memory(next, wanted + 1)).await else {
            return Ok(true);
        };
        let Some(file) = self.file.get() else {
            return Ok(true);
        };
        // Reading one byte more shows whether the line has grown.
        match Chunk::read(file, buffer, next, wanted + 1)? {
            Some(chunk) => self.records.send_partial_line(file, chunk, wanted).await,
            None => Ok(false),
        }
    }

    /// Whether everything that is written in the file was read.
    pub(super) fn is_read(&self) -> io::Result<bool> {
        let Some(file) = self.file.get() else {
            return Ok(true);
        };
        let read = match &self.gzip {
            Some(gzip) => gzip.compressed_bytes(),
            None => self.records.position.next().offset,
        };
        Ok(Stat::of(file)?.len == read || self.blank.begins_at(read))
    }

    /// Whether the renamed file was overwritten in place, because the bytes before the position have changed. A file that became
    /// shorter was truncated, and holds another content from now on.
    pub(super) fn is_overwritten(&self) -> bool {
        let tracked = &self.context.tracked;
        let (path, is_rotated) = {
            let state = tracked.state();
            (state.path.clone(), state.is_rotated())
        };
        // The scan may not have seen the new name yet.
        let is_rotated =
            is_rotated || !self.file.is_at(&path, tracked.inode) || self.is_shredded(&path);
        let next = self.records.position.next().offset;
        let stat = self.file.get().and_then(|file| Stat::of(file).ok());
        is_rotated && self.gzip.is_none() && stat.is_some_and(|stat| stat.len >= next)
    }

    /// Whether the file, which may have got its name by a rotation before a scan saw it, holds no text any more.
    fn is_shredded(&self, path: &Path) -> bool {
        let options = &self.context.common.options;
        let start = self.file.get().map(read_start);
        let is_garbage = start.is_some_and(|start| start.is_ok_and(|start| !is_text(&start)));
        options.framer.unit() == 1
            && is_garbage
            && options.patterns.originals(path).next().is_some()
    }

    /// Closes the file if another one needs the turn, this one has nothing to read, and it can be opened again. A removed file stays
    /// open, because it could not be opened again.
    pub(super) fn yield_file(&mut self) {
        let (path, is_rotated) = {
            let state = self.context.tracked.state();
            (state.path.clone(), state.rotated.is_some())
        };
        // The last line of a rotated file may have no newline. It is sent through the open file.
        let keeps_line = is_rotated && self.records.decoder.partial() > 0;
        if turns::are_wanted()
            && self.gzip.is_none()
            && !keeps_line
            && self.file.is_at(&path, self.context.tracked.inode)
        {
            self.file.close();
        }
    }

    /// Closes a file that has been open for a while although there is more to read, if another one needs the turn.
    pub(super) fn yield_turn(&mut self) {
        let is_current = !self.context.tracked.state().is_rotated();
        if is_current && self.file.had_turn() {
            self.yield_file();
        }
    }

    /// Opens the file unless it is open. Waits while too many files are open. Returns false if the path no longer leads to the file,
    /// and requests a scan that looks for the file.
    pub(super) async fn open(&mut self) -> io::Result<bool> {
        if self.file.get().is_some() {
            return Ok(true);
        }
        let turn = match Turn::now() {
            Some(turn) => turn,
            None => {
                let _waiting = self.context.common.waiting.begin();
                tokio::select! {
                    turn = Turn::wait() => turn,
                    () = self.context.stop.stopped() => return Ok(false),
                }
            }
        };
        let tracked = &self.context.tracked;
        let path = tracked.state().path.clone();
        let is_open = self.file.open(&path, tracked.inode, turn)?;
        if !is_open {
            self.context.common.scan_wanted.notify_one();
        }
        Ok(is_open)
    }

    /// Whether the file is a copy of a file that was truncated. If so, reading of the copy continues at the offset up to which the
    /// original was read. Also returns true if the source stops before the answer is known.
    async fn is_copy(&mut self, len: u64) -> io::Result<bool> {
        let Some(file) = self.file.get() else {
            return Ok(false);
        };
        match copy::find_original(&mut self.context, file, len).await? {
            Copied::No => Ok(false),
            Copied::Stopped => Ok(true),
            Copied::UpTo(mark, original) => {
                self.context.report_copy(mark.offset, &original);
                self.records.position.resume_at(mark);
                self.records.position.identify(self.file.get())?;
                self.context.common.signal.announcing();
                self.announce().await;
                Ok(true)
            }
        }
    }

    /// Finds the position at which reading of a compressed file begins. Returns false if the file is not read.
    pub(super) async fn begin_gzip(&mut self, begin: GzipBegin) -> io::Result<bool> {
        let permit = tokio::select! {
            permit = self.context.common.inflating.clone().acquire_owned() => permit.ok(),
            () = self.context.stop.stopped() => return Ok(false),
        };
        if !self.open().await? {
            return Ok(false);
        }
        let Some(file) = self.file.get() else {
            return Ok(false);
        };
        let gzip = self.gzip.insert(GzipText::new(permit));
        let since = self.records.pace.last_read;
        let found = gzip.find(file, &begin.candidates, since, &mut self.context);
        match found.await? {
            Some((mark, original)) if mark.offset > 0 => {
                if begin.id.is_none() {
                    self.context.report_copy(mark.offset, &original);
                }
                self.records.position.resume_at(mark);
                self.records.pace.last_read = Instant::now();
                match begin.id {
                    Some(id) => self.records.position.adopt(id),
                    None => drop(self.records.position.identify(self.file.get())?),
                }
                self.context.common.signal.announcing();
                self.announce().await;
            }
            _ => gzip.restart(),
        }
        Ok(!begin.only_candidates || self.records.position.id().is_some())
    }

    pub(super) async fn announce(&mut self) {
        self.records.announce(&mut self.context).await;
    }

    /// Starts over at the first byte, because the inode holds another content.
    pub(super) async fn begin_anew(&mut self) {
        if let Err((settled, sent)) = self.records.begin_anew().await {
            self.report_destroyed(settled, sent);
        }
        if let Some(gzip) = &mut self.gzip {
            gzip.restart();
        }
        self.blank = Blank::default();
        self.rest = None;
        // A script may have copied another log over this file.
        self.appeared = true;
    }

    /// Reports that the bytes `settled..sent` were dropped by a consumer and can no longer be read.
    pub(super) fn report_destroyed(&self, settled: u64, sent: u64) {
        let path = self.context.path();
        self.context.source.reporter.error(
            "destroyed",
            format_args!(
                "{path} was truncated or overwritten before its bytes {settled}..{sent} were settled; only a copy of it has them"
            ),
        );
    }

    /// Continues at the settled mark, because a batch was dropped.
    pub(super) async fn go_back(&mut self) {
        self.rest = None;
        let file = self.file.get().filter(|_| self.gzip.is_none());
        self.records.go_back(&mut self.context, file).await;
    }

    /// The file that is read.
    pub(super) fn tracked(&self) -> &Arc<Tracked> {
        &self.context.tracked
    }
}
