//! `/health`, `/ready` and `/live`, as Kubernetes' probes expect them, and the state of each node.
//!
//! `/live` fails only if the process does not answer at all, because a restart helps only in this case. `/ready` fails as soon as a node
//! does not run or makes no progress. `/health` fails when a node makes no progress for [`UNHEALTHY_AFTER`], and immediately when a node
//! has failed or loses records. While everything works but an operator should do something, `/health` succeeds and is `degraded`.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use jiff::{Timestamp, Unit};
use millstream_pipeline::{
    condition::{Held, Trouble},
    running::NodeStatus,
    supervise::NodeState,
};
use serde_json::{Value, json};

use super::Shown;

/// The states of a node.
pub(super) const STATES: [&str; 7] = [
    "running", "ended", "degraded", "blocked", "retrying", "losing", "failed",
];

/// A node that is blocked or retrying for this long is unhealthy. Until then, only `/ready` and `/status` show the problem. A server
/// that is restarted is usually back within this time.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(10);

/// A node with its state and its conditions. A condition is a lasting problem that keeps the node from its work.
pub(super) struct View<'a> {
    /// The node.
    pub(super) node: &'a NodeStatus,
    /// One of [`STATES`].
    pub(super) state: &'static str,
    /// Its conditions, the worst first. Empty if it has none.
    pub(super) held: Vec<Held>,
}

impl<'a> View<'a> {
    pub(super) fn new(node: &'a NodeStatus, all: &[NodeStatus]) -> Self {
        let mut held = node.reporter.conditions();
        held.extend(back_pressure(node, all));
        held.sort_by_key(|held| Reverse((held.trouble, held.age)));
        // Several tasks of a node may report the same condition. It is shown only once.
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
                    cause: None,
                };
                held.insert(0, failed);
                "failed"
            }
            (NodeState::Ended, _) => {
                held.clear();
                "ended"
            }
            // A condition says what a planned node waits for.
            (NodeState::Planned | NodeState::Running, None) => "running",
            (NodeState::Planned | NodeState::Running, Some(held)) => word(held.trouble),
        };
        Self { node, state, held }
    }

    pub(super) fn is_healthy(&self) -> bool {
        let lasts = |held: &Held| match held.trouble {
            Trouble::Degraded => false,
            Trouble::Losing => true,
            Trouble::Blocked | Trouble::Retrying => held.age >= UNHEALTHY_AFTER,
        };
        self.state != "failed" && !self.held.iter().any(lasts)
    }

    fn is_ready(&self) -> bool {
        matches!(self.state, "running" | "ended" | "degraded")
    }

    /// The node and its state. If the node has failed, `why` is the reason. Otherwise, if the node has conditions, `why` and `since`
    /// describe the worst one.
    fn summary(&self) -> Value {
        let mut shown = json!({ "node": &*self.node.name, "state": self.state });
        self.tell(&mut shown);
        shown
    }

    pub(super) fn tell(&self, shown: &mut Value) {
        if let Some(held) = self.held.first() {
            shown["why"] = json!(held.why);
            if self.state != "failed" {
                shown["since"] = json!(since(held));
                shown["seconds"] = json!(held.age.as_secs());
            }
        }
    }
}

/// The views of all nodes.
pub(super) fn views(nodes: &[NodeStatus]) -> Vec<View<'_>> {
    nodes.iter().map(|node| View::new(node, nodes)).collect()
}

/// Whether everything is well, in a word: `unhealthy` while `/health` fails, `degraded` while it does not but a node or the process has
/// a condition, and otherwise `healthy`. `process`: the conditions of the process, as `/status` shows them.
pub(super) fn verdict(views: &[View<'_>], process: &[Value]) -> &'static str {
    let is_troubled = |view: &View<'_>| !view.held.is_empty();
    match views.iter().all(View::is_healthy) {
        false => "unhealthy",
        true if views.iter().any(is_troubled) || !process.is_empty() => "degraded",
        true => "healthy",
    }
}

/// Returns whether every node is healthy, and a page with the unhealthy nodes, the degraded ones, and the conditions of the process.
pub(super) fn health(nodes: &[NodeStatus], process: Vec<Value>) -> (bool, Value) {
    let views = views(nodes);
    let (is_healthy, mut page) = failing("healthy", views.iter().filter(|it| !it.is_healthy()));
    page["verdict"] = json!(verdict(&views, &process));
    let degraded = views
        .iter()
        .filter(|it| it.state == word(Trouble::Degraded));
    page["degraded"] = degraded.map(View::summary).chain(process).collect();
    (is_healthy, page)
}

/// Returns whether every node runs and makes progress, and a page with the nodes that do not. If `draining` is true (the process is
/// ending), the first value is false.
pub(super) fn ready(nodes: &[NodeStatus], draining: bool) -> (bool, Value) {
    let (ready, mut page) = failing("ready", views(nodes).iter().filter(|it| !it.is_ready()));
    if draining {
        page["ready"] = json!(false);
        page["why"] = json!("Millstream drains and stops");
    }
    (ready && !draining, page)
}

fn failing<'a>(word: &str, nodes: impl Iterator<Item = &'a View<'a>>) -> (bool, Value) {
    let failing: Vec<Value> = nodes.map(View::summary).collect();
    let is_good = failing.is_empty();
    (is_good, json!({ (word): is_good, "failing": failing }))
}

/// Answers 200 while every node runs and makes progress, and otherwise 503.
pub(super) async fn get_ready(State(shown): State<Arc<Shown>>) -> Response {
    answer(ready(&shown.nodes.now(), shown.is_draining()))
}

/// Answers 200 whenever the process answers at all.
pub(super) async fn get_live() -> Response {
    answer((true, json!({ "live": true })))
}

/// Answers 200 if the first value is true, and otherwise 503.
pub(super) fn answer((is_good, page): (bool, Value)) -> Response {
    let code = match is_good {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    // A probe needs the current state, so no cache may answer.
    let fresh = [(header::CACHE_CONTROL, "no-store")];
    (code, fresh, axum::Json(page)).into_response()
}

/// Returns the conditions that a node has because a channel that it fills is blocked or has failed.
fn back_pressure(node: &NodeStatus, all: &[NodeStatus]) -> Vec<Held> {
    let channels = all.iter().filter(|other| node.fills.contains(&other.name));
    channels
        .flat_map(|channel| match channel.state() {
            NodeState::Failed(why) => vec![Held {
                trouble: Trouble::Blocked,
                why: format!("the channel {} has failed: {why}", channel.name),
                age: UNHEALTHY_AFTER,
                cause: Some(channel.name.clone()),
            }],
            NodeState::Planned | NodeState::Running | NodeState::Ended => blocked(channel),
        })
        .collect()
}

/// Returns the conditions that the nodes in front of a channel have because of it.
fn blocked(channel: &NodeStatus) -> Vec<Held> {
    let held = channel.reporter.conditions().into_iter();
    let blocked = held.filter(|held| held.trouble == Trouble::Blocked);
    let shown = blocked.map(|held| Held {
        why: format!(
            "the channel {} accepts no more records: {}",
            channel.name, held.why
        ),
        cause: Some(channel.name.clone()),
        ..held
    });
    shown.collect()
}

/// The state of a node that has a condition with this trouble.
pub(super) fn word(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Degraded => "degraded",
        Trouble::Blocked => "blocked",
        Trouble::Retrying => "retrying",
        Trouble::Losing => "losing",
    }
}

/// The time at which a condition began, as RFC 3339 in UTC.
pub(super) fn since(held: &Held) -> String {
    let began = Timestamp::now().checked_sub(held.age).unwrap_or_default();
    began.round(Unit::Second).unwrap_or(began).to_string()
}

#[cfg(test)]
mod tests {
    use millstream_pipeline::{report::Reporter, supervise::StateCell};

    use super::*;

    fn node(name: &str) -> NodeStatus {
        NodeStatus {
            name: name.into(),
            section: "sink",
            kind: "file",
            states: vec![StateCell::new()],
            reporter: Reporter::new(name),
            fills: Vec::new(),
            feeds: Vec::new(),
            consumer: None,
            is_leaving: false,
        }
    }

    #[test]
    fn a_node_in_trouble_is_immediately_not_ready_and_later_unhealthy() {
        let nodes = [node("good"), node("bad")];
        let health = |nodes: &[NodeStatus]| health(nodes, Vec::new());
        assert!(health(&nodes).0 && ready(&nodes, false).0);
        let condition = nodes[1].reporter.condition("server");
        condition.raise(Trouble::Retrying, "refused");
        assert!(health(&nodes).0);
        let (is_ready, page) = ready(&nodes, false);
        assert!(!is_ready);
        assert_eq!(page["failing"][0]["node"], "bad");
        assert_eq!(page["failing"][0]["why"], "refused");
        condition.clear();
        assert!(ready(&nodes, false).0);
        let Some(long_ago) = std::time::Instant::now().checked_sub(UNHEALTHY_AFTER) else {
            return;
        };
        condition.raise_since(Trouble::Blocked, long_ago, "stalled");
        let (is_healthy, page) = health(&nodes);
        assert!(!is_healthy);
        assert_eq!(page["failing"][0]["state"], "blocked");
    }

    #[test]
    fn an_instance_that_drains_is_not_ready_but_still_healthy() {
        let nodes = [node("good")];
        let (is_ready, page) = ready(&nodes, true);
        assert!(!is_ready && page["ready"] == false, "{page}");
        assert!(health(&nodes, Vec::new()).0);
    }

    #[test]
    fn a_node_that_needs_an_operator_is_degraded_but_ready_and_healthy() {
        let nodes = [node("good"), node("kept")];
        let condition = nodes[1].reporter.condition("consumer");
        let long_ago = std::time::Instant::now().checked_sub(2 * UNHEALTHY_AFTER);
        let long_ago = long_ago.unwrap_or_else(std::time::Instant::now);
        condition.raise_since(Trouble::Degraded, long_ago, "no sink reads");
        let (is_healthy, page) = health(&nodes, vec![json!({ "what": "configuration" })]);
        assert!(is_healthy && ready(&nodes, false).0);
        assert_eq!(page["verdict"], "degraded");
        assert_eq!(page["failing"], json!([]));
        assert_eq!(page["degraded"][0]["node"], "kept");
        assert_eq!(page["degraded"][0]["why"], "no sink reads");
        assert_eq!(page["degraded"][1]["what"], "configuration");
        // A worse condition comes first.
        let full = nodes[1].reporter.condition("room");
        full.raise(Trouble::Blocked, "full");
        let (_, page) = health(&nodes, Vec::new());
        assert_eq!(
            (&page["verdict"], &page["degraded"]),
            (&json!("degraded"), &json!([]))
        );
        assert!(!ready(&nodes, false).0);
        drop((full, condition));
        assert_eq!(health(&nodes, Vec::new()).1["verdict"], "healthy");
    }
}
