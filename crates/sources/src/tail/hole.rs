//! Holes: what a program leaves that does not append. Its log is truncated (copytruncate), and it goes on writing where it
//! was: the file grows again with a hole before the first line.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! A hole is told from NULs that somebody wrote by the file system (`SEEK_DATA`); the NULs behind it up to the end of its block
//! belong to it. A file too small to have a hole is told by what was truncated: at least as many NULs.

use std::io;

use millstream_sys::disk::read_at;
use rustix::{fs::SeekFrom, io::Errno};

use super::{
    identity::Mark,
    reader::{Reader, Step},
};

/// The largest blocks of file systems: the rest of a hole's last block is as NUL as the hole.
const BLOCK_BYTES: usize = 64 << 10;

impl Reader {
    /// Passes over a hole that begins where the next record would; `text` stands there, and the file has `len` bytes.
    pub(super) async fn pass_hole(&mut self, text: &[u8], len: u64) -> io::Result<Option<Step>> {
        let Some(end) = self.hole_end(text, len)? else {
            return Ok(None);
        };
        let Some(file) = &self.file else {
            return Ok(None);
        };
        let Some(mark) = Mark::read(file, end)? else {
            return Ok(Some(Step::Replaced));
        };
        self.common.holes.add(end - self.next.offset);
        self.pass_over(mark).await?;
        Ok(Some(Step::On))
    }

    fn hole_end(&self, text: &[u8], len: u64) -> io::Result<Option<u64>> {
        let (Some(file), at) = (&self.file, self.next.offset) else {
            return Ok(None);
        };
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(len),
            Err(Errno::NXIO) => len,
            // A file system that does not tell.
            Err(_) => at,
        };
        if data > at {
            let mut block = Vec::new();
            let rest = BLOCK_BYTES - (data % BLOCK_BYTES as u64) as usize;
            read_at(file, &mut block, rest, data)?;
            return Ok(Some(data + nuls(&block) as u64));
        }
        let before = self.tracked.state().before();
        let nuls = nuls(text) as u64;
        Ok((at == 0 && before > 0 && nuls >= before).then_some(nuls))
    }
}

/// How many NULs `text` begins with.
fn nuls(text: &[u8]) -> usize {
    text.iter().take_while(|byte| **byte == 0).count()
}
