//! Chooses which name node of a name service the client asks first.
//!
//! The library asks name nodes in the order of the configuration, and continues with the next if one is on standby or refuses
//! connections. The library waits forever for a name node that does not respond (a dead machine, a hanging process). A new client
//! with the same list would ask the same name node first. Therefore the list is rotated for each client that is created after a
//! timeout.
//!
//! This module also accepts spaces after the commas of the list, as Hadoop does. The library itself would skip names that begin
//! with a space.

use std::{env, fs, path::PathBuf};

use roxmltree::{Document, Node, ParsingOptions};

/// Name and value of a setting whose value lists the name nodes of a name service.
type Setting = (String, String);

/// Returns the lists of all name services in the Hadoop configuration, each rotated by `turns` names. Returns no lists if the
/// configuration cannot be read; the library reports that error.
pub(super) fn lists(hadoop_conf: Option<&str>, turns: usize) -> Vec<Setting> {
    let Some(directory) = directory(hadoop_conf) else {
        return Vec::new();
    };
    let files = ["core-site.xml", "hdfs-site.xml"];
    let texts = files.map(|file| fs::read_to_string(directory.join(file)));
    let texts = texts.iter().flatten();
    texts.flat_map(|text| lists_of(text, turns)).collect()
}

/// Returns the directory from which the library reads the Hadoop configuration.
fn directory(hadoop_conf: Option<&str>) -> Option<PathBuf> {
    let said = hadoop_conf.map(PathBuf::from);
    said.or_else(|| env::var_os("HADOOP_CONF_DIR").map(PathBuf::from))
        .or_else(|| env::var_os("HADOOP_HOME").map(|home| PathBuf::from(home).join("etc/hadoop")))
}

fn lists_of(text: &str, turns: usize) -> Vec<Setting> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let Ok(document) = Document::parse_with_options(text, options) else {
        return Vec::new();
    };
    let properties = document.root_element().children();
    properties
        .filter_map(|property| {
            let name = value(property, "name")?;
            let list = value(property, "value")?;
            name.starts_with("dfs.ha.namenodes.")
                .then(|| (name.to_owned(), turned(list, turns)))
        })
        .collect()
}

fn value<'a>(property: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let mut children = property.children();
    let found = children.find(|child| child.has_tag_name(name))?;
    found.text().map(str::trim)
}

/// Returns the list without spaces, rotated by `turns` names.
fn turned(list: &str, turns: usize) -> String {
    let names = list.split(',').map(str::trim);
    let mut names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    let first = turns % names.len().max(1);
    names.rotate_left(first);
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_after_a_timeout_begins_with_the_next_name_node() {
        let text = "<?xml version=\"1.0\"?>\n<!-- a comment -->\n<configuration>\n\
            <property><name>dfs.replication</name><value>3</value></property>\n\
            <property>\n  <name>dfs.ha.namenodes.a</name>\n  <value>nn1,nn2, nn3</value>\n</property>\n\
            <property><name>dfs.ha.namenodes.b</name><value></value></property>\n\
            <property><name>dfs.ha.namenodes.c</name><value>x</value></property>\n\
            </configuration>\n";
        let lists = |turns| {
            let lists = lists_of(text, turns).into_iter();
            let lists: Vec<String> = lists.map(|(name, list)| format!("{name}={list}")).collect();
            lists
        };
        let said = |a: &str| {
            vec![
                format!("dfs.ha.namenodes.a={a}"),
                "dfs.ha.namenodes.c=x".to_owned(),
            ]
        };
        assert_eq!(lists(0), said("nn1,nn2,nn3"));
        assert_eq!(lists(1), said("nn2,nn3,nn1"));
        assert_eq!(lists(2), said("nn3,nn1,nn2"));
        assert_eq!(lists(3), said("nn1,nn2,nn3"));
        assert_eq!(lists_of("<configuration>", 0), Vec::new());
        assert_eq!(turned(" , ", 5), "");
    }
}
