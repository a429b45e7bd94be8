//! One run of the source: finds files, gives each a reader, and keeps the positions.
//!
//! Names that come and go are told by the kernel, and a scan looks every `rescan` whatever the kernel tells. Readers are
//! dealt to the data threads; what they and the scan share is in `tracked.rs`. What is written down is in `store.rs`.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    failure::Failure,
    node::SourceContext,
    stop::{Stop, Stopper, stop},
};
use millstream_record::Time;
use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, sleep_until},
};

use super::{
    begin::Beginning,
    gzip::AT_ONCE,
    heads::Heads,
    identity::Inode,
    known::Known,
    options::Options,
    positions,
    reader::{Ended, Reader},
    scan::{Found, Patterns, Scan},
    shared::{Common, EndGuard},
    store::STORE_EVERY,
    tracked::Tracked,
    watch::Watch,
};

/// Scans come no nearer to each other than this.
const SCAN_GAP: Duration = Duration::from_millis(20);
/// A scan that takes long is followed by a pause this many times as long: 5 % of a core.
const SCAN_SHARE: u32 = 20;
/// File systems say of a birth only in which tick of the kernel's clock it was: up to 10 ms too early.
const BIRTH_STEP: Duration = Duration::from_millis(20);
/// A compressed file is looked at so often while it waits for what it was made of.
const DEFERRED_WAIT: Duration = Duration::from_secs(1);
/// Scans for which there is no reason but the time take a thousandth of a core at most ...
const IDLE_SHARE: u32 = 1000;
/// ... but come at least once in so many times `rescan`.
const SELDOM_MAX: u32 = 6;

/// A run of the source.
pub(super) struct Run {
    pub(super) common: Arc<Common>,
    pub(super) context: SourceContext,
    pub(super) known: Known,
    /// An earlier run has left positions: what they do not name is new.
    pub(super) had_run: bool,
    /// The first scan is still to come.
    pub(super) first: bool,
    /// When the last walk began, of an earlier run until the first one of this run is over.
    pub(super) ran: Option<Time>,
    watch: Option<Watch>,
    pub(super) files: HashMap<Inode, Arc<Tracked>>,
    stopper: Stopper,
    stop: Stop,
    scan_at: Instant,
    scan_not_before: Instant,
    pub(super) store_at: Option<Instant>,
    pub(super) store_not_before: Instant,
    pub(super) lag_at: Option<Instant>,
    /// Compressed files with nothing more to read, and how long they were then.
    pub(super) inflated: HashMap<Inode, u64>,
    /// A compressed file waits until what it was made of is read.
    pub(super) deferred: bool,
    /// Holds while files cannot be opened.
    unreadable: Condition,
    /// What the scan at hand could not open: the last of it, and why.
    pub(super) refused: Option<String>,
    /// Holds while the positions cannot be written.
    pub(super) unstored: Condition,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

impl Run {
    /// Reads what earlier runs have left.
    pub(super) fn new(options: Arc<Options>, context: SourceContext) -> Result<Self, Failure> {
        let origins = context.outlet.file_origins();
        let stored = positions::load(&context.directory)?;
        let had_run =
            stored.is_some() || origins.as_ref().is_some_and(|origins| !origins.is_empty());
        let watch = Watch::new().inspect_err(|error| {
            context.reporter.warn(
                "inotify",
                format_args!("the kernel gives no notices ({error}); files are looked at by time"),
            );
        });
        let watch = watch.ok().filter(|_| !context.once);
        let (stopper, stop) = stop();
        let meters = &context.meters;
        let common = Common {
            durable: origins.is_some(),
            options,
            heads: Heads::default(),
            alarms: watch.as_ref().map(Watch::alarms),
            dirty: Notify::new(),
            scan_wanted: Notify::new(),
            urgent: AtomicBool::new(false),
            lag: meters.gauge("lag_bytes"),
            lag_max: meters.gauge("lag_bytes_max"),
            lags: meters.table("file_lag_bytes", "path"),
            open_files: meters.gauge("open_files"),
            truncated: meters.counter("files_truncated"),
            too_long: meters.counter("lines_too_long"),
            unreadable: meters.counter("read_errors"),
            garbled: meters.counter("lines_garbled"),
            holes: meters.counter("hole_bytes"),
            done: meters.counter("files_done"),
            inflating: Arc::new(Semaphore::new(AT_ONCE)),
            announcing: AtomicUsize::new(0),
            ends: Mutex::default(),
            ended: Notify::new(),
        };
        let now = Instant::now();
        let stored = stored.unwrap_or_default();
        common.heads.restore(stored.truncated);
        Ok(Self {
            common: Arc::new(common),
            known: Known::new(origins.unwrap_or_default(), stored.entries),
            had_run,
            first: true,
            ran: stored.ran,
            watch,
            files: HashMap::new(),
            stopper,
            stop,
            scan_at: now,
            scan_not_before: now,
            store_at: None,
            store_not_before: now,
            lag_at: None,
            inflated: HashMap::new(),
            deferred: false,
            unreadable: context.reporter.condition("unreadable"),
            refused: None,
            unstored: context.reporter.condition("positions"),
            context,
        })
    }

    /// Runs until it is time to stop or, with `--once`, until all files are read.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        self.scan().await;
        let mut outer = self.context.stop.clone();
        let mut outcome = Ok(());
        while outcome.is_ok()
            && !outer.is_stopped()
            && !(self.context.once && self.files.is_empty() && !self.deferred)
        {
            let scans = !self.context.once || self.files.is_empty();
            tokio::select! {
                () = outer.stopped() => {}
                () = self.common.ended.notified() => outcome = self.take_ends(),
                () = self.common.dirty.notified() => self.moved(),
                () = at(self.lag_at) => self.look_at_lag(),
                () = self.common.scan_wanted.notified() => self.scan_soon(),
                changed = changed(&mut self.watch) => {
                    if changed {
                        self.scan_soon();
                    }
                }
                () = sleep_until(self.scan_at), if scans => self.scan().await,
                () = at(self.store_at) => self.store().await,
            }
        }
        // What the readers have sent is waited for, whoever asks for the end.
        self.stopper.stop();
        while !self.files.is_empty() {
            tokio::select! {
                () = self.common.ended.notified() => outcome = outcome.and(self.take_ends()),
                () = self.common.dirty.notified() => self.store_soon(),
                () = at(self.store_at) => self.store().await,
            }
        }
        self.store().await;
        outcome
    }

    fn scan_soon(&mut self) {
        self.scan_at = self.scan_at.min(Instant::now().max(self.scan_not_before));
    }

    fn take_ends(&mut self) -> Result<(), Failure> {
        let ends = std::mem::take(
            &mut *self
                .common
                .ends
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let mut outcome = Ok(());
        for ended in ends {
            let tracked = self.files.remove(&ended.inode);
            if let Some(len) = ended.compressed {
                self.inflated.insert(ended.inode, len);
            }
            if let Some(tracked) = tracked {
                if let Some((id, mark)) = ended.left_at {
                    self.known.set(id, mark, &tracked.state().path);
                }
                self.common.heads.linger(tracked);
            }
            if !ended.in_order {
                outcome = Err(Failure::us(
                    "the reader of a file died; all of them begin again",
                ));
            }
        }
        self.common.heads.tidy();
        self.scan_soon();
        outcome
    }

    /// Finds out which files there are, and gives new ones a reader.
    async fn scan(&mut self) {
        let started = Instant::now();
        let ran = Time(Time::now().0.saturating_sub(BIRTH_STEP.as_nanos() as i64));
        // A directory that appeared may hold files from before it was watched.
        while let Some(scan) = self.walk().await {
            let watched_all = self.watch_directories(&scan);
            if self.first {
                self.report_unmatched(&scan);
            }
            let beginnings = self.compare(scan);
            self.first = false;
            self.ran = Some(ran);
            for beginning in beginnings {
                self.start(beginning).await;
            }
            if watched_all {
                break;
            }
        }
        let now = Instant::now();
        self.scan_not_before = now + SCAN_GAP.max((now - started) * SCAN_SHARE);
        let rescan = self.common.options.rescan;
        let seldom = ((now - started) * IDLE_SHARE).min(rescan * SELDOM_MAX);
        let pause = match self.deferred {
            true => rescan.min(DEFERRED_WAIT),
            false => rescan.max(seldom),
        };
        self.scan_at = now + pause;
        self.lag_at = Some(now);
        if !self.had_run {
            self.store_soon();
        }
        self.store_at.get_or_insert(now + STORE_EVERY);
    }

    /// Says at the start which patterns match nothing: a pattern with a mistake in it would be silent for ever.
    fn report_unmatched(&self, scan: &Scan) {
        let unmatched = self.common.options.patterns.unmatched(scan);
        if !unmatched.is_empty() {
            let text = format_args!("{}; files that appear later are read", unmatched.join(", "));
            self.context.reporter.warn("unmatched", text);
        }
    }

    async fn walk(&mut self) -> Option<Scan> {
        let options = self.common.options.clone();
        tokio::task::spawn_blocking(move || options.patterns.scan())
            .await
            .ok()
    }

    /// True if all of them were watched already.
    fn watch_directories(&mut self, scan: &Scan) -> bool {
        for (directory, error) in &scan.unreadable {
            let text = format_args!("cannot read the directory {}: {error}", directory.display());
            self.context.reporter.warn("unreadable_directory", text);
        }
        let Some(watch) = &mut self.watch else {
            return true;
        };
        let mut known = true;
        for directory in &scan.directories {
            match watch.directory(directory) {
                Ok(new) => known &= !new,
                Err(error) => self.context.reporter.warn(
                    "inotify",
                    format_args!(
                        "the kernel gives no notices of {} ({error}); it is looked at by time",
                        directory.display()
                    ),
                ),
            }
        }
        known
    }

    /// Holds what was found against the files that have a reader; gives those that need one.
    fn compare(&mut self, scan: Scan) -> Vec<Beginning> {
        let (matching, rotated): (Vec<_>, Vec<_>) =
            scan.files.into_iter().partition(|found| found.matches);
        let mut seen = HashSet::new();
        // A matching name first: it decides where one inode has several.
        let mut files: Vec<Found> = matching.into_iter().chain(rotated).collect();
        files.retain(|found| seen.insert(found.stat.inode));
        for (inode, tracked) in &self.files {
            let mut state = tracked.state();
            if !seen.contains(inode) && state.rotated.is_none() {
                state.rotated = Some(std::time::Instant::now());
                tracked.alarm.wake.notify_one();
            }
        }
        self.inflated.retain(|inode, _| seen.contains(inode));
        self.deferred = false;
        let mut beginnings = Vec::new();
        for found in files {
            self.known.touch(found.stat.inode);
            match self.files.get(&found.stat.inode) {
                Some(tracked) => meet(tracked, found),
                None => beginnings.extend(self.begin(found)),
            }
        }
        in_order(&mut beginnings, &self.common.options.patterns);
        match self.refused.take() {
            Some(why) => self.unreadable.raise(Trouble::Retrying, why),
            None => drop(self.unreadable.clear()),
        }
        beginnings
    }

    /// Gives a file a reader on the next data thread.
    async fn start(&mut self, beginning: Beginning) {
        let Beginning {
            tracked,
            begin,
            after,
            ..
        } = beginning;
        self.files.insert(tracked.inode, tracked.clone());
        let (common, context, stop) =
            (self.common.clone(), self.context.clone(), self.stop.clone());
        let reporter = context.reporter.clone();
        let read = async move || {
            let died = Ended {
                inode: tracked.inode,
                left_at: tracked.state().settled,
                in_order: false,
                compressed: None,
            };
            let mut guard = EndGuard {
                common: common.clone(),
                ended: Some(died),
            };
            let reader = Reader::new(common, context, stop, tracked, begin);
            let ended = reader.run(after).await;
            guard.ended = Some(ended);
        };
        self.context.threads.spawn(&reporter, read).await;
    }
}

/// Lets what was rotated be read before what was written after it, up to the file that has the name now: each begins when the
/// one before it was read to its end.
fn in_order(beginnings: &mut [Beginning], patterns: &Patterns) {
    let mut lines: HashMap<PathBuf, Vec<usize>> = HashMap::new();
    for (place, beginning) in beginnings.iter().enumerate() {
        let state = beginning.tracked.state();
        if state.rotated.is_some()
            && let Some(original) = patterns.originals(&state.path).next()
        {
            lines.entry(original).or_default().push(place);
        }
    }
    for (original, mut line) in lines {
        line.sort_by_key(|place| {
            (
                beginnings[*place].written,
                beginnings[*place].tracked.inode.birth,
            )
        });
        let has_name = |beginning: &Beginning| beginning.tracked.state().path == original;
        line.extend(beginnings.iter().position(has_name));
        for pair in line.windows(2) {
            beginnings[pair[1]].after = Some(beginnings[pair[0]].tracked.clone());
        }
    }
}

/// A file that has a reader was found.
fn meet(tracked: &Tracked, found: Found) {
    let mut state = tracked.state();
    let since = (!found.matches).then(std::time::Instant::now);
    let rotated = state.rotated.or(since).filter(|_| !found.matches);
    let news = rotated.is_some() != state.rotated.is_some()
        || state.path != found.path
        || state.sent != found.stat.len;
    state.rotated = rotated;
    state.path = found.path;
    drop(state);
    if news {
        tracked.alarm.wake.notify_one();
    }
}

/// Whether a scan may find something else; never without notices.
async fn changed(watch: &mut Option<Watch>) -> bool {
    match watch {
        Some(watch) => watch.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
