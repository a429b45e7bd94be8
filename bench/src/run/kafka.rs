//! A Kafka broker for a scenario. It can create topics, and return all records of a topic.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::process::{Process, free_port};
use crate::Failure;

/// The configuration of one broker on one machine. All other settings are the defaults.
const PROPERTIES: &str = "\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
log.message.timestamp.before.max.ms=9223372036854775807
log.message.timestamp.after.max.ms=9223372036854775807
";

/// The id of the cluster: any 16 bytes in base64.
const CLUSTER: &str = "MkU3OEVBNTcwNTJENDM2Qk";

/// A broker that runs until this value is dropped.
pub struct Broker {
    /// Its address.
    pub address: SocketAddr,
    _process: Process,
    work: PathBuf,
    topics: u32,
}

impl Broker {
    /// Starts a broker in this directory.
    pub fn start(work: &Path) -> Result<Self, Failure> {
        let (port, controller) = (free_port()?, free_port()?);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let config = work.join("server.properties");
        let text = format!(
            "{PROPERTIES}controller.quorum.voters=1@127.0.0.1:{controller}\nadvertised.listeners=PLAINTEXT://{address}\n\
             listeners=PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}\nlog.dirs={}\n",
            work.join("kafka").display()
        );
        fs::write(&config, text)?;
        let mut format = java()?;
        format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c"]);
        finish(format.arg(&config), "the broker's directory")?;
        let log = File::create(work.join("kafka.log"))?;
        let mut command = java()?;
        command
            .args(["-Xmx512m", "-XX:+UseSerialGC", "kafka.Kafka"])
            .arg(&config);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut process = Process::start(&mut command)?;
        process.ready(address)?;
        Ok(Self {
            address,
            _process: process,
            work: work.to_owned(),
            topics: 0,
        })
    }

    /// Creates a topic of one partition, and returns its name.
    pub fn make_topic(&mut self) -> Result<String, Failure> {
        self.topics += 1;
        let name = format!("bench-{}", self.topics);
        self.topic(&["--create", "--partitions", "1"], &name)?;
        Ok(name)
    }

    /// Removes a topic.
    pub fn delete_topic(&self, name: &str) -> Result<(), Failure> {
        self.topic(&["--delete"], name)
    }

    fn topic(&self, what: &[&str], name: &str) -> Result<(), Failure> {
        let mut command = java()?;
        command.args(["-XX:TieredStopAtLevel=1", "-Xmx128m"]);
        command.arg("org.apache.kafka.tools.TopicCommand");
        let address = self.address.to_string();
        command.args(["--bootstrap-server", &address, "--topic", name]);
        finish(command.args(what), "a topic")
    }

    /// Writes all committed records of a topic to a file, one per line.
    pub fn read(&self, topic: &str) -> Result<PathBuf, Failure> {
        let path = self.work.join("topic.log");
        let mut command = Command::new("kcat");
        let address = self.address.to_string();
        command.args(["-C", "-q", "-e", "-o", "beginning", "-b", &address]);
        command.args(["-t", topic, "-X", "isolation.level=read_committed"]);
        command.args(["-f", "%s\n"]).stdin(Stdio::null());
        let status = command.stdout(File::create(&path)?).status();
        let status = status
            .map_err(|error| Failure::Other(format!("kcat: {error}; `make deps` installs it")))?;
        if !status.success() {
            return Err(Failure::Other(format!("kcat -C ended with {status}")));
        }
        Ok(path)
    }
}

/// The command line of Java with Kafka's classes.
pub fn java() -> Result<Command, Failure> {
    let jars = std::env::var_os("KAFKA_JARS");
    let jars = jars.map_or_else(|| "target/clients/kafka/jars".into(), PathBuf::from);
    if !jars.is_dir() {
        return Err(Failure::Usage(format!(
            "{} is not there; `make deps` puts Kafka's jars there, KAFKA_JARS names another directory",
            jars.display()
        )));
    }
    let mut command = Command::new("java");
    command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
    command.arg("-cp").arg(jars.join("*"));
    Ok(command)
}

fn finish(command: &mut Command, what: &str) -> Result<(), Failure> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::Other(format!("{what}: {error}")));
    }
    Ok(())
}
