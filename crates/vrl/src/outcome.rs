//! The result of a program for one record.

/// The result of a program for one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record is unchanged, and nothing was appended. The program may have set the tag or the host nevertheless: see
    /// [`crate::Remap::moved`].
    Unchanged,
    /// This number of packed entries was appended. It is 0 if the program assigned an empty array to the root.
    Written(u32),
    /// The program ended with `abort`, perhaps with a message; nothing was appended.
    Aborted(String),
    /// The program failed, or its result is not a record; nothing was appended. The text says why.
    Failed(String),
}

/// The values of the batch that a program changed for a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The new tag; `None` if the program did not change the tag.
    pub tag: Option<String>,
    /// The new host; `None` if the program did not change the host. `Some(None)` means that it removed the host.
    pub host: Option<Option<String>>,
}
