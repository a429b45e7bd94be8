//! The window of repeats: which chunks are kept, or on their way to be kept.
//!
//! One entry per chunk, in the order of the log, bounded by a number of ids and by their age. It belongs to the writer
//! alone, so looking a chunk up and noting it is one step; a second copy that arrives while the first is not yet kept
//! finds the first and shares its fate. About 60 bytes an id: 32 in the ring, the rest in the map (which grows twofold).
//!
//! An id that is a hash of the content, or too short to be unique, is shared by honest chunks of equal bytes. Such a
//! chunk is a repeat only on another connection, when the connection of the last try broke and nothing followed there
//! after our ack: a follower, or an orderly close, proves that the ack arrived and that the sender is done with it.
//! When in doubt a chunk is stored: a duplicate can be found and removed, a loss cannot.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use millstream_record::Time;

use super::{
    ids::IdRecord,
    key::{Identity, Key},
};

/// The bounds of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dedupe {
    /// How many ids are remembered.
    pub ids: usize,
    /// For how long.
    pub age: Duration,
    /// Stores every chunk whose id is a hash of its content, repeats too.
    pub store_content_ids: bool,
}

impl Default for Dedupe {
    fn default() -> Self {
        Self {
            // 32 MB of id files, 60 MB of memory, and a day of chunks from 100 senders that flush every 10 s.
            ids: 1_000_000,
            // For so long fluentd tries again.
            age: Duration::from_secs(72 * 60 * 60),
            store_content_ids: false,
        }
    }
}

/// Connections whose last content id waits for its proof; more than a process has open means that nobody reports closes.
const CONNECTIONS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    connection: u64,
    seconds: u32,
    proved: bool,
}

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is new.
    New,
    /// It is kept.
    Kept,
    /// Its first copy is on its way to be kept.
    Pending,
}

#[derive(Debug)]
pub(super) struct Window {
    bounds: Dedupe,
    ring: VecDeque<Entry>,
    /// The number of the ring's first entry: entries are numbered from the first that ever was.
    first: u64,
    /// Entries below this are kept.
    kept: u64,
    /// The first half of a key -> the number of its newest entry. Two keys that share the half only make a repeat of the
    /// older one unknown, because the ring holds the whole key.
    map: HashMap<[u8; 8], u32, foldhash::fast::RandomState>,
    /// Connection -> the entry of its last chunk, as long as nothing proves that the ack for it arrived.
    waiting: HashMap<u64, u64, foldhash::fast::RandomState>,
    /// Orderly closes that no frame holds yet.
    closed: Vec<u64>,
    evicted_young: u64,
}

impl Window {
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

    /// A chunk came in on `connection`: what was acked there before has arrived.
    pub(super) fn follow(&mut self, connection: u64) {
        // A pending entry has no ack yet that a follower could prove.
        if let Some(number) = self.waiting.get(&connection).copied()
            && number < self.kept
        {
            self.waiting.remove(&connection);
            self.prove(number);
        }
    }

    /// A connection has ended; `orderly`: the peer closed it after all our acks, with no error.
    pub(super) fn close(&mut self, connection: u64, orderly: bool) {
        if let Some(number) = self.waiting.remove(&connection)
            && orderly
            && number < self.kept
        {
            self.prove(number);
            self.closed.push(connection);
        }
    }

    /// Orderly closes that the next frame has to hold.
    pub(super) fn take_closed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.closed)
    }

    /// A frame that held an orderly close was dropped: the next one has to hold it.
    pub(super) fn put_back_closed(&mut self, connection: u64) {
        self.closed.push(connection);
    }

    pub(super) fn look_up(&self, key: &Key, identity: Identity, connection: u64) -> Known {
        let Some((number, entry)) = self.find(key) else {
            return Known::New;
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
            false => Known::New,
            true if number < self.kept => Known::Kept,
            true => Known::Pending,
        }
    }

    /// Notes a chunk that is staged, or that a start has found.
    pub(super) fn insert(&mut self, key: Key, identity: Identity, connection: u64, seconds: u32) {
        self.push(Entry {
            key,
            connection,
            seconds,
            // Only a shared id asks for proof.
            proved: identity == Identity::Unique,
        });
    }

    /// Notes what a frame or an id file says, at a start.
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
            IdRecord::Closed { connection, .. } => {
                self.close(connection, true);
                self.closed.clear();
            }
        }
        self.kept = self.end();
    }

    /// The start is over: no connection from before it is open any more.
    pub(super) fn restored(&mut self) {
        self.waiting.clear();
    }

    /// The entries below this number are kept.
    pub(super) fn keep(&mut self, end: u64) {
        self.kept = self.kept.max(end.min(self.end()));
    }

    /// The number of the next entry.
    pub(super) fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    /// The number of the oldest entry that is remembered.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Forgets what is too old and what is too much. Pending entries stay.
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

    /// Forgets the entries below the number `end`, because there is no room for them. Pending entries stay.
    pub(super) fn forget(&mut self, end: u64) {
        while self.first < end.min(self.kept) && !self.ring.is_empty() {
            self.evicted_young += 1;
            self.drop_first();
        }
    }

    /// Ids that had to go before their age.
    pub(super) fn evicted_young(&self) -> u64 {
        self.evicted_young
    }

    /// Ids that are remembered.
    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    fn push(&mut self, entry: Entry) {
        let number = self.end();
        if !entry.proved {
            if self.waiting.len() >= CONNECTIONS_MAX {
                // In doubt they are stored again: whoever is not known to be broken is no repeat.
                for number in std::mem::take(&mut self.waiting).into_values() {
                    self.prove(number);
                }
            }
            // What stood there has a follower now, whether its ack was out already or not.
            if let Some(before) = self.waiting.insert(entry.connection, number) {
                self.prove(before);
            }
        }
        self.map.insert(half(&entry.key), low(number));
        self.ring.push_back(entry);
    }

    fn find(&self, key: &Key) -> Option<(u64, &Entry)> {
        let low_number = *self.map.get(&half(key))?;
        // The ring is far shorter than 2^32, so the low half of a number stands for one entry.
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

/// A keep time in whole seconds, as the window counts them (until 2106).
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
