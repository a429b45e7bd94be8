//! Reading line by line: joined records, other encodings, compressed files.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! The bytes from the position on are shown to the framer, with more each time, until records are whole; the position goes
//! on behind them and never points into one.

use std::{io, time::Instant};

use bytes::Bytes;
use millstream_pipeline::reject;
use millstream_record::Time;

use super::{
    identity::Mark,
    reader::{Reader, Step},
};
use crate::framing::{Ending, Framed, NOT_FRAMED, Rejected};

impl Reader {
    /// Whether nothing followed a record that may be whole for as long as its rest is waited for.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet_at().is_some_and(|at| at <= Instant::now())
    }

    /// When a record that may be whole is taken as whole.
    pub(super) fn quiet_at(&self) -> Option<Instant> {
        let wait = self.framer.as_ref()?.wait()?;
        Some(self.open_since? + wait)
    }

    /// Sends the whole records in `bytes[covered..]`, which stand at the position; `more`: there is more behind them.
    pub(super) async fn frame_text(
        &mut self,
        bytes: &[u8],
        covered: usize,
        more: bool,
    ) -> io::Result<Step> {
        let text = &bytes[covered..];
        let (quiet, start) = (self.is_quiet(), self.next.offset == 0);
        let Some(framer) = &mut self.framer else {
            return Ok(Step::End);
        };
        let window = framer.window();
        let ending = match more {
            true if text.len() >= window => Ending::Full,
            true => Ending::Open,
            false if self.closing => Ending::End,
            false if quiet => Ending::Quiet,
            false => Ending::Open,
        };
        let mut framed = Framed::default();
        let taken = framer.frame(text, start, ending, Time::now(), &mut framed);
        if taken == 0 && more {
            self.read_bytes = (text.len() * 2).clamp(self.read_bytes, window.max(self.read_bytes));
            return Ok(Step::On);
        }
        if taken == 0 {
            self.partial = text.len() as u64;
            self.open_since = framer.has_line(text).then(Instant::now);
            return Ok(Step::End);
        }
        let mark = Mark::new(self.next.offset + taken as u64, &bytes[..covered + taken]);
        self.common.too_long.add(framed.too_long.into());
        self.common.garbled.add(framed.garbled.into());
        if !framed.rejected.is_empty() && !self.reject_pieces(&framed.rejected, mark).await? {
            return Ok(Step::Again);
        }
        if framed.count == 0 {
            self.pass_over(mark).await?;
        } else {
            self.send_body(framed.body.into(), framed.count, mark)
                .await?;
        }
        Ok(Step::On)
    }

    /// Sends what is rejected out by the port `NAME.rejected`; false if it was dropped there.
    async fn reject_pieces(&mut self, pieces: &[Rejected], mark: Mark) -> io::Result<bool> {
        let id = self.identify()?;
        let from = self.batch(id, Bytes::new(), 0, mark.offset);
        let line_max = self.common.options.line_max;
        let too_long = format!("a record is longer than line_max ({line_max})");
        for of_kind in pieces.chunk_by(|one, other| one.too_long == other.too_long) {
            let reason = match of_kind.first() {
                Some(piece) if !piece.too_long => NOT_FRAMED,
                _ => &too_long,
            };
            let records = of_kind.iter().map(|piece| &piece.bytes[..]);
            let rejected = reject::batch(&self.context.name, &from, records, reason);
            let receipt = self.context.rejects.send(rejected, true).await;
            if receipt.await.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
