//! The problems of an instance, each with its consequences. A sink that cannot deliver fills its channel, and a full channel stops its
//! sources: that is one problem and not three. Several nodes that find the same disk full have one problem, too.

use std::{collections::BTreeSet, os::linux::fs::MetadataExt, path::Path};

use millstream_pipeline::condition::{Held, Trouble};
use serde_json::{Value, json};

use super::health::{View, since, word};

/// How the system says that a file system or a quota is full.
const FULL: [&str; 2] = ["(os error 28)", "(os error 122)"];

/// One condition of a node.
struct Item<'a> {
    view: &'a View<'a>,
    held: &'a Held,
}

/// The problems, the worst first: `{ node, state, why, since, seconds, consequences: [...] }`. A node that has failed has no `since`.
pub(super) fn problems(views: &[View<'_>]) -> Value {
    let items: Vec<Item<'_>> = views
        .iter()
        .flat_map(|view| view.held.iter().map(move |held| Item { view, held }))
        .collect();
    let disks: Vec<Option<u64>> = items.iter().map(|item| full_disk(&item.held.why)).collect();
    let parents: Vec<Option<usize>> = (0..items.len())
        .map(|at| parent(at, &items, &disks))
        .collect();
    let mut roots: Vec<usize> = (0..items.len())
        .filter(|at| root(*at, &parents) == *at)
        .collect();
    roots.sort_by_key(|at| {
        let Item { view, held } = &items[*at];
        std::cmp::Reverse((view.state == "failed", held.trouble, held.age))
    });
    let shown = roots.into_iter().map(|at| {
        // Each node is named once below its cause, with its worst condition.
        let mut named = BTreeSet::from([&items[at].view.node.name]);
        let below = (0..items.len()).filter(|it| *it != at && root(*it, &parents) == at);
        let below = below.filter(|it| named.insert(&items[*it].view.node.name));
        let below: Vec<Value> = below.map(|it| show(&items[it])).collect();
        let mut shown = show(&items[at]);
        shown["consequences"] = json!(below);
        shown
    });
    shown.collect()
}

fn show(Item { view, held }: &Item<'_>) -> Value {
    let is_failed = view.state == "failed" && std::ptr::eq(*held, &view.held[0]);
    let state = match is_failed {
        true => view.state,
        false => word(held.trouble),
    };
    let mut shown = json!({ "node": &*view.node.name, "state": state, "why": held.why });
    if !is_failed {
        shown["since"] = json!(since(held));
        shown["seconds"] = json!(held.age.as_secs());
    }
    shown
}

/// The condition that causes the one at `at`.
fn parent(at: usize, items: &[Item<'_>], disks: &[Option<u64>]) -> Option<usize> {
    let Item { view, held } = &items[at];
    let worst_of = |name: &str| items.iter().position(|it| *it.view.node.name == *name);
    if let Some(cause) = &held.cause {
        // No node has the name of a consumer without a sink: its condition belongs to the channel.
        let abandoned = || {
            items.iter().position(|it| {
                let is_here = it.view.node.name == view.node.name;
                is_here && it.held.trouble == Trouble::Degraded && it.held.why.contains(&**cause)
            })
        };
        return worst_of(cause).or_else(abandoned);
    }
    // Of the nodes that find the same disk full, a channel comes first: it says how much it needs.
    let disk = disks[at]?;
    let same = |it: &usize| disks[*it] == Some(disk);
    let is_channel = |it: &usize| items[*it].view.node.section == "channel";
    let all = || (0..items.len()).filter(same);
    let first = all().find(is_channel).or_else(|| all().next())?;
    (first != at).then_some(first)
}

/// The first cause of a condition.
fn root(start: usize, parents: &[Option<usize>]) -> usize {
    let mut at = start;
    for _ in 0..parents.len() {
        match parents[at] {
            Some(parent) => at = parent,
            None => return at,
        }
    }
    // The causes form a circle: none of them hides another.
    start
}

/// The device of the file system that a reason calls full. The reason begins with a path below it.
fn full_disk(why: &str) -> Option<u64> {
    FULL.iter().find(|full| why.contains(**full))?;
    let path = &why[why.find('/')?..];
    let path = Path::new(path.split(": ").next()?);
    let exists = |path: &Path| path.metadata().ok();
    path.ancestors().find_map(exists).map(|it| it.st_dev())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millstream_pipeline::{report::Reporter, running::NodeStatus, supervise::StateCell};

    use super::*;
    use crate::api::health::views;

    fn node(name: &str, section: &'static str, fills: &[&str]) -> NodeStatus {
        NodeStatus {
            name: name.into(),
            section,
            kind: "test",
            states: vec![StateCell::new()],
            reporter: Reporter::new(name),
            fills: fills.iter().map(|name| (*name).into()).collect(),
            feeds: Vec::new(),
            consumer: None,
            is_leaving: false,
        }
    }

    fn names(problem: &Value) -> Vec<&str> {
        let below = problem["consequences"].as_array().unwrap().iter();
        let all = std::iter::once(problem).chain(below);
        all.map(|it| it["node"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_sink_that_fills_its_channel_is_one_problem_with_its_consequences() {
        let nodes = [
            node("web", "source", &["kept"]),
            node("kept", "channel", &[]),
            node("out", "sink", &[]),
            node("other", "sink", &[]),
        ];
        let out = nodes[2].reporter.condition("server");
        out.raise(Trouble::Retrying, "refused");
        let room = nodes[1].reporter.condition("room");
        let cause: Arc<str> = "out".into();
        room.raise_because(
            Trouble::Blocked,
            Some(cause),
            "full; waiting for its consumer out",
        );
        let other = nodes[3].reporter.condition("server");
        other.raise(Trouble::Retrying, "no route");
        let found = problems(&views(&nodes));
        let found: Vec<_> = found.as_array().unwrap().iter().map(names).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.contains(&vec!["out", "web", "kept"]), "{found:?}");
        assert!(found.contains(&vec!["other"]));
        // The sink works again and is only slow: the channel is the cause.
        drop((out, other));
        let found = problems(&views(&nodes));
        assert_eq!(names(&found[0]), ["kept", "web"]);
        assert_eq!(found.as_array().unwrap().len(), 1);
    }

    #[test]
    fn one_full_disk_is_one_problem() {
        let nodes = [
            node("web", "source", &["kept"]),
            node("archive", "sink", &[]),
            node("kept", "channel", &[]),
            node("elsewhere", "sink", &[]),
        ];
        let place = tempfile::tempdir().unwrap();
        let text = |name: &str| {
            let path = place.path().join(name);
            format!("{}: No space left on device (os error 28)", path.display())
        };
        let raised: Vec<_> = [(1, text("out/a.log")), (2, text("kept/1.segment"))]
            .map(|(at, why)| {
                let condition = nodes[at].reporter.condition("disk");
                condition.raise(Trouble::Blocked, why);
                condition
            })
            .into();
        let another = nodes[3].reporter.condition("disk");
        another.raise(
            Trouble::Retrying,
            "/proc/x/y: No space left on device (os error 28)",
        );
        let found = problems(&views(&nodes));
        let mut found: Vec<_> = found.as_array().unwrap().iter().map(names).collect();
        found.sort();
        assert_eq!(found, [vec!["elsewhere"], vec!["kept", "web", "archive"]]);
        drop(raised);
    }

    #[test]
    fn a_channel_that_a_consumer_without_a_sink_fills_is_one_problem() {
        let nodes = [
            node("web", "source", &["kept"]),
            node("kept", "channel", &[]),
        ];
        let consumer = nodes[1].reporter.condition("consumer");
        consumer.raise(Trouble::Degraded, "no sink reads for the consumer old");
        let room = nodes[1].reporter.condition("room");
        room.raise_because(Trouble::Blocked, Some("old".into()), "full");
        let found = problems(&views(&nodes));
        assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
        assert_eq!(found[0]["state"], "degraded");
        assert_eq!(names(&found[0]), ["kept", "web"]);
    }
}
