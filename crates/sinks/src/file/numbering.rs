//! Chooses the names of rotated files.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! `rotate.keep` removes the rotated files with the lowest numbers. The journal counts the numbers, but a new journal starts at 0,
//! and a path may have been written by another sink before. So the numbers in a directory continue after the highest one in it.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
};

use millstream_pipeline::failure::Failure;
use millstream_record::Time;
use millstream_sys::disk::Disk;

use super::{failure::cannot, naming};
use crate::directories::directory_of;

/// Maximum number of directories to remember. Beyond this number, all directories are forgotten. Each is then listed again when it
/// is next used.
const LISTED_MAX: usize = 4096;

/// Chooses the names of rotated files.
#[derive(Default)]
pub(super) struct Numbering {
    /// The directories in which all rotated files are known to have lower numbers than the next rotated file.
    listed: HashSet<PathBuf>,
}

impl Numbering {
    /// Returns a name that no file has, for the file at `path`, which is rotated at `time`. `number` is the number of the next
    /// rotated file. The call increases it.
    pub(super) fn name(
        &mut self,
        disk: &dyn Disk,
        path: &Path,
        time: Time,
        number: &mut u64,
    ) -> Result<PathBuf, Failure> {
        let directory = directory_of(path);
        if !self.listed.contains(directory) {
            let names = disk
                .list(directory)
                .map_err(|error| cannot("list", directory, &error))?;
            *number = naming::next_number(&names).max(*number);
            if self.listed.len() >= LISTED_MAX {
                self.listed.clear();
            }
            self.listed.insert(directory.to_owned());
        }
        loop {
            let to = naming::rotated(path, time, *number);
            *number += 1;
            match disk.metadata(&to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(to),
                Err(error) => return Err(cannot("look at", &to, &error)),
                Ok(_) => {}
            }
        }
    }
}
