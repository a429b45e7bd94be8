//! The reader of one file: from bytes on the disk to batches, in order, until it is told to stop or the file is gone.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Bytes are read into a pooled buffer that the batch then owns. The part of a record at the end of a read is read again
//! with the next batch. Every read begins a little before the position and compares those bytes with the position's mark, so a
//! file that was truncated is noticed even if it has grown past the position again. Everything before the settled mark is
//! settled, and after a failure the reader continues from there.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millstream_pipeline::condition::{Condition, Trouble};
use millstream_record::FileOrigin;
use millstream_wire::lines;
use tokio::time::sleep_until;

use super::{
    begin::{Begin, GzipBegin},
    chunk::Chunk,
    context::FileContext,
    copy::{self, Copied},
    decoder::{Decoded, Decoder},
    done::WhenDone,
    ends::Ended,
    gzip::GzipText,
    hole::hole_end,
    identity::{Mark, Stat, generation},
    long_line::LineEnd,
    open_file::OpenFile,
    pace::Pace,
    position::Position,
    sender::{Rejection, Sender},
    tracked::Tracked,
};
use crate::framing::{Framed, TooLong};

/// How long a reader waits before it sends again what was dropped.
const RESEND_WAIT: Duration = Duration::from_millis(500);
/// How long a file that cannot be read is left alone.
const TROUBLE_WAIT: Duration = Duration::from_secs(5);
/// A file without notifications is checked after this share of the time for which it has been idle ...
const LOOK_SHARE: u32 = 10;
/// ... but not more often than this.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The reader of one file.
pub(super) struct Reader {
    context: FileContext,
    file: OpenFile,
    /// The text of the file, if it is compressed.
    gzip: Option<GzipText>,
    position: Position,
    decoder: Decoder,
    line_end: LineEnd,
    sender: Sender,
    pace: Pace,
    /// The file may be a copy of another one.
    appeared: bool,
    /// The file could not be removed or renamed.
    stays: bool,
    /// Holds while the file cannot be read.
    failing: Option<Condition>,
}

/// The result of one look at the file.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Something was sent, or there is more to read.
    Continue,
    /// There is no whole record left.
    End,
    /// The file holds another content than before.
    Replaced,
    /// What was sent has to be sent again.
    Resend,
}

impl Reader {
    /// Reads a file until it is told to stop, or the file is gone or, with `--once`, read to its end; then waits for the
    /// answers. Begins when `after` was read to its end.
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
                    // The scan begins it again: it was not read completely.
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
        let (common, tracked) = (&context.common, &context.tracked);
        let path = tracked.state().path.clone();
        let decoder = Decoder::new(&common.options, matches!(begin, Begin::Gzip(_)));
        let sender = Sender::new(&path, decoder.encoding(), &common.options, &context.source);
        let mut position = Position::new(
            tracked.clone(),
            common.heads.clone(),
            common.signal.clone(),
            generation,
            next,
        );
        if let Some(id) = id {
            position.adopt(id);
        }
        Self {
            file: OpenFile::new(common.meters.open_files.clone()),
            gzip: None,
            position,
            decoder,
            line_end: LineEnd::default(),
            sender,
            pace: Pace::new(common.meters.lag.clone(), tracked.lag.clone()),
            appeared,
            stays: false,
            failing: None,
            context,
        }
    }

    async fn read_all(mut self) -> Ended {
        while !self.context.stop.is_stopped() {
            if self.position.collect().is_err() {
                self.go_back().await;
            }
            if self.position.is_full() {
                self.position.answered().await;
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
        // What fails now is read again at the next start.
        let _ = self.position.land().await;
        self.position.publish();
        self.ended()
    }

    fn ended(&self) -> Ended {
        let is_read = self.position.is_settled() && !self.context.stop.is_stopped();
        Ended {
            inode: self.context.tracked.inode,
            left_at: self.position.id().map(|id| (id, self.position.settled())),
            in_order: true,
            compressed: self.file.len().filter(|_| is_read && self.gzip.is_some()),
        }
    }

    /// Reads at the position, cuts what was read into records and sends them: at most one batch.
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
        let next = self.position.next();
        let len = Stat::of(file)?.len;
        self.pace.lag(len.saturating_sub(next.offset));
        let Some(available) = len.checked_sub(next.offset) else {
            return Ok(Step::Replaced);
        };
        if !self.decoder.is_worthwhile(available) {
            let is_same = next.covered() == 0 || Mark::read(file, next.offset)? == Some(next);
            return Ok(if is_same { Step::End } else { Step::Replaced });
        }
        if std::mem::take(&mut self.appeared) && self.is_copy(len).await? {
            return Ok(Step::Continue);
        }
        let wanted = usize::try_from(available)
            .unwrap_or(usize::MAX)
            .min(self.decoder.read_bytes());
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
                return self.skip_hole(end).await;
            }
        }
        // Plain lines are not expected where the file system reports more than it delivers.
        let is_complete = self.decoder.is_by_line() || text.len() == wanted;
        let more = is_complete && (text.len() as u64) < available;
        match self.decoder.decode(text, more, next.offset == 0) {
            Decoded::Lines(bytes) => {
                let mark = chunk.mark(bytes);
                self.send_lines(chunk.into_lines(bytes), mark).await?;
                Ok(Step::Continue)
            }
            Decoded::Framed(framed, bytes) => self.send_framed(framed, chunk.mark(bytes)).await,
            Decoded::TooLong(piece) => self.send_long_line(chunk, piece, len).await,
            Decoded::More => Ok(Step::Continue),
            Decoded::Partial => Ok(Step::End),
        }
    }

    /// The same for a compressed file.
    async fn step_gzip(&mut self) -> io::Result<Step> {
        let next = self.position.next();
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
        let text_bytes = gzip.fill(file, next, self.decoder.read_bytes())?;
        let left = match gzip.damage() {
            None => Stat::of(file)?.len.saturating_sub(gzip.compressed_bytes()),
            Some(why) => {
                let path = self.context.path();
                let text = format_args!("{path} is damaged ({why}); the rest of it is lost");
                self.context.source.reporter.error("damaged", text);
                0
            }
        };
        self.pace.lag(left + text_bytes);
        if left == 0 && !self.decoder.is_worthwhile(text_bytes) {
            return Ok(Step::End);
        }
        let text = gzip.text(next);
        match self.decoder.decode(text, left > 0, next.offset == 0) {
            Decoded::Framed(framed, bytes) => {
                let mark = gzip.mark(next.offset + bytes as u64);
                let mark = mark.ok_or(io::ErrorKind::UnexpectedEof)?;
                self.send_framed(framed, mark).await
            }
            Decoded::More => Ok(Step::Continue),
            Decoded::Lines(_) | Decoded::TooLong(_) | Decoded::Partial => Ok(Step::End),
        }
    }

    /// Sends whole lines; reading continues at `mark`.
    async fn send_lines(&mut self, body: Bytes, mark: Mark) -> io::Result<()> {
        let count = lines::count(&body);
        self.send(body, count, mark).await
    }

    async fn send(&mut self, body: Bytes, count: u32, mark: Mark) -> io::Result<()> {
        let origin = self.origin(mark)?;
        // With `--once`, the reader waits for the last batch of a file.
        let is_last = self.context.source.once && self.pace.is_rest(origin.next - origin.begin);
        let awaited = is_last || self.position.is_half_full();
        let receipt = self.sender.send(origin, body, count, awaited).await;
        self.position.sent(receipt, mark);
        self.advanced(origin);
        Ok(())
    }

    /// Sends what the framer made; reading continues at `mark`.
    async fn send_framed(&mut self, framed: Framed, mark: Mark) -> io::Result<Step> {
        let meters = &self.context.common.meters;
        meters.too_long.add(framed.too_long.into());
        meters.garbled.add(framed.garbled.into());
        if !framed.rejected.is_empty() {
            let origin = self.origin(mark)?;
            if !self.sender.reject(origin, &framed.rejected).await {
                return Ok(Step::Resend);
            }
        }
        match framed.count {
            0 => self.skip(mark).await?,
            count => self.send(framed.body.into(), count, mark).await?,
        }
        Ok(Step::Continue)
    }

    /// Deals with a line longer than `line_max` as `too_long` says. Its first piece has `piece` bytes, the file `len`.
    ///
    /// A piece of a split line is a batch, and a position may stand behind it: reading from there gives the same further
    /// pieces. A truncated or rejected line is done with when its end is there.
    async fn send_long_line(&mut self, chunk: Chunk, piece: usize, len: u64) -> io::Result<Step> {
        let next = self.position.next();
        let mark = match (self.decoder.too_long(), self.file.get()) {
            (TooLong::Split, _) => Some(chunk.mark(piece)),
            (_, Some(file)) => {
                let from = next.offset + piece as u64;
                self.line_end.find(file, from, len).await?
            }
            (_, None) => None,
        };
        let Some(mark) = mark else {
            self.decoder.set_partial(len - next.offset);
            return Ok(Step::End);
        };
        if self.decoder.too_long() == TooLong::Reject {
            return self.reject_line(mark.offset - 1, mark).await;
        }
        self.context.common.meters.too_long.add(1);
        self.line_end.reset();
        self.send_lines(chunk.into_line(piece), mark).await?;
        Ok(Step::Continue)
    }

    /// Rejects the line that ends at `end`; reading continues at `mark`.
    async fn reject_line(&mut self, end: u64, mark: Mark) -> io::Result<Step> {
        let id = self.position.identify(self.file.get())?;
        let Some(file) = self.file.get() else {
            return Ok(Step::Continue);
        };
        let range = self.position.next().offset..end;
        match self.sender.reject_line(file, id, range).await? {
            Rejection::Truncated => return Ok(Step::Replaced),
            Rejection::Dropped => return Ok(Step::Resend),
            Rejection::Sent => {}
        }
        self.context.common.meters.too_long.add(1);
        self.line_end.reset();
        self.skip(mark).await?;
        Ok(Step::Continue)
    }

    /// Skips the hole that ends at `end`.
    async fn skip_hole(&mut self, end: u64) -> io::Result<Step> {
        let Some(file) = self.file.get() else {
            return Ok(Step::End);
        };
        let Some(mark) = Mark::read(file, end)? else {
            return Ok(Step::Replaced);
        };
        let bytes = end - self.position.next().offset;
        self.context.common.meters.holes.add(bytes);
        self.skip(mark).await?;
        Ok(Step::Continue)
    }

    /// Continues at `mark` without a record.
    async fn skip(&mut self, mark: Mark) -> io::Result<()> {
        let origin = self.origin(mark)?;
        if self.context.common.durable {
            // After a restart, reading does not come here again.
            let receipt = self.sender.send_position(origin).await;
            self.position.sent(receipt, mark);
        } else {
            self.position.skip(mark);
        }
        self.advanced(origin);
        Ok(())
    }

    fn advanced(&mut self, origin: FileOrigin) {
        self.pace.read(origin.next - origin.begin);
        self.decoder.advanced();
    }

    /// Where the records between the position and `mark` stand.
    fn origin(&mut self, mark: Mark) -> io::Result<FileOrigin> {
        Ok(FileOrigin {
            file: self.position.identify(self.file.get())?,
            begin: self.position.next().offset,
            next: mark.offset,
        })
    }

    /// Lets the consumer on this thread process the batch while it is in the cache, and other files have a turn. A reader that
    /// is as fast as the writer lets some lines gather.
    async fn yield_turn(&mut self) {
        let rate = self.context.common.options.rate_max;
        if rate > 0 {
            let owed = std::mem::take(&mut self.pace.owed);
            let wait = Duration::from_secs_f64(owed as f64 / rate as f64);
            self.context.pause(wait).await;
        }
        let nap = match self.pace.at_end() {
            true => self.pace.woken(),
            false => None,
        };
        match nap {
            Some(nap) => self.context.pause(nap).await,
            None => tokio::task::yield_now().await,
        }
    }

    /// There is no whole record left: waits until there may be one. True: the reader is done with the file.
    ///
    /// The kernel reports the next write, so waiting costs nothing. A file to which no matching name leads any more is let go
    /// after it was quiet for `rotate_wait`; the scan finds it again if it grows later under a rotated name.
    async fn wait_at_end(&mut self) -> bool {
        self.context.tracked.read.notify_one();
        let rotated = self.context.tracked.state().rotated;
        let last_read = self.pace.last_read;
        let since = match self.gzip {
            // Other files wait for the permit, and this one was complete long ago.
            Some(_) => Some(self.file.written_at().unwrap_or(last_read)),
            None => rotated
                .or(self.has_to_be_done().then_some(last_read))
                .map(|since| since.max(last_read)),
        };
        let options = &self.context.common.options;
        let until = since.map(|since| since + options.rotate_wait);
        if self.context.source.once || until.is_some_and(|until| until <= Instant::now()) {
            return self.send_partial().await && self.finish().await;
        }
        let mut until = until.into_iter().chain(self.decoder.quiet_at()).min();
        if let Some(file) = self.file.get() {
            let alarms = self.context.common.alarms.as_ref();
            match alarms.map(|alarms| alarms.set(file, &self.context.tracked.alarm)) {
                // What was written before the alarm was set is not reported.
                Some(Ok(true)) => return false,
                Some(Ok(false)) if rotated.is_none() => self.file.close_if_old(),
                Some(Ok(false)) => {}
                // No notifications for this file.
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

    /// Waits for the alarm, an answer, the signal to stop or the time.
    async fn wait(&mut self, until: Option<Instant>) {
        let deadline = until.unwrap_or_else(Instant::now).into();
        let woken = tokio::select! {
            () = self.context.tracked.alarm.wake.notified() => true,
            () = self.context.stop.stopped() => false,
            () = self.position.answered() => false,
            () = sleep_until(deadline), if until.is_some() => false,
        };
        if let Some(nap) = self.pace.woken().filter(|_| woken) {
            self.context.pause(nap).await;
        }
    }

    /// Sends what is left without a newline, to be done with the file. False: it has to be read once more.
    async fn send_partial(&mut self) -> bool {
        if self.decoder.partial() == 0 || self.file.get().is_none() {
            return true;
        }
        let sent = match self.decoder.is_by_line() {
            true => {
                self.decoder.set_closing(true);
                let step = self.step().await;
                self.decoder.set_closing(false);
                step.map(|_| false)
            }
            false => self.send_partial_line().await,
        };
        match sent {
            Ok(true) => true,
            Ok(false) => {
                self.decoder.set_partial(0);
                false
            }
            Err(error) => self.report_failure(&error).await,
        }
    }

    /// False: the file has grown or changed.
    async fn send_partial_line(&mut self) -> io::Result<bool> {
        let partial = self.decoder.partial();
        let wanted = usize::try_from(partial)
            .unwrap_or(usize::MAX)
            .min(self.context.common.options.line_max);
        let is_whole = wanted as u64 == partial;
        let next = self.position.next();
        let Some(buffer) = self.context.reserve(Chunk::memory(next, wanted + 1)).await else {
            return Ok(true);
        };
        let Some(file) = self.file.get() else {
            return Ok(true);
        };
        // One byte more than there was shows whether the line has grown.
        let Some(chunk) = Chunk::read(file, buffer, next, wanted + 1)? else {
            return Ok(false);
        };
        let read = chunk.text().len();
        if read < wanted || is_whole && read > wanted {
            return Ok(false);
        }
        let end = next.offset + partial;
        let mark = match is_whole {
            true => chunk.mark(wanted),
            false => Mark::read(file, end)?.ok_or(io::ErrorKind::UnexpectedEof)?,
        };
        if !is_whole && self.decoder.too_long() == TooLong::Reject {
            return Ok(self.reject_line(end, mark).await? == Step::Continue);
        }
        // Of a line that is too long and was not split, the first piece remains.
        self.send_lines(chunk.into_line(wanted), mark).await?;
        Ok(true)
    }

    fn has_to_be_done(&self) -> bool {
        self.context.common.options.when_done != WhenDone::Keep && !self.stays
    }

    /// The file was sent completely and was quiet: waits for the answers, then does what `when_done` says. True: the reader
    /// is done with the file.
    async fn finish(&mut self) -> bool {
        if !self.has_to_be_done() || self.context.tracked.state().rotated.is_some() {
            return true;
        }
        let sent = self.position.next();
        if self.position.land().await.is_err() {
            self.go_back().await;
            return false;
        }
        self.position.publish();
        if self.position.settled() != sent || self.context.stop.is_stopped() {
            return self.context.stop.is_stopped();
        }
        let path = self.context.tracked.state().path.clone();
        match self.is_read_under(&path) {
            Ok(true) => {}
            Ok(false) => return false,
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
        // What was written at the last moment is read through the open handle.
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
            None => self.position.next().offset,
        };
        Ok(Stat::of(file)?.len == read)
    }

    /// Opens the file. False if it is not under its name: the scan will find where it is.
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

    /// The file could not be read: reports it and waits. True: the reader gives the file back to the scan, which retries.
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

    /// Whether the file is a copy of one that was truncated; then it continues where that one was left.
    async fn is_copy(&mut self, len: u64) -> io::Result<bool> {
        let Some(file) = self.file.get() else {
            return Ok(false);
        };
        match copy::find_original(&mut self.context, file, len).await? {
            Copied::No => Ok(false),
            Copied::Stopped => Ok(true),
            Copied::UpTo(mark) => {
                self.position.resume_at(mark);
                self.position.identify(self.file.get())?;
                self.context.common.signal.announcing();
                self.announce().await;
                Ok(true)
            }
        }
    }

    /// Finds the place in a compressed file where reading continues. False: there is nothing to read.
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
        let since = self.pace.last_read;
        let found = gzip.find(file, &begin.candidates, since, &mut self.context);
        match found.await? {
            Some(mark) if mark.offset > 0 => {
                self.position.resume_at(mark);
                self.pace.last_read = Instant::now();
                match begin.id {
                    Some(id) => self.position.adopt(id),
                    None => drop(self.position.identify(self.file.get())?),
                }
                self.context.common.signal.announcing();
                self.announce().await;
            }
            _ => gzip.restart(),
        }
        Ok(!begin.only_candidates || self.position.id().is_some())
    }

    /// Sends a durable channel where the file begins, in a batch without records. If the channel learned of it only with the
    /// first lines, a crash before them would begin at a later end.
    async fn announce(&mut self) {
        let signal = self.context.common.signal.clone();
        let Some(file) = self.position.id().filter(|_| self.context.common.durable) else {
            return signal.announced();
        };
        let at = self.position.next().offset;
        let origin = FileOrigin {
            file,
            begin: at,
            next: at,
        };
        while !self.context.stop.is_stopped() {
            if self.sender.send_position(origin).await.await.is_ok() {
                return signal.announced();
            }
            self.context.pause(RESEND_WAIT).await;
        }
    }

    /// The inode holds another content: waits for what was sent of the old one, then begins anew.
    async fn begin_anew(&mut self) {
        let sent = self.position.next().offset;
        if self.position.land().await.is_err() {
            self.context.source.reporter.error(
                "destroyed",
                format_args!(
                    "{} was truncated before its bytes {}..{sent} were settled; only a copy of it has them",
                    self.context.path(),
                    self.position.settled().offset
                ),
            );
        }
        self.position.begin_anew();
        self.context.common.meters.truncated.add(1);
        if let Some(gzip) = &mut self.gzip {
            gzip.restart();
        }
        self.forget_read();
    }

    /// A batch was dropped: reads again from the settled mark, or from where a durable channel says.
    async fn go_back(&mut self) {
        let _ = self.position.land().await;
        let mut mark = self.position.settled();
        self.context.pause(RESEND_WAIT).await;
        if let (Some(id), Some(file), None) = (self.position.id(), self.file.get(), &self.gzip)
            && let Some(origins) = self.context.source.outlet.file_origins()
        {
            let range = mark.offset + 1..=self.position.next().offset;
            let kept = origins.into_iter().find(|(other, _)| *other == id);
            let kept = kept.filter(|(_, next)| range.contains(next));
            if let Some(Ok(Some(kept))) = kept.map(|(_, next)| Mark::read(file, next)) {
                mark = kept;
            }
        }
        self.position.resume_at(mark);
        self.forget_read();
        self.position.publish();
    }

    fn forget_read(&mut self) {
        self.decoder.reset();
        self.line_end.reset();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.context.tracked.read.notify_one();
    }
}
