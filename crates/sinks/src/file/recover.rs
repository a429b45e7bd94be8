//! Start: what an earlier run has left is brought to what its last commit says.
//!
//! Every file in the table is cut back to its committed length: what stands behind it comes again from the channel.
//! Intended renames are finished. A file that is shorter than committed is damage: it is named, and never padded. After
//! another channel's journal, or behind memory, nothing comes again, so nothing is cut. While another process writes to one of
//! the files (this is a copy of its data_dir), none is touched.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_sys::disk::{Disk, Metadata, Open};
use millstream_wire::compression::{Codec, codec_of, whole_bytes};

use super::{
    files::{find_inode, lock},
    journal::{Found, Journal},
    naming,
    table::{HEAD_BYTES, Row, Table},
    trouble,
};
use crate::folders::folder_of;

/// Behind memory, what was written after the last commit of a run that was killed: a cut comes every 64 MiB of input. More
/// than this is somebody else's.
const TAIL_BYTES_MAX: usize = 256 << 20;

/// Opens the journal in `folder` and recovers; `channel` is the durable channel before the sink, `codec` how it compresses.
pub(super) fn recover(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    channel: Option<u128>,
    codec: Option<Codec>,
    reporter: &Reporter,
) -> Result<(Journal, Table), Failure> {
    let (mut journal, found) = Journal::open(&**disk, folder, channel.is_some())?;
    let mut table = match found {
        Found::Nothing => Table::default(),
        Found::Records(records) => Table::decode(&records).unwrap_or_else(|| {
            damage(
                reporter,
                &format!("{} has a record that says nothing", folder.display()),
            );
            Table::default()
        }),
        Found::Damage(what) => {
            damage(reporter, &what);
            Table::default()
        }
    };
    // 0 stands for memory.
    let replays = channel.is_some_and(|channel| channel == table.channel);
    let recovery = Recovery {
        disk: &**disk,
        reporter,
        replays,
        codec,
    };
    // Before anything is touched: what is closed is not locked, and where one file has a writer, the others are its too.
    for row in table.rows.values() {
        recovery.claim(row)?;
    }
    for (id, row) in std::mem::take(&mut table.rows) {
        if let Some(row) = recovery.row(row, &mut table.number)? {
            table.rows.insert(id, row);
        }
    }
    if !replays {
        table.channel = channel.unwrap_or(0);
        table.position = None;
    }
    journal.begin(&table.encode())?;
    Ok((journal, table))
}

fn damage(reporter: &Reporter, what: &str) {
    reporter.error(
        "journal",
        format_args!(
            "{what}: nothing is cut back; what was written since the channel's cursor comes twice"
        ),
    );
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    reporter: &'a Reporter,
    /// What was not committed comes again.
    replays: bool,
    codec: Option<Codec>,
}

impl Recovery<'_> {
    /// Fails if somebody else writes to the file: this journal may be a copy of that one's.
    fn claim(&self, row: &Row) -> Result<(), Failure> {
        let Some((path, _)) = self.locate(row)?.filter(|_| self.replays) else {
            return Ok(());
        };
        let file = self
            .disk
            .open(&path, Open::Write)
            .map_err(|error| trouble("open", &path, &error))?;
        lock(&*file, &path)
    }

    /// Recovers one file; returns its row if it goes on under its name.
    fn row(&self, mut row: Row, number: &mut u64) -> Result<Option<Row>, Failure> {
        let Some((path, found)) = self.locate(&row)? else {
            if row.committed > 0 {
                let text = format_args!(
                    "{} is gone: it was removed, moved or compressed by somebody else",
                    row.path.display()
                );
                self.reporter.warn("gone", text);
            }
            return Ok(None);
        };
        // A file that was rotated before anything in it counted is begun again, and leaves no empty one behind.
        let empty = self.replays && row.committed == 0;
        if empty && path == row.path {
            row.renamed = None;
        }
        if found.len < row.committed && self.codec.is_some() && path == row.path {
            // It ends within a stream: what came behind could not be read.
            row.renamed.get_or_insert_with(|| {
                *number += 1;
                naming::rotated(&row.path, row.since, *number - 1)
            });
        }
        let stays = path == row.path && row.renamed.is_none();
        if found.len < row.committed {
            self.reporter.error(
                "short",
                format_args!(
                    "{} has {} bytes, {} were committed: it was damaged or cut by somebody else; it is left as it is",
                    path.display(),
                    found.len,
                    row.committed
                ),
            );
            row.committed = found.len;
        } else if !self.replays {
            row.committed = self.whole(&path, &row, found)?;
        } else {
            // Also at equal lengths: a kill may have left the cut itself unsynced.
            self.cut(&path, &row, found)?;
        }
        if let Some(to) = row.renamed.as_ref().filter(|_| path == row.path) {
            self.disk
                .rename(&path, to)
                .map_err(|error| trouble("rotate", &path, &error))?;
        }
        if empty && row.renamed.as_ref() == Some(&path) {
            self.disk
                .remove(&path)
                .map_err(|error| trouble("remove the empty file", &path, &error))?;
        }
        if !stays {
            let folder = folder_of(&path);
            self.disk
                .sync_folder(folder)
                .map_err(|error| trouble("sync the folder", folder, &error))?;
        }
        Ok(stays.then_some(row))
    }

    /// Where the file is: under its new name, its old one, or another in the same folder.
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
                Err(error) => return Err(trouble("look at", path, &error)),
            }
        }
        // An inode is used again: only the first bytes prove that this is the file, and an empty one has none.
        if row.head.length == 0 {
            return Ok(None);
        }
        let found = find_inode(self.disk, folder_of(&row.path), row.inode);
        let Some(path) = found else { return Ok(None) };
        let found = self
            .disk
            .metadata(&path)
            .map_err(|error| trouble("look at", &path, &error))?;
        Ok((found.device == row.device).then_some((path, found)))
    }

    /// Nothing comes again: all that is there stays, but for a stream that a kill has torn off, behind which nothing could
    /// be read. Returns the length.
    fn whole(&self, path: &Path, row: &Row, found: Metadata) -> Result<u64, Failure> {
        let tail = usize::try_from(found.len - row.committed).unwrap_or(usize::MAX);
        let Some(codec) = self.codec.filter(|_| (1..=TAIL_BYTES_MAX).contains(&tail)) else {
            return Ok(found.len);
        };
        let file = self
            .disk
            .open(path, Open::Write)
            .map_err(|error| trouble("open", path, &error))?;
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
        cut().map_err(|error| trouble("cut back", path, &error))
    }

    /// Cuts a file back to what is committed, unless it does not begin as it did.
    fn cut(&self, path: &Path, row: &Row, found: Metadata) -> Result<(), Failure> {
        let file = self
            .disk
            .open(path, Open::Write)
            .map_err(|error| trouble("open", path, &error))?;
        lock(&*file, path)?;
        let mut head = Vec::new();
        file.read_at(&mut head, HEAD_BYTES, 0)
            .map_err(|error| trouble("read", path, &error))?;
        if !row.head.fits(&head) {
            let text = format_args!(
                "{} does not begin as it did: it is another file now and left as it is",
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
        cut().map_err(|error| trouble("cut back", path, &error))
    }
}
