//! The result of a program for one record.

/// The result of a program for one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record as it was; nothing was appended. [`Remap::moved`] says whether it has another tag or host.
    Unchanged,
    /// This number of packed entries was appended, 0 for an empty array.
    Written(u32),
    /// The program ended with `abort`, perhaps with a message; nothing was appended.
    Aborted(String),
    /// The program failed, or made something that is no record; nothing was appended. The text says why.
    Failed(String),
}

/// Values of the batch that a program has set to something else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Another tag.
    pub tag: Option<String>,
    /// Another host; `Some(None)`: no host.
    pub host: Option<Option<String>>,
}
