//! What holds for a path: the weaker of its entry and its exit (delivery.md).

use std::fmt;

/// How often a record that was accepted arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guarantee {
    /// At most once: what is in flight when something breaks is gone.
    AtMostOnce,
    /// At least once: it may come twice.
    AtLeastOnce,
    /// Exactly once.
    ExactlyOnce,
}

/// A guarantee and the conditions it holds under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// How often.
    pub guarantee: Guarantee,
    /// Under which conditions; empty: none to speak of.
    pub condition: String,
}

impl Promise {
    /// A guarantee and its condition.
    pub fn new(guarantee: Guarantee, condition: impl Into<String>) -> Self {
        Self {
            guarantee,
            condition: condition.into(),
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtMostOnce => "at most once",
            Self::AtLeastOnce => "at least once",
            Self::ExactlyOnce => "exactly once",
        })
    }
}
