//! A growing file under Debian's logrotate, in both of its modes, tailed through a disk channel into a file.

#![allow(clippy::unwrap_used, reason = "tests")]

mod program;

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::Write,
    path::Path,
    process::Command,
    thread::sleep,
    time::Duration,
};

use program::{Program, wait_until};

/// Rotations while the file grows.
const ROTATIONS: usize = 25;
/// Lines between two rotations.
const LINES: usize = 4000;

fn config(place: &Path) -> String {
    let place = place.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\n\
         sources:\n  app: {{ type: tail, paths: [\"{place}/logs/app.log*\"], start: beginning, rescan: 1s }}\n\
         channels:\n  kept: {{ type: disk, inputs: [app], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out.log\" }}\n"
    )
}

fn rotate(folder: &Path, mode: &str) {
    let rules = folder.join("rotate.conf");
    let logs = folder.join("logs");
    let text = format!(
        "{}/app.log {{\n  rotate 100\n  size 1\n  missingok\n  {mode}\n}}\n",
        logs.display()
    );
    fs::write(&rules, text).unwrap();
    // logrotate refuses configurations that others may write.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&rules, mode).unwrap();
    let binary = ["/usr/sbin/logrotate", "/sbin/logrotate"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let binary = binary.expect("logrotate is missing: run `make deps`");
    let state = folder.join("rotate.state");
    let ran = Command::new(binary)
        .arg("-f")
        .arg("-s")
        .arg(&state)
        .arg(&rules)
        .output()
        .unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// Writes numbered lines as a program does that opens its log again when it has been rotated (`by_name`) or keeps it open.
fn write_and_rotate(folder: &Path, mode: &str, by_name: bool) {
    let path = folder.join("logs/app.log");
    let open = || {
        fs::File::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap()
    };
    let (mut file, mut n) = (open(), 0);
    for _ in 0..ROTATIONS {
        for _ in 0..LINES / 100 {
            let lines: String = (n..n + 100)
                .map(|n| format!("line {n:08} of the log\n"))
                .collect();
            file.write_all(lines.as_bytes()).unwrap();
            n += 100;
            sleep(Duration::from_millis(1));
        }
        rotate(folder, mode);
        if by_name {
            file = open();
        }
    }
}

fn lines_of(path: &Path) -> Vec<String> {
    fs::read_to_string(path)
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// All lines in the log and its rotated parts.
fn lines_left(folder: &Path) -> HashSet<String> {
    let files = fs::read_dir(folder.join("logs")).unwrap();
    files
        .flat_map(|file| lines_of(&file.unwrap().path()))
        .collect()
}

fn run(mode: &str, by_name: bool) -> (Vec<String>, HashSet<String>) {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    fs::create_dir(place.join("logs")).unwrap();
    let program = Program::start(place, &config(place));
    write_and_rotate(place, mode, by_name);
    let left = lines_left(place);
    wait_until("every line that is left has arrived", || {
        let arrived: HashSet<_> = lines_of(&place.join("out.log")).into_iter().collect();
        left.is_subset(&arrived)
    });
    // Long enough for anything that is read twice to arrive, too.
    sleep(Duration::from_secs(12));
    assert_eq!(program.stop(), Some(0));
    (lines_of(&place.join("out.log")), left)
}

fn assert_none_twice(arrived: &[String]) {
    let mut times: HashMap<&str, u32> = HashMap::new();
    for line in arrived {
        *times.entry(line).or_default() += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(
        twice.is_empty(),
        "{} lines came more than once, such as {:?}",
        twice.len(),
        twice.first()
    );
}

#[test]
fn rotation_by_renaming_loses_doubles_and_reorders_nothing() {
    let (arrived, left) = run("nocreate", true);
    assert_eq!(left.len(), ROTATIONS * LINES, "the test itself lost lines");
    assert_none_twice(&arrived);
    assert_eq!(arrived.len(), ROTATIONS * LINES);
    let place = |line: &String| line[5..13].parse::<usize>().unwrap() / LINES;
    for part in 0..ROTATIONS {
        let of_file: Vec<_> = arrived.iter().filter(|line| place(line) == part).collect();
        assert!(
            of_file.is_sorted(),
            "lines of one file came in another order"
        );
    }
}

#[test]
fn rotation_by_copy_and_truncate_delivers_what_is_left_once() {
    let (arrived, left) = run("copytruncate", false);
    assert_none_twice(&arrived);
    let all: HashSet<_> = arrived.iter().cloned().collect();
    assert!(left.is_subset(&all));
    let sent = ROTATIONS * LINES;
    println!(
        "{sent} lines written, {} left by the truncations, {} arrived",
        left.len(),
        all.len()
    );
    assert!(all.len() <= sent);
}
