//! An HDFS cluster of one name node and one data node for a scenario. It can return every event in the Avro files of a directory.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::process::{Process, free_port};
use crate::Failure;

const NAME_NODE: &str = "org.apache.hadoop.hdfs.server.namenode.NameNode";
const DATA_NODE: &str = "org.apache.hadoop.hdfs.server.datanode.DataNode";
/// The timeout for the cluster to accept writes. It is generous, because machines differ.
const START: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);

/// A cluster that runs until this value is dropped.
pub struct Cluster {
    /// `hdfs://localhost:PORT`
    pub url: String,
    /// The directory of the cluster's configuration.
    pub conf: PathBuf,
    work: PathBuf,
    web: SocketAddr,
    nodes: Vec<Process>,
}

impl Cluster {
    /// Starts a cluster in this directory, and waits until it accepts writes.
    pub fn start(work: &Path) -> Result<Self, Failure> {
        let work = work.join("hdfs");
        let conf = work.join("conf");
        // The jars do not contain the nodes' web pages. The nodes do not start without directories for these pages.
        fs::create_dir_all(conf.join("webapps/hdfs"))?;
        fs::create_dir_all(conf.join("webapps/datanode"))?;
        let (port, web) = (free_port()?, free_port()?);
        let url = format!("hdfs://localhost:{port}");
        let text = xml(&[("fs.defaultFS", url.clone())]);
        fs::write(conf.join("core-site.xml"), text)?;
        fs::write(conf.join("hdfs-site.xml"), settings(&work, web))?;
        let mut cluster = Self {
            url,
            conf,
            work,
            web: SocketAddr::from(([127, 0, 0, 1], web)),
            nodes: Vec::new(),
        };
        finish(
            cluster
                .java(NAME_NODE)?
                .args(["-format", "-nonInteractive"]),
        )?;
        for (name, class) in [("namenode", NAME_NODE), ("datanode", DATA_NODE)] {
            let log = File::create(cluster.work.join(format!("{name}.log")))?;
            let mut command = cluster.java(class)?;
            command.stdin(Stdio::null()).stdout(log.try_clone()?);
            cluster.nodes.push(Process::start(command.stderr(log))?);
        }
        cluster.ready()?;
        Ok(cluster)
    }

    fn ready(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        loop {
            let state = self.state();
            if state.contains("\"NumLiveDataNodes\" : 1")
                && state.contains("\"FSState\" : \"Operational\"")
            {
                return Ok(());
            }
            for node in &mut self.nodes {
                if !node.lives()? || started.elapsed() > START {
                    return Err(self.explain());
                }
            }
            thread::sleep(LOOK);
        }
    }

    fn explain(&self) -> Failure {
        let log = |name| fs::read_to_string(self.work.join(name)).unwrap_or_default();
        Failure::Other(format!(
            "HDFS does not start:\n{}\n{}",
            log("namenode.log"),
            log("datanode.log")
        ))
    }

    /// The status of the name node; empty while it does not answer.
    fn state(&self) -> String {
        let mut answer = String::new();
        let asked = TcpStream::connect(self.web).and_then(|mut stream| {
            stream.write_all(
                b"GET /jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState HTTP/1.0\r\n\r\n",
            )?;
            stream.read_to_string(&mut answer)
        });
        asked.map_or_else(|_| String::new(), |_| answer)
    }

    /// Reads all published Avro files below `path` with Avro's own reader, and removes `path` from HDFS. Writes the bodies
    /// of their events to files in a local directory, one per line. Returns this directory.
    pub fn take(&self, path: &str) -> Result<PathBuf, Failure> {
        let (fetched, bodies) = (self.work.join("fetched"), self.work.join("bodies"));
        for directory in [&fetched, &bodies] {
            if directory.exists() {
                fs::remove_dir_all(directory)?;
            }
        }
        finish(self.java("Shell")?.args(["-get", path]).arg(&fetched))?;
        finish(self.java("Shell")?.args(["-rm", "-r", "-skipTrash", path]))?;
        // This directory contains unpublished files, which are not outputs.
        let own = fetched.join("_millstream");
        if own.exists() {
            fs::remove_dir_all(own)?;
        }
        finish(self.java("Events")?.arg("bodies").args([&fetched, &bodies]))?;
        fs::remove_dir_all(&fetched)?;
        Ok(bodies)
    }

    /// The command line of Java with Hadoop's classes and this cluster's configuration.
    fn java(&self, class: &str) -> Result<Command, Failure> {
        let client = std::env::var_os("HDFS_CLIENT");
        let client = client.map_or_else(|| "target/clients/hdfs".into(), PathBuf::from);
        let (classes, jars) = (
            client.join("target/classes"),
            client.join("target/dependency"),
        );
        if !classes.is_dir() || !jars.is_dir() {
            return Err(Failure::Usage(format!(
                "{} holds no client of HDFS; `make deps` puts it there, HDFS_CLIENT names another directory",
                client.display()
            )));
        }
        let path = [self.conf.clone(), classes, jars.join("*")];
        let path = std::env::join_paths(path)
            .map_err(|error| Failure::Other(format!("no path of Java: {error}")))?;
        let mut command = Command::new("java");
        command.args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-cp"]);
        command.arg(path).arg(class);
        Ok(command)
    }
}

/// The configuration of a cluster on one machine that stores one copy of each block. All other settings are the defaults.
fn settings(work: &Path, web: u16) -> String {
    let at = |name: &str| format!("file://{}", work.join(name).display());
    let any = || "127.0.0.1:0".to_owned();
    xml(&[
        ("dfs.namenode.name.dir", at("name")),
        ("dfs.datanode.data.dir", at("data")),
        ("dfs.replication", "1".to_owned()),
        ("dfs.permissions.enabled", "false".to_owned()),
        ("dfs.namenode.http-address", format!("127.0.0.1:{web}")),
        ("dfs.datanode.address", any()),
        ("dfs.datanode.ipc.address", any()),
        ("dfs.datanode.http.address", any()),
        ("dfs.namenode.safemode.extension", "0".to_owned()),
        ("dfs.heartbeat.interval", "1".to_owned()),
        ("dfs.datanode.du.reserved", "0".to_owned()),
    ])
}

fn xml(settings: &[(&str, String)]) -> String {
    let property = |(name, value): &(&str, String)| {
        format!("<property><name>{name}</name><value>{value}</value></property>\n")
    };
    let properties: String = settings.iter().map(property).collect();
    format!("<configuration>\n{properties}</configuration>\n")
}

fn finish(command: &mut Command) -> Result<(), Failure> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::Other(format!("{command:?}: {error}")));
    }
    Ok(())
}
