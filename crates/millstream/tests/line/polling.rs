//! If the kernel sends no file notifications, tail polls. Nothing is lost; lines only arrive later.

use std::{
    fs::{self, File},
    io::Write,
};

use crate::program::{Program, wait_until};

/// Sets this limit of the kernel to 0, and asserts that tail nevertheless follows files that grow, appear and are rotated.
fn follows_without(limit: &str) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: tail, paths: [\"{place}/logs/*.log\"] }}\n\
         sinks:\n  out: {{ type: file, inputs: [in], format: raw, path: \"{place}/out\" }}\n"
    );
    let logs = directory.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let busy = logs.join("busy.log");
    fs::write(&busy, "first\n").unwrap();
    // A new user namespace has its own limits.
    let taken = format!("echo 0 > /proc/sys/user/{limit} && exec \"$@\"");
    let shell = [
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        &taken,
        "sh",
    ];
    let program = Program::start_after(directory.path(), &config, &shell);
    let expect = |what: &str, line: &str| {
        wait_until(what, || {
            let text = fs::read_to_string(directory.path().join("out")).unwrap_or_default();
            text.lines().any(|found| found == line)
        });
    };
    expect("existing lines have arrived", "first");
    let append = |text: &str| {
        let mut file = File::options().append(true).open(&busy).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    append("second\nthi");
    expect("appended lines have arrived", "second");
    append("rd\n");
    expect("the rest of a line has arrived", "third");
    fs::write(logs.join("new.log"), "of a new file\n").unwrap();
    expect("a new file was found", "of a new file");
    append("before the rotation\n");
    fs::rename(&busy, logs.join("busy.log.1")).unwrap();
    fs::write(&busy, "after the rotation\n").unwrap();
    expect(
        "the rotated file was read to its end",
        "before the rotation",
    );
    expect("its successor was found", "after the rotation");
    let log = program.log();
    assert!(log.contains("the kernel sends no notifications"), "{log}");
    assert_eq!(program.stop(), Some(0));
    let text = fs::read_to_string(directory.path().join("out")).unwrap();
    assert_eq!(text.lines().count(), 6, "each line once:\n{text}");
}

#[test]
fn tail_follows_files_where_there_is_no_inotify() {
    follows_without("max_inotify_instances");
}

#[test]
fn tail_follows_files_where_no_watch_is_left() {
    follows_without("max_inotify_watches");
}
