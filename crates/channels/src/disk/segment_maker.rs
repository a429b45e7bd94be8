//! Creates the next segment ahead of time, on another thread, because filling it with zeros takes tens of milliseconds.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use millstream_sys::disk::Disk;

use super::log::{Blank, Log};

/// The back-off after a failure.
const BACK_OFF: Duration = Duration::from_secs(5);

pub(super) struct SegmentMaker {
    disk: Arc<dyn Disk>,
    thread: Option<JoinHandle<io::Result<Blank>>>,
    not_before: Instant,
}

impl SegmentMaker {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Self {
            disk,
            thread: None,
            not_before: Instant::now(),
        }
    }

    /// Passes a finished segment to the log, or begins to create one if the log wants one. After a failure here, the log creates the
    /// segment when it needs one. If that fails, too, the log reports the reason.
    pub(super) fn step(&mut self, log: &mut Log) {
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            match thread.join() {
                Ok(Ok(blank)) => log.add_blank(blank),
                _ => self.not_before = Instant::now() + BACK_OFF,
            }
        } else if self.thread.is_none()
            && self.not_before <= Instant::now()
            && let Some((path, bytes)) = log.wants_blank()
        {
            let disk = Arc::clone(&self.disk);
            self.thread = thread::Builder::new()
                .name("make segment".into())
                .spawn(move || Blank::create_ahead(&*disk, &path, bytes))
                .ok();
        }
    }

    /// Waits for the thread.
    pub(super) fn finish(&mut self) {
        self.thread.take().map(JoinHandle::join);
    }
}
