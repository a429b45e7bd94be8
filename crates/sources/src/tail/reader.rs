//! The reader of one file: turns bytes on the disk into batches, in order, until it stops or the file is gone.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Bytes are read into a pooled buffer that the batch then owns. A partial record at the end of a read is read again with the next
//! batch. The position is a mark: an offset and a checksum of the bytes before it. Every read begins a little before the offset,
//! and the reader compares these bytes with the checksum. So a truncation is noticed even if the file has grown past the position
//! again. After a failure, the reader continues at the settled mark, the mark before which everything is settled.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_pipeline::condition::{Condition, Trouble};
use tokio::time::sleep_until;

use super::{
    begin::{Begin, GzipBegin},
    chunk::Chunk,
    context::FileContext,
    copy::{self, Copied},
    decoder::After,
    done::WhenDone,
    ends::Ended,
    gzip::GzipText,
    hole::hole_end,
    identity::{Mark, Stat, generation},
    open_file::OpenFile,
    records::{Records, Step},
    tracked::Tracked,
};

/// How long the reader waits before it retries a file that cannot be read.
const TROUBLE_WAIT: Duration = Duration::from_secs(5);
/// A file without kernel notifications is checked again after a tenth of the time for which it has been idle.
const LOOK_SHARE: u32 = 10;
/// The shortest interval between two checks of such a file.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The reader of one file.
pub(super) struct Reader {
    context: FileContext,
    file: OpenFile,
    /// The decompressed text of the file. None if the file is not compressed.
    gzip: Option<GzipText>,
    records: Records,
    /// Whether the file may be a copy of another one.
    appeared: bool,
    /// Whether `when_done` is no longer applied to the file, because the file is damaged or incomplete, or because `when_done`
    /// failed.
    stays: bool,
    /// Raised while the file cannot be read.
    failing: Option<Condition>,
}

impl Reader {
    /// Reads a file until the source stops or no more lines are expected in the file. With `--once`, reads it to its end. Then
    /// waits for the receipts (the answers of the channel) of the batches in flight. Begins only after the file `after` was read
    /// to its end.
    pub(super) async fn run(
        context: FileContext,
        begin: Begin,
        after: Option<Arc<Tracked>>,
    ) -> Ended {
        let mut reader = Self::new(context, &begin);
        if let Some(after) = after {
            tokio::select! {
                () = after.read.notified() => {}
                () = reader.context.stop.stopped() => {}
            }
        }
        match begin {
            Begin::Fresh { .. } | Begin::At(..) => {}
            Begin::Announce(..) => reader.announce().await,
            Begin::Gzip(begin) => match reader.begin_gzip(begin).await {
                Ok(true) => {}
                Ok(false) => return reader.ended(),
                Err(error) => {
                    // Without `gzip` the file does not count as read, so the next scan gives it a reader again.
                    reader.gzip = None;
                    let _ = reader.report_failure(&error).await;
                    return reader.ended();
                }
            },
        }
        reader.read_all().await
    }

    fn new(context: FileContext, begin: &Begin) -> Self {
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
            appeared,
            stays: false,
            failing: None,
            context,
        }
    }

    async fn read_all(mut self) -> Ended {
        while !self.context.stop.is_stopped() {
            if self.records.position.collect().is_err() {
                self.go_back().await;
            }
            if self.records.position.is_full() {
                self.records.position.answered().await;
                continue;
            }
            let step = self.step().await;
            if step.is_ok() {
                self.failing = None;
            }
            let is_done = match step {
                Ok(Step::Continue) => {
                    self.yield_turn().await;
                    false
                }
                Ok(Step::End) => self.wait_at_end().await,
                Ok(Step::Replaced) => {
                    self.begin_anew().await;
                    false
                }
                Ok(Step::Resend) => {
                    self.go_back().await;
                    false
                }
                Err(error) => self.report_failure(&error).await,
            };
            if is_done {
                break;
            }
        }
        // If a batch is dropped now, its records are read again at the next start.
        let _ = self.records.position.land().await;
        self.records.position.publish();
        self.ended()
    }

    fn ended(&self) -> Ended {
        let is_read = self.records.position.is_settled() && !self.context.stop.is_stopped();
        Ended {
            inode: self.context.tracked.inode,
            left_at: self
                .records
                .position
                .id()
                .map(|id| (id, self.records.position.settled())),
            in_order: true,
            compressed: self.file.len().filter(|_| is_read && self.gzip.is_some()),
        }
    }

    /// Reads at the position, cuts the bytes into records and sends them, as one batch at most.
    async fn step(&mut self) -> io::Result<Step> {
        if !self.open()? {
            return Ok(Step::End);
        }
        if self.gzip.is_some() {
            return self.step_gzip().await;
        }
        let Some(file) = self.file.get() else {
            return Ok(Step::End);
        };
        let next = self.records.position.next();
        let len = Stat::of(file)?.len;
        self.records.pace.lag(len.saturating_sub(next.offset));
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
        let Some(file) = self.file.get() else {
            return Ok(Step::End);
        };
        let mark = self.records.next_mark(file)?;
        let readable = mark.map_or(available, |mark| available.min(mark - next.offset));
        let wanted = usize::try_from(readable)
            .unwrap_or(usize::MAX)
            .min(self.records.decoder.read_bytes());
        let Some(buffer) = self.context.reserve(Chunk::memory(next, wanted)).await else {
            return Ok(Step::End);
        };
        let Some(file) = self.file.get() else {
            return Ok(Step::End);
        };
        let Some(chunk) = Chunk::read(file, buffer, next, wanted)? else {
            return Ok(Step::Replaced);
        };
        let text = chunk.text();
        if text.first() == Some(&0) {
            let truncated = self.context.tracked.state().before();
            if let Some(end) = hole_end(file, next.offset, text, len, truncated)? {
                return self.records.skip_hole(file, end).await;
            }
        }
        let is_complete = self.records.decoder.is_by_line() || text.len() == wanted;
        let after = match text.len() as u64 {
            bytes if mark == Some(next.offset + bytes) => After::Mark,
            // A short read means that the file is shorter than the file system reports. For plain lines, the text then counts as
            // the end of the file. Otherwise the reader would repeat the read immediately, without end.
            bytes if is_complete && bytes < available => After::More,
            _ => After::Nothing,
        };
        self.records.send_chunk(file, chunk, after, len).await
    }

    /// [`Reader::step`] for a compressed file.
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

    /// Yields, so that the consumer on this thread takes the batch while it is in the cache, and other files get a turn. With
    /// `rate_max`, first waits, to keep the rate below this limit. If the reader keeps up with a busy writer, it naps (`pace.rs`),
    /// so that the next read finds several lines.
    async fn yield_turn(&mut self) {
        let rate = self.context.common.options.rate_max;
        if rate > 0 {
            let owed = std::mem::take(&mut self.records.pace.owed);
            let wait = Duration::from_secs_f64(owed as f64 / rate as f64);
            self.context.pause(wait).await;
        }
        let nap = match self.records.pace.at_end() {
            true => self.records.pace.woken(),
            false => None,
        };
        match nap {
            Some(nap) => self.context.pause(nap).await,
            None => tokio::task::yield_now().await,
        }
    }

    /// Waits, at the end of the file, until there may be a whole record. Returns true if the reader is done with the file.
    ///
    /// The kernel reports the next write, so waiting costs nothing. The reader ends once no path that matches leads to the file,
    /// the file was not written for `rotate_wait`, and everything that was sent is settled. If the file grows later under a name
    /// that log rotation gave it (`app.log.1`), a scan finds it again.
    async fn wait_at_end(&mut self) -> bool {
        self.context.tracked.read.notify_one();
        let rotated = self.context.tracked.state().rotated;
        let last_read = self.records.pace.last_read;
        let since = match self.gzip {
            // The reader of a compressed file ends even if the path matches. A compressed file that is not being written is
            // complete. This reader holds a permit to decompress, for which other readers wait.
            Some(_) => Some(self.file.written_at().unwrap_or(last_read)),
            None => rotated
                .or(self.has_to_be_done().then_some(last_read))
                // The last write counts, too: it may have written a line without its newline, which is not read yet.
                .map(|since| {
                    since
                        .max(last_read)
                        .max(self.file.written_at().unwrap_or(since))
                }),
        };
        let options = &self.context.common.options;
        let until = since.map(|since| since + options.rotate_wait);
        if self.context.source.once || until.is_some_and(|until| until <= Instant::now()) {
            return self.send_partial().await && self.is_settled().await && self.finish().await;
        }
        let mut until = until
            .into_iter()
            .chain(self.records.decoder.quiet_at())
            .min();
        if let Some(file) = self.file.get() {
            let alarms = self.context.common.alarms.as_ref();
            match alarms.map(|alarms| alarms.set(file, &self.context.tracked.alarm)) {
                // The alarm was not set before, so a write may have been missed. The file is read once more.
                Some(Ok(true)) => return false,
                Some(Ok(false)) if rotated.is_none() && self.records.position.is_settled() => {
                    self.file.close_if_old();
                }
                Some(Ok(false)) => {}
                // The kernel sends no notifications for this file, so it is polled.
                Some(Err(_)) | None => {
                    let idle = last_read.elapsed() / LOOK_SHARE;
                    let seldom = options.rescan.max(LOOK_EVERY);
                    let look = Instant::now() + idle.clamp(LOOK_EVERY, seldom);
                    until = Some(until.map_or(look, |until| until.min(look)));
                }
            }
        }
        self.wait(until).await;
        false
    }

    /// Waits for the alarm (the kernel has reported a write), a receipt, the stop signal, or the time `until`.
    async fn wait(&mut self, until: Option<Instant>) {
        let deadline = until.unwrap_or_else(Instant::now).into();
        let woken = tokio::select! {
            () = self.context.tracked.alarm.wake.notified() => true,
            () = self.context.stop.stopped() => false,
            () = self.records.position.answered() => false,
            () = sleep_until(deadline), if until.is_some() => false,
        };
        if let Some(nap) = self.records.pace.woken().filter(|_| woken) {
            self.context.pause(nap).await;
        }
    }

    /// Sends the last record although its newline is missing. Returns false if the file has to be read once more.
    async fn send_partial(&mut self) -> bool {
        if self.records.decoder.partial() == 0 || self.file.get().is_none() {
            return true;
        }
        let sent = match self.records.decoder.is_by_line() {
            true => {
                self.records.decoder.set_closing(true);
                let step = self.step().await;
                self.records.decoder.set_closing(false);
                step.map(|_| false)
            }
            false => self.send_partial_line().await,
        };
        match sent {
            Ok(true) => true,
            Ok(false) => {
                self.records.decoder.set_partial(0);
                false
            }
            Err(error) => self.report_failure(&error).await,
        }
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

    fn has_to_be_done(&self) -> bool {
        self.context.common.options.when_done != WhenDone::Keep && !self.stays
    }

    /// Whether everything that was sent is settled. If not, waits for a receipt. The file stays open until everything is settled:
    /// if a batch is dropped, its records are read again, and a removed file could not be opened again.
    async fn is_settled(&mut self) -> bool {
        let is_settled = self.records.position.is_settled();
        if !is_settled {
            self.wait(None).await;
        }
        is_settled
    }

    /// Finishes a file that was settled completely and not written for a while: applies `when_done`. Returns true if the reader is
    /// done with the file.
    async fn finish(&mut self) -> bool {
        if let Some(gzip) = self.gzip.as_ref().filter(|gzip| !gzip.is_complete()) {
            // The file stays, because its damaged part may hold further records, or further records are not written yet.
            self.stays = true;
            if gzip.damage().is_none() {
                let path = self.context.path();
                let text = format_args!(
                    "{path} ends before its last gzip member does; the rest is read when it is written"
                );
                self.context.source.reporter.warn("incomplete", text);
            }
        }
        if !self.has_to_be_done() || self.context.tracked.state().rotated.is_some() {
            return true;
        }
        let path = self.context.tracked.state().path.clone();
        match self.is_read_under(&path) {
            Ok(true) => {}
            Ok(false) => {
                // The file has grown, or a scan must find its new name.
                self.wait(Some(Instant::now() + LOOK_EVERY)).await;
                return false;
            }
            Err(error) => return self.report_failure(&error).await,
        }
        if let Err(error) = self.context.common.options.when_done.apply(&path) {
            let path = path.display();
            let text = format_args!("cannot remove or rename {path}: {error}; it stays");
            self.context.source.reporter.error("when_done", text);
            self.stays = true;
            return self.context.source.once;
        }
        self.context.common.meters.done.add(1);
        // Lines that were written just before the removal are still read, through the open handle.
        !matches!(self.is_read(), Ok(false))
    }

    /// Whether the path still leads to the file, and all of it was read.
    fn is_read_under(&mut self, path: &Path) -> io::Result<bool> {
        let is_open = self.open()?;
        Ok(is_open && Stat::at(path)?.inode == self.context.tracked.inode && self.is_read()?)
    }

    fn is_read(&self) -> io::Result<bool> {
        let Some(file) = self.file.get() else {
            return Ok(true);
        };
        let read = match &self.gzip {
            Some(gzip) => gzip.compressed_bytes(),
            None => self.records.position.next().offset,
        };
        Ok(Stat::of(file)?.len == read)
    }

    /// Opens the file unless it is open. Returns false if the path no longer leads to the file, and requests a scan that looks for
    /// the file.
    fn open(&mut self) -> io::Result<bool> {
        if self.file.get().is_some() {
            return Ok(true);
        }
        let tracked = &self.context.tracked;
        let path = tracked.state().path.clone();
        let is_open = self.file.open(&path, tracked.inode)?;
        if !is_open {
            self.context.common.scan_wanted.notify_one();
        }
        Ok(is_open)
    }

    /// Reports that the file cannot be read, and waits. Returns true if the reader should end. The next scan then starts another
    /// reader.
    async fn report_failure(&mut self, error: &io::Error) -> bool {
        let text = format!("cannot read {}: {error}; retrying", self.context.path());
        let reporter = &self.context.source.reporter;
        self.failing
            .get_or_insert_with(|| reporter.condition("unreadable"))
            .raise(Trouble::Retrying, text);
        self.context.common.meters.read_errors.add(1);
        self.context.tracked.read.notify_one();
        self.context.pause(TROUBLE_WAIT).await;
        self.context.source.once || self.file.get().is_none()
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
            Copied::UpTo(mark) => {
                self.records.position.resume_at(mark);
                self.records.position.identify(self.file.get())?;
                self.context.common.signal.announcing();
                self.announce().await;
                Ok(true)
            }
        }
    }

    /// Finds the position at which reading of a compressed file begins. Returns false if the file is not read.
    async fn begin_gzip(&mut self, begin: GzipBegin) -> io::Result<bool> {
        let permit = tokio::select! {
            permit = self.context.common.inflating.clone().acquire_owned() => permit.ok(),
            () = self.context.stop.stopped() => return Ok(false),
        };
        if !self.open()? {
            return Ok(false);
        }
        let Some(file) = self.file.get() else {
            return Ok(false);
        };
        let gzip = self.gzip.insert(GzipText::new(permit));
        let since = self.records.pace.last_read;
        let found = gzip.find(file, &begin.candidates, since, &mut self.context);
        match found.await? {
            Some(mark) if mark.offset > 0 => {
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

    async fn announce(&mut self) {
        self.records.announce(&mut self.context).await;
    }

    /// Starts over at the first byte, because the inode holds another content.
    async fn begin_anew(&mut self) {
        if let Err((settled, sent)) = self.records.begin_anew().await {
            let path = self.context.path();
            self.context.source.reporter.error(
                "destroyed",
                format_args!(
                    "{path} was truncated before its bytes {settled}..{sent} were settled; only a copy of it has them"
                ),
            );
        }
        if let Some(gzip) = &mut self.gzip {
            gzip.restart();
        }
    }

    /// Continues at the settled mark, because a batch was dropped.
    async fn go_back(&mut self) {
        let file = self.file.get().filter(|_| self.gzip.is_none());
        self.records.go_back(&mut self.context, file).await;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.context.tracked.read.notify_one();
    }
}
