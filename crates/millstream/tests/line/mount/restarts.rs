//! Writers that never open their files again, while Millstream is upgraded, reloaded and restarted under them.

use std::{
    os::unix::fs::OpenOptionsExt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use super::*;
use crate::program::victim::Random;

const WRITERS: usize = 20;

/// Writers in threads. Each one keeps one file open for all its lines.
struct Writers {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Writers {
    fn start(mount: &Path) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let write = |writer: usize| {
            let (end, path) = (end.clone(), mount.join(format!("{}.log", writer / 2)));
            let mut options = fs::File::options();
            // Some writers sync each write.
            let flags = if writer.is_multiple_of(5) {
                0o10_000
            } else {
                0
            };
            let file = options.append(true).create(true).custom_flags(flags);
            let mut file = file.open(path).unwrap();
            thread::spawn(move || {
                let mut count = 0;
                while !end.load(Ordering::Relaxed) {
                    let line = format!("w{writer} {count} {}\n", "x".repeat(writer * 11));
                    // Every third line is written in two parts.
                    let part = if count % 3 == 0 { line.len() / 2 } else { 0 };
                    file.write_all(&line.as_bytes()[..part]).unwrap();
                    if part > 0 {
                        sleep(Duration::from_millis(2));
                    }
                    file.write_all(&line.as_bytes()[part..]).unwrap();
                    count += 1;
                    sleep(Duration::from_micros(500));
                }
                count
            })
        };
        let threads = (0..WRITERS).map(write).collect();
        Self { end, threads }
    }

    /// Ends the writers. Returns how many lines each has written.
    fn end(self) -> Vec<u64> {
        self.end.store(true, Ordering::Relaxed);
        let threads = self.threads.into_iter();
        threads.map(|thread| thread.join().unwrap()).collect()
    }
}

/// Checks that every line has arrived once and in order.
fn verify(rig: &Rig, counts: &[u64]) {
    let total: u64 = counts.iter().sum();
    let lines = rig.until_lines(usize::try_from(total).unwrap());
    let arrived = by_writer(&lines);
    for (writer, count) in counts.iter().enumerate() {
        let name = format!("w{writer}");
        let arrived = arrived.get(&*name).cloned().unwrap_or_default();
        assert!(
            arrived == (0..*count).collect::<Vec<_>>(),
            "{name} of {count}: {arrived:?}"
        );
    }
    assert_eq!(lines.len() as u64, total);
}

#[test]
fn writers_notice_nothing_of_upgrades_and_of_new_rules() {
    let mut rig = Rig::plain();
    let writers = Writers::start(&rig.mount());
    let config = rig.config.clone();
    for turn in 1..=in_storm(4, 40) {
        sleep(Duration::from_millis(300));
        rig.config = config.replace(
            "/mnt, ",
            &format!(
                "/mnt, rules: [{{ path: \"{turn}.log\", tag: turn{turn}, deny: \"^no {turn}\" }}]"
            ),
        );
        fs::write(rig.directory.path().join("millstream.yaml"), &rig.config).unwrap();
        let program = rig.program.as_ref().unwrap();
        program.signal("HUP");
        let reloads = usize::try_from(turn).unwrap();
        wait_until("it is reloaded", || rig.log_lines("reloaded: ") >= reloads);
        sleep(Duration::from_millis(300));
        let program = rig.program.as_ref().unwrap();
        program.signal("USR2");
        wait_until("the new program serves", || {
            rig.log_lines("is still mounted") == reloads
        });
    }
    sleep(Duration::from_millis(300));
    let counts = writers.end();
    verify(&rig, &counts);
    // Names and sizes live on, too.
    let size = |name: &str| fs::metadata(rig.mount().join(name)).unwrap().len();
    assert!((0..WRITERS / 2).all(|file| size(&format!("{file}.log")) > counts[2 * file]));
    assert_eq!(rig.log_lines("cut off") + rig.log_lines("ERROR"), 0);
}

#[test]
fn a_write_that_waits_in_front_of_a_full_channel_outlives_an_upgrade() {
    let rig = Rig::new("", "size_max: 8MiB, sync: 1s", "{.message}");
    // A directory in the place of the output file stops the sink, so the sink takes no records out of the channel.
    let out = rig.directory.path().join("out");
    fs::create_dir(&out).unwrap_or_default();
    let (written, path) = (Arc::new(AtomicU64::new(0)), rig.mount().join("f"));
    let count = written.clone();
    let writer = thread::spawn(move || {
        let mut file = fs::File::create(path).unwrap();
        for number in 0..400 {
            let line = format!("w {number} {}\n", "x".repeat(60_000));
            file.write_all(line.as_bytes()).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    wait_until("the channel is full", || {
        let before = written.load(Ordering::Relaxed);
        sleep(Duration::from_millis(700));
        before > 20 && written.load(Ordering::Relaxed) == before
    });
    rig.program.as_ref().unwrap().signal("USR2");
    wait_until("the new program serves", || {
        rig.log_lines("is still mounted") == 1
    });
    assert!(!writer.is_finished());
    fs::remove_dir(&out).unwrap();
    let lines = rig.until_lines(400);
    writer.join().unwrap();
    assert_eq!(by_writer(&lines)["w"], (0..400).collect::<Vec<_>>());
}

#[test]
fn after_a_kill_the_programs_that_hold_dead_files_are_named_and_the_command_runs() {
    let directory = tempfile::tempdir().unwrap();
    let reopened = directory.path().join("reopened");
    let source = format!(
        "after_mount: [sh, -c, \"echo again >> {}\"]",
        reopened.display()
    );
    let mut rig = Rig::new(&source, "size_max: 64MiB", "{.message}");
    let runs = || lines(&reopened).len();
    wait_until("the command has run", || runs() == 1);
    let mut writer = rig
        .command("bash")
        .args(["-c", "exec >> f; echo before; read; echo after; read"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(rig.until_lines(1), ["before"]);
    rig.kill();
    rig.start();
    wait_until("the command has run again", || runs() == 2);
    let named = format!("bash ({})", writer.id());
    wait_until("the writer is named", || rig.log_lines(&named) == 1);
    writer.kill().unwrap();
    writer.wait().unwrap();
    // An upgrade cuts nothing, so the command does not run.
    rig.program.as_ref().unwrap().signal("USR2");
    wait_until("it serves", || rig.log_lines("is still mounted") == 1);
    rig.bash("echo end >> f");
    assert_eq!(rig.until_lines(2), ["before", "end"]);
    assert_eq!(runs(), 2);
}

/// Plays systemd: starts the program, stores its descriptors, and starts it again with them while the file `restart` exists.
const MANAGER: &str = "\
import fcntl, os, signal, socket, sys, threading
place, argv = sys.argv[1], sys.argv[2:]
address = place + '/notify'
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(address)
store = {}
def listen():
    while True:
        data, fds, _, _ = socket.recv_fds(notify, 4096, 8)
        fields = dict(line.split('=', 1) for line in data.decode().splitlines() if '=' in line)
        if 'FDSTORE' in fields:
            store[fields['FDNAME']] = fds.pop()
        elif 'FDSTOREREMOVE' in fields and fields['FDNAME'] in store:
            fds.append(store.pop(fields['FDNAME']))
        for fd in fds:
            os.close(fd)
threading.Thread(target=listen, daemon=True).start()
child = 0
def forward(number, _):
    os.kill(child, number)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
    signal.signal(number, forward)
while True:
    names = list(store)
    child = os.fork()
    if child == 0:
        high = [fcntl.fcntl(store[name], fcntl.F_DUPFD, 100) for name in names]
        for at, fd in enumerate(high):
            os.dup2(fd, 3 + at)
            os.close(fd)
        os.environ.update(NOTIFY_SOCKET=address, FDSTORE='16', LISTEN_PID=str(os.getpid()),
                          LISTEN_FDS=str(len(names)), LISTEN_FDNAMES=':'.join(names))
        os.execv(argv[0], argv)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not os.path.exists(place + '/restart'):
        sys.exit(status)
";

/// A rig whose program runs under [`MANAGER`].
fn managed() -> Rig {
    let mut rig = Rig::plain();
    assert_eq!(rig.program.take().unwrap().stop(), Some(0));
    let place = rig.directory.path().to_owned();
    fs::write(place.join("restart"), "").unwrap();
    let shell = ["python3", "-c", MANAGER, place.to_str().unwrap()];
    rig.program = Some(Program::start_after(&place, &rig.config, &shell));
    wait_until("it is mounted", || rig.log_lines("is mounted") == 2);
    rig
}

#[test]
fn writers_notice_nothing_of_restarts_of_a_service_that_stores_descriptors() {
    let rig = managed();
    let place = rig.directory.path();
    let writers = Writers::start(&rig.mount());
    for turn in 1..=usize::try_from(in_storm(3, 30)).unwrap() {
        sleep(Duration::from_millis(400));
        rig.program.as_ref().unwrap().signal("TERM");
        wait_until("the next start serves", || {
            rig.log_lines("is still mounted") == turn
        });
    }
    let counts = writers.end();
    verify(&rig, &counts);
    // A stop without another start frees the directory.
    fs::remove_file(place.join("restart")).unwrap();
    let mut rig = rig;
    let mut file = fs::File::options();
    let mut file = file
        .append(true)
        .create(true)
        .open(rig.mount().join("open"));
    let file = file.as_mut().unwrap();
    assert_eq!(rig.program.take().unwrap().stop(), Some(0));
    assert!(file.write_all(b"late\n").is_err());
    fs::write(rig.mount().join("plain"), "kept for the next start\n").unwrap();
}

/// A writer that never opens its file again. Every third line is written in two parts. At the first error it prints the number of
/// lines whose writes have all returned, and whether the first part of the next one is written. Then it keeps the dead file open.
const NEVER_REOPENS: &str = "import os, sys, time
name, path = sys.argv[1:]
fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
print('open', flush=True)
n = 0
while True:
    line = b'%s %d %s\\n' % (name.encode(), n, b'y' * (n % 50))
    half, part = len(line) // 2 if n % 3 == 0 else 0, 0
    try:
        if half:
            part = os.write(fd, line[:half])
        assert os.write(fd, line[half:]) == len(line) - half
    except OSError:
        break
    n += 1
    time.sleep(0.001)
print(n, part, flush=True)
sys.stdin.read()
";

/// The writers of one round.
struct Mortals {
    round: u64,
    children: Vec<Child>,
    told: Vec<std::io::Lines<BufReader<std::process::ChildStdout>>>,
}

impl Mortals {
    fn start(rig: &Rig, round: u64) -> Self {
        let start = |writer: usize| {
            let path = rig.mount().join(format!("{}.log", writer / 2));
            let mut python = Command::new("python3");
            python.args(["-c", NEVER_REOPENS, &format!("r{round}w{writer}")]);
            let python = python.arg(path).stdin(Stdio::piped());
            python.stdout(Stdio::piped()).spawn().unwrap()
        };
        let mut children: Vec<_> = (0..WRITERS).map(start).collect();
        let mut told = Vec::new();
        for child in &mut children {
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert_eq!(lines.next().unwrap().unwrap(), "open");
            told.push(lines);
        }
        Self {
            round,
            children,
            told,
        }
    }

    /// Waits until each one has got an error. Adds the lines whose writes have returned to `whole`, and the first parts to `parts`.
    fn broken(&mut self, whole: &mut BTreeSet<String>, parts: &mut Vec<String>) {
        for (writer, told) in self.told.iter_mut().enumerate() {
            let told = told.next().unwrap().unwrap();
            let (count, part) = told.split_once(' ').unwrap();
            let (count, part): (usize, usize) = (count.parse().unwrap(), part.parse().unwrap());
            let name = format!("r{}w{writer}", self.round);
            whole.extend((0..count).map(|n| format!("{name} {n}")));
            if part > 0 {
                let line = format!("{name} {count} {}", "y".repeat(count % 50));
                parts.push(line[..part].to_owned());
            }
        }
    }
}

impl Drop for Mortals {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn every_line_whose_write_returned_arrives_once_however_the_program_ends() {
    let mut rig = Rig::plain();
    let (config, mut random) = (rig.config.clone(), Random::new());
    let (mut whole, mut parts) = (BTreeSet::new(), Vec::new());
    let mut turn = 0;
    for round in 0..in_storm(4, 40) {
        let mut writers = Mortals::start(&rig, round);
        sleep(Duration::from_millis(random.below(300)));
        // Reloads and upgrades go unnoticed. The program ends by a stop, by a kill, or by a kill while it is being replaced.
        for _ in 0..random.below(3) {
            turn += 1;
            let rules = format!("/mnt, rules: [{{ path: \"{turn}.log\", tag: turn{turn} }}],");
            rig.config = config.replace("/mnt,", &rules);
            fs::write(rig.directory.path().join("millstream.yaml"), &rig.config).unwrap();
            let (reloads, taken) = (
                rig.log_lines("reloaded: "),
                rig.log_lines("is still mounted"),
            );
            rig.program.as_ref().unwrap().signal("HUP");
            wait_until("it is reloaded", || rig.log_lines("reloaded: ") > reloads);
            rig.program.as_ref().unwrap().signal("USR2");
            wait_until("it serves", || rig.log_lines("is still mounted") > taken);
        }
        sleep(Duration::from_millis(200));
        let mut is_writing = |child: &mut Child| child.try_wait().unwrap().is_none();
        assert!(writers.children.iter_mut().all(&mut is_writing));
        match round % 4 {
            0 => assert_eq!(rig.program.take().unwrap().stop(), Some(0)),
            1 => rig.kill(),
            _ => {
                rig.program.as_ref().unwrap().signal("USR2");
                sleep(Duration::from_millis(random.below(150)));
                rig.kill();
            }
        }
        writers.broken(&mut whole, &mut parts);
        rig.start();
        let named = |child: &Child| rig.log_lines(&format!("python3 ({})", child.id())) > 0;
        wait_until("the programs with dead files are named", || {
            writers.children.iter().all(named)
        });
    }
    assert!(whole.len() > 500, "only {} lines", whole.len());
    wait_until("every line whose write returned has arrived", || {
        let arrived = numbered(&rig.lines());
        whole.iter().all(|line| arrived.contains_key(line))
    });
    sleep(Duration::from_secs(1));
    let lines = rig.lines();
    for (line, times) in numbered(&lines) {
        assert_eq!(times, 1, "{line} came {times} times");
    }
    for part in parts {
        let found = lines.iter().filter(|line| line.starts_with(&part));
        assert!(found.count() >= 1, "the unfinished {part:?} is lost");
    }
}
