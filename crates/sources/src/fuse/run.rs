//! Runs the source: serves the mount, and closes everything at a stop.
//!
//! The sessions, one on each data thread, serve the mount. Meanwhile the source sends the lines that an earlier run left in the
//! journal, and then ships the files in the plain directory below the mount (the directory that the mount hides). At a stop the
//! mount is removed first, so that no new file can be opened. Then requests in flight are answered, and every open file is
//! finished as if its writer had closed it. The device is closed last; from then on, writers get ENOTCONN. If another source
//! follows in a reload, nothing of this happens: it takes over the mount (`live.rs`).

use std::sync::Arc;

use millstream_net::handover::{self, Next};
use millstream_pipeline::{failure::Failure, node::SourceContext};

use super::{
    below::Below,
    config::Options,
    follow::follow,
    live::{Live, Seat, send_left},
    quiet::send_quiet,
    recent::Recent,
    shipper::Shipper,
};

/// Runs the source with `--once`: sends the lines that an earlier run left, and ships the files in the plain directory. Nothing
/// is mounted.
pub(super) async fn once(
    options: Arc<Options>,
    below: Arc<Below>,
    context: SourceContext,
) -> Result<(), Failure> {
    let stop = context.stop.clone();
    let (shipper, left) = Shipper::open(options, &below, context)?;
    send_left(&shipper, left).await;
    follow(&below, &shipper, stop, true).await;
    Ok(())
}

/// Serves a mount until the source stops or the mount is gone. Leaves the mount in the seat if another source follows.
pub(super) async fn run(
    mut live: Live,
    seat: &Arc<Seat>,
    context: SourceContext,
) -> Result<(), Failure> {
    let mounted = live.mounted.clone();
    let mut stop = context.stop.clone();
    let recent = live.recent.clone();
    let (ends, beside) = live.parts();
    let gone = tokio::select! {
        () = stop.stopped() => false,
        // `None`: all sessions have panicked, and their threads have reported the panics.
        gone = ends.recv() => gone.unwrap_or(false),
        () = Live::died(beside) => false,
        () = keep_bounds(recent) => false,
        () = send_quiet(&mounted.shipper, &mounted.files, &mounted.busy) => false,
    };
    drop(mounted);
    let is_stopped = stop.is_stopped();
    if is_stopped && !gone && seat.is_followed() {
        seat.leave(live);
        return Ok(());
    }
    let mount = live.mounted.shipper.options().mount.clone();
    match handover::next() {
        Next::Nothing => live.close(gone).await,
        _ if gone || !is_stopped => live.close(gone).await,
        // fusermount3 belongs to the service, which ends before the next start.
        Next::Manager if live.is_guarded() => live.close(false).await,
        next => live.leave(next).await,
    }
    if is_stopped || stop.is_stopped() {
        return Ok(());
    }
    let mount = mount.display();
    Err(Failure::peer(if gone {
        format!("{mount} was unmounted by another program; mounting it again")
    } else {
        format!("the sessions of {mount} died, which is a bug in Millstream; mounting it again")
    }))
}

async fn keep_bounds(recent: Option<Arc<Recent>>) {
    match recent {
        Some(recent) => recent.keep_bounds().await,
        None => std::future::pending().await,
    }
}
