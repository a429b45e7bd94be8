//! The graph that a reload turns to: the new processors, and the sources, channels and sinks that run, with their new inputs.

use std::sync::Arc;

use millstream_config::{Node, Problem, Section, Settings, Value};
use millstream_pipeline::layout::Entry;
use serde_json::Value as Json;

use crate::registry;

/// The options that say where a node takes its records from. A reload applies them to all nodes.
const CONNECTIONS: [&str; 2] = ["inputs", "tags"];

/// A change of the configuration that needs a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The node or setting.
    pub what: Arc<str>,
    /// The change.
    pub why: &'static str,
}

/// Merged entries.
pub struct Merged {
    /// The nodes that can run together.
    pub entries: Vec<Entry>,
    /// The names of new nodes that are not among them.
    pub left_out: Vec<String>,
    /// The changes that need a restart.
    pub waiting: Vec<Waiting>,
}

/// Merges the entries of a new configuration with those that run.
pub fn merge(new: Vec<Entry>, running: &[Entry]) -> Result<Merged, Vec<Problem>> {
    let mut merged = Merged {
        entries: Vec::new(),
        left_out: Vec::new(),
        waiting: Vec::new(),
    };
    let find = |name: &str| {
        let ends = running.iter().filter(|entry| !is_processor(entry));
        ends.into_iter().find(|entry| *entry.name == *name)
    };
    for entry in &new {
        if is_processor(entry) {
            merged.entries.push(entry.clone());
            continue;
        }
        let Some(old) = find(&entry.name) else {
            merged.left_out.push(entry.name.to_string());
            merged.wait(&entry.name, "it is new");
            continue;
        };
        if !runs_as(old, entry) {
            merged.wait(&entry.name, "its options have changed");
        }
        merged.entries.push(reconnected(old, entry));
    }
    for old in running.iter().filter(|entry| !is_processor(entry)) {
        if !new
            .iter()
            .any(|entry| entry.name == old.name && !is_processor(entry))
        {
            merged.wait(
                &old.name,
                "it is not in the configuration any more, and still runs",
            );
            merged.entries.push(old.clone());
        }
    }
    let mut problems = merged.problems();
    problems.extend(merged.lost_ports(&new));
    match problems.is_empty() {
        true => Ok(merged),
        false => Err(problems),
    }
}

/// The top-level settings that differ. The time zone is an option of each node.
pub fn changed_settings(new: &Settings, running: &Settings) -> Vec<Waiting> {
    let fields = |settings: &Settings| match serde_json::to_value(settings) {
        Ok(Json::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let api_differs = new.api != running.api;
    let (new, running) = (fields(new), fields(running));
    let names = new
        .keys()
        .chain(running.keys().filter(|name| !new.contains_key(*name)));
    // A token is `***` in the fields.
    let differs = |name: &&String| {
        let differs = new.get(*name) != running.get(*name);
        *name != "timezone" && (differs || *name == "api" && api_differs)
    };
    let waiting = |name: &String| Waiting {
        what: name.as_str().into(),
        why: "the setting has changed",
    };
    names.filter(differs).map(waiting).collect()
}

fn is_processor(entry: &Entry) -> bool {
    registry::section(entry.component) == Section::Processors.name()
}

/// Whether two nodes have the same type and options, apart from their connections.
fn runs_as(old: &Entry, new: &Entry) -> bool {
    let options = |entry: &Entry| {
        let mut options = entry.options.clone();
        for name in CONNECTIONS {
            options.take(name);
        }
        options.read::<Json>().ok()
    };
    let (before, after) = (options(old), options(new));
    old.component.name == new.component.name
        && registry::section(old.component) == registry::section(new.component)
        && before.is_some()
        && before == after
}

/// The node that runs, with the connections of `new`.
fn reconnected(old: &Entry, new: &Entry) -> Entry {
    let mut entry = old.clone();
    entry.place = new.place.clone();
    for name in CONNECTIONS {
        entry.options.take(name);
        if let (Some((key, value)), Value::Map(options)) =
            (new.options.entry(name), &mut entry.options.value)
        {
            options.entries.push((key.clone(), value.clone()));
        }
    }
    entry
}

impl Merged {
    fn wait(&mut self, what: &Arc<str>, why: &'static str) {
        self.waiting.push(Waiting {
            what: what.clone(),
            why,
        });
    }

    /// The inputs of new channels and sinks that no other node takes: without the new node their records would be dropped. Rejected
    /// records are kept in files then.
    fn lost_ports(&self, new: &[Entry]) -> Vec<Problem> {
        let mut problems = Vec::new();
        let is_new = |entry: &&Entry| self.left_out.iter().any(|name| *name == *entry.name);
        for entry in new.iter().filter(is_new) {
            let inputs = entry.options.get("inputs").into_iter().flat_map(texts);
            for (pattern, node) in inputs {
                let is_taken = self.entries.iter().any(|other| takes_all(other, pattern));
                if is_taken || pattern.ends_with(".rejected") {
                    continue;
                }
                let message = format!(
                    "`{}` is new, and a reload adds only processors: nothing else takes all records of `{pattern}`",
                    entry.name
                );
                problems
                    .push(Problem::new(&node.place, message).help("restart Millstream to add it"));
            }
        }
        problems
    }

    /// The inputs that name a node which is not there, and two nodes of one name.
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let twin = self.entries[..at]
                .iter()
                .find(|other| other.name == entry.name);
            if let Some(twin) = twin {
                let message = format!("`{}` runs as another kind of node", entry.name);
                problems.push(
                    Problem::new(&twin.place, message)
                        .help("give the new node another name, or restart Millstream"),
                );
            }
            let inputs = entry.options.get("inputs").into_iter().flat_map(texts);
            for (pattern, node) in inputs {
                let node_name = pattern.split('.').next().unwrap_or_default();
                if self.left_out.iter().any(|name| name == node_name) {
                    let message =
                        format!("`{node_name}` is new, and a reload adds only processors");
                    problems.push(
                        Problem::new(&node.place, message).help("restart Millstream to add it"),
                    );
                }
            }
        }
        problems
    }
}

/// Whether a node takes all records of the port that this pattern of another node names.
fn takes_all(entry: &Entry, pattern: &str) -> bool {
    let inputs = entry.options.get("inputs").into_iter().flat_map(texts);
    let names_it = inputs.into_iter().any(|(own, _)| own == pattern);
    names_it && entry.options.get("tags").is_none()
}

/// The texts of an option that is a text or a list of them.
fn texts(node: &Node) -> Vec<(&str, &Node)> {
    let list = node.as_list().unwrap_or(std::slice::from_ref(node));
    let text = |node| Node::as_text(node).map(|text| (text, node));
    list.iter().filter_map(text).collect()
}
