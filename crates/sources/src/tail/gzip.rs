//! Files that were compressed by gzip: inflated while they are read, once, to their end.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! Positions are offsets in the inflated text. A compressed file that holds what was read before it was compressed
//! (logrotate's `compress`) goes on where that was left: it is found by the same head, and held against its marks.

use std::{fs, io, io::Write, time::Duration};

use flate2::write::MultiGzDecoder;
use millstream_record::FileId;
use millstream_sys::disk::read_at;

use super::{
    identity::{MARK_BYTES, Mark, Stat, read_file_id},
    reader::{Reader, Step},
};
use crate::flight::Flight;

/// The first bytes of every gzip file that uses the one known method, deflate.
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
/// The smallest file: a head of 10 bytes, an empty block of 2, a tail of 8.
const BYTES_MIN: u64 = 20;
/// Compressed bytes at a time: they can become a thousand times as many.
const INFLATE_BYTES: usize = 4 << 10;
/// Inflated bytes that are passed over before others have a turn.
const TURN_BYTES: u64 = 512 << 10;
/// How often a file is looked at of which not as much is there as was read of what it is made of.
const GROWTH_LOOK: Duration = Duration::from_millis(500);
/// So many files of a source are inflated at a time: each holds a window of text.
pub(super) const AT_ONCE: usize = 4;

/// What a file is whose first bytes are `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Text.
    Plain,
    /// Compressed.
    Gzip,
    /// It is only beginning to be compressed.
    Unfinished,
}

/// What a file of `len` bytes is.
pub(super) fn form(start: &[u8], len: u64, path: &std::path::Path) -> Form {
    let is_named = path.extension().is_some_and(|extension| extension == "gz");
    match start.starts_with(&MAGIC) {
        true if len >= BYTES_MIN => Form::Gzip,
        false if !is_named || len >= BYTES_MIN => Form::Plain,
        _ => Form::Unfinished,
    }
}

/// Whether all of a file was read when its text was read up to `offset`: its last four bytes are the length of the text
/// (of its last part; where there are several, it is inflated once more).
pub(super) fn is_read(file: &fs::File, len: u64, offset: u64) -> io::Result<bool> {
    let mut last = Vec::new();
    read_at(file, &mut last, 4, len.saturating_sub(4))?;
    let text_bytes = last.try_into().map(u32::from_le_bytes);
    Ok(offset > 0 && text_bytes.is_ok_and(|bytes| bytes == offset as u32))
}

/// The first line of the text, or as much of it as a head covers; none if there is not so much yet.
pub(super) fn first_line(file: &fs::File, head_bytes: usize) -> io::Result<Vec<u8>> {
    let mut inflater = Inflater::default();
    inflater.fill(file, head_bytes as u64)?;
    Ok(inflater.text)
}

/// Inflates a file from its beginning on.
#[derive(Debug)]
pub(super) struct Inflater {
    inflate: MultiGzDecoder<Vec<u8>>,
    /// Compressed bytes that were taken.
    taken: u64,
    /// The text from `begin` on that is still needed.
    text: Vec<u8>,
    begin: u64,
    /// The file is damaged: there is no more to be had.
    pub broken: Option<String>,
}

impl Default for Inflater {
    fn default() -> Self {
        Self {
            inflate: MultiGzDecoder::new(Vec::new()),
            taken: 0,
            text: Vec::new(),
            begin: 0,
            broken: None,
        }
    }
}

impl Inflater {
    /// Where the text ends that is there.
    fn end(&self) -> u64 {
        self.begin + self.text.len() as u64
    }

    /// Inflates until the text reaches `until`, or there is no more.
    fn fill(&mut self, file: &fs::File, until: u64) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(INFLATE_BYTES);
        while self.end() < until && self.broken.is_none() {
            bytes.clear();
            if read_at(file, &mut bytes, INFLATE_BYTES, self.taken)? == 0 {
                return Ok(());
            }
            let written = self
                .inflate
                .write_all(&bytes)
                .and_then(|()| self.inflate.flush());
            if let Err(error) = written {
                self.broken = Some(error.to_string());
            }
            self.taken += bytes.len() as u64;
            self.text.append(self.inflate.get_mut());
        }
        Ok(())
    }

    /// Lets go of the text before an offset.
    fn forget(&mut self, before: u64) {
        let bytes = before
            .saturating_sub(self.begin)
            .min(self.text.len() as u64);
        self.text.drain(..bytes as usize);
        self.begin += bytes;
    }

    /// The mark at an offset that the text has just reached.
    fn mark(&self, offset: u64) -> Option<Mark> {
        let bytes = usize::try_from(offset.checked_sub(self.begin)?).ok()?;
        Some(Mark::new(offset, self.text.get(..bytes)?))
    }
}

/// A place in the text where reading may go on, if the text before it is as the mark says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The place.
    pub offset: u64,
    /// At or before it.
    pub mark: Option<Mark>,
}

impl Reader {
    /// Finds the place where reading goes on; returns early when it is time to stop.
    pub(super) async fn start_gzip(
        &mut self,
        id: Option<FileId>,
        candidates: &[Candidate],
    ) -> io::Result<()> {
        let permit = tokio::select! {
            permit = self.common.inflating.clone().acquire_owned() => permit,
            () = self.stop.stopped() => return Ok(()),
        };
        self.permit = permit.ok();
        if !self.open()? {
            return Ok(());
        }
        for candidate in candidates {
            let mark = candidate
                .mark
                .filter(|mark| mark.offset <= candidate.offset);
            self.inflater = Some(Inflater::default());
            if let Some(mark) = mark.filter(|mark| mark.offset > 0)
                && self.reach(mark.offset).await? != Some(mark)
            {
                continue;
            }
            if let Some(mark) = self.reach(candidate.offset).await? {
                self.next = mark;
                self.flight = Flight::new(mark);
                self.pace.last_read = std::time::Instant::now();
                break;
            }
            if self.stop.is_stopped() {
                return Ok(());
            }
        }
        if self.next.offset == 0 {
            self.inflater = Some(Inflater::default());
        }
        if let (Some(file), true) = (&self.file, self.next.offset > 0) {
            let id = match id {
                Some(id) => id,
                None => read_file_id(file, self.tracked.inode, self.generation)?,
            };
            self.adopt(id);
            self.common.announcing();
            self.announce_start().await;
        }
        Ok(())
    }

    /// Passes over the text up to an offset, and waits for it where the file is still being written; the mark there, if there
    /// is so much text at last.
    async fn reach(&mut self, offset: u64) -> io::Result<Option<Mark>> {
        loop {
            let mark = self.skip_to(offset).await?;
            if mark.is_some() || self.stop.is_stopped() || !self.may_grow()? {
                return Ok(mark);
            }
            self.pause(GROWTH_LOOK).await;
        }
    }

    /// Whether there may come more text than was inflated.
    fn may_grow(&self) -> io::Result<bool> {
        let (Some(inflater), Some(file)) = (&self.inflater, &self.file) else {
            return Ok(false);
        };
        let stat = Stat::of(file)?;
        let is_over = self.context.once
            || inflater.broken.is_some()
            || self.written_at().unwrap_or(self.pace.last_read).elapsed()
                > self.common.options.rotate_wait
            || is_read(file, stat.len, inflater.end())?;
        Ok(!is_over)
    }

    /// Passes over the text up to an offset; the mark there, if there is so much text.
    async fn skip_to(&mut self, offset: u64) -> io::Result<Option<Mark>> {
        loop {
            let (Some(inflater), Some(file)) = (&mut self.inflater, &self.file) else {
                return Ok(None);
            };
            let (before, until) = (inflater.end(), offset.min(inflater.end() + TURN_BYTES));
            inflater.fill(file, until)?;
            if inflater.end() >= offset {
                inflater.forget(offset.saturating_sub(MARK_BYTES as u64));
                return Ok(inflater.mark(offset));
            }
            inflater.forget(inflater.end().saturating_sub(MARK_BYTES as u64));
            if inflater.end() == before || self.stop.is_stopped() {
                return Ok(None);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Inflates and sends what whole records there are, up to one batch.
    pub(super) async fn step_gzip(&mut self, mut inflater: Inflater) -> io::Result<Step> {
        let covered = self.next.covered();
        let from = self.next.offset - covered as u64;
        if inflater.begin > from || inflater.end() < self.next.offset {
            // It went back.
            let is_behind = inflater.begin > from;
            self.inflater = Some(if is_behind {
                Inflater::default()
            } else {
                inflater
            });
            let mark = self.skip_to(self.next.offset).await?;
            return Ok(match mark {
                Some(mark) if mark == self.next => Step::On,
                _ if self.stop.is_stopped() => Step::End,
                _ => Step::Replaced,
            });
        }
        let Some(file) = &self.file else {
            return Ok(Step::End);
        };
        inflater.forget(self.next.offset - covered as u64);
        inflater.fill(file, self.next.offset + self.read_bytes as u64)?;
        if let Some(why) = &inflater.broken {
            let text = format_args!("{} is damaged ({why}): the rest of it is lost", self.path());
            self.context.reporter.error("damaged", text);
        }
        let left = match inflater.broken {
            None => Stat::of(file)?.len.saturating_sub(inflater.taken),
            Some(_) => 0,
        };
        let text_bytes = inflater.text.len().saturating_sub(covered) as u64;
        self.pace.lag(left + text_bytes);
        let step = if text_bytes == self.partial && left == 0 && !self.is_quiet() && !self.closing {
            Ok(Step::End)
        } else {
            self.frame_text(&inflater.text, covered, left > 0).await
        };
        self.inflater = Some(inflater);
        step
    }
}

impl Reader {
    /// How many compressed bytes were taken.
    pub(super) fn compressed_len(&self) -> Option<u64> {
        self.inflater.as_ref().map(|inflater| inflater.taken)
    }

    /// How long the file is now.
    pub(super) fn file_len(&self) -> Option<u64> {
        let file = self.file.as_ref()?;
        Some(Stat::of(file).ok()?.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_first_bytes_and_a_beginning_is_waited_for() {
        let gzip = [0x1f, 0x8b, 8, 0];
        assert_eq!(form(&gzip, 50, "a.log".as_ref()), Form::Gzip);
        assert_eq!(form(&gzip, 10, "a.log".as_ref()), Form::Unfinished);
        assert_eq!(form(b"", 0, "a.log".as_ref()), Form::Plain);
        assert_eq!(form(b"", 0, "a.log.gz".as_ref()), Form::Unfinished);
        assert_eq!(
            form(b"some text that is long", 22, "a.gz".as_ref()),
            Form::Plain
        );
    }
}
