//! A small state in two slots of one file that is allocated once: storing the state takes one sync and no more space on the disk.
//!
//! ```text
//! offset bytes
//!      0   -   slot 0: a sealed block (see `seal`); the slot with the higher generation is the newer one
//!   4096   -   slot 1
//! ```

use std::{
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_sys::disk::{Disk, File, Open};

use crate::{
    Error, Format,
    replace::directory,
    seal::{self, Seal},
};

/// Bytes of a slot.
const SLOT_BYTES: usize = 4096;

/// A state in two slots. A write never goes to the slot with the last synced body (the bytes of the state), so a torn write cannot destroy
/// this body.
pub struct Slots {
    file: Arc<dyn File>,
    path: PathBuf,
    format: Format,
    generation: u64,
    /// The index of the slot that holds the newest synced body. A write always goes to the other slot.
    durable: usize,
}

/// The result of [`Slots::open`].
#[derive(Debug, PartialEq, Eq)]
pub enum Stored {
    /// The newest valid body.
    Body(Vec<u8>),
    /// No body is valid, and at least one slot was never written: a crash came before the first body was durable.
    Nothing,
    /// Both slots were written and neither is valid.
    Damaged,
}

/// The newest valid slot.
struct Newest {
    generation: u64,
    slot: usize,
    bytes: Vec<u8>,
    body: Vec<u8>,
}

impl Slots {
    /// Creates the file with `body` in it. When this returns, the body and the file's name survive a power cut; on an error the file is
    /// removed. The directory must exist.
    pub fn create(
        disk: &dyn Disk,
        path: &Path,
        format: Format,
        body: &[u8],
    ) -> Result<Self, Error> {
        let failed = || Error::io("create", path);
        let file = disk.open(path, Open::Create).map_err(failed())?;
        let mut slots = Self {
            file,
            path: path.to_owned(),
            format,
            generation: 0,
            durable: 1,
        };
        let created = slots
            .allocate()
            .map_err(failed())
            .and_then(|()| slots.store(body))
            .and_then(|()| disk.sync_directory(directory(path)).map_err(failed()));
        if created.is_err() {
            let _ = disk.remove(path);
        }
        created.map(|()| slots)
    }

    /// Allocates and writes both slots, so that no later write needs space.
    fn allocate(&self) -> io::Result<()> {
        self.file.allocate(2 * SLOT_BYTES as u64)?;
        self.file.write_at(&[IoSlice::new(&[0; 2 * SLOT_BYTES])], 0)
    }

    /// Opens an existing file, with [`Open::Read`] to look at it or with [`Open::Write`] to store to it.
    ///
    /// `older` converts a slot that is not of the current version: it returns the slot's generation, and its body in the current format.
    pub fn open(
        disk: &dyn Disk,
        path: &Path,
        format: Format,
        how: Open,
        older: impl Fn(&[u8]) -> Option<(u64, Vec<u8>)>,
    ) -> Result<(Self, Stored), Error> {
        let file = disk.open(path, how).map_err(Error::io("open", path))?;
        let mut newest: Option<Newest> = None;
        let mut written = 0;
        for slot in 0..2 {
            let mut bytes = Vec::new();
            file.read_at(&mut bytes, SLOT_BYTES, (slot * SLOT_BYTES) as u64)
                .map_err(Error::io("read", path))?;
            written += u32::from(bytes.iter().any(|byte| *byte != 0));
            let found = match seal::open_block(format.magic, format.version, &bytes) {
                Seal::Current((generation, body)) => Some((generation, body.to_vec())),
                Seal::Newer(found) => return Err(format.newer(path, found)),
                Seal::Other => older(&bytes),
            };
            if let Some((generation, body)) = found
                && newest
                    .as_ref()
                    .is_none_or(|newest| newest.generation < generation)
            {
                newest = Some(Newest {
                    generation,
                    slot,
                    bytes,
                    body,
                });
            }
        }
        let (generation, durable) = newest
            .as_ref()
            .map_or((0, 1), |newest| (newest.generation, newest.slot));
        let slots = Self {
            file,
            path: path.to_owned(),
            format,
            generation,
            durable,
        };
        if how == Open::Write {
            slots
                .secure(newest.as_ref(), written)
                .and_then(|()| disk.sync_directory(directory(path)))
                .map_err(Error::io("sync", path))?;
        }
        let stored = match newest {
            Some(newest) => Stored::Body(newest.body),
            None if written == 2 => Stored::Damaged,
            None => Stored::Nothing,
        };
        Ok((slots, stored))
    }

    /// Makes durable the body that [`Slots::open`] has found. This body may exist only in the page cache, if the previous run was killed
    /// after [`Slots::note`], after a failed sync or during [`Slots::create`].
    fn secure(&self, newest: Option<&Newest>, written: u32) -> io::Result<()> {
        match newest {
            // Writing the same bytes to the same place cannot tear them, and the next store overwrites the other slot.
            Some(newest) => {
                let at = (newest.slot * SLOT_BYTES) as u64;
                self.file.write_at(&[IoSlice::new(&newest.bytes)], at)?;
            }
            None if written < 2 => self.allocate()?,
            None => {}
        }
        self.file.sync()
    }

    /// Stores the body. It survives a power cut when this returns. After an error the earlier body is still durable. Blocks.
    pub fn store(&mut self, body: &[u8]) -> Result<(), Error> {
        self.note(body)?;
        self.file.sync().map_err(Error::io("sync", &self.path))?;
        self.durable = 1 - self.durable;
        Ok(())
    }

    /// Writes the body without a sync. It survives the end of the process. After a power cut, or a crash in the middle of the next `note`,
    /// the last body from [`Slots::store`] may be found instead.
    pub fn note(&mut self, body: &[u8]) -> Result<(), Error> {
        let generation = self.generation + 1;
        let block = seal::block(self.format.magic, self.format.version, generation, body);
        self.format
            .within(&self.path, block.len() as u64, SLOT_BYTES as u64)?;
        let at = ((1 - self.durable) * SLOT_BYTES) as u64;
        self.file
            .write_at(&[IoSlice::new(&block)], at)
            .map_err(Error::io("write", &self.path))?;
        self.generation = generation;
        Ok(())
    }
}
