//! The nodes between two nodes of the graph.

use std::{collections::BTreeSet, sync::Arc};

use millstream_pipeline::plan::{Link, Plan};

/// The port of rejected records, which are not part of a processor's output.
const REJECTED: &str = "rejected";

/// The connections of the graph, without those for rejected records.
pub fn links(plan: &Plan) -> impl Iterator<Item = &Link> {
    plan.links.iter().filter(|link| &*link.port != REJECTED)
}

/// The nodes on all paths from `start` to `end`. Each node comes after the nodes that feed it. Apart from this, the nodes are in the order
/// of the configuration file. `None` if there is no path.
pub fn between(plan: &Plan, start: &str, end: &str) -> Option<Vec<Arc<str>>> {
    let behind = reach(start, |at| {
        links(plan)
            .filter(|link| &*link.from == at)
            .map(|link| &*link.to)
            .collect()
    });
    let before = reach(end, |at| {
        links(plan)
            .filter(|link| &*link.to == at)
            .map(|link| &*link.from)
            .collect()
    });
    if !behind.contains(end) {
        return None;
    }
    let feeders = |of: &str| {
        let feeders = links(plan).filter(|link| &*link.to == of);
        let feeders = feeders.map(|link| &*link.from);
        let feeders = feeders.filter(|node| behind.contains(node));
        feeders.collect::<Vec<_>>()
    };
    // The plan lists the connections by producer, in the order of the configuration file.
    let producers = links(plan).map(|link| &link.from);
    let is_between = |node: &&Arc<str>| behind.contains(&***node) && before.contains(&***node);
    let mut open: Vec<&Arc<str>> = producers
        .filter(is_between)
        .filter(|node| ***node != *end)
        .collect();
    open.dedup();
    let mut ordered: Vec<Arc<str>> = Vec::new();
    while let Some(next) = open.iter().position(|node| {
        let is_ordered = |feeder: &&str| ordered.iter().any(|node| **node == **feeder);
        &***node == start || feeders(node).iter().all(is_ordered)
    }) {
        ordered.push(open.remove(next).clone());
    }
    ordered.push(end.into());
    Some(ordered)
}

/// All nodes that can be reached from `start` by repeating `steps`, including `start`.
fn reach<'a>(start: &'a str, steps: impl Fn(&str) -> Vec<&'a str>) -> BTreeSet<&'a str> {
    let (mut open, mut found) = (vec![start], BTreeSet::from([start]));
    while let Some(at) = open.pop() {
        open.extend(steps(at).into_iter().filter(|node| found.insert(node)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan, *};

    fn ordered(links: &[(&str, &str)], start: &str, end: &str) -> Option<String> {
        let names = between(&plan(links), start, end)?;
        Some(names.iter().map(|name| &**name).collect())
    }

    #[test]
    fn nodes_come_after_those_that_feed_them_and_dead_ends_are_left_out() {
        let links = [
            ("s", "a"),
            ("s", "b"),
            ("a", "d"),
            ("b", "c"),
            ("b", "x"),
            ("c", "d"),
            ("d", "e"),
        ];
        for (start, end, expected) in [
            ("s", "e", Some("sabcde")),
            ("s", "d", Some("sabcd")),
            ("b", "d", Some("bcd")),
            ("d", "d", Some("d")),
            ("a", "c", None),
            ("d", "s", None),
            ("x", "e", None),
            ("nowhere", "e", None),
        ] {
            let found = ordered(&links, start, end);
            assert_eq!(found.as_deref(), expected, "{start} {end}");
        }
    }

    #[test]
    fn connections_of_rejected_records_are_not_followed() {
        let mut plan = plan(&[("a", "b")]);
        plan.links[0].port = REJECTED.into();
        assert_eq!(between(&plan, "a", "b"), None);
    }
}
