//! Joined lines that are taken as a whole record because nothing follows them.
//!
//! `read -> [decode] -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! One task looks at the open files now and then, so that a write costs no timer. What leaves has its open file's turn: writes
//! of it wait, and while one is under way nothing is quiet. So what was unfinished is never sent twice, and its order is kept.

use std::{sync::Arc, time::Duration};

use rustix::io::Errno;

use super::{config::WhenFull, handles::Handle, mounted::Mounted, parcel::Parcel, write::Ship};

/// A record is taken as whole when nothing followed for its `wait` and up to this part of it.
const LOOKS: u32 = 4;
/// It is looked no more and no less often.
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Sends what has become whole, for ever; where no lines are joined it does nothing.
pub(super) async fn send_quiet(mounted: &Mounted) {
    let rules = mounted.ship.options.rules.all();
    let Some(wait) = rules.filter_map(|rule| rule.how.wait()).min() else {
        return std::future::pending().await;
    };
    let look = (wait / LOOKS).clamp(LOOK_MIN, LOOK_MAX);
    loop {
        tokio::time::sleep(look).await;
        for handle in mounted.handles.joining() {
            let Ok(turn) = handle.try_turn() else {
                continue;
            };
            if let Some(parcel) = whole(&handle) {
                let (ship, busy) = (mounted.ship.clone(), mounted.busy.clone());
                // Others do not wait for a file whose channel is full.
                tokio::task::spawn_local(async move {
                    let (_turn, _busy) = (turn, busy);
                    ship.send_whole(&handle, parcel).await;
                });
            }
        }
    }
}

/// What has become whole of an open file.
fn whole(handle: &Handle) -> Option<Parcel> {
    let mut stream = handle.stream()?;
    stream.quiet().unwrap_or_else(|_| {
        // It is said in the log.
        stream.wait_again();
        None
    })
}

impl Ship {
    async fn send_whole(&self, handle: &Arc<Handle>, parcel: Parcel) {
        // A write that waits behind it must be able to fail in time.
        let when_full = self.options.when_full;
        let Err(error) = self.send(handle, parcel, when_full).await else {
            return;
        };
        if let Some(mut stream) = handle.stream() {
            stream.wait_again();
        }
        if (when_full, error) != (WhenFull::Fail, Errno::NOSPC) {
            let text = "a record whose lines were joined could not be kept; it is tried again";
            self.context.reporter.error("quiet", text);
        }
    }
}
