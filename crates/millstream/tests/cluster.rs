//! Scaling out and in: a relay deals what comes to several receivers, one Millstream each with a disk. One joins and one is drained under
//! load, one is killed and comes back: nothing is lost, what comes twice is what was in doubt, and the load is even again within 2 s.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what cannot be done fails the test, which says what it did"
)]

mod program;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use program::{
    free_port, millbench,
    victim::{Generator, Victim, generate, settle},
    wait_until,
};

/// Records, and how many a second.
const RECORDS: &str = "750000";
const RATE: &str = "30000";
/// The generator's records in a chunk.
const CHUNK: u64 = 400;
/// After a change of the servers the load is even again within this ...
const EVEN_WITHIN: Duration = Duration::from_secs(2);
/// ... looked at for so long, ...
const LOOK: Duration = Duration::from_secs(2);
/// So many looks on a busy machine.
const LOOKS_MAX: u32 = 6;
/// ... as far as servers may differ from the mean.
const UNEVEN_MAX: f64 = 0.2;

/// Two at a time would not leave each enough of a machine to say who gets what within two seconds.
static ONE_CLUSTER: Mutex<()> = Mutex::new(());

/// The relay, its receivers, and the load.
struct Cluster {
    folder: tempfile::TempDir,
    ports: Vec<u16>,
    receivers: Vec<Option<Victim>>,
    relay: Option<Victim>,
    generator: Option<Generator>,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    fn start(receivers: usize, more: &str) -> Self {
        let alone = ONE_CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Self {
            folder,
            ports: Vec::new(),
            receivers: Vec::new(),
            relay: None,
            generator: None,
            _alone: alone,
        };
        (0..receivers).for_each(|_| cluster.join());
        cluster.list(&(0..receivers).collect::<Vec<_>>());
        let (port, place) = (free_port(), cluster.place("relay"));
        let config = format!(
            "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 2\n\
             sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
             channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
             sinks:\n  next: {{ type: forward, inputs: [kept], discovery: {{ file: {1} }}, peer: millstream{more} }}\n",
            place.display(),
            cluster.place("servers.yaml").display()
        );
        cluster.relay = Some(Victim::start(place, port, config));
        let load = generate(cluster.folder.path(), port, RECORDS, RATE);
        cluster.generator = Some(Generator::start(&load));
        wait_until("records arrive", || {
            cluster.sizes().iter().all(|size| *size > 0)
        });
        cluster
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One receiver more, which nobody knows yet.
    fn join(&mut self) {
        let (port, number) = (free_port(), self.receivers.len());
        let place = self.place(&format!("receiver{number}"));
        let config = format!(
            "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 1\n\
             sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
             channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
             sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{1}/out/{number}.log\" }}\n",
            place.display(),
            self.folder.path().display()
        );
        self.receivers
            .push(Some(Victim::start(place, port, config)));
        self.ports.push(port);
    }

    /// From now on these receivers are the servers.
    fn list(&self, numbers: &[usize]) {
        let text: String = numbers
            .iter()
            .map(|number| format!("- 127.0.0.1:{}\n", self.ports[*number]))
            .collect();
        let new = self.place("servers.new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, self.place("servers.yaml")).unwrap();
    }

    /// Bytes that each receiver has written.
    fn sizes(&self) -> Vec<u64> {
        let out = |number| self.place(&format!("out/{number}.log"));
        let size = |number| fs::metadata(out(number)).map_or(0, |file| file.len());
        (0..self.receivers.len()).map(size).collect()
    }

    /// From two seconds after `since` on these receivers get equal shares; on a busy machine it may take a few looks.
    fn is_even(&self, numbers: &[usize], since: Instant) {
        sleep(EVEN_WITHIN.saturating_sub(since.elapsed()));
        for look in 1..=LOOKS_MAX {
            let before = self.sizes();
            sleep(LOOK);
            let after = self.sizes();
            let shares: Vec<u64> = numbers.iter().map(|n| after[*n] - before[*n]).collect();
            println!("look {look}: shares of {LOOK:?}: {shares:?}");
            let mean = shares.iter().sum::<u64>() as f64 / shares.len() as f64;
            let is_near = |share: &u64| (*share as f64 - mean).abs() <= UNEVEN_MAX * mean;
            if mean > 0.0 && shares.iter().all(is_near) {
                return;
            }
        }
        panic!("the shares are never even");
    }

    /// Waits for the end of the load and ends everybody.
    fn finish(&mut self) {
        self.generator.take().unwrap().finish();
        settle(&self.place("out"));
        self.relay.take().unwrap().stop();
        self.receivers
            .iter_mut()
            .filter_map(Option::take)
            .for_each(Victim::stop);
    }

    /// The verifier's account; `allow` names what may be wrong.
    fn account(&self, allow: &[&str]) -> serde_json::Value {
        let account = Command::new(millbench())
            .args(["verify", "--json", "--ledger"])
            .args([self.place("ledger"), self.place("out")])
            .args(allow)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&account.stdout).into_owned();
        assert!(account.status.success(), "{said}");
        serde_json::from_str(&said).unwrap()
    }

    /// The log of the relay.
    fn log(&self) -> String {
        fs::read_to_string(self.place("relay/log")).unwrap()
    }
}

/// A sum over the flows of an account.
fn sum(account: &serde_json::Value, what: &str) -> u64 {
    let flows = account["flows"].as_array().unwrap();
    flows.iter().map(|flow| flow[what].as_u64().unwrap()).sum()
}

/// Several servers cannot keep the order of a connection.
const ORDER: [&str; 2] = ["--allow", "reordered"];

#[test]
fn a_receiver_joins_and_one_is_drained_under_load_and_nothing_is_lost_or_doubled() {
    let mut cluster = Cluster::start(3, "");
    cluster.join();
    cluster.list(&[0, 1, 2, 3]);
    cluster.is_even(&[0, 1, 2, 3], Instant::now());
    cluster.list(&[0, 2, 3]);
    cluster.is_even(&[0, 2, 3], Instant::now());
    // It has been given nothing for two seconds: it can go.
    let before = cluster.sizes()[1];
    cluster.receivers[1].take().unwrap().stop();
    assert_eq!(cluster.sizes()[1], before);
    cluster.finish();
    let account = cluster.account(&ORDER);
    assert_eq!((sum(&account, "lost"), sum(&account, "duplicated")), (0, 0));
    assert!(!cluster.log().contains("in doubt"), "{}", cluster.log());
}

/// Kills the second of three receivers while it has something to answer, lets the others go on, and starts it again with its disk.
fn kill_one(more: &str) -> Cluster {
    let mut cluster = Cluster::start(3, more);
    sleep(Duration::from_secs(1));
    // What is under way then stays so.
    cluster.receivers[1].as_ref().unwrap().pause();
    sleep(Duration::from_millis(300));
    cluster.receivers[1].as_mut().unwrap().kill();
    let since = Instant::now();
    // Meanwhile the others have all of it, evenly.
    cluster.is_even(&[0, 2], since);
    cluster.receivers[1].as_mut().unwrap().restart();
    cluster.is_even(&[0, 1, 2], Instant::now());
    cluster.finish();
    cluster
}

#[test]
fn with_failover_wait_a_receiver_that_is_killed_costs_nothing_and_doubles_nothing() {
    let cluster = kill_one(", failover: wait");
    let account = cluster.account(&ORDER);
    assert_eq!((sum(&account, "lost"), sum(&account, "duplicated")), (0, 0));
}

/// How often each chunk of the generator (flow, first number) stands in the outputs.
fn chunks(out: &Path) -> BTreeMap<(String, u64), u64> {
    let mut chunks = BTreeMap::new();
    for file in fs::read_dir(out).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines() {
            // "mb1 RRRRRRRR.FFFF dNNNNNNNNNNNNNNNN ...": see the generator.
            let (flow, kind) = (&line[4..17], &line[18..19]);
            let number: u64 = line[19..35].trim().parse().unwrap();
            if kind == "d" && number.is_multiple_of(CHUNK) {
                *chunks.entry((flow.to_owned(), number)).or_default() += 1;
            }
        }
    }
    chunks
}

#[test]
fn with_failover_resend_nothing_is_lost_and_only_chunks_in_doubt_come_twice() {
    let cluster = kill_one("");
    let account = cluster.account(&[&ORDER[..], &["--allow", "duplicated"]].concat());
    assert_eq!(sum(&account, "lost"), 0);
    let twice = chunks(&cluster.place("out"));
    let twice: u64 = twice.values().map(|times| times - 1).sum();
    // Whole chunks, and none but those that the log names.
    let log = cluster.log();
    let doubt = log
        .lines()
        .filter_map(|line| line.split_once(" in doubt: "));
    let listed: usize = doubt
        .map(|(_, places)| places.split(';').next().unwrap().split(", ").count())
        .sum();
    println!("{twice} chunks twice, {listed} in doubt");
    assert!(
        listed > 0,
        "it was killed while it had something to answer:\n{log}"
    );
    assert_eq!(sum(&account, "duplicated"), twice * CHUNK);
    assert!(
        twice <= listed as u64,
        "{twice} chunks twice, {listed} in doubt:\n{log}"
    );
}
