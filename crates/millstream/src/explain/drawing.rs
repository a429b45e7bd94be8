//! The drawing of the graph in one piece: records flow down. Each node has a line, and lanes on the left lead from it to the nodes that
//! take its records. All edges to the same node share a lane.

use std::fmt::Write;

use super::{Edge, Explained, Kind, Port};
use crate::page::width;

/// The maximum number of inputs that the line of a node names.
const INPUTS_MAX: usize = 4;

/// Returns the lines of all nodes.
pub fn render(explained: &Explained) -> String {
    let mut lanes = Lanes::default();
    let mut rows: Vec<(String, String)> = Vec::new();
    for at in in_flow(explained) {
        let takers = taken(explained, at);
        if lanes.are_free() && !rows.is_empty() {
            rows.push(Default::default());
        }
        let line = lanes.enter(at);
        rows.push((line, label(explained, at)));
        let branches = lanes.leave(takers.iter().map(|edge| edge.to));
        if let Some(branches) = branches {
            rows.push((branches, String::new()));
        }
        for end in loose_ends(explained, at, &takers) {
            rows.push((lanes.shown(), end));
        }
    }
    let wide = rows.iter().map(|(lanes, _)| width(lanes)).max();
    let mut out = String::new();
    for (lanes, text) in rows {
        let gap = " ".repeat(wide.unwrap_or(0) - width(&lanes));
        let _ = writeln!(out, "{}", format!("  {lanes}{gap}  {text}").trim_end());
    }
    out
}

/// All nodes. Each comes after the nodes that it takes records from, and as close to them as possible.
fn in_flow(explained: &Explained) -> Vec<usize> {
    let all = 0..explained.nodes.len();
    let is_sink = |at: &usize| explained.nodes[*at].kind == Kind::Sink;
    let (sinks, others): (Vec<usize>, Vec<usize>) = all.partition(is_sink);
    let mut listed = Vec::new();
    for at in [sinks, others].concat() {
        list(explained, at, &mut listed);
    }
    listed
}

/// Lists a node behind the nodes that it takes records from. Without the edges for rejected records, the graph has no cycle.
fn list(explained: &Explained, node: usize, listed: &mut Vec<usize>) {
    if listed.contains(&node) {
        return;
    }
    let edges = explained.edges.iter();
    for edge in edges.filter(|edge| edge.to == node && edge.port != Port::Rejected) {
        list(explained, edge.from, listed);
    }
    listed.push(node);
}

/// The edges by which records leave a node, without the edges for rejected records, which have no lanes.
fn taken(explained: &Explained, node: usize) -> Vec<&Edge> {
    let edges = explained.edges.iter();
    let edges = edges.filter(|edge| edge.from == node && edge.port != Port::Rejected);
    edges.collect()
}

/// The name and the type of a node. Inputs follow that are not just all records of another node: routes, tags and rejected records.
fn label(explained: &Explained, node: usize) -> String {
    let edges = explained.edges.iter();
    let (rejected, records): (Vec<_>, Vec<_>) = edges
        .filter(|edge| edge.to == node)
        .partition(|edge| edge.port == Port::Rejected);
    let records = records.into_iter();
    let mut inputs: Vec<String> = records
        .filter(|edge| edge.port != Port::Records || edge.tags.is_some())
        .map(|edge| input(explained, edge))
        .collect();
    match &rejected[..] {
        [] => {}
        [one] => inputs.push(input(explained, one)),
        many => inputs.push(format!("rejected records of {} nodes", many.len())),
    }
    if inputs.len() > INPUTS_MAX {
        let more = inputs.split_off(INPUTS_MAX - 1).len();
        inputs.push(format!("{more} more"));
    }
    let its = &explained.nodes[node];
    let name = format!("{} ({})", its.name, its.type_);
    match inputs.is_empty() {
        true => name,
        false => format!("{name} ◀ {}", inputs.join("; ")),
    }
}

fn input(explained: &Explained, edge: &Edge) -> String {
    let port = explained.port_name(edge);
    match &edge.tags {
        None => port,
        Some(tags) => format!("{port}, tags {tags}"),
    }
}

/// The ports of a node whose records no node takes.
fn loose_ends(explained: &Explained, node: usize, takers: &[&Edge]) -> Vec<String> {
    let processor = explained.processors.iter().find(|it| it.node == node);
    let Some(processor) = processor else {
        let then = match (explained.nodes[node].kind, takers) {
            (Kind::Source, []) => "no node takes its records: counted and dropped",
            (Kind::Channel, []) => "no node reads it: it fills up, then its sources wait",
            _ => return Vec::new(),
        };
        return vec![then.to_owned()];
    };
    let is_taken = |port: &&String| {
        takers.iter().any(|edge| match &edge.port {
            Port::Records => port.is_empty(),
            Port::Route(route) => route == *port,
            Port::Rejected => false,
        })
    };
    let loose = processor.ports.iter().filter(|port| !is_taken(port));
    let text = |port: &String| match port.is_empty() {
        true => "no node takes its records: counted as filtered".to_owned(),
        false => format!(".{port}: no node takes it: counted as filtered"),
    };
    loose.map(text).collect()
}

/// The lanes beside the next line. Each leads to a node that stands below; `None`: the lane is free.
#[derive(Default)]
struct Lanes {
    all: Vec<Option<usize>>,
    /// The lane of the current node.
    own: usize,
}

impl Lanes {
    fn are_free(&self) -> bool {
        self.all.iter().all(Option::is_none)
    }

    fn find(&self, lane: Option<usize>) -> Option<usize> {
        self.all.iter().position(|it| *it == lane)
    }

    /// A free lane, to the right of the current node if possible.
    fn free(&mut self) -> usize {
        let right = self.all.iter().skip(self.own).position(Option::is_none);
        let free = right
            .map(|at| self.own + at)
            .or_else(|| self.find(None))
            .unwrap_or(self.all.len());
        if free == self.all.len() {
            self.all.push(None);
        }
        free
    }

    /// The line of a node, which ends the lane that leads to it.
    fn enter(&mut self, node: usize) -> String {
        self.own = 0;
        self.own = match self.find(Some(node)) {
            Some(lane) => lane,
            None => self.free(),
        };
        self.all[self.own] = Some(node);
        let lanes = self.all.iter().enumerate();
        let lanes = lanes.map(|(at, lane)| match lane {
            _ if at == self.own => '●',
            Some(_) => '│',
            None => ' ',
        });
        spaced(lanes)
    }

    /// The line below a node, with the lanes to the nodes that take its records. `None` if a single new lane leads straight on, or none.
    fn leave(&mut self, takers: impl Iterator<Item = usize>) -> Option<String> {
        let before = self.all.clone();
        self.all[self.own] = None;
        let mut joined = vec![self.own];
        for taker in takers {
            let lane = match self.find(Some(taker)) {
                Some(lane) => lane,
                None => self.free(),
            };
            self.all[lane] = Some(taker);
            joined.push(lane);
        }
        let line = match joined.iter().all(|lane| *lane == self.own) {
            true => None,
            false => Some(self.branches(&before, &joined)),
        };
        while self.all.last() == Some(&None) {
            self.all.pop();
        }
        line
    }

    /// A horizontal line through the lanes `joined`. It passes behind all other lanes.
    fn branches(&self, before: &[Option<usize>], joined: &[usize]) -> String {
        let first = joined.iter().min().copied().unwrap_or(self.own);
        let last = joined.iter().max().copied().unwrap_or(self.own);
        let mut out = String::new();
        for (at, lane) in self.all.iter().enumerate() {
            let is_joined = joined.contains(&at);
            let up = before.get(at).is_some_and(Option::is_some);
            let (left, right) = (at > first && at <= last, at >= first && at < last);
            out.push(match (is_joined, up, lane.is_some(), left, right) {
                (false, true, ..) => '│',
                (false, _, _, true, true) => '─',
                (false, ..) => ' ',
                (_, true, true, true, true) => '┼',
                (_, true, true, true, false) => '┤',
                (_, true, true, false, _) => '├',
                (_, true, false, true, true) => '┴',
                (_, true, false, true, false) => '┘',
                (_, true, false, false, _) => '└',
                (_, false, _, true, true) => '┬',
                (_, false, _, true, false) => '┐',
                (_, false, _, false, _) => '┌',
            });
            out.push(if right { '─' } else { ' ' });
        }
        out.truncate(out.trim_end().len());
        out
    }

    /// A line that no lane leaves or joins.
    fn shown(&self) -> String {
        let lanes = self.all.iter();
        spaced(lanes.map(|lane| if lane.is_some() { '│' } else { ' ' }))
    }
}

/// Characters with spaces between them.
fn spaced(lanes: impl Iterator<Item = char>) -> String {
    let lanes: Vec<String> = lanes.map(String::from).collect();
    lanes.join(" ")
}
