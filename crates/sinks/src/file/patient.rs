//! Decides when pending records are written, and retries failed writes.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read back -> process -> encode -> [write] -> settle`
//!
//! Pending records are written when no other batch is ready, so an idle stream has no extra latency; a busy stream is written in
//! large pieces. Behind a durable channel a failure ends the run; the next run recovers and rereads all records that were not
//! committed. Behind a memory channel nothing can be read again, so a failed write is retried until it succeeds, and the source
//! waits.

use std::time::{Duration, Instant};

use millstream_pipeline::{
    condition::Trouble,
    failure::{Again, Failure},
    probation::waiting,
    report::Reporter,
};
use millstream_record::{Position, Time};

use super::{pending::GATHER_BYTES, writer::Writer};

/// Maximum time between two writes of a busy stream. The records of an idle stream are written immediately.
const GATHER: Duration = Duration::from_millis(10);
/// The first and the longest wait before a failed write is retried.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A writer with its timers and retries.
pub(super) struct PatientWriter {
    pub(super) writer: Writer,
    /// Whether the channel, after a failure, redelivers the records that were not committed.
    durable: bool,
    reporter: Reporter,
    /// The earliest time at which a file may be due for rotation or closing.
    due: Option<Instant>,
    flushed: Instant,
}

impl PatientWriter {
    pub(super) fn new(writer: Writer, durable: bool, reporter: Reporter) -> Self {
        let now = Instant::now();
        Self {
            writer,
            durable,
            reporter,
            due: Some(now),
            flushed: now,
        }
    }

    /// Returns the number of the file called `name`, or why no file can have this name. Rotates the file first if that is due for a
    /// batch received at `received`.
    pub(super) async fn file(
        &mut self,
        name: &[u8],
        received: Time,
    ) -> Result<Result<u32, String>, Failure> {
        let file = self.patiently(|writer| writer.file(name, received)).await?;
        let id = match file {
            Ok(id) if self.writer.is_over(id, received) => id,
            other => return Ok(other),
        };
        self.flush().await?;
        self.writer.rotate(id, received)?;
        self.patiently(|writer| writer.file(name, received)).await
    }

    /// Writes all pending records.
    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        if self.writer.pending.is_empty() {
            return Ok(());
        }
        self.patiently(|writer| waiting(|| writer.flush())).await?;
        self.flushed = self.writer.files.now;
        let due = self.writer.soonest_due();
        self.due = self.due.into_iter().chain([due]).min();
        Ok(())
    }

    /// Commits everything that was written, up to `position`.
    pub(super) fn commit(&mut self, position: Option<Position>) -> Result<(), Failure> {
        self.writer.commit(position)
    }

    /// Reads the clock, then rotates and closes the files that are due.
    pub(super) async fn do_what_is_due(&mut self) -> Result<(), Failure> {
        self.writer.files.now = Instant::now();
        if self.due.is_some_and(|due| due <= self.writer.files.now) {
            self.flush().await?;
            self.due = self.writer.tick()?;
        }
        Ok(())
    }

    /// Called when no batch is ready: writes pending records if there are many or they have waited long enough. Returns when to
    /// call it again.
    pub(super) async fn rest(&mut self) -> Result<Option<Instant>, Failure> {
        // Compressed outputs hold their records until the next checkpoint.
        if self.writer.holds() || self.writer.pending.is_empty() {
            return Ok(self.due);
        }
        let gathered = self.flushed + GATHER;
        if self.writer.pending.bytes() < GATHER_BYTES && gathered > self.writer.files.now {
            return Ok(self.due.into_iter().chain([gathered]).min());
        }
        self.flush().await?;
        Ok(self.due)
    }

    /// Runs `act`. Behind a memory channel, retries it with back-off until it succeeds, except after a failed sync or a failure
    /// that forbids a retry.
    async fn patiently<T>(
        &mut self,
        mut act: impl FnMut(&mut Writer) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut wait = RETRY_FIRST;
        // The condition that is reported during the retries. It is dropped on return, which clears it.
        let mut failing = None;
        loop {
            match act(&mut self.writer) {
                Err(failure)
                    if !self.durable
                        && failure.again != Again::Never
                        && !self.writer.files.sync_failed =>
                {
                    let failing = failing.get_or_insert_with(|| self.reporter.condition("retry"));
                    failing.raise(
                        Trouble::Retrying,
                        format_args!(
                            "{failure}; retrying in {} ms, the source waits",
                            wait.as_millis()
                        ),
                    );
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(RETRY_MAX);
                    self.writer.files.now = Instant::now();
                }
                other => return other,
            }
        }
    }
}
