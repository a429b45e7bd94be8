//! Sends joined lines as a record once nothing was written for the rule's `wait`.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! One task checks all open files periodically, so a write needs no timer. It takes the turn of a file (`open_file.rs`) before it
//! sends. Writes to the file then wait, and a file with a write in flight is skipped. So unfinished bytes are never sent twice,
//! and their order is kept.

use std::{sync::Arc, time::Duration};

use rustix::io::Errno;
use tokio::sync::mpsc;

use super::{
    config::WhenFull, open_file::OpenFile, open_files::OpenFiles, parcel::Parcel, shipper::Shipper,
};

/// The number of checks per `wait`. A record is sent late by at most the time between two checks, a quarter of `wait`.
const CHECKS: u32 = 4;
/// The shortest and the longest interval between two checks.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Sends complete records until the future is dropped. Never returns, even if no rule joins lines. Each task that it starts holds
/// a clone of `busy`.
pub(super) async fn send_quiet(shipper: &Arc<Shipper>, files: &OpenFiles, busy: &mpsc::Sender<()>) {
    let rules = shipper.options.rules.all();
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

/// The record that has become complete in an open file. `None` if there is none.
fn complete(file: &OpenFile) -> Option<Parcel> {
    let mut stream = file.stream().ok()?;
    stream.quiet().unwrap_or_else(|_| {
        // The stream has logged the error. The record is due again after `wait`.
        stream.wait_again();
        None
    })
}

async fn send(shipper: &Shipper, file: &OpenFile, parcel: Parcel) {
    // The time limit is that of writes, because a write that waits for this record must be able to fail in time.
    let when_full = shipper.options.when_full;
    let Err(error) = file.send(parcel, when_full).await else {
        return;
    };
    if let Ok(mut stream) = file.stream() {
        stream.wait_again();
    }
    if (when_full, error) != (WhenFull::Fail, Errno::NOSPC) {
        let text = "a record of joined lines could not be kept; it will be retried";
        shipper.context.reporter.error("quiet", text);
    }
}
