//! Machines that lack something: a data_dir that can be written, inodes, a database of time zones. Needs root.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::stops::{Piped, append, arrives};
use crate::program::wait_until;

/// A tmpfs with these options, unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(path: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]);
        let done = mount.arg(&path).status();
        assert!(done.unwrap().success(), "run the tests as root");
        Self(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A path through a disk channel, and one through memory. Both read `in.log`; the second writes `out`.
fn two_paths(place: &Path) -> String {
    let place = place.display();
    format!(
        "sources:\n  kept: {{ type: generate, rate: 10 }}\n  in: {{ type: tail, paths: [\"{place}/in.log\"] }}\n  \
         net: {{ type: syslog, listen: \"udp://127.0.0.1:0\" }}\n\
         channels:\n  buf: {{ type: disk, inputs: [kept] }}\n\
         sinks:\n  far: {{ type: discard, inputs: [buf] }}\n  near: {{ type: discard, inputs: [net] }}\n  \
         out: {{ type: file, inputs: [in], format: raw, path: \"{place}/out\" }}\n"
    )
}

/// The state of a node in `/status`, and why.
fn node(program: &Piped, name: &str) -> (String, String) {
    let status = program.get("/status").unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let nodes = status["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|node| node["name"] == name).unwrap();
    let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("why"))
}

/// Runs a second instance with the same data_dir.
fn run_second(place: &Path, nodes: &str) -> Output {
    let config = place.join("second.yaml");
    let text = format!(
        "data_dir: {}/data\napi: {{ listen: [] }}\n{nodes}",
        place.display()
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(["run", "--once"]).arg(config);
    command.output().unwrap()
}

#[test]
fn a_read_only_data_dir_fails_what_needs_it_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let _mounted = Mounted::new(place.join("data"), "ro");
    let (mut program, _log) = Piped::start(place, &[], &two_paths(place));
    for name in ["buf", "kept", "far"] {
        let (state, why) = node(&program, name);
        assert_eq!(state, "failed", "{name}: {why}");
        assert!(why.contains("Read-only file system"), "{name}: {why}");
    }
    assert_eq!(node(&program, "near").0, "running");
    let status = program.get("/status").unwrap();
    assert!(status.contains(r#""what":"data_dir""#), "{status}");
    wait_until("what needs its state waits", || {
        node(&program, "out").0 != "running"
    });
    // No other instance may use the directory, although neither of the two can create a lock in it.
    let second = run_second(place, &two_paths(place));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(
        said.contains("belongs to another running Millstream"),
        "{said}"
    );
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(program.stop().0, Some(1));
}

#[test]
fn a_disk_without_inodes_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let _mounted = Mounted::new(place.join("data"), "size=200m,nr_inodes=24");
    let nodes = "sources:\n  in: { type: generate, size: 1KiB }\n\
                 channels:\n  buf: { type: disk, inputs: [in] }\n\
                 sinks:\n  far: { type: http, inputs: [buf], format: raw, url: \"http://127.0.0.1:1/\" }\n";
    let (program, _log) = Piped::start(place, &[], nodes);
    wait_until("the channel is blocked", || {
        node(&program, "buf").0 == "blocked"
    });
    let (_, why) = node(&program, "buf");
    assert!(
        why.contains("no free inodes") && !why.contains("are needed"),
        "{why}"
    );
}

#[test]
fn a_machine_without_a_database_of_time_zones_has_all_zones() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    append(place, "first");
    let nodes = format!(
        "timezone: Europe/Berlin\n\
         sources:\n  in: {{ type: tail, paths: [\"{0}/in.log\"] }}\n  net: {{ type: syslog, timezone: local, listen: \"udp://127.0.0.1:0\" }}\n\
         sinks:\n  near: {{ type: discard, inputs: [net] }}\n  \
         out: {{ type: file, inputs: [in], format: raw, timezone: UTC, path: \"{0}/out\" }}\n  \
         other: {{ type: file, inputs: [in], format: raw, path: \"{0}/%Y\" }}\n",
        place.display()
    );
    let hide = "mount -t tmpfs tmpfs /usr/share/zoneinfo && exec env TZ=Asia/Tokyo \"$@\"";
    let shell = ["unshare", "--mount", "sh", "-c", hide, "sh"];
    let (mut program, _log) = Piped::start(place, &shell, &nodes);
    arrives(place, "first");
    assert_eq!(program.stop().0, Some(0));
}
