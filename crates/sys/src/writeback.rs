//! Control over written pages before a sync: when they go to the disk, and whether they stay in memory.
//!
//! A program that writes faster than the disk first fills the page cache with dirty pages (up to a fifth of the machine's
//! memory) and evicts the pages of other programs; then all writers on the host stall at once. With these calls a writer starts
//! the writeback of its pages early, waits for the earliest ones, and gives their memory back.

use std::{fs::File, io, os::fd::AsRawFd};

use rustix::fs::Advice;

/// The system call number of `cachestat(2)`, which is the same on every architecture; libc has no name for it yet.
const CACHESTAT: libc::c_long = 451;

/// The pages of a file, as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages in the page cache.
    pub cached: u64,
    /// Of these, pages that are modified and whose writeback has not started.
    pub dirty: u64,
    /// Of these, pages under writeback.
    pub writeback: u64,
}

/// Starts the writeback of `bytes` bytes from `offset` on and does not wait (`sync_file_range(2)`). The caller may ignore an error: the
/// next sync reports errors of the writeback.
pub fn start(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    sync_file_range(file, offset, bytes, libc::SYNC_FILE_RANGE_WRITE)
}

/// Writes the dirty pages of `bytes` bytes from `offset` on and waits until the disk has taken them, so that their memory can be reclaimed
/// immediately. The bytes are not durable yet (the disk may cache them, and the file's length may not be stored): only `fdatasync` makes
/// them durable. Treat an error like one of `fdatasync`, which does not report it again.
pub fn finish(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_file_range(file, offset, bytes, flags)
}

/// Drops pages from the page cache (`posix_fadvise(2)`): those that lie completely in the `bytes` bytes from `offset` on, are on the disk,
/// and are not mapped by another process. The caller may ignore an error.
pub fn let_go(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    // A length of 0 would mean the whole file.
    match std::num::NonZeroU64::new(bytes) {
        None => Ok(()),
        length => Ok(rustix::fs::fadvise(file, offset, length, Advice::DontNeed)?),
    }
}

#[allow(unsafe_code)]
fn sync_file_range(file: &File, offset: u64, bytes: u64, flags: u32) -> io::Result<()> {
    if bytes == 0 {
        // A length of 0 would mean the whole file.
        return Ok(());
    }
    let (Ok(offset), Ok(bytes)) = (i64::try_from(offset), i64::try_from(bytes)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: the arguments are numbers and a descriptor, which is open while `file` is borrowed. The call touches no memory.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, bytes, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The pages of a file in memory (`cachestat(2)`, Linux 6.5).
#[allow(unsafe_code)]
pub fn pages(file: &File) -> io::Result<Pages> {
    // `struct cachestat_range`: offset, length (0: to the end).
    let range = [0_u64; 2];
    // `struct cachestat`: cached, dirty, writeback, evicted, recently evicted.
    let mut counts = [0_u64; 5];
    // SAFETY: the kernel reads the 16 bytes of `range` and writes the 40 bytes of `counts`, which both outlive the call.
    let done = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0_u32,
        )
    };
    match done {
        0 => Ok(Pages {
            cached: counts[0],
            dirty: counts[1],
            writeback: counts[2],
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const BYTES: u64 = 8 << 20;

    #[test]
    fn pages_go_to_the_disk_on_request_and_their_memory_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .unwrap();
        file.write_all_at(&vec![b'x'; BYTES as usize], 0).unwrap();
        let before = pages(&file).unwrap();
        assert_eq!(before.cached, BYTES / 4096);
        assert!(before.dirty + before.writeback > 0, "{before:?}");
        start(&file, 0, BYTES).unwrap();
        finish(&file, 0, BYTES).unwrap();
        let clean = pages(&file).unwrap();
        assert_eq!(
            (clean.cached, clean.dirty, clean.writeback),
            (BYTES / 4096, 0, 0)
        );
        // A length of 0 means nothing, not the whole file.
        let_go(&file, 0, 0).unwrap();
        finish(&file, 0, 0).unwrap();
        assert_eq!(pages(&file).unwrap().cached, BYTES / 4096);
        let_go(&file, 0, BYTES).unwrap();
        assert_eq!(pages(&file).unwrap(), Pages::default());
    }
}
