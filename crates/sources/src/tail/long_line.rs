//! Finds the end of a line that is longer than `line_max` and is to be truncated or rejected.
//!
//! Such a line is handled only once its newline is written, or once the reader is done with the file. So the position of the
//! reader never points into the line.

use std::{fs, io};

use millstream_sys::disk::read_at;

use super::identity::Mark;

/// Bytes searched at a time.
const SEARCH_BYTES: usize = 256 << 10;

/// Finds the end of a long line. Remembers how far it has searched, because the line may grow for a long time.
#[derive(Debug, Default)]
pub(super) struct LineEnd {
    searched: u64,
}

impl LineEnd {
    /// Searches the file from `from` to its length `len`, and returns the mark (an offset with a checksum) after the first
    /// newline. None if there is no newline yet.
    pub(super) async fn find(
        &mut self,
        file: &fs::File,
        from: u64,
        len: u64,
    ) -> io::Result<Option<Mark>> {
        let mut at = self.searched.max(from);
        let mut bytes = Vec::with_capacity(SEARCH_BYTES);
        while at < len {
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

    /// Forgets how far the current line was searched, because the next search is for another line.
    pub(super) fn reset(&mut self) {
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_line_is_found_when_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let mut text = vec![b'x'; 2 * SEARCH_BYTES];
        fs::write(&path, &text).unwrap();
        let file = fs::File::open(&path).unwrap();
        let mut end = LineEnd::default();
        let len = text.len() as u64;
        assert_eq!(end.find(&file, 10, len).await.unwrap(), None);
        assert_eq!(end.searched, len);
        text.extend_from_slice(b"x\nnext\n");
        fs::write(&path, &text).unwrap();
        let found = end.find(&file, 10, text.len() as u64).await.unwrap();
        assert_eq!(found.map(|mark| mark.offset), Some(len + 2));
        end.reset();
        assert_eq!(end.searched, 0);
    }
}
