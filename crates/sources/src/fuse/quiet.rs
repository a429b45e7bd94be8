//! Sends joined lines as a whole record once nothing has followed them for the rule's `wait`.
//!
//! `[read] -> [decode] -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! One task checks all open files from time to time, so a write costs no timer. It has the turn of each file that it sends
//! for: writes to the file wait, and no file is checked while a write to it is in flight. So unfinished bytes are never sent
//! twice, and their order is kept.

use std::{sync::Arc, time::Duration};

use rustix::io::Errno;
use tokio::sync::mpsc;

use super::{
    config::WhenFull, open_file::OpenFile, open_files::OpenFiles, parcel::Parcel, shipper::Shipper,
};

/// Checks per `wait`: a record leaves up to this part of its `wait` late.
const CHECKS: u32 = 4;
/// The shortest and the longest interval between two checks.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Sends complete records until it is dropped. Never returns, and does nothing where no rule joins lines. Each task that it
/// starts holds a clone of `busy`.
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
                // A task each: a file whose channel is full does not hold up the others.
                tokio::task::spawn_local(async move {
                    let (_turn, _busy) = (turn, busy);
                    send(&shipper, &file, parcel).await;
                });
            }
        }
    }
}

/// The record that has become complete in an open file.
fn complete(file: &OpenFile) -> Option<Parcel> {
    let mut stream = file.stream().ok()?;
    stream.quiet().unwrap_or_else(|_| {
        // Its error was logged.
        stream.wait_again();
        None
    })
}

async fn send(shipper: &Shipper, file: &OpenFile, parcel: Parcel) {
    // The limit of writes: one that waits behind this must be able to fail in time.
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
