//! The reading thread: turns a blocking file into pieces of whole lines.

use std::{fs, io, time::Duration};

use bytes::Bytes;
use millstream_record::{Buffer, Pool, Time};
use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use tokio::sync::mpsc::Sender;

use crate::{
    flight::share,
    framing::{self, Cr, Ending, Framed, Framer, MARK, Scanned, TooLong},
};

/// The size of one read in bytes: more than a pipe holds.
const READ_BYTES: usize = 256 << 10;

/// A part of the input.
pub(super) enum Piece {
    /// Whole lines.
    Lines(Bytes),
    /// A part of a line that is rejected because it is too long.
    TooLong(Vec<u8>),
    /// Records from the framer.
    Framed(Framed),
}

/// How to treat the bytes up to the next newline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinePart {
    /// They are a line.
    Line,
    /// They belong to a line that was truncated.
    Dropped,
    /// They belong to a line that is rejected.
    Rejected,
}

/// The reason why a wait for the input has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// There is something to read, or the input has ended.
    Ready,
    /// The source stops.
    Stopped,
    /// Nothing has happened for the given time.
    Quiet,
}

/// The input, and the rest of the last read.
pub(super) struct Input {
    file: fs::File,
    /// The other end of this pipe is closed when the source stops.
    stop: io::PipeReader,
    pool: Pool,
    line_max: usize,
    too_long: TooLong,
    cr: Cr,
    part: LinePart,
    carried: Vec<u8>,
    /// Makes the records; `None` if they are plain lines.
    framer: Option<Framer>,
    /// Whether no record has been made yet.
    start: bool,
}

impl Input {
    pub(super) fn new(
        file: fs::File,
        stop: io::PipeReader,
        pool: Pool,
        line_max: usize,
        too_long: TooLong,
        framer: Framer,
    ) -> Self {
        Self {
            cr: framer.cr(),
            framer: Some(framer).filter(|framer| !framer.is_plain()),
            start: true,
            file,
            stop,
            pool,
            line_max,
            too_long,
            part: LinePart::Line,
            carried: Vec::new(),
        }
    }

    /// Reads to the end, or until the source stops or the receiver is dropped. Blocks.
    pub(super) async fn read_all(mut self, to: &Sender<Piece>) -> io::Result<()> {
        if let Some(framer) = self.framer.take() {
            return self.frame_all(framer, to).await;
        }
        loop {
            let room = READ_BYTES.max(self.carried.len() + READ_BYTES / 2);
            let mut buffer = self.pool.reserve(room).await;
            buffer.append(&mut self.carried);
            let read = self.read(&mut buffer)?;
            if self.start && buffer.starts_with(MARK) {
                buffer.drain(..MARK.len());
            }
            // The mark may arrive in several pieces.
            self.start &= MARK.starts_with(&buffer) && buffer.len() < MARK.len();
            if read == 0 && !buffer.is_empty() && self.part == LinePart::Line {
                // The last line has no newline.
                buffer.push(b'\n');
            }
            match self.send_lines(buffer, to).await {
                Some(left) if read > 0 => self.carried = left,
                _ => return Ok(()),
            }
        }
    }

    /// Does the same as [`Input::read_all`], but with a framer.
    async fn frame_all(mut self, mut framer: Framer, to: &Sender<Piece>) -> io::Result<()> {
        loop {
            let room = READ_BYTES.max(self.carried.len() + READ_BYTES / 2);
            let mut buffer = self.pool.reserve(room).await;
            buffer.append(&mut self.carried);
            let ending = match framer.wait() {
                Some(wait) if !buffer.is_empty() && self.wait(Some(wait)) == Woken::Quiet => {
                    Ending::Quiet
                }
                _ if self.read(&mut buffer)? == 0 => Ending::End,
                _ if buffer.len() >= framer.window() => Ending::Full,
                _ => Ending::Open,
            };
            let mut framed = Framed::default();
            let taken = framer.frame(&buffer, self.start, ending, Time::now(), &mut framed);
            self.start &= taken == 0;
            self.carried.extend_from_slice(&buffer[taken..]);
            let is_empty = framed.count == 0 && framed.rejected.is_empty();
            if !is_empty && to.send(Piece::Framed(framed)).await.is_err() || ending == Ending::End {
                return Ok(());
            }
            if ending == Ending::Quiet && taken == 0 {
                // A line is incomplete, and only more input can complete it.
                self.wait(None);
            }
        }
    }

    /// Waits until there is input, the input ends, or the source stops. With `time`, waits at most that long.
    fn wait(&self, time: Option<Duration>) -> Woken {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        loop {
            let mut watched = [
                PollFd::new(&self.file, PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::empty()),
            ];
            match poll(&mut watched, time.as_ref()) {
                Ok(0) => return Woken::Quiet,
                Ok(_) if !watched[1].revents().is_empty() => return Woken::Stopped,
                Err(Errno::INTR) => {}
                // A file that cannot be polled can be read at any time.
                Ok(_) | Err(_) => return Woken::Ready,
            }
        }
    }

    /// Reads into the spare capacity of `buffer`. Returns 0 at the end of the input, and when the source stops.
    fn read(&self, buffer: &mut Buffer) -> io::Result<usize> {
        if self.wait(None) == Woken::Stopped {
            return Ok(0);
        }
        loop {
            match rustix::io::read(&self.file, spare_capacity(&mut **buffer)) {
                Ok(read) => return Ok(read),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends whole lines. Returns the partial line that is left, or None if the receiver is dropped.
    async fn send_lines(&mut self, buffer: Buffer, to: &Sender<Piece>) -> Option<Vec<u8>> {
        let mut at = 0;
        loop {
            while self.part != LinePart::Line && at < buffer.len() {
                at += self.skip_long_line(&buffer[at..], to).await?;
            }
            match framing::scan(&buffer[at..], self.line_max, self.cr) {
                Scanned::Partial => return Some(buffer[at..].to_vec()),
                Scanned::Lines(bytes) => {
                    let end = at + bytes;
                    if framing::scan(&buffer[end..], self.line_max, self.cr) == Scanned::Partial {
                        let left = buffer[end..].to_vec();
                        let lines = match self.cr.trim_all(&buffer[at..end]) {
                            Some(lines) => lines.into(),
                            None => share(buffer, at..end),
                        };
                        to.send(Piece::Lines(lines)).await.ok()?;
                        return Some(left);
                    }
                    // A line that is too long follows in the buffer, so the buffer is still needed.
                    let lines = &buffer[at..end];
                    let trimmed = self.cr.trim_all(lines).map(Bytes::from);
                    let lines = trimmed.unwrap_or_else(|| Bytes::copy_from_slice(lines));
                    to.send(Piece::Lines(lines)).await.ok()?;
                    at = end;
                }
                Scanned::TooLong => at += self.send_piece(&buffer[at..], to).await?,
            }
        }
    }

    /// Sends the first piece of a line that is too long. Returns its length, or None if the receiver is dropped.
    async fn send_piece(&mut self, bytes: &[u8], to: &Sender<Piece>) -> Option<usize> {
        let piece = &bytes[..framing::piece(bytes, self.line_max)];
        self.part = match self.too_long {
            TooLong::Split => LinePart::Line,
            TooLong::Truncate => LinePart::Dropped,
            TooLong::Reject => LinePart::Rejected,
        };
        to.send(match self.part {
            LinePart::Rejected => Piece::TooLong(piece.to_vec()),
            LinePart::Line | LinePart::Dropped => Piece::Lines([piece, b"\n"].concat().into()),
        })
        .await
        .ok()?;
        Some(piece.len())
    }

    /// Drops or rejects further bytes of a line that is too long. Returns their number, or None if the receiver is dropped.
    async fn skip_long_line(&mut self, bytes: &[u8], to: &Sender<Piece>) -> Option<usize> {
        let part = &bytes[..bytes.len().min(self.line_max)];
        let end = memchr::memchr(b'\n', part);
        let part = &part[..end.unwrap_or(part.len())];
        if self.part == LinePart::Rejected && !part.is_empty() {
            to.send(Piece::TooLong(part.to_vec())).await.ok()?;
        }
        if end.is_some() {
            self.part = LinePart::Line;
        }
        Some(part.len() + usize::from(end.is_some()))
    }
}
