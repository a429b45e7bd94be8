//! Bounds the amount of data that is written but not yet on disk, and starts its write-back early.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! A sink that writes faster than its disk would fill the page cache, and with it the memory of the whole host. So write-back
//! starts as soon as a mebibyte of a file is written, and a write that exceeds `dirty_max` waits until the oldest bytes are on
//! disk. None of this makes data durable: only the sync of the next checkpoint does.

use std::collections::VecDeque;

use millstream_pipeline::failure::Failure;

use super::files::Files;

/// A window (adjacent bytes of a file, written one after the other) grows until it has this many bytes, or a quarter of
/// `dirty_max` if that is less. A wait for the disk covers one window.
const WINDOW_BYTES: u64 = 4 << 20;
/// The write-back of fewer bytes is left to the next sync, because the next lines would dirty the same pages again.
const START_BYTES: u64 = 1 << 20;

/// Adjacent bytes of a file, written one after the other.
struct Window {
    id: u32,
    start: u64,
    /// The end of the bytes whose write-back has started.
    started: u64,
    end: u64,
}

/// Data written since the last commit, the oldest first.
pub(super) struct Dirty {
    /// Maximum number of bytes; 0: no limit.
    max: u64,
    bytes: u64,
    windows: VecDeque<Window>,
}

impl Dirty {
    pub(super) fn new(max: u64) -> Self {
        Self {
            max,
            bytes: 0,
            windows: VecDeque::new(),
        }
    }

    /// Forgets all windows, because everything was synced.
    pub(super) fn clear(&mut self) {
        self.bytes = 0;
        self.windows.clear();
    }

    /// Notes that `bytes` bytes were written to file `id` at offset `start`. With `uncached` the kernel has already started their
    /// write-back. If more than `max` bytes are then not yet on disk, waits for the disk.
    pub(super) fn wrote(
        &mut self,
        files: &mut Files,
        id: u32,
        start: u64,
        bytes: u64,
        uncached: bool,
    ) -> Result<(), Failure> {
        let limit = match self.max {
            0 => WINDOW_BYTES,
            max => WINDOW_BYTES.min(max / 4),
        };
        self.bytes += bytes;
        let end = start + bytes;
        match self.windows.back_mut() {
            Some(last) if last.id == id && last.end == start && start - last.start < limit => {
                last.end = end;
            }
            _ => self.windows.push_back(Window {
                id,
                start,
                started: start,
                end,
            }),
        }
        if let Some(last) = self.windows.back_mut() {
            if uncached {
                last.started = end;
            } else if end - last.started >= START_BYTES
                && let Some(file) = &files.outputs.get(id).file
            {
                // The next sync reports an error of write-back.
                let _ = file.start_writeback(last.started, end - last.started);
                last.started = end;
            }
        }
        while self.max > 0 && self.bytes > self.max {
            let Some(oldest) = self.windows.pop_front() else {
                break;
            };
            self.bytes -= oldest.end - oldest.start;
            files.wait_for_disk(oldest.id, oldest.start, oldest.end)?;
        }
        Ok(())
    }
}
