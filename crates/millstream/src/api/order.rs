//! The order in which nodes are shown: in the direction of the flow.

use std::collections::BTreeMap;

use serde_json::Value;

/// The sections in order of preference. A node may be listed next if all of its inputs are listed already. If this holds for several nodes,
/// the node whose section comes first in this array is next.
const SECTIONS: [&str; 4] = ["source", "processor", "channel", "sink"];
/// The suffix of a port for rejected records. The edges of such a port may lead back to an earlier node, so they do not influence the
/// order.
const REJECTED: &str = ".rejected";

/// Returns the nodes of an answer of `/status`, each after the nodes that it takes records from.
pub fn in_flow(status: &Value) -> Vec<&Value> {
    let mut waiting: Vec<&Value> = status["nodes"].as_array().into_iter().flatten().collect();
    let section = |node: &Value| SECTIONS.iter().position(|it| node["section"] == *it);
    waiting.sort_by_key(|node| section(node).unwrap_or(SECTIONS.len()));
    let mut inputs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for edge in status["edges"].as_array().into_iter().flatten() {
        let (Some(from), Some(to)) = (edge["from"].as_str(), edge["to"].as_str()) else {
            continue;
        };
        if !from.ends_with(REJECTED) {
            let node = from.split_once('.').map_or(from, |(node, _)| node);
            inputs.entry(to).or_default().push(node);
        }
    }
    let mut listed: Vec<&Value> = Vec::new();
    while !waiting.is_empty() {
        let is_ready = |node: &&Value| {
            let of = node["name"].as_str().and_then(|name| inputs.get(name));
            let waits = |name: &&str| waiting.iter().any(|node| node["name"] == **name);
            !of.into_iter().flatten().any(waits)
        };
        // Without the edges for rejected records, a graph has no cycle, so at least one node is ready.
        let next = waiting.iter().position(is_ready).unwrap_or(0);
        listed.push(waiting.remove(next));
    }
    listed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::in_flow;

    fn names(sections: &[(&str, &str)], edges: &[(&str, &str)]) -> String {
        let node = |(name, section): &(&str, &str)| json!({ "name": name, "section": section });
        let edge = |(from, to): &(&str, &str)| json!({ "from": from, "to": to });
        let status = json!({
            "nodes": sections.iter().map(node).collect::<Vec<_>>(),
            "edges": edges.iter().map(edge).collect::<Vec<_>>(),
        });
        let nodes = in_flow(&status);
        let names: Vec<_> = nodes.iter().filter_map(|it| it["name"].as_str()).collect();
        names.join(" ")
    }

    #[test]
    fn nodes_are_listed_in_the_direction_of_the_flow() {
        let sections = [
            ("out", "sink"),
            ("late", "processor"),
            ("early", "processor"),
            ("buffer", "channel"),
            ("in", "source"),
            ("bad", "sink"),
        ];
        let edges = [
            ("in", "early"),
            ("early", "buffer"),
            ("buffer", "late"),
            ("late.errors", "out"),
            // Rejected records flow back to an earlier node.
            ("out.rejected", "early"),
            ("late.rejected", "bad"),
        ];
        let order = "in early buffer late out bad";
        assert_eq!(names(&sections, &edges), order);
        // The status of an older instance has no edges.
        assert_eq!(names(&sections, &[]), "in late early buffer out bad");
    }
}
