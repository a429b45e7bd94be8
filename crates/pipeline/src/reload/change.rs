//! The changes that a reload reports.

use std::sync::Arc;

use super::known::{Difference, Fate, Known, is_pump};

/// The effect of a reload on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name.
    pub node: Arc<str>,
    /// How it has changed.
    pub outcome: Outcome,
}

/// How a reload changed a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node was added.
    Added,
    /// The node has other options.
    Replaced,
    /// The node was removed. A source or sink first finishes the work that it has begun.
    Removed,
    /// The channel or sink has another chain in front of it, or the sink has another input.
    Reconnected,
    /// Nothing changed.
    Kept,
}

impl Outcome {
    /// Returns the outcome as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Replaced => "replaced",
            Self::Removed => "removed",
            Self::Reconnected => "reconnected",
            Self::Kept => "kept",
        }
    }
}

/// Returns the changes of all nodes of the plan `known`, and of those that were removed.
pub(super) fn changes(
    known: &Known,
    difference: &Difference,
    reconnected: &[Arc<str>],
) -> Vec<Change> {
    let present = known.names().into_iter().map(|name| {
        let outcome = match difference.fate(name) {
            Fate::New => Outcome::Added,
            Fate::Replaced => Outcome::Replaced,
            Fate::Moved => Outcome::Reconnected,
            Fate::Kept if reconnected.contains(name) => Outcome::Reconnected,
            Fate::Kept => Outcome::Kept,
        };
        (name, outcome)
    });
    let removed = difference.removed.iter();
    let removed = removed.filter(|(name, _)| !is_pump(name));
    let removed = removed.map(|(name, _)| (name, Outcome::Removed));
    let change = |(node, outcome): (&Arc<str>, Outcome)| Change {
        node: node.clone(),
        outcome,
    };
    present.chain(removed).map(change).collect()
}
