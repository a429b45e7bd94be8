//! Limits the rate of the log lines of nodes: at most one line every ten seconds for each node and each kind of message. Further lines
//! are suppressed, and the next line that is logged reports their number. All lines are counted by level and kind, including
//! suppressed ones.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    held::{Conditions, Held},
    meters::Meter,
};

/// The minimum time between two lines of one kind.
const QUIET: Duration = Duration::from_secs(10);

/// (level, kind) -> number of lines.
type Counts = BTreeMap<(&'static str, &'static str), u64>;

/// Writes log lines of one node. Clones share the rate limit.
#[derive(Clone, Debug)]
pub struct Reporter {
    node: Arc<str>,
    said: Arc<Mutex<HashMap<&'static str, Said>>>,
    conditions: Conditions,
    counts: Arc<Mutex<Counts>>,
    busy: Meter,
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
            counts: Arc::default(),
            busy: Meter::default(),
        }
    }

    /// Replaces the meter that counts how long the node's tasks work.
    #[must_use]
    pub(crate) fn measuring(self, busy: Meter) -> Self {
        Self { busy, ..self }
    }

    /// The name of the node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The meter that counts how long the node's tasks work, in microseconds.
    pub fn busy(&self) -> &Meter {
        &self.busy
    }

    /// (level, kind, number) of all lines of the node, including suppressed ones.
    pub fn events(&self) -> Vec<(&'static str, &'static str, u64)> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let events = counts.iter();
        events
            .map(|((level, kind), count)| (*level, *kind, *count))
            .collect()
    }

    /// Returns a reporter of the same node with a separate rate limit. Use one for each of several similar parts of a node (listeners,
    /// consumers), so that the lines of one part do not suppress those of another.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            said: Arc::default(),
            ..self.clone()
        }
    }

    /// Logs an error: something failed and needs an operator.
    pub fn error(&self, kind: &'static str, text: impl fmt::Display) {
        if let Some(more) = self.turn("error", kind) {
            tracing::error!(node = &*self.node, kind, "{text}{more}");
        }
    }

    /// The conditions that are raised now.
    pub fn conditions(&self) -> Vec<Held> {
        self.conditions.held()
    }

    /// The set in which the node raises and clears its conditions.
    pub(crate) fn held(&self) -> &Conditions {
        &self.conditions
    }

    /// Logs a warning: something was refused or is being retried.
    pub fn warn(&self, kind: &'static str, text: impl fmt::Display) {
        if let Some(more) = self.turn("warn", kind) {
            tracing::warn!(node = &*self.node, kind, "{text}{more}");
        }
    }

    /// Logs an event of interest to an operator.
    pub fn info(&self, kind: &'static str, text: impl fmt::Display) {
        if let Some(more) = self.turn("info", kind) {
            tracing::info!(node = &*self.node, kind, "{text}{more}");
        }
    }

    /// Counts a line. If it may be logged now, returns the number of earlier lines of its kind that were suppressed. Returns `None` if
    /// this line must be suppressed, too.
    fn turn(&self, level: &'static str, kind: &'static str) -> Option<HeldBack> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((level, kind)).or_default() += 1;
        drop(counts);
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
            n => write!(f, " ({n} similar lines were suppressed)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_held_back_are_counted_too() {
        let reporter = Reporter::new("out");
        reporter.warn("server", "down");
        reporter.warn("server", "down");
        reporter.apart().error("server", "down");
        reporter.info("connected", "up");
        let events = [
            ("error", "server", 1),
            ("info", "connected", 1),
            ("warn", "server", 2),
        ];
        assert_eq!(reporter.events(), events);
    }
}
