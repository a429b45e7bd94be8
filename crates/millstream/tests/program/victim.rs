//! Programs that are killed at random moments, the generator that feeds them, and the verifier that accounts for what
//! they wrote.

#![allow(clippy::print_stdout, reason = "a test says what it did")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{PATIENCE, Program, millbench, wait_until};

/// xorshift64*: random enough for moments, and the seed is printed.
pub struct Random(u64);

impl Random {
    /// With the seed that SEED says, or a new one.
    pub fn new() -> Self {
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

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
    }
}

/// A count or a number of seconds: `quick` in `make test`, `full` in `make storm`.
pub fn in_storm(quick: u64, full: u64) -> u64 {
    match std::env::var_os("STORM") {
        Some(_) => full,
        None => quick,
    }
}

/// Starts the program and kills it within 50 ms, in each stage of its start, half of the time.
pub fn kill_at_start(directory: &Path, config: &str, random: &mut Random) {
    const START_MS_MAX: u64 = 50;
    while random.below(2) == 0 {
        let program = Program::start(directory, config);
        sleep(Duration::from_millis(random.below(START_MS_MAX)));
        program.kill();
    }
}

/// The generator at work.
pub struct Generator {
    arguments: Vec<String>,
    child: Child,
}

impl Generator {
    /// Starts it.
    pub fn start(arguments: &[String]) -> Self {
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

    /// Kills it, and lets it go on.
    pub fn kill_and_restart(&mut self) {
        // It may have ended by itself; then its ledger says so and it ends at once.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        *self = Self::start(&self.arguments);
    }

    /// Goes on towards another port with what is not acked.
    pub fn turn_to(mut self, port: u16) -> Self {
        let mut arguments = self.arguments.clone();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let address = arguments.iter().position(|word| word == "--forward");
        arguments[address.unwrap() + 1] = format!("127.0.0.1:{port}");
        Self::start(&arguments)
    }

    /// Ends one that has no end: sends what is not acked and a little more, and waits for every ack.
    pub fn conclude(mut self) {
        let mut arguments = self.arguments.clone();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let records = arguments.iter().position(|word| word == "--records");
        let records = records.unwrap();
        // Long enough for what was in flight to be sent again first.
        arguments.splice(records..records + 2, ["--seconds", "5"].map(str::to_owned));
        Self::start(&arguments).finish();
    }

    /// Waits until it has every ack.
    pub fn finish(mut self) {
        wait_until("the generator has all acks", || {
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

/// What generates so many records, at so many a second, with its ledger in `directory`.
pub fn generate(directory: &Path, port: u16, records: &str, rate: &str) -> Vec<String> {
    let ledger = directory.join("ledger").display().to_string();
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

/// What the verifier says of `out`; `allow` names what may be wrong.
fn account(out: &Path, ledger: &Path, allow: &[&str]) -> Output {
    let mut command = Command::new(millbench());
    command.arg("verify").arg(out).arg("--ledger").arg(ledger);
    for defect in allow {
        command.args(["--allow", defect]);
    }
    command.output().unwrap()
}

/// Waits until nothing that was sent is missing in `out`: for faults after which an output stands still for a while.
pub fn arrived(out: &Path, ledger: &Path) {
    let others = ["duplicated", "reordered"];
    wait_until("every record has arrived", || {
        account(out, ledger, &others).status.success()
    });
}

/// Lets the verifier account for what stands in `out`.
pub fn verify(out: &Path, ledger: &Path) {
    let account = account(out, ledger, &[]);
    let said = String::from_utf8_lossy(&account.stdout).into_owned();
    println!("{said}");
    assert!(
        account.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&account.stderr)
    );
}

/// A program that is killed and started again with the same configuration.
pub struct Victim {
    directory: PathBuf,
    config: String,
    port: u16,
    program: Option<Program>,
}

impl Victim {
    /// Starts it for the first time.
    pub fn start(directory: PathBuf, port: u16, config: String) -> Self {
        fs::create_dir_all(&directory).unwrap();
        let program = Some(Program::start(&directory, &config).listens(port));
        Self {
            directory,
            config,
            port,
            program,
        }
    }

    /// SIGKILL, now and in some of the starts that follow.
    pub fn kill_and_restart(&mut self, random: &mut Random) {
        self.kill();
        kill_at_start(&self.directory, &self.config, random);
        self.restart();
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.program.take().unwrap().kill();
    }

    /// SIGSTOP: it hangs, and the kernel still takes what is sent to it.
    pub fn pause(&self) {
        self.program.as_ref().unwrap().signal("STOP");
    }

    /// SIGCONT: it goes on where it was stopped.
    pub fn go_on(&self) {
        self.program.as_ref().unwrap().signal("CONT");
    }

    /// Starts it again.
    pub fn restart(&mut self) {
        self.program = Some(Program::start(&self.directory, &self.config).listens(self.port));
    }

    /// Lets it drain and end.
    pub fn stop(mut self) {
        let program = self.program.take().unwrap();
        let code = program.stop();
        assert_eq!(
            code,
            Some(0),
            "{}",
            fs::read_to_string(self.directory.join("log")).unwrap()
        );
    }
}

/// Waits until what stands below `out` has stopped growing: everything the channel held is in the files.
pub fn settle(out: &Path) {
    fn size(directory: &Path) -> u64 {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let sizes = entries.map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => size(&entry.path()),
            // It may have been rotated meanwhile.
            _ => entry.metadata().map_or(0, |found| found.len()),
        });
        sizes.sum()
    }
    let (mut last, mut quiet) = (size(out), 0);
    let start = std::time::Instant::now();
    while quiet < 15 {
        assert!(start.elapsed() < PATIENCE, "the output never stops growing");
        sleep(Duration::from_millis(200));
        let now = size(out);
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
}
