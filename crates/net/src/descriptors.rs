//! Limits the connections of all sources together by the number of file descriptors that this process may open.
//!
//! Connections get the limit of open files, minus the files that are open when the first source starts, minus a reserve, minus what
//! files of sources get (`open_files.rs`). The reserve is for the API, for files that sinks and channels open later, and for connections of sinks.

use std::{
    fs,
    sync::{Arc, LazyLock},
};

use rustix::process::{Resource, getrlimit};
use tokio::sync::Semaphore;

/// The reserve is the limit of open files divided by this number, but at least `RESERVE_MIN` and at most `RESERVE_MAX`.
const RESERVE_PART: u64 = 4;
const RESERVE_MIN: u64 = 16;
const RESERVE_MAX: u64 = 512;
/// The number of API connections is the reserve divided by this number.
const INTERFACE_PART: u64 = 4;
/// The minimum number of connections, even if too few descriptors are left.
const CONNECTIONS_MIN: u64 = 4;

/// A permit for each connection of a source.
static CONNECTIONS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let left = limit().saturating_sub(open).saturating_sub(reserve());
    let permits = usize::try_from(left.max(CONNECTIONS_MIN)).unwrap_or(usize::MAX);
    Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
});

/// The permits of all sources together.
pub(crate) fn connections() -> &'static Arc<Semaphore> {
    &CONNECTIONS
}

/// The number of API connections that fit into the reserve.
#[must_use]
pub fn interface_connections() -> usize {
    usize::try_from(reserve() / INTERFACE_PART).unwrap_or(usize::MAX)
}

/// The limit of open files.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn reserve() -> u64 {
    (limit() / RESERVE_PART).clamp(RESERVE_MIN, RESERVE_MAX)
}
