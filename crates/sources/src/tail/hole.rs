//! Skips holes. A program that did not open its log for appending continues at its old offset after the log was truncated
//! (`copytruncate`). The file then grows again, with a hole before the first line: bytes that were never written and are read as
//! NULs.
//!
//! The file system (`SEEK_DATA`) distinguishes a hole from NULs that were written. A hole ends at the start of a block, and NULs
//! at the start of that block count as part of the hole. A file smaller than a block cannot have a hole. It stores NULs instead.
//! So NULs at the start of a file count as a hole, too, if their number is at least the number of bytes that were truncated.

use std::{fs, io};

use millstream_sys::disk::read_at;
use rustix::{fs::SeekFrom, io::Errno};

/// The largest block size of common file systems, in bytes. NULs after a hole count as part of the hole only up to the next
/// multiple of this size.
const BLOCK_BYTES: usize = 64 << 10;

/// The offset at which the hole that begins at `at` ends. None if there is no hole. `text` was read at `at`, `len` is the length
/// of the file, and `truncated` is the length that it had before it was truncated.
pub(super) fn hole_end(
    file: &fs::File,
    at: u64,
    text: &[u8],
    len: u64,
    truncated: u64,
) -> io::Result<Option<u64>> {
    let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.min(len),
        Err(Errno::NXIO) => len,
        // The file system does not support `SEEK_DATA`.
        Err(_) => at,
    };
    if data > at {
        let mut block = Vec::new();
        let left = BLOCK_BYTES - (data % BLOCK_BYTES as u64) as usize;
        read_at(file, &mut block, left, data)?;
        return Ok(Some(data + leading_nuls(&block)));
    }
    let nuls = leading_nuls(text);
    Ok((at == 0 && truncated > 0 && nuls >= truncated).then_some(nuls))
}

fn leading_nuls(text: &[u8]) -> u64 {
    text.iter().take_while(|byte| **byte == 0).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_nuls_count_as_a_hole_only_if_they_cover_the_truncated_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = b"\0\0\0\0line\n";
        fs::write(file.path(), text).unwrap();
        let file = fs::File::open(file.path()).unwrap();
        let end = |truncated| hole_end(&file, 0, text, 9, truncated).unwrap();
        assert_eq!((end(0), end(4), end(5)), (None, Some(4), None));
    }
}
