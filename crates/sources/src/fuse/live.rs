//! A mount that serves requests, and its seat: a source that follows another one in a reload takes the running mount over.
//!
//! A reload that changes the options of a source puts another source into its place. The files that programs have open must not
//! notice this. So the mount belongs to a seat, which both sources share. The first source leaves the running mount in the seat,
//! and the next one takes it. The sessions on the data threads serve requests all the time. Only the options change: the rules, for
//! example, apply to the next record of every file.

use std::{
    io::{self, IoSlice},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use millstream_net::handover::Next;
use millstream_pipeline::{
    failure::Failure,
    node::SourceContext,
    stop::{Stop, Stopper, stop},
};
use millstream_record::Time;
use millstream_sys::fuse::{self, Device, Mount};
use millstream_wire::fuse::resend;
use rustix::io::Errno;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::sleep,
};

use super::{
    below::Below,
    config::Options,
    follow::follow,
    handover::{self, Taken, TakenState},
    holders,
    journal::Left,
    mounted::Mounted,
    namespace::Namespace,
    open_file::OpenFile,
    open_files::OpenFiles,
    recent::{Recent, Restored},
    session::serve,
    shipper::Shipper,
    tree::{Change, DIRECTORY, Tree, Who},
    waiting::Waiting,
};

/// The interval at which requests in flight are counted before the mount is left.
const STEP: Duration = Duration::from_millis(1);
/// The longest wait for requests in flight before the mount is left.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(10);

/// The seats of all sources in this process.
static SEATS: Mutex<Vec<Weak<Seat>>> = Mutex::new(Vec::new());

/// The place of a mount. The source that uses the mount holds it, and so does a source that will follow in a reload.
pub(super) struct Seat {
    source: Arc<str>,
    mount: PathBuf,
    allow_other: bool,
    /// Whether written data can be read back.
    is_readable: bool,
    /// The mount between two sources.
    left: Mutex<Option<Live>>,
}

impl Seat {
    /// The seat for a source. If a source of the same name uses the mount, it is the seat of that source. The second result is
    /// true then.
    pub(super) fn of(source: &Arc<str>, options: &Options) -> Result<(Arc<Self>, bool), Failure> {
        let mut seats = SEATS.lock().unwrap_or_else(PoisonError::into_inner);
        seats.retain(|seat| seat.strong_count() > 0);
        let of_both = |seat: &Arc<Self>| seat.source == *source && seat.mount == options.mount;
        if let Some(seat) = seats.iter().filter_map(Weak::upgrade).find(of_both) {
            let changed = if seat.allow_other != options.allow_other {
                "`allow_other`"
            } else if seat.is_readable != options.recent.is_some() {
                "whether written data can be read (`recent`)"
            } else {
                return Ok((seat, true));
            };
            return Err(Failure::config(format!(
                "{changed} of {source} cannot change while {} is mounted: this needs a restart",
                seat.mount.display()
            )));
        }
        let seat = Arc::new(Self {
            source: source.clone(),
            mount: options.mount.clone(),
            allow_other: options.allow_other,
            is_readable: options.recent.is_some(),
            left: Mutex::default(),
        });
        seats.push(Arc::downgrade(&seat));
        Ok((seat, false))
    }

    /// Whether another source will take the mount.
    pub(super) fn is_followed(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Leaves the running mount for the next source.
    pub(super) fn leave(&self, live: Live) {
        *self.left() = Some(live);
    }

    /// Takes the mount that the source before has left.
    pub(super) fn take(&self) -> Option<Live> {
        self.left().take()
    }

    fn left(&self) -> MutexGuard<'_, Option<Live>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mount with which a source begins.
pub(super) enum Start {
    New((Device, Mount, Arc<Below>)),
    /// An earlier program has left it.
    Taken(Box<Taken>),
}

/// A mount that serves requests.
pub(super) struct Live {
    pub(super) mounted: Arc<Mounted>,
    mount: Mount,
    below: Arc<Below>,
    pub(super) recent: Option<Arc<Recent>>,
    end_sessions: watch::Sender<bool>,
    /// Each session sends to it, at its end, whether the mount is gone.
    ends: mpsc::Receiver<bool>,
    /// Closed once no request is in flight.
    all_done: mpsc::Receiver<()>,
    beside: Beside,
    /// Ends waits for space in a full channel, before the mount is closed or left.
    stopper: Stopper,
}

/// The task that sends the lines of an earlier run and follows the files below the mount. It ends when this value is dropped.
struct Beside {
    task: JoinHandle<()>,
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Live {
    /// Begins to serve a new mount.
    pub(super) async fn begin(
        options: Arc<Options>,
        start: Start,
        context: &SourceContext,
    ) -> Result<Self, Failure> {
        let ((device, mount, below), mut kept) = match start {
            Start::New(parts) => (parts, None),
            Start::Taken(taken) => (taken.parts, Some(taken.kept)),
        };
        let needed = kept.as_ref().map_or_else(Vec::new, TakenState::spilled);
        let (recent, restored) = open_recent(&options, context, &needed)?;
        let tree = match &mut kept {
            Some(kept) => kept.tree(&options, recent.clone(), restored)?,
            None => {
                tree(&options, &below, recent.clone(), restored).map_err(|error| failed(&error))?
            }
        };
        // The mount can outlive the source that begins here, so it has a separate stop.
        let (stopper, stop) = stop();
        let own = SourceContext {
            stop: stop.clone(),
            ..context.clone()
        };
        let (shipper, mut left) = Shipper::open(options.clone(), &below, own)?;
        let count = shipper.meters.open.clone();
        let files = match &kept {
            Some(kept) => OpenFiles::kept(count, kept.files(&shipper, &mut left)),
            None => OpenFiles::new(count),
        };
        let (busy, all_done) = mpsc::channel(1);
        let mounted = Arc::new(Mounted {
            device,
            shipper: shipper.clone(),
            names: Namespace::new(tree, below.clone()),
            files,
            waiting: Waiting::default(),
            busy,
        });
        if kept.is_some() {
            change(&mounted, &below, options).map_err(|error| failed(&error))?;
            // An older kernel refuses this. Then the program before has answered every request.
            let _ = mounted.device.write(&[IoSlice::new(&resend())]);
        }
        let (end_sessions, end) = watch::channel(false);
        let ends = start_sessions(&mounted, end).await;
        let mount_point = &shipper.options().mount;
        let how = match kept {
            Some(_) => "is still mounted: the files that were open live on",
            None => "is mounted",
        };
        let text = format_args!("{} {how}", mount_point.display());
        context.reporter.info("mounted", text);
        let (target, is_new) = (mount.target().to_owned(), kept.is_none());
        let of_mount = shipper.clone();
        drop(tokio::task::spawn_blocking(move || {
            holders::mounted(&of_mount, &target, is_new)
        }));
        let beside = Beside::start(shipper, left, below.clone(), stop);
        Ok(Self {
            mounted,
            mount,
            below,
            recent,
            end_sessions,
            ends,
            all_done,
            beside,
            stopper,
        })
    }

    /// Serves with other options from now on.
    pub(super) fn with(self, options: Arc<Options>) -> Result<Self, Failure> {
        if let Some((recent, limits)) = self.recent.as_ref().zip(options.recent) {
            recent.change(limits);
        }
        change(&self.mounted, &self.below, options).map_err(|error| failed(&error))?;
        Ok(self)
    }

    /// Whether fusermount3 unmounts the directory when this process ends.
    pub(super) fn is_guarded(&self) -> bool {
        self.mount.is_guarded()
    }

    /// Leaves the mount to the next program, or closes it if that is not possible. Answers all requests in flight before.
    pub(super) async fn leave(self, next: Next) {
        let target = self.mount.target().to_owned();
        let mounted = self.mounted.clone();
        let detached = match next {
            // Programs that open files before the service runs again, if it ever does, write to the plain directory. Files that
            // are open live on.
            Next::Manager => fuse::detach(&target).ok(),
            Next::Program | Next::Nothing => None,
        };
        mounted.shipper.freeze();
        let Self {
            mount,
            below,
            end_sessions,
            mut ends,
            beside,
            stopper,
            ..
        } = self;
        drop(beside);
        stopper.stop();
        end_sessions.send_replace(true);
        while ends.recv().await.is_some() {}
        // The mount itself holds one. Only the ends of closed files can wait longer: they are in the journal.
        let begun = Instant::now();
        while mounted.busy.strong_count() > 1 && begun.elapsed() < IN_FLIGHT_MAX {
            sleep(STEP).await;
        }
        let reporter = &mounted.shipper.context.reporter;
        for (_, file) in mounted.files.all().1 {
            mounted.names.flush(file.node());
            if file.land().await == Err(Errno::IO) {
                reporter.error(
                    "lost",
                    "lines of an open file were dropped before they were settled",
                );
            }
        }
        match handover::leave(&mounted, mount, &below, detached) {
            Ok(()) => {
                let text = format_args!("{} is left to the next program", target.display());
                reporter.info("mounted", text);
            }
            Err(error) => {
                let text = format_args!(
                    "{} cannot be left to the next program ({error}): files that are open in it are cut off",
                    target.display()
                );
                reporter.error("mounted", text);
                finish(&mounted.shipper, mounted.files.drain()).await;
            }
        }
    }

    /// Resolves if the task beside the sessions has panicked.
    pub(super) async fn died(beside: &mut JoinHandle<()>) {
        match beside.await {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => std::future::pending().await,
        }
    }

    /// The ends of the sessions, and the task beside them.
    pub(super) fn parts(&mut self) -> (&mut mpsc::Receiver<bool>, &mut JoinHandle<()>) {
        (&mut self.ends, &mut self.beside.task)
    }

    /// Unmounts the directory, waits for the requests in flight, and finishes every open file as if its writer had closed it.
    /// `is_gone`: another program has unmounted the directory.
    pub(super) async fn close(self, is_gone: bool) {
        let Self {
            mounted,
            mut mount,
            end_sessions,
            mut ends,
            mut all_done,
            beside,
            stopper,
            below: _,
            recent: _,
        } = self;
        drop(beside);
        stopper.stop();
        if is_gone {
            mount.is_gone();
        }
        drop(mount);
        end_sessions.send_replace(true);
        while ends.recv().await.is_some() {}
        let shipper = mounted.shipper.clone();
        let files = mounted.files.drain();
        for file in &files {
            mounted.names.closed(file.node(), file.is_writer());
        }
        drop(mounted);
        while all_done.recv().await.is_some() {}
        finish(&shipper, files).await;
    }
}

/// Finishes files as if their writers had closed them.
async fn finish(shipper: &Shipper, files: Vec<Arc<OpenFile>>) {
    for file in files {
        if file.finish().await.is_err() {
            let text = "the end of a file that was still open could not be kept";
            shipper.context.reporter.error("close", text);
        }
    }
}

/// Serves with other options from now on.
fn change(mounted: &Mounted, below: &Below, options: Arc<Options>) -> io::Result<()> {
    let directories = directories(&options, below);
    let root = below.metadata()?;
    let who = Who {
        uid: root.uid(),
        gid: root.gid(),
    };
    let mut tree = mounted.names.tree();
    tree.change(options.owner);
    let now = Time::now();
    for path in directories {
        tree.make_path(&path, DIRECTORY | 0o755, who, now);
    }
    drop(tree);
    mounted.shipper.change(options);
    Ok(())
}

impl Beside {
    fn start(shipper: Arc<Shipper>, left: Vec<Left>, below: Arc<Below>, stop: Stop) -> Self {
        let task = tokio::task::spawn_local(async move {
            send_left(&shipper, left).await;
            follow(&below, &shipper, stop, false).await;
        });
        Self { task }
    }
}

/// Sends the unfinished lines that an earlier run left.
pub(super) async fn send_left(shipper: &Arc<Shipper>, left: Vec<Left>) {
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

/// Opens the spills, which keep written data readable. The spills of the nodes in `needed` stay, even if
/// they have no name. Also returns the files of an earlier run. `None` if nothing is to be kept.
fn open_recent(
    options: &Options,
    context: &SourceContext,
    needed: &[u64],
) -> Result<(Option<Arc<Recent>>, Vec<Restored>), Failure> {
    let Some(limits) = options.recent else {
        return Ok((None, Vec::new()));
    };
    let directory = context.directory.join("recent");
    let bytes = context.meters.gauge("recent_bytes");
    let reporter = context.reporter.clone();
    let (recent, restored) = Recent::open(directory, limits, needed, reporter, bytes)?;
    Ok((Some(recent), restored))
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
    directories(options, below);
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

fn failed(error: &io::Error) -> Failure {
    Failure::disk(format!(
        "cannot read the directory below the mount: {error}"
    ))
}

/// Creates the directories that the rules name in the plain directory. Returns them, each after the one above it.
fn directories(options: &Options, below: &Below) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for rule in options.rules.all() {
        for directory in &rule.directories {
            let mut path = PathBuf::new();
            for part in Path::new(directory) {
                path.push(part);
                below.make_directory(&path, 0o755);
                all.push(path.clone());
            }
        }
    }
    all
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
