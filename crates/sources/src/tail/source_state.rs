//! State that the readers of a source share with `run.rs`.

use std::{path::Path, sync::Arc};

use millstream_pipeline::{
    meters::{Meter, NodeMeters},
    report::Reporter,
    tables::Table,
};
use tokio::sync::{Notify, Semaphore};

use super::{
    ends::Ends, heads::Heads, options::Options, signal::StoreSignal, turns::WaitingFiles,
    watch::Alarms,
};

/// The largest number of files of a source that are decompressed at a time. A part of the text of each of these files is in
/// memory.
const INFLATED_AT_ONCE: usize = 4;

/// State that the readers of a source share with `run.rs`.
pub(super) struct SourceState {
    pub options: Arc<Options>,
    /// Whether the source sends to a durable channel, which stores the positions.
    pub durable: bool,
    pub heads: Heads,
    /// None if the kernel sends no notifications.
    pub alarms: Option<Alarms>,
    pub signal: Arc<StoreSignal>,
    /// Notified when a reader does not find its file at its path, so that a scan looks for the file.
    pub scan_wanted: Notify,
    /// The permits for decompressing files. Each file that is being decompressed holds one.
    pub inflating: Arc<Semaphore>,
    pub ends: Arc<Ends>,
    /// The files that wait because too many files are open.
    pub waiting: WaitingFiles,
    pub meters: TailMeters,
}

impl SourceState {
    pub(super) fn new(
        options: Arc<Options>,
        durable: bool,
        alarms: Option<Alarms>,
        meters: &NodeMeters,
    ) -> Self {
        Self {
            options,
            durable,
            heads: Heads::default(),
            alarms,
            signal: Arc::default(),
            scan_wanted: Notify::new(),
            inflating: Arc::new(Semaphore::new(INFLATED_AT_ONCE)),
            ends: Arc::default(),
            waiting: WaitingFiles::default(),
            meters: TailMeters::new(meters),
        }
    }

    /// Counts and reports that the renamed file at `path` was overwritten, so that it is not read from `offset` on. `len` is the
    /// length that the last scan has seen.
    pub(super) fn report_overwritten(
        &self,
        reporter: &Reporter,
        path: &str,
        offset: u64,
        len: u64,
    ) {
        self.meters.overwritten.add(1);
        if len <= offset {
            let text = format_args!(
                "{path} was renamed, read to byte {offset} and then overwritten in place, as `shred` does; it is closed"
            );
            return reporter.info("overwritten", text);
        }
        let text = format_args!(
            "{path} was renamed and then overwritten in place, as `shred` does, so nothing is read from it after byte {offset}; \
             lines after that byte that no copy has are lost"
        );
        reporter.warn("overwritten", text);
    }

    /// Counts and reports that the first `bytes` bytes of the file at `path` are not read, because they were read from the file at
    /// `original`, or will be.
    pub(super) fn report_copy(&self, reporter: &Reporter, bytes: u64, path: &str, original: &Path) {
        self.meters.copied.add(bytes);
        let original = original.display();
        let text = format_args!(
            "{path} has the content of {original} and a name that log rotation makes, so it counts as its copy: the \
             {bytes} bytes that are read from {original} are not read from it again"
        );
        reporter.info("copy", text);
    }
}

/// The metrics of a source.
pub(super) struct TailMeters {
    /// Unread bytes of all files.
    pub lag: Meter,
    /// Unread bytes of the file that has the most.
    pub lag_max: Meter,
    /// The files with the most unread bytes.
    pub lags: Table,
    pub open_files: Meter,
    pub truncated: Meter,
    pub too_long: Meter,
    pub read_errors: Meter,
    /// Lines with bytes that are invalid in the encoding of the text.
    pub garbled: Meter,
    /// Bytes of holes that were skipped.
    pub holes: Meter,
    /// Bytes of copies that were not read, because their originals are read.
    pub copied: Meter,
    /// Bytes of files that were removed while they were closed, before they were read.
    pub lost: Meter,
    /// Renamed files that were overwritten before they were read to their end.
    pub overwritten: Meter,
    /// Files that were removed or renamed.
    pub done: Meter,
}

impl TailMeters {
    pub(super) fn new(meters: &NodeMeters) -> Self {
        Self {
            lag: meters.gauge("lag_bytes"),
            lag_max: meters.gauge("lag_bytes_max"),
            lags: meters.table("file_lag_bytes", "path"),
            open_files: meters.gauge("open_files"),
            truncated: meters.counter("files_truncated"),
            too_long: meters.counter("lines_too_long"),
            read_errors: meters.counter("read_errors"),
            garbled: meters.counter("lines_garbled"),
            holes: meters.counter("hole_bytes"),
            copied: meters.counter("copy_bytes"),
            lost: meters.counter("lost_bytes"),
            overwritten: meters.counter("files_overwritten"),
            done: meters.counter("files_done"),
        }
    }
}
