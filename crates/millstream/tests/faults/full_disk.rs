//! A full disk under the output and under the channel. Accepted records stay accepted, the source stops reading, the
//! error names the path, and everything continues when there is space. Needs root to mount small file systems.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::program::{Program, disk::Small, free_port, millbench, wait_until};

/// Records in total: about 60 MB of text.
const RECORDS: u32 = 600_000;

fn generate(directory: &Path, port: u16, records: u32) -> Child {
    let ledger = directory.join("ledger");
    Command::new(millbench())
        .args([
            "generate",
            "--forward",
            &format!("127.0.0.1:{port}"),
            "--acks",
            "--connections",
            "2",
            "--records",
            &records.to_string(),
        ])
        .args(["--ack-timeout", "100s", "--ledger"])
        .arg(ledger)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn config(port: u16, data: &Path, out: &Path) -> String {
    let place = data.display();
    format!(
        "data_dir: {place}\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{}/{{tag}}.log\" }}\n",
        out.display()
    )
}

/// Whether the files hold every record once.
fn is_all_there(place: &Path, out: &Path) -> bool {
    let mut verify = Command::new(millbench());
    verify.arg("verify").arg(out).arg("--ledger");
    let account = verify.arg(place.join("ledger")).output().unwrap();
    account.status.success()
}

/// Mounts small file systems at these directories. The file systems become full while records arrive. Then enlarges the first one,
/// and asserts that every record arrives once.
fn check(smalls: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let smalls: Vec<Small> = smalls
        .iter()
        .map(|small| Small::mount(place.join(small), "20m"))
        .collect();
    let (data, out) = (place.join("data"), place.join("out"));
    fs::create_dir_all(&data).unwrap();
    fs::create_dir_all(&out).unwrap();
    let port = free_port();
    let config = config(port, &data, &out);
    let program = Program::start(place, &config).listens(port);
    let mut generator = generate(place, port, RECORDS);
    for small in &smalls {
        let named = small.path().display().to_string();
        let full = |line: &str| line.contains(&named) && line.contains("No space left");
        wait_until("the log says which path is full", || {
            program.log().lines().any(full)
        });
    }
    std::thread::sleep(Duration::from_secs(3));
    smalls[0].grow("1g");
    wait_until("the generator has all acks", || {
        generator.try_wait().unwrap().is_some()
    });
    assert!(generator.wait().unwrap().success());
    let ended = program.stop();
    let log = fs::read_to_string(place.join("log")).unwrap();
    assert_eq!(ended, Some(0), "{log}");
    // Records still in the channel arrive after the next start.
    let program = Program::start(place, &config).listens(port);
    wait_until("every record is in the file", || is_all_there(place, &out));
    assert_eq!(program.stop(), Some(0));
    assert!(is_all_there(place, &out));
}

#[test]
fn a_full_disk_under_the_output_loses_nothing() {
    check(&["out"]);
}

#[test]
fn a_channel_larger_than_its_disk_loses_nothing_and_reuses_space() {
    // `size_max` is 1 GiB. The disk of the channel is never enlarged.
    check(&["out", "data"]);
}

#[test]
fn a_channel_on_a_full_disk_reuses_settled_segments_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let small = Small::mount(place.join("data"), "20m");
    let (data, out) = (place.join("data"), place.join("out"));
    fs::create_dir_all(&out).unwrap();
    let port = free_port();
    let config = config(port, &data, &out).replace("1GiB", "64MiB");
    let program = Program::start(place, &config).listens(port);
    assert!(generate(place, port, 1000).wait().unwrap().success());
    let settled = || is_all_there(place, &out);
    wait_until("every record is in the file", settled);
    let fill = |name: &str| {
        let mut ballast = fs::File::create(small.path().join(name)).unwrap();
        let megabyte = vec![1; 1 << 20];
        while std::io::Write::write_all(&mut ballast, &megabyte).is_ok() {}
    };
    fill("ballast");
    assert!(generate(place, port, RECORDS).wait().unwrap().success());
    wait_until("every record is in the file", settled);
    assert_eq!(program.stop(), Some(0));
    fill("more");
    let program = Program::start(place, &config).listens(port);
    assert!(generate(place, port, RECORDS).wait().unwrap().success());
    wait_until("every record is in the file", settled);
    program.kill();
    fill("and-more");
    let program = Program::start(place, &config).listens(port);
    assert!(generate(place, port, RECORDS).wait().unwrap().success());
    wait_until("every record is in the file", settled);
    assert_eq!(program.stop(), Some(0));
}
