//! Runs the source: serves the mount, and closes everything at a stop.
//!
//! The sessions, one on each data thread, serve the mount. Meanwhile the source sends the lines that an earlier run left in the
//! journal, and then ships the files in the plain directory below the mount (the directory that the mount hides). At a stop the
//! mount is removed first, so that no new file can be opened. Then requests in flight are answered, and every open file is
//! finished as if its writer had closed it. The device is closed last; from then on, writers get ENOTCONN.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_pipeline::{failure::Failure, node::SourceContext};
use millstream_record::Time;
use millstream_sys::fuse::{Device, Mount};
use tokio::sync::{mpsc, watch};

use super::{
    below::Below,
    config::Options,
    follow::follow,
    journal::Left,
    mounted::Mounted,
    namespace::Namespace,
    open_file::OpenFile,
    open_files::OpenFiles,
    quiet::send_quiet,
    recent::{Recent, Restored},
    session::serve,
    shipper::Shipper,
    tree::{Change, DIRECTORY, Tree, Who},
    waiting::Waiting,
};

/// Runs the source with `--once`: sends the lines that an earlier run left, and ships the files in the plain directory. Nothing
/// is mounted.
pub(super) async fn once(
    options: Arc<Options>,
    below: Arc<Below>,
    context: SourceContext,
) -> Result<(), Failure> {
    let stop = context.stop.clone();
    let (shipper, left) = Shipper::open(options, context)?;
    send_left(&shipper, left).await;
    follow(&below, &shipper, stop, true).await;
    Ok(())
}

/// Serves a mount until the source stops or the mount is gone.
pub(super) async fn run(
    options: Arc<Options>,
    (device, mut mount, below): (Device, Mount, Arc<Below>),
    context: SourceContext,
) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::disk(format!(
            "cannot read the directory below the mount: {error}"
        ))
    };
    let (recent, restored) = open_recent(&options, &context)?;
    let tree = tree(&options, &below, recent.clone(), restored).map_err(failed)?;
    let (shipper, left) = Shipper::open(options, context.clone())?;
    let (busy, all_done) = mpsc::channel(1);
    let mounted = Arc::new(Mounted {
        device,
        shipper: shipper.clone(),
        names: Namespace::new(tree, below.clone()),
        files: OpenFiles::new(shipper.meters.open.clone()),
        waiting: Waiting::default(),
        busy,
    });
    let (end_sessions, end) = watch::channel(false);
    let mut ends = start_sessions(&mounted, end).await;
    let text = format_args!("{} is mounted", shipper.options.mount.display());
    context.reporter.info("mounted", text);
    let mut stop = context.stop.clone();
    let beside = async {
        send_left(&shipper, left).await;
        follow(&below, &shipper, context.stop.clone(), false).await;
        std::future::pending::<()>().await;
    };
    let gone = tokio::select! {
        () = stop.stopped() => false,
        // `None`: all sessions have panicked, and their threads have reported the panics.
        gone = ends.recv() => gone.unwrap_or(false),
        () = beside => false,
        () = keep_bounds(recent) => false,
        () = send_quiet(&shipper, &mounted.files, &mounted.busy) => false,
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
    let mount = shipper.options.mount.display();
    Err(Failure::peer(if gone {
        format!("{mount} was unmounted by another program; mounting it again")
    } else {
        format!("the sessions of {mount} died, which is a bug in Millstream; mounting it again")
    }))
}

/// Sends the unfinished lines that an earlier run left.
async fn send_left(shipper: &Arc<Shipper>, left: Vec<Left>) {
    for left in left {
        let path = left.path.clone();
        let file = OpenFile::recovered(shipper, left);
        if file.finish().await.is_err() {
            let text = format_args!(
                "the unfinished line of {path} could not be kept; the next start sends it"
            );
            shipper.context.reporter.error("left", text);
        }
    }
}

/// Opens the spills, which keep written data readable. Also returns the files of an earlier run. `None` if nothing is to be kept.
fn open_recent(
    options: &Options,
    context: &SourceContext,
) -> Result<(Option<Arc<Recent>>, Vec<Restored>), Failure> {
    let Some(limits) = options.recent else {
        return Ok((None, Vec::new()));
    };
    let directory = context.directory.join("recent");
    let bytes = context.meters.gauge("recent_bytes");
    let reporter = context.reporter.clone();
    let (recent, restored) = Recent::open(directory, limits, &[], reporter, bytes)?;
    Ok((Some(recent), restored))
}

async fn keep_bounds(recent: Option<Arc<Recent>>) {
    match recent {
        Some(recent) => recent.keep_bounds().await,
        None => std::future::pending().await,
    }
}

/// The tree at the start: it has the same directories as the plain directory below the mount, and the files of an earlier run. Before
/// the plain directory is read, the directories that the rules name are created in it.
fn tree(
    options: &Options,
    below: &Below,
    recent: Option<Arc<Recent>>,
    restored: Vec<Restored>,
) -> io::Result<Tree> {
    let root = below.metadata()?;
    let who = Who {
        uid: root.uid(),
        gid: root.gid(),
    };
    let now = Time::now();
    let mut tree = Tree::new(options.owner, recent, who, root.mode(), now);
    tree.reserve(&restored);
    for rule in options.rules.all() {
        for directory in &rule.directories {
            let mut path = PathBuf::new();
            for part in Path::new(directory) {
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
        let mode = DIRECTORY | directory.mode & 0o7777;
        tree.make_path(&directory.path, mode, who, now);
    }
    tree.restore(restored);
    for change in tree.take_changes() {
        if let Change::Head(node, spill) = change {
            spill.save(|| tree.head(node));
        }
    }
    Ok(tree)
}

/// Starts a session on every data thread. When a session ends, it sends to the returned channel whether the mount is gone.
async fn start_sessions(
    mounted: &Arc<Mounted>,
    end: watch::Receiver<bool>,
) -> mpsc::Receiver<bool> {
    let (ended, ends) = mpsc::channel(1);
    let context = &mounted.shipper.context;
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

/// Waits for the requests in flight, and finishes every open file as if its writer had closed it.
async fn close_all(mounted: Arc<Mounted>, mut all_done: mpsc::Receiver<()>) {
    let shipper = mounted.shipper.clone();
    let files = mounted.files.drain();
    for file in &files {
        mounted.names.closed(file.node(), file.rule().is_ok());
    }
    drop(mounted);
    while all_done.recv().await.is_some() {}
    for file in files {
        if file.finish().await.is_err() {
            let text = "the end of a file that was still open could not be kept";
            shipper.context.reporter.error("close", text);
        }
    }
}
