//! The journal of a file sink: its table and the changes to that table, in two files that are used alternately.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> write -> [settle]`
//!
//! The files `journal.0` and `journal.1` are allocated and filled when they are created, so a full disk cannot stop a commit.
//! In this file, a record is an entry of the journal. The module `table` defines the content of records. The crate
//! `millstream_state` recovers appended records after SIGKILL and power loss, and notices if one is missing.

use std::path::Path;

use millstream_pipeline::failure::Failure;
use millstream_state::{Alternating, Begun, Format};
use millstream_sys::disk::Disk;

const FORMAT: Format = Format {
    magic: b"mill-fsj",
    version: 1,
    // The table is bounded (`table::ROWS_MAX`) far below this.
    bytes_max: 256 << 20,
    remedy: "move it away and restart Millstream: the sink continues after the channel's cursor and truncates no output",
};
/// Initial size of each file. It is enough for thousands of commits of a few outputs, or for the table of some 5,000 outputs.
const CAPACITY: usize = 1 << 20;

/// Opens or creates the journal in `directory` and reads it. Behind a memory channel (`durable: false`) the records of the
/// journal are not synced, because no guarantee depends on them.
pub(super) fn open(
    disk: &dyn Disk,
    directory: &Path,
    durable: bool,
) -> Result<(Alternating, Begun), Failure> {
    let path = directory.join("journal");
    Ok(Alternating::open(disk, &path, FORMAT, CAPACITY, durable)?)
}
