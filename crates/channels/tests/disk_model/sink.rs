//! A sink that survives every crash with what it has committed, and its position with it.

use std::collections::HashMap;

use millstream_channels::disk::log::{Item, Lost, Reader};
use millstream_record::{Batch, Position};
use millstream_testkit::Random;

pub struct Sink {
    pub name: &'static str,
    /// It commits its position with its data; else the cursor is all there is.
    pub owns_position: bool,
    /// What it has committed, for ever.
    pub lines: Vec<String>,
    pub position: Option<Position>,
    /// Taken and not committed.
    taken: Vec<String>,
    taken_to: Option<Position>,
    pub reader: Option<Reader>,
    pub lost: Vec<Lost>,
}

/// What stands at every position that was ever seen.
pub type Seen = HashMap<Position, Batch>;

impl Sink {
    pub fn new(name: &'static str, owns_position: bool) -> Self {
        Self {
            name,
            owns_position,
            lines: Vec::new(),
            position: None,
            taken: Vec::new(),
            taken_to: None,
            reader: None,
            lost: Vec::new(),
        }
    }

    /// The reader is attached again, after a start.
    pub fn attach(&mut self, mut reader: Reader) {
        if let Some(position) = self.position.filter(|_| self.owns_position) {
            reader.seek(position);
        }
        self.reader = Some(reader);
    }

    /// The process is gone.
    pub fn crash(&mut self) {
        self.reader = None;
        self.taken.clear();
        self.taken_to = None;
    }

    /// Takes up to `count` batches; returns how many came.
    pub fn take(&mut self, count: u64, seen: &mut Seen) -> usize {
        let Some(reader) = &mut self.reader else {
            return 0;
        };
        let mut took = 0;
        for _ in 0..count {
            match reader.read() {
                Ok(Some(Item::Batch(position, batch))) => {
                    check_same(seen, position, &batch);
                    self.taken.extend(lines_of(&batch));
                    self.taken_to = Some(position);
                    took += 1;
                }
                Ok(Some(Item::Lost(lost))) => self.lost.push(lost),
                Ok(None) | Err(_) => break,
            }
        }
        took
    }

    /// Commits what was taken, and mostly the cursor behind it. A cursor that was left behind follows in a later call, or it
    /// would hold a full channel for ever.
    pub fn commit(&mut self, random: &mut Random) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        if let Some(position) = self.taken_to.take() {
            self.lines.append(&mut self.taken);
            self.position = Some(position);
        }
        let committed = self.position.filter(|position| *position <= reader.kept());
        if let Some(position) = committed
            && random.chance(7, 8)
        {
            // A crash in here is one of the disk's; the sink has committed already.
            let _ = reader.commit(position);
        }
    }
}

/// A position never stands for two contents.
pub fn check_same(seen: &mut Seen, position: Position, batch: &Batch) {
    if let Some(before) = seen.get(&position) {
        assert_eq!(before.body, batch.body, "two contents at {position}");
        assert_eq!(before.tag, batch.tag, "two tags at {position}");
        assert_eq!(before.received, batch.received, "two times at {position}");
        assert_eq!(before.count, batch.count, "two counts at {position}");
        assert_eq!(before.origins, batch.origins, "two origins at {position}");
        assert_eq!(
            before.values, batch.values,
            "two sets of values at {position}"
        );
    } else {
        let copy = Batch {
            body: bytes::Bytes::copy_from_slice(&batch.body),
            ..batch.clone()
        };
        seen.insert(position, copy);
    }
}

pub fn lines_of(batch: &Batch) -> Vec<String> {
    let lines: Vec<String> = String::from_utf8(batch.body.to_vec())
        .unwrap()
        .lines()
        .map(ToOwned::to_owned)
        .collect();
    assert_eq!(lines.len(), batch.count as usize);
    lines
}
