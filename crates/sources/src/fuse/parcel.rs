//! A parcel: what one write, or the end of a file, gives to be sent.

use millstream_record::Batch;

use super::{cutter::Mode, unfinished::Place};

/// A batch to send, and the unfinished bytes behind it.
#[derive(Debug)]
pub(super) struct Parcel {
    /// The records; `None` if none is left to send.
    pub batch: Option<Batch>,
    /// Pieces of records that were too long, for the port `NAME.rejected`.
    pub rejected: Option<Batch>,
    /// The unfinished bytes of the journal that leave with this parcel.
    pub leaves: Option<Place>,
    /// How many of the bytes that were unfinished before stay so.
    pub stay: usize,
    /// The last bytes of the write, which are unfinished.
    pub unfinished: Vec<u8>,
    /// How the cutter reads the bytes that follow.
    pub mode: Mode,
    /// The size of the write in bytes.
    pub bytes: usize,
}

impl Parcel {
    /// The bytes that are unfinished once this parcel has left.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.stay + self.unfinished.len()
    }
}
