//! Checks the graph: errors that make it unusable, and warnings about probable mistakes.

use std::sync::Arc;

use millstream_config::Problem;

use super::{Built, Entry, Exit, Inputs, Port, Takers, is_channel, is_memory};
use crate::node::Build;

/// Finds errors.
pub fn check_graph(
    entries: &[Entry],
    takers: &Takers,
    inputs: &[Option<Inputs>],
    problems: &mut Vec<Problem>,
) {
    for (at, entry) in entries.iter().enumerate() {
        let Some(own) = &inputs[at] else { continue };
        if matches!(entry.component.build, Build::Processor(_)) {
            if let Some((_, place)) = &own.behind {
                let message = format!("`{}` is a processor and has no position", entry.name);
                let help = "give `behind` to the sink behind it";
                problems.push(Problem::new(place, message).help(help));
            }
            continue;
        }
        let feeds: Vec<usize> = (takers.iter())
            .filter(|(_, all)| all.iter().any(|taker| taker.node == at))
            .map(|((node, _), _)| *node)
            .collect();
        let channels = feeds
            .iter()
            .filter(|node| is_channel(entries, **node))
            .count();
        if channels > 0 && is_channel(entries, at) {
            let message = format!(
                "`{}` is a channel and cannot take from another channel",
                entry.name
            );
            problems.push(
                Problem::new(&own.place, message).help("let it take from the sources themselves"),
            );
        } else if channels > 0 && feeds.len() > 1 {
            let message = format!(
                "`{}` takes from a disk channel and from another node",
                entry.name
            );
            let help = "a sink has one position: let it take from one channel that takes from all, or use two sinks";
            problems.push(Problem::new(&own.place, message).help(help));
        }
        if let Some((_, place)) = own.behind.as_ref().filter(|_| channels == 0) {
            let message = format!("`{}` does not read a durable channel", entry.name);
            problems.push(Problem::new(place, message).help(
                "`behind` is how far a sink may be behind a disk channel; leave it out here",
            ));
        }
    }
}

/// The error for nodes whose records come back to them, with the way that they take.
pub fn cycle(entries: &[Entry], inputs: &[Option<Inputs>], takers: &Takers) -> Option<Problem> {
    let way = (0..entries.len()).find_map(|at| way(at, at, takers))?;
    let (start, _) = *way.first()?;
    let own = inputs[start].as_ref()?;
    let name = |(node, exit): &Port| match exit.is_rejected() {
        true => format!("`{}.rejected`", entries[*node].name),
        false => format!("`{}`", entries[*node].name),
    };
    let names: Vec<_> = way.iter().map(name).collect();
    let first = &entries[start].name;
    let problem = match &way[..] {
        [(_, Exit::Rejected)] => Problem::new(
            &own.place,
            format!("what `{first}` rejects comes back to it"),
        )
        .help("take the rejected records with another sink"),
        _ => Problem::new(
            &own.place,
            format!(
                "records go round in a circle: {} -> `{first}`",
                names.join(" -> ")
            ),
        )
        .help("remove one of these nodes from the `inputs` of the next"),
    };
    Some(problem)
}

/// The ports by which records of `from` reach `to`.
fn way(from: usize, to: usize, takers: &Takers) -> Option<Vec<Port>> {
    let mut ports: Vec<_> = takers.keys().copied().collect();
    ports.sort_unstable();
    let (mut open, mut seen) = (vec![(from, Vec::new())], vec![]);
    while let Some((at, way)) = open.pop() {
        for port in ports.iter().filter(|(node, _)| *node == at) {
            let way: Vec<_> = way.iter().copied().chain([*port]).collect();
            for taker in &takers[port] {
                if taker.node == to {
                    return Some(way);
                }
                if !seen.contains(&taker.node) {
                    seen.push(taker.node);
                    open.push((taker.node, way.clone()));
                }
            }
        }
    }
    None
}

/// Finds the outputs that no node takes: an error for a source, which would acknowledge records and drop them; a warning
/// for a durable channel, which keeps them, and for a processor, which filters them. `ends` has the consumers of each endpoint.
pub fn unused(
    entries: &[Entry],
    built: &[Option<Built>],
    takers: &Takers,
    ends: &Takers,
) -> Vec<Problem> {
    let is_sink = |entry: &Entry| matches!(entry.component.build, Build::Sink(_));
    if !entries.iter().any(is_sink) {
        // Without any sink the configuration is incomplete: one error, not one for each source.
        return Vec::new();
    }
    let unused = |(at, entry): (usize, &Entry)| {
        if let Some(Built::Processor(processor)) = &built[at] {
            return unused_ports(at, entry, &processor.ports(), takers);
        }
        let is_taken = ends
            .get(&(at, Exit::MAIN))
            .is_some_and(|all| !all.is_empty());
        if is_taken || is_memory(built, at) {
            return None;
        }
        let name = &entry.name;
        let place = &entry.place;
        match entry.component.build {
            Build::Source(_) => {
                let message = format!(
                    "nothing takes the records of `{name}`: it would acknowledge and drop them"
                );
                let help = format!(
                    "add a sink with `inputs: [{name}]`; a sink of `type: discard` drops them on purpose"
                );
                Some(Problem::new(place, message).help(help))
            }
            Build::Channel(_) => {
                let message = format!("nothing reads `{name}`: it fills up and then blocks");
                Some(Problem::warning(place, message))
            }
            Build::Processor(_) | Build::Sink(_) => None,
        }
    };
    entries.iter().enumerate().filter_map(unused).collect()
}

/// The warning about ports of a processor that no node takes.
fn unused_ports(at: usize, entry: &Entry, ports: &[Arc<str>], takers: &Takers) -> Option<Problem> {
    let is_taken = |number: &usize| takers.contains_key(&(at, Exit::Records(*number)));
    let name = |number: usize| match &*ports[number] {
        "" => format!("`{}`", entry.name),
        port => format!("`{}.{port}`", entry.name),
    };
    let unused = (0..ports.len()).filter(|number| !is_taken(number));
    let unused: Vec<_> = unused.map(name).collect();
    if unused.is_empty() {
        return None;
    }
    let message = format!(
        "nothing takes {}: its records are filtered",
        unused.join(" and ")
    );
    Some(Problem::warning(&entry.place, message))
}
