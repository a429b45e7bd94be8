//! The reader of one file: turns bytes on the disk into batches, in order, until it stops or the file is gone.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! The reader decides when to read; `stepper.rs` reads. After a failure, the reader continues at the settled mark, the mark before
//! which everything is settled.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use millstream_pipeline::condition::{Condition, Trouble};
use tokio::time::sleep_until;

use super::{
    begin::Begin,
    context::FileContext,
    done::WhenDone,
    ends::Ended,
    identity::Stat,
    join::{ASK_WAIT, Predecessor},
    records::Step,
    stepper::Stepper,
    tracked::Tracked,
    turns,
};

/// How long the reader waits before it retries a file that cannot be read.
const TROUBLE_WAIT: Duration = Duration::from_secs(5);
/// A file without kernel notifications is checked again after a tenth of the time for which it has been idle.
const LOOK_SHARE: u32 = 10;
/// The shortest interval between two checks of such a file.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The reader of one file.
pub(super) struct Reader {
    stepper: Stepper,
    /// Whether `when_done` is no longer applied to the file, because the file is damaged or incomplete, or because `when_done`
    /// failed.
    stays: bool,
    /// Raised while the file cannot be read.
    failing: Option<Condition>,
    /// Whether the reader of the next file has asked for the end of this one. It is read once more before the answer.
    was_asked: bool,
}

impl Reader {
    /// Reads a file until the source stops or no more lines are expected in the file. With `--once`, reads it to its end. Then
    /// waits for the receipts (the answers of the channel) of the batches in flight. Begins only after the file `after` was read
    /// to its end.
    pub(super) async fn run(
        context: FileContext,
        begin: Begin,
        after: Option<Arc<Tracked>>,
        predecessor: Option<Predecessor>,
    ) -> Ended {
        let mut reader = Self {
            stepper: Stepper::new(context, &begin, predecessor),
            stays: false,
            failing: None,
            was_asked: false,
        };
        if let Some(after) = after {
            tokio::select! {
                () = after.read.notified() => {}
                () = reader.stepper.context.stop.stopped() => {}
            }
        }
        match begin {
            Begin::Fresh { .. } | Begin::At(..) => {}
            Begin::Announce(..) => reader.stepper.announce().await,
            Begin::Gzip(begin) => match reader.stepper.begin_gzip(begin).await {
                Ok(true) => {}
                Ok(false) => return reader.ended(),
                Err(error) => {
                    // Without `gzip` the file does not count as read, so the next scan gives it a reader again.
                    reader.stepper.gzip = None;
                    let _ = reader.report_failure(&error).await;
                    return reader.ended();
                }
            },
        }
        reader.read_all().await
    }

    async fn read_all(mut self) -> Ended {
        while !self.stepper.context.stop.is_stopped() {
            if self.stepper.records.position.collect().is_err() {
                self.stepper.go_back().await;
            }
            if self.stepper.records.position.is_full() {
                self.stepper.records.position.answered().await;
                continue;
            }
            let step = self.stepper.step().await;
            if step.is_ok() {
                self.failing = None;
            }
            let is_done = match step {
                Ok(Step::Continue) => {
                    self.yield_turn().await;
                    false
                }
                Ok(Step::End) => self.wait_at_end().await,
                Ok(Step::Replaced) if self.stepper.is_overwritten() => {
                    return self.end_overwritten().await;
                }
                Ok(Step::Replaced) => {
                    self.stepper.begin_anew().await;
                    false
                }
                Ok(Step::Resend) => {
                    self.stepper.go_back().await;
                    false
                }
                Err(error) => self.report_failure(&error).await,
            };
            if is_done {
                break;
            }
        }
        // If a batch is dropped now, its records are read again at the next start.
        let _ = self.stepper.records.position.land().await;
        self.stepper.records.position.publish();
        self.ended()
    }

    fn ended(&self) -> Ended {
        let position = &self.stepper.records.position;
        let is_read = position.is_settled() && !self.stepper.context.stop.is_stopped();
        let is_blank = self.stepper.blank.begins_at(position.next().offset);
        let needs_no_reader = self.stepper.gzip.is_some() || is_blank;
        Ended {
            inode: self.stepper.context.tracked.inode,
            left_at: position.id().map(|id| (id, position.settled())),
            left: self.left(is_blank),
            in_order: true,
            read: self
                .stepper
                .file
                .seen()
                .filter(|_| is_read && needs_no_reader),
            overwritten: false,
        }
    }

    /// The length of the file, if the source stops before the reader is done with it. `is_blank`: nothing is written behind the
    /// position.
    fn left(&self, is_blank: bool) -> Option<u64> {
        if !self.stepper.context.stop.is_stopped() || self.stepper.gzip.is_some() {
            return None;
        }
        let (next, settled) = {
            let position = &self.stepper.records.position;
            (position.next().offset, position.settled().offset)
        };
        let state = self.stepper.context.tracked.state();
        let stat = self.stepper.file.get().and_then(|file| Stat::of(file).ok());
        let len = match is_blank {
            true => next,
            false => stat.map_or(state.len, |stat| stat.len),
        };
        (state.rotated.is_none() || settled < len).then_some(len)
    }

    /// Ends the reader of a renamed file that was overwritten. It no longer holds lines.
    async fn end_overwritten(mut self) -> Ended {
        let position = &mut self.stepper.records.position;
        let sent = position.next().offset;
        if position.land().await.is_err() {
            let settled = position.settled().offset;
            self.stepper.report_destroyed(settled, sent);
        }
        self.stepper.records.position.publish();
        let context = &self.stepper.context;
        let path = context.path();
        let reporter = &context.source.reporter;
        let len = context.tracked.state().len;
        context
            .common
            .report_overwritten(reporter, &path, sent, len);
        Ended {
            overwritten: true,
            ..self.ended()
        }
    }

    /// Yields, so that the consumer on this thread takes the batch while it is in the cache, and other files get a turn. With
    /// `rate_max`, first waits, to keep the rate below this limit. If the reader keeps up with a busy writer, it naps (`pace.rs`),
    /// so that the next read finds several lines.
    async fn yield_turn(&mut self) {
        let rate = self.stepper.context.common.options.rate_max;
        if rate > 0 {
            let owed = std::mem::take(&mut self.stepper.records.pace.owed);
            let wait = Duration::from_secs_f64(owed as f64 / rate as f64);
            self.stepper.context.pause(wait).await;
        }
        self.stepper.yield_turn();
        let nap = match self.stepper.records.pace.at_end() {
            true => self.stepper.records.pace.woken(),
            false => None,
        };
        match nap {
            Some(nap) => self.stepper.context.pause(nap).await,
            None => tokio::task::yield_now().await,
        }
    }

    /// Waits, at the end of the file, until there may be a whole record. Returns true if the reader is done with the file.
    ///
    /// The kernel reports the next write, so waiting costs nothing. The reader ends once no path that matches leads to the file,
    /// the file was not written for `rotate_wait`, and everything that was sent is settled. If the file grows later under a name
    /// that log rotation gave it (`app.log.1`), a scan finds it again.
    async fn wait_at_end(&mut self) -> bool {
        self.stepper.context.tracked.read.notify_one();
        let joint = &self.stepper.context.tracked.joint;
        if joint.is_asked() {
            // The question may be newer than the last read.
            self.was_asked = !self.was_asked;
            if self.was_asked {
                return false;
            }
            self.stepper.answer_successor();
        }
        let rotated = self.stepper.context.tracked.state().rotated;
        let last_read = self.stepper.records.pace.last_read;
        let since = match self.stepper.gzip {
            // The reader of a compressed file ends even if the path matches. A compressed file that is not being written is
            // complete. This reader holds a permit to decompress, for which other readers wait.
            Some(_) => Some(self.stepper.file.written_at().unwrap_or(last_read)),
            None => rotated
                .or(self.has_to_be_done().then_some(last_read))
                // The last write counts, too: it may have written a line without its newline, which is not read yet.
                .map(|since| {
                    since
                        .max(last_read)
                        .max(self.stepper.file.written_at().unwrap_or(since))
                }),
        };
        let options = &self.stepper.context.common.options;
        let until = since.map(|since| since + options.rotate_wait);
        if self.stepper.context.source.once || until.is_some_and(|until| until <= Instant::now()) {
            return self.close().await;
        }
        let mut until = until
            .into_iter()
            .chain(self.stepper.records.decoder.quiet_at())
            .min();
        // A file that is written in place may be written without a notification.
        let mut polls = self.stepper.blank.is_waiting();
        if let Some(file) = self.stepper.file.get() {
            let alarms = self.stepper.context.common.alarms.as_ref();
            match alarms.map(|alarms| alarms.set(file, &self.stepper.context.tracked.alarm)) {
                // The alarm was not set before, so a write may have been missed. The file is read once more.
                Some(Ok(true)) => return false,
                Some(Ok(false))
                    if rotated.is_none() && self.stepper.records.position.is_settled() =>
                {
                    self.stepper.file.close_if_old();
                }
                Some(Ok(false)) => {}
                // The kernel sends no notifications for this file, so it is polled.
                Some(Err(error)) => {
                    polls = true;
                    let path = self.stepper.context.path();
                    let text = format_args!(
                        "the kernel sends no notifications for {path} ({error}); polling it"
                    );
                    self.stepper.context.source.reporter.warn("inotify", text);
                }
                None => polls = true,
            }
        }
        if polls {
            let idle = last_read.elapsed() / LOOK_SHARE;
            let seldom = options.rescan.max(LOOK_EVERY);
            let look = Instant::now() + idle.clamp(LOOK_EVERY, seldom);
            until = Some(until.map_or(look, |until| until.min(look)));
        }
        if self.stepper.records.position.is_settled() {
            self.stepper.yield_file();
        }
        self.wait(until).await;
        false
    }

    /// Waits for the alarm (the kernel has reported a write), a receipt, the stop signal, or the time `until`.
    async fn wait(&mut self, until: Option<Instant>) {
        let deadline = until.unwrap_or_else(Instant::now).into();
        let is_settled = self.stepper.records.position.is_settled();
        let may_yield = is_settled && self.stepper.file.get().is_some();
        let woken = tokio::select! {
            () = self.stepper.context.tracked.alarm.wake.notified() => true,
            () = self.stepper.context.stop.stopped() => false,
            () = self.stepper.records.position.answered() => false,
            () = turns::wanted(), if may_yield => false,
            () = sleep_until(deadline), if until.is_some() => false,
        };
        if let Some(nap) = self.stepper.records.pace.woken().filter(|_| woken) {
            self.stepper.context.pause(nap).await;
        }
    }

    /// Ends the reader, unless there is more to read. Returns true if the reader is done with the file.
    async fn close(&mut self) -> bool {
        // Text behind a hole is read first.
        if self.stepper.blank.end() {
            return false;
        }
        let once = self.stepper.context.source.once;
        let expected = self.stepper.context.tracked.joint.expected_since();
        let waits = expected.is_some_and(|since| once || since.elapsed() < ASK_WAIT);
        if waits && self.stepper.records.decoder.partial() > 0 {
            // The rest of the last record may be in the next file.
            self.wait(Some(Instant::now() + LOOK_EVERY)).await;
            return false;
        }
        self.report_lost();
        match self.stepper.send_partial().await {
            Ok(true) => self.is_settled().await && self.finish().await,
            Ok(false) => false,
            Err(error) => self.report_failure(&error).await,
        }
    }

    /// Reports that the file was removed while it was closed and not read to its end.
    fn report_lost(&self) {
        let is_open = self.stepper.file.get().is_some();
        let is_stopping = self.stepper.context.stop.is_stopped();
        if is_open || is_stopping || self.stepper.gzip.is_some() {
            return;
        }
        let next = self.stepper.records.position.next().offset;
        let len = self.stepper.context.tracked.state().len;
        if len <= next || self.stepper.blank.begins_at(next) {
            return;
        }
        let context = &self.stepper.context;
        context.common.meters.lost.add(len - next);
        let path = context.path();
        let text = format_args!(
            "{path} was removed before its bytes {next}..{len} were read, while it waited to be opened; they are lost"
        );
        context.source.reporter.error("removed", text);
    }

    fn has_to_be_done(&self) -> bool {
        self.stepper.context.common.options.when_done != WhenDone::Keep && !self.stays
    }

    /// Whether everything that was sent is settled. If not, waits for a receipt. The file stays open until everything is settled:
    /// if a batch is dropped, its records are read again, and a removed file could not be opened again.
    async fn is_settled(&mut self) -> bool {
        let is_settled = self.stepper.records.position.is_settled();
        if !is_settled {
            self.wait(None).await;
        }
        is_settled
    }

    /// Finishes a file that was settled completely and not written for a while: applies `when_done`. Returns true if the reader is
    /// done with the file.
    async fn finish(&mut self) -> bool {
        if let Some(gzip) = self
            .stepper
            .gzip
            .as_ref()
            .filter(|gzip| !gzip.is_complete())
        {
            // The file stays, because its damaged part may hold further records, or further records are not written yet.
            self.stays = true;
            if gzip.damage().is_none() {
                let path = self.stepper.context.path();
                let text = format_args!(
                    "{path} ends before its last gzip member does; the rest is read when it is written"
                );
                self.stepper
                    .context
                    .source
                    .reporter
                    .warn("incomplete", text);
            }
        }
        if !self.has_to_be_done() || self.stepper.context.tracked.state().rotated.is_some() {
            return true;
        }
        let path = self.stepper.context.tracked.state().path.clone();
        match self.is_read_under(&path).await {
            Ok(true) => {}
            Ok(false) => {
                // The file has grown, or a scan must find its new name.
                self.wait(Some(Instant::now() + LOOK_EVERY)).await;
                return false;
            }
            Err(error) => return self.report_failure(&error).await,
        }
        if let Err(error) = self.stepper.context.common.options.when_done.apply(&path) {
            let path = path.display();
            let text = format_args!("cannot remove or rename {path}: {error}; it stays");
            self.stepper
                .context
                .source
                .reporter
                .error("when_done", text);
            self.stays = true;
            return self.stepper.context.source.once;
        }
        self.stepper.context.common.meters.done.add(1);
        // Lines that were written just before the removal are still read, through the open handle.
        !matches!(self.stepper.is_read(), Ok(false))
    }

    /// Whether the path still leads to the file, and all of it was read.
    async fn is_read_under(&mut self, path: &Path) -> io::Result<bool> {
        let is_open = self.stepper.open().await?;
        Ok(is_open
            && Stat::at(path)?.inode == self.stepper.context.tracked.inode
            && self.stepper.is_read()?)
    }

    /// Reports that the file cannot be read, and waits. Returns true if the reader should end. The next scan then starts another
    /// reader.
    async fn report_failure(&mut self, error: &io::Error) -> bool {
        let text = format!(
            "cannot read {}: {error}; retrying",
            self.stepper.context.path()
        );
        let reporter = &self.stepper.context.source.reporter;
        self.failing
            .get_or_insert_with(|| reporter.condition("unreadable"))
            .raise(Trouble::Retrying, text);
        self.stepper.context.common.meters.read_errors.add(1);
        self.stepper.context.tracked.read.notify_one();
        drop(self.stepper.context.tracked.joint.take());
        self.stepper.context.pause(TROUBLE_WAIT).await;
        self.stepper.context.source.once || self.stepper.file.get().is_none()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stepper.tracked().joint.end();
        self.stepper.tracked().read.notify_one();
    }
}
