//! The generator and the verifier, which know nothing of the program: numbered records go in, and are accounted for.

#![allow(dead_code, reason = "each test uses what it needs of it")]

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use super::program;

/// The generator and verifier, built beside the program.
pub fn millbench() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_millstream")).with_file_name("millbench");
    let place = path.display();
    assert!(
        path.exists(),
        "{place} is missing: build the workspace (`cargo test --workspace`)"
    );
    path
}

/// xorshift64*: random enough for moments, and the seed is printed.
pub struct Random(u64);

impl Random {
    /// Seeded by `SEED` or the clock.
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

    /// Below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
    }
}

/// A sender of numbered records that waits for acks and keeps a ledger in `folder`.
pub struct Generator {
    arguments: Vec<String>,
    child: Child,
}

impl Generator {
    /// Sends so many records at so many a second to a port of this machine.
    pub fn start(folder: &Path, port: u16, records: &str, rate: &str) -> Self {
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
        Self::run(words.map(str::to_owned).to_vec())
    }

    fn run(arguments: Vec<String>) -> Self {
        let mut command = Command::new(millbench());
        let quiet = command
            .args(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = quiet.spawn().unwrap();
        Self { arguments, child }
    }

    /// Goes on towards another port with what is not acked.
    pub fn turn_to(mut self, port: u16) -> Self {
        let mut arguments = self.arguments.clone();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        arguments[2] = format!("127.0.0.1:{port}");
        Self::run(arguments)
    }

    /// Waits until all is acked.
    pub fn finish(mut self) {
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

/// Every record of the ledger in `folder` is in its folder `out`, once.
pub fn verify(folder: &Path) {
    let (out, ledger) = (folder.join("out"), folder.join("ledger"));
    let words = [
        OsStr::new("verify"),
        out.as_os_str(),
        OsStr::new("--ledger"),
        ledger.as_os_str(),
    ];
    let account = Command::new(millbench()).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&account.stdout).into_owned();
    println!("{said}");
    let errors = String::from_utf8_lossy(&account.stderr);
    assert!(account.status.success(), "{said}{errors}");
}
