//! Finds the topic of each record, and remembers the limits of topics.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`

use std::{collections::HashMap, time::Duration};

use millstream_kafka::{Outgoing, topic_fault};
use millstream_record::Batch;
use millstream_wire::{
    record::TimedRecord,
    template::{Depends, Renderer, Template},
};
use tokio::time::Instant;

/// Maximum number of names that are remembered. When it is reached, all are forgotten.
const NAMES_MAX: usize = 10_000;

/// The length of the longest valid name. Reasons show no more of a name that is not valid: each refused record has a reason.
const SHOWN_BYTES_MAX: usize = 249;

/// The time after which learned limits are forgotten. If they still apply, the next refusal teaches them again.
pub(super) const LIMITS_AGE: Duration = Duration::from_secs(600);

/// The limits of topics that have refused a batch as too large.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// For each topic that has refused a batch as too large: the largest record that it accepts, in bytes.
    records: HashMap<String, usize>,
    /// The smallest of these limits. Batches of more than one record stay below it.
    pub(super) batch_max: usize,
    /// Whether brokers do not tell the limits, so that they must be found by trial.
    pub(super) untold: bool,
    /// When the first of these limits was learned.
    since: Option<Instant>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            records: HashMap::new(),
            batch_max: usize::MAX,
            untold: false,
            since: None,
        }
    }
}

impl Limits {
    /// Learns the limit of a topic that has refused a batch: the topic accepts no batch above `bytes`. If this limit or a lower
    /// one was known already, the broker counts more bytes than this sink does. Each further refusal then lowers the limit by a
    /// tenth, until batches fit.
    pub(super) fn learn(&mut self, topic: &str, bytes: usize) {
        let bytes = match self.of(topic) {
            Some(known) if known <= bytes => known - known / 10,
            _ => bytes,
        };
        self.records.insert(topic.to_owned(), bytes);
        self.batch_max = self.batch_max.min(bytes);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Learns that a batch of several records, of up to `bytes` bytes, was refused by a topic whose
    /// limit is not known.
    pub(super) fn halve(&mut self, bytes: usize) {
        self.batch_max = self.batch_max.min(bytes / 2).max(1);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Forgets all limits if the first one was learned long ago, because an operator may have raised them.
    pub(super) fn forget_old(&mut self) {
        if self
            .since
            .is_some_and(|since| since.elapsed() >= LIMITS_AGE)
        {
            *self = Self::default();
        }
    }

    /// The largest record of the topic, if known.
    pub(super) fn of(&self, topic: &str) -> Option<usize> {
        self.records.get(topic).copied()
    }
}

/// Renders topics and maps each to its index in the output.
pub(super) struct Topics {
    renderer: Renderer,
    depends: Depends,
    indices: HashMap<Vec<u8>, Result<usize, &'static str>>,
    /// The topic of the last record. The next record usually has the same topic.
    last: Vec<u8>,
    found: Option<Result<usize, &'static str>>,
    next: Vec<u8>,
}

impl Topics {
    pub(super) fn new(template: &Template, renderer: Renderer) -> Self {
        Self {
            renderer,
            depends: template.depends(),
            indices: HashMap::new(),
            last: Vec::new(),
            found: None,
            next: Vec::new(),
        }
    }

    /// Prepares for a batch: forgets all names if there are too many. Call it before each batch.
    pub(super) fn begin(&mut self, outgoing: &mut Outgoing) {
        if self.indices.len() >= NAMES_MAX && outgoing.records.is_empty() {
            self.indices.clear();
            outgoing.topics.clear();
            self.found = None;
        }
        if self.depends != Depends::Nothing {
            self.found = None;
        }
    }

    /// The index of the topic of a record, or why there is none.
    #[inline]
    pub(super) fn index(
        &mut self,
        batch: &Batch,
        timed: TimedRecord<'_>,
        outgoing: &mut Outgoing,
    ) -> Result<usize, String> {
        if let (Some(found), Depends::Nothing | Depends::Batch) = (&self.found, self.depends) {
            return found.map_err(|fault| self.invalid(fault));
        }
        self.next.clear();
        self.renderer
            .render(batch.into(), timed, &mut self.next)
            .map_err(|missing| missing.to_string())?;
        if self.found.is_none() || self.next != self.last {
            std::mem::swap(&mut self.next, &mut self.last);
            self.found = Some(self.look_up(outgoing));
        }
        match self.found {
            Some(Ok(index)) => Ok(index),
            Some(Err(fault)) => Err(self.invalid(fault)),
            None => Err(self.invalid("it is empty")),
        }
    }

    fn look_up(&mut self, outgoing: &mut Outgoing) -> Result<usize, &'static str> {
        if let Some(found) = self.indices.get(&self.last) {
            return *found;
        }
        let found = match topic_fault(&self.last) {
            Some(fault) => Err(fault),
            None => {
                outgoing
                    .topics
                    .push(String::from_utf8_lossy(&self.last).into_owned());
                Ok(outgoing.topics.len() - 1)
            }
        };
        // Invalid names are not remembered: a peer could send any number of them.
        if found.is_ok() {
            self.indices.insert(self.last.clone(), found);
        }
        found
    }

    fn invalid(&self, fault: &str) -> String {
        let shown = self.last.get(..SHOWN_BYTES_MAX).unwrap_or(&self.last);
        let name = String::from_utf8_lossy(shown);
        format!("`{}` is not a topic name: {fault}", name.escape_debug())
    }
}
