//! Tests of copies: what counts as the copy of a truncated file, and what does not although it has the same content.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    thread,
    time::Duration,
};

use super::{Place, append, numbers, sorted, text};
use crate::rig::{Downstream, until};

const RUN: &str = "started\nworked\ndone\n";

#[test]
fn a_file_with_the_content_of_an_unrelated_one_that_was_cleared_is_read() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let running = place.start("*.log", "", &to);
        let cleared = |number| {
            let path = place.log(&format!("job-{number}.log"));
            append(&path, RUN);
            until("its lines", || to.lines().len() == 3 * number as usize);
            fs::write(&path, "").unwrap();
            until("the truncation", || {
                running.meter("files_truncated") == number
            });
        };
        (1..=4).for_each(cleared);
        assert_eq!(running.meter("copy_bytes"), 0);
        running.stop();
        append(&place.log("job-5.log"), RUN);
        place.once("*.log", "", &to);
        assert_eq!(to.lines().len(), 15);
    }
}

#[test]
fn a_file_that_replaces_one_with_the_same_content_is_read() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("cron.log");
    let running = place.start("*.log", r#", "rotate_wait": "50ms""#, &to);
    for number in 1..=6 {
        append(&path, RUN);
        until("its lines", || to.lines().len() == 3 * number);
        if number % 2 == 0 {
            fs::write(&path, "").unwrap();
            thread::sleep(Duration::from_millis(30));
        }
        fs::remove_file(&path).unwrap();
    }
    running.stop();
}

fn gzip(path: &Path, text: &str) {
    let file = File::create(path).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap();
}

#[test]
fn a_compressed_file_with_the_content_of_an_unrelated_one_is_read() {
    let (place, to) = (Place::new(), Downstream::durable());
    append(&place.log("job-1.log"), RUN);
    append(&place.log("app.log"), &text(0..10));
    place.once("*.log*", "", &to);
    assert_eq!(to.lines().len(), 13);
    gzip(&place.log("job-2.log.gz"), RUN);
    // This one is the compressed log.
    gzip(&place.log("app.log.1.gz"), &text(0..12));
    fs::write(place.log("app.log"), "").unwrap();
    let ran = place.once("*.log*", "", &to);
    let mut expected = numbers(0..12);
    expected.extend(RUN.lines().chain(RUN.lines()).map(str::to_owned));
    assert_eq!(sorted(to.lines()), sorted(expected));
    assert_eq!(ran.meter("copy_bytes"), text(0..10).len() as u64);
}

#[test]
fn the_bytes_of_a_copy_that_are_not_read_again_are_counted() {
    for name in ["app.log.1", "app-20261128.log", "app.log-20261128"] {
        let (place, to) = (Place::new(), Downstream::durable());
        let path = place.log("app.log");
        append(&path, &text(0..1000));
        let running = place.start("*", "", &to);
        until("all lines", || to.lines().len() == 1000);
        fs::copy(&path, place.log(name)).unwrap();
        fs::write(&path, "").unwrap();
        append(&path, "after\n");
        until("what came after", || to.lines().len() == 1001);
        until("the copy", || {
            running.meter("copy_bytes") == text(0..1000).len() as u64
        });
        running.stop();
        assert_eq!(to.lines().len(), 1001, "{name}");
    }
}

#[test]
fn a_copy_over_an_existing_file_is_not_read_twice() {
    let (place, to) = (Place::new(), Downstream::durable());
    let (path, copy) = (place.log("a.log"), place.log("a.log.1"));
    let running = place.start("a.log*", "", &to);
    for round in 0..4 {
        append(&path, &text(round * 100..round * 100 + 100));
        let all = 100 * (round as usize + 1);
        until("the lines", || to.lines().len() == all);
        // `cp` writes into the same inode.
        fs::copy(&path, &copy).unwrap();
        fs::write(&path, "").unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    append(&path, "last\n");
    until("the last line", || to.lines().contains(&"last".to_owned()));
    running.stop();
    assert_eq!(to.lines().len(), 401);
}
