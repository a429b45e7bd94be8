//! Common programs write to the mounted directory. Their lines pass a disk channel and arrive in one file.
//!
//! Mounting needs root or fusermount3 (package fuse3); `make deps` installs everything else.

mod archives;
mod exercised;
mod joined;
mod restarts;
mod rotated;
mod servers;
mod steps;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use crate::program::{PATIENCE, Program, tree, victim::in_storm, wait_until};

/// A Millstream with a mount in a temporary directory.
struct Rig {
    directory: tempfile::TempDir,
    config: String,
    program: Option<Program>,
}

impl Rig {
    /// `source` and `channel` are further options of these nodes. `template` is the sink's template.
    fn new(source: &str, channel: &str, template: &str) -> Self {
        let format = format!("format: template, template: \"{template}\\n\"");
        Self::writing(&format, source, channel)
    }

    /// Like `new`, but with any format of the sink.
    fn writing(format: &str, source: &str, channel: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().display();
        let config = format!(
            "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
             sources:\n  drop: {{ type: fuse, mount: {place}/mnt, {source} }}\n\
             channels:\n  kept: {{ type: disk, inputs: [drop], {channel} }}\n\
             sinks:\n  out: {{ type: file, inputs: [kept], {format}, path: {place}/out }}\n"
        );
        let mut rig = Self {
            directory,
            config,
            program: None,
        };
        rig.start();
        rig
    }

    fn plain() -> Self {
        Self::new("", "size_max: 256MiB, sync: 1s", "{.message}")
    }

    fn start(&mut self) {
        let program = Program::start(self.directory.path(), &self.config);
        // The log also has the lines of earlier starts.
        let starts = self.log_lines("is mounted");
        self.program = Some(program);
        wait_until("it is mounted", || self.log_lines("is mounted") > starts);
    }

    fn log_lines(&self, text: &str) -> usize {
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        log.lines().filter(|line| line.contains(text)).count()
    }

    fn mount(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.mount());
        command
    }

    /// Runs a script in the mount.
    fn bash(&self, script: &str) {
        run(self
            .command("bash")
            .args(["-euo", "pipefail", "-c", script]));
    }

    fn lines(&self) -> Vec<String> {
        lines(&self.directory.path().join("out"))
    }

    /// Waits for this many lines, and a little longer so that surplus lines are noticed.
    fn until_lines(&self, count: usize) -> Vec<String> {
        wait_until("all lines have arrived", || self.lines().len() >= count);
        sleep(Duration::from_millis(300));
        self.lines()
    }

    fn kill(&mut self) {
        self.program.take().unwrap().kill();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(program) = self.program.take() {
            if thread::panicking() {
                program.kill();
            } else {
                assert_eq!(program.stop(), Some(0));
            }
        }
        // A killed program may have left the mount behind.
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.mount())
            .stderr(Stdio::null())
            .status();
    }
}

fn lines(path: &Path) -> Vec<String> {
    let lines = byte_lines(path).into_iter();
    lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .collect()
}

/// The complete lines of a file.
fn byte_lines(path: &Path) -> Vec<Vec<u8>> {
    let text = fs::read(path).unwrap_or_default();
    text.split_inclusive(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_suffix(b"\n"))
        .map(<[u8]>::to_vec)
        .collect()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| {
        panic!(
            "{:?} is missing ({error}): run `make deps`",
            command.get_program()
        )
    });
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&said)
    );
}

/// The numbers of lines `WRITER NUMBER ...` by writer, in the order of arrival.
fn by_writer(lines: &[String]) -> BTreeMap<&str, Vec<u64>> {
    let mut found: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in lines {
        let mut words = line.split(' ');
        let (writer, number) = (words.next().unwrap(), words.next().unwrap());
        found
            .entry(writer)
            .or_default()
            .push(number.parse().unwrap());
    }
    found
}

#[test]
fn shells_and_their_tools_write_the_same_as_to_plain_files() {
    let rig = Rig::new("tag: \"t.*\"", "size_max: 64MiB", "{tag} {path} {.message}");
    rig.bash(
        "mkdir app; echo one > app/a; echo two >> app/a; printf 'three\\nfo' >> app/a; printf 'ur\\r\\n' | tee -a app/b > copy; \
         cat app/a app/b > c; mv c app/c; head -c 0 /dev/null > empty; : > app/a; test ! -s app/a; test $(stat -c %s app/b) = 4; \
         rm app/b; ls app | grep -qx c; printf '\\0\\n' > nul; sed -n 1p app/c | grep -qx one; touch -d @5 app/c; chmod 600 app/c; \
         test \"$(stat -c '%Y %a' app/c)\" = '5 600'; rm -r app; test ! -e app",
    );
    let mut arrived = rig.until_lines(10);
    arrived.sort();
    let expected = [
        "t.app.a app/a fo",
        "t.app.a app/a one",
        "t.app.a app/a three",
        "t.app.a app/a two",
        "t.app.b app/b ur",
        "t.c c four",
        "t.c c one",
        "t.c c three",
        "t.c c two",
        "t.copy copy ur",
        "t.nul nul \0",
    ];
    let fo = arrived.iter().position(|line| line == "t.c c four");
    // `c` was concatenated from `a`, which ends with `fo`, and `b`, which begins with `ur`.
    assert!(fo.is_some(), "{arrived:?}");
    assert_eq!(arrived, expected);
}

#[test]
fn dd_with_odd_sizes_arrives_byte_for_byte() {
    let rig = Rig::plain();
    let input = rig.directory.path().join("input");
    let text: String = (0..400_000_u64)
        .map(|n| format!("dd {n} {}\n", n * 7919 % 1009))
        .collect();
    fs::write(&input, &text).unwrap();
    for bytes in ["7777", "131071", "1048577", "3M"] {
        let arguments = [
            format!("if={}", input.display()),
            format!("of=dd-{bytes}"),
            format!("bs={bytes}"),
            "status=none".to_owned(),
        ];
        let before = rig.lines().len();
        run(rig.command("dd").args(arguments));
        let arrived = rig.until_lines(before + 400_000);
        let written: Vec<_> = text.lines().collect();
        assert!(arrived[before..] == written[..], "bs={bytes}");
    }
}

#[test]
fn pythons_rotating_log_arrives_complete_and_in_order() {
    let rig = Rig::plain();
    let script = "
import logging, logging.handlers
log = logging.getLogger('x')
log.setLevel(logging.INFO)
handler = logging.handlers.RotatingFileHandler('app.log', maxBytes=20000, backupCount=5)
handler.setFormatter(logging.Formatter('py %(message)s'))
log.addHandler(handler)
for n in range(5000):
    log.info('%d of a program in Python', n)
logging.shutdown()
";
    run(rig.command("python3").args(["-c", script]));
    assert!(rig.mount().join("app.log.5").exists());
    let arrived = rig.until_lines(5000);
    assert_eq!(by_writer(&arrived)["py"], (0..5000).collect::<Vec<_>>());
}

#[test]
fn javas_log4j2_with_rolling_files_arrives_complete_and_in_order() {
    let rig = Rig::plain();
    let java = tree().join("target/clients/java");
    let classes = java.join("target/classes/Roll.class");
    assert!(
        classes.exists(),
        "{} is missing: run `make deps`",
        classes.display()
    );
    let path = format!("{0}/target/classes:{0}/target/dependency/*", java.display());
    run(rig.command("java").args(["-cp", &path, "Roll", "5000"]));
    let rolled = fs::read_dir(rig.mount()).unwrap().count();
    assert!(rolled > 2, "nothing was rolled");
    let arrived = rig.until_lines(5000);
    assert_eq!(by_writer(&arrived)["java"], (0..5000).collect::<Vec<_>>());
}

#[test]
fn lines_of_32_processes_that_append_to_one_file_stay_intact_and_in_order() {
    let rig = Rig::plain();
    // Half of the processes write line by line. The others write through a buffer, so their writes end within lines.
    let script = "import os, sys
name, buffered = sys.argv[1], int(sys.argv[1]) % 2
file = open('all.log', 'ab', buffering=1000 if buffered else 0)
for n in range(500):
    file.write(b'%s %d %s\\n' % (name.encode(), n, b'x' * (n % 97)))
file.close()";
    let start = |n: usize| {
        rig.command("python3")
            .args(["-c", script, &n.to_string()])
            .spawn()
    };
    let mut writers: Vec<Child> = (0..32).map(|n| start(n).unwrap()).collect();
    for writer in &mut writers {
        assert!(writer.wait().unwrap().success());
    }
    let arrived = rig.until_lines(32 * 500);
    for line in &arrived {
        let words: Vec<_> = line.split(' ').collect();
        let n: usize = words[1].parse().unwrap();
        assert_eq!(words[2], "x".repeat(n % 97), "{line}");
    }
    let writers = by_writer(&arrived);
    assert_eq!(writers.len(), 32);
    for numbers in writers.values() {
        assert_eq!(*numbers, (0..500).collect::<Vec<_>>());
    }
}

#[test]
fn everything_that_fio_writes_arrives() {
    let rig = Rig::writing("format: raw", "cr: keep", "size_max: 256MiB, sync: 1s");
    let truth = rig.directory.path().join("truth");
    fs::create_dir(&truth).unwrap();
    // fio writes random bytes in pieces of random sizes. The bytes and the sizes are the same for both directories.
    for directory in [truth.clone(), rig.mount()] {
        let arguments = [
            "--name=mount",
            "--rw=write",
            "--size=16M",
            "--bsrange=1k-300k",
            "--bs_unaligned=1",
            "--refill_buffers",
            "--randseed=7",
            "--numjobs=4",
            "--fallocate=none",
            "--fsync=16",
            "--end_fsync=1",
            "--filename_format=fio.$jobnum",
            "--group_reporting",
        ];
        run(rig.command("fio").args(arguments).current_dir(directory));
    }
    let mut expected = Vec::new();
    for job in 0..4 {
        let mut written = fs::read(truth.join(format!("fio.{job}"))).unwrap();
        // A last line without an end is sent, with an end, when its file is closed.
        if !written.ends_with(b"\n") {
            written.push(b'\n');
            fs::write(truth.join(format!("fio.{job}")), &written).unwrap();
        }
        expected.append(&mut byte_lines(&truth.join(format!("fio.{job}"))));
    }
    rig.until_lines(expected.len());
    let mut arrived = byte_lines(&rig.directory.path().join("out"));
    expected.sort_unstable();
    arrived.sort_unstable();
    assert_eq!(arrived.len(), expected.len());
    assert!(arrived == expected, "a line is not what was written");
}

/// A writer that prints a line after each write that has returned, and reopens its file after an error.
const WRITER: &str = "import os, sys, time
name = sys.argv[1]
fd, n, part = None, 0, 0
while True:
    try:
        if fd is None:
            fd = os.open(name + '.log', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # Each line takes two writes, of which the first ends within the line.
        n += 1
        line = b'%s %d %s\\n' % (name.encode(), n, b'y' * (n % 50))
        half = len(line) // 2
        os.write(fd, line[:half])
        print('half', n, flush=True)
        os.write(fd, line[half:])
        print('whole', n, flush=True)
    except OSError:
        if fd is not None:
            try: os.close(fd)
            except OSError: pass
        fd = None
        print('broken', n, flush=True)
        time.sleep(0.01)
";

#[test]
fn lines_of_eight_writers_whose_write_returned_arrive_once_despite_kills() {
    eight_writers_and_kills(Rig::plain(), WRITER, Rig::lines);
}

/// Asserts that each line whose write returned has arrived once.
fn eight_writers_and_kills(mut rig: Rig, script: &str, arrived: impl Fn(&Rig) -> Vec<String>) {
    let start = |n: usize| {
        let name = format!("w{n}");
        let told = fs::File::create(rig.directory.path().join(format!("{name}.told"))).unwrap();
        let mut command = rig.command("python3");
        // The writer works in the directory above the mount. Otherwise it would lose its working directory when the mount is removed.
        command.current_dir(rig.directory.path());
        let script = script.replace("name + '.log'", "'mnt/' + name + '.log'");
        command
            .args(["-c", &script, &name])
            .stdout(told)
            .spawn()
            .unwrap()
    };
    let mut writers: Vec<Child> = (0..8).map(start).collect();
    for _ in 0..in_storm(6, 60) {
        sleep(Duration::from_millis(700));
        rig.kill();
        sleep(Duration::from_millis(200));
        rig.start();
    }
    sleep(Duration::from_millis(500));
    for writer in &mut writers {
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    let (whole, halves) = told(rig.directory.path());
    assert!(whole.len() > 1000, "only {} writes", whole.len());
    wait_until("every line whose write returned has arrived", || {
        let arrived = numbered(&arrived(&rig));
        whole.iter().all(|line| arrived.contains_key(line))
    });
    sleep(Duration::from_secs(2));
    let lines = arrived(&rig);
    for (line, times) in numbered(&lines) {
        assert_eq!(times, 1, "{line} came {times} times");
    }
    // If only the write of the first half of a line has returned, that half has arrived unchanged.
    for half in halves.difference(&whole) {
        let (writer, n) = half.split_once(' ').unwrap();
        let n: usize = n.parse().unwrap();
        let line = format!("{writer} {n} {}\n", "y".repeat(n % 50));
        let begins = &line[..line.len() / 2];
        let found = lines.iter().filter(|line| line.starts_with(begins));
        assert!(found.count() >= 1, "the unfinished {begins:?} is lost");
    }
}

/// The writes that returned, as `WRITER NUMBER`: whole lines, and first halves.
fn told(directory: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut whole, mut halves) = (BTreeSet::new(), BTreeSet::new());
    for n in 0..8 {
        let told = fs::read_to_string(directory.join(format!("w{n}.told"))).unwrap();
        for line in told.lines() {
            match line.split_once(' ') {
                // The kill may have cut off the number in the last line.
                Some((_, number)) if number.parse::<usize>().is_err() => {}
                Some(("whole", number)) => drop(whole.insert(format!("w{n} {number}"))),
                Some(("half", number)) => drop(halves.insert(format!("w{n} {number}"))),
                _ => {}
            }
        }
    }
    (whole, halves)
}

/// The number of times that each whole line has arrived, by `WRITER NUMBER`.
fn numbered(lines: &[String]) -> BTreeMap<String, usize> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines {
        let mut words = line.splitn(3, ' ');
        let (writer, n, rest) = (words.next(), words.next(), words.next());
        if let (Some(writer), Some(Ok(n)), Some(rest)) = (writer, n.map(str::parse::<usize>), rest)
            && rest.len() == n % 50
        {
            *found.entry(format!("{writer} {n}")).or_default() += 1;
        }
    }
    found
}

#[test]
fn a_full_channel_blocks_the_writer_and_sigkill_ends_the_writer() {
    let rig = Rig::new("", "size_max: 8MiB, sync: 1s", "{.message}");
    // A directory in the place of the output file stops the sink, so the sink takes no records out of the channel.
    let out = rig.directory.path().join("out");
    fs::create_dir(&out).unwrap_or_default();
    let file = fs::File::create(rig.mount().join("f")).unwrap();
    let mut writer = Command::new("yes")
        .arg("full")
        .stdout(file)
        .spawn()
        .unwrap();
    let size = || fs::metadata(rig.mount().join("f")).map_or(0, |found| found.len());
    wait_until("the channel is full", || {
        let before = size();
        sleep(Duration::from_millis(700));
        before > 1 << 20 && size() == before
    });
    assert!(writer.try_wait().unwrap().is_none());
    // The mount still answers.
    assert_eq!(fs::read_dir(rig.mount()).unwrap().count(), 1);
    let killed = Instant::now();
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert!(killed.elapsed() < Duration::from_secs(30));
    fs::remove_dir(&out).unwrap();
    // Wait until all acknowledged writes have arrived. An earlier stop would leave some of them in the channel.
    let lines = || rig.lines().len();
    wait_until("the output grows and is complete", || {
        let before = lines();
        sleep(Duration::from_secs(2));
        before > 1000 && lines() == before
    });
}

#[test]
fn lines_that_are_older_than_max_age_are_skipped_and_counted_and_new_ones_arrive() {
    let rig = Rig::new("", "size_max: 64MiB, sync: 1s, max_age: 3s", "{.message}");
    // A directory in the place of the output file stops the sink. It holds what it has taken until then.
    let out = rig.directory.path().join("out");
    fs::create_dir(&out).unwrap();
    rig.bash("echo held > f");
    sleep(Duration::from_secs(1));
    rig.bash("seq 1 100 > g; for n in $(seq 101 200); do echo $n >> h; done");
    wait_until("they are skipped", || {
        rig.log_lines("200 records") + rig.log_lines("201 records") > 0
    });
    fs::remove_dir(&out).unwrap();
    rig.bash("echo new > f");
    wait_until("the new line is there", || {
        rig.lines().last().is_some_and(|line| line == "new")
    });
    let arrived = rig.lines();
    assert!(
        arrived == ["held", "new"] || arrived == ["new"],
        "{arrived:?}"
    );
}

#[test]
fn a_dead_mount_hangs_no_program_and_a_restart_replaces_it() {
    let mut rig = Rig::plain();
    rig.bash("mkdir app; echo before > app/a.log");
    rig.until_lines(1);
    let mut file = fs::File::options()
        .append(true)
        .open(rig.mount().join("app/a.log"))
        .unwrap();
    file.write_all(b"unfinished").unwrap();
    rig.kill();
    // A write to an open file fails immediately, whether the program has mounted the directory directly or through fusermount3.
    let asked = Instant::now();
    assert!(file.write_all(b"x").is_err());
    assert!(asked.elapsed() < Duration::from_secs(30));
    drop(file);
    // fusermount3 unmounts when the program dies. Then the plain directory below the mount is visible again, with the directories that
    // were created in the mount.
    let plain = rig.mount().join("app/b.log");
    wait_until("the plain directory is back", || {
        fs::write(&plain, "meanwhile\n").is_ok()
    });
    rig.start();
    let mut arrived = rig.until_lines(3);
    arrived.sort();
    assert_eq!(arrived, ["before", "meanwhile", "unfinished"]);
    // The files in the mount are there again. The files below it are shipped and gone.
    assert!(rig.mount().join("app/a.log").exists());
    assert_eq!(fs::read_dir(rig.mount().join("app")).unwrap().count(), 1);
}

#[test]
fn a_stale_mount_is_removed_at_the_start() {
    let rig = Rig::plain();
    let place = rig.directory.path().join("other");
    fs::create_dir(&place).unwrap();
    let config = rig.config.replace(
        &rig.directory.path().display().to_string(),
        &place.display().to_string(),
    );
    let log = || fs::read_to_string(place.join("log")).unwrap_or_default();
    let start = || {
        fs::write(place.join("c.yaml"), &config).unwrap();
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(place.join("log"))
            .unwrap();
        // Without fusermount3 in `PATH` the program mounts on its own, and the mount remains when the program dies.
        Command::new(env!("CARGO_BIN_EXE_millstream"))
            .arg("run")
            .arg(place.join("c.yaml"))
            .env("PATH", "/nonexistent")
            .stderr(log)
            .spawn()
            .unwrap()
    };
    let mut first = start();
    wait_until("it is mounted", || log().contains("is mounted"));
    fs::write(place.join("mnt/a"), "one\n").unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    let error = fs::write(place.join("mnt/a"), "lost\n").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(107), "{error}");
    let mut second = start();
    wait_until("it is mounted again", || {
        log().matches("is mounted").count() == 2
    });
    assert!(log().contains("still mounted by a process that is gone"));
    fs::write(place.join("mnt/a"), "two\n").unwrap();
    wait_until("both are there", || {
        lines(&place.join("out")) == ["one", "two"]
    });
    run(Command::new("kill").arg(second.id().to_string()));
    assert!(second.wait().unwrap().success());
}

#[test]
fn without_root_it_mounts_through_fusermount3() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    fs::set_permissions(
        directory.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\n\
         sources:\n  drop: {{ type: fuse, mount: {place}/mnt }}\n\
         sinks:\n  out: {{ type: file, inputs: [drop], format: raw, path: {place}/out }}\n"
    );
    fs::write(directory.path().join("c.yaml"), config).unwrap();
    // The built program may be in a directory that other users cannot read.
    let program = directory.path().join("millstream");
    fs::copy(env!("CARGO_BIN_EXE_millstream"), &program).unwrap();
    let script = format!(
        "cd {place}; ./millstream run c.yaml & p=$!; for i in $(seq 200); do mountpoint -q mnt && break; sleep 0.05; done; \
         echo hello > mnt/a && id -u >> mnt/a && stat -c %u mnt/a && kill $p && wait $p"
    );
    // On some machines only root may open /dev/fuse, so this test puts a device that all users may open in its place.
    let device = directory.path().join("fuse");
    run(Command::new("mknod").arg(&device).args(["c", "10", "229"]));
    run(Command::new("chmod").arg("666").arg(&device));
    let bind = format!("mount --bind {} /dev/fuse && exec \"$@\"", device.display());
    let mut command = Command::new("unshare");
    let output = command
        .args([
            "--mount",
            "sh",
            "-c",
            &bind,
            "sh",
            "setpriv",
            "--reuid=65534",
        ])
        .args(["--regid=65534", "--clear-groups", "bash", "-c", &script])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "65534\n", "{said}");
    assert_eq!(lines(&directory.path().join("out")), ["hello", "65534"]);
}

#[test]
fn another_user_can_write_to_the_mount_only_if_configured() {
    for allow in [true, false] {
        let source = format!("allow_other: {allow}");
        let rig = Rig::new(&source, "size_max: 64MiB, sync: 1s", "{.message}");
        // Let all users enter the directory and create files in the mount.
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(rig.directory.path(), everybody).unwrap();
        rig.bash("chmod 1777 .");
        let script = format!(
            "echo hello > {0}/a && id -u >> {0}/a && stat -c %u {0}/a",
            rig.mount().display()
        );
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .args(["env", "LC_ALL=C", "bash", "-c", &script])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), allow, "{said}");
        // The user who mounted the directory may always write.
        rig.bash("echo mine > b");
        if allow {
            assert_eq!(String::from_utf8_lossy(&output.stdout), "65534\n");
            assert_eq!(rig.until_lines(3), ["hello", "65534", "mine"]);
        } else {
            assert!(said.contains("Permission denied"), "{said}");
            assert_eq!(rig.until_lines(1), ["mine"]);
        }
    }
}

#[test]
fn tail_follows_a_file_of_the_mount() {
    let rig = Rig::plain();
    rig.bash("echo first > f");
    let mut tail = rig
        .command("tail")
        .args(["-n", "+1", "-f", "f"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = BufReader::new(tail.stdout.take().unwrap()).lines();
    assert_eq!(shown.next().unwrap().unwrap(), "first");
    rig.bash("echo second >> f");
    let started = Instant::now();
    assert_eq!(shown.next().unwrap().unwrap(), "second");
    assert!(started.elapsed() < PATIENCE);
    tail.kill().unwrap();
    tail.wait().unwrap();
}
