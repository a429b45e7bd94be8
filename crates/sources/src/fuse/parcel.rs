//! A parcel: records and unfinished bytes that are ready to be sent. A write, the end of a file, or (if lines are joined) a pause
//! results in a parcel.

use millstream_record::Batch;

use super::{cutter::Mode, unfinished::Place};

/// A batch to send, and the unfinished bytes after its records.
#[derive(Debug)]
pub(super) struct Parcel {
    /// The records. `None` if there are none to send.
    pub batch: Option<Batch>,
    /// Pieces of records that were too long, for the port `NAME.rejected`.
    pub rejected: Option<Batch>,
    /// The generation (`journal/`) whose unfinished bytes this parcel takes. `None` if the parcel takes no unfinished bytes, or
    /// if the journal never stored unfinished bytes of this file.
    pub leaves: Option<Place>,
    /// The number of unfinished bytes of earlier writes that stay unfinished. They are the last ones; the bytes before them leave
    /// with this parcel.
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
