//! What is on its way to the disk: sent there early, bounded, and let go of once it has arrived.
//!
//! `take -> encode -> [write] -> settle`
//!
//! A sink that writes faster than its disk would fill the page cache, and with it the memory of the whole host. So pages
//! are sent on their way as soon as there is a mebibyte of them, and a write that would leave more than `dirty_max` behind
//! waits for the oldest ones first. Durable is what was written only after the sync of the next cut.

use std::{collections::VecDeque, io};

use millstream_pipeline::failure::Failure;

use super::{files::Files, output::Output, trouble};

/// What is waited for at a time.
const WINDOW_BYTES: u64 = 4 << 20;
/// Less is not sent on its way before the sync: the next lines would be a second write of the same pages.
const START_BYTES: u64 = 1 << 20;
/// So much has to be new before pages are let go of: the call costs as much as writing a few of them.
const LET_GO_BYTES: u64 = 256 << 10;
/// The kernel holds pages together in pieces of up to this, and lets go of whole pieces.
const FOLIO_BYTES: u64 = 2 << 20;

/// Neighbouring bytes of a file that were written one after the other.
struct Window {
    id: u32,
    start: u64,
    /// Up to here they are on their way.
    started: u64,
    end: u64,
}

/// What was written since the last commit, the oldest first.
pub(super) struct Dirty {
    /// At most so many bytes; 0: no bound.
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

    /// `bytes` bytes were written to file `id` from `start` on; `uncached`: the kernel has sent them on their way itself.
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
        let (next, end) = (start + bytes, start);
        match self.windows.back_mut() {
            Some(last) if last.id == id && last.end == end && end - last.start < limit => {
                last.end = next;
            }
            _ => self.windows.push_back(Window {
                id,
                start,
                started: start,
                end: next,
            }),
        }
        if let Some(last) = self.windows.back_mut() {
            if uncached {
                last.started = next;
            } else if next - last.started >= START_BYTES
                && let Some(file) = &files.get(id).file
            {
                // What goes wrong on the way is told by the sync.
                let _ = file.start_writeback(last.started, next - last.started);
                last.started = next;
            }
        }
        while self.max > 0 && self.bytes > self.max {
            let Some(oldest) = self.windows.pop_front() else {
                break;
            };
            self.bytes -= oldest.end - oldest.start;
            files.wait_for(oldest.id, oldest.start, oldest.end)?;
        }
        Ok(())
    }
}

impl Files {
    /// Waits until the disk has taken a part of a file. Of a closed file it has: it was synced.
    fn wait_for(&mut self, id: u32, start: u64, end: u64) -> Result<(), Failure> {
        let lets_go = self.lets_go;
        let output = self.get_mut(id);
        let Some(file) = output.file.as_ref().filter(|_| output.unsynced) else {
            return Ok(());
        };
        let finished = match file.finish_writeback(start, end - start) {
            // A file system that does not know parts of files.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => file.sync(),
            other => other,
        };
        if let Err(error) = finished {
            let failure = trouble("sync", &output.path, &error);
            self.sync_failed = true;
            return Err(failure);
        }
        if lets_go {
            output.let_go_of_pages(end, LET_GO_BYTES);
        }
        Ok(())
    }

    /// The file was synced.
    pub(super) fn synced(&mut self, id: u32) {
        let lets_go = self.lets_go;
        let output = self.get_mut(id);
        output.unsynced = false;
        if lets_go {
            output.let_go_of_pages(output.length, LET_GO_BYTES);
        }
    }
}

impl Output {
    /// Gives the memory of the pages up to `end` back, which are on the disk, if at least `least` bytes are new there.
    pub(super) fn let_go_of_pages(&mut self, end: u64, least: u64) {
        let Some(file) = &self.file else { return };
        if end.saturating_sub(self.cached_from) >= least.max(1) {
            let from = self.cached_from.saturating_sub(FOLIO_BYTES);
            // A hint: a file system that does not know it keeps the pages.
            let _ = file.let_go(from, end - from);
            self.cached_from = end;
        }
    }
}
