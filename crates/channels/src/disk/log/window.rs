//! The window of chunk ids: which chunks are kept, or staged to be kept.
//!
//! It has one entry per chunk, in the order of the log. The number and the age of the entries are bounded. A second copy is recognized even
//! before the first copy is kept, but it is acknowledged only when the first copy is kept. An id takes about 60 bytes: 32 in the ring, the
//! rest in the map, which doubles when it grows.
//!
//! If an id is a hash of the content, or too short to be unique, different chunks with equal bytes share it. A chunk with a shared id
//! counts as a repeat only if it arrives on another connection than the last copy, the connection of the last copy has ended, and nothing
//! proves that our acknowledgement of the last copy arrived. The proof is another chunk that followed on that connection after the
//! acknowledgement, or an orderly close. If the acknowledgement arrived, the sender does not resend the copy. When in doubt, a chunk is
//! stored: a duplicate can be found and removed, a loss cannot.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use millstream_record::Time;

use super::{
    ids::IdRecord,
    key::{Identity, Key},
};

/// The limits of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dedupe {
    /// The maximum number of ids to remember.
    pub ids: usize,
    /// How long to remember an id.
    pub age: Duration,
    /// Store every chunk whose id is a hash of its content, including repeats.
    pub store_content_ids: bool,
}

impl Default for Dedupe {
    fn default() -> Self {
        Self {
            // 32 MB of id files and 60 MB of memory: a day of chunks from 100 senders that flush every 10 s.
            ids: 1_000_000,
            // Fluentd retries for this long.
            age: Duration::from_secs(72 * 60 * 60),
            store_content_ids: false,
        }
    }
}

/// The maximum number of connections in [`Window::waiting`]. More connections can accumulate there only if the ends of connections are not
/// reported.
const CONNECTIONS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    /// The number of the connection; of a part of a position its mark (repeats.rs).
    connection: u64,
    seconds: u32,
    proved: bool,
}

/// The result of [`Window::look_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    New,
    Kept,
    /// The first copy is staged and not yet kept.
    Pending,
}

/// The ids of the newest chunks, oldest first. Entries are numbered from the first one ever added.
#[derive(Debug)]
pub(super) struct Window {
    bounds: Dedupe,
    ring: VecDeque<Entry>,
    /// The number of the first entry in the ring.
    first: u64,
    /// Entries below this number are kept.
    kept: u64,
    /// Maps the first half of a key to the low half of the number of its newest entry. If two keys share their first half, repeats
    /// of the older one are missed. A wrong match is impossible, because the ring holds whole keys.
    map: HashMap<[u8; 8], u32, foldhash::fast::RandomState>,
    /// Maps a connection to the number of its last entry with a shared id, until a follower or an orderly close proves that the
    /// acknowledgement arrived.
    waiting: HashMap<u64, u64, foldhash::fast::RandomState>,
    /// Orderly closes that no frame stores yet.
    closed: Vec<u64>,
    evicted_young: u64,
}

impl Window {
    /// Uses other limits from the next eviction on.
    pub(super) fn change(&mut self, bounds: Dedupe) {
        self.bounds = bounds;
    }

    pub(super) fn new(bounds: Dedupe) -> Self {
        Self {
            bounds,
            ring: VecDeque::new(),
            first: 0,
            kept: 0,
            map: HashMap::default(),
            waiting: HashMap::default(),
            closed: Vec::new(),
            evicted_young: 0,
        }
    }

    /// Notes that a chunk has arrived on `connection`, which proves that earlier acknowledgements on it have arrived.
    pub(super) fn follow(&mut self, connection: u64) {
        // A pending entry is not acknowledged yet, so a follower proves nothing about it.
        if let Some(number) = self.waiting.get(&connection).copied()
            && number < self.kept
        {
            self.waiting.remove(&connection);
            self.prove(number);
        }
    }

    /// Notes that a connection has ended. `orderly`: the peer closed it after all our acknowledgements, without an error.
    pub(super) fn close(&mut self, connection: u64, orderly: bool) {
        if let Some(number) = self.waiting.remove(&connection)
            && orderly
            && number < self.kept
        {
            self.prove(number);
            self.closed.push(connection);
        }
    }

    /// The orderly closes that the next frame must store.
    pub(super) fn drain_closed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.closed)
    }

    /// Puts back an orderly close whose frame was dropped, so that the next frame stores it.
    pub(super) fn put_back_closed(&mut self, connection: u64) {
        self.closed.push(connection);
    }

    /// Looks up a chunk that came in on `connection`.
    pub(super) fn look_up(&self, key: &Key, identity: Identity, connection: u64) -> Lookup {
        let Some((number, entry)) = self.find(key) else {
            return Lookup::New;
        };
        let repeat = match identity {
            Identity::Unique => true,
            Identity::Shared => {
                !self.bounds.store_content_ids
                    && entry.connection != connection
                    && !entry.proved
                    && !self.waiting.contains_key(&entry.connection)
            }
        };
        match repeat {
            false => Lookup::New,
            true => self.state(number),
        }
    }

    /// Whether the entry with this number is kept.
    pub(super) fn state(&self, number: u64) -> Lookup {
        match number < self.kept {
            true => Lookup::Kept,
            false => Lookup::Pending,
        }
    }

    /// The number and the mark of a part of a position.
    pub(super) fn part(&self, key: &Key) -> Option<(u64, u64)> {
        let (number, entry) = self.find(key)?;
        Some((number, entry.connection))
    }

    /// Adds a part of a position that is being staged.
    pub(super) fn insert_part(&mut self, key: Key, mark: u64, seconds: u32) {
        self.push(Entry {
            key,
            connection: mark,
            seconds,
            proved: true,
        });
    }

    /// Adds a chunk that is being staged.
    pub(super) fn insert(&mut self, key: Key, identity: Identity, connection: u64, seconds: u32) {
        self.push(Entry {
            key,
            connection,
            seconds,
            // Only shared ids need a proof.
            proved: identity == Identity::Unique,
        });
    }

    /// Restores an entry from a frame or an id file at a start.
    pub(super) fn restore(&mut self, record: &IdRecord) {
        match *record {
            IdRecord::Chunk {
                key,
                connection,
                seconds,
                proved,
            } => {
                self.follow(connection);
                self.push(Entry {
                    key,
                    connection,
                    seconds,
                    proved,
                });
            }
            IdRecord::Part { key, mark, seconds } => self.insert_part(key, mark, seconds),
            IdRecord::Closed { connection, .. } => {
                self.close(connection, true);
                self.closed.clear();
            }
        }
        self.kept = self.end();
    }

    /// Ends the restore. No connection from before the start is still open, so a repeat of an unproven id is recognized from now on.
    pub(super) fn finish_restore(&mut self) {
        self.waiting.clear();
    }

    /// Notes that the entries below this number are kept.
    pub(super) fn keep(&mut self, end: u64) {
        self.kept = self.kept.max(end.min(self.end()));
    }

    /// The number of the next entry.
    pub(super) fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    /// The number of the oldest entry.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Evicts entries that are too old, and the oldest entries while there are more than the limit. Pending entries stay.
    pub(super) fn evict(&mut self, now: Time) {
        let oldest = seconds(now)
            .saturating_sub(u32::try_from(self.bounds.age.as_secs()).unwrap_or(u32::MAX));
        while let Some(entry) = self.ring.front() {
            let young = entry.seconds >= oldest;
            if self.first >= self.kept || (young && self.ring.len() <= self.bounds.ids) {
                break;
            }
            self.evicted_young += u64::from(young);
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some(entry) = self.ring.pop_front() else {
            return;
        };
        let half = half(&entry.key);
        if self.map.get(&half) == Some(&low(self.first)) {
            self.map.remove(&half);
        }
        self.first += 1;
    }

    /// Evicts the entries below the number `end` to free space. Pending entries stay.
    pub(super) fn forget(&mut self, end: u64) {
        while self.first < end.min(self.kept) && !self.ring.is_empty() {
            self.evicted_young += 1;
            self.drop_first();
        }
    }

    /// Entries below this number are kept.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// The number of ids that were evicted before they reached the maximum age.
    pub(super) fn evicted_young(&self) -> u64 {
        self.evicted_young
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    fn push(&mut self, entry: Entry) {
        let number = self.end();
        if !entry.proved {
            if self.waiting.len() >= CONNECTIONS_MAX {
                // All waiting entries count as proven, so that their repeats are stored: a duplicate is better than a loss.
                for number in std::mem::take(&mut self.waiting).into_values() {
                    self.prove(number);
                }
            }
            // Only the newest shared entry of a connection can wait for a proof. So the previous one counts as proven, even if it is
            // pending and a follower proves nothing about it. At worst, its repeats are stored.
            if let Some(before) = self.waiting.insert(entry.connection, number) {
                self.prove(before);
            }
        }
        self.map.insert(half(&entry.key), low(number));
        self.ring.push_back(entry);
    }

    fn find(&self, key: &Key) -> Option<(u64, &Entry)> {
        let low_number = *self.map.get(&half(key))?;
        // The ring is far shorter than 2^32, so the low half of a number identifies one entry.
        let offset = low_number.wrapping_sub(low(self.first));
        let number = self.first + u64::from(offset);
        let entry = self.entry(number)?;
        (entry.key == *key).then_some((number, entry))
    }

    fn entry(&self, number: u64) -> Option<&Entry> {
        let offset = number.checked_sub(self.first)?;
        self.ring.get(usize::try_from(offset).ok()?)
    }

    fn prove(&mut self, number: u64) {
        if let Some(offset) = number.checked_sub(self.first)
            && let Some(entry) = usize::try_from(offset)
                .ok()
                .and_then(|offset| self.ring.get_mut(offset))
        {
            entry.proved = true;
        }
    }
}

/// A keep time in whole seconds, as the window counts it (until 2106).
pub(super) fn seconds(time: Time) -> u32 {
    u32::try_from(time.seconds().max(0)).unwrap_or(u32::MAX)
}

fn half(key: &Key) -> [u8; 8] {
    let mut half = [0; 8];
    half.copy_from_slice(&key.0[..8]);
    half
}

/// The low 32 bits of an entry's number.
fn low(number: u64) -> u32 {
    (number & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
