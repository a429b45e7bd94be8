//! The journal recovers appended changes after many switches between its two files and after a crash at any step, and notices
//! damage.

use std::{io::IoSlice, path::Path, sync::Arc};

use millstream_record::{Position, Time};
use millstream_state::{Alternating, Begun};
use millstream_sys::disk::{Disk, Open};
use millstream_testkit::{Crash, Random, SimulatedDisk};

use crate::file::{
    journal,
    table::{Change, Head, Row, Table},
};

const DIRECTORY: &str = "/data/sinks/sink";

fn row(n: u64) -> Row {
    Row {
        path: format!("/out/{n}").into(),
        renamed: None,
        device: 1,
        inode: n,
        committed: 10 * n,
        records: n,
        since: Time(-5),
        head: Head::of(&n.to_le_bytes()),
    }
}

/// Returns the `n`th change in the history of a table.
fn change(n: u64) -> Change {
    let id = (n % 50) as u32;
    match n % 7 {
        0 | 1 => Change::Enter(id, row(n)),
        2 => Change::Grow(id, n, 2 * n, Head::of(b"head")),
        3 => Change::Rename(id, format!("/out/{n}.rotated").into()),
        4 => Change::Leave(id),
        5 => Change::Commit(7, Some(Position { epoch: 1, seq: n })),
        _ => Change::Number(n),
    }
}

/// Appends the changes `from..to`; stops at the first failure. Returns the number of the first change that was not appended.
fn append(journal: &mut Alternating, table: &mut Table, from: u64, to: u64) -> u64 {
    for n in from..to {
        let mut bytes = Vec::new();
        change(n).encode(&mut bytes);
        table.apply(&change(n));
        if journal.append(&bytes, || table.encode()).is_err() {
            return n;
        }
    }
    to
}

fn after(changes: u64) -> Table {
    let mut table = Table::default();
    (0..changes).for_each(|n| table.apply(&change(n)));
    table
}

fn decode(records: &[Vec<u8>]) -> Table {
    let (table, whole) = Table::decode(records);
    assert!(whole);
    table
}

fn open(disk: &SimulatedDisk) -> (Alternating, Table) {
    let (mut journal, begun) = journal::open(disk, Path::new(DIRECTORY), true).unwrap();
    let table = match begun {
        Begun::Records(records) => decode(&records),
        Begun::Nothing => Table::default(),
        Begun::Damaged(what, _) => panic!("{what}"),
    };
    journal.begin(&table.encode()).unwrap();
    (journal, table)
}

#[test]
fn appended_changes_are_recovered_after_many_switches_between_the_files() {
    let disk = SimulatedDisk::new(1);
    // More than a mebibyte of records, so the journal switches between its files several times.
    let (mut journal, mut table) = open(&disk);
    assert_eq!(append(&mut journal, &mut table, 0, 40_000), 40_000);
    drop(journal);
    disk.restart(Crash::Power);
    assert!(open(&disk).1 == after(40_000));
}

#[test]
fn a_table_larger_than_the_journal_file_makes_the_file_grow() {
    let disk = SimulatedDisk::new(1);
    let (mut journal, mut table) = open(&disk);
    for n in 0..12_000 {
        table.apply(&Change::Enter(n as u32, row(n)));
    }
    journal.begin(&table.encode()).unwrap();
    drop(journal);
    disk.restart(Crash::Power);
    assert!(open(&disk).1 == table);
}

#[test]
fn a_crash_at_any_step_keeps_every_change_that_was_appended_without_an_error() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let disk = SimulatedDisk::new(seed);
        let mut kept = 0;
        for _ in 0..4 {
            let (mut journal, mut table) = open(&disk);
            assert!(
                table == after(kept) || table == after(kept + 1),
                "seed {seed}"
            );
            kept += u64::from(table != after(kept));
            disk.crash_at(disk.calls() + random.below(25));
            kept = append(&mut journal, &mut table, kept, kept + 8);
            drop(journal);
            disk.restart(if random.chance(1, 2) {
                Crash::Power
            } else {
                Crash::Kill
            });
        }
    }
}

#[test]
fn damage_is_noticed_wherever_it_is_even_in_the_last_record() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let disk = SimulatedDisk::new(seed);
        let (mut journal, mut table) = open(&disk);
        append(&mut journal, &mut table, 0, 20);
        drop(journal);
        let side = Path::new(DIRECTORY).join(["journal.0", "journal.1"][random.below(2) as usize]);
        assert!(disk.damage(&side, random.below(1500)));
        disk.restart(Crash::Kill);
        match journal::open(&disk, Path::new(DIRECTORY), true).unwrap().1 {
            Begun::Damaged(..) => {}
            Begun::Nothing => panic!("seed {seed}: a journal was there"),
            // Damage to the superseded file is harmless.
            Begun::Records(records) => assert!(decode(&records) == after(20), "seed {seed}"),
        }
    }
}

#[test]
fn invalid_bytes_do_not_make_the_decoder_panic() {
    let mut random = Random::new(7);
    let mut whole = Vec::new();
    (0..14).for_each(|n| change(n).encode(&mut whole));
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(4) {
            let place = random.below(bytes.len() as u64) as usize;
            bytes[place] = random.below(256) as u8;
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        let _ = Table::decode(&[bytes]);
    }
    assert_eq!(decode(&[whole]), after(14));
}

#[test]
fn two_processes_cannot_have_the_same_journal() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let first = journal::open(&*disk, Path::new(DIRECTORY), true).unwrap();
    let failure = journal::open(&*disk, Path::new(DIRECTORY), true)
        .err()
        .unwrap();
    assert!(failure.message.contains("another Millstream"), "{failure}");
    drop(first);
    assert!(journal::open(&*disk, Path::new(DIRECTORY), true).is_ok());
    assert!(
        disk.open(&Path::new(DIRECTORY).join("journal.1"), Open::Read)
            .is_ok()
    );
}

#[test]
fn a_journal_that_another_implementation_wrote_is_read() {
    // Written by an independent implementation of the format: a table at position 1.3 (epoch 1, sequence 3) of channel 7. The
    // next rotated file gets the number 9.
    const JOURNAL: &[u8] = b"mill-fsj\x01\0\0\0\x2b\xbe\x4a\xe9\x01\0\0\0\0\0\0\0\
        \x27\0\0\0\xec\x92\x44\0\x05\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\
        \x03\0\0\0\0\0\0\0\x01\x06\x09\0\0\0\0\0\0\0\0";
    const MARK: &[u8] = b"\x01\0\0\0\0\0\0\0\x48\0\0\0\0\0\0\0\xae\x2b\x4e\xe0\0\0\0\0";
    let disk = SimulatedDisk::new(1);
    drop(journal::open(&disk, Path::new(DIRECTORY), true).unwrap());
    let write = |name: &str, bytes: &[u8], at: u64| {
        let path = Path::new(DIRECTORY).join(name);
        let file = disk.open(&path, Open::Write).unwrap();
        file.write_at(&[IoSlice::new(bytes)], at).unwrap();
    };
    write("journal.1", JOURNAL, 0);
    write("journal.0", MARK, (1 << 20) - 24);
    let expected = Table {
        channel: 7,
        position: Some(Position { epoch: 1, seq: 3 }),
        number: 9,
        ..Table::default()
    };
    assert_eq!(open(&disk).1, expected);
}
