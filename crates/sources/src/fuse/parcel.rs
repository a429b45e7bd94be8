//! A parcel: the result of one write, or of the end of a file, ready to be sent.

use millstream_record::Batch;

use super::{cutter::Mode, unfinished::Place};

/// A batch to send, and the unfinished bytes behind it.
#[derive(Debug)]
pub(super) struct Parcel {
    /// The records; `None` if there are none to send.
    pub batch: Option<Batch>,
    /// Pieces of records that were too long, for the port `NAME.rejected`.
    pub rejected: Option<Batch>,
    /// The generation of unfinished bytes in the journal that leaves with this parcel.
    pub leaves: Option<Place>,
    /// How many of the earlier unfinished bytes, counted from the end, stay unfinished.
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
