//! The first start over a directory with files, and what later starts take up.

use std::os::unix::fs::symlink;

use super::*;

const KEEP: &str = r#", "below": "keep""#;
const ADOPT: &str = r#", "adopt": true"#;

/// A rig that has not started, with these files in the directory.
fn over(files: &[(&str, &[u8])], downstream: Downstream) -> Rig {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig {
        directory,
        downstream,
        running: None,
    };
    fs::create_dir(rig.mount()).unwrap();
    for (name, content) in files {
        let path = rig.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    rig
}

/// The error of a start.
fn refused(rig: &Rig, options: &str) -> String {
    let options = format!("{{\"mount\": {:?}{options}}}", rig.mount());
    let state = rig.directory.path().join("state");
    let running = Running::start(&COMPONENT, &options, &rig.downstream, &state);
    running.ended().unwrap_err().message
}

fn content(rig: &Rig, name: &str) -> Vec<u8> {
    fs::read(rig.path(name)).unwrap_or_default()
}

/// Waits until the source has looked at the files below the mount once.
fn settled(rig: &Rig, marker: &str) {
    until("a new file is shipped", || {
        rig.lines().iter().any(|line| line == marker)
    });
    thread::sleep(Duration::from_millis(300));
}

#[test]
fn the_first_start_over_files_refuses_and_names_them_and_touches_nothing() {
    let files: &[(&str, &[u8])] = &[("photo.jpg", b"\xff\xd8\0"), ("d/private", b"secret\n")];
    let rig = over(files, Downstream::durable());
    for _ in 0..2 {
        let why = refused(&rig, "");
        for word in ["photo.jpg", "d/private", "adopt: true", "below: keep"] {
            assert!(why.contains(word), "{word}: {why}");
        }
    }
    let options = format!("{{\"mount\": {:?}}}", rig.mount());
    let source = try_build(&COMPONENT, &options).unwrap();
    let state = rig.directory.path().join("state");
    let (option, why) = source.obstacle(&state).unwrap();
    assert!(option == "mount" && why.contains("photo.jpg"), "{why}");
    for (name, expected) in files {
        assert_eq!(content(&rig, name), *expected);
    }
    assert!(rig.lines().is_empty());
}

#[test]
fn with_once_the_first_run_over_files_refuses_too() {
    let rig = over(&[("private", b"secret\n")], Downstream::memory());
    let options = format!("{{\"mount\": {:?}}}", rig.mount());
    let state = rig.directory.path().join("state");
    let source = try_build(&COMPONENT, &options).unwrap();
    let running = Running::of(source, &rig.downstream, &state, true);
    assert!(running.ended().unwrap_err().message.contains("private"));
    assert_eq!(content(&rig, "private"), b"secret\n");
}

#[test]
fn files_that_are_kept_stay_unshipped_and_only_what_is_written_between_the_mounts_is_taken_up() {
    for downstream in [Downstream::durable(), Downstream::memory()] {
        let files: &[(&str, &[u8])] = &[("private", b"secret\n"), ("d/app.log", b"old 1\nold 2\n")];
        let mut rig = over(files, downstream);
        rig.start(KEEP);
        assert_eq!(
            fs::read_dir(rig.mount()).unwrap().count(),
            1,
            "only d is shown"
        );
        rig.append("mounted").write_all(b"mounted\n").unwrap();
        rig.stop();
        fs::write(rig.path("between"), "between\n").unwrap();
        rig.append("d/app.log").write_all(b"new\n").unwrap();
        for start in ["first", "second"] {
            // The files are known, whether the option is still there or not.
            rig.start(if start == "first" { KEEP } else { "" });
            let marker = format!("{start} marker");
            rig.append("m")
                .write_all(format!("{marker}\n").as_bytes())
                .unwrap();
            settled(&rig, &marker);
            until("the files are shipped", || rig.lines().len() >= 4);
            rig.stop();
        }
        let mut lines = rig.lines();
        lines.sort();
        let expected = ["between", "first marker", "mounted", "new", "second marker"];
        assert_eq!(lines, expected);
        assert_eq!(content(&rig, "private"), b"secret\n");
        assert_eq!(content(&rig, "d/app.log"), b"old 1\nold 2\nnew\n");
        assert!(!rig.path("between").exists());
    }
}

#[test]
fn a_kept_file_that_is_rotated_between_the_mounts_stays_and_its_successor_is_shipped() {
    let mut rig = over(&[("app.log", b"old\n")], Downstream::durable());
    rig.start(KEEP);
    rig.stop();
    fs::rename(rig.path("app.log"), rig.path("app.log.1")).unwrap();
    fs::write(rig.path("app.log"), "new\n").unwrap();
    rig.start(KEEP);
    settled(&rig, "new");
    rig.stop();
    assert_eq!(rig.lines(), ["new"]);
    assert_eq!(content(&rig, "app.log.1"), b"old\n");
    assert!(!rig.path("app.log").exists());
}

#[test]
fn a_kept_file_that_is_truncated_between_the_mounts_is_shipped_from_its_start_and_stays() {
    let mut rig = over(&[("app.log", b"a long old line\n")], Downstream::durable());
    rig.start(KEEP);
    rig.stop();
    fs::write(rig.path("app.log"), "new\n").unwrap();
    for _ in 0..2 {
        rig.start(KEEP);
        settled(&rig, "new");
        rig.stop();
    }
    assert_eq!(rig.lines(), ["new"]);
    assert_eq!(content(&rig, "app.log"), b"new\n");
}

#[test]
fn adopted_files_are_shipped_and_kept_aside_and_binary_ones_stay() {
    let gzip: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0packed";
    let files: &[(&str, &[u8])] = &[
        ("a.log", b"1\n2"),
        ("d/b.log", b"3\n"),
        ("photo.jpg", b"\xff\xd8\xff\0\0\n"),
        ("c.gz", gzip),
    ];
    let mut rig = over(files, Downstream::durable());
    symlink("/etc/passwd", rig.path("link")).unwrap();
    // Something of an earlier adoption has the same name.
    let aside = rig.directory.path().join("state/adopted");
    fs::create_dir_all(&aside).unwrap();
    fs::write(aside.join("a.log"), "earlier\n").unwrap();
    rig.start(ADOPT);
    until("all are shipped", || rig.lines().len() >= 3);
    until("both are aside", || {
        aside.join("a.log.1").exists() && aside.join("d/b.log").exists()
    });
    rig.stop();
    let mut lines = rig.lines();
    lines.sort();
    assert_eq!(lines, ["1", "2", "3"]);
    assert_eq!(fs::read(aside.join("a.log")).unwrap(), b"earlier\n");
    assert_eq!(fs::read(aside.join("a.log.1")).unwrap(), b"1\n2");
    assert_eq!(fs::read(aside.join("d/b.log")).unwrap(), b"3\n");
    assert_eq!(content(&rig, "photo.jpg"), files[2].1);
    assert_eq!(content(&rig, "c.gz"), gzip);
    assert!(rig.path("link").is_symlink());
}

#[test]
fn an_adopted_file_is_not_moved_before_the_channel_has_kept_it() {
    let mut rig = over(&[("a.log", b"1\n")], Downstream::durable());
    rig.downstream.hold();
    rig.start(ADOPT);
    until("it is sent", || rig.lines().len() == 1);
    thread::sleep(Duration::from_millis(500));
    let aside = rig.directory.path().join("state/adopted/a.log");
    assert!(!aside.exists());
    rig.downstream.settle();
    until("it is aside", || aside.exists());
}

#[test]
fn with_once_adopted_files_are_shipped_and_files_of_later_runs_are_removed() {
    let rig = over(&[("a", b"1\n2")], Downstream::memory());
    let state = rig.directory.path().join("state");
    let options = format!("{{\"mount\": {:?}{ADOPT}}}", rig.mount());
    Running::once(&COMPONENT, &options, &rig.downstream, &state);
    assert_eq!(rig.lines(), ["1", "2"]);
    assert_eq!(fs::read(state.join("adopted/a")).unwrap(), b"1\n2");
    fs::write(rig.path("b"), "3\n").unwrap();
    Running::once(&COMPONENT, &options, &rig.downstream, &state);
    assert_eq!(rig.lines(), ["1", "2", "3"]);
    assert_eq!(fs::read_dir(rig.mount()).unwrap().count(), 0);
}

#[test]
fn another_directory_is_a_first_start_again() {
    let mut rig = over(&[], Downstream::durable());
    rig.start("");
    rig.stop();
    fs::rename(rig.mount(), rig.directory.path().join("moved")).unwrap();
    fs::create_dir(rig.mount()).unwrap();
    fs::write(rig.path("private"), "secret\n").unwrap();
    assert!(refused(&rig, "").contains("private"));
    assert_eq!(content(&rig, "private"), b"secret\n");
}

#[test]
fn a_file_system_and_a_link_below_the_mount_are_not_entered() {
    let mut rig = over(&[], Downstream::durable());
    let outside = rig.directory.path().join("outside");
    for directory in [&outside, &rig.path("bound")] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(outside.join("private"), "secret\n").unwrap();
    symlink(&outside, rig.path("link")).unwrap();
    let mount = |arguments: &[&str]| {
        let status = Command::new(arguments[0]).args(&arguments[1..]).status();
        assert!(status.unwrap().success());
    };
    let bound = rig.path("bound").display().to_string();
    mount(&["mount", "--bind", &outside.display().to_string(), &bound]);
    rig.start("");
    // A program makes a directory where the plain directory has a link.
    fs::create_dir(rig.path("link")).unwrap();
    fs::set_permissions(
        rig.path("link"),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    rig.append("m").write_all(b"marker\n").unwrap();
    settled(&rig, "marker");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&outside).unwrap());
    rig.stop();
    mount(&["umount", &bound]);
    assert_ne!(mode & 0o777, 0o777);
    assert_eq!(rig.lines(), ["marker"]);
    assert_eq!(fs::read(outside.join("private")).unwrap(), b"secret\n");
}

#[test]
fn a_choice_that_contradicts_itself_is_refused() {
    let options = r#"{"mount": "m", "adopt": true, "below": "keep"}"#;
    let why = try_build(&COMPONENT, options).err().unwrap().join("\n");
    assert!(why.contains("choose one"), "{why}");
}
