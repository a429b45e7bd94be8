//! The contents of `/health` and `/status`, as JSON.

use std::{cmp::Reverse, time::Duration};

use jiff::{Timestamp, Unit};
use millstream_pipeline::{
    condition::{Held, Trouble},
    running::NodeStatus,
    supervise::NodeState,
    tables::Rows,
};
use serde_json::{Map, Value, json};

use super::Shown;

/// A node that is blocked or retrying for this long is unhealthy; before that only `/status` shows it. A server that restarts is
/// back within this time.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(10);

/// A node with its state and conditions.
struct View<'a> {
    node: &'a NodeStatus,
    state: &'static str,
    /// Its conditions, the worst first; none while it works.
    held: Vec<Held>,
}

impl<'a> View<'a> {
    fn new(node: &'a NodeStatus, all: &[NodeStatus]) -> Self {
        let mut held = node.reporter.conditions();
        held.extend(back_pressure(node, all));
        held.sort_by_key(|held| Reverse((held.trouble, held.age)));
        // Equal reports of several tasks of a node are shown once.
        let mut told = Vec::new();
        held.retain(|held| {
            let is_new = !told.contains(&held.why);
            told.push(held.why.clone());
            is_new
        });
        let state = match (node.state(), held.first()) {
            (NodeState::Failed(why), _) => {
                let failed = Held {
                    trouble: Trouble::Retrying,
                    why,
                    age: Duration::ZERO,
                };
                held.insert(0, failed);
                "failed"
            }
            (NodeState::Ended, _) => {
                held.clear();
                "ended"
            }
            (NodeState::Running, None) => "running",
            (NodeState::Running, Some(held)) => word(held.trouble),
        };
        Self { node, state, held }
    }

    fn is_healthy(&self) -> bool {
        let lasts = |held: &Held| held.trouble == Trouble::Losing || held.age >= UNHEALTHY_AFTER;
        self.state != "failed" && !self.held.iter().any(lasts)
    }

    /// Node and state; `why` and `since` only if something is wrong.
    fn summary(&self) -> Value {
        let mut shown = json!({ "node": &*self.node.name, "state": self.state });
        self.tell(&mut shown);
        shown
    }

    fn tell(&self, shown: &mut Value) {
        if let Some(held) = self.held.first() {
            shown["why"] = json!(held.why);
            if self.state != "failed" {
                shown["since"] = json!(since(held));
                shown["seconds"] = json!(held.age.as_secs());
            }
        }
    }
}

/// Whether every node works, and those that do not.
pub fn health(nodes: &[NodeStatus]) -> (bool, Value) {
    let views = nodes.iter().map(|node| View::new(node, nodes));
    let failing: Vec<Value> = views
        .filter(|view| !view.is_healthy())
        .map(|view| view.summary())
        .collect();
    let healthy = failing.is_empty();
    (healthy, json!({ "healthy": healthy, "failing": failing }))
}

/// The full status.
pub fn status(shown: &Shown) -> Value {
    let (meters, tables) = (shown.meters.snapshot(), shown.meters.tables());
    let nodes = shown.nodes.now();
    let node = |node: &NodeStatus| {
        let view = View::new(node, &nodes);
        let own = meters.iter().filter(|(name, _, _)| *name == node.name);
        let own: Map<String, Value> = own
            .map(|(_, meter, value)| ((*meter).to_owned(), json!(value)))
            .collect();
        let mut shown = json!({
            "name": &*node.name, "section": node.section, "type": node.kind, "state": view.state, "meters": own,
        });
        let tables = shown_tables(tables.of(&node.name));
        if !tables.is_empty() {
            shown["tables"] = Value::Object(tables);
        }
        view.tell(&mut shown);
        if view.held.len() > 1 {
            let held = view.held.iter().map(|held| {
                json!({ "state": word(held.trouble), "why": held.why, "since": since(held), "seconds": held.age.as_secs() })
            });
            shown["conditions"] = held.collect();
        }
        shown
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "time": Timestamp::now().as_second(),
        "uptime_seconds": shown.started.elapsed().as_secs(),
        "healthy": health(&nodes).0,
        "memory": { "used_bytes": shown.pool.taken_bytes(), "max_bytes": shown.pool.bytes_max() },
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
    })
}

/// `{ METRIC: [{ LABEL: text, "value": n }, ...] }`, the largest first.
fn shown_tables(tables: Vec<(&'static str, &'static str, Rows)>) -> Map<String, Value> {
    let table = |(name, label, rows): (&str, &str, Rows)| {
        let row = |(what, value): (String, u64)| json!({ (label): what, "value": value });
        (name.to_owned(), rows.into_iter().map(row).collect())
    };
    tables.into_iter().map(table).collect()
}

/// A node that fills a blocked channel is blocked itself.
fn back_pressure(node: &NodeStatus, all: &[NodeStatus]) -> Vec<Held> {
    let channels = all.iter().filter(|other| node.fills.contains(&other.name));
    let blocked = channels.flat_map(|channel| {
        let held = channel.reporter.conditions().into_iter();
        let blocked = held.filter(|held| held.trouble == Trouble::Blocked);
        blocked.map(|held| Held {
            why: format!("the channel {} takes no more: {}", channel.name, held.why),
            ..held
        })
    });
    blocked.collect()
}

fn word(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Blocked => "blocked",
        Trouble::Retrying => "retrying",
        Trouble::Losing => "losing",
    }
}

/// When a condition began, as RFC 3339 in UTC.
fn since(held: &Held) -> String {
    let began = Timestamp::now().checked_sub(held.age).unwrap_or_default();
    began.round(Unit::Second).unwrap_or(began).to_string()
}
