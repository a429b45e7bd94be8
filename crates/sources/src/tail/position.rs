//! How far a file was read, and how far it is settled.
//!
//! `run.rs` reads the settled position from [`Tracked`] when it stores the positions of all files. A position is a mark: an
//! offset and a checksum of the bytes before it.

use std::{fs, io, sync::Arc};

use millstream_pipeline::delivery::{Receipt, Unsettled};
use millstream_record::FileId;

use super::{
    heads::Heads,
    identity::{HEAD_BYTES_MAX, Mark, file_id, read_file_id},
    signal::StoreSignal,
    tracked::Tracked,
};
use crate::flight::Flight;

/// The position of one reader.
pub(super) struct Position {
    tracked: Arc<Tracked>,
    heads: Heads,
    signal: Arc<StoreSignal>,
    /// The identity of the file. It is determined when the first batch is sent.
    id: Option<FileId>,
    /// The identity by the bytes that were read at the start of the file, which may have been overwritten since.
    read_id: Option<FileId>,
    /// How often the inode got new content: after each truncation, the file counts as another one.
    generation: u16,
    /// Where the next batch begins.
    next: Mark,
    /// The batches in flight before `next`.
    flight: Flight<Mark>,
}

impl Position {
    /// Starts at `next`. `generation` is the number of contents that the inode held before.
    pub(super) fn new(
        tracked: Arc<Tracked>,
        heads: Heads,
        signal: Arc<StoreSignal>,
        generation: u16,
        next: Mark,
    ) -> Self {
        Self {
            tracked,
            heads,
            signal,
            id: None,
            read_id: None,
            generation,
            next,
            flight: Flight::new(next),
        }
    }

    /// Where the next batch begins.
    pub(super) fn next(&self) -> Mark {
        self.next
    }

    /// Everything before this mark is settled.
    pub(super) fn settled(&self) -> Mark {
        self.flight.settled()
    }

    /// Whether everything that was read is settled.
    pub(super) fn is_settled(&self) -> bool {
        self.flight.settled() == self.next
    }

    /// The identity of the file. None if it is not determined yet.
    pub(super) fn id(&self) -> Option<FileId> {
        self.id
    }

    /// The identity of the file. Determines it from the first line of `file` if necessary.
    pub(super) fn identify(&mut self, file: Option<&fs::File>) -> io::Result<FileId> {
        if let Some(id) = self.id {
            return Ok(id);
        }
        let id = self.identity(file.ok_or(io::ErrorKind::NotFound)?)?;
        self.adopt(id);
        Ok(id)
    }

    /// The identity of the file. If it is not determined yet, returns the identity that [`Position::identify`] would determine
    /// now.
    pub(super) fn identity(&self, file: &fs::File) -> io::Result<FileId> {
        match self.id.or(self.read_id) {
            Some(id) => Ok(id),
            None => read_file_id(file, self.tracked.inode, self.generation),
        }
    }

    /// Notes that the file begins with `start`, if it holds the part of the first line that an identity covers.
    pub(super) fn begins_with(&mut self, start: &[u8]) {
        let covered = &start[..start.len().min(HEAD_BYTES_MAX)];
        let is_whole = covered.len() == HEAD_BYTES_MAX || covered.contains(&b'\n');
        self.read_id = is_whole.then(|| file_id(self.tracked.inode, self.generation, covered));
    }

    /// Sets the identity of the file, and publishes it with the position at which reading begins.
    pub(super) fn adopt(&mut self, id: FileId) {
        self.id = Some(id);
        let mut state = self.tracked.state();
        state.settled = Some((id, self.flight.settled()));
        state.advance(self.next);
        drop(state);
        self.heads.put(&id, &self.tracked);
        self.signal.set_urgent();
    }

    /// Continues at `mark`, with nothing in flight.
    pub(super) fn resume_at(&mut self, mark: Mark) {
        self.next = mark;
        self.flight = Flight::new(mark);
    }

    /// Notes that a batch that ends at `mark` was sent.
    pub(super) fn sent(&mut self, receipt: Receipt, mark: Mark) {
        self.flight.push(receipt, mark);
        self.advance(mark);
    }

    /// Moves to `mark` without sending anything.
    pub(super) fn skip(&mut self, mark: Mark) {
        self.flight.skip(mark);
        self.advance(mark);
    }

    fn advance(&mut self, mark: Mark) {
        self.next = mark;
        self.tracked.state().advance(mark);
    }

    /// Checks the receipts (the answers of the channel) of the batches in flight, and publishes how far the file is settled.
    /// Fails if a batch was dropped.
    pub(super) fn collect(&mut self) -> Result<(), Unsettled> {
        if self.flight.collect()? {
            self.publish();
        }
        Ok(())
    }

    /// Waits for the receipts of all batches in flight. Fails if a batch was dropped.
    pub(super) async fn land(&mut self) -> Result<(), Unsettled> {
        self.flight.land().await
    }

    /// Waits for the receipt of the oldest batch in flight. Never returns if no batch is in flight.
    pub(super) async fn answered(&mut self) {
        self.flight.answered().await;
    }

    /// Whether the maximum number of batches is in flight. If so, a receipt must arrive before the next batch is sent.
    pub(super) fn is_full(&self) -> bool {
        self.flight.is_full()
    }

    /// Whether consumers should settle the next batch early, so that the reader does not have to wait.
    pub(super) fn is_half_full(&self) -> bool {
        self.flight.is_half_full()
    }

    /// Publishes how far the file is settled, so that `run.rs` stores it.
    pub(super) fn publish(&self) {
        let Some(id) = self.id else { return };
        let mark = self.flight.settled();
        let before = self.tracked.state().settled.replace((id, mark));
        if mark.offset > 0 && before.is_none_or(|(_, before)| before.offset == 0) {
            // Until a mark is stored, a copy of the file cannot be recognized by its content.
            self.signal.set_urgent();
        }
        self.signal.moved();
    }

    /// Starts at the first byte, with the next generation, because the inode holds another content.
    pub(super) fn begin_anew(&mut self) {
        self.publish();
        self.tracked.state().replace();
        self.signal.set_urgent();
        self.signal.moved();
        self.generation = self.generation.wrapping_add(u16::from(self.id.is_some()));
        self.id = None;
        self.read_id = None;
        self.resume_at(Mark::default());
    }
}

#[cfg(test)]
mod tests {
    use millstream_pipeline::{delivery, meters::Meter};

    use super::{super::identity::Stat, *};

    #[tokio::test]
    async fn the_settled_position_is_published_and_a_new_content_gets_another_generation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, "one\ntwo\n").unwrap();
        let file = fs::File::open(&path).unwrap();
        let tracked = Tracked::new(Stat::of(&file).unwrap().inode, path, None);
        let signal = Arc::new(StoreSignal::default());
        let mut position = Position::new(
            tracked.clone(),
            Heads::default(),
            signal.clone(),
            0,
            Mark::default(),
        );
        assert!(position.identify(None).is_err(), "no file, no identity");
        let id = position.identify(Some(&file)).unwrap();
        assert!(signal.is_urgent(), "its first mark is to be stored");
        let mark = Mark::read(&file, 4).unwrap().unwrap();
        let (token, receipt) = delivery::receipt(false, 0, Meter::default());
        position.sent(receipt, mark);
        assert_eq!(position.next(), mark);
        assert!(!position.is_settled());
        token.settle();
        position.land().await.unwrap();
        position.publish();
        assert_eq!(tracked.state().settled, Some((id, mark)));
        position.begin_anew();
        assert_eq!(position.next(), Mark::default());
        assert_eq!(tracked.state().before(), 4);
        assert_ne!(position.identify(Some(&file)).unwrap(), id);
    }
}
