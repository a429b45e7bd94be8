//! Log lines of nodes: at most one line of each node and kind in ten seconds, with the number of lines held back.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::held::{Conditions, Held};

/// The minimum time between two lines of one kind.
const QUIET: Duration = Duration::from_secs(10);

/// Writes log lines of one node. Clones share the rate limit.
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

    /// The same node's reporter with a separate rate limit, for one of several equal things (a listener, a consumer) whose
    /// lines must not hold back another one's.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            said: Arc::default(),
            ..self.clone()
        }
    }

    /// Logs an error: something failed and needs an operator.
    pub fn error(&self, kind: &'static str, text: impl fmt::Display) {
        if let Some(more) = self.turn(kind) {
            tracing::error!(node = &*self.node, kind, "{text}{more}");
        }
    }

    /// The conditions that are raised now.
    pub fn conditions(&self) -> Vec<Held> {
        self.conditions.held()
    }

    /// The node's conditions.
    pub(crate) fn held(&self) -> &Conditions {
        &self.conditions
    }

    /// Logs a warning: something was refused or is being retried.
    pub fn warn(&self, kind: &'static str, text: impl fmt::Display) {
        if let Some(more) = self.turn(kind) {
            tracing::warn!(node = &*self.node, kind, "{text}{more}");
        }
    }

    /// Logs an event of interest to an operator.
    pub fn info(&self, kind: &'static str, text: impl fmt::Display) {
        if let Some(more) = self.turn(kind) {
            tracing::info!(node = &*self.node, kind, "{text}{more}");
        }
    }

    /// Whether this kind may log now, and how many lines were held back.
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
            n => write!(f, " ({n} similar lines were held back)"),
        }
    }
}
