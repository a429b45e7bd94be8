//! Checks the graph: errors that make it unusable, and warnings about probable mistakes.

use std::sync::Arc;

use millstream_config::Problem;

use super::{
    Built, Entry, Exit, Inputs, Port, Taker, Takers,
    chains::{ChainLayout, Chained},
    is_channel, is_memory,
};
use crate::node::{Build, Placement};

/// Finds errors in the inputs of consumers and in their option `behind`.
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
                let help = "set `behind` on the sink that receives its records";
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
        if channels > 0 && feeds.len() > 1 {
            let message = format!(
                "`{}` takes from a disk channel and from another node",
                entry.name
            );
            let kind = match is_channel(entries, at) {
                true => "channel",
                false => "sink",
            };
            let help = format!(
                "a {kind} has one position: let it take from one channel that takes from all, or use two {kind}s"
            );
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

/// Finds sinks that cannot have several tasks.
pub fn check_tasks(
    entries: &[Entry],
    built: &[Option<Built>],
    takers: &Takers,
    inputs: &[Option<Inputs>],
    problems: &mut Vec<Problem>,
) {
    for (at, node) in built.iter().enumerate() {
        let (Some(Built::Sink(sink)), Some(own)) = (node, &inputs[at]) else {
            continue;
        };
        let Some(place) = &own.tasks_place else {
            continue;
        };
        let Entry {
            name, component, ..
        } = &entries[at];
        let reads = |((node, _), all): (&Port, &Vec<Taker>)| {
            let reads = is_channel(entries, *node) && all.iter().any(|taker| taker.node == at);
            reads.then_some(*node)
        };
        if let Some(channel) = takers.iter().find_map(reads) {
            let channel = &entries[channel].name;
            let message = format!(
                "`{name}` reads the channel `{channel}` with one task, which commits its position"
            );
            let help = "set `parallelism` on the processors in front of it: they have the work";
            problems.push(Problem::new(place, message).help(help));
        } else if sink.placement() == Placement::OwnThread {
            let message = format!("a sink of type `{}` has one task", component.name);
            let help = format!(
                "set `parallelism` on the processors in front of `{name}`, or use several sinks with `tags`"
            );
            problems.push(Problem::new(place, message).help(help));
        }
    }
}

/// The error about nodes that receive their own records again; it shows the path that the records take.
pub fn cycle(
    entries: &[Entry],
    built: &[Option<Built>],
    inputs: &[Option<Inputs>],
    takers: &Takers,
) -> Option<Problem> {
    let way = (0..entries.len()).find_map(|at| way(at, at, takers))?;
    let (start, _) = *way.first()?;
    let own = inputs[start].as_ref()?;
    let name = |(node, exit): &Port| {
        let name = &entries[*node].name;
        match (exit, &built[*node]) {
            (Exit::Rejected, _) => format!("`{name}.rejected`"),
            (Exit::Records(number), Some(Built::Processor(processor))) => {
                let ports = processor.ports();
                match ports.get(*number).filter(|port| !port.is_empty()) {
                    Some(port) => format!("`{name}.{port}`"),
                    None => format!("`{name}`"),
                }
            }
            _ => format!("`{name}`"),
        }
    };
    let names: Vec<_> = way.iter().map(name).collect();
    let first = &entries[start].name;
    let problem = match &way[..] {
        [(_, Exit::Rejected)] => Problem::new(
            &own.place,
            format!("records that `{first}` rejects come back to it"),
        )
        .help("take the rejected records with another sink"),
        _ => Problem::new(
            &own.place,
            format!(
                "records flow in a circle: {} -> `{first}`",
                names.join(" -> ")
            ),
        )
        .help("remove one of these nodes from the `inputs` of the next"),
    };
    Some(problem)
}

/// Finds consumers that would wait for each other at a stop. A consumer stays open while other nodes, or the processors in front of
/// another consumer, can reject records into it. A consumer does not wait for the processors in front of itself.
pub fn mutual(
    entries: &[Entry],
    inputs: &[Option<Inputs>],
    built: &[Option<Built>],
    chained: &Chained,
) -> Option<Problem> {
    let is_processor = |at: usize| matches!(built[at], Some(Built::Processor(_)));
    let reporter = |processor: usize| {
        let has_it = |chain: &ChainLayout| chain.nodes.contains(&processor);
        let mut chains = chained.chains.iter();
        chains.position(|chain| chain.as_ref().is_some_and(has_it))
    };
    let mut waits = Takers::new();
    for ((node, exit), takers) in &chained.takers {
        let from = match is_processor(*node) {
            true => reporter(*node),
            false => inputs[*node].is_some().then_some(*node),
        };
        let Some(from) = from else { continue };
        let others = takers.iter().filter(|taker| taker.node != from);
        waits
            .entry((from, *exit))
            .or_default()
            .extend(others.cloned());
    }
    let way = (0..entries.len()).find_map(|at| way(at, at, &waits))?;
    let (start, _) = *way.first()?;
    let names: Vec<_> = way
        .iter()
        .map(|(node, _)| format!("`{}`", entries[*node].name))
        .collect();
    let message = format!(
        "rejected records flow in a circle: {} -> {}",
        names.join(" -> "),
        names[0]
    );
    let help = "take the rejected records with another sink";
    Some(Problem::new(&inputs[start].as_ref()?.place, message).help(help))
}

/// Returns the ports through which records of `from` reach `to`; `None` if they do not.
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

/// Finds outputs that no node takes. For a source this is an error, because it would acknowledge records and drop them. For a durable
/// channel, which keeps its records, and for a processor, which filters them, it is only a warning. `ends` has the consumers of each
/// endpoint (source, channel or sink).
pub fn unused(
    entries: &[Entry],
    built: &[Option<Built>],
    takers: &Takers,
    ends: &Takers,
) -> Vec<Problem> {
    let is_sink = |entry: &Entry| matches!(entry.component.build, Build::Sink(_));
    if !entries.iter().any(is_sink) {
        // Without any sink the configuration is incomplete. That is one error, not one for each source.
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

/// Finds processors that run in front of several consumers. The result is a note that explains how the processor could run once. If the
/// processor is not repeatable (the same input can give different output), the result is a warning instead, because the consumers can get
/// different records.
pub fn repeated(
    entries: &[Entry],
    built: &[Option<Built>],
    takers: &Takers,
    chained: &Chained,
) -> Vec<Problem> {
    let found = |(at, entry): (usize, &Entry)| {
        let Some(Built::Processor(processor)) = &built[at] else {
            return None;
        };
        let has_it = |chain: &Option<ChainLayout>| {
            let chain = chain.as_ref();
            chain.is_some_and(|chain| chain.nodes.contains(&at))
        };
        let consumers = entries.iter().zip(&chained.chains);
        let consumers = consumers.filter(|(_, chain)| has_it(chain));
        let names: Vec<_> = consumers.map(|(to, _)| format!("`{}`", to.name)).collect();
        if names.len() < 2 {
            return None;
        }
        let (name, place, all) = (&entry.name, &entry.place, names.join(", "));
        let behind = format!("put a disk channel behind `{name}`, and let them take from that");
        if let Err(why) = processor.repeatable() {
            let message = format!(
                "`{name}` runs in front of each of {all}, and they can get different records: {why}"
            );
            return Some(Problem::warning(place, message).help(behind));
        }
        let times = names.len();
        let message = format!("`{name}` runs {times} times: in front of each of {all}");
        let channel = channels_before(at, entries, takers);
        let help = match channel.first() {
            // A channel has one output, so it would join the ports again.
            _ if processor.ports().len() > 1 => format!(
                "to choose records once, let a processor `fields` set a `tag` in front of a disk channel, and choose by `tags` \
                 behind it instead of by the ports of `{name}`"
            ),
            None => format!("to run it once, {behind}"),
            Some(channel) => {
                let channel = &entries[*channel].name;
                format!("to run it once, put it in front of `{channel}`; or {behind}")
            }
        };
        Some(Problem::note(place, message).help(help))
    };
    entries.iter().enumerate().filter_map(found).collect()
}

/// Returns the durable channels whose records reach a processor directly or through other processors.
fn channels_before(processor: usize, entries: &[Entry], takers: &Takers) -> Vec<usize> {
    let (mut open, mut seen, mut found) = (vec![processor], vec![], Vec::new());
    while let Some(at) = open.pop() {
        for ((from, exit), all) in takers {
            let leads_here = all.iter().any(|taker| taker.node == at);
            if !leads_here || exit.is_rejected() || seen.contains(from) {
                continue;
            }
            seen.push(*from);
            match entries[*from].component.build {
                Build::Channel(_) => found.push(*from),
                Build::Processor(_) => open.push(*from),
                Build::Source(_) | Build::Sink(_) => {}
            }
        }
    }
    found.sort_unstable();
    found
}

/// The warning about those ports of a processor that no node takes.
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
