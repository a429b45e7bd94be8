//! The spill of one file: its head and its data.
//!
//! The kernel sends one write or truncation of a file at a time. So writes take no lock.

use std::{
    collections::VecDeque,
    fs,
    io::{self, IoSliceMut},
    os::unix::fs::{FileExt, MetadataExt},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use millstream_record::Time;
use rustix::{
    fs::{FallocateFlags, Timespec, Timestamps},
    io::{Errno, ReadWriteFlags},
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{BEHIND_BYTES, HEAD_BYTES, Head, Recent, lock, open, write_at};

/// The spill of a file takes at least this many bytes more than its bound before its oldest data are dropped.
const SLACK_BYTES_MIN: u64 = 64 << 10;
/// The number of bytes that are compared at a time.
const COMPARE_BYTES: usize = 64 << 10;

/// The spill of one file.
#[derive(Debug)]
pub(in crate::fuse) struct Spill {
    number: u64,
    recent: Arc<Recent>,
    /// The file, while it is open.
    file: Mutex<Option<Arc<fs::File>>>,
    /// Held while the head is written.
    head: Mutex<()>,
    /// An upper bound of the bytes that the spill takes.
    held: AtomicU64,
    /// When the file was written or read last, by the clock of [`Recent`].
    used: AtomicU64,
    /// The offset up to which data were dropped to keep the bounds.
    dropped: AtomicU64,
    /// Whether the file has no name any more. Its spill is deleted when it is no longer used.
    is_removed: AtomicBool,
    behind: Mutex<Behind>,
    /// Wakes those who wait until `behind` is empty.
    drained: Condvar,
}

/// The data that is written behind its `write`, in order.
#[derive(Debug, Default)]
struct Behind {
    parts: VecDeque<Part>,
    /// Whether a thread is writing them.
    is_draining: bool,
}

#[derive(Debug)]
struct Part {
    offset: u64,
    data: Bytes,
    written: oneshot::Sender<()>,
    _memory: OwnedSemaphorePermit,
}

impl Spill {
    pub(super) fn new(number: u64, recent: Arc<Recent>) -> Self {
        Self {
            number,
            recent,
            file: Mutex::default(),
            head: Mutex::default(),
            held: AtomicU64::new(0),
            used: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            is_removed: AtomicBool::new(false),
            behind: Mutex::default(),
            drained: Condvar::new(),
        }
    }

    // The head.

    /// Writes the head and the time of the last write. `state` returns the current ones; `None` if the file has no name any more.
    /// It is called after the lock is taken, so that of two changes the later one stays.
    pub(in crate::fuse) fn save(&self, state: impl FnOnce() -> Option<(Head, Time)>) {
        let _order = lock(&self.head);
        let state = state();
        self.is_removed.store(state.is_none(), Relaxed);
        let saved = (|| {
            let file = self.file()?;
            let Some((head, written)) = state else {
                return write_at(&file, &[0; 16], 0);
            };
            let Some(head) = head.encode() else {
                return write_at(&file, &[0; 16], 0);
            };
            write_at(&file, &head, 0)?;
            if file.metadata()?.len() < HEAD_BYTES {
                file.set_len(HEAD_BYTES)?;
            }
            stamp(&file, written)
        })();
        self.report(saved);
    }

    /// Notes the time of the last write, which the file has again after a restart.
    pub(in crate::fuse) fn stamp(&self, written: Time) {
        self.flush();
        let stamped = self.file().and_then(|file| stamp(&file, written));
        self.report(stamped);
    }

    // Writing.

    /// Writes data. Bytes that cannot be written read as zeros.
    pub(in crate::fuse) fn write(&self, offset: u64, data: &[u8]) {
        self.flush();
        self.put(offset, data);
    }

    /// Writes data on another thread, without copying it. Waits only for memory. The receiver tells when the data is written.
    pub(in crate::fuse) async fn write_behind(
        self: &Arc<Self>,
        offset: u64,
        data: Bytes,
    ) -> Option<oneshot::Receiver<()>> {
        let memory = data.len().min(BEHIND_BYTES).div_ceil(1 << 10);
        let memory = u32::try_from(memory).unwrap_or(1);
        let memory = self.recent.behind.clone().acquire_many_owned(memory).await;
        let (written, receiver) = oneshot::channel();
        let mut behind = lock(&self.behind);
        behind.parts.push_back(Part {
            offset,
            data,
            written,
            _memory: memory.ok()?,
        });
        if !std::mem::replace(&mut behind.is_draining, true) {
            let spill = self.clone();
            tokio::task::spawn_blocking(move || spill.drain());
        }
        Some(receiver)
    }

    fn drain(&self) {
        loop {
            let mut behind = lock(&self.behind);
            let Some(part) = behind.parts.pop_front() else {
                behind.is_draining = false;
                self.drained.notify_all();
                return;
            };
            drop(behind);
            self.put(part.offset, &part.data);
            let _ = part.written.send(());
        }
    }

    /// Waits until everything is written.
    fn flush(&self) {
        let behind = lock(&self.behind);
        let is_draining = |behind: &mut Behind| behind.is_draining;
        let waited = self.drained.wait_while(behind, is_draining);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn is_draining(&self) -> bool {
        lock(&self.behind).is_draining
    }

    fn put(&self, offset: u64, data: &[u8]) {
        self.note_use();
        let bytes = data.len() as u64;
        let at = HEAD_BYTES.saturating_add(offset);
        if !self.recent.takes(bytes) {
            return self.skip(at, bytes);
        }
        self.held.fetch_add(bytes, Relaxed);
        let written = self.file().and_then(|file| write_at(&file, data, at));
        if written.is_err() {
            self.report(written);
            return self.skip(at, bytes);
        }
        let file_max = self.recent.limits().file;
        if self.held() > file_max + (file_max / 8).max(SLACK_BYTES_MIN) {
            self.measure();
            if self.held() > file_max {
                self.drop_before(at.saturating_add(bytes).saturating_sub(file_max));
            }
        }
    }

    /// Makes bytes read as zeros that are not written.
    fn skip(&self, at: u64, bytes: u64) {
        let skipped = self.file().and_then(|file| {
            let length = file.metadata()?.len();
            if at < length {
                punch(&file, at, bytes)?;
            }
            if at + bytes > length {
                file.set_len(at + bytes)?;
            }
            Ok(())
        });
        self.report(skipped);
    }

    /// Gives the file this size.
    pub(in crate::fuse) fn resize(&self, size: u64) {
        self.flush();
        self.note_use();
        let resized = self
            .file()
            .and_then(|file| file.set_len(HEAD_BYTES.saturating_add(size)));
        self.report(resized);
        self.dropped.fetch_min(size, Relaxed);
        self.measure();
    }

    /// Drops what lies behind the end of the file, after a write that failed.
    pub(in crate::fuse) fn fit(&self, size: u64) {
        self.flush();
        let length = HEAD_BYTES.saturating_add(size);
        let fitted = self.file().and_then(|file| {
            if file.metadata()?.len() > length {
                file.set_len(length)?;
            }
            Ok(())
        });
        self.report(fitted);
    }

    /// Drops the data of a write that failed while others wait.
    pub(in crate::fuse) fn erase(&self, from: u64, to: u64) {
        self.flush();
        let at = HEAD_BYTES.saturating_add(from);
        let erased = self
            .file()
            .and_then(|file| punch(&file, at, to.saturating_sub(from)));
        self.report(erased);
    }

    // Bounds.

    pub(super) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    pub(super) fn last_use(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub(super) fn note_use(&self) {
        let now = self.recent.clock.fetch_add(1, Relaxed) + 1;
        self.used.store(now, Relaxed);
    }

    /// Drops all data.
    pub(super) fn drop_data(&self) {
        self.drop_before(u64::MAX);
        if self.held() > 0 {
            // A file system may use a block more for a file. The next check must not count on it.
            self.set_held(0);
        }
    }

    /// Drops the data before an offset of the spill.
    fn drop_before(&self, at: u64) {
        let dropped = self.file().and_then(|file| {
            let length = file.metadata()?.len();
            let bytes = at.min(length).saturating_sub(HEAD_BYTES);
            self.dropped.fetch_max(bytes, Relaxed);
            match punch(&file, HEAD_BYTES, bytes) {
                Ok(()) => Ok(()),
                // Without holes, all data are dropped.
                Err(_) => file.set_len(HEAD_BYTES).and_then(|()| file.set_len(length)),
            }
        });
        self.report(dropped);
        self.measure();
    }

    /// Asks the file system for the bytes that the spill takes.
    pub(super) fn measure(&self) {
        if self.held() > 0
            && let Ok(metadata) = self.file().and_then(|file| file.metadata())
        {
            self.measure_by(&metadata);
        }
    }

    pub(super) fn measure_by(&self, metadata: &fs::Metadata) {
        // The head takes up to four blocks, and is not counted.
        let bytes = (metadata.blocks() * 512).saturating_sub(HEAD_BYTES);
        self.set_held(bytes.min(metadata.len().saturating_sub(HEAD_BYTES)));
    }

    fn set_held(&self, bytes: u64) {
        let before = self.held.swap(bytes, Relaxed);
        let all = &self.recent.held;
        all.fetch_add(bytes, Relaxed);
        all.fetch_sub(before, Relaxed);
    }

    // Reading.

    /// Reads `bytes` bytes, which must lie within the file. Bytes that are not held read as zeros.
    pub(in crate::fuse) async fn read(
        self: &Arc<Self>,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, Errno> {
        self.note_use();
        if !self.is_draining()
            && let Some(read) = self.read_cached(offset, bytes)
        {
            return Ok(read);
        }
        let spill = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            spill.flush();
            spill.read_now(offset, bytes)
        });
        read.await.unwrap_or(Err(Errno::IO))
    }

    /// Reads bytes that are in memory. `None` if some of them are not.
    fn read_cached(&self, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let file = self.file().ok()?;
        let mut read = vec![0; bytes];
        let at = HEAD_BYTES.saturating_add(offset);
        let mut parts = [IoSliceMut::new(&mut read)];
        let there = rustix::io::preadv2(&*file, &mut parts, at, ReadWriteFlags::NOWAIT).ok()?;
        (there == bytes).then_some(read)
    }

    fn read_now(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let failed = |error: io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            self.report(Err(error));
            errno
        };
        let file = self.file().map_err(failed)?;
        let mut read = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            let at = HEAD_BYTES.saturating_add(offset + done as u64);
            match file.read_at(&mut read[done..], at) {
                Ok(0) => break,
                Ok(there) => done += there,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(read)
    }

    /// Whether the file, which has this size, has exactly these bytes at `offset`. With `trust`, dropped bytes count as equal.
    pub(in crate::fuse) fn holds(&self, size: u64, offset: u64, data: &[u8], trust: bool) -> bool {
        if offset.saturating_add(data.len() as u64) > size {
            return false;
        }
        self.flush();
        let mut at = offset;
        data.chunks(COMPARE_BYTES).all(|part| {
            let read = self.read_now(at, part.len());
            let is_trusted = trust && at < self.dropped.load(Relaxed);
            at += part.len() as u64;
            read.is_ok_and(|read| read == part || is_trusted)
        })
    }

    /// SEEK_DATA and SEEK_HOLE in a file of this size.
    pub(in crate::fuse) fn seek(&self, size: u64, offset: u64, data: bool) -> Result<u64, Errno> {
        if offset >= size {
            return Err(Errno::NXIO);
        }
        self.flush();
        let at = HEAD_BYTES.saturating_add(offset);
        let file = self.file().map_err(|_| Errno::IO)?;
        let to = match data {
            true => rustix::fs::SeekFrom::Data(at),
            false => rustix::fs::SeekFrom::Hole(at),
        };
        match rustix::fs::seek(&*file, to) {
            Ok(found) => match found.saturating_sub(HEAD_BYTES) {
                found if found < size => Ok(found),
                _ if data => Err(Errno::NXIO),
                _ => Ok(size),
            },
            // The file ends with a hole.
            Err(Errno::NXIO) if !data => Ok(offset),
            Err(error) => Err(error),
        }
    }

    // The file.

    /// The file. Opens it if it is not open.
    fn file(&self) -> io::Result<Arc<fs::File>> {
        let mut file = lock(&self.file);
        if let Some(file) = &*file {
            return Ok(file.clone());
        }
        let opened = Arc::new(open(&self.recent.path(self.number))?);
        *file = Some(opened.clone());
        drop(file);
        if let Some(weak) = self.recent.weak(self.number) {
            self.recent.opened(weak);
        }
        Ok(opened)
    }

    /// Closes the file until it is needed again.
    pub(super) fn close(&self) {
        lock(&self.file).take();
    }

    fn report(&self, done: io::Result<()>) {
        if let Err(error) = done {
            let path = self.recent.path(self.number);
            let text = format_args!(
                "{}: {error}; what was written is shipped, but cannot be read back in full",
                path.display()
            );
            self.recent.reporter.error("recent", text);
        }
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        self.recent.held.fetch_sub(self.held(), Relaxed);
        let is_unwanted = self.is_removed.load(Relaxed);
        self.recent.dropped(self.number, is_unwanted);
    }
}

fn stamp(file: &fs::File, written: Time) -> io::Result<()> {
    let time = Timespec {
        tv_sec: written.seconds(),
        tv_nsec: written.subsec_nanos().into(),
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(rustix::fs::futimens(file, &times)?)
}

fn punch(file: &fs::File, at: u64, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, how, at, bytes)?)
}

/// A copy of the bytes in which `*` replaces every byte but the newlines.
pub(in crate::fuse) fn mask(data: &[u8]) -> Vec<u8> {
    let hide = |byte: &u8| if *byte == b'\n' { b'\n' } else { b'*' };
    data.iter().map(hide).collect()
}
