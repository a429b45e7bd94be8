//! Mounts the source's directory over the plain directory at the same path.

use std::{path::Path, sync::Arc};

use millstream_net::handover::{self, Next};
use millstream_pipeline::{failure::Failure, report::Reporter};
use millstream_sys::fuse::{self, Device, Mount};
use rustix::io::Errno;

use super::{below::Below, config::Options};

/// A process that dies can leave its mount behind, and several such mounts can be stacked on one directory. This is the maximum
/// number of such mounts that are removed.
const STALE_MAX: usize = 8;

/// Mounts the directory. First opens the plain directory, which the mount then hides.
pub(super) fn mount(
    options: &Options,
    reporter: &Reporter,
) -> Result<(Device, Mount, Arc<Below>), Failure> {
    let target = &options.mount;
    for _ in 0..STALE_MAX {
        if !is_stale(target) {
            break;
        }
        let text = format_args!(
            "{} is still mounted by a process that is gone; unmounting it",
            target.display()
        );
        reporter.warn("stale", text);
        fuse::unmount(target).map_err(|error| {
            Failure::disk(format!("cannot unmount {}: {error}", target.display()))
        })?;
    }
    let below = Below::open(target)?;
    let full = std::fs::canonicalize(target)
        .map_err(|error| Failure::disk(format!("{}: {error}", target.display())))?;
    if fuse::type_of_mount(&full).is_ok_and(|mounted| mounted.as_deref() == Some(fuse::TYPE)) {
        return Err(Failure::disk(format!(
            "another Millstream has mounted {}",
            full.display()
        )));
    }
    let how = fuse::Options {
        allow_other: options.allow_other,
        outlives: handover::next() == Next::Manager,
    };
    let (device, mount) = Mount::new(&full, how)
        .map_err(|refused| Failure::disk(format!("cannot mount {}: {refused}", full.display())))?;
    if !mount.is_guarded() && !how.outlives {
        let text = "mounted without fusermount3 (package fuse3): if this process dies, writers get ENOTCONN until \
                    Millstream runs again; with fusermount3 they write to the plain directory meanwhile";
        reporter.warn("unguarded", text);
    }
    Ok((device, mount, Arc::new(below)))
}

/// Whether the process that mounted the directory is gone.
fn is_stale(target: &Path) -> bool {
    let gone = [Errno::NOTCONN, Errno::CONNABORTED].map(Errno::raw_os_error);
    let error = std::fs::metadata(target).err();
    error
        .and_then(|error| error.raw_os_error())
        .is_some_and(|error| gone.contains(&error))
}
