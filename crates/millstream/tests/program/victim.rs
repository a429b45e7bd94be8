//! Programs that are killed at random moments, the generator that sends records to them, and the verifier that checks their
//! output.

#![allow(clippy::print_stdout, reason = "a test says what it did")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{PATIENCE, Program, free_port, millbench, wait_until};

/// A generator of random numbers (xorshift64*). It prints its seed.
pub struct Random(u64);

impl Random {
    /// Uses the seed in the environment variable SEED, otherwise the time.
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

/// Two chains of processors, for tests of sinks. One chain leads from `in` to `halves.some` and `halves.rest`, the other from the
/// channel `kept` to `parts.some` and `parts.rest`. Both chains parse with several tasks and route the records to two outputs, but
/// leave the records unchanged.
pub const CHAINS: &str = "processors:\n\
    \x20 parsed: { type: parse, inputs: [in], as: regex, pattern: '^(?<message>.*)$', parallelism: 2 }\n\
    \x20 mapped: { type: remap, inputs: [parsed], program: '.n = length!(.message); del(.n)' }\n\
    \x20 halves: { type: route, inputs: [mapped], routes: { some: { where: { .message: { regex: '7' } } } } }\n\
    \x20 again: { type: parse, inputs: [kept], as: regex, pattern: '^(?<message>.*)$', parallelism: 2 }\n\
    \x20 remapped: { type: remap, inputs: [again], program: '.n = length!(.message); del(.n)', parallelism: 2 }\n\
    \x20 parts: { type: route, inputs: [remapped], routes: { some: { where: { .message: { regex: '8' } } } } }\n";

/// Selects a count or a number of seconds: `quick` in `make test`, `full` in `make storm`.
pub fn in_storm(quick: u64, full: u64) -> u64 {
    match std::env::var_os("STORM") {
        Some(_) => full,
        None => quick,
    }
}

/// Starts the program and kills it within 50 ms, zero or more times (with probability 1/2 each time), so that the kills interrupt
/// starts at every stage.
pub fn kill_at_start(directory: &Path, config: &str, random: &mut Random) {
    const START_MS_MAX: u64 = 50;
    while random.below(2) == 0 {
        let program = Program::start(directory, config);
        sleep(Duration::from_millis(random.below(START_MS_MAX)));
        program.kill();
    }
}

/// A running `millbench generate`.
pub struct Generator {
    arguments: Vec<String>,
    child: Child,
}

impl Generator {
    /// Starts the generator with these arguments.
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

    /// Kills the generator and starts it again. It continues from its ledger, the file in which it notes the acks.
    pub fn kill_and_restart(&mut self) {
        // If it has exited already, its ledger contains every ack, and the new process exits immediately.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        *self = Self::start(&self.arguments);
    }

    /// Restarts the generator with another port. It sends the records that are not acked.
    pub fn turn_to(mut self, port: u16) -> Self {
        let mut arguments = self.arguments.clone();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let address = arguments.iter().position(|word| word == "--forward");
        arguments[address.unwrap() + 1] = format!("127.0.0.1:{port}");
        Self::start(&arguments)
    }

    /// Ends a generator whose `--records` is too large to wait for. Restarts it with a limit of 5 s, in which it sends the unacked records
    /// and some more, and waits for every ack.
    pub fn conclude(mut self) {
        let mut arguments = self.arguments.clone();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let records = arguments.iter().position(|word| word == "--records");
        let records = records.unwrap();
        // 5 s are enough to first resend the records that were in flight.
        arguments.splice(records..records + 2, ["--seconds", "5"].map(str::to_owned));
        Self::start(&arguments).finish();
    }

    /// Waits until every record is acked.
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

/// The arguments for a generator: number of records, rate in records per second, ledger in `directory`.
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

/// The verifier's report on `out`; `allow` names the defects to accept.
fn account(out: &Path, ledger: &Path, allow: &[&str]) -> Output {
    let mut command = Command::new(millbench());
    command.arg("verify").arg(out).arg("--ledger").arg(ledger);
    for defect in allow {
        command.args(["--allow", defect]);
    }
    command.output().unwrap()
}

/// Waits until no record is missing in `out`. It is for tests of faults that stall an output for a while. Accepts repeated and
/// reordered records.
pub fn arrived(out: &Path, ledger: &Path) {
    let others = ["duplicated", "reordered"];
    wait_until("every record has arrived", || {
        account(out, ledger, &others).status.success()
    });
}

/// Asserts that the verifier finds no defect in `out`.
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

/// A program that is killed and started again in the same directory.
pub struct Victim {
    directory: PathBuf,
    config: String,
    port: u16,
    program: Option<Program>,
}

impl Victim {
    /// Starts the program for the first time.
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

    /// Kills the program, starts and kills it a random number of times, then starts it.
    pub fn kill_and_restart(&mut self, random: &mut Random) {
        self.kill();
        kill_at_start(&self.directory, &self.config, random);
        self.restart();
    }

    /// Sets the configuration of later starts.
    pub fn configure(&mut self, config: String) {
        self.config = config;
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.program.take().unwrap().kill();
    }

    /// Sends SIGSTOP: the program hangs while the kernel still accepts data for it.
    pub fn pause(&self) {
        self.program.as_ref().unwrap().signal("STOP");
    }

    /// Sends SIGCONT.
    pub fn go_on(&self) {
        self.program.as_ref().unwrap().signal("CONT");
    }

    /// Starts the program again.
    pub fn restart(&mut self) {
        self.program = Some(Program::start(&self.directory, &self.config).listens(self.port));
    }

    /// Sends SIGTERM and waits until the program has drained and exited with code 0.
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

/// Repeatedly kills a generator, then a receiver, then both together. At the end, verifies the records in `out`.
///
/// `config` returns the receiver's configuration for a directory and a port. It is called again before each kill, so it may return
/// another configuration for the next start.
pub fn storm(config: impl Fn(&Path, u16) -> String, records: u64, rate: &str, kills: u64) {
    const PAUSE_MS_MAX: u64 = 500;
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let port = free_port();
    let mut receiver = Victim::start(place.to_owned(), port, config(place, port));
    let records = records.to_string();
    let mut generator = Generator::start(&generate(place, port, &records, rate));
    for kill in 0..kills {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        receiver.configure(config(place, port));
        match kill % 3 {
            0 => generator.kill_and_restart(),
            1 => receiver.kill_and_restart(&mut random),
            _ => {
                receiver.kill();
                generator.kill_and_restart();
                receiver.restart();
            }
        }
    }
    generator.finish();
    settle(&place.join("out"));
    receiver.stop();
    verify(&place.join("out"), &place.join("ledger"));
}

/// Waits until the files below `out` stop growing, which means that the channel is empty.
pub fn settle(out: &Path) {
    fn size(directory: &Path) -> u64 {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let sizes = entries.map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => size(&entry.path()),
            // The file may have been rotated in the meantime.
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
