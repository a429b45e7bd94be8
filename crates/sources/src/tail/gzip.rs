//! Reads files compressed by gzip. Each file is read once, to its end, and is decompressed during the read.
//!
//! Positions are offsets in the decompressed text. A file may be compressed after a part of it was read (logrotate's
//! `compress`). Reading of the compressed file then begins where the reader of the original stopped. The original is recognized
//! by its head (a checksum of the first line) and its marks (checksums of the bytes before certain offsets).

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use flate2::{Decompress, DecompressError, FlushDecompress, Status};
use millstream_sys::disk::read_at;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    context::FileContext,
    identity::{Candidate, MARK_BYTES, Mark, Stat},
};
use crate::compressed::is_named_compressed;

/// The first bytes of every gzip file that uses deflate, the only method in use.
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
/// The smallest file: a header of 10 bytes, an empty block of 2, a trailer of 8.
const BYTES_MIN: u64 = 20;
/// Compressed bytes that are decompressed at a time. The text can be a thousand times as large.
const INFLATE_BYTES: usize = 4 << 10;
/// The minimum free space for text when bytes are decompressed.
const TEXT_BYTES: usize = 32 << 10;
/// The binary logarithm of the size of deflate's window. This is the largest window that deflate allows.
const WINDOW_BITS: u8 = 15;
/// Decompressed bytes that are skipped before the task yields to others.
const TURN_BYTES: u64 = 512 << 10;
/// While a file is still being compressed, its text may be shorter than the part of the original that was read. This is the
/// interval at which the file is then checked for more text.
const GROWTH_LOOK: Duration = Duration::from_millis(500);

/// The kind of a file, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Text.
    Plain,
    /// Compressed.
    Gzip,
    /// Too short to tell: it begins like a compressed file or is named `.gz`.
    Unfinished,
}

/// The kind of a file of `len` bytes whose first bytes are `start`.
pub(super) fn form(start: &[u8], len: u64, path: &Path) -> Form {
    let is_named =
        path.extension().is_some_and(|extension| extension == "gz") || is_named_compressed(path);
    match start.starts_with(&MAGIC) {
        true if len >= BYTES_MIN => Form::Gzip,
        false if !is_named || len >= BYTES_MIN => Form::Plain,
        _ => Form::Unfinished,
    }
}

/// Whether the text of a file ends at `offset`. The last four bytes of the file hold the length of the text of its last member. If
/// the file has several members, this may return false although the text ends at `offset`. The file is then decompressed once more.
pub(super) fn is_read(file: &fs::File, len: u64, offset: u64) -> io::Result<bool> {
    let mut last = Vec::new();
    read_at(file, &mut last, 4, len.saturating_sub(4))?;
    let text_bytes = last.try_into().map(u32::from_le_bytes);
    Ok(offset > 0 && text_bytes.is_ok_and(|bytes| bytes == offset as u32))
}

/// At least the first `head_bytes` bytes of the text, or all of the text if it is shorter. The result contains the part of the
/// first line that a head covers.
pub(super) fn first_line(file: &fs::File, head_bytes: usize) -> io::Result<Vec<u8>> {
    let mut inflater = Inflater::default();
    inflater.fill(file, head_bytes as u64)?;
    Ok(inflater.text)
}

/// The text of one compressed file.
#[derive(Debug)]
pub(super) struct GzipText {
    inflater: Inflater,
    /// Limits how many files are decompressed at a time.
    _permit: Option<OwnedSemaphorePermit>,
}

impl GzipText {
    pub(super) fn new(permit: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            inflater: Inflater::default(),
            _permit: permit,
        }
    }

    /// Starts over at the first byte.
    pub(super) fn restart(&mut self) {
        self.inflater = Inflater::default();
    }

    /// Finds the first candidate (an offset at which reading may continue) whose mark fits the text. Returns the mark at the offset
    /// of this candidate, and the path of the file that was read up to there. A candidate without a mark fits any text that reaches its offset. Returns None if no candidate fits.
    /// Waits for more text while the file is being written. If the time of the last write lies in the future, `since` is used
    /// instead of it.
    pub(super) async fn find(
        &mut self,
        file: &fs::File,
        candidates: &[Candidate],
        since: Instant,
        context: &mut FileContext,
    ) -> io::Result<Option<(Mark, PathBuf)>> {
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
                return Ok(mark.map(|mark| (mark, candidate.path.clone())));
            }
        }
        Ok(None)
    }

    /// Skips the text up to an offset. Waits for more text while the file is being written. Returns the mark at the offset, or
    /// None if the text ends before the offset.
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

    /// Whether the file may still grow: it was written recently, and its text is not complete.
    fn may_grow(&self, file: &fs::File, since: Instant, context: &FileContext) -> io::Result<bool> {
        let stat = Stat::of(file)?;
        let is_over = context.source.once
            || self.inflater.broken.is_some()
            || stat.written_at().unwrap_or(since).elapsed() > context.common.options.rotate_wait
            || is_read(file, stat.len, self.inflater.end())?;
        Ok(!is_over)
    }

    /// Skips the text up to an offset. Returns the mark at the offset, or None if the text ends before the offset.
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

    /// Whether the text at `mark` can be read without skipping other text first. Restarts at the first byte if `mark` lies before
    /// the text in memory.
    pub(super) fn is_at(&mut self, mark: Mark) -> bool {
        let is_before = mark.offset - (mark.covered() as u64) < self.inflater.begin;
        let is_at = !is_before && self.inflater.end() >= mark.offset;
        if is_before {
            self.restart();
        }
        is_at
    }

    /// Decompresses until `bytes` bytes of text after `mark` are available, or the text ends. Returns the number of available
    /// bytes.
    pub(super) fn fill(&mut self, file: &fs::File, mark: Mark, bytes: usize) -> io::Result<u64> {
        self.inflater.forget(mark.offset - mark.covered() as u64);
        self.inflater.fill(file, mark.offset + bytes as u64)?;
        Ok(self.inflater.end() - mark.offset)
    }

    /// The text after `mark` that [`GzipText::fill`] made available.
    pub(super) fn text(&self, mark: Mark) -> &[u8] {
        self.inflater.text.get(mark.covered()..).unwrap_or_default()
    }

    /// The mark at an offset; None if the text there is not in memory.
    pub(super) fn mark(&self, offset: u64) -> Option<Mark> {
        self.inflater.mark(offset)
    }

    /// The reason why the file is damaged. None if no damage was found. The text ends at the damage.
    pub(super) fn damage(&self) -> Option<&str> {
        self.inflater.broken.as_deref()
    }

    /// Whether the consumed bytes of the file end with the trailer of a member. If this is false at the end of the file, the file
    /// is damaged, is still being written, or was cut off.
    pub(super) fn is_complete(&self) -> bool {
        self.inflater.is_whole
    }

    /// The number of compressed bytes that were consumed.
    pub(super) fn compressed_bytes(&self) -> u64 {
        self.inflater.consumed
    }
}

/// Decompresses a file from its beginning.
#[derive(Debug)]
struct Inflater {
    /// The current member.
    member: Decompress,
    /// Whether the current member has ended, with a trailer that fits its text.
    is_whole: bool,
    /// The number of compressed bytes that were consumed.
    consumed: u64,
    /// The text in memory. It begins at `begin`.
    text: Vec<u8>,
    begin: u64,
    /// The reason why the file is damaged. None if no damage was found. The text ends at the damage.
    broken: Option<String>,
}

impl Default for Inflater {
    fn default() -> Self {
        Self {
            member: Decompress::new_gzip(WINDOW_BITS),
            is_whole: false,
            consumed: 0,
            text: Vec::new(),
            begin: 0,
            broken: None,
        }
    }
}

impl Inflater {
    /// The offset at which the text in memory ends.
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
            if let Err(error) = self.inflate(&bytes) {
                self.broken = Some(error.to_string());
            }
            self.consumed += bytes.len() as u64;
        }
        Ok(())
    }

    /// Appends the text of `bytes`, which are the next ones of the file.
    fn inflate(&mut self, mut bytes: &[u8]) -> Result<(), DecompressError> {
        loop {
            if self.is_whole {
                if bytes.is_empty() {
                    return Ok(());
                }
                self.member = Decompress::new_gzip(WINDOW_BITS);
                self.is_whole = false;
            }
            self.text.reserve(TEXT_BYTES);
            let before = (self.member.total_in(), self.text.len());
            let flush = FlushDecompress::None;
            let status = self.member.decompress_vec(bytes, &mut self.text, flush)?;
            self.is_whole = status == Status::StreamEnd;
            let after = (self.member.total_in(), self.text.len());
            if before == after {
                return Ok(());
            }
            bytes = &bytes[(after.0 - before.0) as usize..];
        }
    }

    /// Drops the text before an offset.
    fn forget(&mut self, before: u64) {
        let bytes = before
            .saturating_sub(self.begin)
            .min(self.text.len() as u64);
        self.text.drain(..bytes as usize);
        self.begin += bytes;
    }

    /// The mark at an offset; None if the bytes that it covers are not in memory.
    fn mark(&self, offset: u64) -> Option<Mark> {
        let bytes = usize::try_from(offset.checked_sub(self.begin)?).ok()?;
        Some(Mark::new(offset, self.text.get(..bytes)?))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn a_file_is_complete_only_if_its_last_member_ends_with_a_trailer_that_fits() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut read = GzipText::new(None);
        let (one, mut two) = (packed(b"one\n"), packed(&[b'x'; 100_000]));
        let parts = [&one[..15], &one[15..], &two[..5], &two[5..]];
        for (part, is_complete) in parts.into_iter().zip([false, true, false, true]) {
            file.write_all(part).unwrap();
            read.fill(file.as_file(), Mark::default(), 1 << 20).unwrap();
            assert_eq!(read.is_complete(), is_complete);
        }
        assert_eq!(read.mark(100_004).unwrap().offset, 100_004);
        let checksum = two.len() - 8;
        two[checksum] ^= 1;
        file.write_all(&two).unwrap();
        read.fill(file.as_file(), Mark::default(), 1 << 20).unwrap();
        assert!(!read.is_complete() && read.damage().is_some());
    }

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
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), packed(&text)).unwrap();
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
