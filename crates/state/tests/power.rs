//! Every kind of state on the simulated disk: power cuts, failing calls, a full disk, flipped bits, torn ends.

#![allow(clippy::unwrap_used, reason = "what cannot be done fails the test")]

use std::{path::PathBuf, sync::Arc};

use millstream_state::{
    Alternating, Begun, Error, Format, Journal, JournalFormat, Slots, Stored, WholeFile,
};
use millstream_sys::disk::{Disk, Open};
use millstream_testkit::trial::{DIRECTORY, DurableState, Trial};

const FORMAT: Format = Format {
    magic: b"MILLTST\0",
    version: 2,
    bytes_max: 1 << 20,
    remedy: "remove it",
};

fn path() -> PathBuf {
    PathBuf::from(DIRECTORY).join("number")
}

/// A number as a body of 1200 bytes, so that it spans several sectors.
fn body(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(150)
}

fn number(body: &[u8]) -> u64 {
    let number = u64::from_le_bytes(*body.first_chunk().unwrap());
    assert_eq!(body, self::body(number), "a body that was never stored");
    number
}

fn text<T>(result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

struct Whole(WholeFile, u64);

impl DurableState for Whole {
    fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
        let file = WholeFile::new(disk, path(), FORMAT);
        let body = text(file.load(|_| None))?;
        Ok(Self(file, body.map_or(0, |body| number(&body))))
    }

    fn number(&self) -> u64 {
        self.1
    }

    fn advance(&mut self, number: u64) -> Result<(), String> {
        text(self.0.store(&body(number)))?;
        self.1 = number;
        Ok(())
    }
}

#[test]
fn a_whole_file_is_the_old_or_the_new_one_after_every_crash() {
    Trial::default().run::<Whole>();
}

struct InSlots(Slots, u64);

impl DurableState for InSlots {
    fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
        let directory = path().parent().unwrap().to_owned();
        disk.create_directory(&directory)
            .and_then(|()| disk.sync_directory(directory.parent().unwrap()))
            .map_err(|error| error.to_string())?;
        if disk.metadata(&path()).is_err() {
            let slots = text(Slots::create(&*disk, &path(), FORMAT, &body(0)))?;
            return Ok(Self(slots, 0));
        }
        let (slots, stored) = text(Slots::open(&*disk, &path(), FORMAT, Open::Write, |_| None))?;
        match stored {
            Stored::Body(body) => Ok(Self(slots, number(&body))),
            Stored::Nothing => Ok(Self(slots, 0)),
            Stored::Damaged => Err("damaged".to_owned()),
        }
    }

    fn number(&self) -> u64 {
        self.1
    }

    fn advance(&mut self, number: u64) -> Result<(), String> {
        text(self.0.store(&body(number)))?;
        self.1 = number;
        Ok(())
    }
}

#[test]
fn slots_hold_what_was_stored_last_and_need_no_space() {
    Trial {
        needs_no_space: true,
        ..Trial::default()
    }
    .run::<InSlots>();
}

struct Noted(InSlots);

impl DurableState for Noted {
    fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
        InSlots::open(disk).map(Self)
    }

    fn number(&self) -> u64 {
        self.0.number()
    }

    fn advance(&mut self, number: u64) -> Result<(), String> {
        for _ in 0..3 {
            text(self.0.0.note(&body(number)))?;
        }
        self.0.advance(number)
    }
}

#[test]
fn a_noted_body_never_destroys_the_one_that_was_stored() {
    Trial::default().run::<Noted>();
}

/// A journal that is replaced when it has more than four records.
struct Journaled<const COPIED: bool> {
    journal: Journal,
    number: u64,
    records: u64,
    is_synced: bool,
}

impl<const COPIED: bool> Journaled<COPIED> {
    fn replace(&mut self, number: u64) -> Result<(), String> {
        let mut records = self.journal.replacement();
        records.add(&[&body(number)]);
        text(self.journal.replace(records))?;
        (self.number, self.records) = (number, 1);
        Ok(())
    }
}

impl<const COPIED: bool> DurableState for Journaled<COPIED> {
    fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
        let format = JournalFormat {
            format: FORMAT,
            record_bytes_max: 1 << 16,
            copied: COPIED,
        };
        let (journal, recovered) = text(Journal::open(disk, path(), format, |_| None))?;
        let records = recovered.unwrap_or_default().records;
        let numbers = records.iter().map(|record| number(&record.body));
        let number = numbers.fold(0, |last, number| {
            assert!(last <= number, "records out of order");
            number
        });
        let mut opened = Self {
            journal,
            number,
            records: 0,
            is_synced: true,
        };
        opened.replace(number)?;
        Ok(opened)
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn advance(&mut self, number: u64) -> Result<(), String> {
        if self.journal.needs_replace() || self.records > 4 {
            return self.replace(number);
        }
        let body = body(number);
        let (head, tail) = body.split_at(8);
        let at = text(self.journal.append(&[head, tail]))?;
        assert_eq!(text(self.journal.read_at(at, body.len()))?, body);
        if self.is_synced {
            text(self.journal.sync())?;
        }
        (self.number, self.records) = (number, self.records + 1);
        Ok(())
    }
}

#[test]
fn a_journal_holds_every_record_that_was_synced() {
    Trial::default().run::<Journaled<false>>();
}

#[test]
fn damage_to_a_journal_or_to_its_copy_loses_nothing() {
    Trial {
        has_copy: true,
        ..Trial::default()
    }
    .run::<Journaled<true>>();
}

struct InTurns(Alternating, u64);

impl DurableState for InTurns {
    fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
        let (mut journal, begun) = text(Alternating::open(&*disk, &path(), FORMAT, 8192, true))?;
        let bodies = match begun {
            Begun::Nothing => Vec::new(),
            Begun::Records(bodies) => bodies,
            Begun::Damaged(why, _) => return Err(why),
        };
        let number = bodies.last().map_or(0, |body| number(body));
        text(journal.begin(&body(number)))?;
        Ok(Self(journal, number))
    }

    fn number(&self) -> u64 {
        self.1
    }

    fn advance(&mut self, number: u64) -> Result<(), String> {
        let body = body(number);
        text(self.0.append(&body, || body.clone()))?;
        self.1 = number;
        Ok(())
    }
}

#[test]
fn files_that_take_turns_hold_what_was_appended_last_and_need_no_space() {
    Trial {
        needs_no_space: true,
        ..Trial::default()
    }
    .run::<InTurns>();
}
