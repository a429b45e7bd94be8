//! Leaves a mount to the next program, and takes over the mount that an earlier program has left.
//!
//! At an upgrade (SIGUSR2) the program replaces itself in its process, and the descriptor of `/dev/fuse` stays open. Over a restart
//! of the service, systemd stores the descriptor. In both cases the mount lives on: requests of programs wait in the kernel until the
//! next program reads them. With the device go the plain directory below the mount, the socket to fusermount3 (if it guards the
//! mount), and a file in memory with the names, the open files and their unfinished bytes.
//!
//! A write that waits for space in a full channel is not answered. The next program asks the kernel to send it again (since Linux
//! 6.9). Nothing of such a write was sent, so it is not shipped twice.

use std::{
    fs,
    io::{self, Read, Seek, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_net::handover::{self, NAMED};
use millstream_pipeline::failure::Failure;
use millstream_sys::fuse::{self, Device, Mount};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use super::{
    below::Below,
    config::Options,
    journal::Left,
    mounted::Mounted,
    open_file::OpenFile,
    recent::{Recent, Restored},
    shipper::Shipper,
    stream::KeptWriting,
    tree::{KeptTree, Tree, keep, take_over},
};

/// The version of [`Kept`]. A program does not take over what a program with another version has left.
const VERSION: u32 = 1;
/// The first kernel that sends requests again.
const RESENDS_SINCE: (u32, u32) = (6, 9);

/// The parts that are left, by the last part of their names.
const DEVICE: &str = "device";
const BELOW: &str = "below";
const STATE: &str = "state";
/// The socket to fusermount3.
const GUARD: &str = "guard";
/// The mount itself, if it was taken off its directory.
const DETACHED: &str = "detached";

/// The state of a mount between two programs.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// The option `mount`, as bytes.
    configured: Vec<u8>,
    tree: KeptTree,
    files: Vec<KeptFile>,
    next_handle: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptFile {
    handle: u64,
    node: u64,
    /// `None` if the file is open for reading only.
    writing: Option<KeptWriting>,
}

/// A mount that an earlier program has left.
pub(super) struct Taken {
    pub parts: (Device, Mount, Arc<Below>),
    pub kept: TakenState,
}

/// The state of a mount that an earlier program has left.
pub(super) struct TakenState(Kept);

/// Whether the kernel sends requests again that were read and not answered.
pub(super) fn resends() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|char: char| !char.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    number()
        .zip(number())
        .is_some_and(|version| version >= RESENDS_SINCE)
}

/// Leaves a mount in which no request is in flight. `detached` is the mount itself, if it was taken off its directory.
pub(super) fn leave(
    mounted: &Mounted,
    mount: Mount,
    below: &Below,
    detached: Option<OwnedFd>,
) -> io::Result<()> {
    let context = &mounted.shipper.context;
    let target = mount.target().to_owned();
    let state = state(mounted)?;
    let mut parts = vec![
        (DEVICE, mounted.device.as_fd().try_clone_to_owned()?),
        (BELOW, below.as_fd().try_clone_to_owned()?),
        (STATE, state.into()),
    ];
    let is_attached = detached.is_none();
    parts.extend(detached.map(|detached| (DETACHED, detached)));
    parts.extend(mount.leave().map(|guard| (GUARD, guard)));
    let name = |part| format!("{NAMED}fuse.{}.{part}", context.name);
    let parts = parts.into_iter().map(|(part, it)| (name(part), it));
    handover::leave(parts.collect(), move || {
        if is_attached {
            // Nothing more can be done about a failure.
            let _ = fuse::unmount(&target);
        }
    });
    Ok(())
}

/// A file in memory with the state of a mount.
fn state(mounted: &Mounted) -> io::Result<fs::File> {
    let tree = keep(&mounted.names.tree());
    let (next_handle, files) = mounted.files.all();
    let files = files.iter().map(|(handle, file)| KeptFile {
        handle: *handle,
        node: file.node(),
        writing: file.stream().ok().map(|stream| stream.keep()),
    });
    let kept = Kept {
        version: VERSION,
        configured: configured(&mounted.shipper.options()).to_vec(),
        tree,
        files: files.collect(),
        next_handle,
    };
    let json = serde_json::to_vec(&kept)?;
    let file = rustix::fs::memfd_create("millstream-mount", MemfdFlags::CLOEXEC)?;
    let mut file = fs::File::from(file);
    file.write_all(&json)?;
    Ok(file)
}

fn configured(options: &Options) -> &[u8] {
    options.mount.as_os_str().as_bytes()
}

impl Taken {
    /// The mount that an earlier program has left to the source of this name. The error says why it cannot be taken over; it is
    /// then unmounted.
    pub(super) fn find(source: &str, options: &Options) -> Result<Option<Self>, String> {
        let parts = handover::take_named(&format!("{NAMED}fuse.{source}."));
        if parts.is_empty() {
            return Ok(None);
        }
        let mut parts = Parts(parts);
        let target = parts.target();
        Self::of(&mut parts, options).map(Some).map_err(|why| {
            drop(parts);
            if let Some(target) = target {
                let _ = fuse::unmount(&target);
            }
            why.to_string()
        })
    }

    fn of(parts: &mut Parts, options: &Options) -> io::Result<Self> {
        let target = parts.target();
        let target = target.ok_or_else(|| io::Error::other("the directory below it is missing"))?;
        let mut state = fs::File::from(parts.part(STATE)?);
        let kept = read(&mut state)?;
        if kept.version != VERSION {
            return Err(io::Error::other("another version has left it"));
        }
        if kept.configured != configured(options) {
            return Err(io::Error::other("`mount` names another directory now"));
        }
        let device = Device::new(parts.part(DEVICE)?)?;
        let below = Below::left_by(parts.part(BELOW)?);
        if let Ok(detached) = parts.part(DETACHED) {
            fuse::attach(&detached, &target)?;
        }
        let mount = Mount::left_by(&target, parts.part(GUARD).ok());
        Ok(Self {
            parts: (device, mount, Arc::new(below)),
            kept: TakenState(kept),
        })
    }
}

impl TakenState {
    /// The nodes whose spills are needed.
    pub(super) fn spilled(&self) -> Vec<u64> {
        self.0.tree.spilled()
    }

    /// The tree.
    pub(super) fn tree(
        &mut self,
        options: &Options,
        recent: Option<Arc<Recent>>,
        restored: Vec<Restored>,
    ) -> Result<Tree, Failure> {
        let tree = std::mem::take(&mut self.0.tree);
        let tree = take_over(tree, options.owner, recent, restored);
        tree.ok_or_else(|| {
            Failure::us("the mount that an earlier start has left has no valid tree")
        })
    }

    /// The open files by their handles, and the next handle. Each file continues its unfinished line, which it finds among `left`,
    /// the lines in the journal.
    pub(super) fn files(
        &self,
        shipper: &Arc<Shipper>,
        left: &mut Vec<Left>,
    ) -> (u64, Vec<(u64, OpenFile)>) {
        let files = self.0.files.iter().map(|file| {
            let Some(writing) = &file.writing else {
                return (file.handle, OpenFile::to_read(shipper, file.node));
            };
            let is_it = |left: &Left| left.path == writing.path && left.tail == writing.tail;
            let at = left.iter().position(is_it);
            let left = at.map(|at| left.swap_remove(at));
            let open = OpenFile::kept(shipper, file.node, writing.clone(), left);
            (file.handle, open)
        });
        (self.0.next_handle, files.collect())
    }
}

fn read(state: &mut fs::File) -> io::Result<Kept> {
    state.rewind()?;
    let mut json = Vec::new();
    state.read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

/// The parts that an earlier program has left, by the last part of their names.
struct Parts(Vec<handover::Named>);

impl Parts {
    /// Takes a part.
    fn part(&mut self, name: &str) -> io::Result<OwnedFd> {
        let at = self.0.iter().position(|(part, _)| part == name);
        let missing = || io::Error::other(format!("its {name} is missing"));
        Ok(self.0.swap_remove(at.ok_or_else(missing)?).1)
    }

    /// The mount point, which is the path of the directory below the mount.
    fn target(&self) -> Option<PathBuf> {
        let (_, below) = self.0.iter().find(|(part, _)| part == BELOW)?;
        fs::read_link(format!("/proc/self/fd/{}", below.as_raw_fd())).ok()
    }
}

/// Unmounts what an earlier program has left to sources that are not configured any more.
pub fn abandon_left() {
    let left = handover::take_named(&format!("{NAMED}fuse."));
    let is_below = |name: &str| {
        Path::new(name)
            .extension()
            .is_some_and(|part| part == BELOW)
    };
    let below = left.iter().filter(|(name, _)| is_below(name));
    let targets = below.filter_map(|(_, below)| {
        fs::read_link(format!("/proc/self/fd/{}", below.as_raw_fd())).ok()
    });
    let targets: Vec<_> = targets.collect();
    drop(left);
    for target in targets {
        tracing::warn!(
            "no source takes over {}, which an earlier start has mounted: it is unmounted",
            target.display()
        );
        let _ = fuse::unmount(&target);
    }
}
