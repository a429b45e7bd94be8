//! A run of the source: mounts, serves, and takes everything down again.
//!
//! The order: what an earlier run left unfinished is sent first in its slots of the journal; then the sessions begin, and
//! beside them what was written below is shipped. At a stop the mount goes first, so that nothing new is opened; requests
//! under way are answered; every open file is closed as its writer would have done; last the device is closed, from when on
//! writers get ENOTCONN.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicUsize},
};

use millstream_pipeline::{condition::Trouble, failure::Failure, node::SourceContext};
use millstream_record::Time;
use millstream_sys::fuse::{self, Device, Mount};
use millstream_wire::fuse::ROOT;
use rustix::io::Errno;
use tokio::sync::{mpsc, watch};

use super::{
    below::Below,
    config::Options,
    exec::Commands,
    follow::follow,
    handles::{Handle, Handles},
    journal::{Journal, Left, Opened},
    mounted::Mounted,
    quiet::send_quiet,
    session::serve,
    stream::Stream,
    tails::Tails,
    tree::{DIRECTORY, Tree, Who},
    waiting::Waiting,
    write::{Meters, Ship},
};

/// Unfinished lines of all open files together may take this part of the memory.
const TAILS_PART: usize = 8;
/// So often a mount of a dead process is taken away: another may lie below it.
const STALE_MAX: usize = 8;

/// Mounts, and opens what the mount hides.
pub(super) fn mount(
    options: &Options,
    context: &SourceContext,
) -> Result<(Device, Mount, Arc<Below>), Failure> {
    let target = &options.mount;
    for _ in 0..STALE_MAX {
        if !is_stale(target) {
            break;
        }
        let text = format_args!(
            "{} is still mounted by a process that is gone; it is unmounted",
            target.display()
        );
        context.reporter.warn("stale", text);
        fuse::unmount(target).map_err(|error| {
            Failure::disk(format!("cannot unmount {}: {error}", target.display()))
        })?;
    }
    let below = Below::open(target)?;
    let full = std::fs::canonicalize(target)
        .map_err(|error| Failure::disk(format!("{}: {error}", target.display())))?;
    if fuse::type_of_mount(&full).is_ok_and(|found| found.as_deref() == Some(fuse::TYPE)) {
        return Err(Failure::disk(format!(
            "another Millstream has mounted {}",
            full.display()
        )));
    }
    let how = fuse::Options {
        allow_other: options.allow_other,
    };
    let (device, mount) = Mount::new(&full, how)
        .map_err(|refused| Failure::disk(format!("cannot mount {}: {refused}", full.display())))?;
    if !mount.is_guarded() {
        let text = "mounted without fusermount3 (package fuse3): if this process dies, writers get ENOTCONN until it runs \
                    again; with it they write to the plain directory meanwhile";
        context.reporter.warn("unguarded", text);
    }
    Ok((device, mount, Arc::new(below)))
}

/// Whether a mount is there whose process is gone.
fn is_stale(target: &Path) -> bool {
    let gone = [Errno::NOTCONN, Errno::CONNABORTED].map(Errno::raw_os_error);
    let error = std::fs::metadata(target).err();
    error
        .and_then(|error| error.raw_os_error())
        .is_some_and(|error| gone.contains(&error))
}

/// Opens the journal and what is needed to send.
fn ship(options: Arc<Options>, context: SourceContext) -> Result<(Arc<Ship>, Vec<Left>), Failure> {
    let durable = context.outlet.is_durable();
    let origins = context.outlet.file_origins().unwrap_or_default();
    let kept = |file: &_| {
        let found = origins.iter().find(|(known, _)| known == file);
        found.map(|(_, next)| *next)
    };
    let Opened {
        journal,
        left,
        mended,
        doubtful,
    } = Journal::open(&context.directory, kept)?;
    if let Some(mended) = mended {
        context.reporter.error("damage", mended);
    }
    let missing = context.reporter.condition("missing");
    if let Some(doubtful) = doubtful {
        missing.raise(Trouble::Losing, doubtful);
    }
    let meters = Meters {
        too_long: context.meters.counter("lines_too_long"),
        filtered: context.meters.counter("records_filtered"),
        refused: context.meters.counter("writes_refused"),
        open: context.meters.gauge("open_files"),
        copies_failed: context.meters.counter("copies_failed"),
        copied: context.meters.counter("copied_bytes"),
    };
    let ship = Ship {
        durable,
        identity: journal.identity(),
        journal: Mutex::new(journal),
        tails: Tails {
            bytes: AtomicUsize::new(0),
            bytes_max: context.pool.bytes_max() / TAILS_PART,
        },
        meters,
        commands: Commands::default(),
        _missing: missing,
        options,
        context,
    };
    Ok((Arc::new(ship), left))
}

/// Sends what an earlier run has left unfinished.
async fn send_left(ship: &Arc<Ship>, left: Vec<Left>) {
    for left in left {
        let path = left.path.clone();
        let handle = Handle::new(0, Some(Stream::of_left(ship, left)));
        if ship.finish(&handle).await.is_err() {
            let text = format_args!(
                "the unfinished line of {path} could not be kept; it is sent at the next start"
            );
            ship.context.reporter.error("left", text);
        }
    }
}

/// With `--once` nothing is mounted: what stands below the mount point is shipped.
pub(super) async fn once(
    options: Arc<Options>,
    below: Arc<Below>,
    context: SourceContext,
) -> Result<(), Failure> {
    let stop = context.stop.clone();
    let (ship, left) = ship(options, context)?;
    send_left(&ship, left).await;
    follow(&below, &ship, stop, true).await;
    Ok(())
}

/// The tree as it is at the start: the directories below, and those that rules name.
fn tree(options: &Options, below: &Below) -> io::Result<Tree> {
    let root = below.metadata()?;
    let who = Who {
        uid: root.uid(),
        gid: root.gid(),
    };
    let now = Time::now();
    let mut tree = Tree::new(options.owner, options.recent, who, root.mode(), now);
    for rule in options.rules.all() {
        for directory in &rule.directories {
            let mut path = std::path::PathBuf::new();
            for part in directory.split('/') {
                path.push(part);
                below.make_directory(&path, 0o755);
            }
        }
    }
    for directory in below.scan()?.directories {
        let who = Who {
            uid: directory.uid,
            gid: directory.gid,
        };
        tree.make_path(
            &directory.path,
            DIRECTORY | directory.mode & 0o7777,
            who,
            now,
        );
    }
    Ok(tree)
}

/// Serves a mount until it is time to stop.
pub(super) async fn run(
    options: Arc<Options>,
    (device, mut mount, below): (Device, Mount, Arc<Below>),
    context: SourceContext,
) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::disk(format!(
            "the directory below the mount cannot be read: {error}"
        ))
    };
    let tree = tree(&options, &below).map_err(failed)?;
    let (ship, left) = ship(options, context.clone())?;
    let (busy, all_done) = mpsc::channel(1);
    let mounted = Arc::new(Mounted {
        device,
        ship: ship.clone(),
        tree: Mutex::new(tree),
        handles: Handles::default(),
        waiting: Waiting::default(),
        below: below.clone(),
        busy,
    });
    let (end_sessions, end) = watch::channel(false);
    let mut ends = start_sessions(&mounted, end).await;
    let text = format_args!("{} is mounted", ship.options.mount.display());
    context.reporter.info("mounted", text);
    let mut stop = context.stop.clone();
    let beside = async {
        send_left(&ship, left).await;
        follow(&below, &ship, context.stop.clone(), false).await;
        std::future::pending::<()>().await;
    };
    let gone = tokio::select! {
        () = stop.stopped() => false,
        // None: all sessions have died, which their threads have told.
        gone = ends.recv() => gone.unwrap_or(false),
        () = beside => false,
        () = send_quiet(&mounted) => false,
    };
    if gone {
        mount.is_gone();
    }
    drop(mount);
    end_sessions.send_replace(true);
    while ends.recv().await.is_some() {}
    close_all(mounted, all_done).await;
    if stop.is_stopped() {
        return Ok(());
    }
    let what = if gone {
        "somebody has unmounted"
    } else {
        "its sessions died, which was a fault of Millstream, on"
    };
    let mount = ship.options.mount.display();
    Err(Failure::peer(format!(
        "{what} {mount}; it is mounted again"
    )))
}

/// Begins a session on every data thread; each says at its end whether the mount is gone.
async fn start_sessions(
    mounted: &Arc<Mounted>,
    end: watch::Receiver<bool>,
) -> mpsc::Receiver<bool> {
    let (ended, ends) = mpsc::channel(1);
    let context = &mounted.ship.context;
    for thread in 0..context.threads.count() {
        let (mounted, end, ended) = (mounted.clone(), end.clone(), ended.clone());
        let session = async move || {
            let gone = serve(mounted, end).await;
            let _ = ended.send(gone).await;
        };
        let threads = &context.threads;
        threads.spawn_on(thread, &context.reporter, session).await;
    }
    ends
}

/// Waits for the requests under way, and closes every file as its writer would have done.
async fn close_all(mounted: Arc<Mounted>, mut all_done: mpsc::Receiver<()>) {
    let ship = mounted.ship.clone();
    let handles = mounted.handles.drain();
    drop(mounted);
    while all_done.recv().await.is_some() {}
    for handle in handles {
        if ship.finish(&handle).await.is_err() {
            let text = "the end of a file that was open could not be kept";
            ship.context.reporter.error("close", text);
        }
    }
}

impl Tree {
    /// Makes a directory by its path, if the directory above is there.
    fn make_path(&mut self, path: &Path, mode: u32, who: Who, now: Time) {
        use std::os::unix::ffi::OsStrExt;
        let mut above = ROOT;
        let mut parts = path.iter().peekable();
        while let Some(part) = parts.next() {
            let found = match parts.peek() {
                Some(_) => self.lookup(above, part.as_bytes()),
                None => self.make(above, part.as_bytes(), mode, None, who, now),
            };
            let Ok(found) = found else { return };
            // The system has not looked it up.
            self.forget(found.node, 1);
            above = found.node;
        }
    }
}
