//! A Flume 1.11 agent that sends the files of a directory through its Avro sink. `make deps` installs it into `target/clients/flume`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::program::tree;

/// The events per transaction of the agent's sink: a broken connection duplicates at most this many.
pub const BATCH: usize = 100;
/// Flume's standard Avro sink.
pub const AVRO: &str = "avro";
/// A variant of Flume's Avro sink that does not pause for 5 s after a failure.
pub const RESTLESS: &str = "RestlessAvroSink";

/// The class path for `java -cp`.
pub fn installed() -> String {
    let directory = tree().join("target/clients/flume/target");
    assert!(
        directory.join("flume-1.jar").exists(),
        "{} is missing: run `make deps`",
        directory.display()
    );
    format!("{0}/*:{0}/dependency/*", directory.display())
}

/// A Flume agent that sends the files of a directory, oldest first, and deletes them. Killed when dropped.
///
/// Keep the directory small: Flume lists a large directory in several steps, so it may see a new file and miss an older one.
pub struct Agent {
    child: Child,
    spool: PathBuf,
}

impl Agent {
    /// Starts an agent that sends to `port`. `kind` is the class of its sink; `sink` holds further configuration lines for the sink.
    pub fn start(directory: &Path, port: u16, kind: &str, sink: &str) -> Self {
        let spool = directory.join("spool");
        fs::create_dir_all(&spool).unwrap();
        let config = format!(
            "a.sources = s\na.channels = c\na.sinks = k\n\
             a.sources.s.type = spooldir\na.sources.s.spoolDir = {spool}\na.sources.s.channels = c\n\
             a.sources.s.deletePolicy = immediate\na.sources.s.basenameHeader = true\na.sources.s.basenameHeaderKey = file\n\
             a.sources.s.deserializer.maxLineLength = 100000\na.sources.s.pollDelay = 50\n\
             a.sources.s.interceptors = i t\na.sources.s.interceptors.i.type = static\n\
             a.sources.s.interceptors.i.key = message\na.sources.s.interceptors.i.value = of the agent\n\
             a.sources.s.interceptors.t.type = timestamp\n\
             a.channels.c.type = memory\na.channels.c.capacity = 100000\na.channels.c.transactionCapacity = 1000\n\
             a.sinks.k.type = {kind}\na.sinks.k.channel = c\na.sinks.k.hostname = 127.0.0.1\n\
             a.sinks.k.port = {port}\na.sinks.k.batch-size = {BATCH}\n{sink}",
            spool = spool.display(),
        );
        let path = directory.join("agent.properties");
        fs::write(&path, config).unwrap();
        let log = File::create(directory.join("agent.log")).unwrap();
        let child = Command::new("java")
            .args(["-Xmx256m", "-cp", &installed()])
            .args(["org.apache.flume.node.Application", "-n", "a", "-f"])
            .arg(&path)
            .arg("--no-reload-conf")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, spool }
    }

    /// Adds a file to send. A rename puts it into the directory, so that Flume never sees a part of it.
    pub fn give(&self, name: &str, text: &str) {
        let beside = self.spool.with_file_name("next");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.spool.join(name)).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
