//! The disk channel against a model: random work and faults, and crashes at random times and in every disk call.
//!
//! In every run an acknowledged chunk is delivered exactly once to a sink that stores its own position, and at least once to any other
//! sink. A tailed file is delivered byte for byte, the lines of each sender and file arrive in order, and no position ever has two
//! contents. With `sync: 1s` a power cut loses at most the last second, and only the end of the log.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that prints what it has run"
)]

mod check;
mod flows;
mod full;
mod sink;
mod world;

use std::time::Duration;

use millstream_channels::disk::log::Sync;
use millstream_testkit::Crash;
use world::{Setting, World};

const BATCH: Setting = Setting {
    sync: Sync::Batch,
    audit: false,
    faults: true,
    tight: false,
};
const SECOND: Setting = Setting {
    sync: Sync::Every(Duration::from_secs(1)),
    audit: true,
    faults: false,
    tight: false,
};

/// The number of seeds per test: usually, and with `make storm`.
const SEEDS: (u64, u64) = (250, 5000);

/// Runs the seeds from `first` on.
fn seeds(first: u64, run: impl FnMut(u64)) {
    let count = match std::env::var_os("STORM") {
        Some(_) => SEEDS.1,
        None => SEEDS.0,
    };
    (first..first + count).for_each(run);
}

fn random_run(seed: u64, setting: Setting, kinds: &[Crash]) {
    let mut world = World::new(seed, setting);
    for _ in 0..6 {
        world.work(60);
        let kind = *world.random.pick(kinds).unwrap();
        world.crash(kind);
    }
    world.work(40);
    world.finish();
}

#[test]
fn sync_batch_loses_nothing_and_repeats_nothing() {
    seeds(1, |seed| {
        random_run(seed, BATCH, &[Crash::Kill, Crash::Power]);
    });
}

#[test]
fn sync_batch_keeps_the_whole_log_that_a_consumer_holds() {
    let setting = Setting {
        audit: true,
        ..BATCH
    };
    seeds(10_000, |seed| {
        random_run(seed, setting, &[Crash::Kill, Crash::Power]);
    });
}

#[test]
fn a_small_disk_that_is_often_full_loses_nothing_and_repeats_nothing() {
    let tight = Setting {
        tight: true,
        ..BATCH
    };
    seeds(15_000, |seed| {
        random_run(seed, tight, &[Crash::Kill, Crash::Power]);
    });
}

#[test]
fn sync_every_second_loses_nothing_in_a_kill() {
    seeds(20_000, |seed| random_run(seed, SECOND, &[Crash::Kill]));
}

#[test]
fn sync_every_second_loses_at_most_a_suffix_of_the_last_second() {
    seeds(30_000, |seed| {
        random_run(seed, SECOND, &[Crash::Kill, Crash::Power]);
    });
}

#[test]
fn sync_every_second_loses_nothing_in_a_kill_if_disk_calls_fail() {
    let setting = Setting {
        faults: true,
        ..SECOND
    };
    seeds(25_000, |seed| random_run(seed, setting, &[Crash::Kill]));
}

/// Opening the next segment takes fewer calls than this.
const CALLS_OF_A_RETRY: u64 = 10;

#[test]
fn a_kill_after_a_full_disk_in_any_sync_and_in_any_step_of_its_retry_loses_nothing() {
    let mut runs = 0;
    for setting in [SECOND, BATCH] {
        let setting = Setting {
            faults: false,
            ..setting
        };
        for syncs in 0.. {
            let mut failed = false;
            for calls in 0..CALLS_OF_A_RETRY {
                let mut world = World::new(45_000, setting);
                failed |= world.work_until_full(syncs, calls, 50);
                runs += 1;
                world.crash(Crash::Kill);
                world.work(10);
                world.finish();
            }
            if !failed {
                break;
            }
        }
    }
    println!("{runs} kills");
}

#[test]
fn a_crash_in_any_disk_call_loses_nothing_and_repeats_nothing() {
    let mut runs = 0;
    for seed in [40_001, 40_002] {
        for kind in [Crash::Kill, Crash::Power] {
            for call in 0.. {
                let mut world = World::new(seed, BATCH);
                let crashed = world.work_until_call(call, 70);
                runs += 1;
                world.crash(kind);
                world.work(10);
                world.finish();
                if !crashed {
                    break;
                }
            }
        }
    }
    println!("{runs} crashes");
}
