//! Tags: dotted names by which batches are routed.

use std::{fmt, sync::Arc};

/// A dotted name, cheap to clone. It may hold any text that a peer sent, even an empty one. Characters that are not
/// allowed in file names are replaced when the tag becomes part of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(Arc<str>);

impl Tag {
    /// The tag as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Tag {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
