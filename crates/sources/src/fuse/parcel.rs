//! A parcel: the result of one write, of a pause (if lines are joined), or of the end of a file, ready to be sent.

use millstream_record::Batch;

use super::{cutter::Mode, unfinished::Place};

/// A batch to send, and the unfinished bytes after its records.
#[derive(Debug)]
pub(super) struct Parcel {
    /// The records. `None` if there are none to send.
    pub batch: Option<Batch>,
    /// Pieces of records that were too long, for the port `NAME.rejected`.
    pub rejected: Option<Batch>,
    /// The generation whose bytes this parcel takes: the unfinished bytes that the journal stored since the last parcel that took
    /// some (`journal/`). `None` if the parcel takes no unfinished bytes, or if none of the file were ever stored in the journal.
    pub leaves: Option<Place>,
    /// The number of unfinished bytes of earlier writes that stay unfinished. They are the last of the earlier unfinished bytes.
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
