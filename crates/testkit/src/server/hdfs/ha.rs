//! A name service: two name nodes, one of them active, and a data node that reports to both. The name nodes share their edits
//! through a journal node. `hdfs haadmin` selects the active one. The journal node ensures that only the active name node
//! writes: it rejects edits from the one that was active before.

use std::{
    net::{Ipv4Addr, SocketAddr},
    ops::Deref,
    path::Path,
};

use super::{
    DATA_NODE, NAME_NODE, Server, Tools,
    conf::{self, Conf, place, set},
    daemon, free_port, is_writable,
    tools::{java, run},
};
use crate::server::wait_for;

/// The name service: `hdfs://mill`.
const SERVICE: &str = "mill";
/// The name nodes, in the order of the configuration.
const IDS: [&str; 2] = ["nn1", "nn2"];
/// The property that sets the id of each name node: both run on one machine, so they cannot derive their ids from their addresses.
const WHO: [&str; 2] = ["dfs.ha.namenode.id=nn1", "dfs.ha.namenode.id=nn2"];

const JOURNAL_NODE: &str = "org.apache.hadoop.hdfs.qjournal.server.JournalNode";
const HA_ADMIN: &str = "org.apache.hadoop.hdfs.tools.DFSHAAdmin";

/// A cluster of two name nodes and one data node.
pub struct Ha {
    tools: Tools,
    webs: [SocketAddr; 2],
    /// The name nodes, in the order of the configuration.
    pub name_nodes: [Server; 2],
    /// The data node.
    pub data_node: Server,
    _journal: Server,
}

impl Deref for Ha {
    type Target = Tools;

    fn deref(&self) -> &Tools {
        &self.tools
    }
}

impl Ha {
    /// Starts a cluster that keeps everything in `directory`, and makes the first name node active.
    ///
    /// # Panics
    /// If it does not start, or the jars are missing.
    pub fn start(directory: &Path) -> Self {
        let address = || SocketAddr::new(Ipv4Addr::LOCALHOST.into(), free_port());
        let (names, webs) = ([address(), address()], [address(), address()]);
        let (data, journal) = (address(), address());
        let url = format!("hdfs://{SERVICE}");
        let mut conf = conf::base(directory, &url, data);
        conf.open_to_all();
        describe_service(&mut conf, directory, names, webs);
        describe_journal(&mut conf, directory, journal);
        conf.write(directory);
        let start = |who, address, class, words: &[&'static str]| {
            daemon(directory, who, address, class, words, None)
        };
        let journal = start("journalnode", journal, JOURNAL_NODE, &[]);
        let prepare = |which: usize, what| {
            let words = ["-D", WHO[which], what, "-nonInteractive"];
            run(&mut java(directory, NAME_NODE, &words));
        };
        let name_node = |which: usize| {
            let words = ["-D", WHO[which]];
            start(IDS[which], names[which], NAME_NODE, &words)
        };
        prepare(0, "-format");
        let first = name_node(0);
        // The standby copies the state of the first name node.
        prepare(1, "-bootstrapStandby");
        let ha = Self {
            tools: Tools {
                directory: directory.to_owned(),
                url,
                kerberos: false,
            },
            webs,
            name_nodes: [first, name_node(1)],
            data_node: start("datanode", data, DATA_NODE, &[]),
            _journal: journal,
        };
        ha.activate(0);
        ha
    }

    /// Makes a name node active, whatever the state of the other one, and waits until it accepts writes.
    ///
    /// # Panics
    /// If it does not become active.
    pub fn activate(&self, which: usize) {
        self.admin(&["-transitionToActive", "--forceactive", IDS[which]]);
        wait_for("the name service can be written", || {
            is_writable(self.webs[which])
        });
    }

    /// Makes a name node a standby.
    ///
    /// # Panics
    /// If it does not become one.
    pub fn retire(&self, which: usize) {
        self.admin(&["-transitionToStandby", IDS[which]]);
    }

    fn admin(&self, words: &[&str]) {
        run(&mut java(&self.tools.directory, HA_ADMIN, words));
    }
}

fn describe_service(
    conf: &mut Conf,
    directory: &Path,
    names: [SocketAddr; 2],
    webs: [SocketAddr; 2],
) {
    set(
        &mut conf.hdfs,
        [
            ("dfs.nameservices", SERVICE),
            // With a space after the comma, as in Hadoop's manual.
            (&format!("dfs.ha.namenodes.{SERVICE}"), &IDS.join(", ")),
            (
                &format!("dfs.client.failover.proxy.provider.{SERVICE}"),
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider",
            ),
            ("dfs.ha.automatic-failover.enabled", "false"),
            ("dfs.ha.fencing.methods", "shell(/bin/true)"),
        ],
    );
    // The other name node may be frozen. The switch must not wait for its answer.
    set(
        &mut conf.core,
        [("ha.failover-controller.cli-check.rpc-timeout.ms", "2000")],
    );
    for ((id, name), web) in IDS.iter().zip(names).zip(webs) {
        let of = |what: &str| format!("dfs.namenode.{what}.{SERVICE}.{id}");
        set(
            &mut conf.hdfs,
            [
                (&of("rpc-address"), &format!("localhost:{}", name.port())),
                (&of("http-address"), &web.to_string()),
                (&of("name.dir"), &place(directory, id)),
            ],
        );
    }
}

fn describe_journal(conf: &mut Conf, directory: &Path, address: SocketAddr) {
    let address = address.to_string();
    set(
        &mut conf.hdfs,
        [
            (
                "dfs.namenode.shared.edits.dir",
                &format!("qjournal://{address}/{SERVICE}"),
            ),
            ("dfs.journalnode.rpc-address", &address),
            ("dfs.journalnode.http-address", "127.0.0.1:0"),
            (
                "dfs.journalnode.edits.dir",
                &directory.join("journal").display().to_string(),
            ),
        ],
    );
}
