//! Evaluates a condition on one record after the other.

use millstream_record::Batch;
use vrl::{
    compiler::{Program as Compiled, TimeZone, state::RuntimeState},
    value::Value,
};

use crate::{
    program::Condition,
    remap::{Ended, resolve, unreadable},
    target::Record,
    weight,
};

/// A condition with the state for its evaluation. Each task has its own predicate.
#[derive(Debug)]
pub struct Predicate {
    program: Compiled,
    timezone: TimeZone,
    state: RuntimeState,
    record: Record,
}

impl Predicate {
    /// Prepares a condition for evaluation.
    #[must_use]
    pub fn new(condition: &Condition) -> Self {
        Self {
            program: condition.compiled.clone(),
            timezone: condition.timezone,
            state: RuntimeState::default(),
            record: Record::new(condition.plan.clone()),
        }
    }

    /// Takes the next batch.
    pub fn begin(&mut self, batch: &Batch) {
        self.record.begin(batch, 0);
    }

    /// Releases the batch.
    pub fn end(&mut self) {
        self.record.end();
    }

    /// The offset of the next record of the batch. See [`Remap::next`](crate::Remap::next).
    #[must_use]
    pub fn next(&self) -> usize {
        self.record.layout.end()
    }

    /// Whether the record at the offset `start` of the batch matches.
    ///
    /// # Errors
    /// If the condition fails on this record; the text is the reason. Such a record does not match.
    pub fn matches(&mut self, start: usize) -> Result<bool, String> {
        let _run = weight::Run::begin();
        let result = self
            .record
            .open(start)
            .map_err(unreadable)
            .and_then(|()| self.evaluate());
        self.record.close();
        result
    }

    fn evaluate(&mut self) -> Result<bool, String> {
        let ended = resolve(
            &self.program,
            &mut self.record,
            &mut self.state,
            &self.timezone,
        );
        if let Some(why) = self.record.fault() {
            return Err(unreadable(why));
        }
        match ended {
            Ok(value) => Ok(value == Value::Boolean(true)),
            Err(Ended::Error(message)) => Err(message),
            Err(Ended::Abort(message)) if message.is_empty() => Err("it was aborted".to_owned()),
            Err(Ended::Abort(message)) => Err(message),
        }
    }
}
