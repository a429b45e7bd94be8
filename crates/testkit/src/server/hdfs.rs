//! HDFS: a real name node and a real data node, each a process of its own, that can be killed, stopped and started again;
//! with Kerberos, a real key distribution centre (Hadoop's own, in Java) in front of them.
//!
//! The jars come from Maven Central (`make deps`, `tests/clients/hdfs`).

use std::{
    fmt::Write as _,
    fs,
    io::{Read, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Server, free_port, installed};

/// What every daemon and tool here runs with: small and quick to start.
const JAVA: [&str; 4] = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
];
/// Who writes, on a cluster with Kerberos.
pub const PRINCIPAL: &str = "alice@EXAMPLE.COM";

/// A cluster of one name node and one data node.
pub struct Hdfs {
    folder: PathBuf,
    port: u16,
    web_port: u16,
    kerberos: bool,
    /// The name node.
    pub name_node: Server,
    /// The data node.
    pub data_node: Server,
    _kdc: Option<Server>,
}

impl Hdfs {
    /// Starts a cluster that keeps everything in `folder`, and waits until it can be written.
    ///
    /// # Panics
    /// When it does not start, or the jars are not there.
    pub fn start(folder: &Path) -> Self {
        Self::new(folder, None)
    }

    /// The same with Kerberos, for remote calls and data: `protection` is `authentication`, `integrity` or `privacy`.
    ///
    /// # Panics
    /// As [`Hdfs::start`].
    pub fn start_secured(folder: &Path, protection: &str) -> Self {
        Self::new(folder, Some(protection))
    }

    fn new(folder: &Path, protection: Option<&str>) -> Self {
        let folder = folder.to_owned();
        let kdc = protection.map(|_| start_kdc(&folder));
        let port = free_port();
        let ports = Ports {
            name: port,
            web: free_port(),
            data: free_port(),
        };
        write_conf(&folder, &ports, protection);
        run(&mut java(
            &folder,
            "org.apache.hadoop.hdfs.server.namenode.NameNode",
            &["-format", "-nonInteractive"],
        ));
        let daemon = |name: &str, class: &'static str, port| {
            let at = folder.clone();
            let log = folder.join(format!("{name}.log"));
            Server::start(name, log, port, move || java(&at, class, &[]))
        };
        let name_node = daemon(
            "namenode",
            "org.apache.hadoop.hdfs.server.namenode.NameNode",
            port,
        );
        let data_node = daemon(
            "datanode",
            "org.apache.hadoop.hdfs.server.datanode.DataNode",
            ports.data,
        );
        let hdfs = Self {
            port,
            web_port: ports.web,
            kerberos: protection.is_some(),
            name_node,
            data_node,
            _kdc: kdc,
            folder,
        };
        hdfs.wait_writable();
        if hdfs.kerberos {
            // Everything belongs to the name node's own user.
            hdfs.shell_as("server.keytab", "hdfs/localhost", &["-chmod", "777", "/"]);
        }
        hdfs
    }

    /// Waits until the name node has a data node and is in safe mode no more.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_writable(&self) {
        super::wait_for("the cluster can be written", || {
            let state = self.state();
            state.contains("\"NumLiveDataNodes\" : 1")
                && state.contains("\"FSState\" : \"Operational\"")
        });
    }

    /// What the name node says about itself; nothing while it does not answer.
    fn state(&self) -> String {
        let mut answer = String::new();
        let asked = TcpStream::connect(("127.0.0.1", self.web_port)).and_then(|mut stream| {
            stream.write_all(
                b"GET /jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState HTTP/1.0\r\n\r\n",
            )?;
            stream.read_to_string(&mut answer)
        });
        match asked {
            Ok(_) => answer,
            Err(_) => String::new(),
        }
    }

    /// The folder of `core-site.xml` and `hdfs-site.xml`: the option `hadoop_conf`.
    pub fn conf(&self) -> PathBuf {
        self.folder.join("conf")
    }

    /// `hdfs://localhost:PORT`
    pub fn url(&self) -> String {
        format!("hdfs://localhost:{}", self.port)
    }

    /// With Kerberos: the keys of [`PRINCIPAL`].
    pub fn keytab(&self) -> PathBuf {
        self.folder.join("kdc/client.keytab")
    }

    /// With Kerberos: what `KRB5_CONFIG` has to name.
    pub fn krb5_conf(&self) -> PathBuf {
        self.folder.join("kdc/krb5.conf")
    }

    /// `hdfs dfs ARGUMENTS`: what it prints.
    ///
    /// # Panics
    /// When it fails: with what it says.
    pub fn shell(&self, arguments: &[&str]) -> String {
        self.shell_as("client.keytab", PRINCIPAL, arguments)
    }

    fn shell_as(&self, keytab: &str, principal: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("java");
        command.args(JAVA);
        if self.kerberos {
            let keytab = self.folder.join("kdc").join(keytab);
            command.arg(format!("-Dkeytab={}", keytab.display()));
            command.arg(format!("-Dprincipal={principal}"));
        }
        command.args(java_arguments(&self.folder, "Shell", arguments));
        run(&mut command)
    }

    /// Copies everything below `path` into the new folder `into`.
    ///
    /// # Panics
    /// As [`Hdfs::shell`].
    pub fn fetch(&self, path: &str, into: &Path) {
        self.shell(&["-get", path, &into.display().to_string()]);
    }

    /// The paths of all files below `path`, in order.
    ///
    /// # Panics
    /// As [`Hdfs::shell`].
    pub fn files(&self, path: &str) -> Vec<String> {
        let listed = self.shell(&["-ls", "-R", "-C", path]);
        let folders = self.shell(&["-ls", "-R", path]);
        let is_file = |path: &&str| {
            let mut lines = folders.lines();
            lines.any(|line| line.starts_with('-') && line.ends_with(*path))
        };
        listed.lines().filter(is_file).map(str::to_owned).collect()
    }
}

/// Avro's own reader: the body of every event in the `.avro` files below `folder`, one a line, into files of the folder `out`.
///
/// # Panics
/// When it cannot read one of them.
pub fn avro_bodies(folder: &Path, out: &Path) {
    let words = ["bodies", &path_text(folder), &path_text(out)];
    run(&mut java(folder, "Events", &words));
}

/// Avro's own reader: codec, schema, and every event of one file.
///
/// # Panics
/// When it cannot read the file.
pub fn avro_show(file: &Path) -> String {
    run(&mut java(file, "Events", &["show", &path_text(file)]))
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

fn start_kdc(folder: &Path) -> Server {
    let kdc = folder.join("kdc");
    make_folder(&kdc);
    let port = free_port();
    let at = folder.to_owned();
    let words = [path_text(&kdc), port.to_string()];
    let server = Server::start("kdc", folder.join("kdc.log"), port, move || {
        java(&at, "Kdc", &[&words[0], &words[1]])
    });
    super::wait_for("the KDC has made its keys", || kdc.join("ready").exists());
    server
}

/// A Java program with the configuration in `folder` (if there is one) before the jars.
fn java(folder: &Path, class: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("java");
    command
        .args(JAVA)
        .args(java_arguments(folder, class, arguments));
    command
}

fn java_arguments(folder: &Path, class: &str, arguments: &[&str]) -> Vec<String> {
    let jars = installed("hdfs/target/dependency");
    let classes = installed("hdfs/target/classes");
    let krb5 = folder.join("kdc/krb5.conf");
    let path = format!(
        "{}:{}:{}/*",
        folder.join("conf").display(),
        classes.display(),
        jars.display()
    );
    let mut words = Vec::new();
    if krb5.exists() {
        words.push(format!("-Djava.security.krb5.conf={}", krb5.display()));
    }
    words.extend(["-cp".to_owned(), path, class.to_owned()]);
    words.extend(arguments.iter().map(|&word| word.to_owned()));
    words
}

/// Runs a command to its end: what it prints.
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot start java: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn make_folder(path: &Path) {
    fs::create_dir_all(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn write_file(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Where the daemons listen.
struct Ports {
    name: u16,
    web: u16,
    data: u16,
}

/// One folder for name node, data node and clients.
fn write_conf(folder: &Path, ports: &Ports, protection: Option<&str>) {
    let conf = folder.join("conf");
    // The daemons' own web pages are in no jar; without a folder for them they do not start.
    make_folder(&conf.join("webapps/hdfs"));
    make_folder(&conf.join("webapps/datanode"));
    write_file(
        &conf.join("log4j.properties"),
        "log4j.rootLogger=WARN,console\n\
         log4j.appender.console=org.apache.log4j.ConsoleAppender\n\
         log4j.appender.console.target=System.err\n\
         log4j.appender.console.layout=org.apache.log4j.PatternLayout\n\
         log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n\n",
    );
    let mut core = vec![("fs.defaultFS", format!("hdfs://localhost:{}", ports.name))];
    let here = || "127.0.0.1:0".to_owned();
    let at = |name: &str| format!("file://{}", folder.join(name).display());
    let mut hdfs = vec![
        ("dfs.namenode.name.dir", at("name")),
        ("dfs.datanode.data.dir", at("data")),
        ("dfs.replication", "1".to_owned()),
        (
            "dfs.namenode.http-address",
            format!("127.0.0.1:{}", ports.web),
        ),
        ("dfs.datanode.address", format!("127.0.0.1:{}", ports.data)),
        ("dfs.datanode.ipc.address", here()),
        ("dfs.datanode.http.address", here()),
        // A restart is over as soon as the data node has come back.
        ("dfs.namenode.safemode.extension", "0".to_owned()),
        ("dfs.namenode.safemode.min.datanodes", "1".to_owned()),
        ("dfs.heartbeat.interval", "1".to_owned()),
        // A data node of a test shares its disk.
        ("dfs.datanode.du.reserved", "0".to_owned()),
    ];
    match protection {
        None => hdfs.push(("dfs.permissions.enabled", "false".to_owned())),
        Some(protection) => {
            let keytab = path_text(&folder.join("kdc/server.keytab"));
            secure(&mut core, &mut hdfs, protection, &keytab);
        }
    }
    write_file(&conf.join("core-site.xml"), &xml(&core));
    write_file(&conf.join("hdfs-site.xml"), &xml(&hdfs));
}

type Settings = Vec<(&'static str, String)>;

fn secure(core: &mut Settings, hdfs: &mut Settings, protection: &str, keytab: &str) {
    let principal = "hdfs/localhost@EXAMPLE.COM";
    let words: [(&'static str, &str); 4] = [
        ("hadoop.security.authentication", "kerberos"),
        ("hadoop.security.authorization", "true"),
        ("hadoop.rpc.protection", protection),
        (
            "hadoop.security.auth_to_local",
            "RULE:[2:$1](hdfs)s/.*/hdfs/\nDEFAULT",
        ),
    ];
    core.extend(words.map(|(name, value)| (name, value.to_owned())));
    let words: [(&'static str, &str); 10] = [
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
        // Ports above 1024, and web pages without TLS.
        ("ignore.secure.ports.for.testing", "true"),
        ("dfs.http.policy", "HTTP_ONLY"),
    ];
    hdfs.extend(words.map(|(name, value)| (name, value.to_owned())));
}

fn xml(settings: &[(&str, String)]) -> String {
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
