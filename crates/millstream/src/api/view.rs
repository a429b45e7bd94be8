//! What `/health` and `/status` show, as JSON.

use std::time::Duration;

use millstream_pipeline::{running::NodeStatus, supervise::NodeState, tables::Rows};
use serde_json::{Map, Value, json};

use super::Shown;

/// An error makes a node count as failing for so long; what is tried again complains more often while it fails.
const TROUBLE_TIME: Duration = Duration::from_secs(60);

/// Whether every node does its work, and which do not.
pub fn health(nodes: &[NodeStatus]) -> (bool, Value) {
    let failing = nodes.iter().filter_map(|node| {
        let (state, why) = words(node);
        let why = why?;
        Some(json!({ "node": &*node.name, "state": state, "why": why }))
    });
    let failing: Vec<Value> = failing.collect();
    let healthy = failing.is_empty();
    (healthy, json!({ "healthy": healthy, "failing": failing }))
}

/// Everything there is to know.
pub fn status(shown: &Shown) -> Value {
    let (meters, meters_of) = (shown.meters.snapshot(), &shown.meters);
    let node = |node: &NodeStatus| {
        let (state, why) = words(node);
        let own = meters.iter().filter(|(name, _, _)| *name == node.name);
        let own: Map<String, Value> = own
            .map(|(_, meter, value)| ((*meter).to_owned(), json!(value)))
            .collect();
        let mut shown = json!({
            "name": &*node.name, "section": node.section, "type": node.kind, "state": state, "meters": own,
        });
        let tables = shown_tables(meters_of.tables().of(&node.name));
        if !tables.is_empty() {
            shown["tables"] = Value::Object(tables);
        }
        if let Some(why) = why {
            shown["why"] = json!(why);
        }
        shown
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_seconds": shown.started.elapsed().as_secs(),
        "healthy": health(&shown.nodes).0,
        "memory": { "used_bytes": shown.pool.taken_bytes(), "max_bytes": shown.pool.bytes_max() },
        "nodes": shown.nodes.iter().map(node).collect::<Vec<_>>(),
    })
}

/// `{ METRIC: [{ LABEL: what, "value": n }, ...] }`, the largest first.
fn shown_tables(tables: Vec<(&'static str, &'static str, Rows)>) -> Map<String, Value> {
    let table = |(name, label, rows): (&str, &str, Rows)| {
        let row = |(what, value): (String, u64)| json!({ (label): what, "value": value });
        (name.to_owned(), rows.into_iter().map(row).collect())
    };
    tables.into_iter().map(table).collect()
}

/// A state in one word, and why it is no good one.
fn words(node: &NodeStatus) -> (&'static str, Option<String>) {
    let trouble = || {
        let (ago, text) = node.reporter.last_error()?;
        (ago < TROUBLE_TIME).then_some(text)
    };
    match node.state() {
        NodeState::Failed(why) => ("failed", Some(why)),
        NodeState::Retrying(why) => ("retrying", Some(why)),
        NodeState::Ended => ("ended", None),
        NodeState::Running => match trouble() {
            Some(why) => ("troubled", Some(why)),
            None => ("running", None),
        },
    }
}
