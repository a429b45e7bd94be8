//! Turns the bytes of one file into batches, and tracks how far these batches were sent and settled.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Each batch moves the position to the end of its records. A position is never inside a record, but may lie between two pieces
//! of a long line that is split. A mark is an offset with a checksum of the bytes before it (`identity.rs`).

use std::{fs, io, sync::Arc, time::Duration};

use bytes::Bytes;
use millstream_pipeline::{delivery, meters::Meter};
use millstream_record::{FileId, FileOrigin};
use millstream_sys::disk::read_at;
use millstream_wire::lines;

use super::{
    chunk::Chunk,
    context::FileContext,
    decoder::{After, Decoded, Decoder},
    gzip::GzipText,
    identity::Mark,
    join::Rest,
    long_line::LineEnd,
    pace::Pace,
    position::Position,
    sender::{Rejection, Sender},
    source_state::SourceState,
};
use crate::framing::{self, Framed, TooLong};

/// The delay before dropped records are sent again.
const RESEND_WAIT: Duration = Duration::from_millis(500);

/// The result of one step of the reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A batch was sent, or there is more to read.
    Continue,
    /// There is no whole record left.
    End,
    /// The file no longer holds the content that was read: it was truncated or rewritten.
    Replaced,
    /// A batch has to be sent again.
    Resend,
}

/// The records of one file.
pub(super) struct Records {
    common: Arc<SourceState>,
    /// Whether the source runs with `--once`. If it does, it asks the consumers of the file's last batch to settle this batch
    /// early, because the reader waits until the batch is settled.
    once: bool,
    pub position: Position,
    pub decoder: Decoder,
    pub pace: Pace,
    line_end: LineEnd,
    sender: Sender,
    /// See [`Records::next_mark`]. `None` before the first batch, and after the position moved elsewhere.
    marks: Option<Vec<u64>>,
}

impl Records {
    /// Starts at the mark `next`. `by_line` is the argument of [`Decoder::new`].
    pub(super) fn new(
        context: &FileContext,
        id: Option<FileId>,
        next: Mark,
        generation: u16,
        by_line: bool,
    ) -> Self {
        let (common, tracked) = (&context.common, &context.tracked);
        let path = tracked.state().path.clone();
        let decoder = Decoder::new(&common.options, by_line);
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
            common: common.clone(),
            once: context.source.once,
            position,
            decoder,
            pace: Pace::new(common.meters.lag.clone(), tracked.lag.clone()),
            line_end: LineEnd::default(),
            sender,
            marks: None,
        }
    }

    /// Returns the next offset at which a batch must end: one downstream channel has kept the file up to this offset, and another
    /// one has not. If a batch held records from both sides of the offset, the first channel could not recognize the records that
    /// it already has. Returns `None` if there is no such offset, or if the records are plain lines of an uncompressed file,
    /// because a channel can divide a batch of lines.
    pub(super) fn next_mark(&mut self, file: &fs::File) -> io::Result<Option<u64>> {
        match self.decoder.is_by_line() {
            true => self.kept_mark(file),
            false => Ok(None),
        }
    }

    /// [`Records::next_mark`] for records that a channel cannot divide.
    fn kept_mark(&mut self, file: &fs::File) -> io::Result<Option<u64>> {
        if !self.common.durable {
            return Ok(None);
        }
        let next = self.position.next().offset;
        if self.marks.is_none() {
            let mut marks = self.sender.marks(self.position.identity(file)?);
            marks.retain(|mark| *mark > next);
            // Before the first batch is sent, the identity of the file may still change.
            if self.position.id().is_none() {
                return Ok(marks.into_iter().min());
            }
            self.marks = Some(marks);
        }
        let marks = self.marks.iter().flatten().copied();
        Ok(marks.filter(|mark| *mark > next).min())
    }

    /// Sends the records at the start of a chunk. `len` is the length of the file. `after`: what follows the chunk.
    pub(super) async fn send_chunk(
        &mut self,
        file: &fs::File,
        chunk: Chunk,
        after: After,
        len: u64,
    ) -> io::Result<Step> {
        let at_start = self.position.next().offset == 0;
        match self.decoder.decode(chunk.text(), after, at_start) {
            Decoded::Lines(bytes) => self.send_whole_lines(file, chunk, bytes).await,
            Decoded::Framed(framed, bytes) => {
                self.send_framed(file, framed, chunk.mark(bytes)).await
            }
            Decoded::TooLong(piece) => self.send_long_line(file, chunk, piece, len).await,
            Decoded::More => Ok(Step::Continue),
            Decoded::Partial => Ok(Step::End),
        }
    }

    /// Sends the records at the start of a compressed file's text. `more`: whether there is more text than
    /// `gzip` has decompressed.
    pub(super) async fn send_text(
        &mut self,
        file: &fs::File,
        gzip: &GzipText,
        more: bool,
    ) -> io::Result<Step> {
        let next = self.position.next();
        let mark = self.next_mark(file)?.map(|mark| mark - next.offset);
        let (text, after) = up_to(mark, gzip.text(next), more);
        match self.decoder.decode(text, after, next.offset == 0) {
            Decoded::Framed(framed, bytes) => {
                let mark = gzip.mark(next.offset + bytes as u64);
                let mark = mark.ok_or(io::ErrorKind::UnexpectedEof)?;
                self.send_framed(file, framed, mark).await
            }
            Decoded::More => Ok(Step::Continue),
            Decoded::Lines(_) | Decoded::TooLong(_) | Decoded::Partial => Ok(Step::End),
        }
    }

    /// Sends the last line, which has no newline yet. `chunk` holds the first `wanted` bytes of the line, and one more byte if the
    /// line has grown. Returns false if the file has grown or changed.
    pub(super) async fn send_partial_line(
        &mut self,
        file: &fs::File,
        chunk: Chunk,
        wanted: usize,
    ) -> io::Result<bool> {
        let partial = self.decoder.partial();
        let is_whole = wanted as u64 == partial;
        let read = chunk.text().len();
        // A NUL after the line is not written yet.
        let is_longer = chunk.text().get(wanted).is_some_and(|byte| *byte != 0);
        if read < wanted || is_whole && is_longer {
            return Ok(false);
        }
        let end = self.position.next().offset + partial;
        let mark = match is_whole {
            true => chunk.mark(wanted),
            false => Mark::read(file, end)?.ok_or(io::ErrorKind::UnexpectedEof)?,
        };
        if !is_whole && self.decoder.too_long() == TooLong::Reject {
            return Ok(self.reject_line(file, end, mark).await? == Step::Continue);
        }
        // Sends the line, or only its first piece if `too_long` truncates the line.
        let line = chunk.into_line(wanted);
        let line = match is_whole {
            true => self.altered(line),
            false => line,
        };
        self.send_lines(file, line, mark).await?;
        Ok(true)
    }

    /// Gives away the lines after the position that are no whole record, because they continue in the next file. Returns None if they do not end with a newline, so that nothing can continue them.
    pub(super) fn give_rest(&mut self, file: &fs::File) -> io::Result<Option<Rest>> {
        let next = self.position.next();
        let bytes = usize::try_from(self.decoder.partial()).unwrap_or(usize::MAX);
        let covered = next.covered();
        let mut text = Vec::new();
        let read = read_at(
            file,
            &mut text,
            covered + bytes,
            next.offset - covered as u64,
        )?;
        let is_same = read == covered + bytes && next.fits(&text[..covered]);
        if !is_same || !self.decoder.may_join(&text[covered..]) {
            return Ok(None);
        }
        let remainder = self.decoder.remainder();
        let (token, receipt) = delivery::receipt(false, 0, Meter::default());
        let mut origin = None;
        if bytes > 0 {
            let mark = Mark::new(next.offset + bytes as u64, &text);
            let of_rest = self.origin(file, mark)?;
            self.position.sent(receipt, mark);
            self.advanced(of_rest);
            origin = Some(of_rest);
        }
        text.drain(..covered);
        Ok(Some(Rest {
            text,
            origin,
            remainder,
            token,
        }))
    }

    /// Sends the records at the start of `rest`, which stands at the end of the previous file, and of `chunk`. Waits until they are
    /// settled. Returns `rest` in the result if it holds more.
    pub(super) async fn send_joined(
        &mut self,
        file: &fs::File,
        rest: Rest,
        chunk: &Chunk,
        after: After,
    ) -> io::Result<(Step, Option<Rest>)> {
        if self.position.next().offset == 0 {
            self.decoder.begins_with(chunk.text());
        }
        let text = [&rest.text, chunk.text()].concat();
        match self.decoder.decode(&text, after, false) {
            Decoded::Framed(framed, bytes) => {
                self.send_joined_records(file, rest, chunk, framed, bytes)
                    .await
            }
            Decoded::More => Ok((Step::Continue, Some(rest))),
            _ => {
                // Only the bytes of this file count.
                self.decoder.set_partial(chunk.text().len() as u64);
                Ok((Step::End, Some(rest)))
            }
        }
    }

    async fn send_joined_records(
        &mut self,
        file: &fs::File,
        mut rest: Rest,
        chunk: &Chunk,
        framed: Framed,
        bytes: usize,
    ) -> io::Result<(Step, Option<Rest>)> {
        let of_rest = bytes.min(rest.text.len());
        let (mut origins, mut own) = (Vec::new(), None);
        if let Some(origin) = &mut rest.origin {
            let next = origin.begin + of_rest as u64;
            origins.push(FileOrigin { next, ..*origin });
            origin.begin = next;
        }
        if bytes > of_rest {
            let mark = chunk.mark(bytes - of_rest);
            let origin = self.origin(file, mark)?;
            origins.push(origin);
            own = Some((origin, mark));
        }
        let meters = &self.common.meters;
        meters.too_long.add(framed.too_long.into());
        meters.garbled.add(framed.garbled.into());
        if let (Some(origin), false) = (origins.first(), framed.rejected.is_empty())
            && !self.sender.reject(*origin, &framed.rejected).await
        {
            return Ok((Step::Resend, None));
        }
        if framed.count > 0 || self.common.durable {
            let body = framed.body.into();
            let sent = self.sender.send_joined(origins, body, framed.count).await;
            if sent.await.is_err() {
                return Ok((Step::Resend, None));
            }
        }
        match own {
            Some((origin, mark)) => {
                self.position.skip(mark);
                self.position.publish();
                self.advanced(origin);
            }
            None => self.decoder.advanced(),
        }
        rest.text.drain(..of_rest);
        if !rest.text.is_empty() {
            return Ok((Step::Continue, Some(rest)));
        }
        rest.token.settle();
        Ok((Step::Continue, None))
    }

    /// Skips a hole that ends at `end`.
    pub(super) async fn skip_hole(&mut self, file: &fs::File, end: u64) -> io::Result<Step> {
        let Some(mark) = Mark::read(file, end)? else {
            return Ok(Step::Replaced);
        };
        let bytes = end - self.position.next().offset;
        self.common.meters.holes.add(bytes);
        self.skip(file, mark).await
    }

    /// Announces the file to a durable channel: sends a batch without records, whose origin is the position at which reading
    /// begins. Without the announcement, lines could be lost: if the source crashed before it sent the first lines, the next run
    /// would begin at the new end of the file.
    pub(super) async fn announce(&self, context: &mut FileContext) {
        let signal = &self.common.signal;
        let Some(file) = self.position.id().filter(|_| self.common.durable) else {
            return signal.announced();
        };
        let at = self.position.next().offset;
        let origin = FileOrigin {
            file,
            begin: at,
            next: at,
        };
        while !context.stop.is_stopped() {
            if self.sender.send_position(origin).await.await.is_ok() {
                return signal.announced();
            }
            context.pause(RESEND_WAIT).await;
        }
    }

    /// Goes back after a batch was dropped. Reading resumes at the settled mark, or at a later offset if a durable channel has
    /// kept the file up to that offset. `file` is None if the file is compressed.
    pub(super) async fn go_back(&mut self, context: &mut FileContext, file: Option<&fs::File>) {
        let _ = self.position.land().await;
        let mut mark = self.position.settled();
        context.pause(RESEND_WAIT).await;
        if let (Some(id), Some(file)) = (self.position.id(), file)
            && let Some(origins) = context.source.outlet.file_origins()
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

    /// Starts over at the first byte, because the inode holds another content. First waits for the receipts (the answers of the
    /// channel) of the old content. If a part of the old content was not settled, the error holds the offsets at which that part
    /// begins and ends.
    pub(super) async fn begin_anew(&mut self) -> Result<(), (u64, u64)> {
        let sent = self.position.next().offset;
        let landed = self.position.land().await;
        let settled = self.position.settled().offset;
        self.position.begin_anew();
        self.common.meters.truncated.add(1);
        self.forget_read();
        landed.map_err(|_| (settled, sent))
    }

    fn forget_read(&mut self) {
        self.decoder.reset();
        self.line_end.reset();
        self.marks = None;
    }

    /// Sends the lines in the first `bytes` bytes of a chunk.
    async fn send_whole_lines(
        &mut self,
        file: &fs::File,
        chunk: Chunk,
        bytes: usize,
    ) -> io::Result<Step> {
        let at_start = self.position.next().offset == 0;
        let text = chunk.text();
        let Some(body) = self.decoder.altered(&text[..bytes], at_start) else {
            let mark = chunk.mark(bytes);
            return self.send_lines(file, chunk.into_lines(bytes), mark).await;
        };
        // A channel cannot divide a batch whose bytes are not those of the file.
        let next = self.position.next().offset;
        let kept = self.kept_mark(file)?.map(|mark| (mark - next) as usize);
        let kept = kept.filter(|kept| text.get(..*kept).is_some_and(|text| text.ends_with(b"\n")));
        let (body, bytes) = match kept.filter(|kept| *kept < bytes) {
            Some(kept) => {
                let lines = &text[..kept];
                let body = self.decoder.altered(lines, at_start);
                (body.unwrap_or_else(|| lines.to_vec()), kept)
            }
            None => (body, bytes),
        };
        self.send_lines(file, body.into(), chunk.mark(bytes)).await
    }

    /// The records of the lines at the position.
    fn altered(&self, lines: Bytes) -> Bytes {
        let at_start = self.position.next().offset == 0;
        let altered = self.decoder.altered(&lines, at_start);
        altered.map_or(lines, Bytes::from)
    }

    /// Sends whole lines; reading continues at `mark`.
    async fn send_lines(&mut self, file: &fs::File, body: Bytes, mark: Mark) -> io::Result<Step> {
        let count = lines::count(&body);
        self.send(file, body, count, mark).await
    }

    async fn send(
        &mut self,
        file: &fs::File,
        body: Bytes,
        count: u32,
        mark: Mark,
    ) -> io::Result<Step> {
        let origin = self.origin(file, mark)?;
        let is_last = self.once && self.pace.is_rest(origin.next - origin.begin);
        let awaited = is_last || self.position.is_half_full();
        let receipt = self.sender.send(origin, body, count, awaited).await;
        self.position.sent(receipt, mark);
        self.advanced(origin);
        Ok(Step::Continue)
    }

    /// Sends the records of a framer; reading continues at `mark`.
    async fn send_framed(
        &mut self,
        file: &fs::File,
        framed: Framed,
        mark: Mark,
    ) -> io::Result<Step> {
        let meters = &self.common.meters;
        meters.too_long.add(framed.too_long.into());
        meters.garbled.add(framed.garbled.into());
        if !framed.rejected.is_empty() {
            let origin = self.origin(file, mark)?;
            if !self.sender.reject(origin, &framed.rejected).await {
                return Ok(Step::Resend);
            }
        }
        match framed.count {
            0 => self.skip(file, mark).await,
            count => self.send(file, framed.body.into(), count, mark).await,
        }
    }

    /// Handles a line longer than `line_max` according to `too_long`. Its first piece has `piece` bytes; `len` is the length of
    /// the file.
    ///
    /// Each piece of a split line is a batch, so a position may lie between two pieces. Reading from there yields the
    /// same remaining pieces. A line that `too_long` truncates or rejects is handled only once its end is written.
    async fn send_long_line(
        &mut self,
        file: &fs::File,
        chunk: Chunk,
        piece: usize,
        len: u64,
    ) -> io::Result<Step> {
        let next = self.position.next();
        let mark = match self.decoder.too_long() {
            TooLong::Split => Some(chunk.mark(piece)),
            _ => {
                let from = next.offset + piece as u64;
                self.line_end.find(file, from, len).await?
            }
        };
        let Some(mark) = mark else {
            self.decoder.set_partial(len - next.offset);
            return Ok(Step::End);
        };
        if self.decoder.too_long() == TooLong::Reject {
            return self.reject_line(file, mark.offset - 1, mark).await;
        }
        self.common.meters.too_long.add(1);
        self.line_end.reset();
        let at_start = self.position.next().offset == 0;
        let mut line = chunk.into_line(piece);
        if at_start {
            line = line.slice_ref(framing::without_mark(&line));
        }
        self.send_lines(file, line, mark).await
    }

    /// Rejects the line that ends at `end`; reading continues at `mark`.
    async fn reject_line(&mut self, file: &fs::File, end: u64, mark: Mark) -> io::Result<Step> {
        let id = self.position.identify(Some(file))?;
        let range = self.position.next().offset..end;
        match self.sender.reject_line(file, id, range).await? {
            Rejection::Truncated => return Ok(Step::Replaced),
            Rejection::Dropped => return Ok(Step::Resend),
            Rejection::Sent => {}
        }
        self.common.meters.too_long.add(1);
        self.line_end.reset();
        self.skip(file, mark).await
    }

    /// Skips the bytes up to `mark` without sending records.
    async fn skip(&mut self, file: &fs::File, mark: Mark) -> io::Result<Step> {
        let origin = self.origin(file, mark)?;
        if self.common.durable {
            // Stores the new position in the channel, so that a restart does not read these bytes again.
            let receipt = self.sender.send_position(origin).await;
            self.position.sent(receipt, mark);
        } else {
            self.position.skip(mark);
        }
        self.advanced(origin);
        Ok(Step::Continue)
    }

    fn advanced(&mut self, origin: FileOrigin) {
        self.pace.read(origin.next - origin.begin);
        self.decoder.advanced();
    }

    /// The origin of the records between the position and `mark`.
    fn origin(&mut self, file: &fs::File, mark: Mark) -> io::Result<FileOrigin> {
        Ok(FileOrigin {
            file: self.position.identify(Some(file))?,
            begin: self.position.next().offset,
            next: mark.offset,
        })
    }
}

/// Returns the part of `text` before `mark`, and what follows that part. `mark` is relative to the start of `text`. `more`:
/// whether the file holds more than `text`.
fn up_to(mark: Option<u64>, text: &[u8], more: bool) -> (&[u8], After) {
    let mark = mark.and_then(|mark| usize::try_from(mark).ok());
    match mark.and_then(|mark| text.get(..mark)) {
        Some(text) => (text, After::Mark),
        None if more => (text, After::More),
        None => (text, After::Nothing),
    }
}
