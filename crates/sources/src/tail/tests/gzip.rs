//! Tests of compressed files: they are read once, and lines that were read before the compression are not read again.

use std::{fs, io::Write, path::Path, thread, time::Duration};

use flate2::{Compression, write::GzEncoder};

use super::{Place, append, numbers, sorted, text};
use crate::rig::{Downstream, until};

pub(super) fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Compresses a file like gzip: writes the compressed file beside the original, and then removes the original.
fn compress(path: &Path) {
    let to = format!("{}.gz", path.display());
    fs::write(to, packed(&fs::read_to_string(path).unwrap())).unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn compressed_files_and_plain_files_beside_them_are_read_once() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        append(&place.log("a.log"), "plain\n");
        let text = text(0..200_000);
        let mut parts = packed(&text[..1000]);
        parts.extend(packed(&text[1000..]));
        fs::write(place.log("b.log.gz"), parts).unwrap();
        fs::write(place.log("c.log.gz"), packed("without an end")).unwrap();
        let mut expected = numbers(0..200_000);
        expected.extend(["plain".to_owned(), "without an end".to_owned()]);
        let expected = sorted(expected);
        for _ in 0..3 {
            place.once("*", "", &to);
            assert!(sorted(to.lines()) == expected);
        }
        let running = place.start("*", r#", "rotate_wait": "20ms", "rescan": "20ms""#, &to);
        thread::sleep(Duration::from_millis(200));
        running.stop();
        assert!(sorted(to.lines()) == expected);
        assert_eq!(to.repeats(), 0);
    }
}

#[test]
fn a_file_compressed_while_the_source_was_down_resumes_at_its_position() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, &text(0..5000));
        // This file is unknown, and its name does not match.
        fs::write(place.log("foreign.log.1.gz"), packed("foreign\n")).unwrap();
        thread::sleep(Duration::from_millis(50));
        place.once("*.log", "", &to);
        append(&path, &text(5000..6000));
        fs::rename(&path, place.log("a.log.1")).unwrap();
        compress(&place.log("a.log.1"));
        append(&path, "new\n");
        for _ in 0..2 {
            place.once("*.log", "", &to);
            let mut expected = numbers(0..6000);
            expected.push("new".to_owned());
            assert!(sorted(to.lines()) == sorted(expected));
        }
    }
}

#[test]
fn a_file_created_renamed_and_compressed_while_the_source_was_down_is_read() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, &text(0..100));
        place.once("*.log", "", &to);
        append(&path, &text(100..200));
        fs::rename(&path, place.log("a.log.2")).unwrap();
        compress(&place.log("a.log.2"));
        append(&path, &text(200..300));
        fs::rename(&path, place.log("a.log.1")).unwrap();
        compress(&place.log("a.log.1"));
        append(&path, &text(300..400));
        // Files of other compressors cannot be read, and must not become lines.
        fs::write(place.log("a.log.3.zst"), b"\x28\xb5\x2f\xfd some frames\n").unwrap();
        for _ in 0..2 {
            place.once("*.log", "", &to);
            assert_eq!(sorted(to.lines()), sorted(numbers(0..400)));
        }
    }
}

#[test]
fn a_file_compressed_while_it_is_read_is_not_read_twice() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    append(&path, &text(0..5000));
    let running = place.start(
        "a.log*",
        r#", "rotate_wait": "200ms", "rescan": "50ms""#,
        &to,
    );
    until("all lines", || to.lines().len() == 5000);
    fs::rename(&path, place.log("a.log.1")).unwrap();
    append(&place.log("a.log.1"), &text(5000..5001));
    append(&path, "new\n");
    compress(&place.log("a.log.1"));
    until("the new file", || to.lines().len() == 5002);
    fs::rename(place.log("a.log.1.gz"), place.log("a.log.2.gz")).unwrap();
    thread::sleep(Duration::from_millis(1500));
    running.stop();
    place.once("a.log*", "", &to);
    let mut expected = numbers(0..5001);
    expected.push("new".to_owned());
    assert!(sorted(to.lines()) == sorted(expected));
}

#[test]
fn a_file_and_its_fresh_compressed_copy_are_read_once() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log.1");
    append(&path, &text(0..5000));
    // gzip is done, but has not removed the original yet.
    fs::write(place.log("a.log.1.gz"), packed(&text(0..5000))).unwrap();
    let running = place.start(
        "a.log*",
        r#", "rotate_wait": "200ms", "rescan": "50ms""#,
        &to,
    );
    until("all lines", || to.lines().len() >= 5000);
    fs::remove_file(&path).unwrap();
    fs::rename(place.log("a.log.1.gz"), place.log("a.log.2.gz")).unwrap();
    append(&place.log("a.log"), "new\n");
    // An additional line in the compressed file shows whether that file was read.
    let mut file = fs::File::options()
        .append(true)
        .open(place.log("a.log.2.gz"))
        .unwrap();
    file.write_all(&packed("packed\n")).unwrap();
    until("what only the compressed one has", || {
        to.lines().contains(&"packed".to_owned())
    });
    running.stop();
    let mut expected = numbers(0..5000);
    expected.extend(["new".to_owned(), "packed".to_owned()]);
    assert!(sorted(to.lines()) == sorted(expected));
}

#[test]
fn a_compressed_copy_waits_until_the_truncation_is_noticed_however_long_that_takes() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    append(&path, &text(0..1000));
    let running = place.start(
        "a.log*",
        r#", "rotate_wait": "200ms", "rescan": "50ms""#,
        &to,
    );
    until("the first lines", || to.lines().len() == 1000);
    // The reader still waits for a receipt when the file is truncated.
    to.hold();
    append(&path, &text(1000..1001));
    until("one line more", || to.lines().len() == 1001);
    fs::write(place.log("a.log.1.gz"), packed(&text(0..1002))).unwrap();
    fs::write(&path, "after\n").unwrap();
    thread::sleep(Duration::from_millis(500));
    to.settle();
    until("the end of the copy", || {
        to.lines().contains(&"line 1001".to_owned())
    });
    until("what came after", || {
        to.lines().contains(&"after".to_owned())
    });
    running.stop();
    let mut expected = numbers(0..1002);
    expected.push("after".to_owned());
    assert!(sorted(to.lines()) == sorted(expected));
}

#[test]
fn lines_read_before_the_compression_are_not_read_from_a_growing_compressed_file() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    append(&path, &text(0..100_000));
    place.once("a.log*", "", &to);
    fs::remove_file(&path).unwrap();
    let all = packed(&text(0..100_001));
    let path = place.log("a.log.1.gz");
    fs::write(&path, &all[..all.len() / 2]).unwrap();
    let running = place.start("a.log*", r#", "rotate_wait": "1h", "rescan": "50ms""#, &to);
    thread::sleep(Duration::from_millis(700));
    let mut file = fs::File::options().append(true).open(&path).unwrap();
    file.write_all(&all[all.len() / 2..]).unwrap();
    until("the rest", || {
        to.lines().contains(&"line 100000".to_owned())
    });
    running.stop();
    assert!(to.lines() == numbers(0..100_001));
}

#[test]
fn a_compressed_copy_of_a_truncated_file_is_not_read_twice() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    append(&path, &text(0..1000));
    place.once("a.log*", "", &to);
    append(&path, &text(1000..1100));
    fs::copy(&path, place.log("a.log.1")).unwrap();
    compress(&place.log("a.log.1"));
    fs::write(&path, "after\n").unwrap();
    place.once("a.log*", "", &to);
    let mut expected = numbers(0..1100);
    expected.push("after".to_owned());
    assert!(sorted(to.lines()) == sorted(expected));
}

#[test]
fn a_compressed_file_is_read_as_it_grows_and_a_damaged_one_does_not_stop_the_source() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log.gz");
    let all = packed(&text(0..100_000));
    fs::write(&path, &all[..5]).unwrap();
    let running = place.start("*.gz", r#", "rotate_wait": "1h", "rescan": "50ms""#, &to);
    thread::sleep(Duration::from_millis(100));
    for end in [50_000, 100_000, all.len()] {
        fs::write(&path, &all[..end.min(all.len())]).unwrap();
        thread::sleep(Duration::from_millis(50));
    }
    until("all lines", || to.lines() == numbers(0..100_000));
    let mut damaged = packed(&text(0..100));
    let end = damaged.len();
    damaged[end - 20] ^= 0x55;
    fs::write(place.log("b.log.gz"), damaged).unwrap();
    until("b.log.gz is opened", || running.meter("open_files") == 2);
    running.stop();
}

#[test]
fn compressed_files_can_be_skipped() {
    let (place, to) = (Place::new(), Downstream::memory());
    fs::write(place.log("a.log.gz"), packed("packed\n")).unwrap();
    append(&place.log("b.log"), "plain\n");
    place.once("*", r#", "compressed": "skip""#, &to);
    assert_eq!(to.lines(), ["plain"]);
}
