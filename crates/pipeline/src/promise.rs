//! The delivery guarantee of a path: the weaker one of its source and its sink (docs/delivery.md).

use std::fmt;

/// How often an accepted record arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guarantee {
    /// At most once: a failure loses the records that are in flight.
    AtMostOnce,
    /// At least once: a failure may repeat records.
    AtLeastOnce,
    /// Exactly once.
    ExactlyOnce,
}

/// A guarantee and its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// How often a record arrives.
    pub guarantee: Guarantee,
    /// Its conditions; may be empty.
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
