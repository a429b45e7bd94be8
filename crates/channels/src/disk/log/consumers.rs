//! Who reads a channel: attaching a reader, and forgetting a consumer that is gone.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    task::Waker,
};

use millstream_pipeline::channel;
use millstream_record::{Pool, Position, Time};

use super::{
    Behind, Error, Reader, Skipped, Then, Unclaimed, Watch,
    claims::Claims,
    commit::Log,
    cursor::Cursor,
    index::{Consumer, State},
};

/// Names of consumers are names of nodes; they stand in file names.
const NAME_BYTES_MAX: usize = 200;

impl Log {
    /// Attaches the consumer `name`. A new one gets a cursor and begins at the oldest frame that is there.
    pub fn reader(&self, name: &str, behind: Behind, pool: Pool) -> Result<Reader, Error> {
        check_name(name)?;
        let known = self.index.lock().consumers.contains_key(name);
        if !known {
            self.make_cursor(name)?;
        }
        let mut state = self.index.lock();
        let consumer = state
            .consumers
            .get_mut(name)
            .filter(|consumer| consumer.taken.is_none())
            .ok_or_else(|| Error::Consumer(name.to_owned()))?;
        consumer.behind = behind;
        consumer.taken = Some(consumer.position);
        let position = consumer.position;
        let cursor = Arc::clone(&consumer.cursor);
        drop(state);
        let floor = {
            let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
            // Only `forget` asks for it. A disk that refuses this refuses the next commit, too, which tells.
            let _ = cursor.set_configured(true);
            cursor.floor()
        };
        Ok(Reader {
            index: Arc::clone(&self.index),
            _lock: Arc::clone(&self.lock),
            channel: self.channel,
            name: name.to_owned(),
            cursor,
            floor,
            pool,
            hot_bytes: self.options.hot_bytes,
            position,
            place: None,
            ready: VecDeque::new(),
            damaged: None,
            frame_bytes: 0,
            skips: behind.then == Then::Skip,
            in_flight: VecDeque::new(),
        })
    }

    /// Notes that no sink reads for the consumers without a reader: they may be forgotten.
    pub fn note_gone(&self) {
        let state = self.index.lock();
        let gone = state.consumers.values().filter(|c| c.taken.is_none());
        let cursors: Vec<_> = gone.map(|gone| Arc::clone(&gone.cursor)).collect();
        drop(state);
        for cursor in cursors {
            let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
            // As above.
            let _ = cursor.set_configured(false);
        }
    }

    /// Counts from now on what is kept and has a tag that none of these consumers takes.
    pub fn count_unclaimed(&mut self, consumers: &[channel::Consumer]) {
        self.index.lock().claims = Claims::of(consumers);
    }

    /// Records that were kept since the last call and that no consumer takes.
    pub fn take_unclaimed(&mut self) -> Option<Unclaimed> {
        self.index.lock().claims.take()
    }

    /// The consumers of the channel and what they have settled; all of them hold its segments.
    pub fn consumers(&self) -> Vec<(String, Position)> {
        let state = self.index.lock();
        let consumers = state.consumers.iter();
        consumers
            .map(|(name, consumer)| (name.clone(), consumer.position))
            .collect()
    }

    /// Bytes that are kept and that this consumer has not settled, about; 0 for one that is not known.
    pub fn backlog_bytes(&self, name: &str) -> u64 {
        let state = self.index.lock();
        let consumer = state.consumers.get(name);
        consumer.map_or(0, |consumer| state.bytes_after(consumer.position))
    }

    /// When the oldest batch that a consumer has not settled was kept, at the earliest; `None` if all is settled.
    pub fn oldest(&self) -> Option<Time> {
        let state = self.index.lock();
        let positions = state.consumers.values().map(|consumer| consumer.position);
        state.kept_since(positions.min()?)
    }

    /// Forgets a consumer that is not attached: what only it has not settled is given up.
    pub fn forget(&mut self, name: &str) -> Result<(), Error> {
        let mut state = self.index.lock();
        match state.consumers.get(name) {
            Some(consumer) if consumer.taken.is_none() => {}
            _ => return Err(Error::Consumer(name.to_owned())),
        }
        let path = self.directory.join(cursor_name(name));
        let failed = |error| Error::disk("removing a cursor", &path, error);
        self.disk.remove(&path).map_err(failed)?;
        self.disk.sync_directory(&self.directory).map_err(failed)?;
        state.consumers.remove(name);
        Ok(())
    }

    /// Calls `waker` when a consumer has settled something, so that room may have come back.
    pub fn wake_on_settle(&self, waker: Waker) {
        self.index.lock().writer = Some(waker);
    }

    /// Drops what every consumer has settled. [`Log::commit`] does it too.
    pub fn drop_settled(&mut self) -> Result<(), Error> {
        self.alive()?;
        self.collect()
    }

    /// Bytes of all segments that are part of the log.
    pub fn used_bytes(&self) -> u64 {
        self.index.used_bytes()
    }

    /// Bytes that all segments may take together.
    pub fn size_max(&self) -> u64 {
        self.options.size_max
    }

    /// How many readers are attached.
    pub fn readers(&self) -> usize {
        let state = self.index.lock();
        let attached = state.consumers.values();
        attached.filter(|consumer| consumer.taken.is_some()).count()
    }

    /// What others than the writer may ask.
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.index))
    }

    fn make_cursor(&self, name: &str) -> Result<(), Error> {
        let position = before_oldest(&self.index.lock());
        let path = self.directory.join(cursor_name(name));
        let failed = |error| Error::disk("making a cursor", &path, error);
        // Left by a crash, or by a full disk, in the middle of this.
        match self.disk.remove(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
        let cursor = Cursor::create(&*self.disk, &path, self.channel, position).map_err(failed)?;
        self.disk.sync_directory(&self.directory).map_err(failed)?;
        let mut state = self.index.lock();
        state.consumers.insert(name.to_owned(), consumer(cursor));
        Ok(())
    }
}

/// A consumer that is not attached.
pub(super) fn consumer(cursor: Cursor) -> Consumer {
    Consumer {
        position: cursor.position,
        cursor: Arc::new(Mutex::new(cursor)),
        taken: None,
        behind: Behind::default(),
        tags: None,
        skipped_to: Position::default(),
        skipped: Skipped::default(),
        waker: None,
    }
}

/// The name of the cursor file of a consumer.
pub(super) fn cursor_name(consumer: &str) -> String {
    format!("{consumer}.cursor")
}

fn before_oldest(state: &State) -> Position {
    state
        .segments
        .front()
        .map_or(state.kept, |(segment, _)| Position {
            epoch: segment.first.epoch,
            seq: segment.first.seq.saturating_sub(1),
        })
}

fn check_name(name: &str) -> Result<(), Error> {
    let good =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(good) {
        return Err(Error::Name(name.to_owned()));
    }
    Ok(())
}
