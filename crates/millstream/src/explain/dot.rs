//! The graph for Graphviz: `millstream explain --format dot | dot -Tsvg`.

use std::fmt::Write;

use super::{Explained, Kind, Port};

/// A directed graph.
pub fn render(explained: &Explained) -> String {
    let mut out = String::from("digraph millstream {\n  rankdir=LR;\n  node [fontname=sans];\n");
    for node in &explained.nodes {
        let shape = match node.kind {
            Kind::Source => "oval",
            Kind::Channel => "cylinder",
            Kind::Sink => "box",
            Kind::Processor => "parallelogram",
        };
        let _ = writeln!(
            out,
            "  \"{0}\" [shape={shape}, label=\"{0}\\n{1}\"];",
            node.name, node.type_
        );
    }
    for edge in &explained.edges {
        let rejected = edge.port == Port::Rejected;
        let port = match &edge.port {
            Port::Records => "",
            Port::Route(route) => route,
            Port::Rejected => "rejected",
        };
        let label = match (port, &edge.tags) {
            (port, None) => port.to_owned(),
            ("", Some(tags)) => tags.clone(),
            (port, Some(tags)) => format!("{port}: {tags}"),
        };
        let label = label.replace('\\', "\\\\").replace('"', "\\\"");
        let style = if rejected { ", style=dashed" } else { "" };
        let (from, to) = (
            &explained.nodes[edge.from].name,
            &explained.nodes[edge.to].name,
        );
        let _ = writeln!(out, "  \"{from}\" -> \"{to}\" [label=\"{label}\"{style}];");
    }
    out.push_str("}\n");
    out
}
