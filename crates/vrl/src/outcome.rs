//! The result of a program for one record.

/// The result of a program for one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record stays as it was, and nothing was appended. [`Remap::moved`] returns its new tag or host, if it has one.
    Unchanged,
    /// This number of packed entries was appended, 0 for an empty array.
    Written(u32),
    /// The program ended with `abort`, perhaps with a message; nothing was appended.
    Aborted(String),
    /// The program failed, or its result is not a record; nothing was appended. The text says why.
    Failed(String),
}

/// The values of the batch that a program changed for a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The new tag.
    pub tag: Option<String>,
    /// The new host; `Some(None)`: no host.
    pub host: Option<Option<String>>,
}
