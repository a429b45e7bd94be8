//! Where rejected records are kept when no node takes them: `data_dir/rejected`, bounded.
//!
//! ```text
//! NODE.msgpack                   records of no peer in particular
//! NODE.peer-PEER.msgpack         records of one peer
//! NODE[.peer-PEER].torn-T.msgpack    ended with half a record when a run began at the time T
//! NODE[.peer-PEER].old-T-N.msgpack   full; with `full: drop_oldest` only
//! ```
//!
//! Each file is a MessagePack stream of the records that [`crate::reject::batch`] makes, synced before they are settled. It
//! stays readable: what a full disk lets through of a record is cut off before the next one is written, and a file that an
//! earlier run has left with half a record at its end (a kill) is put aside, as it is, under another name.
//!
//! Each node has a share of bytes, and each of its peers a part of that. When a share is full, the path that rejects waits, and
//! the node is blocked, until an operator moves files away, or the oldest records of that share are removed, as `rejected.full`
//! says. Other nodes, and other peers of a node, go on.
//!
//! [`RejectedFile`] reads such a file, also while another process writes to it.

use std::{
    collections::HashMap,
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use millstream_config::{RejectedLimits, Size, WhenRejectedFull};
use millstream_record::Batch;
use millstream_sys::private;

use crate::{
    channel::{BoxFuture, Channel, Group},
    condition::{Condition, Trouble},
    meters::Meter,
    report::Reporter,
};

mod file;
#[cfg(test)]
mod tests;

pub use file::RejectedFile;

/// How the names of the files end.
const EXTENSION: &str = "msgpack";
/// How long to wait before looking again whether there is room.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A share that is this full, in percent, makes the node unhealthy: there is still time to move files away.
const NEARLY_FULL: u64 = 80;
/// A node keeps files of this many peers; the records of more peers share the file of the node.
const PEERS_MAX: usize = 1000;
/// The name of a peer is cut to this many bytes.
const PEER_BYTES_MAX: usize = 64;
/// With `full: drop_oldest` a file is full at this part of the share of a peer, so that this much is removed at a time.
const PIECES: u64 = 8;

/// The directory in a `data_dir` in which rejected records are kept.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("rejected")
}

/// Keeps what a node rejects.
pub struct RejectedStore(Arc<Store>);

struct Store {
    directory: PathBuf,
    node: Arc<str>,
    limits: RejectedLimits,
    /// How long each file is with what this run has written to it.
    ends: Mutex<HashMap<PathBuf, u64>>,
    /// Groups that wait for room.
    waiting: AtomicUsize,
    /// Holds while a share is nearly full.
    nearly_full: Condition,
    reporter: Reporter,
    /// Records that were kept.
    kept: Meter,
    /// Bytes of older records that made room for newer ones.
    dropped: Meter,
}

/// The meters of a store.
pub struct Counts {
    /// Records that were kept.
    pub kept: Meter,
    /// Bytes that were removed to make room.
    pub dropped: Meter,
}

/// Why records could not be kept.
enum Refused {
    /// A share is full; what it is and how to make room.
    Full(String),
    Disk(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// The bytes that a node holds.
#[derive(Debug, Default)]
struct Held {
    /// By the name of a file without what follows the peer: `NODE` or `NODE.peer-PEER`.
    shares: HashMap<String, u64>,
}

impl Held {
    fn of(&self, share: &str) -> u64 {
        self.shares.get(share).copied().unwrap_or(0)
    }

    fn total(&self) -> u64 {
        self.shares.values().sum()
    }

    fn largest(&self) -> Option<&str> {
        let largest = self.shares.iter().max_by_key(|(_, bytes)| **bytes);
        largest.map(|(share, _)| &**share)
    }
}

impl RejectedStore {
    /// The store of one node, in the directory that all stores share.
    pub fn open(
        directory: PathBuf,
        node: &str,
        limits: RejectedLimits,
        reporter: Reporter,
        counts: Counts,
    ) -> Arc<dyn Channel> {
        Arc::new(Self(Arc::new(Store::new(
            directory, node, limits, reporter, counts,
        ))))
    }
}

impl Store {
    fn new(
        directory: PathBuf,
        node: &str,
        limits: RejectedLimits,
        reporter: Reporter,
        counts: Counts,
    ) -> Self {
        Self {
            directory,
            node: node.into(),
            limits,
            ends: Mutex::default(),
            waiting: AtomicUsize::new(0),
            nearly_full: reporter.condition("rejected-room"),
            reporter,
            kept: counts.kept,
            dropped: counts.dropped,
        }
    }

    /// Keeps all of the batches or none.
    fn keep(&self, batches: &[Batch]) -> Result<(), Refused> {
        private::create_dir_all(&self.directory)?;
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.held()?;
        let mut shares: Vec<(String, Vec<&[u8]>)> = Vec::new();
        for batch in batches {
            let share = self.share(batch.values.get("peer"), &held);
            match shares.iter_mut().find(|(other, _)| *other == share) {
                Some((_, bodies)) => bodies.push(&batch.body),
                None => shares.push((share, vec![&batch.body])),
            }
        }
        for (share, bodies) in &shares {
            let bytes = bodies.iter().map(|body| body.len() as u64).sum();
            self.make_room(share, bytes, &mut held)?;
            *held.shares.entry(share.clone()).or_default() += bytes;
        }
        for (share, bodies) in &shares {
            self.append(share, bodies, &mut ends)?;
        }
        self.watch_room(&held);
        Ok(())
    }

    /// The file name that the records of a peer have, up to the first part that does not belong to the peer.
    fn share(&self, peer: Option<&str>, held: &Held) -> String {
        let Some(peer) = peer else {
            return self.node.to_string();
        };
        // Without dots, so that the parts of a name can be told apart.
        let plain = |c: char| match c.is_ascii_alphanumeric() || matches!(c, ':' | '-') {
            true => c,
            false => '_',
        };
        let peer: String = peer.chars().take(PEER_BYTES_MAX).map(plain).collect();
        let share = format!("{}.peer-{peer}", self.node);
        match held.shares.len() < PEERS_MAX || held.shares.contains_key(&share) {
            true => share,
            false => self.node.to_string(),
        }
    }

    /// The files of this node, each with its share and its length.
    fn files(&self) -> io::Result<Vec<(PathBuf, String, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let mut parts = name.split('.');
            if parts.next() != Some(&*self.node) || !name.ends_with(EXTENSION) {
                continue;
            }
            let share = match parts.next() {
                Some(peer) if peer.starts_with("peer-") => format!("{}.{peer}", self.node),
                _ => self.node.to_string(),
            };
            match entry.metadata() {
                Ok(found) => files.push((entry.path(), share, found.len())),
                // An operator has moved it away just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }

    fn held(&self) -> io::Result<Held> {
        let mut held = Held::default();
        for (_, share, bytes) in self.files()? {
            *held.shares.entry(share).or_default() += bytes;
        }
        Ok(held)
    }

    /// Sees to it that `bytes` more fit into a share, and into that of the node.
    fn make_room(&self, share: &str, bytes: u64, held: &mut Held) -> Result<(), Refused> {
        loop {
            let (of_peer, of_node) = (self.limits.peer_max, self.limits.node_max);
            let is_peer = share != &*self.node;
            let full = if is_peer && held.of(share) + bytes > of_peer.as_bytes() {
                (share.to_owned(), "rejected.peer_max", of_peer)
            } else if held.total() + bytes > of_node.as_bytes() {
                let largest = held.largest().unwrap_or(share);
                (largest.to_owned(), "rejected.node_max", of_node)
            } else {
                return Ok(());
            };
            let (from, option, limit) = full;
            let drops = self.limits.full == WhenRejectedFull::DropOldest;
            if !drops || !self.drop_oldest(&from, held)? {
                return Err(Refused::Full(self.full(share, option, limit)));
            }
        }
    }

    fn full(&self, share: &str, option: &str, limit: Size) -> String {
        let (place, node) = (self.directory.display(), &self.node);
        let files = match option {
            "rejected.peer_max" => format!("{share}.*"),
            _ => format!("{node}.*"),
        };
        format!(
            "the files {place}/{files} hold {limit} of rejected records, which is the limit (`{option}`): read them with \
             `millstream rejected cat --node {node}`, then move them elsewhere"
        )
    }

    /// Removes the oldest file of a share; false if there is none.
    fn drop_oldest(&self, share: &str, held: &mut Held) -> io::Result<bool> {
        let mut oldest = None;
        for (path, of, bytes) in self.files()? {
            if of == share && bytes > 0 {
                let written = fs::metadata(&path)?.modified()?;
                oldest = oldest.into_iter().chain([(written, path, bytes)]).min();
            }
        }
        let Some((_, path, bytes)) = oldest else {
            return Ok(false);
        };
        fs::remove_file(&path)?;
        self.dropped.add(bytes);
        let text = format_args!(
            "{} was removed with {bytes} bytes of rejected records to make room (`rejected.full: drop_oldest`)",
            path.display()
        );
        self.reporter.warn("rejected-dropped", text);
        let held = held.shares.entry(share.to_owned()).or_default();
        *held = held.saturating_sub(bytes);
        Ok(true)
    }

    /// Makes the node unhealthy while a share is nearly full.
    fn watch_room(&self, held: &Held) {
        if self.limits.full == WhenRejectedFull::DropOldest {
            return;
        }
        let is_near = |bytes: u64, limit: Size| bytes > limit.as_bytes() / 100 * NEARLY_FULL;
        let peers = held
            .shares
            .iter()
            .filter(|(share, _)| ***share != *self.node);
        let peer = peers
            .max_by_key(|(_, bytes)| **bytes)
            .filter(|(_, bytes)| is_near(**bytes, self.limits.peer_max));
        let (files, bytes, limit) = match peer {
            _ if is_near(held.total(), self.limits.node_max) => {
                (&*self.node, held.total(), self.limits.node_max)
            }
            Some((share, bytes)) => (&**share, *bytes, self.limits.peer_max),
            None => {
                self.nearly_full.clear();
                return;
            }
        };
        let bytes = Size::bytes(bytes).rounded();
        self.nearly_full.raise(
            Trouble::Blocked,
            format_args!(
                "the files {}/{files}.* hold {bytes} of rejected records; at {limit} the node stops: read them with `millstream \
                 rejected cat --node {}`, then move them elsewhere",
                self.directory.display(),
                self.node
            ),
        );
    }

    fn append(
        &self,
        share: &str,
        records: &[&[u8]],
        ends: &mut HashMap<PathBuf, u64>,
    ) -> io::Result<()> {
        let path = self.directory.join(format!("{share}.{EXTENSION}"));
        let bytes: u64 = records.iter().map(|records| records.len() as u64).sum();
        if !ends.contains_key(&path) {
            self.put_torn_aside(&path)?;
        }
        let is_new = !path.exists();
        let mut file = private::options().create(true).append(true).open(&path)?;
        let length = file.metadata()?.len();
        // Shorter: somebody has moved it away. Longer: a part of what did not fit is there.
        let start = ends.get(&path).map_or(length, |end| (*end).min(length));
        if length > start {
            file.set_len(start)?;
        }
        ends.insert(path.clone(), start);
        for records in records {
            file.write_all(records)?;
        }
        file.sync_data()?;
        ends.insert(path.clone(), start + bytes);
        let is_piece = start + bytes >= self.limits.peer_max.as_bytes() / PIECES;
        if is_piece && self.limits.full == WhenRejectedFull::DropOldest {
            self.put_aside(&path, "old")?;
            ends.insert(path, 0);
        } else if is_new {
            fs::File::open(&self.directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Puts a file aside that does not end with a whole record: nothing behind its last one could be read.
    fn put_torn_aside(&self, path: &Path) -> io::Result<()> {
        let mut file = match RejectedFile::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let (_, rest) = file.values(|_| Ok::<_, io::Error>(()))?;
        if rest == 0 {
            return Ok(());
        }
        let aside = self.put_aside(path, "torn")?;
        let text = format_args!(
            "{} ends with a part of a record; it is kept as {}",
            path.display(),
            aside.display()
        );
        self.reporter.warn("rejected-torn", text);
        Ok(())
    }

    /// Gives a file a name that no other file has, and that says why and when.
    fn put_aside(&self, path: &Path, why: &str) -> io::Result<PathBuf> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        let names = (0..).map(|n| path.with_extension(format!("{why}-{now}-{n}.{EXTENSION}")));
        let aside = names.into_iter().find(|name| !name.exists());
        let aside = aside.unwrap_or_default();
        fs::rename(path, &aside)?;
        fs::File::open(&self.directory)?.sync_all()?;
        Ok(aside)
    }

    /// Looks from time to time whether the condition of the room still holds.
    async fn clear_when_moved(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let store = self.clone();
            let look = tokio::task::spawn_blocking(move || {
                store.held().map(|held| store.watch_room(&held))
            });
            if !matches!(look.await, Ok(Ok(()))) || !self.nearly_full.holds() {
                return;
            }
        }
    }
}

/// A group waits for room as long as this exists.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Channel for RejectedStore {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        let store = self.0.clone();
        Box::pin(async move {
            let mut group = group;
            // Hold until this group is kept: another group of the node may find room meanwhile.
            let mut waits = None;
            loop {
                let shared = store.clone();
                let keep = tokio::task::spawn_blocking(move || {
                    let watched = shared.nearly_full.holds();
                    let kept = shared.keep(&group.batches);
                    (kept, !watched && shared.nearly_full.holds(), group)
                });
                // The blocking task ends before its time only if it panics; the group is dropped then, which fails it.
                let Ok((kept, is_nearly_full, back)) = keep.await else {
                    return;
                };
                if is_nearly_full {
                    tokio::spawn(store.clone().clear_when_moved());
                }
                let why = match kept {
                    Ok(()) => {
                        let records = back.batches.iter().map(|batch| u64::from(batch.count));
                        store.kept.add(records.sum());
                        return back.token.settle();
                    }
                    Err(Refused::Full(why)) => why,
                    Err(Refused::Disk(error)) => {
                        let place = store.directory.display();
                        format!("cannot keep rejected records in {place}: {error}")
                    }
                };
                let (condition, _) = waits.get_or_insert_with(|| {
                    let condition = store.reporter.condition("rejected");
                    (condition, Waits::new(&store.waiting))
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
