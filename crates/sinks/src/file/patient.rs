//! When what waits is written, and again if that fails.
//!
//! `take -> encode -> [write] -> settle`
//!
//! Pending records are written when nothing more is ready, so an idle stream has no extra latency; a busy one is written in
//! large pieces. Behind a durable channel a failure ends the run: the next one recovers and reads again what was not
//! committed. Behind memory nothing can be read again, so a failed write is retried until it succeeds, and the source waits.

use std::time::{Duration, Instant};

use millstream_pipeline::{
    condition::Trouble,
    failure::{Again, Failure},
    report::Reporter,
};
use millstream_record::{Position, Time};

use super::{pending::GATHER_BYTES, writer::Writer};

/// A busy stream is written at least this often; an idle one at once.
const GATHER: Duration = Duration::from_millis(10);
/// Back-off of a write that fails.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A writer with its timers and retries.
pub(super) struct PatientWriter {
    pub(super) writer: Writer,
    /// What was not committed is delivered again after a failure.
    durable: bool,
    reporter: Reporter,
    /// When a file may be due for rotation or closing.
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

    /// The number of the file called `name` for a batch received at `received`; rotated first if that is due.
    pub(super) async fn file(&mut self, name: &[u8], received: Time) -> Result<u32, Failure> {
        let id = self.patiently(|writer| writer.file(name, received)).await?;
        if !self.writer.is_over(id, received) {
            return Ok(id);
        }
        self.flush().await?;
        self.writer.rotate(id, received)?;
        self.patiently(|writer| writer.file(name, received)).await
    }

    /// Writes what waits.
    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        if self.writer.pending.is_empty() {
            return Ok(());
        }
        self.patiently(Writer::flush).await?;
        self.flushed = self.writer.files.now;
        let due = self.writer.soonest_due();
        self.due = Some(self.due.map_or(due, |old| old.min(due)));
        Ok(())
    }

    /// Commits everything that was written, up to `position`.
    pub(super) fn commit(&mut self, position: Option<Position>) -> Result<(), Failure> {
        self.writer.commit(position)
    }

    /// Reads the clock and does what is due.
    pub(super) async fn do_what_is_due(&mut self) -> Result<(), Failure> {
        self.writer.files.now = Instant::now();
        if self.due.is_some_and(|due| due <= self.writer.files.now) {
            self.flush().await?;
            self.due = self.writer.tick()?;
        }
        Ok(())
    }

    /// Nothing is ready: writes what waits if it is much or has waited long enough. Returns when something is due next.
    pub(super) async fn rest(&mut self) -> Result<Option<Instant>, Failure> {
        // What is held is written at the next checkpoint.
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

    /// Does `act`; behind memory retries until it succeeds.
    async fn patiently<T>(
        &mut self,
        mut act: impl FnMut(&mut Writer) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut wait = RETRY_FIRST;
        // The condition is cleared when this returns.
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
