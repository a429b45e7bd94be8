//! Rules that copy records, and files that are not shipped.

use super::*;

fn rules(rules: &str) -> String {
    format!(r#", "rules": [{rules}]"#)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_rule_that_does_not_ship_only_copies() {
    let copies = tempfile::tempdir().unwrap();
    let place = copies.path().display();
    let options = rules(&format!(
        r#"{{"path": "debug/*", "ship": false, "tee": "{place}/", "deny": "no"}}"#
    ));
    let mut rig = Rig::new(Downstream::durable(), &options);
    let mut file = rig.append("debug/a");
    file.write_all(b"one\nno\nunfin").unwrap();
    file.sync_all().unwrap();
    assert_eq!(read(&copies.path().join("debug/a")), "one\n");
    file.write_all(b"ished\nlast").unwrap();
    drop(file);
    rig.append("other").write_all(b"shipped\n").unwrap();
    until("the last line is copied", || {
        read(&copies.path().join("debug/a")) == "one\nunfinished\nlast\n"
    });
    let meter = |name| rig.running.as_ref().unwrap().meter(name);
    assert_eq!(meter("records_only_copied"), 3);
    rig.stop();
    assert_eq!(rig.lines(), ["shipped"]);
}

#[test]
fn a_write_that_is_only_copied_fails_if_the_copy_fails() {
    let copies = tempfile::tempdir().unwrap();
    let blocked = copies.path().join("file");
    fs::write(&blocked, "no directory").unwrap();
    let options = rules(&format!(
        r#"{{"path": "**", "ship": false, "tee": "{}/x"}}"#,
        blocked.display()
    ));
    let rig = Rig::new(Downstream::durable(), &options);
    let mut file = rig.append("a");
    assert!(file.write_all(b"line\n").is_err());
    fs::remove_file(&blocked).unwrap();
    file.write_all(b"line\n").unwrap();
    assert_eq!(read(&blocked.join("x")), "line\n");
    assert!(rig.lines().is_empty());
}

#[test]
fn a_copy_into_the_mount_is_treated_by_its_own_rule() {
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().canonicalize().unwrap().join("mnt");
    let place = mount.display();
    for options in ["", r#", "ship": false"#] {
        let rules = rules(&format!(
            r#"{{"path": "raw/*", "tag": "raw", "tee": "{place}/clean/{{path:base}}"{options}}},
               {{"path": "clean/*", "tag": "clean", "deny": "DEBUG"}}"#
        ));
        let mut rig = Rig {
            directory: tempfile::tempdir().unwrap(),
            downstream: Downstream::durable(),
            running: None,
        };
        let options = format!("{{\"mount\": {mount:?}{rules}}}");
        let state = rig.directory.path().join("state");
        let running = Running::start(&COMPONENT, &options, &rig.downstream, &state);
        rig.running = Some(running);
        until("it is mounted", || {
            millstream_sys::fuse::type_of_mount(&mount)
                .unwrap()
                .is_some()
        });
        let mut file = fs::File::create(mount.join("raw/app.log")).unwrap();
        file.write_all(b"INFO 1\nDEBUG 2\nun").unwrap();
        file.write_all(b"finished").unwrap();
        drop(file);
        let downstream = rig.downstream.clone();
        let of = |tag: &str| {
            let batches = downstream.batches().into_iter();
            let batches = batches.filter(|batch| batch.tag.as_str() == tag);
            let paths = batches.map(|batch| {
                let path = batch.values.get("path").unwrap().to_owned();
                (path, String::from_utf8_lossy(&batch.body).into_owned())
            });
            paths.collect::<Vec<_>>()
        };
        until("both lines are there", || of("clean").len() == 2);
        rig.stop();
        let copy = |text: &str| ("clean/app.log".to_owned(), text.to_owned());
        assert_eq!(of("clean"), [copy("INFO 1\n"), copy("unfinished\n")]);
        let raw = if options.contains("ship") { 0 } else { 2 };
        assert_eq!(of("raw").len(), raw);
    }
}

#[test]
fn a_copy_that_leads_back_to_its_rule_is_refused() {
    let problem = |rules: &str| {
        let options = format!(r#"{{"mount": "/mnt/logs", "rules": [{rules}]}}"#);
        try_build(&COMPONENT, &options)
            .err()
            .map(|all| all.join("\n"))
    };
    let direct = problem(r#"{"path": "**", "tee": "/mnt/logs/x"}"#).unwrap();
    assert!(direct.contains("would never end"), "{direct}");
    let around = r#"{"path": "a/*", "tee": "/mnt/logs/b/{path:base}"}, {"path": "b/*", "tee": "/mnt/../mnt/logs/a/x"}"#;
    assert!(problem(around).unwrap().contains("would never end"));
    let joins = r#"{"path": "a/*", "tee": "/mnt/logs/b"}, {"path": "b", "framing": {"multiline": {"start": "x"}}}"#;
    assert!(problem(joins).unwrap().contains("multiline"));
    let good =
        r#"{"path": "a/*", "tee": "/mnt/logs/b/x"}, {"path": "b/*", "tee": "/mnt/logs2/a/x"}"#;
    assert_eq!(problem(good), None);
    let swallows = problem(r#"{"path": "a", "ship": false}"#).unwrap();
    assert!(swallows.contains("would be lost"), "{swallows}");
}

#[test]
fn the_output_of_a_command_is_stored() {
    let copies = tempfile::tempdir().unwrap();
    let output = copies.path().join("new/out");
    let options = rules(&format!(
        r#"{{"path": "**", "exec": {{"command": ["sed", "-u", "s/^/got /"], "output": {output:?}}}}}"#
    ));
    let mut rig = Rig::new(Downstream::durable(), &options);
    rig.append("f").write_all(b"a\nb\n").unwrap();
    until("the command has written it", || {
        read(&output) == "got a\ngot b\n"
    });
    rig.stop();
    assert_eq!(rig.lines(), ["a", "b"]);
}

#[test]
fn editors_files_and_compressed_files_are_not_shipped_but_counted_and_readable() {
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03packed\nlines\n";
    for (options, is_shipped) in [
        ("", false),
        (r#", "leave_out": {"names": [], "compressed": false}"#, true),
    ] {
        let mut rig = Rig::new(Downstream::durable(), options);
        let mut packed = rig.append("a.gz");
        // Some programs write the first bytes alone.
        packed.write_all(&gzip[..2]).unwrap();
        packed.write_all(&gzip[2..]).unwrap();
        for name in [".app.log.swp", "app.log~", ".#app.log", "#app.log#", "4913"] {
            rig.append(name).write_all(b"half a line\n").unwrap();
        }
        rig.append("app.log").write_all(b"line\n").unwrap();
        assert_eq!(fs::read(rig.path("a.gz")).unwrap(), gzip);
        assert_eq!(read(&rig.path("app.log~")), "half a line\n");
        drop(packed);
        let meter = |name| rig.running.as_ref().unwrap().meter(name);
        let (files, bytes) = (meter("files_left_out"), meter("left_out_bytes"));
        rig.stop();
        if is_shipped {
            assert_eq!((files, bytes), (0, 0));
            assert_eq!(
                rig.lines()
                    .iter()
                    .filter(|line| *line == "half a line")
                    .count(),
                5
            );
        } else {
            assert_eq!((files, bytes), (6, gzip.len() as u64 + 5 * 12));
            assert_eq!(rig.lines(), ["line"]);
        }
    }
}

#[test]
fn editors_files_and_compressed_files_that_are_written_between_the_mounts_stay() {
    let mut rig = Rig::new(Downstream::durable(), "");
    rig.stop();
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03packed\n";
    fs::write(rig.path("a.gz"), gzip).unwrap();
    fs::write(rig.path("app.log~"), "old\n").unwrap();
    fs::write(rig.path("app.log"), "line\n").unwrap();
    rig.start("");
    until("the log is shipped", || !rig.lines().is_empty());
    thread::sleep(Duration::from_millis(500));
    rig.stop();
    assert_eq!(rig.lines(), ["line"]);
    assert_eq!(fs::read(rig.path("a.gz")).unwrap(), gzip);
    assert_eq!(read(&rig.path("app.log~")), "old\n");
}

#[test]
fn a_name_with_a_newline_forges_no_line_of_an_output() {
    let rig = Rig::new(Downstream::durable(), "");
    rig.append("a\n2026 forged").write_all(b"line\n").unwrap();
    let batch = rig.downstream.batches().remove(0);
    assert_eq!(batch.values.get("path"), Some("a\\n2026 forged"));
}
