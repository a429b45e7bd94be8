//! Lines longer than `line_max`: split, truncated or rejected.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! A piece of a split line is a batch of its own, and a position may stand behind it: reading on from there gives the
//! same further pieces. A truncated or rejected line is done with when its end is there, so no position points into it.

use std::io;

use bytes::Bytes;
use millstream_pipeline::reject;
use millstream_record::Buffer;
use millstream_sys::disk::read_at;

use super::{
    identity::Mark,
    reader::{Reader, Step},
};
use crate::framing::{TooLong, piece};

/// Bytes looked through at a time for the end of a line.
const SEARCH_BYTES: usize = 256 << 10;

impl Reader {
    /// The line at the start of `buffer[covered..]` is too long; the file has `len` bytes.
    pub(super) async fn long_line(
        &mut self,
        mut buffer: Buffer,
        covered: usize,
        len: u64,
    ) -> io::Result<Step> {
        let piece = piece(&buffer[covered..], self.common.options.line_max);
        let end = match self.too_long() {
            TooLong::Split => {
                let mark = Mark::new(self.next.offset + piece as u64, &buffer[..covered + piece]);
                Some(mark)
            }
            TooLong::Truncate | TooLong::Reject => self.end_of_line(piece, len).await?,
        };
        let Some(mark) = end else {
            self.partial = len - self.next.offset;
            return Ok(Step::End);
        };
        if self.too_long() == TooLong::Reject {
            return self.reject_line(mark.offset - 1, mark).await;
        }
        self.common.too_long.add(1);
        self.searched = 0;
        buffer.truncate(covered + piece);
        buffer.push(b'\n');
        self.send(buffer, covered..covered + piece + 1, mark)
            .await?;
        Ok(Step::On)
    }

    /// The mark behind the newline of a line whose first `piece` bytes hold none.
    async fn end_of_line(&mut self, piece: usize, len: u64) -> io::Result<Option<Mark>> {
        let mut at = self.searched.max(self.next.offset + piece as u64);
        let mut bytes = Vec::with_capacity(SEARCH_BYTES);
        while at < len {
            let Some(file) = &self.file else {
                return Ok(None);
            };
            bytes.clear();
            let read = read_at(file, &mut bytes, SEARCH_BYTES, at)?;
            if let Some(newline) = memchr::memchr(b'\n', &bytes) {
                return Mark::read(file, at + newline as u64 + 1);
            }
            if read == 0 {
                break;
            }
            at += read as u64;
            self.searched = at;
            tokio::task::yield_now().await;
        }
        Ok(None)
    }

    /// Sends the line that ends at `end` out by the port `NAME.rejected`, in pieces, and goes on at `mark`.
    pub(super) async fn reject_line(&mut self, end: u64, mark: Mark) -> io::Result<Step> {
        let begin = self.next.offset;
        let id = self.identify()?;
        let line_max = self.common.options.line_max;
        let reason = format!(
            "a line of {} bytes is longer than line_max ({line_max})",
            end - begin
        );
        let mut at = begin;
        while at < end {
            let Some(file) = &self.file else {
                return Ok(Step::On);
            };
            let mut bytes = Vec::new();
            let wanted = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(line_max.max(1));
            let read = read_at(file, &mut bytes, wanted, at)?;
            if read == 0 {
                return Ok(Step::Replaced);
            }
            at += read as u64;
            let from = self.batch(id, Bytes::new(), 0, at);
            let rejected = reject::batch(&self.context.name, &from, [&bytes[..]], &reason);
            if self
                .context
                .rejects
                .send(rejected, true)
                .await
                .await
                .is_err()
            {
                return Ok(Step::Again);
            }
        }
        self.common.too_long.add(1);
        self.searched = 0;
        self.pass_over(mark).await?;
        Ok(Step::On)
    }
}
