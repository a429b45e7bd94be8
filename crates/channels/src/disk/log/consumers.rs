//! The consumers of a channel: the settled position of each, the progress of its reader, and its cursor file.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    task::Waker,
};

use millstream_pipeline::tags::TagFilter;
use millstream_record::{Position, Time};

use super::{Behind, Error, Skipped, cursor::Cursor, directory::LogDirectory};

/// The longest name of a consumer, in bytes: it is part of a file name.
const NAME_BYTES_MAX: usize = 200;

/// A consumer: its cursor, and a reader if one is attached.
pub(super) struct Consumer {
    pub(super) cursor: Arc<Mutex<Cursor>>,
    /// Everything at or below this position is settled or skipped.
    pub(super) position: Position,
    /// Everything at or below this position was handed out by the attached reader; `None` if no reader is attached.
    pub(super) reader_at: Option<Position>,
    pub(super) behind: Behind,
    /// The tags that the consumer takes; `None`: all tags.
    pub(super) tags: Option<TagFilter>,
    /// The end of the last skip. Every batch at or below this position was skipped, or was settled before the skip, so the reader does
    /// not hand it out again.
    pub(super) skipped_to: Position,
    /// Before this time, no unsettled batch of the consumer exceeds the maximum age.
    pub(super) look_at: Time,
    /// The records and bytes that were skipped since the start.
    pub(super) skipped: Skipped,
    /// Wakes the reader.
    pub(super) waker: Option<Waker>,
}

impl Consumer {
    /// A consumer without a reader.
    fn new(cursor: Cursor) -> Self {
        Self {
            position: cursor.position,
            cursor: Arc::new(Mutex::new(cursor)),
            reader_at: None,
            behind: Behind::default(),
            tags: None,
            skipped_to: Position::default(),
            look_at: Time::default(),
            skipped: Skipped::default(),
            waker: None,
        }
    }
}

/// All consumers by name. A segment is released only when every consumer has settled it.
#[derive(Default)]
pub(super) struct Consumers(BTreeMap<String, Consumer>);

impl Consumers {
    pub(super) fn insert(&mut self, name: &str, cursor: Cursor) {
        self.0.insert(name.to_owned(), Consumer::new(cursor));
    }

    pub(super) fn get(&self, name: &str) -> Option<&Consumer> {
        self.0.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Consumer> {
        self.0.get_mut(name)
    }

    /// The consumers without a reader.
    pub(super) fn unread(&self) -> Vec<String> {
        let unread = self
            .iter()
            .filter(|(_, consumer)| consumer.reader_at.is_none());
        unread.map(|(name, _)| name.clone()).collect()
    }

    /// All consumers with their settled positions.
    pub(super) fn positions(&self) -> Vec<(String, Position)> {
        let all = self.iter();
        all.map(|(name, it)| (name.clone(), it.position)).collect()
    }

    /// Everything that was skipped for a consumer.
    pub(super) fn skipped(&self, name: &str) -> Skipped {
        let consumer = self.get(name);
        consumer.map_or_else(Skipped::default, |consumer| consumer.skipped)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Consumer)> {
        self.0.iter()
    }

    /// How many readers are attached.
    pub(super) fn attached(&self) -> usize {
        let consumers = self.0.values();
        consumers.filter(|each| each.reader_at.is_some()).count()
    }

    /// Attaches a reader. Fails if the consumer is unknown or already has a reader.
    pub(super) fn attach(&mut self, name: &str, behind: Behind) -> Result<&Consumer, Error> {
        match self.0.get_mut(name) {
            Some(consumer) if consumer.reader_at.is_none() => {
                consumer.behind = behind;
                consumer.look_at = Time::default();
                consumer.reader_at = Some(consumer.position);
                Ok(consumer)
            }
            _ => Err(Error::Consumer(name.to_owned())),
        }
    }

    /// The consumer that is furthest behind.
    pub(super) fn slowest(&self) -> Option<&String> {
        let slowest = self.0.iter().min_by_key(|(_, each)| each.position);
        slowest.map(|(name, _)| name)
    }

    /// The lowest and the highest settled position; `None` if there is no consumer.
    pub(super) fn range(&self) -> Option<(Position, Position)> {
        let positions = self.0.values().map(|consumer| consumer.position);
        Some((positions.clone().min()?, positions.max()?))
    }

    /// The position up to which every attached reader has handed out everything; `None` if no reader is attached.
    pub(super) fn lowest_reader(&self) -> Option<Position> {
        self.0.values().filter_map(|each| each.reader_at).min()
    }

    /// Forgets when each consumer has batches that are too old.
    pub(super) fn look_again(&mut self) {
        let consumers = self.0.values_mut();
        consumers.for_each(|each| each.look_at = Time::default());
    }

    pub(super) fn wake_readers(&mut self) {
        let wakers = self.0.values_mut().filter_map(|each| each.waker.take());
        wakers.for_each(Waker::wake);
    }

    /// Removes a consumer and its cursor file. Fails if the consumer has a reader.
    pub(super) fn forget(&mut self, name: &str, directory: &LogDirectory) -> Result<(), Error> {
        if self.get(name).is_none_or(|each| each.reader_at.is_some()) {
            return Err(Error::Consumer(name.to_owned()));
        }
        let path = directory.join(&cursor_name(name));
        let failed = |error| Error::disk("removing a cursor", &path, error);
        directory.disk.remove(&path).map_err(failed)?;
        directory.sync().map_err(failed)?;
        self.0.remove(name);
        Ok(())
    }

    /// Returns a function that marks the cursors of all consumers without a reader. The mark means that no sink is configured to read
    /// with the cursor. The caller runs the function after it has released the lock of the index.
    pub(super) fn note_unread(&self) -> impl FnOnce() + use<> {
        let unread = self.0.values().filter(|each| each.reader_at.is_none());
        let cursors: Vec<_> = unread.map(|each| Arc::clone(&each.cursor)).collect();
        move || {
            for cursor in cursors {
                let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
                // An error is ignored, because only the command `channel forget` reads this flag. If the disk is failing, the next commit
                // fails too, and that is reported.
                let _ = cursor.set_configured(false);
            }
        }
    }
}

/// Creates the cursor file of a new consumer that has settled everything up to `position`.
pub(super) fn create_cursor(
    directory: &LogDirectory,
    name: &str,
    position: Position,
) -> Result<Cursor, Error> {
    check_name(name)?;
    let path = directory.join(&cursor_name(name));
    Cursor::create(&*directory.disk, &path, directory.channel, position)
}

/// The name of the cursor file of a consumer.
pub(super) fn cursor_name(consumer: &str) -> String {
    format!("{consumer}.cursor")
}

fn check_name(name: &str) -> Result<(), Error> {
    let good =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
    let is_hidden = name.is_empty() || name.starts_with('.');
    if is_hidden || name.len() > NAME_BYTES_MAX || !name.bytes().all(good) {
        return Err(Error::Name(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use millstream_testkit::SimulatedDisk;

    use super::*;
    use crate::disk::log::tests::directory;

    #[test]
    fn a_consumer_has_at_most_one_reader_and_can_be_forgotten_without_one() {
        let directory = directory(&SimulatedDisk::new(1));
        let mut consumers = Consumers::default();
        for (name, seq) in [("fast", 9), ("slow", 4)] {
            let position = Position { epoch: 1, seq };
            let cursor = create_cursor(&directory, name, position).unwrap();
            consumers.insert(name, cursor);
        }
        assert_eq!(consumers.slowest().unwrap(), "slow");
        assert_eq!(consumers.lowest_reader(), None);
        consumers.attach("fast", Behind::default()).unwrap();
        assert!(consumers.attach("fast", Behind::default()).is_err());
        assert_eq!(consumers.lowest_reader().unwrap().seq, 9);
        assert!(consumers.forget("fast", &directory).is_err());
        consumers.forget("slow", &directory).unwrap();
        let (lowest, highest) = consumers.range().unwrap();
        assert_eq!((lowest.seq, highest.seq, consumers.attached()), (9, 9, 1));
        for name in ["", "../x", "..", ".x", "a/b"] {
            assert!(create_cursor(&directory, name, Position::default()).is_err());
        }
        assert!(create_cursor(&directory, "kept.input", Position::default()).is_ok());
    }
}
