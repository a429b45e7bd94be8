//! The drawing of the graph. It has a block for every channel, for every processor, and for every source that feeds a sink directly or
//! feeds no node. A block shows the node and its neighbours.

use std::fmt::Write;

use super::{Edge, Explained, Kind, Port};
use crate::page::width;

/// Returns the blocks: first those of channels and processors in the direction of the flow, then those of sources.
pub fn render(explained: &Explained) -> String {
    let mut blocks: Vec<String> = Vec::new();
    for (at, node) in explained.nodes.iter().enumerate() {
        let takers = taken(explained, at);
        let feeds_sinks = takers
            .iter()
            .any(|edge| explained.nodes[edge.to].kind == Kind::Sink);
        if node.kind == Kind::Source && (takers.is_empty() || feeds_sinks) {
            blocks.push(block(
                &[],
                &label(explained, at, None),
                &right(explained, at),
            ));
        }
    }
    let middle = in_flow(explained).into_iter().map(|at| {
        let left = given(explained, at);
        let left = left.iter().map(|edge| {
            let kind = explained.nodes[edge.from].type_;
            with_tags(format!("{} ({kind})", explained.port_name(edge)), edge)
        });
        let left: Vec<_> = left.collect();
        block(&left, &label(explained, at, None), &right(explained, at))
    });
    let middle: Vec<_> = middle.collect();
    [middle, blocks].concat().join("\n")
}

/// Channels and processors. Each comes after the channels and processors that it takes records from.
fn in_flow(explained: &Explained) -> Vec<usize> {
    let has_block = |at: &usize| {
        let kind = explained.nodes[*at].kind;
        matches!(kind, Kind::Channel | Kind::Processor)
    };
    let mut waiting: Vec<usize> = (0..explained.nodes.len()).filter(has_block).collect();
    let mut listed = Vec::new();
    while !waiting.is_empty() {
        let is_ready = |at: &usize| {
            let inputs = explained.edges.iter();
            let mut inputs = inputs.filter(|it| it.to == *at && it.port != Port::Rejected);
            !inputs.any(|edge| waiting.contains(&edge.from))
        };
        // Without the edges for rejected records, the graph has no cycle, so at least one node is ready.
        let next = waiting.iter().position(is_ready).unwrap_or(0);
        listed.push(waiting.remove(next));
    }
    listed
}

/// The edges by which records leave a node, without the edges for rejected records. Another section of the page shows those edges.
fn taken(explained: &Explained, node: usize) -> Vec<&Edge> {
    let edges = explained.edges.iter();
    let edges = edges.filter(|edge| edge.from == node && edge.port != Port::Rejected);
    edges.collect()
}

/// The edges by which records enter a node. Edges for rejected records are included only if the node is a processor, because a processor
/// may have no other edges.
fn given(explained: &Explained, node: usize) -> Vec<&Edge> {
    let is_processor = explained.nodes[node].kind == Kind::Processor;
    let edges = explained.edges.iter();
    let edges = edges.filter(|edge| edge.to == node);
    edges
        .filter(|edge| is_processor || edge.port != Port::Rejected)
        .collect()
}

fn label(explained: &Explained, node: usize, edge: Option<&Edge>) -> String {
    let node = &explained.nodes[node];
    let name = format!("{} ({})", node.name, node.type_);
    match edge {
        None => name,
        Some(edge) => with_tags(name, edge),
    }
}

fn with_tags(name: String, edge: &Edge) -> String {
    match &edge.tags {
        None => name,
        Some(tags) => format!("{name}, tags {tags}"),
    }
}

/// The right side of a node's block. Each entry is a port of the node (`.ROUTE`, or empty for the port `NAME`) and a consumer of this port.
fn right(explained: &Explained, from: usize) -> Vec<(String, String)> {
    let node = &explained.nodes[from];
    let edges = taken(explained, from);
    if node.kind == Kind::Source {
        // The other consumers of a source have their own blocks, which show the source on the left.
        let to_sinks = edges
            .iter()
            .filter(|edge| explained.nodes[edge.to].kind == Kind::Sink);
        let to_sinks = to_sinks.map(|edge| (String::new(), label(explained, edge.to, Some(edge))));
        let to_sinks: Vec<_> = to_sinks.collect();
        return match to_sinks.is_empty() {
            true => vec![(String::new(), "no node: counted and dropped".to_owned())],
            false => to_sinks,
        };
    }
    if node.kind == Kind::Channel && edges.is_empty() {
        let then = "no node: it fills up, then its sources wait";
        return vec![(String::new(), then.to_owned())];
    }
    let mut right = Vec::new();
    let processor = explained.processors.iter().find(|it| it.node == from);
    let main = vec![String::new()];
    for port in processor.map_or(&main, |processor| &processor.ports) {
        let of_port = |edge: &&&Edge| match &edge.port {
            Port::Records => port.is_empty(),
            Port::Route(route) => route == port,
            Port::Rejected => false,
        };
        let shown = match port.is_empty() {
            true => String::new(),
            false => format!(".{port}"),
        };
        let before = right.len();
        for edge in edges.iter().filter(of_port) {
            right.push((shown.clone(), label(explained, edge.to, Some(edge))));
        }
        if right.len() == before {
            right.push((shown, "no node: counted as filtered".to_owned()));
        }
    }
    right
}

/// Draws a block: the names of `left`, then `middle` on the first line, then the ports and names of `right`, with lines between them.
fn block(left: &[String], middle: &str, right: &[(String, String)]) -> String {
    let left_width = left.iter().map(|name| width(name)).max().unwrap_or(0);
    let (lines, mut out) = (left.len().max(right.len()).max(1), String::new());
    for at in 0..lines {
        let mut line = String::from("  ");
        if !left.is_empty() {
            match left.get(at) {
                Some(name) => {
                    line.push_str(&format!("{name} "));
                    line.push_str(&"─".repeat(left_width - width(name)));
                }
                None => line.push_str(&" ".repeat(left_width + 1)),
            }
            line.push_str(match (at, left.len()) {
                (0, 1) => "───▶ ",
                (0, _) => "─┬─▶ ",
                (at, count) if at + 1 < count => "─┤   ",
                (at, count) if at + 1 == count => "─┘   ",
                _ => "     ",
            });
        }
        let middle_width = width(middle);
        match at {
            0 => line.push_str(middle),
            _ => line.push_str(&" ".repeat(middle_width)),
        }
        if let Some((port, name)) = right.get(at) {
            line.push_str(match (at, right.len()) {
                (0, 1) => " ──",
                (0, _) => " ─┬",
                (at, count) if at + 1 < count => "  ├",
                _ => "  └",
            });
            line.push_str(&arrow(port, right));
            line.push_str(name);
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// The arrow to a consumer, with the name of the port. All arrows of a block have the same length.
fn arrow(port: &str, right: &[(String, String)]) -> String {
    let most = right.iter().map(|(port, _)| width(port)).max().unwrap_or(0);
    match (most, port) {
        (0, _) => "─▶ ".to_owned(),
        (_, "") => format!("{}▶ ", "─".repeat(most + 4)),
        _ => format!("─ {port} {}▶ ", "─".repeat(most - width(port) + 1)),
    }
}
