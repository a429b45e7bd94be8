//! Public exercisers of file systems in the mount: fsx, fio, stress-ng and pjdfstest. `make test` runs them shortly, `make storm` for
//! minutes.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
};

use super::{Rig, in_storm, run};

/// Failures of pjdfstest that the README of the source names: special files and hard links. A part of the name of the test.
const REFUSED: [&str; 6] = ["fifo", "socket", "block", "char", "mknod", "mkfifo"];
const LINKS: [&str; 5] = [
    "link::",
    "rename::preserve_metadata::regular",
    "rename::to_multiply_linked::regular",
    "unlink::update_ctime_success::regular",
    "unlink::unchanged_ctime_failed::regular",
];

/// A program that `make deps` builds into the user's cache.
fn tool(name: &str) -> Command {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    Command::new(cache.join("millstream/tools/bin").join(name))
}

/// The data of the exercisers arrive, too, but are not of interest: only complete lines are shipped to a file.
fn rig() -> Rig {
    Rig::new(
        "allow_other: true",
        "size_max: 4GiB, sync: 1s",
        "{.message}",
    )
}

#[test]
fn fsx_reads_what_it_wrote_wherever_and_however_it_wrote() {
    let rig = rig();
    let config = rig.directory.path().join("fsx.toml");
    // Shared mappings are refused.
    fs::write(
        &config,
        "[weights]\nmapread = 0\nmapwrite = 0\ninvalidate = 0\n",
    )
    .unwrap();
    for seed in 0..in_storm(2, 20) {
        let operations = in_storm(2_000, 20_000).to_string();
        let mut fsx = tool("fsx");
        fsx.arg("-f")
            .arg(&config)
            .args(["-N", &operations, "-S", &seed.to_string()]);
        run(fsx
            .arg(rig.mount().join(format!("file{seed}")))
            .current_dir(rig.directory.path()));
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    let rig = rig();
    let size = format!("--size={}m", in_storm(20, 500));
    for how in ["randwrite", "write"] {
        let mut fio = rig.command("fio");
        fio.args([
            "--name=v",
            "--bs=4k-1m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--nrfiles=3",
        ]);
        run(fio.args(["--ioengine=sync", &size, &format!("--rw={how}")]));
    }
}

#[test]
fn stress_ng_finds_nothing_wrong() {
    let rig = rig();
    let seconds = format!("{}s", in_storm(3, 60));
    let mut stress = rig.command("stress-ng");
    stress.args([
        "--verify",
        "--timeout",
        &seconds,
        "--hdd-bytes",
        "16m",
        "--temp-path",
    ]);
    stress.arg(rig.mount());
    for stressor in ["rename", "dentry", "hdd", "seek", "fallocate", "open"] {
        stress.args([&format!("--{stressor}"), "1"]);
    }
    run(&mut stress);
}

#[test]
fn pjdfstest_fails_only_for_special_files_and_links() {
    let rig = rig();
    let place = rig.directory.path();
    // Other users have to reach the mount.
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    let config = place.join("pjdfstest.toml");
    let users = "[dummy_auth]\nentries = [[\"mail\", \"mail\"], [\"games\", \"games\"], [\"daemon\", \"daemon\"]]\n";
    fs::write(&config, users).unwrap();
    let tests = rig.mount().join("tests");
    fs::create_dir(&tests).unwrap();
    let mut pjdfstest = tool("pjdfstest");
    pjdfstest.arg("-c").arg(&config).arg("-p").arg(tests);
    let output = pjdfstest.output();
    let Output { stdout, .. } = output.expect("pjdfstest is missing: run `make deps`");
    let text = String::from_utf8_lossy(&stdout);
    let passed = text.lines().filter(|line| line.trim_end().ends_with(" ok"));
    let failed = text
        .lines()
        .filter(|line| line.trim_end().ends_with("FAILED"));
    let failed = failed.filter_map(|line| line.split_whitespace().next());
    let unexpected: Vec<_> = failed
        .filter(|test| !REFUSED.iter().any(|part| test.contains(part)))
        .filter(|test| !LINKS.iter().any(|start| test.starts_with(start)))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}\n{text}");
    assert!(passed.count() > 150, "{text}");
}
