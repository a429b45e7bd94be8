//! Kafka brokers in KRaft mode, alone or as a cluster, and a cluster with ZooKeeper, with short
//! timeouts. Their jars come from Maven Central.

mod cluster;

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{
    Server, free_port, installed,
    network::{self, Network},
    wait_for,
};
pub use cluster::Cluster;

/// The id of a cluster: any 16 bytes in base64.
const CLUSTER: &str = "MkU3OEVBNTcwNTJENDM2Qk";

/// The properties of every broker, for one that is the only one of its cluster. A killed broker can
/// register again after 3 s (with
/// a shorter timeout, a busy machine would miss heartbeats). An open transaction is aborted within a second after its timeout.
const PROPERTIES: &str = "\
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
group.min.session.timeout.ms=1000
log.message.timestamp.after.max.ms=9223372036854775807
log.message.timestamp.before.max.ms=9223372036854775807
log.retention.ms=-1
";

/// The user and the password of brokers with SASL.
pub const USER: (&str, &str) = ("shipper", "open sesame");

/// Listeners of a broker in addition to plain text, and its network.
#[derive(Clone, Copy, Default)]
pub struct Listeners<'a> {
    /// TLS with this certificate and key, concatenated in PEM.
    pub tls: Option<&'a str>,
    /// SASL (PLAIN and SCRAM) for [`USER`]; over TLS if there is a certificate.
    pub sasl: bool,
    /// The network of the broker. `None`: this machine's network.
    pub network: Option<&'a Network>,
}

/// How a broker finds the other members of its cluster.
#[derive(Clone, Copy)]
enum Quorum<'a> {
    /// KRaft: every broker is also a controller. These are the ports of the controllers.
    Controllers(&'a [u16]),
    /// The port of ZooKeeper.
    ZooKeeper(u16),
}

/// A broker.
pub struct Broker {
    server: Server,
    host: Ipv4Addr,
    port: u16,
    secure_port: u16,
}

impl Broker {
    /// Starts a broker that keeps its data in `directory`, with more properties, such as `message.max.bytes=2000`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(directory: &Path, properties: &[&str]) -> Self {
        Self::start_with(directory, Listeners::default(), properties)
    }

    /// Like `start`, with more listeners.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with(directory: &Path, with: Listeners<'_>, properties: &[&str]) -> Self {
        let controllers = [free_port()];
        Self::start_member(
            directory,
            with,
            properties,
            1,
            Quorum::Controllers(&controllers),
        )
    }

    /// Starts the broker `id` of a cluster.
    fn start_member(
        directory: &Path,
        with: Listeners<'_>,
        properties: &[&str],
        id: usize,
        quorum: Quorum<'_>,
    ) -> Self {
        let (port, secure_port) = (free_port(), free_port());
        let mut text = PROPERTIES.to_owned();
        for line in properties {
            let _ = writeln!(text, "{line}");
        }
        let data = directory.join("kafka");
        let host = with.network.map_or(Ipv4Addr::LOCALHOST, Network::address);
        let mut listeners = format!("PLAINTEXT://{host}:{port}");
        if let Some(name) = with.name() {
            let _ = write!(listeners, ",{name}://{host}:{secure_port}");
            with.describe(directory, name, &mut text);
        }
        let _ = write!(
            text,
            "advertised.listeners={listeners}\nlog.dirs={}\n",
            data.display()
        );
        text.push_str(&quorum.describe(id, &listeners));
        let config = directory.join("server.properties");
        write(&config, &text);
        let log = directory.join("kafka.log");
        if let Quorum::Controllers(_) = quorum {
            format(&config, &log, with.sasl);
        }
        let network = with.network.map(|network| network.name().to_owned());
        let (jars, memory) = (quorum.jars(), quorum.memory());
        let server = Server::start_at("kafka", log, (host, port).into(), move || {
            let mut command = java_in(network.as_deref(), jars);
            // Settings for short runs: those that speed up a long-running server slow down a test.
            command.args([memory, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
            command.arg("kafka.Kafka").arg(&config);
            command
        });
        Self {
            server,
            host,
            port,
            secure_port,
        }
    }

    /// The address for plain text.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The address for TLS or SASL.
    pub fn secure_address(&self) -> String {
        format!("{}:{}", self.host, self.secure_port)
    }

    /// Kills and restarts the broker. It answers again after about 5 s, or later on a busy machine.
    pub fn kill_and_restart(&mut self) {
        self.server.kill();
        self.server.restart();
    }

    /// Waits until the broker answers. The broker accepts connections long before that, but may close them. kcat fails if its
    /// connection is closed, because it knows no other broker. This method then starts kcat again.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn wait_ready(&mut self) {
        self.server.wait_ready();
        let address = self.address();
        wait_for("the broker answers", || {
            let mut kcat = Command::new("kcat");
            kcat.args(["-L", "-m", "5", "-b", &address]);
            let output = kcat.output();
            let output = output.unwrap_or_else(|error| panic!("kcat: {error}: run `make deps`"));
            output.status.success()
        });
    }

    /// The server.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// Creates a topic.
    ///
    /// # Panics
    /// If the broker refuses.
    pub fn make_topic(&self, name: &str, partitions: u32, config: &[&str]) {
        let partitions = partitions.to_string();
        let address = self.address();
        let mut arguments = vec!["--bootstrap-server", &address, "--create", "--topic", name];
        arguments.extend(["--partitions", &partitions]);
        for property in config {
            arguments.extend(["--config", property]);
        }
        run("org.apache.kafka.tools.TopicCommand", &arguments);
    }

    /// Reads a topic from its beginning with the Java console consumer: committed records only, one per line.
    ///
    /// # Panics
    /// If the consumer cannot run.
    pub fn read_with_java(&self, topic: &str, records: usize, print: &[&str]) -> String {
        let (address, records) = (self.address(), records.to_string());
        let mut arguments = vec!["--bootstrap-server", &address, "--topic", topic];
        arguments.extend(["--from-beginning", "--isolation-level", "read_committed"]);
        arguments.extend(["--max-messages", &records, "--timeout-ms", "60000"]);
        for property in print {
            arguments.extend(["--property", property]);
        }
        run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            &arguments,
        )
    }

    /// Writes lines `KEY TAB VALUE` to a topic with the Java console producer.
    ///
    /// # Panics
    /// If the producer cannot run.
    pub fn write_with_java(&self, topic: &str, lines: &str) {
        let address = self.address();
        let mut command = java();
        command.args(["-XX:TieredStopAtLevel=1", "-Xmx256m"]);
        command.arg("org.apache.kafka.tools.ConsoleProducer");
        command.args(["--bootstrap-server", &address, "--topic", topic]);
        command.args(["--property", "parse.key=true"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("java: {error}"));
        let input = child.stdin.take();
        let written = input.map(|mut input| input.write_all(lines.as_bytes()));
        assert!(
            matches!(written, Some(Ok(()))),
            "the producer takes no input"
        );
        let ended = child.wait();
        assert!(
            ended.is_ok_and(|status| status.success()),
            "the producer failed"
        );
    }

    /// Reads a topic from beginning to end with kcat: committed records only, each in this `format`.
    ///
    /// # Panics
    /// If kcat cannot run.
    pub fn read_with_kcat(&self, topic: &str, format: &str) -> String {
        let output = Command::new("kcat")
            .args([
                "-C",
                "-q",
                "-e",
                "-o",
                "beginning",
                "-b",
                &self.address(),
                "-t",
                topic,
            ])
            .args(["-X", "isolation.level=read_committed", "-f", format])
            .output();
        let output = output.unwrap_or_else(|error| panic!("kcat: {error}: run `make deps`"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kcat: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Quorum<'_> {
    /// The properties of the member `id` that has these `listeners`.
    fn describe(self, id: usize, listeners: &str) -> String {
        match self {
            Self::Controllers(ports) => {
                let voters = (1..).zip(ports);
                let voters: Vec<_> = voters
                    .map(|(id, port)| format!("{id}@127.0.0.1:{port}"))
                    .collect();
                format!(
                    "process.roles=broker,controller\ncontroller.listener.names=CONTROLLER\nnode.id={id}\n\
                     controller.quorum.voters={}\nlisteners={listeners},CONTROLLER://127.0.0.1:{}\n",
                    voters.join(","),
                    ports[id - 1]
                )
            }
            Self::ZooKeeper(port) => format!(
                "broker.id={id}\nlisteners={listeners}\nzookeeper.connect=127.0.0.1:{port}\n\
                 zookeeper.session.timeout.ms=3000\n"
            ),
        }
    }

    /// The directory of the broker's jars. Kafka 4 cannot use ZooKeeper.
    fn jars(self) -> &'static str {
        match self {
            Self::Controllers(_) => "kafka/jars",
            Self::ZooKeeper(_) => "kafka3/jars",
        }
    }

    /// The limit of a broker's memory. Several brokers run at once in a cluster.
    fn memory(self) -> &'static str {
        match self {
            Self::Controllers([_]) => "-Xmx384m",
            _ => "-Xmx256m",
        }
    }
}

impl Listeners<'_> {
    fn name(&self) -> Option<&'static str> {
        match (self.tls.is_some(), self.sasl) {
            (false, false) => None,
            (true, false) => Some("SSL"),
            (false, true) => Some("SASL_PLAINTEXT"),
            (true, true) => Some("SASL_SSL"),
        }
    }

    fn describe(&self, directory: &Path, name: &str, text: &mut String) {
        if let Some(pem) = self.tls {
            let path = directory.join("broker.pem");
            write(&path, pem);
            let path = path.display();
            let _ = writeln!(text, "ssl.keystore.type=PEM\nssl.keystore.location={path}");
        }
        if self.sasl {
            let (user, password) = USER;
            let listener = format!("listener.name.{}", name.to_lowercase());
            let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
            let plain = "org.apache.kafka.common.security.plain.PlainLoginModule required";
            let _ = write!(
                text,
                "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
                 {listener}.scram-sha-256.sasl.jaas.config={scram}\n\
                 {listener}.scram-sha-512.sasl.jaas.config={scram}\n\
                 {listener}.plain.sasl.jaas.config={plain} user_{user}=\"{password}\";\n"
            );
        }
    }
}

/// Formats the directory of a broker.
fn format(config: &Path, log: &Path, sasl: bool) {
    let (user, password) = USER;
    let mut command = java();
    command.args([
        "-XX:TieredStopAtLevel=1",
        "kafka.tools.StorageTool",
        "format",
        "-t",
        CLUSTER,
        "-c",
    ]);
    command.arg(config);
    if sasl {
        for hash in ["256", "512"] {
            let user = format!("SCRAM-SHA-{hash}=[name={user},password={password}]");
            command.args(["--add-scram", &user]);
        }
    }
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("java: {error}"));
    write(log, &String::from_utf8_lossy(&output.stdout));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "cannot format {}: {errors}",
        config.display()
    );
}

fn java() -> Command {
    java_in(None, "kafka/jars")
}

fn java_in(network: Option<&str>, jars: &str) -> Command {
    let jars: PathBuf = installed(jars);
    let mut command = network::command(network, Path::new("java"));
    command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
    command.arg("-cp").arg(jars.join("*"));
    command
}

/// Runs one of Kafka's tools to its end; returns its output.
fn run(class: &str, arguments: &[&str]) -> String {
    let mut command = java();
    command
        .args(["-XX:TieredStopAtLevel=1", "-Xmx256m", class])
        .args(arguments);
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("java: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{class} {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
