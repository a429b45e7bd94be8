//! Tests a durable state on the simulated disk: power cuts at every step, lost writes, failing calls, flipped bits, torn ends.
//!
//! The state under test stores a number, or something from which a number follows. [`DurableState::advance`] stores the next
//! number, and [`DurableState::number`] returns the stored one. [`Trial::run`] checks that the number found after a crash is at
//! least the last one whose `advance` succeeded, and at most the last one that was passed to `advance`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_sys::disk::{Disk, Open};

use super::{Call, Crash, SimulatedDisk};
use crate::Random;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A state under test. Its files are in [`DIRECTORY`] or in its subdirectories.
pub trait DurableState: Sized {
    /// Opens the state on the disk. An `Err` is a refusal: the state is damaged or cannot be read.
    fn open(disk: Arc<dyn Disk>) -> Result<Self, String>;

    /// The number that was found by `open` or stored last; 0 if there is none. Panics if the state on the disk was never
    /// stored.
    fn number(&self) -> u64;

    /// Stores the number. It is one higher than the number of the last attempt.
    fn advance(&mut self, number: u64) -> Result<(), String>;
}

/// The directory of the states under test.
pub const DIRECTORY: &str = "/state";

/// The promise of a state.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// Whether a number survives a power cut once `advance` has returned. Otherwise it survives only the end of the process.
    pub durable: bool,
    /// Whether a flipped bit loses nothing, because there is a copy.
    pub has_copy: bool,
    /// Whether `advance` succeeds on a full disk once the state was opened.
    pub needs_no_space: bool,
    /// The number of steps in a run. It should cover every kind of step, for example a compaction.
    pub steps: u64,
    /// The number of seeds with which each crash is repeated.
    pub seeds: u64,
}

impl Default for Trial {
    fn default() -> Self {
        Self {
            durable: true,
            has_copy: false,
            needs_no_space: false,
            steps: 12,
            seeds: 6,
        }
    }
}

impl Trial {
    /// Runs all trials. Panics with the seed and the step at the first broken promise.
    pub fn run<S: DurableState>(self) {
        self.crash_everywhere::<S>();
        self.fail_calls::<S>();
        self.fill_the_disk::<S>();
        self.damage::<S>();
    }

    /// Crashes in every call that changes or syncs something, in one run for each call. Each run then crashes a few more times, at
    /// random.
    pub fn crash_everywhere<S: DurableState>(self) {
        let calls = {
            let disk = SimulatedDisk::new(0);
            self.run_to_the_end::<S>(&disk);
            disk.calls()
        };
        for seed in 0..self.seeds {
            for call in 0..calls {
                let disk = SimulatedDisk::new(seed * 1_000_003 + call);
                let mut random = Random::new(seed * 7 + call);
                let mut promise = Promise::default();
                disk.crash_at(call);
                // A recovery writes, too, so a second and a third crash must not lose anything either.
                for round in 0..3 {
                    let place = format!("seed {seed}, call {call}, round {round}");
                    self.advance_until_it_fails::<S>(&disk, &mut promise, &place);
                    let kind = match random.chance(1, 4) {
                        true => Crash::Kill,
                        false => Crash::Power,
                    };
                    disk.restart(kind);
                    if !self.durable && kind == Crash::Power {
                        promise.kept = 0;
                    }
                    disk.crash_at(disk.calls() + random.below(calls));
                }
                disk.restart(Crash::Power);
                if !self.durable {
                    promise.kept = 0;
                }
                self.check::<S>(
                    &disk,
                    &promise,
                    &format!("seed {seed}, call {call}, at the end"),
                );
            }
        }
    }

    /// Makes each kind of call fail, at each step of a run, with EIO and with ENOSPC.
    pub fn fail_calls<S: DurableState>(self) {
        let kinds = [
            Call::Write,
            Call::Sync,
            Call::Allocate,
            Call::SyncDirectory,
            Call::Name,
            Call::Read,
        ];
        for kind in kinds {
            for errno in [EIO, ENOSPC] {
                for step in 0..self.steps {
                    for count in [1, 2] {
                        let seed = step * 2 + u64::from(count);
                        let place =
                            format!("{kind:?} fails with {errno} at step {step}, {count} times");
                        self.fail_call::<S>(
                            &SimulatedDisk::new(seed),
                            (kind, count, errno),
                            step,
                            &place,
                        );
                    }
                }
            }
        }
    }

    fn fail_call<S: DurableState>(
        self,
        disk: &SimulatedDisk,
        (kind, count, errno): (Call, u32, i32),
        at: u64,
        place: &str,
    ) {
        let mut promise = Promise::default();
        let mut state = self.open::<S>(disk, &promise, place);
        for step in 0..self.steps {
            if step == at {
                disk.fail(kind, count, errno);
            }
            promise.tried += 1;
            match state.advance(promise.tried) {
                Ok(()) => promise.kept = promise.tried,
                // Reopens a state that failed, as the restart of a node does.
                Err(_) if step.is_multiple_of(2) => {
                    drop(state);
                    disk.fail(kind, 0, errno);
                    state = self.open::<S>(disk, &promise, place);
                }
                Err(_) => {}
            }
        }
        drop(state);
        disk.restart(Crash::Power);
        if !self.durable {
            promise.kept = 0;
        }
        self.check::<S>(disk, &promise, place);
    }

    /// Fills the disk in the middle of a run, and frees the space again.
    pub fn fill_the_disk<S: DurableState>(self) {
        let disk = SimulatedDisk::new(1);
        let mut promise = Promise::default();
        let mut state = self.open::<S>(&disk, &promise, "a full disk");
        for step in 0..3 * self.steps {
            if step == self.steps {
                let space = disk.space(Path::new("/"));
                let taken = space.map_or(0, |space| space.total - space.free);
                disk.set_capacity(taken);
            }
            if step == 2 * self.steps {
                disk.set_capacity(u64::MAX);
            }
            promise.tried += 1;
            match state.advance(promise.tried) {
                Ok(()) => promise.kept = promise.tried,
                Err(error) => {
                    assert!(!self.needs_no_space, "step {step} on a full disk: {error}");
                    assert!(
                        step < 2 * self.steps,
                        "there is space again at {step}: {error}"
                    );
                }
            }
        }
        drop(state);
        if self.durable {
            disk.restart(Crash::Power);
        }
        self.check::<S>(&disk, &promise, "after a full disk");
    }

    /// Flips a bit in each byte of each file, and truncates each file at each length. In long files, only some thousand offsets
    /// are tried.
    pub fn damage<S: DurableState>(self) {
        let disk = SimulatedDisk::new(2);
        let promise = self.run_to_the_end::<S>(&disk);
        for path in files(&disk) {
            let length = disk.metadata(&path).map_or(0, |found| found.len);
            // Files that are preallocated are long and mostly zeros.
            let stride = (length / 4096).max(1) as usize;
            for offset in (0..length).step_by(stride) {
                let copy = disk.copied();
                copy.damage(&path, offset);
                let place = format!("bit flipped at {offset} of {}", path.display());
                self.check_damaged::<S>(&copy, &promise, self.has_copy, &place);
                let copy = disk.copied();
                truncate(&copy, &path, offset);
                let place = format!("{} truncated at {offset}", path.display());
                self.check_damaged::<S>(&copy, &promise, self.has_copy, &place);
            }
        }
    }

    /// Opens a damaged state. Opening must fail, or find a number that was stored. With `is_harmless`, opening must succeed and
    /// find the last number.
    fn check_damaged<S: DurableState>(
        self,
        disk: &SimulatedDisk,
        promise: &Promise,
        is_harmless: bool,
        place: &str,
    ) {
        match S::open(Arc::new(disk.clone())) {
            Ok(state) => {
                let number = state.number();
                assert!(
                    number <= promise.tried,
                    "{place}: {number} was never stored"
                );
                assert!(
                    !is_harmless || number == promise.kept,
                    "{place}: {number} was found"
                );
            }
            Err(error) => assert!(!is_harmless, "{place}: {error}"),
        }
    }

    fn run_to_the_end<S: DurableState>(self, disk: &SimulatedDisk) -> Promise {
        let mut promise = Promise::default();
        self.advance_until_it_fails::<S>(disk, &mut promise, "without a crash");
        assert_eq!(promise.kept, self.steps, "a run without a crash failed");
        promise
    }

    fn advance_until_it_fails<S: DurableState>(
        self,
        disk: &SimulatedDisk,
        promise: &mut Promise,
        place: &str,
    ) {
        let mut state = match S::open(Arc::new(disk.clone())) {
            Ok(state) => state,
            Err(error) => {
                assert!(disk.crashed(), "{place}: {error}");
                return;
            }
        };
        promise.check(state.number(), place);
        for _ in 0..self.steps {
            promise.tried += 1;
            match state.advance(promise.tried) {
                Ok(()) => promise.kept = promise.tried,
                Err(error) => {
                    assert!(disk.crashed(), "{place}: {error}");
                    return;
                }
            }
        }
    }

    fn open<S: DurableState>(self, disk: &SimulatedDisk, promise: &Promise, place: &str) -> S {
        let opened = S::open(Arc::new(disk.clone()));
        let state = opened.unwrap_or_else(|error| panic!("{place}: {error}"));
        promise.check(state.number(), place);
        state
    }

    fn check<S: DurableState>(self, disk: &SimulatedDisk, promise: &Promise, place: &str) {
        self.open::<S>(disk, promise, place);
    }
}

/// The lowest and the highest number that may be found.
#[derive(Debug, Default)]
struct Promise {
    /// The last number whose `advance` succeeded.
    kept: u64,
    /// The last number that was passed to `advance`.
    tried: u64,
}

impl Promise {
    fn check(&self, number: u64, place: &str) {
        assert!(
            (self.kept..=self.tried).contains(&number),
            "{place}: found {number}, promised {self:?}"
        );
    }
}

/// The files below [`DIRECTORY`].
fn files(disk: &SimulatedDisk) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![PathBuf::from(DIRECTORY)];
    while let Some(directory) = directories.pop() {
        for name in disk.list(&directory).unwrap_or_default() {
            let path = directory.join(name);
            match disk.metadata(&path) {
                Ok(found) if found.directory => directories.push(path),
                _ => files.push(path),
            }
        }
    }
    files
}

fn truncate(disk: &SimulatedDisk, path: &Path, bytes: u64) {
    if let Ok(file) = disk.open(path, Open::Write) {
        let _ = file.truncate(bytes);
    }
}
