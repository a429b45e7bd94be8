//! The kernel's notifications (inotify): which directories changed, and which files were written.
//!
//! Directories are watched for names that appear and disappear. A file is watched only while its reader waits at its end, and
//! only for one notification, so neither a busy nor an idle file costs anything. Where the kernel sends no notifications (limits,
//! network file systems), readers and the scan poll at long intervals.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use inotify::{EventMask, Inotify, WatchMask, Watches};
use tokio::{io::unix::AsyncFd, sync::Notify};

use super::{
    renames::Renames,
    scan::{Patterns, without_dot},
};

/// The size of the buffer for one read, in bytes: a few hundred events.
const EVENT_BYTES: usize = 16 << 10;

/// Wakes the reader of one file.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    /// Notified when the file may have changed.
    pub wake: Notify,
    /// Whether the kernel will report the next write.
    armed: AtomicBool,
}

/// The notifications of one source.
pub(super) struct Watch {
    inotify: AsyncFd<Inotify>,
    directories: HashMap<i32, PathBuf>,
    watched: HashSet<PathBuf>,
    renames: Renames,
    alarms: Alarms,
}

/// Sets alarms on files. Clones share the alarms.
#[derive(Clone)]
pub(super) struct Alarms {
    watches: Watches,
    set: Arc<Mutex<HashMap<i32, Weak<Alarm>>>>,
}

impl Watch {
    /// Starts to receive notifications. Must be called within a Tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let alarms = Alarms {
            watches: inotify.watches(),
            set: Arc::default(),
        };
        // The replacement of this deprecated constructor is unsafe, because the caller must guarantee that the descriptor stays
        // open. `Inotify` owns its descriptor, and so keeps it open.
        #[allow(deprecated)]
        let inotify = AsyncFd::new(inotify)?;
        Ok(Self {
            inotify,
            directories: HashMap::new(),
            watched: HashSet::new(),
            renames: Renames::default(),
            alarms,
        })
    }

    /// Returns a handle that sets alarms on files.
    pub(super) fn alarms(&self) -> Alarms {
        self.alarms.clone()
    }

    /// The files that were renamed recently, and whose former names match.
    pub(super) fn renames(&mut self) -> &Renames {
        self.renames.tidy();
        &self.renames
    }

    /// Watches a directory. Returns true if it was not watched before.
    pub(super) fn directory(&mut self, path: &Path) -> io::Result<bool> {
        if self.watched.contains(path) {
            return Ok(false);
        }
        let mask = WatchMask::CREATE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let watch = self.alarms.watches.add(path, mask)?;
        self.directories
            .insert(watch.get_watch_descriptor_id(), path.to_path_buf());
        Ok(self.watched.insert(path.to_path_buf()))
    }

    /// Wakes the readers of files that were written. Returns when names in a directory have changed: a scan may then find new
    /// files.
    pub(super) async fn changed(&mut self, patterns: &Patterns) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable_mut().await?;
            let mut buffer = [0; EVENT_BYTES];
            let events = match ready.get_inner_mut().read_events(&mut buffer) {
                Ok(events) => events,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut changed = false;
            let mut alarms = self.alarms.lock();
            for event in events {
                let id = event.wd.get_watch_descriptor_id();
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    changed = true;
                    alarms.values().for_each(raise);
                } else if event.mask.contains(EventMask::IGNORED) {
                    if let Some(alarm) = alarms.remove(&id) {
                        raise(&alarm);
                    }
                    if let Some(directory) = self.directories.remove(&id) {
                        self.watched.remove(&directory);
                        changed = true;
                    }
                } else if let Some(alarm) = alarms.remove(&id) {
                    raise(&alarm);
                    changed |= !event.mask.contains(EventMask::MODIFY);
                } else {
                    changed = true;
                    let directory = self.directories.get(&id);
                    if let Some((directory, name)) = directory.zip(event.name)
                        && !event.mask.contains(EventMask::ISDIR)
                    {
                        let path = without_dot(directory.join(name));
                        self.renames.note(event.mask, event.cookie, path, patterns);
                    }
                }
                // A directory that was moved keeps its watch, but not its path. The next scan watches the directory that has
                // the path now.
                if event.mask.contains(EventMask::MOVE_SELF) {
                    if let Some(directory) = self.directories.remove(&id) {
                        self.watched.remove(&directory);
                    }
                    let _ = self.alarms.watches.clone().remove(event.wd);
                }
            }
            if changed {
                return Ok(());
            }
        }
    }
}

fn raise(alarm: &Weak<Alarm>) {
    if let Some(alarm) = alarm.upgrade() {
        alarm.armed.store(false, Ordering::Relaxed);
        alarm.wake.notify_one();
    }
}

impl Alarms {
    /// Makes the next write to `file`, or its rename or removal, wake `alarm`. Returns true if the alarm was not set before. The
    /// caller then has to check the file once more, because earlier writes are not reported.
    pub(super) fn set(&self, file: &fs::File, alarm: &Arc<Alarm>) -> io::Result<bool> {
        if alarm.armed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mask =
            WatchMask::MODIFY | WatchMask::MOVE_SELF | WatchMask::ATTRIB | WatchMask::ONESHOT;
        // This path leads to the open file, whatever its name is now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut set = self.lock();
        let watch = self.watches.clone().add(path, mask)?;
        set.insert(watch.get_watch_descriptor_id(), Arc::downgrade(alarm));
        alarm.armed.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Weak<Alarm>>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
