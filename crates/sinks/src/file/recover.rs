//! Recovery at the start: brings the files to the state of the last commit.
//!
//! The journal lists the unfinished files with their lengths at the last commit. Recovery truncates each of them to this committed
//! length, because the channel redelivers the records that follow. Renames that the journal has announced are completed. A file
//! that is shorter than its committed length is damaged: it is reported, and never padded. Behind a memory channel, or if the
//! journal belongs to another channel, no record is redelivered, so the files keep all whole records. If another process writes to
//! one of the files, this data_dir may be a copy of the data_dir of that process. In this case, the start fails and no file is
//! touched.
//!
//! Files are truncated only if the journal can be trusted. The sink commits its position to the journal before the channel's
//! cursor moves. So each of the following shows that the journal is damaged or outdated: its position is below the cursor, one of
//! its entries is missing, or a file has bytes that no batch of the channel explains. In these cases, the sink continues after the
//! cursor, because everything before the cursor is settled. If the position in the journal is later than the cursor, the sink
//! continues after that position. Each file with bytes that the journal does not know is put aside: it gets a rotated name and is
//! not truncated.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_pipeline::{channel::Bounds, failure::Failure, report::Reporter};
use millstream_record::Position;
use millstream_state::{Alternating, Begun};
use millstream_sys::disk::{Disk, Metadata, Open};
use millstream_wire::compression::{Codec, codec_of, whole_bytes};

use super::{
    failure::cannot,
    files::{find_inode, lock},
    journal,
    numbering::Numbering,
    table::{HEAD_BYTES, Row, Table},
};
use crate::directories::directory_of;

/// A killed run behind a memory channel leaves fewer bytes than this after the last commit, because there is a checkpoint every 64
/// MiB of input. A longer tail was written by another process.
const TAIL_BYTES_MAX: usize = 256 << 20;
/// The log names at most this many of the files that were put aside.
const NAMED_MAX: usize = 5;

/// The durable channel in front of the sink.
#[derive(Clone, Copy)]
pub(super) struct Channel {
    pub(super) id: u128,
    pub(super) bounds: Bounds,
}

/// The state after recovery.
pub(super) struct Recovered {
    pub(super) journal: Alternating,
    pub(super) table: Table,
    /// Whether the journal is damaged or outdated. If so, it may lack files that an earlier run has written.
    pub(super) doubtful: bool,
}

/// Opens the journal in `directory` and recovers the files; `codec` is the compression of the sink.
pub(super) fn recover(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    channel: Option<Channel>,
    codec: Option<Codec>,
    reporter: &Reporter,
) -> Result<Recovered, Failure> {
    let (mut journal, begun) = journal::open(&**disk, directory, channel.is_some())?;
    let committed = channel.and_then(|channel| channel.bounds.committed);
    let (mut table, damage) = read(begun, directory, committed);
    // In the journal, channel id 0 stands for a memory channel.
    let replays = channel.filter(|channel| channel.id == table.channel);
    let doubt = damage.or_else(|| replays.and_then(|_| behind(&table, directory, committed?)));
    let kept = replays.map(|channel| channel.bounds.kept);
    let comes = kept.is_some_and(|kept| table.position.unwrap_or_default() < kept);
    let mut recovery = Recovery {
        disk: &**disk,
        reporter,
        replays: replays.is_some(),
        cuts: doubt.is_none() && comes,
        numbering: Numbering::default(),
        number: table.number,
        aside: Vec::new(),
        codec,
    };
    // All files are checked before any of them is changed. If another process writes to one file, all files belong to that
    // process, although it holds locks only on the files that it has open.
    for row in table.rows.values() {
        recovery.claim(row)?;
    }
    for (id, row) in std::mem::take(&mut table.rows) {
        if let Some(row) = recovery.row(row)? {
            table.rows.insert(id, row);
        }
    }
    let (aside, number) = (recovery.aside, recovery.number);
    table.number = number;
    if replays.is_none() {
        table.channel = channel.map_or(0, |channel| channel.id);
        table.position = None;
    }
    if doubt.is_some() && channel.is_some() {
        table.position = table.position.max(committed);
    }
    let doubtful = doubt.is_some();
    report(reporter, doubt, channel.is_some(), table.position, &aside);
    journal.begin(&table.encode())?;
    Ok(Recovered {
        journal,
        table,
        doubtful,
    })
}

/// Returns the table as far as it can be read, and the fault of the journal if there is one.
fn read(begun: Begun, directory: &Path, committed: Option<Position>) -> (Table, Option<String>) {
    let directory = directory.display();
    let (records, damage) = match begun {
        Begun::Nothing => {
            let missing = |committed| {
                format!(
                    "the journal in {directory} is missing, but this sink has settled up to {committed}"
                )
            };
            return (Table::default(), committed.map(missing));
        }
        Begun::Records(records) => (records, None),
        Begun::Damaged(what, records) => (records, Some(what)),
    };
    let (table, whole) = Table::decode(&records);
    let unread = || format!("the journal in {directory} has a record that is not valid");
    (table, damage.or_else(|| (!whole).then(unread)))
}

/// Returns a fault if a journal that looks intact ends before the position up to which the sink has settled.
fn behind(table: &Table, directory: &Path, committed: Position) -> Option<String> {
    (table.position < Some(committed)).then(|| {
        format!(
            "the journal in {} ends at {}, but this sink has settled up to {committed}: it is damaged or an old copy",
            directory.display(),
            table.position.unwrap_or_default()
        )
    })
}

/// Reports the fault of the journal, its consequences, and the files that were put aside.
fn report(
    reporter: &Reporter,
    doubt: Option<String>,
    durable: bool,
    position: Option<Position>,
    aside: &[(PathBuf, PathBuf)],
) {
    let named: Vec<String> = aside
        .iter()
        .take(NAMED_MAX)
        .map(|(from, to)| format!("{} is now {}", from.display(), to.display()))
        .collect();
    let more = aside.len().saturating_sub(NAMED_MAX);
    let files = match (named.is_empty(), more) {
        (true, _) => "no output was changed".to_owned(),
        (false, 0) => named.join(", "),
        (false, more) => format!("{}, and {more} more", named.join(", ")),
    };
    match doubt {
        Some(what) if durable => {
            let position = position.unwrap_or_default();
            reporter.error(
                "journal",
                format_args!(
                    "{what}. No output is cut back. The sink continues after {position}, which loses nothing; what it wrote after \
                     that before it stopped (up to a second) is written twice. Outputs with such bytes are put aside: {files}"
                ),
            );
        }
        Some(what) => reporter.error("journal", format_args!("{what}. No output is cut back")),
        None if aside.is_empty() => {}
        None => reporter.error(
            "journal",
            format_args!(
                "outputs hold bytes that nothing in the channel explains: another process wrote to them, or `data_dir` is an \
                 old copy. They are put aside: {files}"
            ),
        ),
    }
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    reporter: &'a Reporter,
    /// Whether the channel redelivers the records that were not committed.
    replays: bool,
    /// Whether files may be truncated: the journal can be trusted, and the channel redelivers the truncated records.
    cuts: bool,
    numbering: Numbering,
    /// The number of the next rotated file.
    number: u64,
    /// Files that were put aside, and their new names.
    aside: Vec<(PathBuf, PathBuf)>,
    codec: Option<Codec>,
}

impl Recovery<'_> {
    /// Fails if another process writes to the file: this journal may be a copy of that process's journal.
    fn claim(&self, row: &Row) -> Result<(), Failure> {
        let Some((path, _)) = self.locate(row)?.filter(|_| self.replays) else {
            return Ok(());
        };
        let file = self
            .disk
            .open(&path, Open::Write)
            .map_err(|error| cannot("open", &path, &error))?;
        lock(&*file, &path)
    }

    /// Recovers one file. Returns its row if the file keeps its name and gets more records, otherwise None.
    fn row(&mut self, mut row: Row) -> Result<Option<Row>, Failure> {
        let Some((path, found)) = self.locate(&row)? else {
            if row.committed > 0 {
                let text = format_args!(
                    "{} is gone: another process removed, moved or compressed it",
                    row.path.display()
                );
                self.reporter.warn("gone", text);
            }
            return Ok(None);
        };
        let unknown = self.replays && !self.cuts && found.len > row.committed;
        // A file in which nothing is committed is empty after the truncation. If such a file still has its old name, it is not
        // rotated. If it already has its rotated name, it is removed.
        let empty = self.replays && !unknown && row.committed == 0;
        if empty && path == row.path {
            row.renamed = None;
        }
        // A compressed file that is shorter than its committed length ends within a stream, so nothing appended to it could be
        // read.
        let short = found.len < row.committed && self.codec.is_some();
        if (unknown || short) && path == row.path {
            let number = &mut self.number;
            let to = self
                .numbering
                .name(self.disk, &row.path, row.since, number)?;
            row.renamed = Some(to);
        }
        let stays = path == row.path && row.renamed.is_none();
        if found.len < row.committed {
            self.reporter.error(
                "short",
                format_args!(
                    "{} has {} bytes, {} were committed: it was damaged or another process cut it; it is left as it is",
                    path.display(),
                    found.len,
                    row.committed
                ),
            );
            row.committed = found.len;
        } else if !self.replays {
            row.committed = self.whole(&path, &row, found)?;
        } else if unknown {
            let to = row.renamed.clone().filter(|_| path == row.path);
            self.aside
                .push((row.path.clone(), to.unwrap_or_else(|| path.clone())));
        } else {
            // Called even if the lengths are equal, because it also syncs the file: an earlier recovery may have been killed
            // between the truncation and the sync.
            self.truncate(&path, &row, found)?;
        }
        if let Some(to) = row.renamed.as_ref().filter(|_| path == row.path) {
            self.disk
                .rename(&path, to)
                .map_err(|error| cannot("rotate", &path, &error))?;
        }
        if empty && row.renamed.as_ref() == Some(&path) {
            self.disk
                .remove(&path)
                .map_err(|error| cannot("remove the empty file", &path, &error))?;
        }
        if !stays {
            let directory = directory_of(&path);
            self.disk
                .sync_directory(directory)
                .map_err(|error| cannot("sync the directory", directory, &error))?;
        }
        Ok(stays.then_some(row))
    }

    /// Finds the file: under its new name, its old name, or any other name in the same directory.
    fn locate(&self, row: &Row) -> Result<Option<(PathBuf, Metadata)>, Failure> {
        for path in row.renamed.iter().chain([&row.path]) {
            match self.disk.metadata(path) {
                Ok(found) if found.inode == row.inode => return Ok(Some((path.clone(), found))),
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) => {}
                Err(error) => return Err(cannot("look at", path, &error)),
            }
        }
        // Inode numbers are reused. So only the first bytes of a file prove that it is the file of this row, and an empty file has
        // none.
        if row.head.length == 0 {
            return Ok(None);
        }
        let found = find_inode(self.disk, directory_of(&row.path), row.inode);
        let Some(path) = found else { return Ok(None) };
        let found = self
            .disk
            .metadata(&path)
            .map_err(|error| cannot("look at", &path, &error))?;
        Ok((found.device == row.device).then_some((path, found)))
    }

    /// Keeps the whole file, because no record is redelivered. Only an incomplete compressed piece at the end of the file, which a
    /// killed run has left, is cut off: nothing after such a piece could be decompressed. Returns the length of the file.
    fn whole(&self, path: &Path, row: &Row, found: Metadata) -> Result<u64, Failure> {
        let tail = usize::try_from(found.len - row.committed).unwrap_or(usize::MAX);
        let Some(codec) = self.codec.filter(|_| (1..=TAIL_BYTES_MAX).contains(&tail)) else {
            return Ok(found.len);
        };
        let file = self
            .disk
            .open(path, Open::Write)
            .map_err(|error| cannot("open", path, &error))?;
        lock(&*file, path)?;
        let cut = || -> io::Result<u64> {
            let (mut head, mut bytes) = (Vec::new(), Vec::new());
            file.read_at(&mut head, HEAD_BYTES, 0)?;
            file.read_at(&mut bytes, tail, row.committed)?;
            let whole = whole_bytes(codec, &bytes);
            if codec_of(&head) != Some(codec) || whole == tail {
                return Ok(found.len);
            }
            let length = row.committed + whole as u64;
            file.truncate(length)?;
            file.sync()?;
            Ok(length)
        };
        cut().map_err(|error| cannot("truncate", path, &error))
    }

    /// Truncates a file to its committed length and syncs it, unless its first bytes have changed.
    fn truncate(&self, path: &Path, row: &Row, found: Metadata) -> Result<(), Failure> {
        let file = self
            .disk
            .open(path, Open::Write)
            .map_err(|error| cannot("open", path, &error))?;
        lock(&*file, path)?;
        let mut head = Vec::new();
        file.read_at(&mut head, HEAD_BYTES, 0)
            .map_err(|error| cannot("read", path, &error))?;
        if !row.head.fits(&head) {
            let text = format_args!(
                "{} no longer begins as it did: it is a different file and is left as it is",
                path.display()
            );
            self.reporter.error("other", text);
            return Ok(());
        }
        let cut = || -> io::Result<()> {
            if found.len > row.committed {
                file.truncate(row.committed)?;
            }
            file.sync()
        };
        cut().map_err(|error| cannot("truncate", path, &error))
    }
}
