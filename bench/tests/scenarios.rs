//! Runs scenarios against a stand-in for millstream, and checks what they report.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Creates a program that is called like millstream, with `run CONFIG`, but ignores its arguments and runs this shell command.
fn stand_in(directory: &Path, command: &str) -> PathBuf {
    let path = directory.join("millstream");
    let text = format!("#!/bin/sh\n{command}\n");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn command(directory: &Path, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millbench"));
    command
        .args(["run", "--runs", "1", "--millstream"])
        .arg(program)
        .arg("--work")
        .arg(directory.join("work"))
        .arg("--results")
        .arg(directory.join("results"))
        .args(arguments);
    if !arguments.contains(&"--seconds") {
        command.args(["--seconds", "0.2"]);
    }
    command
}

fn run(directory: &Path, program: &Path, arguments: &[&str]) -> Output {
    command(directory, program, arguments).output().unwrap()
}

/// The saved results.
fn report(directory: &Path, scenario: &str) -> serde_json::Value {
    let saved = fs::read_dir(directory.join("results")).unwrap();
    let saved = saved.last().unwrap().unwrap().path();
    let saved = saved.join(scenario).with_extension("json");
    serde_json::from_slice(&fs::read(saved).unwrap()).unwrap()
}

#[test]
fn a_server_is_measured_beside_the_bare_reader() {
    let directory = tempfile::tempdir().unwrap();
    // The stand-in exits successfully on SIGTERM, as millstream does.
    let command = format!(
        "{} flow --listen 127.0.0.1:$PORT & trap 'kill $!; exit 0' TERM; wait",
        env!("CARGO_BIN_EXE_millbench")
    );
    let program = stand_in(directory.path(), &command);
    let only = [
        "forward_receive",
        "--only",
        "packed -> discard, 2 conn, acks",
    ];
    let output = run(directory.path(), &program, &only);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{output:?}");
    assert!(
        text.contains("bare reader that acks, packed, 2 conn"),
        "{text}"
    );
    // A virtual machine may report an incomplete name of its processor; the model identifies it.
    #[cfg(target_arch = "x86_64")]
    assert!(text.contains("(family/model/stepping "), "{text}");
    assert!(!text.contains("8 conn"), "{text}");
    let report = report(directory.path(), "forward_receive");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(row["runs"][0]["records"].as_u64().unwrap() >= 8192, "{row}");
    }
}

#[test]
fn a_server_that_loses_records_fails_the_scenario() {
    let directory = tempfile::tempdir().unwrap();
    // The stand-in saves all received records except the first.
    let command = format!(
        "{} flow --listen 127.0.0.1:$PORT --save $OUT.all & \
         trap 'kill $!; sed 1d $OUT.all > $OUT; rm $OUT.all; exit 0' TERM; wait",
        env!("CARGO_BIN_EXE_millbench")
    );
    let program = stand_in(directory.path(), &command);
    let output = run(
        directory.path(),
        &program,
        &["forward_receive", "--only", "file raw"],
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text.contains("WRONG") && text.contains("1 lost"), "{text}");
}

#[test]
fn the_log_of_a_server_that_does_not_start_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let program = stand_in(directory.path(), "echo out of luck >&2; exit 78");
    let output = run(
        directory.path(),
        &program,
        &["forward_receive", "--only", "raw"],
    );
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("out of luck"), "{error}");
}

#[test]
fn the_tail_scenario_accepts_a_complete_copy() {
    let directory = tempfile::tempdir().unwrap();
    let command = "tail -c +1 -f $IN > $OUT & trap 'kill $!; exit 0' TERM; wait";
    let program = stand_in(directory.path(), command);
    let arguments = ["tail_to_file", "--only", "tail -> file", "--lines", "100k"];
    let output = run(directory.path(), &program, &arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{output:?}");
    assert!(text.contains("tail -> file"), "{text}");
}

#[test]
fn a_tag_of_every_length_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let command = format!(
        "{} flow --listen 127.0.0.1:$PORT & trap 'kill $!; exit 0' TERM; wait",
        env!("CARGO_BIN_EXE_millbench")
    );
    let program = stand_in(directory.path(), &command);
    let only = [
        "forward_receive",
        "--only",
        "tags of 1-64",
        "--seconds",
        "0.04",
    ];
    let output = run(directory.path(), &program, &only);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{output:?}");
    assert!(text.contains("% of the fastest: "), "{text}");
    let report = report(directory.path(), "forward_receive");
    let swept = &report["rows"][1];
    let variants: BTreeSet<_> = swept["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["variant"].as_str().unwrap())
        .collect();
    assert_eq!(variants.len(), 64, "{swept}");
    assert!(variants.contains("a tag of 64 bytes"), "{swept}");
}

#[test]
fn without_libfuse_the_table_marks_the_reference_as_missing() {
    let directory = tempfile::tempdir().unwrap();
    // This compiler fails as if libfuse were not installed.
    let tools = directory.path().join("tools");
    fs::create_dir(&tools).unwrap();
    let cc = tools.join("cc");
    fs::write(&cc, "#!/bin/sh\necho 'cc: no fuse.h here' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&cc, fs::Permissions::from_mode(0o755)).unwrap();
    let program = stand_in(directory.path(), "echo out of luck >&2; exit 78");
    let output = command(
        directory.path(),
        &program,
        &["fuse_to_file", "--only", "pass-through"],
    )
    .env("PATH", format!("{}:/usr/bin:/bin", tools.display()))
    .output()
    .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{output:?}");
    let missing =
        "MISSING  pass-through mount, 4096 B: it takes a C compiler, pkg-config and libfuse3-dev (";
    assert!(text.contains(missing), "{text}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("no pass-through mount to compare with"),
        "{error}"
    );
}

#[test]
fn the_idle_scenario_times_acks() {
    let directory = tempfile::tempdir().unwrap();
    let command = format!(
        "{} flow --listen 127.0.0.1:$PORT & trap 'kill $!; exit 0' TERM; wait",
        env!("CARGO_BIN_EXE_millbench")
    );
    let program = stand_in(directory.path(), &command);
    let output = run(directory.path(), &program, &["idle", "--only", "its ack"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{output:?}");
    assert!(text.contains("one message, then its ack: median"), "{text}");
}
