//! Where the reader of a file begins.

use std::{sync::Arc, time::SystemTime};

use millstream_record::FileId;

use super::{
    identity::{Candidate, Mark, Stat},
    tracked::Tracked,
};

/// Where a reader begins.
#[derive(Clone, Debug)]
pub(super) enum Begin {
    /// At the first byte of the inode's `generation`th content.
    Fresh {
        generation: u16,
        /// The file appeared after the first start, so it may be a copy of another file.
        appeared: bool,
    },
    /// At a mark of a known file.
    At(FileId, Mark),
    /// At a mark of a file that a durable channel does not know yet. The reader announces the file first.
    Announce(FileId, Mark),
    /// In a compressed file.
    Gzip(GzipBegin),
}

/// Where the reader of a compressed file begins: at the first candidate that fits, otherwise at its beginning.
#[derive(Clone, Debug)]
pub(super) struct GzipBegin {
    /// The identity of the file, if it is known.
    pub id: Option<FileId>,
    pub candidates: Vec<Candidate>,
    /// The file is read only if a candidate fits.
    pub only_candidates: bool,
}

/// A file that gets a reader.
pub(super) struct Beginning {
    pub tracked: Arc<Tracked>,
    pub begin: Begin,
    /// When the file was last written.
    pub written: SystemTime,
    /// The reader begins once this file was read to its end.
    pub after: Option<Arc<Tracked>>,
}

impl Beginning {
    pub(super) fn new(tracked: Arc<Tracked>, begin: Begin, stat: &Stat) -> Self {
        Self {
            tracked,
            begin,
            written: stat.written,
            after: None,
        }
    }
}
