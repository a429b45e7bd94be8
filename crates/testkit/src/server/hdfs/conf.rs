//! The configuration of a cluster: one directory for its daemons and clients.

use std::{fmt::Write as _, fs, net::SocketAddr, path::Path};

/// `core-site.xml` and `hdfs-site.xml`.
pub(super) struct Conf {
    pub(super) core: Settings,
    pub(super) hdfs: Settings,
}

/// Properties: their names and values.
pub(super) type Settings = Vec<(String, String)>;

/// The properties that all daemons share, with a data node at this address.
pub(super) fn base(directory: &Path, url: &str, data: SocketAddr) -> Conf {
    let mut hdfs = Settings::new();
    set(
        &mut hdfs,
        [
            ("dfs.replication", "1"),
            ("dfs.datanode.data.dir", &place(directory, "data")),
            ("dfs.datanode.address", &data.to_string()),
            ("dfs.datanode.ipc.address", "127.0.0.1:0"),
            ("dfs.datanode.http.address", "127.0.0.1:0"),
            // Leave safe mode as soon as the data node is back after a restart.
            ("dfs.namenode.safemode.extension", "0"),
            ("dfs.namenode.safemode.min.datanodes", "1"),
            ("dfs.heartbeat.interval", "1"),
            // The smallest block size, so that most files have several blocks, and a small disk holds some blocks.
            ("dfs.blocksize", "1048576"),
            // Reserve nothing: the data node shares a disk with other programs, or has a small disk.
            ("dfs.datanode.du.reserved", "0"),
            (
                "dfs.datanode.round-robin-volume-choosing-policy.additional-available-space",
                "0",
            ),
        ],
    );
    let mut core = Settings::new();
    set(&mut core, [("fs.defaultFS", url)]);
    Conf { core, hdfs }
}

/// The URL of a directory, as the daemons expect it.
pub(super) fn place(directory: &Path, name: &str) -> String {
    format!("file://{}", directory.join(name).display())
}

pub(super) fn set<const N: usize>(settings: &mut Settings, words: [(&str, &str); N]) {
    settings.extend(words.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

impl Conf {
    /// Allows every user everything, because Kerberos is off.
    pub(super) fn open_to_all(&mut self) {
        set(&mut self.hdfs, [("dfs.permissions.enabled", "false")]);
    }

    /// Enables Kerberos, with the keys of the daemons.
    pub(super) fn secure(&mut self, protection: &str, keytab: &str) {
        let principal = "hdfs/localhost@EXAMPLE.COM";
        set(
            &mut self.core,
            [
                ("hadoop.security.authentication", "kerberos"),
                ("hadoop.security.authorization", "true"),
                ("hadoop.rpc.protection", protection),
                (
                    "hadoop.security.auth_to_local",
                    "RULE:[2:$1](hdfs)s/.*/hdfs/\nDEFAULT",
                ),
            ],
        );
        set(
            &mut self.hdfs,
            [
                ("dfs.data.transfer.protection", protection),
                ("dfs.namenode.keytab.file", keytab),
                ("dfs.datanode.keytab.file", keytab),
                ("dfs.namenode.kerberos.principal", principal),
                ("dfs.datanode.kerberos.principal", principal),
                (
                    "dfs.web.authentication.kerberos.principal",
                    "HTTP/localhost@EXAMPLE.COM",
                ),
                ("dfs.web.authentication.kerberos.keytab", keytab),
                ("dfs.block.access.token.enable", "true"),
                // Allows ports above 1024, and web pages without TLS.
                ("ignore.secure.ports.for.testing", "true"),
                ("dfs.http.policy", "HTTP_ONLY"),
            ],
        );
    }

    /// Writes the configuration into `directory`.
    pub(super) fn write(&self, directory: &Path) {
        let conf = directory.join("conf");
        // The daemons need directories for their web pages, which the jars lack.
        for daemon in ["hdfs", "datanode", "journal"] {
            make_directory(&conf.join("webapps").join(daemon));
        }
        write_file(
            &conf.join("log4j.properties"),
            "log4j.rootLogger=WARN,console\n\
             log4j.appender.console=org.apache.log4j.ConsoleAppender\n\
             log4j.appender.console.target=System.err\n\
             log4j.appender.console.layout=org.apache.log4j.PatternLayout\n\
             log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n\n",
        );
        write_file(&conf.join("core-site.xml"), &xml(&self.core));
        write_file(&conf.join("hdfs-site.xml"), &xml(&self.hdfs));
    }
}

pub(super) fn make_directory(path: &Path) {
    fs::create_dir_all(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn write_file(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn xml(settings: &Settings) -> String {
    let mut text = "<configuration>\n".to_owned();
    for (name, value) in settings {
        let written = writeln!(
            text,
            "<property><name>{name}</name><value>{value}</value></property>"
        );
        debug_assert!(written.is_ok(), "a string takes everything");
    }
    text.push_str("</configuration>\n");
    text
}
