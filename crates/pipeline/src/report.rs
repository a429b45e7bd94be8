//! What nodes log: at most one line of a node and kind in ten seconds, with the number of lines held back.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::condition::{Condition, Conditions, Held};

/// How long a node is quiet about a kind of news after a line about it.
const QUIET: Duration = Duration::from_secs(10);

/// Writes log lines of one node. Cloning shares the memory of what was said.
#[derive(Clone, Debug)]
pub struct Reporter {
    node: Arc<str>,
    said: Arc<Mutex<HashMap<&'static str, Said>>>,
    conditions: Conditions,
}

#[derive(Debug)]
struct Said {
    last: Instant,
    held_back: u64,
}

impl Reporter {
    /// The reporter of a node.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            said: Arc::default(),
            conditions: Conditions::default(),
        }
    }

    /// The same node's log lines with a rate limit of their own: for one of several equal things (a listener, a consumer)
    /// whose lines must not hold back another one's.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            said: Arc::default(),
            ..self.clone()
        }
    }

    /// Something failed and needs the operator.
    pub fn error(&self, kind: &'static str, text: impl fmt::Display) {
        if let Some(more) = self.turn(kind) {
            tracing::error!(node = &*self.node, kind, "{text}{more}");
        }
    }

    /// Something that can keep the node from its work; it does not hold yet. `kind` is the kind of its log lines.
    pub fn condition(&self, kind: &'static str) -> Condition {
        self.conditions.add(self, kind)
    }

    /// The conditions that hold now.
    pub fn conditions(&self) -> Vec<Held> {
        self.conditions.held()
    }

    /// Something was refused or is being tried again.
    pub fn warn(&self, kind: &'static str, text: impl fmt::Display) {
        if let Some(more) = self.turn(kind) {
            tracing::warn!(node = &*self.node, kind, "{text}{more}");
        }
    }

    /// Something an operator likes to know.
    pub fn info(&self, kind: &'static str, text: impl fmt::Display) {
        if let Some(more) = self.turn(kind) {
            tracing::info!(node = &*self.node, kind, "{text}{more}");
        }
    }

    /// Whether it is this kind's turn, and what to add about those held back.
    fn turn(&self, kind: &'static str) -> Option<HeldBack> {
        let now = Instant::now();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        match said.get_mut(kind) {
            Some(said) if now.duration_since(said.last) < QUIET => {
                said.held_back += 1;
                None
            }
            Some(said) => {
                said.last = now;
                Some(HeldBack(std::mem::take(&mut said.held_back)))
            }
            None => {
                said.insert(
                    kind,
                    Said {
                        last: now,
                        held_back: 0,
                    },
                );
                Some(HeldBack(0))
            }
        }
    }
}

struct HeldBack(u64);

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} more like this in the last while)"),
        }
    }
}
