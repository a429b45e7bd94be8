//! Several brokers that form a cluster, and the roles that they have in it.

use std::{fs, panic::resume_unwind, path::Path, process::Command, thread};

use super::{Broker, Listeners, Quorum, Server, free_port, java_in, run, write};

/// The properties that differ in a cluster of three. A topic survives the loss of one broker, and then accepts
/// records. Two partitions of each internal topic lie on each broker.
const OF_THREE: [&str; 10] = [
    "num.partitions=3",
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "offsets.topic.replication.factor=3",
    "offsets.topic.num.partitions=6",
    "transaction.state.log.num.partitions=6",
    "transaction.state.log.replication.factor=3",
    "transaction.state.log.min.isr=2",
    "controller.quorum.election.timeout.ms=500",
    "controller.quorum.fetch.timeout.ms=1000",
];

/// The properties of two brokers with ZooKeeper. One of them is enough to accept records.
const OF_TWO: [&str; 4] = [
    "num.partitions=2",
    "default.replication.factor=2",
    "offsets.topic.replication.factor=2",
    "transaction.state.log.replication.factor=2",
];

/// A cluster of brokers.
pub struct Cluster {
    brokers: Vec<Broker>,
    /// ZooKeeper, unless every broker is also a controller.
    zookeeper: Option<Server>,
}

impl Cluster {
    /// Starts three brokers that keep their data in subdirectories of `directory`. Each of them is
    /// also a controller.
    ///
    /// # Panics
    /// If they do not start.
    pub fn start(directory: &Path) -> Self {
        let controllers = [free_port(), free_port(), free_port()];
        let quorum = Quorum::Controllers(&controllers);
        Self {
            brokers: start_members(directory, 3, &OF_THREE, quorum),
            zookeeper: None,
        }
    }

    /// Starts ZooKeeper and two brokers that keep their data in subdirectories of `directory`. One
    /// broker is the controller.
    ///
    /// # Panics
    /// If they do not start.
    pub fn start_with_zookeeper(directory: &Path) -> Self {
        let port = free_port();
        let (config, log) = (directory.join("zoo.cfg"), directory.join("zookeeper.log"));
        let data = directory.join("zookeeper");
        let text = format!(
            "tickTime=500\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\n",
            data.display()
        );
        write(&config, &text);
        let zookeeper = Server::start("zookeeper", log, port, move || {
            let mut command = java_in(None, "kafka3/jars");
            command.args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
            command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain");
            command.arg(&config);
            command
        });
        Self {
            brokers: start_members(directory, 2, &OF_TWO, Quorum::ZooKeeper(port)),
            zookeeper: Some(zookeeper),
        }
    }

    /// The addresses of all brokers.
    pub fn addresses(&self) -> Vec<String> {
        self.brokers.iter().map(Broker::address).collect()
    }

    /// The broker with this index.
    ///
    /// # Panics
    /// If there is none.
    pub fn broker(&mut self, index: usize) -> &mut Broker {
        &mut self.brokers[index]
    }

    /// The index of the broker that is the active controller. All brokers must run.
    ///
    /// # Panics
    /// If no broker tells.
    pub fn controller(&self) -> usize {
        let address = self.brokers[0].address();
        let id = if self.zookeeper.is_some() {
            let listed = Command::new("kcat").args(["-L", "-b", &address]).output();
            let listed = listed.unwrap_or_else(|error| panic!("kcat: {error}: run `make deps`"));
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            let line = listed.lines().find(|line| line.ends_with("(controller)"));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        } else {
            let arguments = ["--bootstrap-server", &address, "describe", "--status"];
            let said = run("org.apache.kafka.tools.MetadataQuorumCommand", &arguments);
            let id = said.lines().find_map(|line| line.strip_prefix("LeaderId:"));
            id.and_then(|id| id.trim().parse().ok())
        };
        let id: usize = id.unwrap_or_else(|| panic!("no broker is the controller"));
        id - 1
    }

    /// The index of the broker that coordinates the transactions of the only transactional id. All
    /// brokers must run.
    ///
    /// # Panics
    /// If there is no transactional id.
    pub fn coordinator(&self) -> usize {
        let address = self.brokers[0].address();
        let arguments = ["--bootstrap-server", &address, "list"];
        let said = run("org.apache.kafka.tools.TransactionsCommand", &arguments);
        // The first line has the names of the columns: the transactional id, the coordinator ...
        let line = said.lines().nth(1);
        let id = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        let id: usize = id.unwrap_or_else(|| panic!("no broker coordinates transactions: {said}"));
        id - 1
    }
}

/// Starts brokers, each in its own subdirectory, and waits until they answer. They start at the same
/// time, because a broker in KRaft mode opens its ports only when a majority of the controllers
/// runs.
fn start_members(
    directory: &Path,
    count: usize,
    properties: &[&str],
    quorum: Quorum<'_>,
) -> Vec<Broker> {
    let mut brokers: Vec<Broker> = thread::scope(|scope| {
        let starting = (1..=count).map(|id| {
            let directory = directory.join(format!("broker-{id}"));
            fs::create_dir_all(&directory).unwrap_or_else(|error| panic!("{error}"));
            scope.spawn(move || {
                Broker::start_member(&directory, Listeners::default(), properties, id, quorum)
            })
        });
        let starting: Vec<_> = starting.collect();
        let started = starting.into_iter().map(|thread| thread.join());
        started
            .map(|broker| broker.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    for broker in &mut brokers {
        broker.wait_ready();
    }
    brokers
}
