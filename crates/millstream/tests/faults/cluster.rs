//! Scaling out and in: a relay spreads its input over several receivers, each a Millstream with a disk channel. Under load, one
//! receiver joins, one is drained, and one is killed and restarted. Nothing is lost, and only chunks in doubt (those in flight when a
//! connection broke) arrive twice. The load is even again within 2 s.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::sleep,
    time::Duration,
};

use crate::program::{
    free_port, millbench,
    victim::{Generator, Random, Victim, generate, settle},
    wait_until,
};

/// Records in total, and per second.
const RECORDS: &str = "1050000";
const RATE: &str = "30000";
/// Records per chunk of the generator.
const CHUNK: u64 = 400;
/// After a change of the servers, the load is even again within this many chunks of each flow, which takes about 2 s. A flow is the
/// numbered sequence of records of one of the generator's three connections. The test counts chunks and not seconds, because
/// a busy machine is slower, but its load is just as even.
const EVEN_WITHIN: u64 = 50;
/// The number of chunks of each flow over which the test measures the balance.
const LOOK: u64 = 50;
/// The number of further chunks that the test waits for, because flows progress at different rates and outputs lag behind.
const BEHIND: u64 = 40;
/// The largest accepted deviation of a receiver's share from the mean share, as a fraction of the mean.
const UNEVEN_MAX: f64 = 0.2;

/// The number of kills of the relay, and the longest pause between two kills.
const KILLS: u64 = 10;
const PAUSE_MS_MAX: u64 = 1000;
/// The numbers of two kills of the relay: at the first, one of the receivers is killed as well, and at the second it is restarted.
const DOWN: (u64, u64) = (4, 7);
/// Long enough for chunks to be in flight to a receiver that is paused with SIGSTOP.
const UNDER_WAY: Duration = Duration::from_millis(300);

/// Only one cluster runs at a time, because it needs all of a small machine.
static ONE_CLUSTER: Mutex<()> = Mutex::new(());

/// The relay, its receivers, and the generator.
struct Cluster {
    directory: tempfile::TempDir,
    ports: Vec<u16>,
    receivers: Vec<Option<Victim>>,
    relay: Option<Victim>,
    generator: Option<Generator>,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    fn start(receivers: usize, more: &str) -> Self {
        let alone = ONE_CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = Self {
            directory,
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
             sinks:\n  next: {{ type: forward, inputs: [kept], discovery: {{ file: {1} }}, peer: millstream, \
             in_flight: 64MiB{more} }}\n",
            place.display(),
            cluster.place("servers.yaml").display()
        );
        cluster.relay = Some(Victim::start(place, port, config));
        let load = generate(cluster.directory.path(), port, RECORDS, RATE);
        cluster.generator = Some(Generator::start(&load));
        wait_until("records arrive", || {
            cluster.sizes().iter().all(|size| *size > 0)
        });
        cluster
    }

    fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts another receiver, which the relay does not know yet.
    fn join(&mut self) {
        let (port, number) = (free_port(), self.receivers.len());
        let place = self.place(&format!("receiver{number}"));
        let config = format!(
            "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 1\n\
             sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
             channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
             sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{1}/out/{number}.log\" }}\n",
            place.display(),
            self.directory.path().display()
        );
        self.receivers
            .push(Some(Victim::start(place, port, config)));
        self.ports.push(port);
    }

    /// Makes these receivers the relay's servers.
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

    /// The number of the newest chunk in any output. Chunks are numbered within their flow.
    fn newest(&self) -> u64 {
        let newest = |number| {
            let mut file = fs::File::open(self.place(&format!("out/{number}.log"))).ok()?;
            let end = file.seek(SeekFrom::End(0)).ok()?;
            file.seek(SeekFrom::Start(end.saturating_sub(TAIL_BYTES)))
                .ok()?;
            let mut tail = Vec::new();
            file.read_to_end(&mut tail).ok()?;
            let text = String::from_utf8_lossy(&tail);
            let whole = text.lines().filter_map(number_of);
            whole.map(|(_, number)| number / CHUNK).max()
        };
        let all = (0..self.receivers.len()).filter_map(newest);
        all.max().unwrap_or(0)
    }

    /// Waits until enough chunks have passed to balance the load and to measure the balance, and `more` chunks in addition.
    fn pass(&self, more: u64) {
        let until = self.newest() + EVEN_WITHIN + LOOK + BEHIND + more;
        wait_until("enough chunks have passed", || self.newest() >= until);
    }

    /// For each receiver, the numbers of the chunks in its output, sorted.
    fn dealt(&self) -> Vec<Vec<u64>> {
        let of = |number| {
            let places = chunks_of(&self.place(&format!("out/{number}.log")));
            let mut places: Vec<u64> = places.into_iter().map(|(_, n)| n / CHUNK).collect();
            places.sort_unstable();
            places
        };
        (0..self.receivers.len()).map(of).collect()
    }

    /// Waits for the end of the load and stops all programs.
    fn finish(&mut self) {
        self.generator.take().unwrap().finish();
        settle(&self.place("out"));
        self.relay.take().unwrap().stop();
        self.receivers
            .iter_mut()
            .filter_map(Option::take)
            .for_each(Victim::stop);
    }

    /// The verifier's report. `allow` holds the arguments that name acceptable defects.
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

    /// The relay's log.
    fn log(&self) -> String {
        fs::read_to_string(self.place("relay/log")).unwrap()
    }
}

/// The sum of a value over all flows of a report.
fn sum(account: &serde_json::Value, what: &str) -> u64 {
    let flows = account["flows"].as_array().unwrap();
    flows.iter().map(|flow| flow[what].as_u64().unwrap()).sum()
}

/// An output's last bytes, enough for a whole line.
const TAIL_BYTES: u64 = 4096;

/// The flow and the number of a record: "mb1 RRRRRRRR.FFFF dNNNNNNNNNNNNNNNN ..." (see the generator).
fn number_of(line: &str) -> Option<(&str, u64)> {
    let (flow, kind) = (line.get(4..17)?, line.get(18..19)?);
    let number = line.get(19..35)?.trim().parse().ok()?;
    (kind == "d" && line.starts_with("mb1 ")).then_some((flow, number))
}

/// The chunks in an output, each as its flow and the number of its first record.
fn chunks_of(path: &Path) -> Vec<(String, u64)> {
    let text = fs::read_to_string(path).unwrap();
    let numbers = text.lines().filter_map(number_of);
    let firsts = numbers.filter(|(_, number)| number.is_multiple_of(CHUNK));
    firsts
        .map(|(flow, number)| (flow.to_owned(), number))
        .collect()
}

/// Asserts that these receivers have equal shares of the chunks soon after a change of the servers. `change` is the number of the
/// chunk at which the servers changed.
fn assert_even(dealt: &[Vec<u64>], numbers: &[usize], change: u64) {
    let from = change + EVEN_WITHIN;
    let range = from..from + LOOK;
    let share = |number: &usize| {
        let chunks = dealt[*number].iter();
        chunks.filter(|place| range.contains(place)).count()
    };
    let shares: Vec<usize> = numbers.iter().map(share).collect();
    println!("change at {change}: shares of the chunks {range:?}: {shares:?}");
    let mean = shares.iter().sum::<usize>() as f64 / shares.len() as f64;
    let is_near = |share: &usize| (*share as f64 - mean).abs() <= UNEVEN_MAX * mean;
    assert!(
        mean > 0.0 && shares.iter().all(is_near),
        "of the chunks {range:?} the receivers {numbers:?} have got {shares:?}"
    );
}

/// The numbers of the last chunk before and the first chunk after the longest time in which a receiver got none.
fn pause_of(places: &[u64]) -> (u64, u64) {
    let pauses = places.windows(2).map(|pair| (pair[0], pair[1]));
    pauses.max_by_key(|(last, next)| next - last).unwrap()
}

/// With several servers, the records of a connection may arrive in another order.
const ORDER: [&str; 2] = ["--allow", "reordered"];

#[test]
fn a_receiver_joins_and_one_is_drained_under_load_and_nothing_is_lost_or_doubled() {
    let mut cluster = Cluster::start(3, "");
    cluster.join();
    cluster.list(&[0, 1, 2, 3]);
    wait_until("the new receiver has records", || cluster.sizes()[3] > 0);
    cluster.pass(0);
    cluster.list(&[0, 2, 3]);
    // The relay rereads the list of servers every second.
    cluster.pass(EVEN_WITHIN);
    let stopped = cluster.newest();
    cluster.receivers[1].take().unwrap().stop();
    cluster.finish();
    let account = cluster.account(&ORDER);
    assert_eq!((sum(&account, "lost"), sum(&account, "duplicated")), (0, 0));
    assert!(!cluster.log().contains("in doubt"), "{}", cluster.log());
    let dealt = cluster.dealt();
    assert_even(&dealt, &[0, 1, 2, 3], dealt[3][0]);
    let drained = *dealt[1].last().unwrap();
    assert_even(&dealt, &[0, 2, 3], drained);
    assert!(
        drained + EVEN_WITHIN < stopped,
        "it got chunks up to {drained}, and was drained at {stopped}"
    );
}

/// Kills the second of three receivers while it has chunks to ack, lets the others continue, and starts it again with its data.
fn kill_one(more: &str) -> Cluster {
    let mut cluster = Cluster::start(3, more);
    sleep(Duration::from_secs(1));
    // The paused receiver does not ack, so chunks to it stay in flight.
    cluster.receivers[1].as_ref().unwrap().pause();
    sleep(Duration::from_millis(300));
    cluster.receivers[1].as_mut().unwrap().kill();
    // The other receivers get everything meanwhile.
    cluster.pass(EVEN_WITHIN);
    cluster.receivers[1].as_mut().unwrap().restart();
    let before = cluster.sizes()[1];
    wait_until("records arrive again", || cluster.sizes()[1] > before);
    cluster.pass(EVEN_WITHIN);
    cluster.finish();
    let dealt = cluster.dealt();
    let (last, next) = pause_of(&dealt[1]);
    assert!(
        last + EVEN_WITHIN + LOOK <= next,
        "the receiver was down for too short a time"
    );
    assert_even(&dealt, &[0, 2], last);
    assert_even(&dealt, &[0, 1, 2], next);
    cluster
}

#[test]
fn with_failover_wait_a_receiver_that_is_killed_loses_and_doubles_nothing() {
    let cluster = kill_one(", failover: wait");
    let account = cluster.account(&ORDER);
    assert_eq!((sum(&account, "lost"), sum(&account, "duplicated")), (0, 0));
}

#[test]
fn with_failover_wait_a_relay_that_is_killed_repeatedly_loses_and_doubles_nothing() {
    let mut random = Random::new();
    let mut cluster = Cluster::start(3, ", failover: wait");
    for kill in 0..KILLS {
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        let hangs = usize::try_from(kill % 3).unwrap();
        // Chunks to the paused receiver are in doubt, and the relay has to remember that this receiver may have them.
        let paused = cluster.receivers[hangs].as_ref().filter(|_| kill != DOWN.1);
        if let Some(receiver) = paused {
            receiver.pause();
            sleep(UNDER_WAY);
        }
        let relay = cluster.relay.as_mut().unwrap();
        relay.kill();
        relay.restart();
        sleep(UNDER_WAY);
        match kill {
            kill if kill == DOWN.0 => cluster.receivers[hangs].as_mut().unwrap().kill(),
            kill if kill == DOWN.1 => cluster.receivers[hangs].as_mut().unwrap().restart(),
            _ => cluster.receivers[hangs].as_ref().unwrap().go_on(),
        }
    }
    cluster.finish();
    let account = cluster.account(&ORDER);
    assert_eq!((sum(&account, "lost"), sum(&account, "duplicated")), (0, 0));
}

/// The number of times that each chunk of the generator (flow, first number) occurs in the outputs.
fn chunks(out: &Path) -> BTreeMap<(String, u64), u64> {
    let mut chunks = BTreeMap::new();
    for file in fs::read_dir(out).unwrap() {
        for chunk in chunks_of(&file.unwrap().path()) {
            *chunks.entry(chunk).or_default() += 1;
        }
    }
    chunks
}

#[test]
fn with_failover_resend_nothing_is_lost_and_only_chunks_in_doubt_arrive_twice() {
    let cluster = kill_one("");
    let account = cluster.account(&[&ORDER[..], &["--allow", "duplicated"]].concat());
    assert_eq!(sum(&account, "lost"), 0);
    let twice = chunks(&cluster.place("out"));
    let twice: u64 = twice.values().map(|times| times - 1).sum();
    // Only whole chunks arrived twice, and only chunks that the log names as in doubt.
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
        "the receiver was killed while it had chunks to ack:\n{log}"
    );
    assert_eq!(sum(&account, "duplicated"), twice * CHUNK);
    assert!(
        twice <= listed as u64,
        "{twice} chunks twice, {listed} in doubt:\n{log}"
    );
}
