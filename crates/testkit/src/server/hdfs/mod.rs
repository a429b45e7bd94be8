//! HDFS: a real name node and a real data node. A test can kill, stop and restart each of these processes. With Kerberos, a real key
//! distribution center (Hadoop's, in Java) runs, too. [`ha`] has clusters with two name nodes, one of them active.
//!
//! The jars come from Maven Central (`make deps`, `tests/clients/hdfs`).

mod conf;
pub mod ha;
mod tools;

use std::{
    io::{Read, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    ops::Deref,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Server, free_port, installed,
    network::{self, Network},
    wait_for,
};
use conf::{make_directory, place, set};
pub use tools::{Tools, avro_bodies, avro_show};
use tools::{java, java_in, path_text, run};

/// The principal of the writer in a cluster with Kerberos.
pub const PRINCIPAL: &str = "alice@EXAMPLE.COM";

const NAME_NODE: &str = "org.apache.hadoop.hdfs.server.namenode.NameNode";
const DATA_NODE: &str = "org.apache.hadoop.hdfs.server.datanode.DataNode";

/// A cluster of one name node and one data node.
pub struct Hdfs {
    tools: Tools,
    web: SocketAddr,
    /// The name node.
    pub name_node: Server,
    /// The data node.
    pub data_node: Server,
    _kdc: Option<Server>,
}

impl Deref for Hdfs {
    type Target = Tools;

    fn deref(&self) -> &Tools {
        &self.tools
    }
}

impl Hdfs {
    /// Starts a cluster that keeps everything in `directory`, and waits until it accepts writes.
    ///
    /// # Panics
    /// If it does not start, or the jars are missing.
    pub fn start(directory: &Path) -> Self {
        Self::new(directory, None, None)
    }

    /// Like `start`, in a separate network.
    ///
    /// # Panics
    /// As [`Hdfs::start`].
    pub fn start_in(directory: &Path, network: &Network) -> Self {
        Self::new(directory, None, Some(network))
    }

    /// Like `start`, with Kerberos for remote calls and data: `protection` is `authentication`, `integrity` or `privacy`.
    ///
    /// # Panics
    /// As [`Hdfs::start`].
    pub fn start_secured(directory: &Path, protection: &str) -> Self {
        Self::new(directory, Some(protection), None)
    }

    fn new(directory: &Path, protection: Option<&str>, network: Option<&Network>) -> Self {
        let kdc = protection.map(|_| start_kdc(directory));
        let host = network.map_or(Ipv4Addr::LOCALHOST, Network::address);
        let [name, web, data] = [(); 3].map(|()| SocketAddr::new(host.into(), free_port()));
        // Kerberos knows the daemons by the name `localhost`.
        let url = match network {
            None => format!("hdfs://localhost:{}", name.port()),
            Some(_) => format!("hdfs://{name}"),
        };
        let mut conf = conf::base(directory, &url, data);
        set(
            &mut conf.hdfs,
            [
                ("dfs.namenode.name.dir", &place(directory, "name")),
                ("dfs.namenode.http-address", &web.to_string()),
                // Tests use addresses that have no names.
                (
                    "dfs.namenode.datanode.registration.ip-hostname-check",
                    "false",
                ),
            ],
        );
        match protection {
            None => conf.open_to_all(),
            Some(protection) => {
                let keytab = path_text(&directory.join("kdc/server.keytab"));
                conf.secure(protection, &keytab);
            }
        }
        conf.write(directory);
        run(&mut java(
            directory,
            NAME_NODE,
            &["-format", "-nonInteractive"],
        ));
        let start = |who, address, class| daemon(directory, who, address, class, &[], network);
        let hdfs = Self {
            web,
            name_node: start("namenode", name, NAME_NODE),
            data_node: start("datanode", data, DATA_NODE),
            tools: Tools {
                directory: directory.to_owned(),
                url,
                kerberos: protection.is_some(),
            },
            _kdc: kdc,
        };
        hdfs.wait_writable();
        if hdfs.kerberos {
            // Everything belongs to the user of the name node, so open the root to others.
            hdfs.shell_as("server.keytab", "hdfs/localhost", &["-chmod", "777", "/"]);
        }
        hdfs
    }

    /// Waits until the name node has a data node and has left safe mode.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_writable(&self) {
        wait_for("the cluster can be written", || is_writable(self.web));
    }

    /// With Kerberos: the keytab of [`PRINCIPAL`].
    pub fn keytab(&self) -> PathBuf {
        self.directory.join("kdc/client.keytab")
    }

    /// With Kerberos: the file for `KRB5_CONFIG`.
    pub fn krb5_conf(&self) -> PathBuf {
        self.directory.join("kdc/krb5.conf")
    }
}

/// Starts a daemon with the configuration in `directory`. Its log is written there, too. `network` is `None` for this machine's network.
fn daemon(
    directory: &Path,
    name: &str,
    address: SocketAddr,
    class: &'static str,
    arguments: &[&'static str],
    network: Option<&Network>,
) -> Server {
    let (at, arguments) = (directory.to_owned(), arguments.to_vec());
    let network = network.map(|network| network.name().to_owned());
    let log = directory.join(format!("{name}.log"));
    Server::start_at(name, log, address, move || {
        java_in(network.as_deref(), &at, class, &arguments)
    })
}

/// Whether the name node with this web page has a data node and has left safe mode.
fn is_writable(web: SocketAddr) -> bool {
    let state = told(web, "FSNamesystemState");
    state.contains("\"NumLiveDataNodes\" : 1") && state.contains("\"FSState\" : \"Operational\"")
}

/// A status page of a name node; empty while it does not answer.
fn told(web: SocketAddr, bean: &str) -> String {
    let mut answer = String::new();
    let asked = TcpStream::connect(web).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let query = format!("GET /jmx?qry=Hadoop:service=NameNode,name={bean} HTTP/1.0\r\n\r\n");
        stream.write_all(query.as_bytes())?;
        stream.read_to_string(&mut answer)
    });
    match asked {
        Ok(_) => answer,
        Err(_) => String::new(),
    }
}

fn start_kdc(directory: &Path) -> Server {
    let kdc = directory.join("kdc");
    make_directory(&kdc);
    let port = free_port();
    let at = directory.to_owned();
    let words = [path_text(&kdc), port.to_string()];
    let server = Server::start("kdc", directory.join("kdc.log"), port, move || {
        java(&at, "Kdc", &[&words[0], &words[1]])
    });
    wait_for("the KDC has made its keys", || kdc.join("ready").exists());
    server
}
