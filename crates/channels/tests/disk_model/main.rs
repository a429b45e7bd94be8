//! The disk channel against a model: random work, faults and crashes at random and at every disk call.
//!
//! Whatever happens, a chunk that was answered for is delivered once to a sink that owns its position and at least once to
//! one that does not, a tailed file byte for byte, each flow in order, and no position ever stands for two contents. With
//! `sync: 1s` a power cut takes at most the last second, as a suffix.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, which says what it has run"
)]

mod check;
mod flows;
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

/// Seeds that each test runs; `make storm` runs the second number.
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
fn sync_batch_keeps_what_it_kept_with_all_of_the_log_watched() {
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
fn sync_every_second_survives_a_kill_whole() {
    seeds(20_000, |seed| random_run(seed, SECOND, &[Crash::Kill]));
}

#[test]
fn sync_every_second_loses_at_most_a_suffix_of_the_last_second() {
    seeds(30_000, |seed| {
        random_run(seed, SECOND, &[Crash::Kill, Crash::Power]);
    });
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
