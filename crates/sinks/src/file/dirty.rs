//! Data that was written and is not yet on disk: the disk starts on it early, and its amount is bounded.
//!
//! `encode -> [write] -> settle`
//!
//! A sink that writes faster than its disk would fill the page cache, and with it the memory of the whole host. So write-back
//! starts as soon as there is a mebibyte, and a write that leaves more than `dirty_max` waits until the disk has the oldest bytes.
//! None of this makes data durable: only the sync of the next checkpoint does.

use std::collections::VecDeque;

use millstream_pipeline::failure::Failure;

use super::files::Files;

/// The most that is waited for at a time.
const WINDOW_BYTES: u64 = 4 << 20;
/// Write-back of less than this does not start before the sync: the next lines would write the same pages again.
const START_BYTES: u64 = 1 << 20;

/// Adjacent bytes of a file, written one after the other.
struct Window {
    id: u32,
    start: u64,
    /// Write-back has started up to here.
    started: u64,
    end: u64,
}

/// What was written since the last commit, the oldest first.
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

    /// Everything was synced.
    pub(super) fn clear(&mut self) {
        self.bytes = 0;
        self.windows.clear();
    }

    /// `bytes` bytes were written to file `id` at `start`; `uncached`: the kernel has already started write-back of them.
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
                // An error of write-back is reported by the sync.
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
