//! What `/health` and `/status` show, as JSON.

use millstream_pipeline::{launch::NodeStatus, supervise::NodeState};
use serde_json::{Map, Value, json};

use super::Shown;

/// Whether every node does its work, and which do not.
pub fn health(nodes: &[NodeStatus]) -> (bool, Value) {
    let failing = nodes.iter().filter_map(|node| {
        let (state, why) = words(node.state());
        let why = why?;
        Some(json!({ "node": &*node.name, "state": state, "why": why }))
    });
    let failing: Vec<Value> = failing.collect();
    let healthy = failing.is_empty();
    (healthy, json!({ "healthy": healthy, "failing": failing }))
}

/// Everything there is to know.
pub fn status(shown: &Shown) -> Value {
    let meters = shown.meters.snapshot();
    let node = |node: &NodeStatus| {
        let (state, why) = words(node.state());
        let own = meters.iter().filter(|(name, _, _)| *name == node.name);
        let own: Map<String, Value> = own
            .map(|(_, meter, value)| ((*meter).to_owned(), json!(value)))
            .collect();
        let mut shown = json!({
            "name": &*node.name, "section": node.section, "type": node.kind, "state": state, "meters": own,
        });
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

/// A state in one word, and why it is no good one.
fn words(state: NodeState) -> (&'static str, Option<String>) {
    match state {
        NodeState::Running => ("running", None),
        NodeState::Ended => ("ended", None),
        NodeState::Retrying(why) => ("retrying", Some(why)),
        NodeState::Failed(why) => ("failed", Some(why)),
    }
}
