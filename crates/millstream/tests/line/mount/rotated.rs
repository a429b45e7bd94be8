//! Debian's logrotate in the mount: a line that a rule masks is sent by no other rule, and nothing is sent twice.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use super::{Rig, run};

const CHANNEL: &str = "size_max: 64MiB, sync: 1s";
/// A rule that masks passwords, and one for all other files.
const RULES: &str = "rules: [{ path: \"audit/*.log\", tag: audit, rewrite: [{ match: \"password=\\\\S+\", replace: \"password=-\" }] }, \
                     { path: \"**\", tag: other }]";

/// Rotates `log` (below the mount point) by `rules`.
fn rotate(rig: &Rig, log: &str, rules: &str) {
    let rules = format!("rotate 100\n  {rules}");
    rotate_files(rig, &[rig.mount().join(log)], &rules);
}

/// Rotates files by `rules`.
pub(super) fn rotate_files(rig: &Rig, logs: &[PathBuf], rules: &str) {
    let place = rig.directory.path();
    let config = place.join("rotate.conf");
    let logs: Vec<_> = logs.iter().map(|log| log.display().to_string()).collect();
    let text = format!("{} {{\n  size 1\n  {rules}\n}}\n", logs.join(" "));
    fs::write(&config, text).unwrap();
    // logrotate refuses configurations that other users may write.
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
    let binary = ["/usr/sbin/logrotate", "/sbin/logrotate"];
    let binary = binary.into_iter().find(|path| Path::new(path).exists());
    let mut command = Command::new(binary.expect("logrotate is missing: run `make deps`"));
    run(command
        .arg("-f")
        .arg("-s")
        .arg(place.join("rotate.state"))
        .arg(&config));
}

#[test]
fn lines_that_a_rule_masks_are_sent_by_no_other_rule_however_logrotate_rotates_them() {
    let dated = "dateext\n  dateformat -%Y%m%d-%s";
    let rig = Rig::new(RULES, CHANNEL, "{tag} {.message}");
    rig.bash("mkdir old");
    let mut expected = Vec::new();
    for (rules, pause) in [
        ("copytruncate", 0),
        ("copytruncate\n  compress", 0),
        (&*format!("copytruncate\n  {dated}"), 1100),
        ("copytruncate\n  olddir ../old", 0),
        ("create", 0),
        ("create\n  compress", 0),
        (
            &*format!("create\n  compress\n  delaycompress\n  {dated}"),
            1100,
        ),
    ] {
        for round in 0..3 {
            let n = expected.len();
            rig.bash(&format!(
                "echo 'user={n} password=hunter2' >> audit/app.log"
            ));
            expected.push(format!("audit user={n} password=-"));
            assert_eq!(
                rig.until_lines(expected.len()),
                expected,
                "{rules}: {round}"
            );
            rotate(&rig, "audit/app.log", rules);
            sleep(Duration::from_millis(pause));
        }
        // A program appends to the rotated file under its new name.
        if rules == "create" {
            rig.bash("echo 'late password=hunter2' >> audit/app.log.1");
            expected.push("audit late password=-".to_owned());
        }
        assert_eq!(rig.until_lines(expected.len()), expected, "{rules}");
        rig.bash("rm -f audit/* old/*");
    }
    // Programs that read the file see it without the secrets, so their copies cannot contain any.
    rig.bash(
        "echo 'password=hunter2' >> audit/app.log; cp audit/app.log elsewhere; gzip -c audit/app.log | gunzip > unpacked; \
         ! grep -q hunter2 audit/app.log",
    );
    expected.extend(
        [
            "audit password=-",
            "other ****************",
            "other ****************",
        ]
        .map(str::to_owned),
    );
    assert_eq!(rig.until_lines(expected.len()), expected);
}

#[test]
fn a_copy_is_not_sent_again_if_its_name_extends_that_of_the_original() {
    let rig = Rig::plain();
    rig.bash("seq 1 2000 > app.log");
    rig.until_lines(2000);
    for rules in ["copytruncate", "copytruncate\n  compress"] {
        rotate(&rig, "app.log", rules);
        rig.bash("seq 2001 2010 >> app.log");
    }
    rig.bash("cp app.log app.log.bak; echo new >> app.log.bak; cp app.log other");
    let mut expected: Vec<String> = (1..=2010).map(|n| n.to_string()).collect();
    expected.extend((2001..=2010).map(|n| n.to_string()));
    expected.push("new".to_owned());
    expected.extend((2001..=2010).map(|n| n.to_string()));
    assert_eq!(rig.until_lines(expected.len()), expected);
}

#[test]
fn a_file_that_is_rotated_while_millstream_is_stopped_follows_the_rule_that_masks_it() {
    let mut rig = Rig::new(RULES, CHANNEL, "{tag} {.message}");
    assert_eq!(rig.program.take().unwrap().stop(), Some(0));
    let write = |rig: &Rig, n: u32| {
        rig.bash(&format!(
            "echo 'user={n} password=hunter2' >> audit/app.log"
        ));
    };
    write(&rig, 1);
    rotate(&rig, "audit/app.log", "create");
    write(&rig, 2);
    rig.start();
    let mut arrived = rig.until_lines(2);
    arrived.sort();
    assert_eq!(
        arrived,
        ["audit user=1 password=-", "audit user=2 password=-"]
    );
    assert_eq!(rig.program.take().unwrap().stop(), Some(0));
    write(&rig, 3);
    rotate(&rig, "audit/app.log", "create\n  compress");
    write(&rig, 4);
    rig.start();
    assert_eq!(rig.until_lines(3)[2..], ["audit user=4 password=-"]);
    assert_eq!(
        rig.log_lines("it is compressed, so its rule cannot filter it"),
        1
    );
    // The compressed file, which was not sent, still exists.
    assert_eq!(rig.program.take().unwrap().stop(), Some(0));
    assert!(rig.mount().join("audit/app.log.1.gz").exists());
}
