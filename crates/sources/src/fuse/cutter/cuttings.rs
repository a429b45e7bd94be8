//! The result of cutting: records, rejected pieces, and the mode in which the next bytes are cut.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The treatment of the next bytes, up to the end of their record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fuse) enum Fate {
    /// The bytes become a record.
    #[default]
    Record,
    /// The bytes are dropped, because their record was truncated.
    Dropped,
    /// The bytes are rejected with the rest of their record.
    Rejected,
}

/// Whole records.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::fuse) enum Records {
    None,
    /// Lines in this range of the buffer.
    InPlace(Range<usize>),
    /// Lines that were copied out of the buffer.
    Lines(Vec<u8>),
    /// Records that may hold newlines.
    Separate(Vec<Vec<u8>>),
}

/// The result of cutting the unfinished and the new bytes together.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::fuse) struct Cuttings {
    pub records: Records,
    /// Pieces of rejected records.
    pub rejected: Vec<Vec<u8>>,
    /// The number of records that were too long. With `too_long: split`, a record that is split several times may count several
    /// times.
    pub too_long: u64,
    /// Whether this cut took bytes that were unfinished before: they are now in a record, or were dropped or rejected.
    pub took_tail: bool,
    /// The number of bytes that are unfinished now: the last bytes of the text that was cut.
    pub unfinished: usize,
    /// How to cut the bytes that follow.
    pub mode: Mode,
}

/// How a cutter cuts the next bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fuse) struct Mode {
    pub fate: Fate,
    /// With joined lines: whether the unfinished bytes continue a line whose beginning was already sent, dropped or rejected.
    pub within_line: bool,
    /// With joined lines: whether the unfinished bytes continue a record whose beginning was already sent as a piece.
    pub within_record: bool,
}

impl Mode {
    pub(super) fn of(fate: Fate) -> Self {
        Self {
            fate,
            ..Self::default()
        }
    }
}

impl Cuttings {
    /// No records, and nothing unfinished.
    pub(in crate::fuse) fn none(mode: Mode) -> Self {
        Self {
            records: Records::None,
            rejected: Vec::new(),
            too_long: 0,
            took_tail: false,
            unfinished: 0,
            mode,
        }
    }
}
