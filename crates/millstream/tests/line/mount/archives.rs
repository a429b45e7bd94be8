//! Archives in the mount are the same as those in a plain directory, byte for byte, and every line is shipped once: with each option
//! of Debian's logrotate, with Debian's rotation of nginx, and with the logging libraries that rotate and compress files.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use super::{Rig, rotated, run, servers::debians_rules, wait_until};
use crate::program::tree;

pub(super) const CHANNEL: &str = "size_max: 1GiB, sync: 1s";

/// The files of a directory with their content, without the times in gzip headers. In names, digits that differ from run to run can
/// be left out.
pub(super) fn files(directory: &Path, with_digits: bool) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(at) = directories.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let name = path.strip_prefix(directory).unwrap().to_str().unwrap();
            let mut name = name.to_owned();
            if !with_digits {
                name.retain(|c| !c.is_ascii_digit());
            }
            let mut content = fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            if content.starts_with(b"\x1f\x8b") {
                content[4..8].fill(0);
            }
            assert!(found.insert(name, content).is_none());
        }
    }
    found
}

pub(super) fn assert_same(
    ours: &BTreeMap<String, Vec<u8>>,
    theirs: &BTreeMap<String, Vec<u8>>,
    of: &str,
) {
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs), "{of}");
    for (name, content) in ours {
        let expected = &theirs[name];
        assert!(
            content == expected,
            "{of}: {name} differs ({} and {} bytes)",
            content.len(),
            expected.len()
        );
    }
}

impl Rig {
    /// A directory outside the mount.
    pub(super) fn plain_directory(&self) -> PathBuf {
        let plain = self.directory.path().join("plain");
        fs::create_dir_all(&plain).unwrap();
        plain
    }

    /// Waits until this many bytes have arrived, and a little longer so that surplus bytes are noticed.
    fn until_bytes(&self, bytes: usize, of: &str) {
        let out = self.directory.path().join("out");
        let arrived = || fs::metadata(&out).map_or(0, |out| out.len() as usize);
        wait_until("all lines have arrived", || arrived() >= bytes);
        sleep(Duration::from_millis(100));
        assert_eq!(arrived(), bytes, "{of}");
    }
}

#[test]
fn logrotate_makes_the_same_archives_with_each_of_its_options() {
    let rig = Rig::new("", CHANNEL, "{.message}");
    let plain = rig.plain_directory();
    let mut written = Vec::new();
    let dated = "dateext\n  dateformat -%Y%m%d-%s";
    let options = [
        "create",
        "create 0640 root root\n  compress",
        "nocreate",
        "copy",
        "copy\n  compress",
        "copytruncate",
        "copytruncate\n  compress",
        "copytruncate\n  compress\n  delaycompress",
        "copytruncate\n  olddir old\n  createolddir 0755 root root",
        "renamecopy",
        "compress\n  delaycompress\n  create",
        "olddir old\n  createolddir 0755 root root\n  compress",
        "sharedscripts\n  postrotate\n    true\n  endscript\n  compress",
        "prerotate\n    test -s $1\n  endscript",
        "shred\n  shredcycles 1",
        "shred\n  shredcycles 1\n  compress",
        "extension .log\n  compress",
        "addextension .old",
        "start 7\n  compress",
        "compress\n  compresscmd /usr/bin/zstd\n  compressext .zst",
        "compress\n  compressoptions -1",
        "missingok\n  notifempty\n  maxage 10\n  minsize 1k",
        "rotate 0",
        dated,
        &format!("{dated}\n  compress\n  copytruncate"),
    ];
    for options in options {
        for round in 0..3 {
            let data: String = (0..20_000)
                .map(|n| {
                    format!(
                        "{round} {n} a line of an ordinary log, rotated by {}\n",
                        options.len() + n * 7919 % 1009
                    )
                })
                .collect();
            for directory in [&rig.mount(), &plain] {
                let mut log = fs::File::options();
                let mut log = log
                    .append(true)
                    .create(true)
                    .open(directory.join("app.log"))
                    .unwrap();
                std::io::Write::write_all(&mut log, data.as_bytes()).unwrap();
            }
            written.extend_from_slice(data.as_bytes());
            let logs = [&rig.mount(), &plain].map(|directory| directory.join("app.log"));
            // With `nocreate` and similar options, the next round makes the file.
            rotated::rotate_files(&rig, &logs, &format!("rotate 2\n  {options}"));
            assert_same(
                &files(&rig.mount(), true),
                &files(&plain, true),
                &format!("{options}, round {round}"),
            );
            if options.starts_with("dateext") {
                sleep(Duration::from_millis(1100));
            }
        }
        rig.until_bytes(written.len(), options);
        for directory in [&rig.mount(), &plain] {
            run(Command::new("find")
                .arg(directory)
                .args(["-mindepth", "1", "-delete"]));
        }
    }
    assert!(fs::read(rig.directory.path().join("out")).unwrap() == written);
}

#[test]
fn debians_rotation_of_nginx_makes_the_same_archives() {
    let nginx = tree().join("target/clients/nginx");
    let rig = Rig::new("", CHANNEL, "{.message}");
    let (mount, plain, place) = (rig.mount(), rig.plain_directory(), rig.directory.path());
    let config = place.join("nginx.conf");
    let paths = (mount.display(), plain.display(), place.display());
    let text = format!(
        "user root root; daemon on; worker_processes 2; pid {2}/nginx.pid; error_log {2}/nginx.error;\n\
         events {{}}\n\
         http {{\n  log_format own '$request_uri $status $body_bytes_sent \"$http_user_agent\"';\n  \
         access_log {0}/access.log own; access_log {1}/access.log own;\n  \
         client_body_temp_path {2}/t1; proxy_temp_path {2}/t2; fastcgi_temp_path {2}/t3; uwsgi_temp_path {2}/t4; \
         scgi_temp_path {2}/t5;\n  \
         server {{ listen unix:{2}/http; location / {{ return 200 'hello'; }} }}\n}}\n",
        paths.0, paths.1, paths.2
    );
    fs::write(&config, text).unwrap();
    let mut server = Command::new(nginx.join("usr/sbin/nginx"));
    run(server
        .arg("-e")
        .arg(place.join("nginx.error"))
        .arg("-c")
        .arg(&config));
    let signal = format!("kill -USR1 $(cat {}/nginx.pid)", place.display());
    let rules = debians_rules(
        &nginx.join("etc/logrotate.d/nginx"),
        "invoke-rc.d nginx rotate >/dev/null 2>&1",
        &signal,
    );
    let mut requests = 0;
    for round in 0..4 {
        let url = format!("http://localhost/{round}/[1-1000]");
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-o", "/dev/null", "--unix-socket"])
            .arg(place.join("http"))
            .arg(url);
        run(&mut curl);
        requests += 1000;
        let logs = [&mount, &plain].map(|directory| directory.join("access.log"));
        rotated::rotate_files(&rig, &logs, &rules);
        // The workers open the new files a moment after the signal.
        let is_new = |path: &PathBuf| fs::metadata(path).is_ok_and(|log| log.len() == 0);
        wait_until("the logs are new", || logs.iter().all(is_new));
        sleep(Duration::from_millis(300));
        assert_same(
            &files(&mount, true),
            &files(&plain, true),
            &format!("round {round}"),
        );
    }
    assert_eq!(files(&mount, true).len(), 5);
    let lines = rig.until_lines(requests);
    let pid = fs::read_to_string(place.join("nginx.pid")).unwrap();
    run(Command::new("kill").args(["-QUIT", pid.trim()]));
    wait_until("nginx has ended", || !place.join("nginx.pid").exists());
    assert_eq!(lines.len(), requests);
}

/// The sorted lines of all files of a directory, of which some are compressed.
pub(super) fn lines(directory: &Path) -> Vec<String> {
    let script =
        "cat $(find . -type f ! -name '*.gz') /dev/null; find . -name '*.gz' -exec zcat {} +";
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", script]).current_dir(directory).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Runs a program that writes and rotates in the mount and in a plain directory. `command` gets the program's directory.
fn library(name: &str, command: impl Fn(&Path) -> Command) {
    let rig = Rig::new("", CHANNEL, "{.message}");
    let plain = rig.plain_directory();
    for directory in [&rig.mount(), &plain] {
        run(command(directory).stdin(Stdio::null()));
    }
    let with_digits = name != "go";
    let archives = files(&plain, with_digits);
    assert!(archives.len() > 1, "{name} has not rotated");
    // These libraries go on writing while they rotate, so a line may be in the file before or after.
    if !["winston", "daily", "pino"].contains(&name) {
        assert_same(&files(&rig.mount(), with_digits), &archives, name);
    }
    let expected = lines(&plain);
    assert!(
        lines(&rig.mount()) == expected,
        "{name}: other lines in the archives"
    );
    let mut arrived = rig.until_lines(expected.len());
    arrived.sort_unstable();
    assert_eq!(arrived.len(), expected.len(), "{name}");
    assert!(arrived == expected, "{name}: other lines arrived");
}

#[test]
fn handlers_of_python_make_the_same_archives() {
    library("python", |directory| {
        let mut python = Command::new("python3");
        python
            .arg(tree().join("tests/clients/python/rotate.py"))
            .arg(directory);
        python
    });
}

#[test]
fn archives_of_winston_and_pino_have_the_same_lines() {
    for name in ["winston", "daily", "pino"] {
        library(name, |directory| {
            let mut node = Command::new("node");
            node.arg(tree().join("target/clients/node/rotate.js"))
                .arg(name)
                .arg(directory);
            node
        });
    }
}

#[test]
fn logback_and_log4j2_make_the_same_archives() {
    for name in ["logback", "log4j"] {
        library(name, |directory| {
            let clients = tree().join("target/clients/logback");
            let mut java = Command::new("java");
            java.arg("-cp")
                .arg(clients.join("jars/*"))
                .arg(clients.join("Rotate.java"));
            java.arg(name).arg(directory);
            java
        });
    }
}

#[test]
fn lumberjack_makes_the_same_archives() {
    library("go", |directory| {
        let mut go = Command::new(tree().join("target/clients/go/rotating"));
        go.arg(directory);
        go
    });
}
