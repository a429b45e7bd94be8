//! Mounts the source's directory over the plain directory at the same path.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_net::handover::{self, Next};
use millstream_pipeline::{failure::Failure, node::SourceContext};
use millstream_sys::fuse::{self, Device, Mount};
use rustix::io::Errno;

use super::{below::Below, config::Options, given::Given, place};

/// A process that dies can leave its mount behind, and several such mounts can be stacked on one directory. This is the maximum
/// number of such mounts that are removed.
const STALE_MAX: usize = 8;

/// Opens the plain directory before a mount hides it, and finds out which of its files the source was given.
pub(super) fn open_below(
    options: &Options,
    context: &SourceContext,
) -> Result<Arc<Below>, Failure> {
    let target = &options.mount;
    let below = Below::make(target)?;
    let full = full(target)?;
    if let Some(why) = place::obstacle(target).or_else(|| place::own_log(&full)) {
        return Err(Failure::config(why));
    }
    // Stores the list before a mount hides the files. `Shipper::open` reads it again.
    Given::open(&below, options.existing, context)?;
    Ok(Arc::new(below))
}

fn full(target: &Path) -> Result<PathBuf, Failure> {
    std::fs::canonicalize(target)
        .map_err(|error| Failure::disk(format!("{}: {error}", target.display())))
}

/// Mounts the directory. First opens the plain directory, which the mount then hides.
pub(super) fn mount(
    options: &Options,
    context: &SourceContext,
) -> Result<(Device, Mount, Arc<Below>), Failure> {
    let (target, reporter) = (&options.mount, &context.reporter);
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
    if let Some(full) = target.exists().then(|| full(target)).transpose()?
        && place::is_mounted(&full)
    {
        return Err(Failure::disk(format!(
            "another Millstream has mounted {}",
            full.display()
        )));
    }
    let below = open_below(options, context)?;
    let full = full(target)?;
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
    Ok((device, mount, below))
}

/// Whether the process that mounted the directory is gone.
fn is_stale(target: &Path) -> bool {
    let gone = [Errno::NOTCONN, Errno::CONNABORTED].map(Errno::raw_os_error);
    let error = std::fs::metadata(target).err();
    error
        .and_then(|error| error.raw_os_error())
        .is_some_and(|error| gone.contains(&error))
}
