//! A value that is made from files, and made again when the files change.
//!
//! The files are checked when the value is requested, but at most once every [`LOOK`]. Unusable files raise a condition of the
//! node until they are fixed. Until then, the previous value stays in use.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    report::Reporter,
};

use super::Fault;

/// Minimum interval between two checks of the files.
const LOOK: Duration = Duration::from_secs(2);

/// How to make the value from files.
pub(super) trait Make {
    /// The value.
    type Made;
    /// The files.
    fn files(&self) -> Vec<PathBuf>;
    /// Makes the value, or reports everything that is wrong.
    fn make(&self) -> Result<Self::Made, Vec<Fault>>;
}

/// Identifies a version of a file: device, inode, size, change time. `None` if there is no file.
type Stamp = Option<(u64, u64, u64, (i64, i64))>;

/// A value made from files.
#[derive(Debug)]
pub(super) struct Reloading<M: Make> {
    maker: M,
    state: Mutex<Loaded<M::Made>>,
}

#[derive(Debug)]
struct Loaded<T> {
    made: Arc<T>,
    /// How often the value was made again.
    changes: u64,
    /// The stamps of the files when they were last read, successfully or not.
    stamps: Vec<Stamp>,
    looked: Instant,
    /// Raised while the files are unusable.
    unusable: Option<Condition>,
}

impl<M: Make> Reloading<M> {
    /// Makes the value for the first time.
    pub(super) fn new(maker: M) -> Result<Self, Vec<Fault>> {
        let stamps = stamps(&maker);
        let made = Arc::new(maker.make()?);
        let state = Mutex::new(Loaded {
            made,
            changes: 0,
            stamps,
            looked: Instant::now(),
            unusable: None,
        });
        Ok(Self { maker, state })
    }

    /// How often the value was made again because its files have changed.
    pub(super) fn changes(&self) -> u64 {
        self.get(None);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.changes
    }

    /// The current value. Without a `reporter`, files that have become unusable are not reported.
    pub(super) fn get(&self, reporter: Option<&Reporter>) -> Arc<M::Made> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK {
            state.looked = Instant::now();
            self.look(&mut state, reporter);
        }
        state.made.clone()
    }

    fn look(&self, state: &mut Loaded<M::Made>, reporter: Option<&Reporter>) {
        // The stamps are taken before the files are read, so that a change during the read is noticed the next time.
        let stamps = stamps(&self.maker);
        if stamps != state.stamps {
            state.stamps = stamps;
            match self.maker.make() {
                Ok(made) => {
                    state.made = Arc::new(made);
                    state.changes += 1;
                    state.unusable = None;
                    if let Some(reporter) = reporter {
                        let text = "certificates have changed on the disk and were read again";
                        reporter.info("certificates", text);
                    }
                }
                Err(faults) => {
                    let Some(reporter) = reporter else {
                        return;
                    };
                    let all: Vec<_> = faults.into_iter().map(|fault| fault.text).collect();
                    let wrong = all.join("; ");
                    let unusable = state
                        .unusable
                        .get_or_insert_with(|| reporter.condition("certificates"));
                    let text =
                        format_args!("{wrong}; the certificates that were read before stay in use");
                    unusable.raise(Trouble::Retrying, text);
                }
            }
        }
    }

    /// Makes the next call of [`Reloading::get`] check the files.
    #[cfg(test)]
    pub(super) fn age(&self) {
        let mut state = self.state.lock().unwrap();
        state.looked = Instant::now().checked_sub(LOOK).unwrap();
    }
}

fn stamps(maker: &impl Make) -> Vec<Stamp> {
    let stamp = |path: PathBuf| {
        let data = fs::metadata(path).ok()?;
        let changed = (data.ctime(), data.ctime_nsec());
        Some((data.dev(), data.ino(), data.size(), changed))
    };
    maker.files().into_iter().map(stamp).collect()
}
