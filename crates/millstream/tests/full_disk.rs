//! A full disk behind the output and behind the channel: accepted data stays accepted, the source stops reading, the
//! error names the path, and everything goes on when there is room. Needs root, to mount small file systems.

#![allow(clippy::unwrap_used, reason = "tests")]

mod program;

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use program::{Program, disk::Small, free_port, millbench, wait_until};

/// Records that are sent: about 60 MB of text.
const RECORDS: &str = "600000";

fn generate(folder: &Path, port: u16) -> Child {
    let ledger = folder.join("ledger");
    Command::new(millbench())
        .args([
            "generate",
            "--forward",
            &format!("127.0.0.1:{port}"),
            "--acks",
            "--connections",
            "2",
            "--records",
            RECORDS,
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

fn check(small_part: &str, size: &str, data: &str, out: &str) {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let small = Small::mount(place.join(small_part), size);
    fs::create_dir_all(place.join(data)).unwrap();
    fs::create_dir_all(place.join(out)).unwrap();
    let port = free_port();
    let program =
        Program::start(place, &config(port, &place.join(data), &place.join(out))).listens(port);
    let mut generator = generate(place, port);
    let named = small.path().display().to_string();
    let full = |line: &str| line.contains(&named) && line.contains("No space left");
    wait_until("the log says which path is full", || {
        program.log().lines().any(full)
    });
    std::thread::sleep(Duration::from_secs(3));
    small.grow("1g");
    wait_until("the generator has all acks", || {
        generator.try_wait().unwrap().is_some()
    });
    assert!(generator.wait().unwrap().success());
    let ended = program.stop();
    let log = fs::read_to_string(place.join("log")).unwrap();
    assert_eq!(ended, Some(0), "{log}");
    // What the channel still held arrives with the next start.
    let config = config(port, &place.join(data), &place.join(out));
    let program = Program::start(place, &config).listens(port);
    let account = || {
        let mut verify = Command::new(millbench());
        verify
            .arg("verify")
            .arg(place.join(out))
            .arg("--ledger")
            .arg(place.join("ledger"))
            .output()
            .unwrap()
    };
    wait_until("every record is in the file", || account().status.success());
    assert_eq!(program.stop(), Some(0));
    let account = account();
    assert!(
        account.status.success(),
        "{}",
        String::from_utf8_lossy(&account.stdout)
    );
}

#[test]
fn a_full_disk_under_the_output_loses_nothing() {
    check("out", "20m", "data", "out");
}

#[test]
fn a_full_disk_under_the_channel_loses_nothing() {
    // Room for the first segment, and not for the second.
    check("data", "100m", "data", "out");
}
