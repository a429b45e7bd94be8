//! The bytes of one read. The position of a reader is a mark: an offset and a checksum of the bytes before it (`identity.rs`).
//! Each read begins before the offset, and includes the bytes that the checksum covers. If these bytes no longer have the
//! checksum, the file was truncated or rewritten.

use std::{fs, io};

use bytes::Bytes;
use millstream_record::Buffer;
use millstream_sys::disk::read_at;

use super::identity::Mark;
use crate::flight::share;

/// Bytes that were read after a mark, and the bytes before the mark that its checksum covers.
pub(super) struct Chunk {
    buffer: Buffer,
    /// The number of bytes at the start of the buffer that lie before the mark.
    covered: usize,
    /// The offset of the text in the file.
    at: u64,
}

impl Chunk {
    /// The size of the buffer for reading `bytes` bytes at `mark`. Includes one byte for the newline that the last line of a file
    /// may lack.
    pub(super) fn memory(mark: Mark, bytes: usize) -> usize {
        mark.covered() + bytes + 1
    }

    /// Reads at most `bytes` bytes after `mark`. Returns None if the bytes before the mark have changed.
    pub(super) fn read(
        file: &fs::File,
        mut buffer: Buffer,
        mark: Mark,
        bytes: usize,
    ) -> io::Result<Option<Self>> {
        let covered = mark.covered();
        read_at(
            file,
            &mut buffer,
            covered + bytes,
            mark.offset - covered as u64,
        )?;
        let is_same = buffer
            .get(..covered)
            .is_some_and(|before| mark.fits(before));
        Ok(is_same.then_some(Self {
            buffer,
            covered,
            at: mark.offset,
        }))
    }

    /// The bytes that were read, without those before the mark.
    pub(super) fn text(&self) -> &[u8] {
        &self.buffer[self.covered..]
    }

    /// Drops the text after the first `bytes` bytes.
    pub(super) fn truncate(&mut self, bytes: usize) {
        self.buffer.truncate(self.covered + bytes);
    }

    /// The mark after the first `bytes` bytes of the text.
    pub(super) fn mark(&self, bytes: usize) -> Mark {
        Mark::new(self.at + bytes as u64, &self.buffer[..self.covered + bytes])
    }

    /// The first `bytes` bytes of the text, which are whole lines. Copies them if they are few; otherwise the result owns
    /// the buffer.
    pub(super) fn into_lines(self, bytes: usize) -> Bytes {
        share(self.buffer, self.covered..self.covered + bytes)
    }

    /// The first `bytes` bytes of the text as a line. Appends the missing newline.
    pub(super) fn into_line(mut self, bytes: usize) -> Bytes {
        self.buffer.truncate(self.covered + bytes);
        self.buffer.push(b'\n');
        self.into_lines(bytes + 1)
    }
}

#[cfg(test)]
mod tests {
    use millstream_record::Pool;

    use super::*;

    #[tokio::test]
    async fn a_chunk_is_read_only_if_the_bytes_before_its_mark_are_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, "one\ntwo\nthree").unwrap();
        let file = fs::File::open(&path).unwrap();
        let pool = Pool::new(1 << 20);
        let mark = Mark::read(&file, 4).unwrap().unwrap();
        let buffer = pool.reserve(Chunk::memory(mark, 9)).await;
        let chunk = Chunk::read(&file, buffer, mark, 9).unwrap().unwrap();
        assert_eq!(chunk.text(), b"two\nthree");
        assert_eq!(chunk.mark(4), Mark::read(&file, 8).unwrap().unwrap());
        assert_eq!(chunk.into_line(9), &b"two\nthree\n"[..]);
        fs::write(&path, "new\ntwo\nthree").unwrap();
        let buffer = pool.reserve(Chunk::memory(mark, 9)).await;
        assert!(Chunk::read(&file, buffer, mark, 9).unwrap().is_none());
    }
}
