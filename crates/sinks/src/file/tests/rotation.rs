//! Rotation by size, records and time, and which files are kept.

use std::{fs, time::Duration};

use millstream_record::{Batch, Time};

use super::{block_on, names, options, read, run};
use crate::{
    file::COMPONENT,
    rig::{Rig, Upstream, lines, packed},
};

fn at(batch: Batch, seconds: i64) -> Batch {
    Batch {
        received: Time::from_parts(seconds, 0),
        ..batch
    }
}

/// Returns the names of all outputs: the rotated files in order, then the current file.
fn in_order(directory: &std::path::Path, current: &str) -> Vec<String> {
    let mut names = names(directory);
    let number = |name: &String| {
        name.rsplit_once('-')
            .map_or(u64::MAX, |(_, number)| number.parse().unwrap())
    };
    names.sort_by_key(|name| {
        if name == current {
            u64::MAX
        } else {
            number(name)
        }
    });
    names
}

#[test]
fn a_file_is_rotated_before_a_record_would_make_it_too_large() {
    // Three cases: lines that are written unchanged (shared with their batch), lines made from packed records
    // (encoded), and JSON (encoded).
    let line = |n: usize| format!("line {n:0width$}\n", width = 1 + n % 7);
    let text: String = (0..150).map(line).collect();
    for (batch, format) in [
        (lines("t", &text), "raw"),
        (packed("t", &text), "raw"),
        (lines("t", &text), "json"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::durable(7);
        for part in 0..4 {
            upstream.put(at(batch.clone(), part), false);
        }
        let more = format!(r#""format": "{format}", "rotate": {{"size": "1KB"}}"#);
        let rig = run(
            directory.path(),
            &options(directory.path(), "a", &more),
            &upstream,
        );
        let names = in_order(directory.path(), "a");
        let contents: Vec<_> = names
            .iter()
            .map(|name| read(directory.path(), name))
            .collect();
        for pair in contents.windows(2) {
            let next = pair[1].split_inclusive('\n').next().unwrap();
            assert!(
                pair[0].len() <= 1000 && pair[0].ends_with('\n'),
                "{} bytes",
                pair[0].len()
            );
            assert!(
                pair[0].len() + next.len() > 1000,
                "rotated too early: {} bytes",
                pair[0].len()
            );
        }
        let all: Vec<String> = contents.concat().lines().map(str::to_owned).collect();
        let expected = text.lines().cycle().take(600);
        assert_eq!(all.len(), 600);
        assert!(
            all.iter()
                .zip(expected)
                .all(|(found, line)| found.contains(line)),
            "{format}"
        );
        assert_eq!(rig.meter("files_rotated"), names.len() as u64 - 1);
    }
}

#[test]
fn a_record_larger_than_the_limit_gets_its_own_file() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::memory();
    let long = "x".repeat(100);
    upstream.put(lines("t", &format!("a\n{long}\nb\n")), true);
    run(
        directory.path(),
        &options(
            directory.path(),
            "a",
            r#""format": "raw", "rotate": {"size": "10B"}"#,
        ),
        &upstream,
    );
    let contents: Vec<_> = in_order(directory.path(), "a")
        .iter()
        .map(|name| read(directory.path(), name))
        .collect();
    assert_eq!(contents, ["a\n".to_owned(), long + "\n", "b\n".to_owned()]);
}

#[test]
fn a_file_is_rotated_by_its_number_of_records_across_restarts() {
    let directory = tempfile::tempdir().unwrap();
    for format in ["raw", "json"] {
        let upstream = Upstream::durable(7);
        let more = format!(r#""format": "{format}", "add": {{}}, "rotate": {{"records": 4}}"#);
        let more = if format == "raw" {
            more.replace(r#""add": {}, "#, "")
        } else {
            more
        };
        let options = options(directory.path(), format, &more);
        upstream.put(lines("t", "1\n2\n3\n"), false);
        run(directory.path(), &options, &upstream);
        upstream.put(lines("t", "4\n5\n6\n7\n8\n9\n"), false);
        run(directory.path(), &options, &upstream);
        fs::remove_dir_all(directory.path().join("state")).unwrap();
        let counts: Vec<_> = names(directory.path())
            .iter()
            .filter(|name| name.starts_with(format))
            .map(|name| read(directory.path(), name).lines().count())
            .collect();
        assert_eq!(counts.iter().sum::<usize>(), 9);
        assert_eq!(
            counts.iter().filter(|count| **count == 4).count(),
            2,
            "{counts:?}"
        );
    }
}

#[test]
fn an_interval_uses_receive_times_so_that_a_backlog_is_divided_as_if_written_on_time() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    for minute in 0..6 {
        upstream.put(at(lines("t", &format!("{minute}\n")), 60 * minute), false);
    }
    run(
        directory.path(),
        &options(
            directory.path(),
            "a",
            r#""format": "raw", "rotate": {"interval": "2m"}"#,
        ),
        &upstream,
    );
    let names = in_order(directory.path(), "a");
    let contents: Vec<_> = names
        .iter()
        .map(|name| read(directory.path(), name))
        .collect();
    assert_eq!(contents, ["0\n1\n", "2\n3\n", "4\n5\n"]);
    assert_eq!(names[..2], ["a.19700101-000200-0", "a.19700101-000400-1"]);
}

#[test]
fn a_file_without_new_records_is_rotated_by_the_clock() {
    for rule in ["idle", "interval"] {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::durable(7);
        upstream.put(at(lines("t", "a\n"), Time::now().seconds()), false);
        let more = format!(r#""format": "raw", "rotate": {{"{rule}": "200ms"}}"#);
        let mut rig = Rig::new(
            &COMPONENT,
            &options(directory.path(), "a", &more),
            &upstream,
            &directory.path().join("state"),
        );
        block_on(async {
            let close = async {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                // The file is rotated although no record arrives, and the next record creates a new file.
                assert!(
                    matches!(&names(directory.path())[..], [name] if name != "a"),
                    "{rule}"
                );
                upstream.put(at(lines("t", "b\n"), Time::now().seconds()), false);
                upstream.close();
            };
            let (ended, ()) = tokio::join!(rig.run(), close);
            ended.unwrap();
        });
        let contents: Vec<_> = names(directory.path())
            .iter()
            .map(|name| read(directory.path(), name))
            .collect();
        assert_eq!(contents.concat().len(), 4);
        assert_eq!(contents.len(), 2);
    }
}

#[test]
fn old_rotated_files_are_removed_and_no_other_files() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("out")).unwrap();
    for other in ["a.1", "a.20200101-000000-x", "ab.20200101-000000-0"] {
        fs::write(directory.path().join("out").join(other), "mine").unwrap();
    }
    let upstream = Upstream::durable(7);
    for n in 0..9 {
        upstream.put(lines("t", &format!("{n}\n")), false);
    }
    run(
        directory.path(),
        &options(
            directory.path(),
            "a",
            r#""format": "raw", "rotate": {"records": 1, "keep": 2}"#,
        ),
        &upstream,
    );
    let names = names(directory.path());
    assert_eq!(names.len(), 6, "{names:?}");
    let kept: Vec<_> = names
        .iter()
        .filter(|name| name.starts_with("a.2023"))
        .map(|name| read(directory.path(), name))
        .collect();
    assert_eq!(kept, ["6\n", "7\n"]);
    assert_eq!(read(directory.path(), "a"), "8\n");
}

#[test]
fn an_existing_file_that_is_full_is_rotated_first() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("out")).unwrap();
    fs::write(directory.path().join("out/a"), "x".repeat(99) + "\n").unwrap();
    let upstream = Upstream::durable(7);
    upstream.put(lines("t", "new\n"), false);
    run(
        directory.path(),
        &options(
            directory.path(),
            "a",
            r#""format": "raw", "rotate": {"size": "100B"}"#,
        ),
        &upstream,
    );
    assert_eq!(read(directory.path(), "a"), "new\n");
    assert_eq!(names(directory.path()).len(), 2);
}

#[test]
fn with_a_new_journal_keep_still_removes_the_oldest_rotated_files() {
    let directory = tempfile::tempdir().unwrap();
    let more = r#""format": "raw", "rotate": {"records": 1, "keep": 2}"#;
    let options = options(directory.path(), "a", more);
    for (channel, texts) in [(7, 0..6), (8, 6..9)] {
        let upstream = Upstream::durable(channel);
        for n in texts {
            upstream.put(lines("t", &format!("{n}\n")), false);
        }
        run(directory.path(), &options, &upstream);
        fs::remove_dir_all(directory.path().join("state")).unwrap();
    }
    let contents: Vec<_> = names(directory.path())
        .iter()
        .map(|name| read(directory.path(), name))
        .collect();
    // The new journal does not know that a record is in the current file.
    assert_eq!(contents, ["8\n", "5\n6\n", "7\n"]);
}
