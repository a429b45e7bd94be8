//! The work of `exec`: sends the records of a batch to the program and takes its answers.
//!
//! Normally records are sent as fast as the program reads them, and the n-th answer belongs to the n-th record. After a failure, it
//! is not known which record caused it. Earlier answers may even belong to other records, because the program may have skipped a
//! record. So a new process of the program gets the batch again, one record at a time. Then each failure belongs to one record.

use std::{
    io, iter,
    sync::{Arc, atomic::Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use millstream_config::Size;
use millstream_pipeline::{failure::Failure, output::Out, processor::Task, redact};
use millstream_record::Batch;
use millstream_wire::record::records;

use super::{
    Shared,
    program::{Cause, Fault, Launch, Program, Rest},
    protocol::Answers,
    staged::Staged,
    window::{Event, Outgoing, Window},
};

/// The capacity in bytes that each buffer keeps between batches.
const KEPT_BYTES: usize = 1 << 20;
/// A record that is sent alone is rejected after this many failures. (Its batch has failed once before that.)
const TRIES: u32 = 2;
/// If this many processes in a row end before they read a record, the task fails.
const UNREAD_MAX: u32 = 3;
/// If a program that has never answered fails on this many records, the task fails.
const UNPROVEN_MAX: u32 = 3;
/// Bounds of the wait for surplus output after the last answer. The wait is four times the mean time per answer, because a program
/// that writes one answer too many does so within about that time.
const SETTLE_MIN: Duration = Duration::from_micros(200);
const SETTLE_MAX: Duration = Duration::from_millis(20);
/// The first and the longest wait before a program is started again. The wait doubles until a program answers.
const WAIT_FIRST: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The task of the processor in one chain, with its program.
pub(super) struct Executing {
    shared: Arc<Shared>,
    program: Option<Program>,
    restart: Restart,
    answers: Answers,
    staged: Staged,
    outgoing: Outgoing,
    /// The limit for the answers to the present batch: `answers_max`, or less if `memory_max` is small.
    answers_max: Size,
}

/// The back-off between starts of the program.
#[derive(Debug)]
struct Restart {
    /// The wait before the next start; 0 before the first start.
    wait: Duration,
    /// The number of consecutive processes that ended before they read a record.
    unread: u32,
}

/// The words of the program, without values that `api.redact` hides: it may quote the records that it got.
fn masked(batch: &Batch, text: String) -> String {
    let redaction = redact::chosen();
    if redaction.is_empty() {
        return text;
    }
    let records = records(batch).map(|(range, _)| batch.body.get(range).unwrap_or_default());
    redaction.about(batch, records, &text).into_owned()
}

fn unable(launch: &Launch, error: &io::Error) -> Failure {
    let name = launch.name();
    Failure::peer(format!(
        "cannot start `{name}`: {error}; check `command` and `directory`"
    ))
}

impl Executing {
    /// Creates a task, which starts its program when the first record arrives. Fails if the program does not exist.
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self, Failure> {
        let launch = &shared.launch;
        launch.check().map_err(|error| unable(launch, &error))?;
        Ok(Self {
            program: None,
            restart: Restart {
                wait: Duration::ZERO,
                unread: 0,
            },
            answers: Answers::new(shared.format),
            staged: Staged::default(),
            outgoing: Outgoing::default(),
            answers_max: shared.answers_max,
            shared,
        })
    }

    /// Sends each record without waiting for the answers to earlier records. Returns `None` when all records are answered. If the
    /// program fails, discards the staged answers and returns the cause.
    fn all_at_once(&mut self, batch: &Batch) -> Result<Option<Cause>, Failure> {
        self.make_ready(batch)?;
        // If the batch has a single record, its answer cannot belong to another record. So surplus output is not awaited.
        let Err(cause) = self.run(batch, records(batch), batch.count > 1) else {
            return Ok(None);
        };
        self.staged.clear();
        self.fail(&cause, batch)?;
        Ok(Some(cause))
    }

    /// Sends each record after the previous one is answered. With `settles`, waits for surplus output after each answer.
    /// After a reload has replaced or removed the processor, no record is sent: it can take the `timeout` twice for each, and the
    /// program may have been replaced because it hangs.
    fn one_by_one(
        &mut self,
        batch: &Batch,
        settles: bool,
        comes_again: bool,
    ) -> Result<(), Failure> {
        let (mut failed, mut unproven) = (0, String::new());
        for (range, timed) in records(batch) {
            if self.shared.is_retired.load(Ordering::Relaxed) {
                let why = format!(
                    "`{}` failed, and a reload has replaced it",
                    self.shared.launch.name()
                );
                if comes_again {
                    return Err(Failure::peer(format!(
                        "{why}: its records pass through the new configuration"
                    )));
                }
                self.staged.reject(range, why);
                continue;
            }
            let mut tries = 0;
            while let Err(cause) = self.one(batch, (range.clone(), timed), settles)? {
                let fault = self.fail(&cause, batch)?;
                if fault.is_unread {
                    continue;
                }
                tries += 1;
                if tries == TRIES {
                    let why = format!("the program {}", fault.why);
                    self.staged.reject(range, why);
                    (failed, unproven) = (failed + 1, fault.why);
                    break;
                }
            }
            if failed == UNPROVEN_MAX {
                self.check_proven(&unproven)?;
            }
        }
        match failed {
            0 => Ok(()),
            _ => self.check_proven(&unproven),
        }
    }

    /// Fails if the program has never answered a record. In that case the program is at fault, so the records are not rejected.
    fn check_proven(&self, why: &str) -> Result<(), Failure> {
        if self.shared.is_proven.load(Ordering::Relaxed) {
            return Ok(());
        }
        let name = self.shared.launch.name();
        Err(Failure::peer(format!(
            "`{name}` {why}; it has not answered any record yet, so none is rejected: repair the program or `command`"
        )))
    }

    /// Sends one record and waits for its answer. The inner error is a failure of the program. The outer error is a failure of the
    /// task.
    fn one(
        &mut self,
        batch: &Batch,
        event: Event<'_>,
        settles: bool,
    ) -> Result<Result<(), Cause>, Failure> {
        self.make_ready(batch)?;
        let before = self.staged.mark();
        let ran = self.run(batch, iter::once(event), settles);
        if ran.is_err() {
            self.staged.back_to(before);
        }
        Ok(ran)
    }

    /// Sends records and stages their answers. With `settles`, waits for surplus output after the last answer.
    fn run<'a>(
        &mut self,
        batch: &'a Batch,
        records: impl Iterator<Item = Event<'a>> + Clone,
        settles: bool,
    ) -> Result<(), Cause> {
        let (shared, staged) = (&self.shared, &mut self.staged);
        let (answers, outgoing) = (&mut self.answers, &mut self.outgoing);
        let program = self.program.as_mut().ok_or(Cause::Closed)?;
        let mut window = Window::new(batch, records);
        let started = Instant::now();
        let mut deadline = started + shared.timeout.as_duration();
        loop {
            if window.stage(answers, staged, self.answers_max)? {
                program.answered();
                shared.is_proven.store(true, Ordering::Relaxed);
                (self.restart.wait, self.restart.unread) = (WAIT_FIRST, 0);
                deadline = Instant::now() + shared.timeout.as_duration();
            }
            window.encode(shared.format, outgoing, staged)?;
            if window.is_done() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(Cause::Silent(shared.timeout));
            }
            answers.release();
            let sent = program.exchange(outgoing.unsent(), &mut answers.buffer, deadline)?;
            outgoing.advance(sent);
            if answers.pending() > self.answers_max.as_usize() {
                return Err(Cause::Large(self.answers_max));
            }
        }
        let settle = match settles {
            true => (window.pace(started.elapsed()) * 4).clamp(SETTLE_MIN, SETTLE_MAX),
            false => Duration::ZERO,
        };
        if answers.pending() > 0 || program.rest(settle) == Rest::Talks {
            return Err(Cause::Surplus);
        }
        // A program that reads byte by byte may answer the last record before it reads the newline after the record.
        match program.unread() {
            0 | 1 => Ok(()),
            _ => Err(Cause::Early),
        }
    }

    /// Starts the program if it is not running. A program that can no longer be used is ended and started again.
    fn make_ready(&mut self, batch: &Batch) -> Result<(), Failure> {
        let cause = match self
            .program
            .as_mut()
            .map(|program| program.rest(Duration::ZERO))
        {
            Some(Rest::Ready) => return Ok(()),
            Some(Rest::Talks) => Some(Cause::Surplus),
            Some(Rest::Ended) => Some(Cause::Closed),
            None => None,
        };
        if cause == Some(Cause::Surplus) {
            let text = format_args!(
                "`{}` wrote more after its last answer: answers of the previous batch may belong to other records",
                self.shared.launch.name()
            );
            self.shared.reporter.error("program-stray", text);
        }
        if let Some(cause) = cause {
            self.fail(&cause, batch)?;
        }
        let Shared {
            launch, reporter, ..
        } = &*self.shared;
        sleep(self.restart.wait);
        self.restart.wait = (self.restart.wait * 2).clamp(WAIT_FIRST, WAIT_MAX);
        let program = launch.start().map_err(|error| unable(launch, &error))?;
        reporter.info("program", format_args!("`{}` was started", launch.name()));
        self.program = Some(program);
        Ok(())
    }

    /// Ends the program after a failure. Returns an error if too many processes in a row have read nothing.
    fn fail(&mut self, cause: &Cause, batch: &Batch) -> Result<Fault, Failure> {
        let Shared {
            launch, reporter, ..
        } = &*self.shared;
        self.answers.reset(KEPT_BYTES);
        self.outgoing.reset(KEPT_BYTES);
        let program = self.program.take();
        let has_answered = program.as_ref().is_some_and(Program::has_answered);
        let mut fault = match program {
            Some(program) => program.fail(cause),
            None => Fault {
                why: cause.to_string(),
                is_unread: true,
            },
        };
        fault.why = masked(batch, fault.why);
        let text = format_args!("`{}` {}; it is started again", launch.name(), fault.why);
        reporter.warn("program-failed", text);
        if fault.is_unread && !has_answered {
            self.restart.unread += 1;
            if self.restart.unread >= UNREAD_MAX {
                let text = format!("`{}` {}; check `command`", launch.name(), fault.why);
                return Err(Failure::peer(text));
            }
        }
        Ok(fault)
    }
}

impl Task for Executing {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        if batch.count == 0 {
            return Ok(());
        }
        self.staged.clear();
        let left = Size::bytes(out.left_bytes() as u64);
        self.answers_max = self.shared.answers_max.min(left);
        if let Some(cause) = self.all_at_once(batch)? {
            let is_sure = matches!(cause, Cause::Closed | Cause::StoppedReading);
            self.one_by_one(batch, !is_sure, out.comes_again())?;
        }
        self.staged.send(batch, out, KEPT_BYTES);
        self.answers.reset(KEPT_BYTES);
        self.outgoing.reset(KEPT_BYTES);
        if let Some(words) = self.program.as_mut().and_then(Program::take_words) {
            let words = masked(batch, words);
            let text = format_args!(
                "`{}` writes on standard error: {words}",
                self.shared.launch.name()
            );
            self.shared.reporter.info("program-stderr", text);
        }
        Ok(())
    }
}
