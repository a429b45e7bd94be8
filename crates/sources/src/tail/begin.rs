//! Where the reader of a file begins.

use std::{sync::Arc, time::SystemTime};

use millstream_record::FileId;

use super::{
    identity::{Candidate, Mark, Stat},
    join::Predecessor,
    tracked::Tracked,
};

/// Where a reader begins.
#[derive(Clone, Debug)]
pub(super) enum Begin {
    /// At the first byte. `generation` is the number of contents that the inode held before the current one.
    Fresh {
        generation: u16,
        /// Whether the file appeared after the first start. It may then be a copy of another file.
        appeared: bool,
    },
    /// At a mark (an offset and a checksum of the bytes before it) of a known file.
    At(FileId, Mark),
    /// At a mark of a file that a durable channel does not know yet. The reader first announces the file: it sends the offset to
    /// the channel, without records.
    Announce(FileId, Mark),
    /// In a compressed file.
    Gzip(GzipBegin),
}

/// Where the reader of a compressed file begins. A candidate is an offset in the text at which reading may continue. It usually
/// has a mark at or before the offset. The reader begins at the first candidate whose mark fits the text. If no mark fits, it
/// begins at the first byte.
#[derive(Clone, Debug)]
pub(super) struct GzipBegin {
    /// The identity of the file, if it is known.
    pub id: Option<FileId>,
    pub candidates: Vec<Candidate>,
    /// True if the file is read only if the mark of a candidate fits. False if it is read in any case.
    pub only_candidates: bool,
}

/// A file that gets a reader.
pub(super) struct Beginning {
    pub tracked: Arc<Tracked>,
    pub begin: Begin,
    /// When the file was last written.
    pub written: SystemTime,
    /// The previous file of the same rotation. The reader begins once that file was read to its end.
    pub after: Option<Arc<Tracked>>,
    /// The file that had this name before, if a record may begin in it and end in this file.
    pub predecessor: Option<Predecessor>,
}

impl Beginning {
    pub(super) fn new(tracked: Arc<Tracked>, begin: Begin, stat: &Stat) -> Self {
        tracked.state().len = stat.len;
        Self {
            tracked,
            begin,
            written: stat.written,
            after: None,
            predecessor: None,
        }
    }
}
