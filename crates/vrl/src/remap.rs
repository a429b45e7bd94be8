//! Runs a program on one record after the other.
//!
//! A record is an event in terms of VRL. If the program changes nothing, the record keeps its bytes. If the program assigns an
//! array to the root (`.`), each element becomes a record. If the program aborts, the record is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};

use millstream_record::{Batch, Time};
use vrl::{
    compiler::{Context, ExpressionError, Program as Compiled, TimeZone, state::RuntimeState},
    value::Value,
};

use crate::{
    DEPTH_MAX, Moved, Outcome,
    decode::Undecodable,
    encode::TooDeep,
    program::Program,
    target::Record,
    weight::{self, memory_max},
};

/// A program with the state to run it. Each task has its own `Remap`, because compiled regexes are fastest when threads do not
/// share them.
#[derive(Debug)]
pub struct Remap {
    program: Compiled,
    timezone: TimeZone,
    state: RuntimeState,
    record: Record,
    moved: Option<Moved>,
}

impl Remap {
    /// Prepares a program to run.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        Self {
            program: program.compiled.clone(),
            timezone: program.timezone,
            state: RuntimeState::default(),
            record: Record::new(program.plan.clone()),
            moved: None,
        }
    }

    /// Takes the next batch: its body, its values, and its receive time, which `now()` returns. Random values also depend on
    /// `place`. If a program generates random values ([`Program::draws`]), each batch must hold a single record, and `place` must
    /// be the index of the record among those that were received together.
    pub fn begin(&mut self, batch: &Batch, place: u32) {
        self.record.begin(batch, place);
    }

    /// Releases the batch.
    pub fn end(&mut self) {
        self.record.end();
    }

    /// The tag and the host that the program set for the last record; `None` if it set neither.
    #[must_use]
    pub fn moved(&self) -> Option<&Moved> {
        self.moved.as_ref()
    }

    /// The offset of the record after the one on which the program ran last. After an invalid record, it is the end of the batch.
    #[must_use]
    pub fn next(&self) -> usize {
        self.record.layout.end()
    }

    /// Runs the program on the record at the offset `start` of the batch, and appends the resulting records to `out` as packed
    /// entries. After that, [`Remap::next`] returns the offset of the next record, so that a batch is walked only once.
    pub fn run(&mut self, start: usize, out: &mut Vec<u8>) -> Outcome {
        let _run = weight::Run::begin();
        self.moved = None;
        let before = out.len();
        let outcome = match self.record.open(start) {
            Ok(()) => self.resolve().unwrap_or_else(|| {
                self.write(out).unwrap_or_else(|why| {
                    out.truncate(before);
                    self.moved = None;
                    Outcome::Failed(why)
                })
            }),
            Err(why) => Outcome::Failed(unreadable(why)),
        };
        self.record.close();
        outcome
    }

    /// Runs the program. Returns an outcome only if the program aborted or failed.
    fn resolve(&mut self) -> Option<Outcome> {
        let ended = resolve(
            &self.program,
            &mut self.record,
            &mut self.state,
            &self.timezone,
        );
        match (self.record.fault(), ended) {
            (Some(why), _) => Some(Outcome::Failed(unreadable(why))),
            (None, Ok(_)) => None,
            (None, Err(Ended::Abort(message))) => Some(Outcome::Aborted(message)),
            (None, Err(Ended::Error(message))) => Some(Outcome::Failed(message)),
        }
    }

    /// Writes the result of the program.
    fn write(&mut self, out: &mut Vec<u8>) -> Result<Outcome, String> {
        let changes = self.record.metadata.changes()?;
        let moved = Moved {
            tag: changes.tag.map(str::to_owned),
            host: changes.host.map(|host| host.map(str::to_owned)),
        };
        let time = changes
            .time
            .filter(|time| *time != self.record.layout.time());
        let outcome = write(&self.record, time, out).map_err(|TooDeep| too_deep())?;
        self.moved = (moved != Moved::default()).then_some(moved);
        Ok(outcome)
    }
}

fn write(record: &Record, time: Option<Time>, out: &mut Vec<u8>) -> Result<Outcome, TooDeep> {
    let (layout, body) = (&record.layout, record.body());
    match record.replaced() {
        Some(Value::Array(records)) => {
            for one in records {
                layout.write_root(body, time, one, out)?;
            }
            Ok(Outcome::Written(
                u32::try_from(records.len()).unwrap_or(u32::MAX),
            ))
        }
        Some(root) => {
            layout.write_root(body, time, root, out)?;
            Ok(Outcome::Written(1))
        }
        None if time.is_none() && !record.is_changed() => Ok(Outcome::Unchanged),
        None => {
            let fate = |field| record.fate(field);
            layout.write(body, record.fields(), time, fate, out)?;
            Ok(Outcome::Written(1))
        }
    }
}

/// Why a program ended early.
pub(crate) enum Ended {
    Abort(String),
    Error(String),
}

/// Runs a program to its end, and returns its result. A panic of one of the crate's functions is an error of this record.
pub(crate) fn resolve(
    program: &Compiled,
    record: &mut Record,
    state: &mut RuntimeState,
    timezone: &TimeZone,
) -> Result<Value, Ended> {
    let run = || program.resolve(&mut Context::new(record, state, timezone));
    let Ok(result) = catch_unwind(AssertUnwindSafe(run)) else {
        *state = RuntimeState::default();
        return Err(Ended::Error(
            "a function of the program panicked".to_owned(),
        ));
    };
    if !state.is_empty() {
        state.clear();
    }
    match result {
        Ok(value) | Err(ExpressionError::Return { value, .. }) => Ok(value),
        Err(error @ ExpressionError::Error { .. }) => Err(Ended::Error(error.to_string())),
        Err(ExpressionError::Abort { message, .. }) => {
            Err(Ended::Abort(message.unwrap_or_default()))
        }
        Err(error) => Err(Ended::Error(error.to_string())),
    }
}

/// The message for a record that cannot be decoded.
pub(crate) fn unreadable(why: Undecodable) -> String {
    match why {
        Undecodable::Deep => {
            format!("a field that the program reads nests deeper than {DEPTH_MAX} levels")
        }
        Undecodable::Large => {
            let most = memory_max();
            format!("the fields that the program reads take more than {most} bytes")
        }
        Undecodable::Malformed => "the record is not MessagePack".to_owned(),
    }
}

fn too_deep() -> String {
    format!("the program made a field that nests deeper than {DEPTH_MAX} levels")
}
