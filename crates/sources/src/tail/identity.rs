//! The identity of a tailed file, through renames, restarts, truncation and reuse of inodes.
//!
//! A file is identified by device, inode, birth time and `head`. The head is computed from the first line when the first batch
//! is sent, and never changes after that:
//!
//! ```text
//! bits 63..48   generation: 0, incremented each time the inode holds another content (copytruncate, recreated without a
//!               birth time)
//! bits 47..32   n: how many bytes the checksum covers: the first line with its newline, at most 1024
//! bits 31..0    CRC-32C of the first n bytes
//! ```
//!
//! A file that grows keeps its head, because its first n bytes do not change. Only these bytes are compared when the file is
//! found again. The first batch includes the first line, so two readers of the same file always compute the same head. The
//! generation distinguishes contents of one inode that begin with the same line (a CSV header). A head of 0 means that nothing
//! of the file was sent yet.
//!
//! A [`Mark`] is an offset and a checksum of the bytes before it. It reveals a file that was truncated and has grown past the
//! offset again.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use millstream_record::FileId;
use millstream_sys::{checksum::crc32c, disk::read_at};

/// The largest part of the first line that the head covers, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 1024;
/// The number of bytes before its offset that a mark covers. A mark near the start of the file covers fewer bytes.
pub(super) const MARK_BYTES: usize = 256;

/// The identity of a file for the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Inode {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub number: u64,
    /// The birth time in nanoseconds since 1970. 0 if the file system keeps no birth times.
    pub birth: i64,
}

/// The metadata of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stat {
    pub inode: Inode,
    pub len: u64,
    /// False for directories, pipes and devices.
    pub is_file: bool,
    /// When the file was last written.
    pub written: SystemTime,
}

/// The length of a file, and when it was last written. A file whose `Seen` is unchanged was not written, except perhaps through a
/// memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    len: u64,
    written: SystemTime,
}

impl From<fs::Metadata> for Stat {
    fn from(metadata: fs::Metadata) -> Self {
        let nanos = |time: SystemTime| {
            time.duration_since(UNIX_EPOCH)
                .map(|since| since.as_nanos())
        };
        let birth = metadata.created().ok().and_then(|time| nanos(time).ok());
        Self {
            inode: Inode {
                device: metadata.dev(),
                number: metadata.ino(),
                birth: birth
                    .and_then(|nanos| i64::try_from(nanos).ok())
                    .unwrap_or(0),
            },
            len: metadata.len(),
            is_file: metadata.is_file(),
            written: metadata.modified().unwrap_or_else(|_| SystemTime::now()),
        }
    }
}

impl Stat {
    /// The metadata of the file at a path. Follows symbolic links.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(Self::from)
    }

    /// The length and the time of the last write.
    pub(super) fn seen(&self) -> Seen {
        Seen {
            len: self.len,
            written: self.written,
        }
    }

    /// How long ago the file was last written. Zero if the time of that write lies in the future, because the clock was set
    /// back.
    pub(super) fn age(&self) -> Duration {
        self.written.elapsed().unwrap_or_default()
    }

    /// When the file was last written. None if that time lies in the future, because the clock was set back.
    pub(super) fn written_at(&self) -> Option<Instant> {
        Instant::now().checked_sub(self.written.elapsed().ok()?)
    }

    /// The metadata of an open file.
    pub(super) fn of(file: &fs::File) -> io::Result<Self> {
        file.metadata().map(Self::from)
    }
}

/// The identity of a file whose first bytes are `start`. `generation` is the number of contents that its inode held before.
/// `start` holds at least the first line, the first 1024 bytes, or the whole file.
pub(super) fn file_id(inode: Inode, generation: u16, start: &[u8]) -> FileId {
    let start = &start[..start.len().min(HEAD_BYTES_MAX)];
    let line = memchr::memchr(b'\n', start).map_or(start, |end| &start[..=end]);
    let n = line.len() as u64;
    FileId {
        device: inode.device,
        inode: inode.number,
        birth: inode.birth,
        head: u64::from(generation) << 48 | n << 32 | u64::from(crc32c(line)),
    }
}

/// The identity of an open file.
pub(super) fn read_file_id(file: &fs::File, inode: Inode, generation: u16) -> io::Result<FileId> {
    Ok(file_id(inode, generation, &read_start(file)?))
}

/// The head of a file without its generation: equal for all contents that begin with the same line.
pub(super) fn head_key(id: &FileId) -> u64 {
    id.head & 0x0000_ffff_ffff_ffff
}

/// The generation of an identity.
pub(super) fn generation(id: &FileId) -> u16 {
    (id.head >> 48) as u16
}

/// Whether the head of `id` fits `start`, the first 1024 bytes of a file.
pub(super) fn begins_as(id: &FileId, start: &[u8]) -> bool {
    let n = (id.head >> 32 & 0xffff) as usize;
    start
        .get(..n)
        .is_some_and(|head| crc32c(head) == id.head as u32)
}

/// Whether `start` is long enough to compare it with the head of `id`, and differs from it.
pub(super) fn begins_otherwise(id: &FileId, start: &[u8]) -> bool {
    let n = (id.head >> 32 & 0xffff) as usize;
    start.len() >= n && !begins_as(id, start)
}

/// Whether the first bytes of a file may be text in UTF-8, and not what `shred` writes.
pub(super) fn is_text(start: &[u8]) -> bool {
    let is_cut = |error: std::str::Utf8Error| error.error_len().is_none();
    !start.contains(&0) && std::str::from_utf8(start).map_or_else(is_cut, |_| true)
}

/// The first bytes of a file, enough for [`begins_as`].
pub(super) fn read_start(file: &fs::File) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    read_at(file, &mut start, HEAD_BYTES_MAX, 0)?;
    Ok(start)
}

/// An offset in a file, and a checksum of the bytes before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub offset: u64,
    /// CRC-32C of the [`MARK_BYTES`] bytes before the offset, or of all bytes before the offset if there are fewer.
    pub crc: u32,
}

impl Mark {
    /// The mark at `offset`. `before` ends at the offset and holds at least the bytes that the mark covers.
    pub(super) fn new(offset: u64, before: &[u8]) -> Self {
        let covered = &before[before.len() - covered_bytes(offset).min(before.len())..];
        Self {
            offset,
            crc: crc32c(covered),
        }
    }

    /// The mark at `offset` of an open file; None if the file is shorter.
    pub(super) fn read(file: &fs::File, offset: u64) -> io::Result<Option<Self>> {
        let bytes = covered_bytes(offset);
        let mut before = Vec::new();
        let read = read_at(file, &mut before, bytes, offset - bytes as u64)?;
        Ok((read == bytes).then(|| Self::new(offset, &before)))
    }

    /// The number of bytes before the offset that the mark covers.
    pub(super) fn covered(&self) -> usize {
        covered_bytes(self.offset)
    }

    /// Whether `before`, the [`Mark::covered`] bytes before the offset, has the checksum of the mark.
    pub(super) fn fits(&self, before: &[u8]) -> bool {
        crc32c(before) == self.crc
    }
}

/// An offset at which reading of a file may continue. It is used only if the mark fits the bytes of the file.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// The path under which the file was read before. Empty if it is unknown.
    pub path: PathBuf,
    pub offset: u64,
    /// A mark at or before the offset.
    pub mark: Option<Mark>,
}

fn covered_bytes(offset: u64) -> usize {
    usize::try_from(offset).map_or(MARK_BYTES, |offset| offset.min(MARK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: Inode = Inode {
        device: 1,
        number: 2,
        birth: 3,
    };

    #[test]
    fn a_file_that_grows_keeps_its_head() {
        let id = file_id(INODE, 0, b"first line\n");
        assert_eq!(id, file_id(INODE, 0, b"first line\nsecond line\n"));
        assert!(begins_as(&id, b"first line\nsecond"));
        assert!(!begins_as(&id, b"first lime\nsecond"));
        assert!(!begins_as(&id, b"first"));
    }

    #[test]
    fn generations_of_equal_content_differ() {
        let (first, second) = (file_id(INODE, 0, b"a,b\n"), file_id(INODE, 1, b"a,b\n"));
        assert_ne!(first, second);
        assert_eq!((generation(&first), generation(&second)), (0, 1));
        assert!(begins_as(&second, b"a,b\n1,2\n"));
    }

    #[test]
    fn the_head_covers_at_most_1024_bytes_of_the_first_line() {
        let line = vec![b'x'; 5000];
        let id = file_id(INODE, 7, &line);
        assert!(begins_as(&id, &line[..1024]));
        assert!(!begins_as(&id, &line[..1023]));
        assert_eq!(generation(&id), 7);
    }

    #[test]
    fn a_mark_shows_whether_the_bytes_before_it_are_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, [b'a'; 1000]).unwrap();
        let file = fs::File::open(&path).unwrap();
        let mark = Mark::read(&file, 600).unwrap().unwrap();
        assert_eq!(mark, Mark::new(600, &[b'a'; 300]));
        assert_eq!(Mark::read(&file, 1001).unwrap(), None);
        assert_eq!(Mark::read(&file, 0).unwrap(), Some(Mark::default()));
        assert!(mark.fits(&[b'a'; 256]) && !mark.fits(&[b'b'; 256]));
    }
}
