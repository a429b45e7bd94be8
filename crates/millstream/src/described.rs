//! Descriptions of the running nodes: their options without secrets, their promises (delivery guarantees), and the paths that they are on.
//!
//! Launching a plan (the checked configuration) consumes the plan. So the descriptions are made before the launch. This happens at the
//! start and at each reload.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use millstream_pipeline::{layout::Entry, plan::Plan, promise::Promise};
use serde_json::{Value, json};

use crate::{
    explain::{Explained, text},
    masked,
};

/// The descriptions of all nodes. Clones share them; a reload replaces them.
#[derive(Clone, Default)]
pub struct Descriptions(Arc<RwLock<Nodes>>);

type Nodes = BTreeMap<Arc<str>, Value>;

impl Descriptions {
    /// The descriptions of the nodes of a plan.
    pub fn new(plan: &Plan, entries: &[Entry]) -> Self {
        let explained = Explained::new(plan);
        let node = |entry: &Entry| (entry.name.clone(), node(&explained, entry));
        Self(Arc::new(RwLock::new(entries.iter().map(node).collect())))
    }

    /// Replaces all descriptions.
    pub fn replace(&self, other: Self) {
        let mut other = other.0.write().unwrap_or_else(PoisonError::into_inner);
        let nodes = std::mem::take(&mut *other);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// The description of a node as JSON: `options`, and if known `promise`, `answers`, `paths`, `in_front_of` and `not_repeatable`.
    /// `None` if there is no such node.
    pub fn of(&self, node: &str) -> Option<Value> {
        let nodes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        nodes.get(node).cloned()
    }
}

fn node(explained: &Explained, entry: &Entry) -> Value {
    let schema = (entry.component.schema)().to_value();
    let mut shown = json!({ "options": masked::options(&entry.options, &schema) });
    let Some(at) = explained.place(&entry.name) else {
        return shown;
    };
    if let Some(promise) = promise(explained, at) {
        shown["promise"] = json!({
            "guarantee": promise.guarantee.to_string(), "condition": promise.condition,
        });
    }
    if let Some(source) = explained.sources.iter().find(|source| source.node == at) {
        shown["answers"] = json!(text::answer(explained, source));
    }
    let paths = explained
        .paths
        .iter()
        .filter(|path| path.nodes.contains(&at));
    let path = |path: &crate::explain::Path| json!({ "nodes": explained.names(&path.nodes), "guarantee": path.guarantee.to_string() });
    shown["paths"] = paths.map(path).collect();
    if let Some(processor) = explained.processors.iter().find(|it| it.node == at) {
        shown["in_front_of"] = json!(explained.names(&processor.consumers));
        if let Some(why) = &processor.not_repeatable {
            shown["not_repeatable"] = json!(why);
        }
    }
    shown
}

/// The promise of a source, channel or sink.
fn promise(explained: &Explained, at: usize) -> Option<&Promise> {
    let sources = explained.sources.iter();
    let of_source = sources.filter(|it| it.node == at).map(|it| &it.promise);
    let channels = explained.keeps.iter();
    let of_channel = channels.filter(|it| it.node == at).map(|it| &it.promise);
    let paths = explained.paths.iter();
    let of_sink = paths
        .filter(|path| path.nodes.last() == Some(&at))
        .map(|path| &path.exit);
    of_source.chain(of_channel).chain(of_sink).next()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config;

    #[test]
    fn a_node_is_described_with_its_options_promise_and_paths() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("millstream.yaml");
        let text = format!(
            "data_dir: {0}/data\n\
             sources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:1\", auth: {{ hostname: a, shared_key: sesame }} }}\n\
             processors:\n  bad: {{ type: filter, inputs: [buffer], where: {{ .a: 1 }} }}\n\
             channels:\n  buffer: {{ type: disk, inputs: [fleet], size_max: 1GiB }}\n\
             sinks:\n  out: {{ type: file, inputs: [bad], path: {0}/out.log }}\n",
            directory.path().display()
        );
        fs::write(&file, text).unwrap();
        let loaded = config::read(&[file]).unwrap_or_else(|problems| panic!("{problems}"));
        let all = Descriptions::new(&loaded.plan, &loaded.entries);
        let fleet = all.of("fleet").unwrap();
        assert_eq!(fleet["options"]["auth"]["shared_key"], "***");
        assert_eq!(fleet["options"]["listen"], "tcp://127.0.0.1:1");
        assert_eq!(fleet["promise"]["guarantee"], "exactly once");
        assert!(
            fleet["answers"].as_str().unwrap().contains("buffer"),
            "{fleet}"
        );
        assert_eq!(
            fleet["paths"][0]["nodes"],
            json!(["fleet", "buffer", "out"])
        );
        assert_eq!(all.of("bad").unwrap()["in_front_of"], json!(["out"]));
        assert_eq!(all.of("nothing"), None);
    }
}
