//! Sends the joined lines of an open file as a record once nothing was written to the file for the `wait` of its rule.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! One task checks all open files periodically, so a write needs no timer. Before the task sends lines of a file, it takes the
//! turn of the file: the exclusive right to change the unfinished bytes (`open_file.rs`). Writes to the file then wait until the
//! lines are sent. If a write has the turn, the task skips the file. So unfinished bytes are never sent twice, and their order is
//! kept.

use std::{sync::Arc, time::Duration};

use rustix::io::Errno;
use tokio::sync::mpsc;

use super::{
    open_file::OpenFile, open_files::OpenFiles, parcel::Parcel, patience::Patience,
    shipper::Shipper,
};

/// The number of checks per `wait`, if the interval between two checks is within its limits. A record is sent late by at most one
/// interval.
const CHECKS: u32 = 4;
/// The shortest and the longest interval between two checks.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Sends complete records until the future is dropped. The future never completes. If no rule joins lines, it does nothing. Each
/// spawned task holds a clone of `busy`, so that a stop waits for the task.
pub(super) async fn send_quiet(shipper: &Arc<Shipper>, files: &OpenFiles, busy: &mpsc::Sender<()>) {
    let options = shipper.options();
    let rules = options.rules.all();
    let Some(wait) = rules.filter_map(|rule| rule.boundaries.wait()).min() else {
        return std::future::pending().await;
    };
    let interval = (wait / CHECKS).clamp(INTERVAL_MIN, INTERVAL_MAX);
    loop {
        tokio::time::sleep(interval).await;
        for file in files.joining() {
            let Ok(turn) = file.try_turn() else {
                continue;
            };
            if let Some(parcel) = complete(&file) {
                let (shipper, busy) = (shipper.clone(), busy.clone());
                // One task per file, so that a full channel delays only its own files.
                tokio::task::spawn_local(async move {
                    let (_turn, _busy) = (turn, busy);
                    send(&shipper, &file, parcel).await;
                });
            }
        }
    }
}

/// The parcel with the last record of an open file, which is complete because nothing was written for `wait`. `None` if there is
/// no such record.
fn complete(file: &OpenFile) -> Option<Parcel> {
    let mut stream = file.stream().ok()?;
    stream.quiet().unwrap_or_else(|_| {
        // The stream has logged the error. The record is due again after `wait`.
        stream.wait_again();
        None
    })
}

async fn send(shipper: &Shipper, file: &OpenFile, parcel: Parcel) {
    // The time limit of writes applies here, too: a write that waits for this record must be able to fail in time.
    let patience = Patience::of_write(shipper.options().when_full);
    let Err(error) = file.send(parcel, patience).await else {
        return;
    };
    if let Ok(mut stream) = file.stream() {
        stream.wait_again();
    }
    if shipper.is_frozen() {
        return;
    }
    if !patience.has_limit() || error != Errno::NOSPC {
        let text = "a record of joined lines could not be kept; it will be retried";
        shipper.context.reporter.error("quiet", text);
    }
}
