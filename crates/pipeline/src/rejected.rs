//! Stores the rejected records that no node takes in `data_dir/rejected`, in files whose total size is limited.
//!
//! ```text
//! NODE.msgpack                           records of no peer in particular
//! NODE.peer-PEER.msgpack                 records of one peer
//! NODE[.peer-PEER].torn-T-N.msgpack      renamed because it ends with an incomplete record; after a replay, it holds only that record
//! NODE[.peer-PEER].replay-T-N.msgpack    renamed because its records are sent again (`replay.rs` of the pipeline)
//! NODE[.peer-PEER].old-T-N.msgpack       renamed because it is full; only with `full: drop_oldest`
//! ```
//!
//! T is the time of the renaming in seconds, and N distinguishes files of the same second. Each file is a MessagePack stream of
//! records as [`crate::reject::batch`] makes them. Records are synced before they are settled.
//!
//! The files of one peer, or those of no peer in particular, are a *share*. Each peer's share and all shares of a node together have
//! a limit in bytes. When a limit is reached, `rejected.full` decides: either the node waits and counts as blocked until an operator
//! moves files away, or the oldest records of a share are removed. Other nodes are not affected.
//!
//! - `shares.rs`: the limits, in bytes.
//! - `streams.rs`: the files on the disk.
//! - `node_files.rs`: [`NodeFiles`] shares them among the stores and replays of a node.
//! - `file.rs`: [`RejectedFile`] reads such a file, also while another process writes to it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use millstream_config::{RejectedLimits, Size, WhenRejectedFull};
use millstream_record::Batch;
use millstream_sys::no_room::explained;

use crate::{
    channel::{BoxFuture, Channel, Group},
    condition::{Condition, Trouble},
    meters::Meter,
    reject,
    report::Reporter,
};

mod file;
mod node_files;
mod shares;
mod streams;
#[cfg(test)]
mod tests;

pub use file::RejectedFile;
pub use node_files::NodeFiles;
use shares::{Shares, Usage};
use streams::Streams;

/// The extension of the files.
const EXTENSION: &str = "msgpack";
/// The interval at which a waiting group checks whether there is space again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// With `full: drop_oldest`, a peer's full share consists of about this many files: a file is rotated when it reaches the limit
/// divided by this number. Files are removed one at a time.
const PIECES: u64 = 8;

/// The directory in a `data_dir` in which rejected records are kept.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("rejected")
}

/// The channel that stores the rejected records of a node, if no other node takes its port `NAME.rejected`.
pub struct RejectedStore(Arc<Store>);

struct Store {
    files: NodeFiles,
    shares: Shares,
    full: WhenRejectedFull,
    /// Groups that wait for space.
    waiting: AtomicUsize,
    /// Raised while a share is nearly full.
    nearly_full: Condition,
    reporter: Reporter,
    counts: Counts,
}

/// The meters of a store.
pub struct Counts {
    /// Records that were kept.
    pub kept: Meter,
    /// Bytes of older records that were removed to keep newer ones.
    pub dropped: Meter,
}

/// Why records could not be kept.
enum Refused {
    /// A share is full. The text names the share and the remedy.
    Full(String),
    Disk(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl RejectedStore {
    /// Opens a store that keeps the records of `node` in `files`.
    pub fn open(
        files: NodeFiles,
        node: &str,
        limits: &RejectedLimits,
        reporter: Reporter,
        counts: Counts,
    ) -> Arc<dyn Channel> {
        let store = Store::new(files, node, limits, reporter, counts);
        Arc::new(Self(Arc::new(store)))
    }
}

impl Store {
    fn new(
        files: NodeFiles,
        node: &str,
        limits: &RejectedLimits,
        reporter: Reporter,
        counts: Counts,
    ) -> Self {
        Self {
            files,
            full: limits.full,
            shares: Shares::new(node, limits),
            waiting: AtomicUsize::new(0),
            nearly_full: reporter.condition("rejected-room"),
            reporter,
            counts,
        }
    }

    /// Keeps all batches or none.
    fn keep(&self, batches: &[Batch]) -> Result<(), Refused> {
        let mut streams = self.files.lock();
        streams.create_directory()?;
        let mut usage = streams.usage()?;
        let mut by_share: Vec<(String, Vec<&[u8]>)> = Vec::new();
        for batch in batches {
            let share = self.shares.name(batch.values.get("peer"), &usage);
            match by_share.iter_mut().find(|(other, _)| *other == share) {
                Some((_, bodies)) => bodies.push(&batch.body),
                None => by_share.push((share, vec![&batch.body])),
            }
        }
        let mut added = 0;
        for (share, bodies) in &by_share {
            let bytes = bodies.iter().map(|body| body.len() as u64).sum();
            self.make_space(share, bytes, added, &mut usage, &mut streams)?;
            usage.add(share, bytes);
            added += bytes;
        }
        for (share, bodies) in &by_share {
            if let Some((torn, aside)) = streams.append(share, bodies)? {
                let text = format_args!(
                    "{} ends with a part of a record; it is kept as {}",
                    torn.display(),
                    aside.display()
                );
                self.reporter.warn("rejected-torn", text);
            }
        }
        self.watch_space(&usage);
        Ok(())
    }

    /// Makes sure that the limits of a share and of the node allow `bytes` more of a group, of which `added` bytes are in `usage`.
    fn make_space(
        &self,
        share: &str,
        bytes: u64,
        added: u64,
        usage: &mut Usage,
        streams: &mut Streams,
    ) -> Result<(), Refused> {
        while let Some(full) = self.shares.full(share, bytes, usage, added) {
            let removed = match self.full {
                WhenRejectedFull::DropOldest => streams.remove_oldest(&full.largest)?,
                WhenRejectedFull::Wait => None,
            };
            let Some((path, bytes)) = removed else {
                return Err(Refused::Full(full.text(self.files.directory())));
            };
            self.counts.dropped.add(bytes);
            usage.remove(&full.largest, bytes);
            let text = format_args!(
                "{} was removed with {bytes} bytes of rejected records, to keep newer ones (`rejected.full: drop_oldest`)",
                path.display()
            );
            self.reporter.warn("rejected-dropped", text);
        }
        Ok(())
    }

    /// Makes the node unhealthy while a share is nearly full.
    fn watch_space(&self, usage: &Usage) {
        if self.full == WhenRejectedFull::DropOldest {
            return;
        }
        let Some((share, bytes, limit)) = self.shares.nearly_full(usage) else {
            self.nearly_full.clear();
            return;
        };
        let bytes = Size::bytes(bytes).rounded();
        self.nearly_full.raise(
            Trouble::Blocked,
            format_args!(
                "the files {}/{share}.* hold {bytes} of rejected records; at {limit} the node stops: read them with `millstream \
                 rejected cat --node {}`, then move them elsewhere on this file system",
                self.files.directory().display(),
                self.shares.node()
            ),
        );
    }

    fn usage(&self) -> io::Result<Usage> {
        self.files.lock().usage()
    }

    /// Clears the condition once an operator has moved files away.
    async fn clear_when_moved(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let store = self.clone();
            let look = tokio::task::spawn_blocking(move || {
                store.usage().map(|usage| store.watch_space(&usage))
            });
            if !matches!(look.await, Ok(Ok(()))) || !self.nearly_full.holds() {
                return;
            }
        }
    }
}

/// While this value exists, a group counts as waiting for space.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Channel for RejectedStore {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        let store = self.0.clone();
        Box::pin(async move {
            let mut group = group;
            // Holds this group's condition until the group is kept. Another group that gets space earlier must not clear this condition.
            let mut waits = None;
            loop {
                let shared = store.clone();
                let keep = tokio::task::spawn_blocking(move || {
                    let watched = shared.nearly_full.holds();
                    let kept = shared.keep(&group.batches);
                    (kept, !watched && shared.nearly_full.holds(), group)
                });
                // The blocking task fails only if it panics. That drops the group, which fails its receipt.
                let Ok((kept, is_nearly_full, back)) = keep.await else {
                    return;
                };
                if is_nearly_full {
                    tokio::spawn(store.clone().clear_when_moved());
                }
                let why = match kept {
                    Ok(()) => {
                        let records = back.batches.iter().map(reject::records);
                        store.counts.kept.add(records.sum());
                        return back.token.settle();
                    }
                    Err(Refused::Full(why)) => why,
                    Err(Refused::Disk(error)) => {
                        let place = store.files.directory().display();
                        let why = explained(&error, store.files.directory());
                        format!("cannot keep rejected records in {place}: {why}")
                    }
                };
                let (condition, _) = waits.get_or_insert_with(|| {
                    let condition = store.reporter.condition("rejected");
                    (condition, Waiting::new(&store.waiting))
                });
                condition.raise(Trouble::Blocked, why);
                group = back;
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        })
    }

    fn close(&self) {}

    fn is_full(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > 0
    }
}
