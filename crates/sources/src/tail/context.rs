//! The context of one reader: its file, its source and the stop signal.

use std::{path::Path, sync::Arc, time::Duration};

use millstream_pipeline::{node::SourceContext, stop::Stop};
use millstream_record::Buffer;

use super::{source_state::SourceState, tracked::Tracked};

/// The context of one reader.
pub(super) struct FileContext {
    pub common: Arc<SourceState>,
    pub source: SourceContext,
    pub stop: Stop,
    pub tracked: Arc<Tracked>,
}

impl FileContext {
    /// Sleeps for `time`, or until the source stops.
    pub(super) async fn pause(&mut self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.stop.stopped() => {}
        }
    }

    /// Waits for a buffer. Returns None when the source stops. After a stop, the wait could last forever, because consumers
    /// return no more buffers to the pool.
    pub(super) async fn reserve(&mut self, bytes: usize) -> Option<Buffer> {
        tokio::select! {
            biased;
            buffer = self.source.pool.reserve(bytes) => Some(buffer),
            () = self.stop.stopped() => None,
        }
    }

    /// Counts and reports that the first `bytes` bytes of the file are not read, because they were read from `original`.
    pub(super) fn report_copy(&self, bytes: u64, original: &Path) {
        let path = self.path();
        let reporter = &self.source.reporter;
        self.common.report_copy(reporter, bytes, &path, original);
    }

    /// The path of the file, for messages.
    pub(super) fn path(&self) -> String {
        self.tracked.state().path.display().to_string()
    }
}
