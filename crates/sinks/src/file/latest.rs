//! The option `latest`: a symbolic link to the current file.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! Paths that change with time have no fixed name to follow; the link provides one (`tail -F latest.log`). The link is set when a
//! file gets its first record of a run. If the link already leads to a file with newer records, the link stays, so that late
//! records do not make it lead to an older file. The link is replaced in one step, by renaming a new link over it. Delivery does
//! not depend on the link: an error is logged and delivery continues.

use std::{
    collections::HashMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf, absolute},
};

use millstream_pipeline::report::Reporter;
use millstream_record::Time;
use millstream_sys::disk::{Disk, OutputMode};

use super::files::Files;
use crate::directories::{Directories, directory_of};

/// Maximum number of links to remember. If there are more, late records may briefly make a link lead to an older file.
const LINKS_MAX: usize = 65_536;

/// The links of a sink.
pub(super) struct Latest {
    /// For each link, the time of the first record of the file to which the link leads.
    times: HashMap<PathBuf, Time>,
    /// Pairs (link, file): links to set as soon as the file exists.
    due: Vec<(PathBuf, PathBuf)>,
    directories: Directories,
}

impl Latest {
    /// Creates an empty set of links; `mode` is the mode of the outputs.
    pub(super) fn new(mode: OutputMode) -> Self {
        Self {
            times: HashMap::new(),
            due: Vec::new(),
            directories: Directories::of_outputs(mode),
        }
    }

    /// Requests `link` to the file at `path`, whose first record has the time `time`. The link is set after the file is written.
    /// The request is ignored if the link already leads to a file with a newer time.
    pub(super) fn request(&mut self, link: PathBuf, path: &Path, time: Time) {
        if self.times.get(&link).is_some_and(|newest| *newest > time) {
            return;
        }
        if self.times.len() >= LINKS_MAX {
            self.times.clear();
        }
        self.times.insert(link.clone(), time);
        self.due.retain(|(due, _)| *due != link);
        self.due.push((link, path.to_owned()));
    }

    /// Sets the links that were requested.
    pub(super) fn set(&mut self, files: &mut Files, reporter: &Reporter) {
        for (link, path) in std::mem::take(&mut self.due) {
            match self.turn(&*files.disk, &link, &path) {
                Ok(false) => {}
                Ok(true) => files.name_changed_in(directory_of(&link)),
                Err(error) => reporter.warn(
                    "latest",
                    format_args!("cannot set the link {}: {error}", link.display()),
                ),
            }
        }
    }

    /// Makes `link` lead to `path`. Returns false if it already does.
    fn turn(&mut self, disk: &dyn Disk, link: &Path, path: &Path) -> io::Result<bool> {
        let directory = directory_of(link);
        let target = match path.file_name() {
            Some(name) if directory == directory_of(path) => PathBuf::from(name),
            _ => absolute(path)?,
        };
        match disk.read_link(link) {
            Ok(leads_to) if leads_to == target => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.directories.make(disk, directory)?;
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(io::Error::other("something else has this name"));
            }
            Err(error) => return Err(error),
        }
        let mut name = OsString::from(".");
        name.push(link.file_name().unwrap_or_default());
        name.push(".new");
        let new = directory.join(name);
        match disk.symlink(&target, &new) {
            // This is usually a link that an earlier run has created. That run was killed before it renamed the link.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Reading fails if this is not a link. It may be an output with this name, which must not be removed.
                disk.read_link(&new)?;
                disk.remove(&new)?;
                disk.symlink(&target, &new)?;
            }
            other => other?,
        }
        disk.rename(&new, link)?;
        Ok(true)
    }
}
