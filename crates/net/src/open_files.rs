//! Limits the files that sources keep open, such as tailed files, by the number of file descriptors that this process may open.
//!
//! These files share the descriptors with the connections of sources (`descriptors.rs`): half of the descriptors that connections
//! could use when the first file is opened is for files. Files may also use descriptors that connections do not need, but leave
//! them a part. Both leave the reserve for segments, outputs, state files and the API.

use std::sync::{Arc, LazyLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::descriptors;

/// Files get the permits of connections, divided by this number.
const PART: usize = 2;
/// The minimum number of files, even if too few descriptors are left.
const FILES_MIN: usize = 4;

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let connections = descriptors::connections();
    let part = connections.available_permits() / PART;
    let taken = connections.forget_permits(part);
    Files {
        own: Arc::new(Semaphore::new(taken.max(FILES_MIN))),
        left_to_connections: connections.available_permits() / PART,
    }
});

struct Files {
    own: Arc<Semaphore>,
    /// Files use the permits of connections only while more than this number are left.
    left_to_connections: usize,
}

/// The right to keep one file open. Drop it after the file is closed.
#[derive(Debug)]
pub struct OpenFilePermit(#[allow(dead_code)] OwnedSemaphorePermit);

/// A permit, if one is left.
#[must_use]
pub fn try_open() -> Option<OpenFilePermit> {
    let own = FILES.own.clone().try_acquire_owned().ok();
    let permit = own.or_else(|| {
        let connections = descriptors::connections();
        let are_left = connections.available_permits() > FILES.left_to_connections;
        let borrowed = are_left.then(|| connections.clone().try_acquire_owned());
        borrowed.and_then(Result::ok)
    });
    permit.map(OpenFilePermit)
}

/// Waits for a permit.
pub async fn open() -> OpenFilePermit {
    match FILES.own.clone().acquire_owned().await {
        Ok(permit) => OpenFilePermit(permit),
        // The semaphore is never closed.
        Err(_) => std::future::pending().await,
    }
}

/// The limit of open files of this process.
#[must_use]
pub fn limit() -> u64 {
    descriptors::limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_leave_permits_to_connections() {
        let permit = open().await;
        assert!(try_open().is_some());
        assert!(descriptors::connections().available_permits() > 0);
        assert!(FILES.left_to_connections < descriptors::connections().available_permits() + 1);
        drop(permit);
    }
}
