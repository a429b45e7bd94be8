//! Files compressed by gzip: decompressed while they are read, once, to their end.
//!
//! Positions are offsets in the decompressed text. A compressed file that holds what was read before it was compressed
//! (logrotate's `compress`) continues where that reader stopped: it is found by its head and compared with known marks.

use std::{fs, io, io::Write, path::Path, time::Duration, time::Instant};

use flate2::write::MultiGzDecoder;
use millstream_sys::disk::read_at;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    context::FileContext,
    identity::{MARK_BYTES, Mark, Stat},
};

/// The first bytes of every gzip file that uses deflate, the only known method.
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
/// The smallest file: a header of 10 bytes, an empty block of 2, a trailer of 8.
const BYTES_MIN: u64 = 20;
/// Compressed bytes decompressed at a time: they can become a thousand times as many.
const INFLATE_BYTES: usize = 4 << 10;
/// Decompressed bytes that are skipped before other tasks have a turn.
const TURN_BYTES: u64 = 512 << 10;
/// How often a file is checked that does not hold yet what was read of its original.
const GROWTH_LOOK: Duration = Duration::from_millis(500);
/// How many files of a source are decompressed at a time: each holds a window of text.
pub(super) const AT_ONCE: usize = 4;

/// What the first bytes of a file say it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Text.
    Plain,
    /// Compressed.
    Gzip,
    /// Its compression has just begun.
    Unfinished,
}

/// What a file of `len` bytes is whose first bytes are `start`.
pub(super) fn form(start: &[u8], len: u64, path: &Path) -> Form {
    let is_named = path.extension().is_some_and(|extension| extension == "gz");
    match start.starts_with(&MAGIC) {
        true if len >= BYTES_MIN => Form::Gzip,
        false if !is_named || len >= BYTES_MIN => Form::Plain,
        _ => Form::Unfinished,
    }
}

/// Whether a file was read completely when its text was read up to `offset`. Its last four bytes are the length of the text
/// of its last member; a file of several members is decompressed once more.
pub(super) fn is_read(file: &fs::File, len: u64, offset: u64) -> io::Result<bool> {
    let mut last = Vec::new();
    read_at(file, &mut last, 4, len.saturating_sub(4))?;
    let text_bytes = last.try_into().map(u32::from_le_bytes);
    Ok(offset > 0 && text_bytes.is_ok_and(|bytes| bytes == offset as u32))
}

/// The first line of the text, or as much of it as a head covers; empty if there is not that much yet.
pub(super) fn first_line(file: &fs::File, head_bytes: usize) -> io::Result<Vec<u8>> {
    let mut inflater = Inflater::default();
    inflater.fill(file, head_bytes as u64)?;
    Ok(inflater.text)
}

/// A place in the text where reading may resume, if the text before it is as the mark says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The place.
    pub offset: u64,
    /// At or before it.
    pub mark: Option<Mark>,
}

/// The text of one compressed file.
#[derive(Debug)]
pub(super) struct GzipText {
    inflater: Inflater,
    /// Bounds how many files are decompressed at a time.
    _permit: Option<OwnedSemaphorePermit>,
}

impl GzipText {
    pub(super) fn new(permit: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            inflater: Inflater::default(),
            _permit: permit,
        }
    }

    /// Starts again at the first byte.
    pub(super) fn restart(&mut self) {
        self.inflater = Inflater::default();
    }

    /// Finds the first candidate that the text has and whose mark fits. Waits for text while the file is being written.
    /// `since`: when the file counts as written if its own time lies in the future.
    pub(super) async fn find(
        &mut self,
        file: &fs::File,
        candidates: &[Candidate],
        since: Instant,
        context: &mut FileContext,
    ) -> io::Result<Option<Mark>> {
        for candidate in candidates {
            let mark = candidate
                .mark
                .filter(|mark| (1..=candidate.offset).contains(&mark.offset));
            self.restart();
            if let Some(mark) = mark
                && self.reach(file, mark.offset, since, context).await? != Some(mark)
            {
                continue;
            }
            let mark = self.reach(file, candidate.offset, since, context).await?;
            if mark.is_some() || context.stop.is_stopped() {
                return Ok(mark);
            }
        }
        Ok(None)
    }

    /// Skips the text up to an offset, and waits for it while the file is being written. Returns the mark there, or None if
    /// the text ends before it.
    async fn reach(
        &mut self,
        file: &fs::File,
        offset: u64,
        since: Instant,
        context: &mut FileContext,
    ) -> io::Result<Option<Mark>> {
        loop {
            let mark = self.skip_to(file, offset, context).await?;
            if mark.is_some()
                || context.stop.is_stopped()
                || !self.may_grow(file, since, context)?
            {
                return Ok(mark);
            }
            context.pause(GROWTH_LOOK).await;
        }
    }

    /// Whether more text may come than was decompressed.
    fn may_grow(&self, file: &fs::File, since: Instant, context: &FileContext) -> io::Result<bool> {
        let stat = Stat::of(file)?;
        let is_over = context.source.once
            || self.inflater.broken.is_some()
            || stat.written_at().unwrap_or(since).elapsed() > context.common.options.rotate_wait
            || is_read(file, stat.len, self.inflater.end())?;
        Ok(!is_over)
    }

    /// Skips the text up to an offset; returns the mark there, or None if the text ends before it.
    pub(super) async fn skip_to(
        &mut self,
        file: &fs::File,
        offset: u64,
        context: &FileContext,
    ) -> io::Result<Option<Mark>> {
        loop {
            let inflater = &mut self.inflater;
            let (before, until) = (inflater.end(), offset.min(inflater.end() + TURN_BYTES));
            inflater.fill(file, until)?;
            if inflater.end() >= offset {
                inflater.forget(offset.saturating_sub(MARK_BYTES as u64));
                return Ok(inflater.mark(offset));
            }
            inflater.forget(inflater.end().saturating_sub(MARK_BYTES as u64));
            if inflater.end() == before || context.stop.is_stopped() {
                return Ok(None);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Whether the text at `mark` can be read without skipping to it. If it lies before the text that is held, starts again.
    pub(super) fn is_at(&mut self, mark: Mark) -> bool {
        let is_before = mark.offset - (mark.covered() as u64) < self.inflater.begin;
        let is_at = !is_before && self.inflater.end() >= mark.offset;
        if is_before {
            self.restart();
        }
        is_at
    }

    /// Decompresses up to `bytes` bytes of text behind `mark`. Returns how many there are.
    pub(super) fn fill(&mut self, file: &fs::File, mark: Mark, bytes: usize) -> io::Result<u64> {
        self.inflater.forget(mark.offset - mark.covered() as u64);
        self.inflater.fill(file, mark.offset + bytes as u64)?;
        Ok(self.inflater.end() - mark.offset)
    }

    /// What [`GzipText::fill`] made available, behind the bytes that `mark` covers.
    pub(super) fn text(&self, mark: Mark) -> &[u8] {
        self.inflater.text.get(mark.covered()..).unwrap_or_default()
    }

    /// The mark at an offset of the text that is held.
    pub(super) fn mark(&self, offset: u64) -> Option<Mark> {
        self.inflater.mark(offset)
    }

    /// Why the file is damaged: its text ends here.
    pub(super) fn damage(&self) -> Option<&str> {
        self.inflater.broken.as_deref()
    }

    /// How many compressed bytes were consumed.
    pub(super) fn compressed_bytes(&self) -> u64 {
        self.inflater.consumed
    }
}

/// Decompresses a file from its beginning.
#[derive(Debug)]
struct Inflater {
    inflate: MultiGzDecoder<Vec<u8>>,
    /// Compressed bytes that were consumed.
    consumed: u64,
    /// The text from `begin` on that is still needed.
    text: Vec<u8>,
    begin: u64,
    /// The file is damaged: its text ends here.
    broken: Option<String>,
}

impl Default for Inflater {
    fn default() -> Self {
        Self {
            inflate: MultiGzDecoder::new(Vec::new()),
            consumed: 0,
            text: Vec::new(),
            begin: 0,
            broken: None,
        }
    }
}

impl Inflater {
    /// Where the text that is held ends.
    fn end(&self) -> u64 {
        self.begin + self.text.len() as u64
    }

    /// Decompresses until the text reaches `until` or ends.
    fn fill(&mut self, file: &fs::File, until: u64) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(INFLATE_BYTES);
        while self.end() < until && self.broken.is_none() {
            bytes.clear();
            if read_at(file, &mut bytes, INFLATE_BYTES, self.consumed)? == 0 {
                return Ok(());
            }
            let written = self
                .inflate
                .write_all(&bytes)
                .and_then(|()| self.inflate.flush());
            if let Err(error) = written {
                self.broken = Some(error.to_string());
            }
            self.consumed += bytes.len() as u64;
            self.text.append(self.inflate.get_mut());
        }
        Ok(())
    }

    /// Drops the text before an offset.
    fn forget(&mut self, before: u64) {
        let bytes = before
            .saturating_sub(self.begin)
            .min(self.text.len() as u64);
        self.text.drain(..bytes as usize);
        self.begin += bytes;
    }

    /// The mark at an offset, before which the text that a mark covers is held.
    fn mark(&self, offset: u64) -> Option<Mark> {
        let bytes = usize::try_from(offset.checked_sub(self.begin)?).ok()?;
        Some(Mark::new(offset, self.text.get(..bytes)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognized_by_their_first_bytes_and_an_unfinished_one_is_not_text() {
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

    #[test]
    fn text_is_decompressed_from_the_position_and_again_after_going_back() {
        let text: Vec<u8> = (0..5000)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), gzip.finish().unwrap()).unwrap();
        let file = fs::File::open(file.path()).unwrap();
        let mark = |offset: usize| Mark::new(offset as u64, &text[..offset]);
        let mut read = GzipText::new(None);
        assert!(read.is_at(Mark::default()));
        assert!(read.fill(&file, Mark::default(), 1000).unwrap() >= 1000);
        assert_eq!(read.mark(900), Some(mark(900)));
        read.fill(&file, mark(900), 500).unwrap();
        assert!(read.text(mark(900)).starts_with(&text[900..1400]));
        assert!(!read.is_at(mark(300)), "that text was dropped");
        assert!(!read.is_at(mark(300)), "and it starts again");
        assert_eq!(read.compressed_bytes(), 0);
    }
}
