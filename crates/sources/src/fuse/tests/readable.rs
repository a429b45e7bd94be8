//! Written data can be read: files of any size, holes, and files of an earlier run.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};

use super::*;

/// Runs a script in the mount.
fn sh(rig: &Rig, script: &str) -> String {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(rig.mount())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Lines of `bytes` bytes in total.
fn text(bytes: usize) -> Vec<u8> {
    let lines = (0..).flat_map(|n: u64| format!("{n} a line of the log\n").into_bytes());
    lines.take(bytes).collect()
}

#[test]
fn files_of_any_size_are_read_by_common_programs() {
    let rig = Rig::new(Downstream::durable(), "");
    let data = text(5_000_001);
    fs::write(rig.path("f"), &data).unwrap();
    let outside = rig.directory.path().join("outside");
    fs::write(&outside, &data).unwrap();
    let outside = outside.display();
    sh(
        &rig,
        &format!(
            "cmp f {outside}; test $(wc -l < f) = $(wc -l < {outside}); gzip -c f | gunzip | cmp - {outside}; \
             cp f {outside}.cp; cmp {outside}.cp {outside}; dd if=f bs=777k status=none | cmp - {outside}; \
             tail -c 100 f | cmp - <(tail -c 100 {outside}); grep -c line f | cmp - <(grep -c line {outside}); \
             cat f f > g; cmp g <(cat {outside} {outside})"
        ),
    );
}

#[test]
fn small_and_large_writes_anywhere_are_read_as_they_were_written() {
    let rig = Rig::new(Downstream::durable(), "");
    let mut options = fs::File::options();
    let options = options.read(true).write(true).create(true);
    let file = options.open(rig.path("f")).unwrap();
    let mut expected = Vec::new();
    let data = text(900_000);
    for (n, bytes) in [10, 300_000, 7, 262_144, 900_000, 5_000, 1]
        .into_iter()
        .enumerate()
    {
        for offset in [n * 100_000, 0, 2_000_000 - n] {
            file.write_all_at(&data[n..n + bytes - n.min(bytes - 1)], offset as u64)
                .unwrap();
            let part = &data[n..n + bytes - n.min(bytes - 1)];
            if expected.len() < offset + part.len() {
                expected.resize(offset + part.len(), 0);
            }
            expected[offset..offset + part.len()].copy_from_slice(part);
            let mut read = vec![1; part.len()];
            file.read_exact_at(&mut read, offset as u64).unwrap();
            assert!(read == part);
        }
    }
    assert!(fs::read(rig.path("f")).unwrap() == expected);
    file.set_len(150_000).unwrap();
    file.set_len(400_000).unwrap();
    expected.truncate(150_000);
    expected.resize(400_000, 0);
    assert!(fs::read(rig.path("f")).unwrap() == expected);
}

#[test]
fn a_program_that_runs_in_the_mount_is_not_truncated_by_an_open() {
    let rig = Rig::new(Downstream::durable(), "");
    sh(&rig, "cp $(command -v sleep) program; chmod 755 program");
    let size = fs::metadata(rig.path("program")).unwrap().len();
    let mut running = Command::new(rig.path("program")).arg("60").spawn().unwrap();
    for with in [OFlags::WRONLY | OFlags::TRUNC, OFlags::TRUNC] {
        let opened = open(rig.path("program"), with, Mode::empty());
        assert_eq!(opened.unwrap_err(), Errno::TXTBSY);
    }
    assert_eq!(fs::metadata(rig.path("program")).unwrap().len(), size);
    assert!(running.try_wait().unwrap().is_none());
    running.kill().unwrap();
    running.wait().unwrap();
    // It can be replaced once it no longer runs.
    fs::File::create(rig.path("program")).unwrap();
    assert_eq!(fs::metadata(rig.path("program")).unwrap().len(), 0);
}

#[test]
fn beyond_the_bound_old_bytes_read_as_zeros_and_are_a_hole() {
    let rig = Rig::new(
        Downstream::durable(),
        r#", "recent": { "file": "1MiB", "all": "16MiB" }"#,
    );
    let data = text(8 << 20);
    fs::write(rig.path("f"), &data).unwrap();
    let read = fs::read(rig.path("f")).unwrap();
    let at = data.len() - (1 << 20);
    assert_eq!(read.len(), data.len());
    assert!(read[at..] == data[at..]);
    assert!(read[..4 << 20].iter().all(|byte| *byte == 0));
    let script = "import os; f = os.open(\"f\", os.O_RDONLY); print(os.lseek(f, 0, os.SEEK_DATA) >= 4 << 20, \
                  os.lseek(f, 0, os.SEEK_HOLE), os.lseek(f, 7 << 20, os.SEEK_HOLE) == 8 << 20)";
    assert_eq!(sh(&rig, &format!("python3 -c '{script}'")), "True 0 True\n");
    // A copy of it is still recognized.
    let lines = rig.lines().len();
    sh(
        &rig,
        "cp f f.1; cp --sparse=always f f.2; cmp <(tail -c 1M f) <(tail -c 1M f.2)",
    );
    assert_eq!(rig.lines().len(), lines);
    let held = || rig.running.as_ref().unwrap().meter("recent_bytes");
    until("the meter shows it", || held() > 0);
    assert!(held() <= 4 << 20, "{}", held());
    assert_eq!(
        fs::metadata(rig.path("f")).unwrap().len(),
        data.len() as u64
    );
}

#[test]
fn archives_that_are_begun_before_the_file_is_read_are_not_shipped() {
    let rig = Rig::new(Downstream::durable(), "");
    rig.append("app.log").write_all(b"one\n").unwrap();
    // As Java does: the header is written when both files are open. The name does not extend that of the log.
    let script = "
log, archive = open(\"app.log\", \"rb\"), open(\"app.1.log.gz\", \"wb\", buffering=0)
archive.write(b\"\\x1f\\x8b\\x08\\0\\0\\0\\0\\0\\0\\0\")
archive.write(log.read())
";
    sh(
        &rig,
        &format!("python3 -c '{script}'; shred -u -n 1 app.log"),
    );
    assert_eq!(fs::read(rig.path("app.1.log.gz")).unwrap()[10..], *b"one\n");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.lines(), ["one"]);
    let copied = || rig.running.as_ref().unwrap().meter("copied_bytes");
    assert!(copied() >= 14);
}

#[test]
fn a_name_that_is_too_long_is_refused_with_the_reason() {
    let rig = Rig::new(Downstream::durable(), "");
    let long = rig.path(&"x".repeat(256));
    let errors = [
        fs::metadata(&long).err(),
        fs::remove_file(&long).err(),
        fs::write(&long, "x").err(),
    ];
    for error in errors {
        assert_eq!(
            error.unwrap().raw_os_error(),
            Some(Errno::NAMETOOLONG.raw_os_error())
        );
    }
}

#[test]
fn a_write_that_is_refused_after_a_while_does_not_count_in_the_size() {
    let rig = Rig::new(Downstream::durable(), r#", "when_full": { "block": "1s" }"#);
    let mut file = rig.append("f");
    file.write_all(b"one\n").unwrap();
    rig.downstream.set_full(true);
    let refused = file.write_all(b"two\n").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs::metadata(rig.path("f")).unwrap().len(), 4);
    rig.downstream.set_full(false);
    file.write_all(b"three\n").unwrap();
    assert_eq!(fs::read(rig.path("f")).unwrap(), b"one\nthree\n");
}

#[test]
fn a_removed_file_is_readable_until_it_is_closed_and_then_takes_no_space() {
    let rig = Rig::new(Downstream::durable(), "");
    let data = text(1_000_000);
    fs::write(rig.path("f"), &data).unwrap();
    let open = fs::File::open(rig.path("f")).unwrap();
    fs::write(rig.path("g"), "other\n").unwrap();
    fs::rename(rig.path("g"), rig.path("f")).unwrap();
    let mut read = vec![0; data.len()];
    open.read_exact_at(&mut read, 0).unwrap();
    assert!(read == data);
    assert_eq!(fs::read(rig.path("f")).unwrap(), b"other\n");
    let spills = || {
        fs::read_dir(rig.directory.path().join("state/recent"))
            .unwrap()
            .count()
    };
    assert_eq!(spills(), 2);
    drop(open);
    until("its spill is deleted", || spills() == 1);
}

#[test]
fn files_of_an_earlier_run_are_there_again_and_are_not_shipped_again() {
    let mut rig = Rig::new(Downstream::durable(), "");
    let data = text(1_000_000);
    fs::create_dir(rig.path("app")).unwrap();
    fs::write(rig.path("app/x.log.1"), &data).unwrap();
    rig.append("app/x.log").write_all(b"one\n").unwrap();
    fs::set_permissions(rig.path("app/x.log"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("app/x.log", rig.path("now")).unwrap();
    let before = fs::metadata(rig.path("app/x.log.1")).unwrap();
    let lines = rig.lines().len();
    for _ in 0..2 {
        rig.stop();
        rig.start("");
        assert!(fs::read(rig.path("app/x.log.1")).unwrap() == data);
        let after = fs::metadata(rig.path("app/x.log.1")).unwrap();
        assert_eq!(
            (after.ino(), after.mtime_nsec()),
            (before.ino(), before.mtime_nsec())
        );
    }
    assert_eq!(fs::metadata(rig.path("now")).unwrap().mode() & 0o777, 0o640);
    rig.append("now").write_all(b"two\n").unwrap();
    assert_eq!(fs::read(rig.path("app/x.log")).unwrap(), b"one\ntwo\n");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.lines().len(), lines + 1);
}

#[test]
fn a_filtered_file_reads_as_stars_after_a_restart_too() {
    let options =
        r#", "rules": [{ "path": "*.log", "rewrite": [{ "match": "\\d+", "replace": "-" }] }]"#;
    let mut rig = Rig::new(Downstream::durable(), options);
    rig.append("a.log").write_all(b"key 123\nx").unwrap();
    let secret = vec![b'7'; 600_000];
    rig.append("b.log")
        .write_all(&[&secret[..], b"\n"].concat())
        .unwrap();
    let spills = rig.directory.path().join("state/recent");
    for entry in fs::read_dir(spills).unwrap() {
        let held = fs::read(entry.unwrap().path()).unwrap();
        assert!(!held.windows(3).any(|part| part == b"123" || part == b"777"));
    }
    rig.stop();
    // The rule is gone.
    rig.start("");
    assert_eq!(fs::read(rig.path("a.log")).unwrap(), b"*******\n*");
    assert_eq!(fs::read(rig.path("b.log")).unwrap().len(), 600_001);
}

#[test]
fn a_write_that_fails_leaves_the_size_and_the_bytes_as_they_were() {
    let rig = Rig::new(Downstream::durable(), r#", "when_full": "fail""#);
    let mut file = rig.append("f");
    file.write_all(b"one\n").unwrap();
    rig.downstream.set_full(true);
    for bytes in [10, 500_000] {
        file.write_all(&[&vec![b'x'; bytes][..], b"\n"].concat())
            .unwrap_err();
        assert_eq!(fs::metadata(rig.path("f")).unwrap().len(), 4);
    }
    rig.downstream.set_full(false);
    file.set_len(20).unwrap();
    assert_eq!(
        fs::read(rig.path("f")).unwrap(),
        b"one\n\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    );
}

#[test]
fn with_recent_0_files_have_their_size_and_read_as_zeros() {
    let rig = Rig::new(Downstream::durable(), r#", "recent": { "file": 0 }"#);
    rig.append("f.log").write_all(b"one\n").unwrap();
    assert_eq!(fs::read(rig.path("f.log")).unwrap(), [0; 4]);
    sh(&rig, "cp f.log f.log.1");
    assert_eq!(rig.lines(), ["one"]);
    assert!(!rig.directory.path().join("state/recent").exists());
}
