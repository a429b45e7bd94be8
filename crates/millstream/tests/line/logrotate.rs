//! Debian's logrotate rotates a growing file, which Millstream tails through a disk channel into another file. Tests both modes of
//! logrotate (by renaming, and by copying and truncating), with and without compression, dates and a directory for old logs.
//! logrotate runs while Millstream runs, and while Millstream is stopped.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::Write,
    path::Path,
    process::Command,
    thread::sleep,
    time::Duration,
};

use crate::program::{Program, victim::Random, wait_until};

/// Rotations while the file grows.
const ROTATIONS: usize = 25;
/// Matches the log and its rotated files beside it.
const LOGS: &[&str] = &["logs/app.log*"];
/// Matches only the log, and not the rotated files.
const LOG: &[&str] = &["logs/app.log"];
/// Lines between two rotations.
const LINES: usize = 4000;

/// `paths`: the tailed paths, below the directory of the test.
fn config(place: &Path, paths: &[&str]) -> String {
    let place = place.display();
    let paths: Vec<_> = paths.iter().map(|path| format!("{place}/{path}")).collect();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\n\
         sources:\n  app: {{ type: tail, paths: {paths:?}, start: beginning, rescan: 1s }}\n\
         channels:\n  kept: {{ type: disk, inputs: [app], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out.log\" }}\n"
    )
}

fn rotate(directory: &Path, mode: &str) {
    let rules = directory.join("rotate.conf");
    let logs = directory.join("logs");
    let text = format!(
        "{}/app.log {{\n  rotate 100\n  size 1\n  missingok\n  {mode}\n}}\n",
        logs.display()
    );
    fs::write(&rules, text).unwrap();
    // logrotate refuses configurations that other users may write.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&rules, mode).unwrap();
    let binary = ["/usr/sbin/logrotate", "/sbin/logrotate"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let binary = binary.expect("logrotate is missing: run `make deps`");
    let state = directory.join("rotate.state");
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

/// Writes numbered lines and rotates the log in between. The writer reopens the log after each rotation if `by_name` is true.
/// Otherwise it keeps the log open.
fn write_and_rotate(directory: &Path, mode: &str, by_name: bool) {
    let path = directory.join("logs/app.log");
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
        rotate(directory, mode);
        if by_name {
            file = open();
        }
    }
}

fn lines_of(path: &Path) -> Vec<String> {
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let text = match packed {
        true => {
            let output = Command::new("gzip").arg("-dc").arg(path).output().unwrap();
            assert!(output.status.success(), "{}", path.display());
            String::from_utf8(output.stdout).unwrap()
        }
        false => fs::read_to_string(path).unwrap_or_default(),
    };
    text.lines().map(str::to_owned).collect()
}

/// All lines in the log and its rotated files.
fn lines_left(directory: &Path) -> HashSet<String> {
    let files = ["logs", "old"].map(|name| fs::read_dir(directory.join(name)).unwrap());
    files
        .into_iter()
        .flatten()
        .flat_map(|file| lines_of(&file.unwrap().path()))
        .collect()
}

/// Creates a directory with the subdirectories `logs` and `old`.
fn directories() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["logs", "old"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    directory
}

fn run(mode: &str, by_name: bool) -> (Vec<String>, HashSet<String>) {
    let directory = directories();
    let place = directory.path();
    let program = Program::start(place, &config(place, LOGS));
    write_and_rotate(place, mode, by_name);
    let left = lines_left(place);
    wait_until("every remaining line has arrived", || {
        let arrived: HashSet<_> = lines_of(&place.join("out.log")).into_iter().collect();
        left.is_subset(&arrived)
    });
    // Wait long enough for duplicates to arrive, too.
    sleep(Duration::from_secs(12));
    assert_eq!(program.stop(), Some(0));
    (lines_of(&place.join("out.log")), left)
}

/// Some lines arrive, the program stops, logrotate rotates the log several times by `rules`, and the program starts again. Returns
/// the lines that arrived, and those that are left in the log and its rotated files.
fn run_with_a_gap(
    paths: &[&str],
    rules: &str,
    by_name: bool,
    pause: Duration,
) -> (Vec<String>, HashSet<String>) {
    let directory = directories();
    let place = directory.path();
    let log = place.join("logs/app.log");
    let open = || {
        fs::File::options()
            .append(true)
            .create(true)
            .open(&log)
            .unwrap()
    };
    let mut file = open();
    let write = |file: &mut fs::File, part: usize| {
        let numbers = part * LINES..(part + 1) * LINES;
        let lines: String = numbers
            .map(|n| format!("line {n:08} of the log\n"))
            .collect();
        file.write_all(lines.as_bytes()).unwrap();
    };
    for round in 0..3 {
        let program = Program::start(place, &config(place, paths));
        write(&mut file, round * 5);
        let left = lines_left(place);
        wait_until("every remaining line has arrived", || {
            let arrived: HashSet<_> = lines_of(&place.join("out.log")).into_iter().collect();
            left.is_subset(&arrived)
        });
        // In every second round, a kill prevents the program from storing its latest positions.
        match round % 2 {
            0 => assert_eq!(program.stop(), Some(0)),
            _ => {
                // But wait until it has stored the data by which it recognizes its files. This takes up to a second.
                sleep(Duration::from_secs(3));
                program.kill();
            }
        }
        for part in 1..5 {
            write(&mut file, round * 5 + part);
            rotate(place, rules);
            if by_name {
                file = open();
            }
            sleep(pause);
        }
    }
    let program = Program::start(place, &config(place, paths));
    let left = lines_left(place);
    wait_until("every remaining line has arrived", || {
        let arrived: HashSet<_> = lines_of(&place.join("out.log")).into_iter().collect();
        left.is_subset(&arrived)
    });
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
        "{} lines arrived more than once, such as {:?}",
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
            "lines of one file arrived out of order"
        );
    }
}

#[test]
fn rotation_by_copy_and_truncate_delivers_the_remaining_lines_once() {
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

/// How a program is killed after a truncation.
#[derive(Debug)]
struct Kill {
    /// The name of the copy of the log.
    copy: &'static str,
    /// The time between the arrival of the lines and the copy.
    age: Duration,
    /// The lines that are appended after the truncation.
    after: &'static str,
    /// The time between this append and the kill.
    delay: Duration,
}

/// Copies and truncates a log of `LINES` lines, kills the program, and starts it again. Returns the lines that arrived after
/// the first `LINES`.
fn kill_after_truncation(kill: &Kill) -> Vec<String> {
    let directory = directories();
    let place = directory.path();
    let log = place.join("logs/app.log");
    let config = config(place, &["logs/*"]);
    let out = place.join("out.log");
    let program = Program::start(place, &config);
    let written: String = (0..LINES)
        .map(|n| format!("line {n:08} of the log\n"))
        .collect();
    fs::write(&log, &written).unwrap();
    wait_until("the lines have arrived", || lines_of(&out).len() == LINES);
    sleep(kill.age);
    if !kill.copy.starts_with("app.log") {
        // A copy whose name does not begin with that of the log is recognized only by a stored mark: the checksum of the bytes
        // before an offset in the log.
        let positions = place.join("data/sources/app/positions");
        let end = format!(" {} ", written.len());
        wait_until("a mark is stored", || {
            fs::read(&positions).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(&end))
        });
    }
    fs::copy(&log, place.join("logs").join(kill.copy)).unwrap();
    let mut file = fs::File::options().append(true).open(&log).unwrap();
    file.set_len(0).unwrap();
    file.write_all(kill.after.as_bytes()).unwrap();
    sleep(kill.delay);
    program.kill();
    let program = Program::start(place, &config);
    writeln!(file, "the last line").unwrap();
    wait_until("the last line has arrived", || {
        lines_of(&out).iter().any(|line| line == "the last line")
    });
    // The program may hold the lines of a copy back for up to 10 s.
    sleep(Duration::from_secs(11));
    assert_eq!(program.stop(), Some(0));
    let mut arrived = lines_of(&out);
    let delivered: String = arrived
        .drain(..LINES)
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(
        delivered == written,
        "the first lines are not those of the log"
    );
    arrived.sort();
    arrived
}

#[test]
fn a_kill_right_after_a_truncation_duplicates_no_line_of_the_copy() {
    let mut random = Random::new();
    let mut kills = Vec::new();
    for copy in ["app.log.1", "app-20261128.log"] {
        for age in [0, 300, 2500].map(Duration::from_millis) {
            // In the last of these cases, the channel has time to keep the line that follows the truncation.
            for (after, earliest) in [("", 0), ("after\n", 0), ("after\n", 30_000)] {
                let delay = Duration::from_micros(earliest + random.below(2000));
                kills.push(Kill {
                    copy,
                    age,
                    after,
                    delay,
                });
            }
        }
    }
    let failed: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = kills
            .iter()
            .map(|kill| (kill, scope.spawn(|| kill_after_truncation(kill))))
            .collect();
        let ran = running
            .into_iter()
            .map(|(kill, ran)| (kill, ran.join().unwrap()));
        let failed = ran.filter(|(kill, arrived)| {
            let expected: Vec<_> = kill.after.lines().chain(["the last line"]).collect();
            *arrived != expected
        });
        failed
            .map(|(kill, arrived)| format!("{kill:?}: {} lines came", arrived.len()))
            .collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn compression_immediately_or_one_rotation_later_duplicates_and_loses_nothing() {
    for rules in [
        "nocreate\n  compress",
        "nocreate\n  compress\n  delaycompress",
    ] {
        let (arrived, left) = run(rules, true);
        assert_eq!(left.len(), ROTATIONS * LINES, "the test itself lost lines");
        assert_none_twice(&arrived);
        assert_eq!(arrived.len(), ROTATIONS * LINES, "{rules}");
    }
}

#[test]
fn a_rotated_log_that_is_compressed_and_shredded_delivers_its_lines_once_and_no_garbage() {
    const ROUNDS: usize = 8;
    for paths in [LOG, LOGS] {
        let directory = directories();
        let place = directory.path();
        let program = Program::start(place, &config(place, paths));
        let arrived = || lines_of(&place.join("out.log"));
        let line = |n: usize| format!("line {n:08} of the log");
        for round in 0..ROUNDS {
            let numbers = round * LINES..(round + 1) * LINES;
            let lines: String = numbers.clone().map(|n| line(n) + "\n").collect();
            fs::write(place.join("logs/app.log"), lines).unwrap();
            // Once a part was read, its rest is found in the compressed file.
            wait_until("the first line has arrived", || {
                arrived().contains(&line(numbers.start))
            });
            rotate(place, "nocreate\n  compress\n  shred");
        }
        let written: HashSet<_> = (0..ROUNDS * LINES).map(line).collect();
        wait_until("every line has arrived", || {
            written.is_subset(&arrived().into_iter().collect())
        });
        sleep(Duration::from_secs(5));
        assert_eq!(program.stop(), Some(0));
        assert_none_twice(&arrived());
        assert_eq!(arrived().len(), written.len(), "garbage arrived");
    }
}

#[test]
fn tail_catches_up_with_several_rotations_that_happened_while_millstream_was_stopped() {
    let second = Duration::from_millis(1100);
    let and_old = &["logs/app.log*", "old/app.log*"];
    for (paths, rules, by_name, pause) in [
        (LOGS, "nocreate", true, Duration::ZERO),
        (LOGS, "create", true, Duration::ZERO),
        (
            LOGS,
            "create\n  compress\n  delaycompress",
            true,
            Duration::ZERO,
        ),
        (and_old, "nocreate\n  olddir ../old", true, Duration::ZERO),
        (
            and_old,
            "create\n  olddir ../old\n  compress",
            true,
            Duration::ZERO,
        ),
        (
            LOGS,
            "nocreate\n  compress\n  dateext\n  dateformat -%Y%m%d-%s",
            true,
            second,
        ),
        (LOGS, "copytruncate", false, Duration::ZERO),
        (LOGS, "copytruncate\n  compress", false, Duration::ZERO),
    ] {
        let (arrived, left) = run_with_a_gap(paths, rules, by_name, pause);
        assert_eq!(
            left.len(),
            15 * LINES,
            "the test itself lost lines: {rules}"
        );
        let all: HashSet<_> = arrived.iter().cloned().collect();
        assert_eq!(all, left, "{rules}");
        println!(
            "{rules}: {} lines arrived more than once",
            arrived.len() - all.len()
        );
        assert_none_twice(&arrived);
    }
}

#[test]
fn logs_that_were_created_and_rotated_while_millstream_was_stopped_are_read() {
    let second = Duration::from_millis(1100);
    for (rules, by_name, pause) in [
        ("nocreate", true, Duration::ZERO),
        ("create", true, Duration::ZERO),
        ("create\n  compress", true, Duration::ZERO),
        ("create\n  compress\n  delaycompress", true, Duration::ZERO),
        ("create\n  dateext\n  dateformat -%Y%m%d-%s", true, second),
        ("copytruncate", false, Duration::ZERO),
        ("copytruncate\n  compress", false, Duration::ZERO),
    ] {
        let (arrived, left) = run_with_a_gap(LOG, rules, by_name, pause);
        assert_eq!(
            left.len(),
            15 * LINES,
            "the test itself lost lines: {rules}"
        );
        let all: HashSet<_> = arrived.iter().cloned().collect();
        assert_eq!(all, left, "{rules}");
        assert_none_twice(&arrived);
        if rules == "create" {
            assert!(
                arrived.is_sorted(),
                "a newer log was read before an older one"
            );
        }
    }
}

#[test]
fn patterns_that_match_nothing_are_logged_once_at_start() {
    let directory = directories();
    let place = directory.path();
    fs::write(place.join("logs/app.log"), "a line\n").unwrap();
    let paths = &["logs/*.log", "logs/*.lgo", "elsewhere/*.log"];
    let program = Program::start(place, &config(place, paths));
    wait_until("the line has arrived", || {
        !lines_of(&place.join("out.log")).is_empty()
    });
    // Wait longer than the interval between two scans for files, and longer than the log suppresses similar lines.
    sleep(Duration::from_secs(12));
    let log = program.log();
    let told: Vec<_> = log
        .lines()
        .filter(|line| line.contains("matches no file"))
        .collect();
    let [told] = told[..] else {
        panic!("{log}");
    };
    let here = place.display();
    for text in [
        format!("`{here}/logs/*.lgo` matches no file (searched the directory {here}/logs)"),
        format!(
            "`{here}/elsewhere/*.log` matches no file (the directory {here}/elsewhere does not exist)"
        ),
    ] {
        assert!(told.contains(&text), "{told}");
    }
    assert!(!told.contains("logs/*.log`"), "{told}");
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_log_that_moves_to_an_unwatched_directory_is_read_to_its_end() {
    let directory = directories();
    let place = directory.path();
    let log = place.join("logs/app.log");
    let program = Program::start(place, &config(place, &["logs/app.log"]));
    let arrived = || lines_of(&place.join("out.log"));
    for n in (0..10).map(|round| round * LINES) {
        let mut file = fs::File::options()
            .append(true)
            .create(true)
            .open(&log)
            .unwrap();
        writeln!(file, "line {n:08} of the log").unwrap();
        // After the first line has arrived, the program recognizes the file under any name.
        wait_until("its first line has arrived", || arrived().len() > n);
        let rest: String = (n + 1..n + LINES - 1)
            .map(|n| format!("line {n:08} of the log\n"))
            .collect();
        file.write_all(rest.as_bytes()).unwrap();
        rotate(place, "nocreate\n  olddir ../old");
        // The program may notice the rotation only after this line is written.
        writeln!(file, "line {:08} of the log", n + LINES - 1).unwrap();
        wait_until("its last line has arrived", || arrived().len() >= n + LINES);
    }
    assert_eq!(fs::read_dir(place.join("old")).unwrap().count(), 10);
    assert_eq!(program.stop(), Some(0));
    let written: Vec<_> = (0..10 * LINES)
        .map(|n| format!("line {n:08} of the log"))
        .collect();
    assert!(arrived() == written, "lost, doubled or in another order");
}
