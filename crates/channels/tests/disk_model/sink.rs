//! A sink. Its committed lines and its position survive every crash.

use std::collections::HashMap;

use millstream_channels::disk::log::{Item, Lost, Reader};
use millstream_record::{Batch, Position};
use millstream_testkit::Random;

pub struct Sink {
    pub name: &'static str,
    /// Whether the sink commits its position with its data; otherwise only the cursor holds the position.
    pub owns_position: bool,
    /// The committed lines.
    pub lines: Vec<String>,
    pub position: Option<Position>,
    /// Lines that it holds and has not committed.
    held: Vec<String>,
    held_to: Option<Position>,
    pub reader: Option<Reader>,
    pub lost: Vec<Lost>,
}

/// The content of every position that was ever seen.
pub type Seen = HashMap<Position, Batch>;

impl Sink {
    pub fn new(name: &'static str, owns_position: bool) -> Self {
        Self {
            name,
            owns_position,
            lines: Vec::new(),
            position: None,
            held: Vec::new(),
            held_to: None,
            reader: None,
            lost: Vec::new(),
        }
    }

    /// Attaches the reader again after a start.
    pub fn attach(&mut self, mut reader: Reader) {
        if let Some(position) = self.position.filter(|_| self.owns_position) {
            reader.seek(position);
        }
        self.reader = Some(reader);
    }

    /// Forgets everything that was not committed, as a crash of the process does.
    pub fn crash(&mut self) {
        self.reader = None;
        self.held.clear();
        self.held_to = None;
    }

    /// Reads up to `count` batches; returns how many there were.
    pub fn read(&mut self, count: u64, seen: &mut Seen) -> usize {
        let Some(reader) = &mut self.reader else {
            return 0;
        };
        let mut count_read = 0;
        for _ in 0..count {
            match reader.read() {
                Ok(Some(Item::Batch(position, batch))) => {
                    check_same(seen, position, &batch);
                    self.held.extend(lines_of(&batch));
                    self.held_to = Some(position);
                    count_read += 1;
                }
                Ok(Some(Item::Lost(lost))) => self.lost.push(lost),
                Ok(None) | Err(_) => break,
            }
        }
        count_read
    }

    /// Commits the lines that the sink holds, and in most cases the cursor. A cursor that was not committed is committed by a later call,
    /// because otherwise a full channel would stay full.
    pub fn commit(&mut self, random: &mut Random) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        if let Some(position) = self.held_to.take() {
            self.lines.append(&mut self.held);
            self.position = Some(position);
        }
        let committed = self.position.filter(|position| *position <= reader.kept());
        if let Some(position) = committed
            && random.chance(7, 8)
        {
            // If the disk crashes here, the sink has already committed.
            let _ = reader.commit(position);
        }
    }
}

/// Checks that a position always has the same content.
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
