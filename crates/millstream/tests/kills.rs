//! Nothing lost, nothing twice: the generator, the receiver and the relay between are killed with SIGKILL at random
//! moments while records flow; the generator's own verifier then accounts for every one of them.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what cannot be done fails the test, which says what it did"
)]

mod program;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use program::{PATIENCE, Program, free_port, millbench};

/// How often somebody is killed.
const KILLS: u64 = 54;
/// The longest pause between two kills.
const PAUSE_MS_MAX: u64 = 500;

/// xorshift64*: random enough for moments, and the seed is printed.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = std::env::var("SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64;
        let seed = seed.unwrap_or(now) | 1;
        println!("SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
    }
}

struct Generator {
    arguments: Vec<String>,
    child: Child,
}

impl Generator {
    fn start(arguments: &[String]) -> Self {
        let mut command = Command::new(millbench());
        let child = command
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            arguments: arguments.to_vec(),
            child,
        }
    }

    fn kill_and_restart(&mut self) {
        // It may have ended by itself; then its ledger says so and it ends at once.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        *self = Self::start(&self.arguments);
    }

    fn finish(mut self) {
        program::wait_until("the generator has all acks", || {
            self.child.try_wait().unwrap().is_some()
        });
        assert!(self.child.wait().unwrap().success(), "the generator failed");
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn generate(folder: &Path, port: u16, records: &str, rate: &str) -> Vec<String> {
    let ledger = folder.join("ledger").display().to_string();
    let address = format!("127.0.0.1:{port}");
    let words = [
        "generate",
        "--forward",
        &address,
        "--acks",
        "--ledger",
        &ledger,
        "--records",
        records,
        "--rate",
        rate,
        "--connections",
        "3",
        "--chunk",
        "400",
        "--ack-timeout",
        "5s",
    ];
    words.map(str::to_owned).to_vec()
}

fn verify(folder: &Path) {
    let ledger = folder.join("ledger");
    let words = [
        "verify".as_ref(),
        folder.join("out").into_os_string().as_os_str(),
        "--ledger".as_ref(),
        ledger.as_os_str(),
    ]
    .map(std::ffi::OsStr::to_owned);
    let account = Command::new(millbench()).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&account.stdout).into_owned();
    println!("{said}");
    assert!(
        account.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&account.stderr)
    );
}

fn receiver(folder: &Path, port: u16) -> String {
    let place = folder.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out/{{tag}}.log\" }}\n"
    )
}

fn relay(folder: &Path, port: u16, next: u16) -> String {
    let place = folder.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  next: {{ type: forward, inputs: [kept], servers: [\"127.0.0.1:{next}\"], peer: millstream }}\n"
    )
}

/// A program that is killed and started again with the same configuration.
struct Victim {
    folder: PathBuf,
    config: String,
    port: u16,
    program: Option<Program>,
}

impl Victim {
    fn start(folder: PathBuf, port: u16, config: String) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let program = Some(Program::start(&folder, &config).listens(port));
        Self {
            folder,
            config,
            port,
            program,
        }
    }

    fn kill(&mut self) {
        self.program.take().unwrap().kill();
    }

    fn restart(&mut self) {
        self.program = Some(Program::start(&self.folder, &self.config).listens(self.port));
    }

    fn stop(mut self) {
        let program = self.program.take().unwrap();
        let code = program.stop();
        assert_eq!(
            code,
            Some(0),
            "{}",
            fs::read_to_string(self.folder.join("log")).unwrap()
        );
    }
}

/// Waits until the output has stopped growing: everything the channel held is in the file.
fn settle(folder: &Path) {
    let size = || -> u64 {
        let entries = fs::read_dir(folder.join("out")).into_iter().flatten();
        entries
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum()
    };
    let (mut last, mut quiet) = (size(), 0);
    let start = std::time::Instant::now();
    while quiet < 15 {
        assert!(start.elapsed() < PATIENCE, "the output never stops growing");
        sleep(Duration::from_millis(200));
        let now = size();
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
}

#[test]
fn nothing_is_lost_or_doubled_when_sender_receiver_or_both_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new();
    let port = free_port();
    let mut receiver = Victim::start(
        folder.path().to_owned(),
        port,
        receiver(folder.path(), port),
    );
    let mut generator = Generator::start(&generate(folder.path(), port, "1200000", "40000"));
    for kill in 0..KILLS {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        match kill % 3 {
            0 => generator.kill_and_restart(),
            1 => {
                receiver.kill();
                receiver.restart();
            }
            _ => {
                receiver.kill();
                generator.kill_and_restart();
                receiver.restart();
            }
        }
    }
    generator.finish();
    settle(folder.path());
    receiver.stop();
    verify(folder.path());
}

#[test]
fn nothing_is_lost_or_doubled_from_one_millstream_to_the_next_when_either_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new();
    let (port, next) = (free_port(), free_port());
    let mut last = Victim::start(
        folder.path().to_owned(),
        next,
        receiver(folder.path(), next),
    );
    let first = folder.path().join("relay");
    let mut first = Victim::start(first.clone(), port, relay(&first, port, next));
    let generator = Generator::start(&generate(folder.path(), port, "600000", "30000"));
    for kill in 0..KILLS / 2 {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        let victim = if kill % 2 == 0 { &mut first } else { &mut last };
        victim.kill();
        victim.restart();
    }
    generator.finish();
    settle(folder.path());
    first.stop();
    last.stop();
    verify(folder.path());
}
