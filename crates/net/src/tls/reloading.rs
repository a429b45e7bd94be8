//! What was made of files, and is made again when they change.
//!
//! Whoever uses it asks for it, and then the files are looked at, at most every [`LOOK`]. Files that cannot be used are a
//! condition of the node until they are mended, and what was made before stays in use.

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

/// Files are looked at so often at most.
const LOOK: Duration = Duration::from_secs(2);

/// Something that is made of files.
pub(super) trait Make {
    /// What is made.
    type Made;
    /// Of these files.
    fn files(&self) -> Vec<PathBuf>;
    /// Makes it, or says everything that is wrong.
    fn make(&self) -> Result<Self::Made, Vec<Fault>>;
}

/// What tells a file from the one that stood there before: device, inode, size, time of change. None: it is not there.
type Stamp = Option<(u64, u64, u64, (i64, i64))>;

/// What was made of files.
#[derive(Debug)]
pub(super) struct Reloading<M: Make> {
    maker: M,
    state: Mutex<State<M::Made>>,
}

#[derive(Debug)]
struct State<T> {
    made: Arc<T>,
    /// What the files were when they were read last, with or without success.
    stamps: Vec<Stamp>,
    looked: Instant,
    /// Holds while what stands there cannot be used.
    unusable: Option<Condition>,
}

impl<M: Make> Reloading<M> {
    /// Makes it for the first time.
    pub(super) fn new(maker: M) -> Result<Self, Vec<Fault>> {
        let stamps = stamps(&maker);
        let made = Arc::new(maker.make()?);
        let state = Mutex::new(State {
            made,
            stamps,
            looked: Instant::now(),
            unusable: None,
        });
        Ok(Self { maker, state })
    }

    /// The latest.
    pub(super) fn get(&self, reporter: &Reporter) -> Arc<M::Made> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK {
            state.looked = Instant::now();
            self.look(&mut state, reporter);
        }
        state.made.clone()
    }

    fn look(&self, state: &mut State<M::Made>, reporter: &Reporter) {
        // Before they are read: what changes while they are read is seen the next time.
        let stamps = stamps(&self.maker);
        if stamps != state.stamps {
            state.stamps = stamps;
            match self.maker.make() {
                Ok(made) => {
                    state.made = Arc::new(made);
                    state.unusable = None;
                    let text = "certificates have changed on the disk and were read again";
                    reporter.info("certificates", text);
                }
                Err(faults) => {
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

    /// The next call looks at the files.
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
