//! Recognizes repeated chunks: by the window of chunk ids in memory, and by id files, which preserve the window when segments are released
//! and across restarts.
//!
//! A chunk of another Millstream that reads a disk channel is a part of a position ([`PartId`]). The window holds a mark for each part:
//!
//! ```text
//! the last part       parts (high 32 bits), sum of the checksums of all parts before it; of an only part the checksum of the chunk
//! every other part    0, its checksum
//! ```
//! A position is complete if its last part is there, and with it all parts before whose checksums have this sum. Then every part of it
//! is a repeat, however the sender divides it now and whatever it contains: nothing of a complete position may be stored again. If a
//! position is not complete, only parts with the same mark are repeats. A part with another mark is stored, because the sender may
//! have divided the position differently, and a duplicate is better than a loss.

use std::collections::{HashSet, VecDeque};

use millstream_record::{ChunkOrigin, Origin};
use millstream_wire::part_id::PartId;

use super::{
    ChannelId, Dedupe, Error,
    directory::LogDirectory,
    frame::Head,
    ids::{IdRecord, ids_name, read_ids, write_ids},
    key::{Identity, Key, Keys, identity},
    window::{Lookup, Window, seconds},
};

/// A set of chunk keys.
type KeySet = HashSet<Key, foldhash::fast::RandomState>;

/// The keys of the new chunks of one group. A chunk that became several parts of the group has the same key in each of them.
#[derive(Default)]
pub(super) struct GroupKeys {
    earlier: KeySet,
    current: KeySet,
}

impl GroupKeys {
    /// Ends the current part of the group.
    pub(super) fn end_part(&mut self) {
        self.earlier.extend(self.current.drain());
    }
}

/// The chunk ids of one channel.
pub(super) struct Repeats {
    keys: Keys,
    pub(super) window: Window,
    /// The keys in the group whose frames are read by [`Repeats::ids_of`].
    group: GroupKeys,
    /// The id files, oldest first. Each entry holds two numbers: that of the segment, and the window's number for the entry after the last
    /// id in the file.
    id_files: VecDeque<(u64, u64)>,
    /// Chunks that arrived again and were not stored a second time.
    pub(super) count: u64,
    /// Since the last report.
    pub(super) other: OtherContent,
}

/// Parts of positions of other Millstreams that arrived again with another content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherContent {
    /// Parts that were not stored, because their position is complete.
    pub repeats: u64,
    /// Parts that were stored beside an earlier part with the same number, because their position is not complete.
    pub stored: u64,
}

/// The mark of a part of a position.
fn mark(id: &PartId<'_>, chunk: &ChunkOrigin) -> u64 {
    let sum = match id.parts {
        1 => chunk.checksum,
        _ => id.sum,
    };
    u64::from(id.parts) << 32 | u64::from(sum)
}

/// The decision about a chunk.
pub(super) enum Admission {
    /// The chunk is new: store it. Holds the chunk's entry for the id file; `None` if an earlier part of the group has already added this
    /// entry.
    New(Option<IdRecord>),
    /// The chunk is kept already.
    Kept,
    /// The first copy is staged and not kept yet.
    Pending,
}

impl Repeats {
    pub(super) fn new(channel: ChannelId, bounds: Dedupe) -> Self {
        Self {
            keys: Keys::new(channel.0),
            window: Window::new(bounds),
            group: GroupKeys::default(),
            id_files: VecDeque::new(),
            count: 0,
            other: OtherContent::default(),
        }
    }

    /// Looks up a chunk and adds its id if it is new. `group` holds the keys of the group that the chunk belongs to.
    pub(super) fn admit(
        &mut self,
        chunk: &ChunkOrigin,
        seconds: u32,
        group: &mut GroupKeys,
    ) -> Admission {
        if let Some(id) = PartId::of_chunk(&chunk.id) {
            return self.admit_part(&id, chunk, seconds, group);
        }
        let key = self.keys.key(chunk);
        let identity = identity(&chunk.id);
        if group.earlier.contains(&key) {
            // A part holds a chunk with a unique id only once, so a second copy is a repeat. Chunks with a shared id count as different
            // chunks.
            return match group.current.insert(key) || identity == Identity::Shared {
                true => Admission::New(None),
                false => Admission::Pending,
            };
        }
        self.window.follow(chunk.connection);
        match self.window.look_up(&key, identity, chunk.connection) {
            Lookup::Kept => Admission::Kept,
            Lookup::Pending => Admission::Pending,
            Lookup::New => {
                self.window.insert(key, identity, chunk.connection, seconds);
                group.current.insert(key);
                let record = IdRecord::Chunk {
                    key,
                    connection: chunk.connection,
                    seconds,
                    proved: identity == Identity::Unique,
                };
                Admission::New(Some(record))
            }
        }
    }

    /// Like [`Repeats::admit`], for a part of a position.
    fn admit_part(
        &mut self,
        id: &PartId<'_>,
        chunk: &ChunkOrigin,
        seconds: u32,
        group: &mut GroupKeys,
    ) -> Admission {
        let (key, mark) = (self.part_key(id), mark(id, chunk));
        if group.earlier.contains(&key) || group.current.contains(&key) {
            // A part has a batch for each tag, and all of them have its id.
            group.current.insert(key);
            return Admission::New(None);
        }
        self.window.follow(chunk.connection);
        match self.look_up_part(id, &key, mark) {
            Lookup::Kept => Admission::Kept,
            Lookup::Pending => Admission::Pending,
            Lookup::New => {
                self.window.insert_part(key, mark, seconds);
                group.current.insert(key);
                Admission::New(Some(IdRecord::Part { key, mark, seconds }))
            }
        }
    }

    fn look_up_part(&mut self, id: &PartId<'_>, key: &Key, mark: u64) -> Lookup {
        let known = self.window.part(key);
        if let Some(number) = self.complete(id) {
            let is_only = |mark: u64| mark >> 32 == 1;
            let is_other = |(_, known): (u64, u64)| known != mark && is_only(known);
            self.other.repeats += u64::from(is_only(mark) && known.is_some_and(is_other));
            return self.window.state(number);
        }
        match known {
            Some((number, known)) if known == mark => self.window.state(number),
            Some(_) => {
                self.other.stored += 1;
                Lookup::New
            }
            None => Lookup::New,
        }
    }

    /// If the position of this part is complete, returns the window's number of its newest part.
    fn complete(&mut self, id: &PartId<'_>) -> Option<u64> {
        let last = self.keys.part(id, None);
        let (mut newest, mark) = self.window.part(&last)?;
        let before = (mark >> 32).saturating_sub(1);
        let mut sum = 0_u32;
        for part in 0..u32::try_from(before).ok()? {
            let key = self.keys.part(id, Some(part));
            let (number, mark) = self.window.part(&key)?;
            newest = newest.max(number);
            sum = sum.wrapping_add(low(mark));
        }
        (before == 0 || sum == low(mark)).then_some(newest)
    }

    fn part_key(&mut self, id: &PartId<'_>) -> Key {
        self.keys.part(id, (!id.is_last()).then_some(id.part))
    }

    /// The entries of a frame for the id file: the orderly closes of connections that the frame stores, and its chunks. A chunk that an
    /// earlier frame of the group also holds has no entry here. Call this for the frames in their order.
    pub(super) fn ids_of(&mut self, head: &Head) -> Vec<IdRecord> {
        let seconds = seconds(head.keep_time);
        let closed = head.closed.iter().map(|connection| IdRecord::Closed {
            connection: *connection,
            seconds,
        });
        match head.part {
            0 => self.group = GroupKeys::default(),
            _ => self.group.end_part(),
        }
        let chunks = head.origins.iter().filter_map(|origin| match origin {
            Origin::Chunk(chunk) => {
                if let Some(id) = PartId::of_chunk(&chunk.id) {
                    let key = self.part_key(&id);
                    let is_first = self.group.current.insert(key);
                    let mark = mark(&id, chunk);
                    return (is_first && !self.group.earlier.contains(&key))
                        .then_some(IdRecord::Part { key, mark, seconds });
                }
                let key = self.keys.key(chunk);
                self.group.current.insert(key);
                (!self.group.earlier.contains(&key)).then(|| IdRecord::Chunk {
                    key,
                    connection: chunk.connection,
                    seconds,
                    proved: identity(&chunk.id) == Identity::Unique,
                })
            }
            Origin::File(_) => None,
        });
        closed.chain(chunks).collect()
    }

    /// Writes the id file of a segment that was closed.
    pub(super) fn write_file(
        &mut self,
        directory: &LogDirectory,
        segment: u64,
        ids: &[IdRecord],
    ) -> Result<(), Error> {
        let path = directory.join(&ids_name(segment));
        write_ids(&*directory.disk, &path, &directory.channel, segment, ids)
            .map_err(|error| Error::disk("writing the ids of a segment", &path, error))?;
        self.add_file(segment);
        Ok(())
    }

    /// Reads the id file of a segment; `None` if it is missing or damaged.
    pub(super) fn read_file(
        &self,
        directory: &LogDirectory,
        segment: u64,
    ) -> Result<Option<Vec<IdRecord>>, Error> {
        let path = directory.join(&ids_name(segment));
        read_ids(&*directory.disk, &path, &directory.channel, segment)
            .map_err(|error| Error::disk("reading ids", &path, error))
    }

    /// Notes that the id file of this segment holds the ids up to the newest kept one. The ids of staged chunks are in no id file yet, so
    /// the file can be removed while the window still holds the ids of these chunks.
    pub(super) fn add_file(&mut self, segment: u64) {
        self.id_files.push_back((segment, self.window.kept()));
    }

    /// Removes the id files whose ids have all left the window.
    pub(super) fn remove_old_files(&mut self, directory: &LogDirectory) -> Result<(), Error> {
        while let Some((segment, end)) = self.id_files.front().copied() {
            if end > self.window.first() {
                break;
            }
            let path = directory.join(&ids_name(segment));
            directory
                .disk
                .remove(&path)
                .map_err(|error| Error::disk("removing an id file", &path, error))?;
            self.id_files.pop_front();
        }
        Ok(())
    }

    /// Forgets the ids of the oldest id file to free space on a full disk. Ids that have not reached the maximum age are counted
    /// (`evicted_young_ids`). Returns false if there is no id file.
    pub(super) fn forget_oldest_file(&mut self, directory: &LogDirectory) -> Result<bool, Error> {
        let Some((_, end)) = self.id_files.front().copied() else {
            return Ok(false);
        };
        self.window.forget(end);
        self.remove_old_files(directory)?;
        Ok(true)
    }
}

/// The low 32 bits of a mark.
fn low(mark: u64) -> u32 {
    (mark & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use millstream_record::{Position, Time};
    use millstream_sys::checksum::crc32c;
    use millstream_testkit::SimulatedDisk;
    use millstream_wire::msgpack::write_str;

    use super::*;
    use crate::disk::log::tests::{batch, directory, names};

    /// The receiver's side: a channel, and the parts of one position that a sender sends in a group each.
    struct Receiver {
        repeats: Repeats,
        connection: u64,
    }

    impl Receiver {
        fn new() -> Self {
            let repeats = Repeats::new(ChannelId([1; 16]), Dedupe::default());
            Self {
                repeats,
                connection: 0,
            }
        }

        /// Sends a part as a group with one batch for each text. Returns whether the channel stores it.
        fn takes(&mut self, part: u32, parts: u32, sum: u32, texts: &[&str]) -> bool {
            let id = PartId {
                channel: 7,
                sink: "out",
                position: Position { epoch: 1, seq: 5 },
                received: Time(9),
                flow: 0,
                part,
                parts,
                sum,
            };
            let mut packed = Vec::new();
            write_str(&mut packed, id.to_string().as_bytes());
            self.connection += 1;
            let content = texts.concat();
            let mut group = GroupKeys::default();
            let admit = |text: &&str| {
                let chunk = ChunkOrigin {
                    id: packed.clone().into(),
                    tag: (*text).into(),
                    connection: self.connection,
                    length: content.len() as u32,
                    checksum: crc32c(content.as_bytes()),
                    start: 0,
                    end: 1,
                    records: 1,
                };
                let admitted = self.repeats.admit(&chunk, 0, &mut group);
                group.end_part();
                matches!(admitted, Admission::New(_))
            };
            let stored: Vec<bool> = texts.iter().map(admit).collect();
            let end = self.repeats.window.end();
            self.repeats.window.keep(end);
            let all = stored.iter().all(|stored| *stored);
            assert!(all || stored.iter().all(|stored| !stored), "all or none");
            all
        }
    }

    #[test]
    fn a_complete_position_is_never_stored_again_whatever_became_of_it() {
        let mut receiver = Receiver::new();
        assert!(receiver.takes(0, 1, 0, &["a", "b"]));
        assert!(!receiver.takes(0, 1, 0, &["a", "b"]));
        assert_eq!(receiver.repeats.other, OtherContent::default());
        assert!(!receiver.takes(0, 1, 0, &["edited"]));
        assert_eq!(receiver.repeats.other.repeats, 1);
        // After another edit the position has more parts.
        assert!(!receiver.takes(0, 0, 3, &["x"]));
        assert!(!receiver.takes(1, 2, 3, &["y"]));
        // Parts in any order, and then the whole position in one part.
        let mut receiver = Receiver::new();
        assert!(receiver.takes(2, 3, 3 + 4, &["z"]));
        assert!(receiver.takes(0, 0, 3, &["x"]));
        assert!(!receiver.takes(0, 0, 3, &["x"]));
        assert!(receiver.takes(1, 0, 4, &["y"]));
        assert!(!receiver.takes(2, 3, 3 + 4, &["z"]));
        assert!(!receiver.takes(0, 1, 0, &["edited"]));
        assert_eq!(receiver.repeats.other, OtherContent::default());
    }

    #[test]
    fn nothing_is_lost_if_a_position_is_divided_differently_after_some_parts_were_stored() {
        let mut receiver = Receiver::new();
        assert!(receiver.takes(0, 0, 3, &["x"]));
        // The last part of the second attempt arrives first. It does not complete the first part of the first attempt.
        assert!(receiver.takes(1, 2, 8, &["y"]));
        assert!(receiver.takes(0, 0, 8, &["edited"]));
        assert_eq!(receiver.repeats.other.stored, 1);
        assert!(!receiver.takes(0, 0, 8, &["edited"]));
        assert!(!receiver.takes(1, 2, 8, &["y"]));
        let mut receiver = Receiver::new();
        assert!(receiver.takes(0, 0, 3, &["x"]));
        assert!(receiver.takes(0, 1, 0, &["edited"]));
    }

    #[test]
    fn a_restart_restores_the_parts_of_positions_from_their_records() {
        let disk = SimulatedDisk::new(1);
        let directory = directory(&disk);
        let mut receiver = Receiver::new();
        let mut records = Vec::new();
        for (part, parts, sum) in [(0, 0, 3), (1, 2, 3)] {
            let id = PartId {
                channel: 7,
                sink: "out",
                position: Position { epoch: 1, seq: 5 },
                received: Time(9),
                flow: 0,
                part,
                parts,
                sum,
            };
            let mark = u64::from(parts) << 32 | u64::from(sum);
            let (key, seconds) = (receiver.repeats.part_key(&id), 0);
            records.push(IdRecord::Part { key, mark, seconds });
        }
        receiver
            .repeats
            .write_file(&directory, 1, &records)
            .unwrap();
        let read = receiver.repeats.read_file(&directory, 1).unwrap().unwrap();
        assert_eq!(read, records);
        for record in &read {
            receiver.repeats.window.restore(record);
        }
        assert!(!receiver.takes(0, 1, 0, &["edited"]));
    }

    #[test]
    fn id_files_are_removed_after_their_ids_have_left_the_window() {
        let disk = SimulatedDisk::new(1);
        let directory = directory(&disk);
        let mut repeats = Repeats::new(directory.channel, Dedupe::default());
        for segment in 1..=2 {
            let batch = batch(segment, 10);
            let Some(Origin::Chunk(chunk)) = batch.origins.first() else {
                panic!("a batch has a chunk")
            };
            let admitted = repeats.admit(chunk, 5, &mut GroupKeys::default());
            let Admission::New(Some(id)) = admitted else {
                panic!("it is new")
            };
            repeats.window.keep(repeats.window.end());
            let again = repeats.admit(chunk, 5, &mut GroupKeys::default());
            assert!(matches!(again, Admission::Kept));
            repeats.write_file(&directory, segment, &[id]).unwrap();
            assert_eq!(
                repeats.read_file(&directory, segment).unwrap(),
                Some(vec![id])
            );
        }
        let files = || names(&disk).iter().filter(|n| n.ends_with(".ids")).count();
        repeats.remove_old_files(&directory).unwrap();
        assert_eq!(files(), 2);
        assert!(repeats.forget_oldest_file(&directory).unwrap());
        assert_eq!((files(), repeats.window.evicted_young()), (1, 1));
    }
}
