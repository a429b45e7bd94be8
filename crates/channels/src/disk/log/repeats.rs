//! Recognizes repeated chunks: by the window of chunk ids in memory, and by id files, which preserve the window when segments are released
//! and across restarts.

use std::collections::{HashSet, VecDeque};

use millstream_record::{ChunkOrigin, Origin};

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
        }
    }

    /// Looks up a chunk and adds its id if it is new. `group` holds the keys of the group that the chunk belongs to.
    pub(super) fn admit(
        &mut self,
        chunk: &ChunkOrigin,
        seconds: u32,
        group: &mut GroupKeys,
    ) -> Admission {
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

#[cfg(test)]
mod tests {
    use millstream_testkit::SimulatedDisk;

    use super::*;
    use crate::disk::log::tests::{batch, directory, names};

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
