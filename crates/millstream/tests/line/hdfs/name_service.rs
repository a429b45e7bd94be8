//! A name service with two name nodes, configured through `hadoop_conf`. Millstream continues to write however one name node
//! replaces the other, and Millstream starts in every state of the first name node.

use std::{path::Path, thread::sleep, time::Duration};

use millstream_testkit::server::hdfs::ha::Ha;

use super::{AVRO, config, forward, log, publish_all, quick, rotated, verify_avro};
use crate::program::{
    free_port,
    victim::{Generator, Random, Victim, generate, in_storm},
    wait_until,
};

/// How the active name node stops being active.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// It becomes the standby.
    HandedOver,
    /// SIGKILL: connections are refused.
    Killed,
    /// SIGSTOP: connections are accepted and never answered. When the name node wakes up, it still believes that it is active.
    Frozen,
}

const WAYS: [Way; 3] = [Way::HandedOver, Way::Killed, Way::Frozen];

/// A Millstream that writes to a name service, and a generator that never ends.
struct Rig<'a> {
    directory: &'a Path,
    cluster: Ha,
    /// The sink options of the last run. This run publishes the remaining records.
    sink: String,
    victim: Victim,
    generator: Generator,
}

impl<'a> Rig<'a> {
    fn start(directory: &'a Path) -> Self {
        let cluster = Ha::start(&directory.join("cluster"));
        let more = format!("{AVRO}, hadoop_conf: {}", cluster.conf().display());
        // Small files, so that a name node often fails while a file is being published.
        let sink = rotated(&cluster, "interval: 1s, idle: 1s, records: 1000", &more);
        let port = free_port();
        let config = config(directory, &forward(port), &sink);
        let sink = quick(&cluster, &more);
        let victim = Victim::start(directory.to_owned(), port, config);
        let generator = Generator::start(&generate(directory, port, "1000000000", "2000"));
        Self {
            directory,
            cluster,
            sink,
            victim,
            generator,
        }
    }

    /// Waits until new files are published.
    fn wait_published(&self) {
        let published = || log(self.directory).matches("published ").count();
        let before = published();
        wait_until("files are published", || published() > before);
    }

    /// Takes down the active name node, makes the other one active, and waits until Millstream publishes files again. If `kill` is
    /// true, Millstream is killed before the name node goes down and restarted afterwards.
    fn fail_over(&mut self, active: usize, way: Way, kill: bool, random: &mut Random) {
        let other = 1 - active;
        if kill {
            self.victim.kill();
        }
        match way {
            Way::HandedOver => self.cluster.retire(active),
            Way::Killed => self.cluster.name_nodes[active].kill(),
            Way::Frozen => self.cluster.name_nodes[active].signal("STOP"),
        }
        if kill {
            self.victim.restart();
        }
        sleep(Duration::from_millis(random.below(2000)));
        self.cluster.activate(other);
        self.wait_published();
        let old = &mut self.cluster.name_nodes[active];
        old.signal("CONT");
        if !matches!(way, Way::HandedOver) {
            sleep(Duration::from_millis(random.below(2000)));
            old.kill();
            old.restart();
            old.wait_ready();
        }
    }

    /// Publishes the remaining records, and runs the verifier on all records.
    fn verify(mut self) {
        self.generator.conclude();
        self.victim.kill();
        publish_all(self.directory, &self.sink, &[]);
        println!("{} files", self.cluster.files("/logs/bench").len());
        verify_avro(&self.cluster, self.directory);
    }
}

#[test]
fn nothing_is_lost_or_duplicated_when_a_name_service_fails_over() {
    let failovers = in_storm(6, 20) as usize;
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::new();
    let mut rig = Rig::start(directory.path());
    rig.wait_published();
    for failover in 0..failovers {
        let way = WAYS[failover % WAYS.len()];
        let kill = failover / WAYS.len() % 2 == 1;
        println!("failover {failover}: {way:?}, Millstream killed: {kill}");
        rig.fail_over(failover % 2, way, kill, &mut random);
        sleep(Duration::from_millis(random.below(2000)));
    }
    rig.verify();
}

#[test]
fn millstream_starts_in_any_state_of_the_first_name_node() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(directory.path());
    rig.cluster.retire(0);
    rig.cluster.activate(1);
    for way in WAYS {
        rig.victim.kill();
        let first = &mut rig.cluster.name_nodes[0];
        match way {
            Way::HandedOver => {}
            Way::Killed => first.kill(),
            Way::Frozen => {
                first.restart();
                first.wait_ready();
                first.signal("STOP");
            }
        }
        println!("the first name node is {way:?}");
        rig.victim.restart();
        rig.wait_published();
    }
    rig.cluster.name_nodes[0].kill();
    rig.verify();
}

#[test]
fn a_name_node_that_wrongly_believes_it_is_active_misleads_no_writer() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(directory.path());
    rig.wait_published();
    rig.cluster.name_nodes[0].signal("STOP");
    rig.cluster.activate(1);
    rig.wait_published();
    rig.victim.kill();
    rig.cluster.name_nodes[1].signal("STOP");
    // The first name node still believes that it is active, and does not know the files that were published after it was stopped.
    // Millstream connects to this name node before it connects to the other one.
    rig.cluster.name_nodes[0].signal("CONT");
    rig.victim.restart();
    wait_until("the journal has refused its write", || {
        let words = rig.cluster.name_nodes[0].last_words();
        words.contains("less than the last promised epoch")
    });
    rig.cluster.name_nodes[1].signal("CONT");
    rig.wait_published();
    rig.cluster.name_nodes[0].kill();
    rig.verify();
}
