//! The thread that reads: from a blocking file to pieces of whole lines.

use std::{fs, io};

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
    framing::{self, Ending, Found, Framed, Framer, TooLong},
};

/// Bytes of one read at most: what a pipe holds is less.
const READ_BYTES: usize = 256 << 10;

/// What was read.
pub(super) enum Piece {
    /// Whole lines.
    Lines(Bytes),
    /// A part of a line that is too long and is rejected.
    TooLong(Vec<u8>),
    /// What the framer made.
    Framed(Framed),
}

/// What becomes of the bytes up to the next newline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// They are a line.
    Line,
    /// They belong to a line that was truncated.
    Dropped,
    /// They belong to a line that is rejected.
    Rejected,
}

/// The input and what is left of the last read.
pub(super) struct Input {
    file: fs::File,
    pool: Pool,
    line_max: usize,
    too_long: TooLong,
    rest: Rest,
    carried: Vec<u8>,
    /// Makes the records, where they are more than plain lines.
    framer: Option<Framer>,
    /// Nothing was taken yet.
    start: bool,
}

impl Input {
    pub(super) fn new(
        file: fs::File,
        pool: Pool,
        line_max: usize,
        too_long: TooLong,
        framer: Option<Framer>,
    ) -> Self {
        Self {
            framer,
            start: true,
            file,
            pool,
            line_max,
            too_long,
            rest: Rest::Line,
            carried: Vec::new(),
        }
    }

    /// Reads to the end, or until nobody takes what is read. Blocks.
    pub(super) async fn read_all(mut self, to: &Sender<Piece>) -> io::Result<()> {
        if let Some(framer) = self.framer.take() {
            return self.frame_all(framer, to).await;
        }
        loop {
            let room = READ_BYTES.max(self.carried.len() + READ_BYTES / 2);
            let mut buffer = self.pool.reserve(room).await;
            buffer.append(&mut self.carried);
            let read = self.read(&mut buffer)?;
            if read == 0 && !buffer.is_empty() && self.rest == Rest::Line {
                // The last line has no newline.
                buffer.push(b'\n');
            }
            match self.take(buffer, to).await {
                Some(left) if read > 0 => self.carried = left,
                _ => return Ok(()),
            }
        }
    }

    /// The same by a framer.
    async fn frame_all(mut self, mut framer: Framer, to: &Sender<Piece>) -> io::Result<()> {
        loop {
            let room = READ_BYTES.max(self.carried.len() + READ_BYTES / 2);
            let mut buffer = self.pool.reserve(room).await;
            buffer.append(&mut self.carried);
            let ending = match framer.wait() {
                Some(wait) if !buffer.is_empty() && !self.is_ready(wait)? => Ending::Quiet,
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
                // A line whose end has not come: it is waited for, however long.
                self.is_ready(std::time::Duration::MAX)?;
            }
        }
    }

    /// Waits until there is something to read, the end too; false if there is nothing within that time.
    fn is_ready(&self, wait: std::time::Duration) -> io::Result<bool> {
        let wait = Timespec::try_from(wait).ok();
        loop {
            let mut watched = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut watched, wait.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                // What cannot be waited for can be read.
                Err(_) => return Ok(true),
            }
        }
    }

    fn read(&self, buffer: &mut Buffer) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.file, spare_capacity(&mut **buffer)) {
                Ok(read) => return Ok(read),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Hands over what is whole; gives the rest, or None if nobody takes it any more.
    async fn take(&mut self, buffer: Buffer, to: &Sender<Piece>) -> Option<Vec<u8>> {
        let mut at = 0;
        loop {
            while self.rest != Rest::Line && at < buffer.len() {
                at += self.pass(&buffer[at..], to).await?;
            }
            match framing::find(&buffer[at..], self.line_max) {
                Found::Partial => return Some(buffer[at..].to_vec()),
                Found::Lines(bytes) => {
                    let end = at + bytes;
                    if framing::find(&buffer[end..], self.line_max) == Found::Partial {
                        let left = buffer[end..].to_vec();
                        to.send(Piece::Lines(share(buffer, at..end))).await.ok()?;
                        return Some(left);
                    }
                    // A line follows that is too long.
                    let lines = Bytes::copy_from_slice(&buffer[at..end]);
                    to.send(Piece::Lines(lines)).await.ok()?;
                    at = end;
                }
                Found::TooLong => at += self.cut(&buffer[at..], to).await?,
            }
        }
    }

    /// Takes the first piece of a line that is too long; how many bytes.
    async fn cut(&mut self, bytes: &[u8], to: &Sender<Piece>) -> Option<usize> {
        let piece = &bytes[..framing::piece(bytes, self.line_max)];
        self.rest = match self.too_long {
            TooLong::Split => Rest::Line,
            TooLong::Truncate => Rest::Dropped,
            TooLong::Reject => Rest::Rejected,
        };
        to.send(match self.rest {
            Rest::Rejected => Piece::TooLong(piece.to_vec()),
            Rest::Line | Rest::Dropped => Piece::Lines([piece, b"\n"].concat().into()),
        })
        .await
        .ok()?;
        Some(piece.len())
    }

    /// Passes over bytes of a line that is too long; how many.
    async fn pass(&mut self, bytes: &[u8], to: &Sender<Piece>) -> Option<usize> {
        let part = &bytes[..bytes.len().min(self.line_max)];
        let end = memchr::memchr(b'\n', part);
        let part = &part[..end.unwrap_or(part.len())];
        if self.rest == Rest::Rejected && !part.is_empty() {
            to.send(Piece::TooLong(part.to_vec())).await.ok()?;
        }
        if end.is_some() {
            self.rest = Rest::Line;
        }
        Some(part.len() + usize::from(end.is_some()))
    }
}
