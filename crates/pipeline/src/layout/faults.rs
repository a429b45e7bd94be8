//! Checks the graph: errors that make it unusable, and warnings about probable mistakes.

use millstream_config::Problem;

use super::{Built, Entry, Inputs, Takers, is_channel, is_memory};
use crate::node::Build;

/// Finds errors.
pub fn check_graph(
    entries: &[Entry],
    built: &[Option<Built>],
    takers: &Takers,
    inputs: &[Option<Inputs>],
    problems: &mut Vec<Problem>,
) {
    for (at, entry) in entries.iter().enumerate() {
        let Some(own) = &inputs[at] else { continue };
        let feeds: Vec<usize> = (takers.iter())
            .filter(|(_, all)| all.iter().any(|(taker, _)| *taker == at))
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
        if built[at].is_some() && reaches(at, at, takers) {
            let message = format!("what `{}` rejects comes back to it", entry.name);
            problems.push(
                Problem::new(&own.place, message)
                    .help("take the rejected records with another sink"),
            );
        }
    }
}

/// Whether records that leave `from` can reach `to`.
fn reaches(from: usize, to: usize, takers: &Takers) -> bool {
    let (mut open, mut seen) = (vec![from], vec![]);
    while let Some(at) = open.pop() {
        for port in [(at, false), (at, true)] {
            for (taker, _) in takers.get(&port).into_iter().flatten() {
                if *taker == to {
                    return true;
                }
                if !seen.contains(taker) {
                    seen.push(*taker);
                    open.push(*taker);
                }
            }
        }
    }
    false
}

/// Finds the outputs that no node takes: an error for a source, which would acknowledge records and drop them; a warning
/// for a durable channel, which keeps them.
pub fn unused(entries: &[Entry], built: &[Option<Built>], takers: &Takers) -> Vec<Problem> {
    let is_sink = |entry: &Entry| matches!(entry.component.build, Build::Sink(_));
    if !entries.iter().any(is_sink) {
        // Without any sink the configuration is incomplete: one error, not one for each source.
        return Vec::new();
    }
    let unused = |(at, entry): (usize, &Entry)| {
        let is_taken = takers.get(&(at, false)).is_some_and(|all| !all.is_empty());
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
            Build::Sink(_) => None,
        }
    };
    entries.iter().enumerate().filter_map(unused).collect()
}
