//! One Millstream with a disk channel is killed or stopped a hundred times. Meanwhile rsyslog sends by RELP, a Flume agent by Avro and
//! the generator by the forward protocol with acks. Nothing is lost. Forward records never arrive twice. RELP and Avro have no
//! ids that identify repeats, so records that were not acked when a session broke arrive again, directly after their first copy.
//!
//! Before each break (a kill or a stop), all three senders must have delivered something since the previous break. So every break
//! interrupts senders that are sending.

use std::{
    fs,
    io::Write,
    net::TcpStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use crate::peers::flume_agent::{Agent, BATCH, RESTLESS};
use crate::peers::syslog_daemons::{Daemon, rsyslogd};
use crate::program::{
    Program, free_port,
    victim::{Generator, Random, generate, settle, verify},
    wait_until,
};

/// The number of breaks; the environment variable `RESTARTS` overrides it.
const RESTARTS: usize = 100;
/// The longest pause between the moment when all three senders have delivered something and the break.
const PAUSE_MS_MAX: u64 = 50;
/// The number of messages that RELP may have in flight: omrelp's default.
const WINDOW: usize = 128;
/// The number of messages that the test gives to rsyslog at a time, and the pause after these messages.
const PIECE: usize = 50;
const PIECE_EVERY: Duration = Duration::from_millis(10);
/// The number of lines in each file for the Flume agent, and the least number of lines that the agent always has left to send.
const FILE_LINES: usize = 10_000;
/// The senders by tag.
const SENDERS: [&str; 3] = ["relp", "avro", "bench"];
/// Records per second of the forward sender.
const RATE: usize = 5000;

/// The receiver that all senders share.
struct Rig {
    directory: tempfile::TempDir,
    config: String,
    ports: [u16; 3],
    program: Option<Program>,
}

impl Rig {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = [free_port(), free_port(), free_port()];
        let [relp, avro, forward] = ports;
        let place = directory.path().display();
        let config = format!(
            "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\n\
             sources:\n  relp: {{ type: syslog, listen: \"relp://127.0.0.1:{relp}\" }}\n\
             \x20 avro: {{ type: flume, listen: \"tcp://127.0.0.1:{avro}\" }}\n\
             \x20 in: {{ type: forward, listen: \"tcp://127.0.0.1:{forward}\" }}\n\
             channels:\n  kept: {{ type: disk, inputs: [relp, avro, in], size_max: 1GiB }}\n\
             sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out/{{tag}}/all.log\" }}\n"
        );
        let mut rig = Self {
            directory,
            config,
            ports,
            program: None,
        };
        rig.start();
        rig
    }

    fn start(&mut self) {
        let mut program = Program::start(self.directory.path(), &self.config);
        for port in self.ports {
            program = program.listens(port);
        }
        self.program = Some(program);
    }

    fn stop(&mut self) {
        let code = self.program.take().unwrap().stop();
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap();
        assert_eq!(code, Some(0), "{log}");
    }

    fn output(&self, tag: &str) -> PathBuf {
        self.directory.path().join("out").join(tag)
    }

    /// Bytes that have arrived from each sender.
    fn sizes(&self) -> [u64; 3] {
        let size =
            |tag| fs::metadata(self.output(tag).join("all.log")).map_or(0, |file| file.len());
        SENDERS.map(size)
    }
}

/// rsyslog, and the thread that gives it numbered messages until [`Relp::end`].
struct Relp {
    daemon: Daemon,
    ended: Arc<AtomicBool>,
    feeder: JoinHandle<usize>,
}

impl Relp {
    fn start(directory: &Path, port: u16) -> Self {
        let input = free_port();
        let config = format!(
            "global(workDirectory=\"{0}\")\nmain_queue(queue.size=\"1000000\")\nmodule(load=\"imptcp\")\nmodule(load=\"omrelp\")\n\
             input(type=\"imptcp\" address=\"127.0.0.1\" port=\"{input}\")\n\
             action(type=\"omrelp\" target=\"127.0.0.1\" port=\"{port}\" windowSize=\"{WINDOW}\" action.resumeInterval=\"1\" \
             action.resumeRetryCount=\"-1\" queue.type=\"LinkedList\" queue.size=\"1000000\" queue.workerThreads=\"1\")\n",
            directory.display()
        );
        let daemon = rsyslogd(directory, &config, input);
        let ended = Arc::new(AtomicBool::new(false));
        let until = ended.clone();
        let feeder = thread::spawn(move || {
            let mut stream = TcpStream::connect(("127.0.0.1", input)).unwrap();
            let mut sent = 0;
            while !until.load(Ordering::Relaxed) {
                let messages =
                    (sent..sent + PIECE).map(|n| format!("<13>Nov 21 06:40:30 h a: {n}\n"));
                let text: String = messages.collect();
                stream.write_all(text.as_bytes()).unwrap();
                sent += PIECE;
                sleep(PIECE_EVERY);
            }
            sent
        });
        Self {
            daemon,
            ended,
            feeder,
        }
    }

    /// Stops the thread. Returns rsyslog and the number of messages.
    fn end(self) -> (Daemon, usize) {
        self.ended.store(true, Ordering::Relaxed);
        (self.daemon, self.feeder.join().unwrap())
    }
}

/// The numbers in a file, one per line.
fn numbers(path: &Path) -> Vec<usize> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// The number in the last line of a file, if the line is complete.
fn last(path: &Path) -> Option<usize> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.strip_suffix('\n')?.lines().next_back()?.parse().ok()
}

/// Asserts that every number has arrived, and that repeats directly follow their first copy, at most `most` of them per break.
fn account(who: &str, numbers: &[usize], sent: usize, most: usize, breaks: usize) {
    let (mut next, mut at, mut rewinds, mut twice) = (0, 0, 0, 0);
    for &number in numbers {
        if number != at {
            // A session broke: the messages that were not acked are sent again from the first one on.
            assert!(
                number < at && at == next,
                "{who}: {number} instead of {at}: lost, or not adjacent"
            );
            assert!(
                next - number <= most,
                "{who}: {number} to {next} arrived again"
            );
            rewinds += 1;
        }
        twice += usize::from(number < next);
        at = number + 1;
        next = next.max(at);
    }
    assert_eq!((next, at), (sent, sent), "{who}: the end is missing");
    assert!(
        rewinds <= breaks,
        "{who}: {rewinds} rewinds, {breaks} breaks"
    );
    println!("{who}: {sent} sent, lost 0, {twice} came again in {rewinds} of {breaks} breaks");
}

#[test]
fn nothing_is_lost_over_a_hundred_restarts_and_only_unacked_records_arrive_twice() {
    let restarts = std::env::var("RESTARTS").map_or(RESTARTS, |text| text.parse().unwrap());
    let mut random = Random::new();
    let mut rig = Rig::new();
    let directory = rig.directory.path().to_owned();
    let [relp_port, avro_port, forward_port] = rig.ports;
    let relp = Relp::start(&directory, relp_port);
    let agent = Agent::start(&directory, avro_port, RESTLESS, "");
    let mut endless = generate(&directory, forward_port, "1", &RATE.to_string());
    let records = endless.iter().position(|word| word == "--records").unwrap();
    endless.drain(records..=records + 1);
    let generator = Generator::start(&endless);
    let (relp_out, avro_out) = (
        rig.output("relp").join("all.log"),
        rig.output("avro").join("all.log"),
    );
    let mut given = 0;
    let mut give = |arrived: usize| {
        while given < arrived + FILE_LINES {
            let text: String = (given..given + FILE_LINES)
                .map(|n| format!("{n}\n"))
                .collect();
            agent.give(&format!("{given:09}.txt"), &text);
            given += FILE_LINES;
        }
        given
    };
    let started = Instant::now();
    for restart in 0..restarts {
        let before = rig.sizes();
        for (place, who) in SENDERS.iter().enumerate() {
            wait_until(&format!("{who} is at work after break {restart}"), || {
                // The file may be shorter than `before` for a moment, because the sink truncates it after a kill.
                give(last(&avro_out).unwrap_or(0));
                rig.sizes()[place] > before[place]
            });
        }
        sleep(Duration::from_millis(random.below(PAUSE_MS_MAX)));
        match restart % 2 {
            0 => rig.program.take().unwrap().kill(),
            _ => rig.stop(),
        }
        rig.start();
    }
    println!("{restarts} restarts in {:.1?}", started.elapsed());
    let given = give(0);
    let (daemon, sent) = relp.end();
    wait_until("the last message is there", || {
        last(&relp_out) == Some(sent - 1)
    });
    wait_until("the last event is there", || {
        last(&avro_out) == Some(given - 1)
    });
    // Another generator with the same ledger sends the unacked records again, and ends after 2 s.
    drop(generator);
    Generator::start(&[endless, vec!["--seconds".to_owned(), "2".to_owned()]].concat()).finish();
    settle(&rig.output("bench"));
    rig.stop();
    drop(daemon);
    account("relp", &numbers(&relp_out), sent, WINDOW, restarts);
    account("avro", &numbers(&avro_out), given, BATCH, restarts);
    verify(&rig.output("bench"), &directory.join("ledger"));
}
