//! Which topic a record goes to, and what topics are known to accept.
//!
//! `read -> decode -> send -> keep -> take -> process -> [encode] -> write -> settle`

use std::collections::HashMap;

use millstream_kafka::{Outgoing, topic_fault};
use millstream_record::Batch;
use millstream_wire::{
    record::TimedRecord,
    template::{Depends, Renderer, Template},
};

/// Remembers this many names, then forgets all of them.
const NAMES_MAX: usize = 10_000;

/// What topics are known to accept, learned from what they refused.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// The largest record of a topic, where it is below `record_max`.
    records: HashMap<String, usize>,
    /// The smallest of these: no batch of more than one record may be larger.
    pub(super) batch_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            records: HashMap::new(),
            batch_max: usize::MAX,
        }
    }
}

impl Limits {
    /// The topic accepts no batch above `bytes`. It has refused one: if the limit was known, batches are larger than they look
    /// from here, and the limit is lowered until they fit.
    pub(super) fn learn(&mut self, topic: &str, bytes: usize) {
        let bytes = match self.of(topic) {
            Some(known) if known <= bytes => known - known / 10,
            _ => bytes,
        };
        self.records.insert(topic.to_owned(), bytes);
        self.batch_max = self.batch_max.min(bytes);
    }

    /// The largest record of the topic, if known.
    pub(super) fn of(&self, topic: &str) -> Option<usize> {
        self.records.get(topic).copied()
    }
}

/// Renders topics, and knows the index of each in the output.
pub(super) struct Topics {
    renderer: Renderer,
    depends: Depends,
    indices: HashMap<Vec<u8>, Result<usize, &'static str>>,
    /// The last topic: the next record mostly has the same.
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

    /// Call this before each batch.
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
        event: TimedRecord<'_>,
        outgoing: &mut Outgoing,
    ) -> Result<usize, String> {
        if let (Some(found), Depends::Nothing | Depends::Batch) = (&self.found, self.depends) {
            return found.map_err(|fault| self.told(fault));
        }
        self.next.clear();
        self.renderer
            .render(batch.into(), event, &mut self.next)
            .map_err(|missing| missing.to_string())?;
        if self.found.is_none() || self.next != self.last {
            std::mem::swap(&mut self.next, &mut self.last);
            self.found = Some(self.look_up(outgoing));
        }
        match self.found {
            Some(Ok(index)) => Ok(index),
            Some(Err(fault)) => Err(self.told(fault)),
            None => Err(self.told("it is empty")),
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
        // Invalid names are not remembered: a peer may make up any number of them.
        if found.is_ok() {
            self.indices.insert(self.last.clone(), found);
        }
        found
    }

    fn told(&self, fault: &str) -> String {
        let name = String::from_utf8_lossy(&self.last);
        format!("`{}` is not a topic name: {fault}", name.escape_debug())
    }
}
