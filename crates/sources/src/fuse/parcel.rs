//! A parcel: the result of one write, or of the end of a file, ready to be sent.

use millstream_record::Batch;

use super::{cutter::Mode, unfinished::Place};

/// A batch to send, and the unfinished bytes after its records.
#[derive(Debug)]
pub(super) struct Parcel {
    /// The records. `None` if there are none to send.
    pub batch: Option<Batch>,
    /// Pieces of records that were too long, for the port `NAME.rejected`.
    pub rejected: Option<Batch>,
    /// The generation of the journal whose bytes this parcel takes (`journal/` explains it). `None` if it takes no journaled bytes.
    pub leaves: Option<Place>,
    /// The number of bytes at the end of the earlier unfinished bytes that stay unfinished.
    pub stay: usize,
    /// The last bytes of the write, which are unfinished.
    pub unfinished: Vec<u8>,
    /// How the cutter cuts the bytes that follow.
    pub mode: Mode,
    /// The size of the write in bytes.
    pub bytes: usize,
}

impl Parcel {
    /// The number of bytes that are unfinished once this parcel is sent.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.stay + self.unfinished.len()
    }
}
