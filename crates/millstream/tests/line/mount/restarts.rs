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
