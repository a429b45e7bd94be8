//! The mark of one path: a small file that says which positions were active when the process died.
//!
//! ```text
//! data_dir/probation/CONSUMER, 512 bytes, written whole:
//!   0  8  magic
//!   8 16  id of the channel
//!  24 12  no later position was handed out
//!  36 12  the position before the one that is active
//!  48  1  whether a position is active
//!  49 12  the position before the one that probably caused the last deaths
//!  61  4  the number of these deaths
//!  65  1  number of positions that were set aside and may be read again
//!  66  -  these positions, 12 bytes each
//! 500  4  CRC-32C of everything before
//! 511  1  evidence: the active position is the likely cause of the death
//! ```
//!
//! The file is written without a sync. So it survives the death of the process, whatever the cause, and a power cut may take or age it. A
//! power cut is not caused by a position, so that does no harm. A path that ends in an orderly way removes its file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use millstream_record::Position;
use millstream_sys::{checksum::crc32c, last_words::LastWords, private};

const MAGIC: &[u8; 8] = b"MSPROB\0\x01";
const BYTES: usize = 512;
const POSITION_BYTES: usize = 12;
/// The offset of the positions that were set aside.
const ASIDE_AT: usize = 66;
/// The largest number of positions that were set aside and are not settled yet.
const ASIDE_MAX: usize = 32;
const CHECKSUM_AT: usize = 500;
const EVIDENCE_AT: u64 = 511;
/// A position is noted as handed out together with this many positions after it, so that most batches cost no write.
const AHEAD: u64 = 256;

/// The mark of a path.
pub(super) struct Mark {
    words: LastWords,
    path: PathBuf,
    channel: u128,
    record: Record,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    upto: Position,
    after: Position,
    has_active: bool,
    suspect: Position,
    deaths: u32,
    aside: Vec<Position>,
}

impl Mark {
    /// Opens the mark of a consumer of `channel`. If an earlier run died while a position was active and there is evidence that
    /// this position was the cause, counts the death.
    pub(super) fn open(directory: &Path, consumer: &str, channel: u128) -> io::Result<Self> {
        private::create_dir_all(directory)?;
        let path = directory.join(consumer);
        let (words, found) = LastWords::open(&path)?;
        let mut record = Record::read(&found, channel).unwrap_or_default();
        if record.has_active && found.get(EVIDENCE_AT as usize) == Some(&1) {
            if record.suspect != record.after {
                (record.suspect, record.deaths) = (record.after, 0);
            }
            record.deaths += 1;
        }
        record.has_active = false;
        let mark = Self {
            words,
            path,
            channel,
            record,
        };
        mark.write()?;
        Ok(mark)
    }

    /// No later position was handed out.
    pub(super) fn upto(&self) -> Position {
        self.record.upto
    }

    /// Notes that a position is handed out. Returns the last position for which this note holds.
    pub(super) fn hand_out(&mut self, position: Position) -> io::Result<Position> {
        if position > self.record.upto {
            let seq = position.seq.saturating_add(AHEAD);
            self.record.upto = Position { seq, ..position };
            self.write()?;
        }
        Ok(self.record.upto)
    }

    /// Notes that the position after `after` is active. Returns the number of deaths in a row that it has probably caused.
    pub(super) fn begin(&mut self, after: Position) -> io::Result<u32> {
        self.record.after = after;
        self.record.has_active = true;
        self.write()?;
        match self.record.suspect == after {
            true => Ok(self.record.deaths),
            false => Ok(0),
        }
    }

    /// Notes that no position is active. `is_done`: the last one is done, so it has caused no death.
    pub(super) fn end(&mut self, is_done: bool) -> io::Result<()> {
        self.record.has_active = false;
        if is_done && self.record.suspect == self.record.after {
            self.record.deaths = 0;
        }
        self.write()
    }

    /// Notes that a position was set aside. If a later start reads it again, it is skipped.
    pub(super) fn set_aside(&mut self, position: Position) -> io::Result<()> {
        self.record.aside.push(position);
        self.end(true)
    }

    /// Whether the position was set aside.
    pub(super) fn is_aside(&self, position: Position) -> bool {
        self.record.aside.contains(&position)
    }

    /// Whether no further position can be set aside before one is settled.
    pub(super) fn is_full(&self) -> bool {
        self.record.aside.len() >= ASIDE_MAX
    }

    /// Forgets the positions up to `settled`, which are never read again.
    pub(super) fn settle(&mut self, settled: Position) -> io::Result<()> {
        let before = self.record.aside.len();
        self.record.aside.retain(|position| *position > settled);
        match before == self.record.aside.len() {
            true => Ok(()),
            false => self.write(),
        }
    }

    /// Notes evidence that the active position causes a death, if one follows.
    pub(super) fn suspect(&self) -> io::Result<()> {
        self.words.mark(EVIDENCE_AT)
    }

    /// Writes the record again, without evidence.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.write()
    }

    /// From now on, a death by a fault of this process is evidence.
    pub(super) fn arm(&self) {
        self.words.arm(EVIDENCE_AT);
    }

    /// Ends [`Mark::arm`].
    pub(super) fn disarm(&self) {
        self.words.disarm();
    }

    /// Removes the file: the path has ended in an orderly way.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }

    fn write(&self) -> io::Result<()> {
        self.words.write(&self.record.bytes(self.channel))
    }
}

impl Record {
    fn bytes(&self, channel: u128) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, MAGIC);
        put(8, &channel.to_le_bytes());
        put(24, &packed(self.upto));
        put(36, &packed(self.after));
        let aside = &self.aside[..self.aside.len().min(ASIDE_MAX)];
        put(48, &[u8::from(self.has_active)]);
        put(49, &packed(self.suspect));
        put(61, &self.deaths.to_le_bytes());
        put(65, &[aside.len() as u8]);
        for (number, position) in aside.iter().enumerate() {
            put(ASIDE_AT + number * POSITION_BYTES, &packed(*position));
        }
        let checksum = crc32c(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a record; `None` if the file belongs to another channel, is new, or was torn by a power cut.
    fn read(bytes: &[u8], channel: u128) -> Option<Self> {
        let checksum = bytes.get(CHECKSUM_AT..CHECKSUM_AT + 4)?;
        let is_whole = checksum == crc32c(&bytes[..CHECKSUM_AT]).to_le_bytes();
        let is_own = bytes[..8] == *MAGIC && bytes[8..24] == channel.to_le_bytes();
        let aside = ASIDE_AT..ASIDE_AT + usize::from(bytes[65]).min(ASIDE_MAX) * POSITION_BYTES;
        let record = Self {
            upto: unpacked(&bytes[24..36])?,
            after: unpacked(&bytes[36..48])?,
            has_active: bytes[48] == 1,
            suspect: unpacked(&bytes[49..61])?,
            deaths: u32::from_le_bytes(bytes[61..65].try_into().ok()?),
            aside: bytes[aside]
                .chunks(POSITION_BYTES)
                .filter_map(unpacked)
                .collect(),
        };
        (is_whole && is_own).then_some(record)
    }
}

fn packed(position: Position) -> [u8; POSITION_BYTES] {
    let mut bytes = [0; POSITION_BYTES];
    bytes[..4].copy_from_slice(&position.epoch.to_le_bytes());
    bytes[4..].copy_from_slice(&position.seq.to_le_bytes());
    bytes
}

fn unpacked(bytes: &[u8]) -> Option<Position> {
    Some(Position {
        epoch: u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?),
        seq: u64::from_le_bytes(bytes.get(4..)?.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> Position {
        Position { epoch: 3, seq }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_no_other_bytes_are() {
        let record = Record {
            upto: at(300),
            after: at(7),
            has_active: true,
            suspect: at(5),
            deaths: 2,
            aside: (0..ASIDE_MAX as u64).map(at).collect(),
        };
        let mut bytes = record.bytes(9);
        assert_eq!(Record::read(&bytes, 9), Some(record));
        assert_eq!(Record::read(&bytes, 8), None, "another channel");
        assert_eq!(Record::read(&bytes[..400], 9), None);
        assert_eq!(Record::read(&[], 9), None);
        bytes[30] ^= 1;
        assert_eq!(Record::read(&bytes, 9), None);
    }

    #[test]
    fn only_deaths_with_evidence_while_the_same_position_has_active_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Mark::open(&directory.path().join("probation"), "out", 5).unwrap();
        let dies_at = |after: u64, has_evidence: bool| {
            let mut mark = open();
            let deaths = mark.begin(at(after)).unwrap();
            if has_evidence {
                mark.suspect().unwrap();
            }
            deaths
        };
        assert_eq!(
            [dies_at(4, true), dies_at(4, false), dies_at(4, true)],
            [0, 1, 1]
        );
        // A death before the position begins, and one after a failure of the sink.
        drop(open());
        let mut mark = open();
        assert_eq!(mark.begin(at(4)).unwrap(), 2);
        mark.suspect().unwrap();
        mark.end(false).unwrap();
        assert_eq!(dies_at(4, true), 2);
        assert_eq!(dies_at(4, false), 3);
        assert_eq!(dies_at(5, true), 0, "another position");
        assert_eq!(dies_at(4, true), 0, "in a row");
        let mut mark = open();
        assert_eq!(mark.begin(at(4)).unwrap(), 1);
        mark.end(true).unwrap();
        assert_eq!(dies_at(4, true), 0, "it was done");
    }

    #[test]
    fn positions_that_were_set_aside_are_known_until_they_are_settled() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Mark::open(directory.path(), "out", 5).unwrap();
        let mut mark = open();
        assert_eq!(mark.hand_out(at(10)).unwrap(), at(10 + AHEAD));
        assert_eq!(mark.hand_out(at(200)).unwrap(), at(10 + AHEAD));
        mark.set_aside(at(4)).unwrap();
        mark.set_aside(at(6)).unwrap();
        let mut mark = open();
        assert_eq!(mark.upto(), at(10 + AHEAD));
        assert!(mark.is_aside(at(4)) && mark.is_aside(at(6)) && !mark.is_aside(at(5)));
        mark.settle(at(5)).unwrap();
        let mark = open();
        assert!(!mark.is_aside(at(4)) && mark.is_aside(at(6)));
        mark.remove();
        assert_eq!(open().upto(), Position::default());
    }
}
