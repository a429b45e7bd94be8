//! The graph for Mermaid, which GitHub, GitLab and many wikis draw.

use std::fmt::Write;

use super::{Explained, Kind, Port};

/// A flow chart.
pub fn render(explained: &Explained) -> String {
    let mut out = String::from("flowchart LR\n");
    for (at, node) in explained.nodes.iter().enumerate() {
        let (open, close) = match node.kind {
            Kind::Source => ("([", "])"),
            Kind::Channel => ("[(", ")]"),
            Kind::Sink => ("[", "]"),
            Kind::Processor => ("[/", "/]"),
        };
        // The id is `n` and a number, because a node's name may be a keyword of Mermaid, such as `end`. Names need no escape, because they
        // consist of letters, digits, `_` and `-`.
        let _ = writeln!(
            out,
            "  n{at}{open}\"{}<br>{}\"{close}",
            node.name, node.type_
        );
    }
    for edge in &explained.edges {
        let tags = edge.tags.as_deref().map(escape);
        let arrow = match (&edge.port, tags) {
            (Port::Records, None) => "-->".to_owned(),
            (Port::Records, Some(tags)) => format!("-->|\"{tags}\"|"),
            (Port::Route(route), None) => format!("-->|{route}|"),
            (Port::Route(route), Some(tags)) => format!("-->|\"{route}: {tags}\"|"),
            (Port::Rejected, None) => "-.->|rejected|".to_owned(),
            (Port::Rejected, Some(tags)) => format!("-.->|\"rejected: {tags}\"|"),
        };
        let _ = writeln!(out, "  n{} {arrow} n{}", edge.from, edge.to);
    }
    out
}

/// Escapes tags, which may contain any character.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace('<', "&lt;")
        .replace('*', "&ast;")
}
