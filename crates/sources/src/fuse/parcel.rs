//! What a stream hands over to be sent.

use millstream_record::Batch;

use super::cutter::{Before, Next};

/// A generation of unfinished bytes in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub slot: u32,
    pub generation: u64,
}

/// What is to be sent, and what is unfinished then.
#[derive(Debug)]
pub(super) struct Parcel {
    pub batch: Option<Batch>,
    pub rejected: Option<Batch>,
    /// The unfinished bytes that become part of it, or go with what is dropped.
    pub took: Option<Place>,
    /// So many of them stay.
    pub stay: usize,
    /// What of the write is unfinished.
    pub rest: Vec<u8>,
    /// How the stream goes on behind it.
    pub next: Next,
    /// Bytes of the write.
    pub bytes: usize,
}

impl Parcel {
    /// So much is unfinished behind what is sent.
    pub(super) fn unfinished(&self) -> usize {
        self.stay + self.rest.len()
    }
}

/// How a stream was before a parcel passed.
#[derive(Debug)]
pub(super) struct Passed {
    pub before: Before,
    pub since: u64,
    pub journaled: usize,
}
