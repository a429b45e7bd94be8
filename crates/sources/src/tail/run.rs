//! One run of the source: finds files, gives each a reader, and stores the positions.
//!
//! The kernel reports names that appear and disappear. A scan every `rescan` finds changes that the kernel does not report.
//! Readers are distributed over the data threads.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use millstream_net::open_files;
use millstream_pipeline::{
    condition::{Condition, Trouble},
    failure::Failure,
    node::SourceContext,
    stop::{Stop, Stopper, stop},
};
use millstream_record::Time;
use millstream_sys::disk::HostDisk;
use tokio::time::{Instant, sleep_until};

use super::{
    admission::{Admission, Files},
    begin::{Begin, Beginning},
    context::FileContext,
    ends::{EndGuard, Ended},
    gone::{self, Awaited},
    join::Predecessor,
    known::Known,
    lag::LagReport,
    options::Options,
    positions::{Positions, PositionsFile},
    reader::Reader,
    scan::{FoundFile, Patterns, Scan},
    source_state::SourceState,
    store::Store,
    tracked::Tracked,
    watch::Watch,
};

/// The shortest time between two scans.
const SCAN_GAP: Duration = Duration::from_millis(20);
/// The pause after a scan is at least this many times as long as the scan, so scans use at most 5 % of a core.
const SCAN_SHARE: u32 = 20;
/// How long the condition is raised after the last file had to wait.
const CROWDED_FOR: Duration = Duration::from_secs(60);
/// The tolerance when a birth time is compared with the start of a scan. A file system takes a birth time from the last clock
/// tick of the kernel, so the birth time may be up to 10 ms too early.
const BIRTH_STEP: Duration = Duration::from_millis(20);
/// The interval at which a compressed file is checked while it waits for its original.
const DEFERRED_WAIT: Duration = Duration::from_secs(1);
/// The pause before a periodic scan is at least this many times as long as the last scan, so scans that no notification caused
/// use at most a thousandth of a core.
const IDLE_SHARE: u32 = 1000;
/// The longest pause between periodic scans, as a multiple of `rescan`. It takes precedence over [`IDLE_SHARE`].
const SELDOM_MAX: u32 = 6;

/// A run of the source.
pub(super) struct Run {
    common: Arc<SourceState>,
    context: SourceContext,
    admission: Admission,
    store: Store,
    lag: LagReport,
    watch: Option<Watch>,
    files: Files,
    /// Stops the readers.
    stopper: Stopper,
    stop: Stop,
    scan_at: Instant,
    scan_not_before: Instant,
    /// The files of which an earlier run expected more. Empty after the first scan.
    awaited: Vec<Awaited>,
    /// Raised while files cannot be opened.
    unreadable: Condition,
    /// Raised while files wait because too many files are open.
    crowded: Condition,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

impl Run {
    /// Loads the positions that earlier runs left.
    pub(super) fn new(options: Arc<Options>, context: SourceContext) -> Result<Self, Failure> {
        let origins = context.outlet.file_origins();
        let durable = origins.is_some();
        let file = PositionsFile::new(Arc::new(HostDisk), &context.directory);
        let stored = file.load()?;
        let exists = stored.is_some();
        let reporter = &context.reporter;
        let watch = Watch::new().inspect_err(|error| {
            let text = format_args!("the kernel sends no notifications ({error}); polling files");
            reporter.warn("inotify", text);
        });
        let watch = watch.ok().filter(|_| !context.once);
        let alarms = watch.as_ref().map(Watch::alarms);
        let common = Arc::new(SourceState::new(options, durable, alarms, &context.meters));
        let stored = stored.unwrap_or_default();
        let awaited = gone::awaited(&stored);
        common.heads.restore(stored.truncated);
        let (stopper, stop) = stop();
        let now = Instant::now();
        Ok(Self {
            admission: Admission::new(
                common.clone(),
                reporter.clone(),
                Known::new(origins.unwrap_or_default(), stored.entries),
                exists,
                stored.ran,
            ),
            store: Store::new(file, durable, exists, reporter.condition("positions")),
            common,
            lag: LagReport::default(),
            watch,
            files: Files::new(),
            stopper,
            stop,
            scan_at: now,
            scan_not_before: now,
            awaited,
            unreadable: reporter.condition("unreadable"),
            crowded: reporter.condition("open_files"),
            context,
        })
    }

    /// Runs until the source stops or, with `--once`, until all files are read.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        self.scan().await;
        let mut outer = self.context.stop.clone();
        let mut outcome = Ok(());
        let common = self.common.clone();
        while outcome.is_ok()
            && !outer.is_stopped()
            && !(self.context.once && self.files.is_empty() && !self.admission.is_deferred())
        {
            let scans = !self.context.once || self.files.is_empty();
            tokio::select! {
                () = outer.stopped() => {}
                () = common.ends.changed() => outcome = self.collect_ends(),
                () = common.signal.changed() => {
                    self.store.moved(common.signal.is_urgent());
                    self.lag.look_soon();
                }
                () = at(self.lag.at()) => self.lag.look(&self.files, &common.meters),
                () = common.scan_wanted.notified() => self.scan_soon(),
                () = common.waiting.changed() => self.report_waiting(),
                changed = changed(&mut self.watch, &common.options.patterns) => {
                    if changed {
                        self.scan_soon();
                    }
                }
                () = sleep_until(self.scan_at), if scans => self.scan().await,
                () = at(self.store.at()) => self.store().await,
            }
        }
        // Even after a failure, waits until the readers have ended. Each reader waits for the receipts (the answers of the
        // channel) of the batches that it has sent.
        self.stopper.stop();
        while !self.files.is_empty() {
            tokio::select! {
                () = common.ends.changed() => outcome = outcome.and(self.collect_ends()),
                () = common.signal.changed() => self.store.moved(common.signal.is_urgent()),
                () = at(self.store.at()) => self.store().await,
            }
        }
        self.store().await;
        outcome
    }

    /// Writes the positions. If the source sends to a durable channel, a restart takes the offsets from the channel. Of the
    /// stored positions, the restart then needs only the marks (checksums of the bytes before the offsets), to recognize files
    /// that were truncated in the meantime.
    async fn store(&mut self) {
        if !self.store.begin(&self.common.signal) {
            return;
        }
        let known = &mut self.admission.known;
        for tracked in self.files.values() {
            let state = tracked.state();
            if let Some((id, mark)) = state.settled {
                known.set(id, mark, state.left(tracked.unread()), &state.path);
            }
        }
        let positions = Positions {
            entries: known.entries(),
            ran: self.admission.ran(),
            truncated: self.common.heads.truncated(),
        };
        self.store.write(positions, &self.common.signal).await;
    }

    /// Reports that files wait because too many files are open.
    fn report_waiting(&self) {
        let waiting = self.common.waiting.now();
        if waiting == 0 {
            return;
        }
        let text = format_args!(
            "{waiting} of {} files wait until others are closed, because this process may open only {} files; they are read in \
             turns, and a file that is removed while it waits is lost: raise the limit (LimitNOFILE, `ulimit -n`)",
            self.files.len(),
            open_files::limit(),
        );
        self.crowded.raise(Trouble::Blocked, text);
    }

    fn scan_soon(&mut self) {
        self.scan_at = self.scan_at.min(Instant::now().max(self.scan_not_before));
    }

    fn collect_ends(&mut self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for ended in self.common.ends.drain() {
            let tracked = self.files.remove(&ended.inode);
            self.admission.readmit(&ended, tracked.as_deref());
            if let Some(tracked) = tracked {
                self.common.heads.linger(tracked);
            }
            if !ended.in_order {
                outcome = Err(Failure::us(
                    "the reader of a file failed; all readers restart",
                ));
            }
        }
        self.common.heads.tidy();
        self.scan_soon();
        outcome
    }

    /// Finds files and starts readers for new ones.
    async fn scan(&mut self) {
        let started = Instant::now();
        let ran = Time(Time::now().0.saturating_sub(BIRTH_STEP.as_nanos() as i64));
        // A directory may hold files that were created before it was watched. So the walk is repeated until all directories
        // that it finds were already watched.
        while let Some(scan) = self.walk().await {
            let watched_all = self.watch_directories(&scan);
            if self.admission.is_first() {
                self.report_unmatched(&scan);
            }
            let awaited = std::mem::take(&mut self.awaited);
            let absent = gone::absent(awaited, &scan, &self.common.options);
            for beginning in self.compare(scan, ran) {
                self.start(beginning).await;
            }
            let (known, common) = (&mut self.admission.known, &self.common);
            let reporter = &self.context.reporter;
            gone::report(absent, known, &common.options, &common.meters, reporter).await;
            if watched_all {
                break;
            }
        }
        let now = Instant::now();
        self.scan_not_before = now + SCAN_GAP.max((now - started) * SCAN_SHARE);
        let rescan = self.common.options.rescan;
        let seldom = ((now - started) * IDLE_SHARE).min(rescan * SELDOM_MAX);
        let pause = match self.admission.is_deferred() {
            true => rescan.min(DEFERRED_WAIT),
            false => rescan.max(seldom),
        };
        self.scan_at = now + pause;
        self.lag.look_now();
        if self.common.waiting.is_over(CROWDED_FOR) {
            let _ = self.crowded.clear();
        }
        if !self.store.exists() {
            self.store.moved(self.common.signal.is_urgent());
        }
        self.store.walked();
    }

    /// Reports the patterns that match nothing. Called at the first scan, because otherwise a typing mistake would stay
    /// unnoticed.
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

    /// Watches the directories of a scan. Returns true if all of them were already watched.
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
                        "the kernel sends no notifications for {} ({error}); polling it",
                        directory.display()
                    ),
                ),
            }
        }
        known
    }

    /// Compares the found files with those that have a reader. Returns a beginning for each file that gets a new reader.
    fn compare(&mut self, scan: Scan, ran: Time) -> Vec<Beginning> {
        let (matching, rotated): (Vec<_>, Vec<_>) =
            scan.files.into_iter().partition(|found| found.matches);
        let mut seen = HashSet::new();
        // Matching names come first: they take precedence if one inode has several names.
        let mut found: Vec<FoundFile> = matching.into_iter().chain(rotated).collect();
        found.retain(|found| seen.insert(found.stat.inode));
        for (inode, tracked) in &self.files {
            let mut state = tracked.state();
            if !seen.contains(inode) && state.rotated.is_none() {
                state.rotated = Some(std::time::Instant::now());
                tracked.alarm.wake.notify_one();
            }
        }
        for found in &found {
            if let Some(tracked) = self.files.get(&found.stat.inode) {
                update(tracked, found, &self.common.options.patterns);
            }
        }
        let renames = self.watch.as_mut().map(Watch::renames);
        let mut beginnings = self.admission.admit(found, &self.files, renames, ran);
        in_order(&mut beginnings, &self.common.options.patterns);
        self.connect(&mut beginnings);
        match self.admission.refused() {
            Some(why) => self.unreadable.raise(Trouble::Retrying, why),
            None => drop(self.unreadable.clear()),
        }
        beginnings
    }

    /// Tells each new file whose records may have several lines from which file log rotation has just taken its name.
    fn connect(&self, beginnings: &mut [Beginning]) {
        if !self.common.options.framer.joins() {
            return;
        }
        for beginning in beginnings {
            match &beginning.begin {
                Begin::Fresh { .. } => {}
                Begin::At(_, mark) if mark.offset == 0 => {}
                _ => continue,
            }
            let path = beginning.tracked.state().path.clone();
            let left =
                |tracked: &Arc<Tracked>| Some((tracked.state().left_at(&path)?, tracked.clone()));
            let lefts = self.files.values().filter_map(left);
            let last = lefts.max_by_key(|(at, _)| *at).map(|(_, tracked)| tracked);
            let before = beginning.after.clone().or(last);
            beginning.predecessor =
                before.map(|before| Predecessor::new(before.joint.clone(), before.alarm.clone()));
        }
    }

    /// Gives a file a reader on the next data thread.
    async fn start(&mut self, beginning: Beginning) {
        let Beginning {
            tracked,
            begin,
            after,
            predecessor,
            ..
        } = beginning;
        self.files.insert(tracked.inode, tracked.clone());
        let context = FileContext {
            common: self.common.clone(),
            source: self.context.clone(),
            stop: self.stop.clone(),
            tracked: tracked.clone(),
        };
        let read = async move || {
            let (left_at, len) = {
                let state = tracked.state();
                (state.settled, state.len)
            };
            let panicked = Ended {
                inode: tracked.inode,
                left_at,
                left: Some(len),
                in_order: false,
                read: None,
                overwritten: false,
            };
            let guard = EndGuard::new(context.common.ends.clone(), panicked);
            guard.finish(Reader::run(context, begin, after, predecessor).await);
        };
        let reporter = &self.context.reporter;
        self.context.threads.spawn(reporter, read).await;
    }
}

/// Orders the files of each rotation by age: first the rotated files, then the file that has the original name now. The reader
/// of each file waits until the previous file was read to its end.
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

/// Updates the path of a file that has a reader, and wakes the reader if anything has changed.
fn update(tracked: &Tracked, found: &FoundFile, patterns: &Patterns) {
    let mut state = tracked.state();
    let since = (!found.matches).then(std::time::Instant::now);
    let rotated = state.rotated.or(since).filter(|_| !found.matches);
    let has_changed = rotated.is_some() != state.rotated.is_some()
        || state.path != found.path
        || state.sent != found.stat.len;
    state.rotated = rotated;
    state.len = found.stat.len;
    if state.path != found.path {
        let originals: Vec<_> = patterns.originals(&state.path).collect();
        state.rename(&found.path, originals.into_iter());
    }
    drop(state);
    if has_changed {
        tracked.alarm.wake.notify_one();
    }
}

/// Waits until a scan may find something new. Returns false if the watch failed. Without a watch, never returns.
async fn changed(watch: &mut Option<Watch>, patterns: &Patterns) -> bool {
    match watch {
        Some(watch) => watch.changed(patterns).await.is_ok(),
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
