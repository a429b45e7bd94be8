//! Tests on a file system that accepts only short names.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_sys::disk::{Disk, File, HostDisk, Metadata, Open, OutputMode, Space};

use super::{block_on, entries, options, read, troubles::reasons};
use crate::{
    file::{COMPONENT, FileSink},
    rig::{Rig, Upstream, lines, node},
};

const NAME_BYTES_MAX: usize = 100;

/// The disk of this machine, with short names.
struct ShortNames;

impl ShortNames {
    /// Like a kernel, looks up a name only if its directory exists.
    fn check(path: &Path) -> io::Result<()> {
        let is_long = |at: &Path| {
            let name = at.file_name().unwrap_or_default();
            name.len() > NAME_BYTES_MAX && at.parent().is_some_and(Path::is_dir)
        };
        match path.ancestors().any(is_long) {
            true => Err(io::Error::from_raw_os_error(36)), // ENAMETOOLONG
            false => Ok(()),
        }
    }
}

impl Disk for ShortNames {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        Self::check(path)?;
        HostDisk.open(path, how)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Self::check(to)?;
        HostDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        HostDisk.remove(path)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        Self::check(path)?;
        HostDisk.create_directory(path)
    }

    fn create_output_directory(&self, path: &Path, mode: OutputMode) -> io::Result<()> {
        Self::check(path)?;
        HostDisk.create_output_directory(path, mode)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        HostDisk.sync_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        HostDisk.list(directory)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        Self::check(path)?;
        HostDisk.metadata(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        HostDisk.space(path)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        HostDisk.symlink(target, link)
    }

    fn read_link(&self, link: &Path) -> io::Result<PathBuf> {
        Self::check(link)?;
        HostDisk.read_link(link)
    }
}

/// A sink that writes to the disk with short names.
fn rig(directory: &Path, options: &str, upstream: &Upstream) -> Rig {
    upstream.close();
    let mut rig = Rig::new(&COMPONENT, options, upstream, &directory.join("state"));
    let node = node(serde_json::from_str(options).unwrap());
    rig.sink = Arc::new(FileSink::new(&node, Arc::new(ShortNames)).unwrap());
    rig
}

#[test]
fn records_whose_file_name_the_file_system_does_not_accept_are_rejected() {
    let rotate = r#""format": "raw", "field": "x", "rotate": {"records": 100}"#;
    for (bytes, more) in [
        (NAME_BYTES_MAX + 1, r#""format": "raw", "field": "x""#),
        // The name is accepted, but not the name of the rotated file.
        (NAME_BYTES_MAX - 1, rotate),
    ] {
        for upstream in [Upstream::durable(7), Upstream::memory()] {
            let directory = tempfile::tempdir().unwrap();
            let options = options(directory.path(), "{tag}/{.x}", more);
            let long = "x".repeat(bytes);
            let long = long.as_str();
            // Before the first record, the directory does not exist, so the kernel does not look at the name of the file.
            let fields = [("x", long), ("x", "a"), ("x", long), ("x", "a")];
            upstream.put(entries("t", 0, &fields), false);
            block_on(rig(directory.path(), &options, &upstream).run()).unwrap();
            let shorts = fields.iter().filter(|field| field.1 == "a").count();
            assert_eq!(read(directory.path(), "t/a"), "a\n".repeat(shorts));
            let reasons = reasons(&upstream);
            assert!(
                reasons.iter().all(|reason| reason.contains("is too long")),
                "{reasons:?}"
            );
            let rejected = upstream.rejected();
            let rejected: u32 = rejected.iter().map(|batch| batch.count).sum();
            assert_eq!(rejected as usize, fields.len() - shorts);
        }
    }
}

#[test]
fn records_wait_while_the_configured_path_cannot_be_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let name = "x".repeat(NAME_BYTES_MAX + 1);
    let upstream = Upstream::durable(7);
    upstream.put(lines("t", "1\n"), false);
    let options = options(directory.path(), &name, r#""format": "raw""#);
    let failure = block_on(rig(directory.path(), &options, &upstream).run()).unwrap_err();
    assert!(failure.message.contains(&name), "{failure}");
    assert_eq!((upstream.settled(), upstream.rejected().len()), (0, 0));
}
