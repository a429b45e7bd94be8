//! Tests of the paths and contents of outputs, and of rejected records. The submodules test crashes, rotation, trouble
//! with the disk, and more.

mod compress;
mod crash;
mod damage;
mod journal;
mod latest;
mod memory;
mod naming;
mod rotation;
mod short_names;
mod troubles;

use std::{fs, future::Future, path::Path};

use millstream_record::Batch;
use millstream_wire::msgpack::{write_array_len, write_map_len, write_str, write_time};

use super::COMPONENT;
use crate::rig::{Rig, Upstream, build, check_contract, lines, misfit, packed, try_build};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// Returns options: `path` in the directory `out` below `directory`, and the options in `more`.
fn options(directory: &Path, path: &str, more: &str) -> String {
    let path = directory.join("out").join(path);
    format!(
        r#"{{"path": {path:?}{}{more}}}"#,
        if more.is_empty() { "" } else { ", " }
    )
}

/// Runs a sink with these options until it has written all batches in `upstream`.
fn run(directory: &Path, options: &str, upstream: &Upstream) -> Rig {
    upstream.close();
    let mut rig = Rig::new(&COMPONENT, options, upstream, &directory.join("state"));
    block_on(rig.run()).unwrap();
    rig
}

fn read(directory: &Path, path: &str) -> String {
    fs::read_to_string(directory.join("out").join(path)).unwrap()
}

/// The names in the output directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory.join("out")).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A batch of entries `[time, {key: value}]`.
fn entries(tag: &str, time: i64, fields: &[(&str, &str)]) -> Batch {
    let mut body = Vec::new();
    for (key, value) in fields {
        write_array_len(&mut body, 2);
        write_time(&mut body, millstream_record::Time(time));
        write_map_len(&mut body, 1);
        write_str(&mut body, key.as_bytes());
        write_str(&mut body, value.as_bytes());
    }
    Batch {
        body: body.into(),
        count: fields.len() as u32,
        ..packed(tag, "")
    }
}

#[test]
fn each_format_writes_the_expected_text() {
    let cases = [
        (r#""format": "raw""#, "a\nb\n"),
        (
            "",
            "{\"message\":\"a\",\"time\":\"2020-09-13T12:26:40.000000001Z\"}\n{\"message\":\"b\",\"time\":\"2020-09-13T12:26:40.000000001Z\"}\n",
        ),
        (
            r#""add": {"tag": "{tag}", "time": null}, "invalid_utf8": "escape""#,
            "{\"message\":\"a\",\"tag\":\"t\"}\n{\"message\":\"b\",\"tag\":\"t\"}\n",
        ),
        (
            r#""format": "template", "template": "%F {.message};""#,
            "2020-09-13 a;2020-09-13 b;",
        ),
    ];
    for (more, expected) in cases {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::memory();
        upstream.put(packed("t", "a\nb\n"), true);
        run(
            directory.path(),
            &options(directory.path(), "a.log", more),
            &upstream,
        );
        assert_eq!(read(directory.path(), "a.log"), expected, "{more}");
    }
}

#[test]
fn msgpack_is_written_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::memory();
    let batch = packed("t", "a\nb\n");
    upstream.put(batch.clone(), true);
    run(
        directory.path(),
        &options(directory.path(), "a", r#""format": "msgpack""#),
        &upstream,
    );
    assert_eq!(
        fs::read(directory.path().join("out/a")).unwrap(),
        batch.body
    );
}

#[test]
fn every_record_is_settled_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::memory();
    let receipts: Vec<_> = (0..3)
        .map(|_| upstream.put(lines("t", "a\nb\n"), true))
        .collect();
    let rig = run(
        directory.path(),
        &options(directory.path(), "a", r#""format": "raw""#),
        &upstream,
    );
    assert!(
        receipts
            .iter()
            .all(|receipt| receipt.try_outcome() == Some(Ok(())))
    );
    assert_eq!(rig.meter("records_settled"), 6);
    assert_eq!(rig.meter("bytes_written"), 12);
}

#[test]
fn a_file_that_exists_is_appended_to() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("out")).unwrap();
    fs::write(directory.path().join("out/a"), "old\n").unwrap();
    for upstream in [Upstream::memory(), Upstream::durable(7)] {
        upstream.put(lines("t", "new\n"), false);
        run(
            directory.path(),
            &options(directory.path(), "a", r#""format": "raw""#),
            &upstream,
        );
    }
    assert_eq!(read(directory.path(), "a"), "old\nnew\nnew\n");
}

#[test]
fn a_path_may_depend_on_the_tag_the_time_and_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    upstream.put(
        entries(
            "a.b",
            86_400_000_000_000,
            &[("x", "1"), ("x", "2"), ("x", "1")],
        ),
        false,
    );
    upstream.put(
        entries("../c", 2 * 86_400_000_000_000, &[("x", "../1")]),
        false,
    );
    let options = options(directory.path(), "{tag}/%F/{.x}.log", r#""add": {}"#);
    let rig = run(directory.path(), &options, &upstream);
    assert_eq!(
        read(directory.path(), "a.b/1970-01-02/1.log"),
        "{\"x\":\"1\"}\n{\"x\":\"1\"}\n"
    );
    assert_eq!(
        read(directory.path(), "a.b/1970-01-02/2.log"),
        "{\"x\":\"2\"}\n"
    );
    assert_eq!(
        read(directory.path(), ".._c/1970-01-03/.._1.log"),
        "{\"x\":\"../1\"}\n"
    );
    assert_eq!(upstream.settled(), 2);
    assert_eq!(rig.meter("records_rejected"), 0);
}

#[test]
fn a_record_without_a_path_or_without_the_field_is_rejected_and_its_neighbors_are_written() {
    let cases = [
        (
            "{.x}.log",
            r#""add": {}"#,
            "no value for `.x`",
            "1.log",
            "{\"x\":\"1\"}\n{\"x\":\"1\"}\n",
        ),
        (
            "a",
            r#""format": "raw", "field": "x""#,
            "no field `.x`",
            "a",
            "1\n1\n",
        ),
    ];
    for (path, more, reason, file, expected) in cases {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::durable(7);
        let batch = entries("t", 0, &[("x", "1"), ("y", "2"), ("x", "1")]);
        upstream.put(batch.clone(), false);
        run(
            directory.path(),
            &options(directory.path(), path, more),
            &upstream,
        );
        assert_eq!(read(directory.path(), file), expected);
        let rejected = upstream.rejected();
        assert_eq!(rejected.iter().map(|batch| batch.count).sum::<u32>(), 1);
        let body = String::from_utf8_lossy(&rejected[0].body).into_owned();
        assert!(body.contains(reason), "{body}");
        assert_eq!(upstream.settled(), 1);
    }
}

#[test]
fn the_journal_moves_past_rejected_records_only_when_the_rejects_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    upstream.put(entries("t", 0, &[("x", "1"), ("y", "2")]), false);
    upstream.lose_reject();
    upstream.close();
    let options = options(directory.path(), "a", r#""format": "raw", "field": "x""#);
    let mut rig = Rig::new(
        &COMPONENT,
        &options,
        &upstream,
        &directory.path().join("state"),
    );
    assert!(block_on(rig.run()).is_err());
    block_on(rig.run()).unwrap();
    assert_eq!(read(directory.path(), "a"), "1\n");
    assert_eq!(upstream.rejected().len(), 1);
}

#[test]
fn a_batch_without_the_value_that_its_path_needs_is_rejected_whole() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::memory();
    let receipt = upstream.put(lines("t", "a\nb\n"), true);
    run(
        directory.path(),
        &options(directory.path(), "{host}", ""),
        &upstream,
    );
    assert_eq!(
        upstream
            .rejected()
            .iter()
            .map(|batch| batch.count)
            .sum::<u32>(),
        2
    );
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
}

#[test]
fn a_large_batch_of_lines_becomes_json_step_by_step() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::memory();
    let text: String = (0..300_000).map(|n| format!("line {n}\n")).collect();
    upstream.put(lines("t", &text), true);
    run(
        directory.path(),
        &options(directory.path(), "a", r#""add": {}"#),
        &upstream,
    );
    let expected: String = (0..300_000)
        .map(|n| format!("{{\"message\":\"line {n}\"}}\n"))
        .collect();
    assert!(read(directory.path(), "a") == expected);
}

#[test]
fn many_files_are_written_with_few_open() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    for round in 0..3 {
        let values: Vec<String> = (0..1500)
            .map(|n| format!("{}", (n * 7 + round) % 1500))
            .collect();
        let fields: Vec<_> = values.iter().map(|value| ("x", value.as_str())).collect();
        upstream.put(entries("t", 0, &fields), false);
    }
    let options = options(
        directory.path(),
        "{.x}",
        r#""open_files": 100, "format": "raw", "field": "x""#,
    );
    run(directory.path(), &options, &upstream);
    for n in 0..1500 {
        assert_eq!(
            read(directory.path(), &n.to_string()),
            format!("{n}\n").repeat(3)
        );
    }
    assert_eq!(upstream.settled(), 3);
}

#[test]
fn a_restart_continues_after_the_position_in_the_journal_and_not_at_the_cursor() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path(), "a", r#""format": "raw""#);
    let upstream = Upstream::durable(7);
    upstream.put(lines("t", "a\n"), false);
    upstream.put(lines("t", "b\n"), false);
    run(directory.path(), &options, &upstream);
    // The channel has lost its cursor, but the position is still in the sink's journal.
    let again = Upstream::durable(7);
    for line in ["a\n", "b\n", "c\n"] {
        again.put(lines("t", line), false);
    }
    run(directory.path(), &options, &again);
    assert_eq!(read(directory.path(), "a"), "a\nb\nc\n");
    // A position of another channel is ignored.
    let other = Upstream::durable(8);
    other.put(lines("t", "d\n"), false);
    run(directory.path(), &options, &other);
    assert_eq!(read(directory.path(), "a"), "a\nb\nc\nd\n");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let cases = [
        (r#"{}"#, "path"),
        (r#"{"path": "/a", "colour": 1}"#, "colour"),
        (r#"{"path": "/a/"}"#, "names no file"),
        (r#"{"path": "/{"}"#, "template"),
        (
            r#"{"path": "/a", "format": "template"}"#,
            "without a `template`",
        ),
        (
            r#"{"path": "/a", "rotate": {"keep": 3}}"#,
            "nothing is ever rotated",
        ),
        (r#"{"path": "/a", "rotate": {"size": 3}}"#, "3"),
        (r#"{"path": "/a", "latest": "/a"}"#, "not that of the file"),
        (r#"{"path": "/a", "compression": "lzma"}"#, "lzma"),
        (r#"{"path": "/a", "open_files": 0}"#, "at least one"),
        (r#"{"path": "/a", "timezone": "Mars/Olympus"}"#, "time zone"),
    ];
    for (options, expected) in cases {
        let problems = try_build(&COMPONENT, options).err().unwrap();
        assert!(
            problems.iter().any(|problem| problem.contains(expected)),
            "{options}: {problems:?}"
        );
    }
}

#[test]
fn it_keeps_the_contract_of_sinks() {
    let directory = tempfile::tempdir().unwrap();
    let sink = build(
        &COMPONENT,
        &options(directory.path(), "a.log", r#""format": "raw""#),
    );
    let file = directory.path().join("out/a.log");
    let arrived = move || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let state = directory.path().join("state");
    block_on(check_contract(&sink, &state, arrived, Some(misfit())));
}
