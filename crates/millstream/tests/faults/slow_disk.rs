//! A disk that becomes slow, under the channel and under the output. Accepted records stay accepted, even if the
//! program is killed meanwhile. The source reads no faster than the disk writes, memory stays bounded, and everything
//! continues when the disk is fast again. Needs root for a loop device whose writes a control group throttles.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::program::{Program, free_port, millbench, wait_until};

/// Records in total: about 240 MB.
const RECORDS: &str = "2000000";
/// Bytes per second of the slow disk: less than a hundredth of the load.
const SLOW: u64 = 4 << 20;
/// The time for which the disk is slow before the kill, and again after it.
const SLOW_TIME: Duration = Duration::from_secs(4);
/// The size of the channel.
const CHANNEL_BYTES: u64 = 64 << 20;
/// The most bytes that the program can hold in memory: queues, the buffers of two connections, and batches that are being written.
const UNDERWAY_BYTES: u64 = 32 << 20;
/// The limit for the peak memory of the program, however much its sender has in flight.
const MEMORY_MAX: u64 = 100 << 20;

fn run(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program).args(arguments).output();
    let out = out.unwrap_or_else(|error| panic!("{program}: {error}"));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success(),
        "{program} {arguments:?}: {error}; these tests need root"
    );
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// A file system on a loop device. Removed when dropped.
struct Disk {
    at: PathBuf,
    device: String,
    /// Its device numbers, `MAJOR:MINOR`.
    numbers: String,
    group: Group,
}

/// The control group that throttles the disk.
struct Group {
    directory: PathBuf,
    old: bool,
}

impl Group {
    fn make(name: &str) -> Self {
        let old = Path::new("/sys/fs/cgroup/blkio");
        let is_old = old.join("blkio.throttle.write_bps_device").exists();
        let root = if is_old {
            old
        } else {
            Path::new("/sys/fs/cgroup")
        };
        if !is_old {
            let on = fs::write(root.join("cgroup.subtree_control"), "+io");
            on.expect("this system cannot throttle a disk: no control group `blkio` or `io`");
        }
        let directory = root.join(name);
        fs::create_dir(&directory).expect("root can make a control group");
        Self {
            directory,
            old: is_old,
        }
    }

    fn take(&self, process: u32) {
        fs::write(self.directory.join("cgroup.procs"), process.to_string()).unwrap();
    }

    /// Throttles the writes of the group and of kernel threads to the device. `None` removes the limit.
    fn limit(&self, numbers: &str, bytes: Option<u64>) {
        if self.old {
            let line = format!("{numbers} {}", bytes.unwrap_or(0));
            let file = "blkio.throttle.write_bps_device";
            fs::write(self.directory.join(file), &line).unwrap();
            fs::write(self.directory.with_file_name(file), &line).unwrap();
        } else {
            let bytes = bytes.map_or("max".to_owned(), |bytes| bytes.to_string());
            let line = format!("{numbers} wbps={bytes}");
            fs::write(self.directory.join("io.max"), line).unwrap();
        }
    }
}

impl Disk {
    fn mount(place: &Path, name: &str) -> Self {
        let image = place.join("image");
        fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
        let device = run("losetup", &["--find", "--show", image.to_str().unwrap()]);
        run("mkfs.ext4", &["-q", &device]);
        let at = place.join(name);
        fs::create_dir_all(&at).unwrap();
        run("mount", &[&device, at.to_str().unwrap()]);
        let short = device.trim_start_matches("/dev/");
        let numbers = fs::read_to_string(format!("/sys/block/{short}/dev")).unwrap();
        let group = Group::make(&format!("millstream-slow-{}-{name}", std::process::id()));
        Self {
            at,
            device,
            numbers: numbers.trim().to_owned(),
            group,
        }
    }

    fn limit(&self, bytes: Option<u64>) {
        self.group.limit(&self.numbers, bytes);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.limit(None);
        // The device disappears with its last user.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
        // A killed program leaves its control group only after a while, so retry.
        for _ in 0..50 {
            if fs::remove_dir(&self.group.directory).is_ok() {
                return;
            }
            sleep(Duration::from_millis(100));
        }
    }
}

/// The program and its disk, which the test slows down.
struct Setup {
    place: PathBuf,
    disk: Disk,
    config: String,
    port: u16,
    api: u16,
}

impl Setup {
    fn new(place: &Path, slow: &str) -> Self {
        let disk = Disk::mount(place, slow);
        for name in ["data", "out"] {
            fs::create_dir_all(place.join(name)).unwrap();
        }
        let (port, api) = (free_port(), free_port());
        let directory = place.display();
        let config = format!(
            "data_dir: {directory}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\nthreads: 2\n\
             sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
             channels:\n  kept: {{ type: disk, inputs: [in], size_max: {CHANNEL_BYTES}B }}\n\
             sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{directory}/out/{{tag}}.log\" }}\n"
        );
        Self {
            place: place.to_owned(),
            disk,
            config,
            port,
            api,
        }
    }

    fn start(&self) -> Program {
        let program = Program::start(&self.place, &self.config).listens(self.port);
        self.disk.group.take(program.id());
        // The source accepts connections before it has its counters.
        wait_until("the source runs", || self.counted("chunks_acked").is_some());
        program
    }

    /// Starts a generator with two connections, each with up to 40 MB in flight.
    fn generate(&self) -> Child {
        Command::new(millbench())
            .args(["generate", "--acks", "--connections", "2"])
            .args(["--records", RECORDS, "--window", "40"])
            .args(["--ack-timeout", "100s", "--forward"])
            .arg(format!("127.0.0.1:{}", self.port))
            .arg("--ledger")
            .arg(self.place.join("ledger"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// A counter of the source.
    fn count(&self, name: &str) -> u64 {
        self.counted(name).unwrap()
    }

    /// A counter of the source. `None` before the source runs.
    fn counted(&self, name: &str) -> Option<u64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.api)).unwrap();
        let ask = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let start = format!("millstream_{name}_total{{component=\"in\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.map(|value| value.parse().unwrap())
    }

    /// Lets the program work on the slow disk for a while. Asserts that it reads only what it can write or hold, that it still accepts
    /// records, and that memory stays bounded.
    fn work_slowly(&self, program: &Program, room: u64) {
        let (started, before) = (Instant::now(), self.count("bytes_received"));
        let acked = self.count("chunks_acked");
        sleep(SLOW_TIME);
        let read = self.count("bytes_received") - before;
        let taken = SLOW * (started.elapsed().as_secs() + 1);
        assert!(
            read <= taken + room + UNDERWAY_BYTES,
            "{read} bytes read, but the disk took {taken} at most"
        );
        wait_until("another chunk is accepted on the slow disk", || {
            self.count("chunks_acked") > acked
        });
        let peak = memory_peak(program);
        assert!(peak < MEMORY_MAX, "{peak} bytes of memory");
    }

    fn verified(&self) -> (bool, String) {
        let mut verify = Command::new(millbench());
        verify.arg("verify").arg(self.place.join("out"));
        verify.arg("--ledger").arg(self.place.join("ledger"));
        let out = verify.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        (out.status.success(), text)
    }
}

fn memory_peak(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

/// Slows down the disk of the directory `slow`. `room` is the number of bytes that the program can accept nevertheless, because
/// it stores them on another disk.
fn check(slow: &str, room: u64) {
    let directory = tempfile::tempdir().unwrap();
    let setup = Setup::new(directory.path(), slow);
    let program = setup.start();
    let mut generator = setup.generate();
    wait_until("a chunk is accepted", || setup.count("chunks_acked") > 0);
    setup.disk.limit(Some(SLOW));
    setup.work_slowly(&program, room);
    program.kill();
    let program = setup.start();
    setup.work_slowly(&program, room);
    let quick = Instant::now();
    setup.disk.limit(None);
    wait_until("the generator has all acks", || {
        generator.try_wait().unwrap().is_some()
    });
    assert!(generator.wait().unwrap().success(), "{}", program.log());
    wait_until("every record is in the file", || setup.verified().0);
    println!("quick again: all there after {:?}", quick.elapsed());
    let peak = memory_peak(&program);
    assert!(peak < MEMORY_MAX, "{peak} bytes of memory");
    assert_eq!(program.stop(), Some(0));
    let (right, account) = setup.verified();
    assert!(right, "{account}");
}

#[test]
fn a_slow_disk_under_the_channel_slows_the_source_and_loses_nothing() {
    check("data", 0);
}

#[test]
fn a_slow_disk_under_the_output_fills_the_channel_and_loses_nothing() {
    check("out", CHANNEL_BYTES);
}
