//! Properties of the files that operators and other versions of Millstream see: sizes, versions, older formats, names.

#![allow(clippy::unwrap_used, reason = "what cannot be done fails the test")]

use std::{
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_state::{
    Alternating, Begun, Error, Format, Journal, JournalFormat, Recovered, Slots, Stored, WholeFile,
};
use millstream_sys::disk::{Disk, Open};
use millstream_testkit::SimulatedDisk;

const FORMAT: Format = Format {
    magic: b"MILLTST\0",
    version: 2,
    bytes_max: 1 << 20,
    remedy: "remove it",
};
const NEWER: Format = Format {
    version: 3,
    ..FORMAT
};

fn disk() -> Arc<SimulatedDisk> {
    Arc::new(SimulatedDisk::new(0))
}

fn path() -> PathBuf {
    PathBuf::from("/made/when/needed/number")
}

fn whole(disk: &Arc<SimulatedDisk>, format: Format) -> WholeFile {
    WholeFile::new(disk.clone(), path(), format)
}

fn journal(
    disk: &Arc<SimulatedDisk>,
    format: Format,
) -> Result<(Journal, Option<Recovered>), Error> {
    let format = JournalFormat {
        format,
        record_bytes_max: 1024,
        copied: true,
    };
    Journal::open(disk.clone(), path(), format, |_| None)
}

#[test]
fn a_missing_file_is_no_error_and_directories_are_created_when_they_are_needed() {
    let disk = disk();
    let mut file = whole(&disk, FORMAT);
    assert_eq!(file.load(|_| None).unwrap(), None);
    file.store(b"one").unwrap();
    file.store(b"two").unwrap();
    assert_eq!(file.load(|_| None).unwrap().unwrap(), b"two");
    let names = disk.list(path().parent().unwrap()).unwrap();
    assert_eq!(names, ["number"], "no temporary file is left");
}

#[test]
fn a_file_of_a_newer_version_is_refused_with_both_versions() {
    let disk = disk();
    whole(&disk, NEWER).store(b"body").unwrap();
    let error = whole(&disk, FORMAT).load(|_| Some(Vec::new())).unwrap_err();
    assert!(matches!(
        error,
        Error::Newer {
            found: 3,
            known: 2,
            ..
        }
    ));
    assert!(error.to_string().contains("run the newer one"), "{error}");
}

#[test]
fn a_file_beyond_its_bound_is_refused_unread_and_never_written() {
    let disk = disk();
    let mut file = whole(&disk, FORMAT);
    file.store(b"body").unwrap();
    assert!(matches!(
        file.store(&vec![1; 1 << 20]),
        Err(Error::Io { .. })
    ));
    assert_eq!(file.load(|_| None).unwrap().unwrap(), b"body");
    let strict = Format {
        bytes_max: 32,
        ..FORMAT
    };
    let error = whole(&disk, strict).load(|_| None).unwrap_err();
    assert!(matches!(error, Error::TooLarge { bytes: 36, .. }));
    let text = error.to_string();
    assert!(text.contains("writes at most 32 bytes there"), "{text}");
}

#[test]
fn an_older_format_is_converted_and_anything_else_is_damaged() {
    let disk = disk();
    let mut file = whole(&disk, FORMAT);
    file.store(b"").unwrap();
    let opened = disk.open(&path(), Open::Write).unwrap();
    opened.truncate(0).unwrap();
    opened.write_at(&[IoSlice::new(b"version 1")], 0).unwrap();
    let older = |bytes: &[u8]| (bytes == b"version 1").then(|| b"converted".to_vec());
    assert_eq!(file.load(older).unwrap().unwrap(), b"converted");
    let error = file.load(|_| None).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }));
    let text = error.to_string();
    assert!(
        text.starts_with("/made/when/needed/number is damaged"),
        "{text}"
    );
    assert!(text.ends_with("; remove it"), "{text}");
    file.store(b"new").unwrap();
    assert_eq!(file.load(|_| None).unwrap().unwrap(), b"new");
}

#[test]
fn slots_convert_an_older_slot_and_compare_its_generation() {
    let disk = disk();
    let path = Path::new("/slots");
    let mut slots = Slots::create(&*disk, path, FORMAT, b"one").unwrap();
    slots.store(b"two").unwrap();
    drop(slots);
    // The slot of the older program is the newest one.
    let file = disk.open(path, Open::Write).unwrap();
    file.write_at(&[IoSlice::new(b"older 9")], 0).unwrap();
    drop(file);
    let older = |bytes: &[u8]| {
        bytes
            .starts_with(b"older 9")
            .then(|| (9, b"three".to_vec()))
    };
    let (mut slots, stored) = Slots::open(&*disk, path, FORMAT, Open::Write, older).unwrap();
    assert_eq!(stored, Stored::Body(b"three".to_vec()));
    slots.store(b"four").unwrap();
    let (_, stored) = Slots::open(&*disk, path, FORMAT, Open::Read, older).unwrap();
    assert_eq!(stored, Stored::Body(b"four".to_vec()));
}

#[test]
fn a_removed_journal_is_read_from_its_copy_and_its_missing_bytes_are_counted() {
    let disk = disk();
    let (mut opened, recovered) = journal(&disk, FORMAT).unwrap();
    assert_eq!(recovered, None);
    assert!(opened.needs_replace() && opened.append(&[b"x"]).is_err());
    let mut records = opened.replacement();
    records.add(&[b"first"]);
    opened.replace(records).unwrap();
    opened.append(&[b"sec", b"ond"]).unwrap();
    drop(opened);
    let bodies = |recovered: &Recovered| -> Vec<Vec<u8>> {
        let records = recovered.records.iter();
        records.map(|record| record.body.clone()).collect()
    };
    let (_, recovered) = journal(&disk, FORMAT).unwrap();
    let recovered = recovered.unwrap();
    assert_eq!(bodies(&recovered), [&b"first"[..], b"second"]);
    assert_eq!((recovered.lacks, recovered.lost_first()), ([0, 0], false));
    disk.remove(&path()).unwrap();
    let (_, recovered) = journal(&disk, FORMAT).unwrap();
    let recovered = recovered.unwrap();
    assert_eq!(bodies(&recovered), [&b"first"[..], b"second"]);
    // The header of 24 bytes and two records of 16 bytes are missing.
    assert_eq!(recovered.lacks, [56, 0]);
}

#[test]
fn a_failed_sync_is_not_repeated_on_the_same_file() {
    let disk = disk();
    let (mut opened, _) = journal(&disk, FORMAT).unwrap();
    opened.replace(opened.replacement()).unwrap();
    opened.append(&[b"one"]).unwrap();
    disk.fail(millstream_testkit::Call::Sync, 1, 5);
    assert!(opened.sync().is_err());
    assert!(opened.needs_replace() && opened.sync().is_err() && opened.append(&[b"two"]).is_err());
    opened.replace(opened.replacement()).unwrap();
    opened.append(&[b"two"]).unwrap();
    opened.sync().unwrap();
}

#[test]
fn the_files_of_earlier_file_sinks_are_read() {
    const GOLDEN: &str = "6d696c6c2d66736a010000002bbe4ae901000000000000000900000076f38cf1746865207461626c6500000000000000080000007a81d6a061206368616e6765";
    let bytes: Vec<u8> = (0..GOLDEN.len() / 2)
        .map(|at| u8::from_str_radix(&GOLDEN[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let format = Format {
        magic: b"mill-fsj",
        version: 1,
        ..FORMAT
    };
    let disk = disk();
    let path = Path::new("/journal");
    for (name, bytes) in [("/journal.0", &bytes[..]), ("/journal.1", &[])] {
        let file = disk.open(Path::new(name), Open::Create).unwrap();
        file.write_at(&[IoSlice::new(&[0; 8192])], 0).unwrap();
        file.write_at(&[IoSlice::new(bytes)], 0).unwrap();
    }
    let (_, begun) = Alternating::open(&*disk, path, format, 8192, true).unwrap();
    let expected = vec![b"the table".to_vec(), b"a change".to_vec()];
    assert_eq!(begun, Begun::Records(expected));
    assert!(matches!(
        Alternating::open(
            &*disk,
            path,
            Format {
                version: 0,
                ..format
            },
            8192,
            true
        ),
        Err(Error::Newer { .. })
    ));
}
