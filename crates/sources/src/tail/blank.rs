//! Parts of a file that hold nothing yet: NULs up to its end, and holes.
//!
//! A program may make its log as long as it will become (`truncate`, `fallocate`, written NULs) and then write it in place, perhaps
//! through a memory map. A part that is not written yet is read as NULs. It is never skipped, and it is read again and again, because neither the length of the file nor, with a memory map, a notification shows that it was written.
//!
//! A program that did not open its log for appending continues at its old offset after the log was truncated (`copytruncate`).
//! The file then grows again, with a hole before the first line. Such a hole is skipped, but only once text stands behind it. The
//! file system (`SEEK_DATA`) distinguishes a hole from NULs that were written. A hole ends at the start of a block, and NULs at the
//! start of that block count as part of the hole. A file smaller than a block cannot have a hole. It stores NULs instead. So NULs
//! at the start of a file count as a hole, too, if their number is at least the number of bytes that were truncated. All other NULs
//! before text are part of the text.

use std::{
    fs, io,
    time::{Duration, Instant, SystemTime},
};

use millstream_sys::disk::read_at;
use rustix::{fs::SeekFrom, io::Errno};

use super::identity::Stat;

/// The largest block size of common file systems, in bytes. NULs after a hole count as part of the hole only up to the next
/// multiple of this size.
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes that are searched for text at a time.
const SEARCH_BYTES: usize = 256 << 10;
/// The maximum number of bytes that one look searches. The next look continues there.
const LOOK_BYTES_MAX: u64 = 64 << 20;
/// The bytes at the end of a file that every look reads, because programs usually append.
const END_BYTES: u64 = 4 << 10;
/// Bytes to read where nothing was written yet.
pub(super) const READ_BYTES: usize = 16 << 10;

/// The number of NULs at the end of `text`, which begins between two characters of `unit` bytes. Counts only whole characters.
pub(super) fn trailing(text: &[u8], unit: usize) -> usize {
    if text.last() != Some(&0) {
        return 0;
    }
    let whole = text.len() - text.len() % unit;
    let written = text[..whole].iter().rposition(|byte| *byte != 0);
    let written = written.map_or(0, |last| (last + 1).next_multiple_of(unit));
    text.len() - written
}

/// Whether the first character of `text`, which has `unit` bytes, is a NUL.
pub(super) fn is_first(text: &[u8], unit: usize) -> bool {
    text.first() == Some(&0) && text.iter().take(unit).all(|byte| *byte == 0)
}

/// The offset after the last byte of a file of `len` bytes that is not a NUL, rounded up to a whole character of `unit` bytes.
pub(super) fn written_end(file: &fs::File, len: u64, unit: u64) -> io::Result<u64> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < len {
        let Some(data) = data_from(file, at)? else {
            break;
        };
        let hole = match rustix::fs::seek(file, SeekFrom::Hole(data)) {
            Ok(hole) if hole > data => hole.min(len),
            _ => len,
        };
        parts.push(data..hole);
        at = hole;
    }
    let mut bytes = Vec::new();
    for part in parts.into_iter().rev() {
        let mut end = part.end;
        while end > part.start {
            let begin = end.saturating_sub(SEARCH_BYTES as u64).max(part.start);
            bytes.clear();
            read_at(file, &mut bytes, (end - begin) as usize, begin)?;
            if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
                return Ok((begin + last as u64 + 1).next_multiple_of(unit).min(len));
            }
            end = begin;
        }
    }
    Ok(0)
}

/// The bytes after the position of a reader that reads NULs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// Nothing up to the end of the file: the program has not written it yet.
    Nothing,
    /// A hole up to this offset, and text behind it.
    Hole(u64),
    /// NULs that were written, and text behind them.
    Text,
}

/// The unwritten part of one file.
#[derive(Debug, Default)]
pub(super) struct Blank {
    /// The part that begins at the position. None if there is no such part.
    here: Option<Here>,
    /// There is no text between `here` and this offset.
    searched: u64,
    /// When the file was last written before the search.
    searched_as: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug)]
struct Here {
    at: u64,
    /// Since when, and how long the file was then.
    since: Instant,
    first_len: u64,
    /// How long the file is now.
    len: u64,
    has_text_behind: bool,
    /// Whether a hole is skipped although it may still be written, because the reader is done with the file.
    is_over: bool,
}

impl Blank {
    /// Whether the reader waits for bytes that may be written in place.
    pub(super) fn is_waiting(&self) -> bool {
        self.here.is_some()
    }

    /// Whether the file holds nothing after `offset`.
    pub(super) fn begins_at(&self, offset: u64) -> bool {
        self.here
            .is_some_and(|here| here.at == offset && !here.has_text_behind)
    }

    /// Notes that text was found at the position.
    pub(super) fn clear(&mut self) {
        self.here = None;
    }

    /// Notes that the reader wants to end. Returns true if there is text behind a hole, which is to be read first.
    pub(super) fn end(&mut self) -> bool {
        let waits = self.here.as_mut().filter(|here| here.has_text_behind);
        waits.is_some_and(|here| !std::mem::replace(&mut here.is_over, true))
    }

    /// Looks behind the NULs at `at`. `text` was read there; `truncated` is the length that the file had before it was truncated.
    pub(super) async fn look(
        &mut self,
        file: &fs::File,
        at: u64,
        text: &[u8],
        truncated: u64,
    ) -> io::Result<Behind> {
        let stat = Stat::of(file)?;
        let new = Here {
            at,
            since: Instant::now(),
            first_len: stat.len,
            len: stat.len,
            has_text_behind: false,
            is_over: false,
        };
        let before = self.here.filter(|here| here.at == at);
        let mut here = before.unwrap_or(new);
        here.len = stat.len;
        here.has_text_behind = text.iter().any(|byte| *byte != 0)
            || self.has_text(file, at, &stat, before.is_some()).await?;
        self.here = Some(here);
        if !here.has_text_behind {
            return Ok(Behind::Nothing);
        }
        let Some(data) = data_from(file, at)? else {
            return Ok(Behind::Nothing);
        };
        let hole_end = match data > at {
            true => Some(data),
            false => end_of_hole_after(file, at, stat.len)?,
        };
        if let Some(data) = hole_end {
            let mut block = Vec::new();
            let left = BLOCK_BYTES - (data % BLOCK_BYTES as u64) as usize;
            read_at(file, &mut block, left, data)?;
            return Ok(Behind::Hole(data + leading_nuls(&block)));
        }
        let nuls = leading_nuls(text);
        let is_hole = at == 0 && truncated > 0 && nuls >= truncated;
        Ok(if is_hole {
            Behind::Hole(nuls)
        } else {
            Behind::Text
        })
    }

    /// Whether the hole at the position will not be written any more: the program continued behind it after a truncation, the file
    /// has grown since the hole was found, or nothing was written into the hole for `wait`.
    pub(super) fn may_skip(&self, was_truncated: bool, wait: Duration) -> bool {
        self.here.is_none_or(|here| {
            let has_grown = here.len > here.first_len;
            was_truncated || here.is_over || has_grown || here.since.elapsed() >= wait
        })
    }

    /// Whether there is text after the NULs at `at`. `is_again`: the position was there at the last look, too.
    async fn has_text(
        &mut self,
        file: &fs::File,
        at: u64,
        stat: &Stat,
        is_again: bool,
    ) -> io::Result<bool> {
        let mut bytes = Vec::with_capacity(SEARCH_BYTES);
        let end = stat.len.saturating_sub(END_BYTES).max(at);
        read_at(file, &mut bytes, END_BYTES as usize, end)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        // Everything was searched. A new search is worthwhile only if the file was written elsewhere than at the position.
        if is_again && self.searched >= stat.len && self.searched_as != Some(stat.written) {
            self.searched = at;
        }
        if self.searched <= at {
            self.searched_as = Some(stat.written);
        }
        let mut from = self.searched.max(at);
        let until = stat.len.min(from + LOOK_BYTES_MAX);
        while from < until {
            from = data_from(file, from)?.unwrap_or(stat.len);
            bytes.clear();
            let read = read_at(file, &mut bytes, SEARCH_BYTES, from)?;
            if bytes.iter().any(|byte| *byte != 0) {
                self.searched = from;
                return Ok(true);
            }
            from += read as u64;
            if read == 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.searched = from;
        Ok(false)
    }
}

/// The offset of the first byte at or after `at` that is in no hole. None if a hole extends to the end of the file.
fn data_from(file: &fs::File, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        // The file system does not support `SEEK_DATA`.
        Err(Errno::INVAL | Errno::NOTSUP) => Ok(Some(at)),
        Err(error) => Err(error.into()),
    }
}

/// The end of a hole that begins in the next block: text was written at the start of the block of `at`, and NULs up to its end are
/// part of the hole. None if there is no such hole.
fn end_of_hole_after(file: &fs::File, at: u64, len: u64) -> io::Result<Option<u64>> {
    let Ok(hole) = rustix::fs::seek(file, SeekFrom::Hole(at)) else {
        return Ok(None);
    };
    let bytes = usize::try_from(hole.saturating_sub(at)).unwrap_or(usize::MAX);
    if hole >= len || at == 0 || bytes > BLOCK_BYTES {
        return Ok(None);
    }
    let mut rest = Vec::new();
    let read = read_at(file, &mut rest, bytes, at)?;
    let is_blank = read == bytes && rest.iter().all(|byte| *byte == 0);
    match is_blank {
        true => data_from(file, hole),
        false => Ok(None),
    }
}

fn leading_nuls(text: &[u8]) -> u64 {
    text.iter().take_while(|byte| **byte == 0).count() as u64
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    async fn look(blank: &mut Blank, file: &fs::File, truncated: u64) -> Behind {
        let mut text = Vec::new();
        read_at(file, &mut text, 64, 0).unwrap();
        blank.look(file, 0, &text, truncated).await.unwrap()
    }

    #[tokio::test]
    async fn written_nuls_count_as_a_hole_only_if_they_cover_the_truncated_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"\0\0\0\0line\n").unwrap();
        let file = fs::File::open(file.path()).unwrap();
        for (truncated, behind) in [(0, Behind::Text), (4, Behind::Hole(4)), (5, Behind::Text)] {
            assert_eq!(look(&mut Blank::default(), &file, truncated).await, behind);
        }
    }

    #[tokio::test]
    async fn a_hole_or_nuls_up_to_the_end_are_not_skipped_and_a_hole_before_text_is() {
        for hole in [true, false] {
            let file = tempfile::tempfile().unwrap();
            let len = 3 * SEARCH_BYTES as u64;
            match hole {
                true => file.set_len(len).unwrap(),
                false => file.write_all_at(&vec![0; len as usize], 0).unwrap(),
            }
            let mut blank = Blank::default();
            assert_eq!(look(&mut blank, &file, 0).await, Behind::Nothing);
            assert!(blank.begins_at(0) && !blank.end());
            assert_eq!(written_end(&file, len, 1).unwrap(), 0);
            // Text in the middle, and NULs up to the end.
            file.write_all_at(b"text\n", len / 2).unwrap();
            let behind = look(&mut blank, &file, 0).await;
            match hole {
                true => assert_eq!(behind, Behind::Hole(len / 2)),
                false => assert_eq!(behind, Behind::Text),
            }
            assert_eq!(written_end(&file, len, 1).unwrap(), len / 2 + 5);
            assert!(!blank.may_skip(false, Duration::from_secs(60)));
            assert!(blank.may_skip(true, Duration::from_secs(60)));
            assert!(blank.end() && blank.may_skip(false, Duration::from_secs(60)));
        }
    }

    #[test]
    fn only_whole_nul_characters_are_trailing() {
        assert_eq!(trailing(b"a\0\0", 1), 2);
        assert_eq!(trailing(b"\0\0", 1), 2);
        assert_eq!(trailing(b"a\n", 1), 0);
        assert_eq!(trailing(b"a\0\n\0", 2), 0, "UTF-16");
        assert_eq!(trailing(b"a\0\n\0\0\0", 2), 2);
        assert!(is_first(b"\0a", 1) && !is_first(b"\0a", 2) && !is_first(b"", 1));
    }
}
