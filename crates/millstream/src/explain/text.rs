//! Prints the graph and its delivery guarantees as text that an operator understands at three in the morning.

use std::{fmt::Write, time::Duration};

use millstream_config::WhenRejectedFull;
use millstream_pipeline::promise::{Guarantee, Promise};

use super::{Explained, Kind, Port, Source, drawing, model::Processor};
use crate::page::{bytes, columns, count, list, paragraph, period};

/// The whole page.
pub fn render(explained: &Explained) -> String {
    let of = |kind| explained.nodes.iter().filter(|n| n.kind == kind).count();
    let with_processors = match of(Kind::Processor) {
        0 => String::new(),
        some => format!(", {}", count(some, "processor")),
    };
    let title = format!(
        "{}{with_processors}, {}, {}; {}, {} of memory at most",
        count(of(Kind::Source), "source"),
        count(of(Kind::Channel), "disk channel"),
        count(of(Kind::Sink), "sink"),
        count(explained.threads, "data thread"),
        bytes(explained.memory_max as u64),
    );
    let directory = explained.data_dir.display().to_string();
    let mut out = paragraph("", &title) + &paragraph("everything durable in ", &directory);
    let mut section = |title: &str, body: String| {
        if !body.is_empty() {
            let _ = write!(out, "\n{title}\n\n{body}");
        }
    };
    section("THE GRAPH, FROM TOP TO BOTTOM", drawing::render(explained));
    section("PROCESSORS", processors(explained));
    section("WHAT IS PROMISED", promises(explained));
    section("WHY, AND ON WHICH CONDITIONS", conditions(explained));
    section("WHEN A SENDER GETS ITS ANSWER", answers(explained));
    section("IF A SINK CANNOT WRITE", stops(explained));
    section("RECORDS THAT ARE REJECTED", rejected(explained));
    section("WHAT IS DROPPED", dropped(explained));
    out
}

/// Where each processor runs, and how to make it run only once.
fn processors(explained: &Explained) -> String {
    let mut rows = Vec::new();
    for processor in &explained.processors {
        let node = &explained.nodes[processor.node];
        let inputs = explained.edges.iter();
        let inputs = inputs.filter(|edge| edge.to == processor.node);
        let mut names: Vec<String> = inputs.map(|edge| explained.port_name(edge)).collect();
        names.dedup();
        let consumers = &processor.consumers;
        let mut text = format!(
            "takes {}; ",
            list(&names.iter().map(|name| &**name).collect::<Vec<_>>())
        );
        text += &match consumers.len() {
            0 => "leads to no channel and no sink: it never runs".to_owned(),
            1 => format!("runs in front of {}", explained.names(consumers)[0]),
            times => {
                let names = list(&explained.names(consumers));
                let once = once(explained, processor);
                format!("runs {times} times: in front of each of {names}. {once}")
            }
        };
        if let Some(tasks) = &processor.tasks {
            let _ = write!(text, "; {tasks}");
        }
        if let Some(why) = &processor.not_repeatable {
            let names = list(&explained.names(consumers));
            let effect = match consumers.len() {
                0 => String::new(),
                1 => format!(". So {names} can get other records after a failure than before"),
                _ => format!(". So {names} can get different records"),
            };
            let _ = write!(text, ". It is not repeatable: {why}{effect}");
        }
        rows.push(vec![format!("{} ({})", node.name, node.type_), text]);
    }
    columns(2, &rows, &[])
}

/// Advice for a processor that runs in front of several consumers: how to change the configuration so that it runs only
/// once.
fn once(explained: &Explained, processor: &Processor) -> String {
    if processor.ports.len() > 1 {
        return "To choose records once, let `fields` set a `tag` in front of a disk channel, and choose by `tags` behind it"
            .to_owned();
    }
    match explained.channel_before(processor.node) {
        None => "With a disk channel behind it, it would run once".to_owned(),
        Some(channel) => {
            let name = &explained.nodes[channel].name;
            format!("In front of {name}, or with a disk channel behind it, it would run once")
        }
    }
}

/// One line for every path.
fn promises(explained: &Explained) -> String {
    let rows = explained.paths.iter().map(|path| {
        let way = explained.names(&path.nodes).join(" ─▶ ");
        vec![way, path.guarantee.to_string(), limit(explained, path)]
    });
    columns(2, &rows.collect::<Vec<_>>(), &[])
}

/// The nodes that make the guarantee of a path weaker than exactly once. Empty if the guarantee is exactly once.
fn limit(explained: &Explained, path: &super::Path) -> String {
    if path.guarantee == Guarantee::ExactlyOnce {
        return String::new();
    }
    let at_entry = explained
        .sources
        .iter()
        .find(|source| Some(&source.node) == path.nodes.first())
        .map(|source| (source.node, source.promise.guarantee));
    let kept = explained.keeps.iter();
    let kept = kept.filter(|keeps| path.nodes.contains(&keeps.node));
    let kept = kept.map(|keeps| (keeps.node, keeps.promise.guarantee));
    let exit = path.nodes.last().map(|sink| (*sink, path.exit.guarantee));
    let weakest: Vec<usize> = (at_entry.into_iter().chain(kept).chain(exit))
        .filter(|(_, guarantee)| *guarantee == path.guarantee)
        .map(|(node, _)| node)
        .collect();
    format!("limited by {}", list(&explained.names(&weakest)))
}

/// The promise of every node, with its conditions.
fn conditions(explained: &Explained) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut add = |node: usize, promise: &Promise| {
        let name = explained.nodes[node].name.clone();
        let guarantee = promise.guarantee.to_string();
        let row = vec![name, guarantee, promise.condition.clone()];
        if !rows.contains(&row) {
            rows.push(row);
        }
    };
    for source in &explained.sources {
        add(source.node, &source.promise);
    }
    for keeps in &explained.keeps {
        add(keeps.node, &keeps.promise);
    }
    for path in &explained.paths {
        if let Some(sink) = path.nodes.last() {
            add(*sink, &path.exit);
        }
    }
    columns(2, &rows, &[])
}

/// When each source answers its peers.
fn answers(explained: &Explained) -> String {
    let rows = explained.sources.iter().map(|source| {
        let name = explained.nodes[source.node].name.clone();
        vec![name, answer(explained, source)]
    });
    columns(2, &rows.collect::<Vec<_>>(), &[])
}

/// When a source answers its peers.
pub fn answer(explained: &Explained, source: &Source) -> String {
    let (kept, settled) = (
        list(&explained.names(&source.kept_by)),
        list(&explained.names(&source.settled_by)),
    );
    if settled.is_empty() && kept.is_empty() {
        return "at once: no node takes its records".to_owned();
    }
    if settled.is_empty() {
        return format!("as soon as {kept} has kept the batch, without waiting for a sink");
    }
    let sinks = source.settled_by.iter();
    let times: Option<Vec<Duration>> = sinks
        .map(|sink| explained.nodes[*sink].settles_within)
        .collect();
    let time = match times.and_then(|times| times.into_iter().max()) {
        Some(time) => format!(
            "{} at most while it can write; while it cannot, the sender waits",
            period(time)
        ),
        None => "no bound is known: the next system decides".to_owned(),
    };
    let and_kept = match kept.is_empty() {
        true => String::new(),
        false => format!(" and {kept} has kept it"),
    };
    format!("when {settled} has settled the batch{and_kept}: {time}")
}

/// For each sink, the effect on other nodes while the sink cannot write.
fn stops(explained: &Explained) -> String {
    let sinks = explained.nodes.iter().enumerate();
    let sinks = sinks.filter(|(_, node)| node.kind == Kind::Sink);
    let rows = sinks.map(|(at, node)| {
        let feeders = explained.feeders(at);
        let channel = feeders
            .iter()
            .find(|from| explained.nodes[**from].kind == Kind::Channel);
        let text = match channel {
            Some(channel) => behind_channel(explained, at, *channel),
            None if feeders.is_empty() => "it takes rejected records only".to_owned(),
            None => {
                let names = list(&explained.names(&feeders));
                let (wait, them) = match feeders.len() {
                    1 => ("waits", "it"),
                    _ => ("wait", "them"),
                };
                format!(
                    "{names} {wait}, and all nodes behind {them} get no records. Nothing accepted is lost"
                )
            }
        };
        vec![node.name.clone(), text]
    });
    columns(2, &rows.collect::<Vec<_>>(), &[])
}

fn behind_channel(explained: &Explained, sink: usize, channel: usize) -> String {
    let name = &explained.nodes[channel].name;
    let feeders = explained.feeders(channel);
    let wait = if feeders.len() == 1 { "waits" } else { "wait" };
    let feeders = list(&explained.names(&feeders));
    let mut others = explained.consumers(channel);
    others.retain(|other| *other != sink);
    let others = match others.len() {
        0 => String::new(),
        n => {
            let work = if n == 1 { "works" } else { "work" };
            let names = list(&explained.names(&others));
            format!(" Until then, {names} still {work}")
        }
    };
    format!("{name} keeps new records. When {name} is full, {feeders} {wait}.{others}")
}

/// The input that each source drops on purpose.
fn dropped(explained: &Explained) -> String {
    let rows = explained.sources.iter().flat_map(|source| {
        let name = &explained.nodes[source.node].name;
        let row = move |what: &&str| vec![name.clone(), (*what).to_owned()];
        source.drops.iter().map(row)
    });
    columns(2, &rows.collect::<Vec<_>>(), &[])
}

/// Where rejected records go.
fn rejected(explained: &Explained) -> String {
    let mut rows = Vec::new();
    for (at, node) in explained.nodes.iter().enumerate() {
        let edges = explained.edges.iter();
        let to: Vec<_> = edges
            .filter(|edge| edge.from == at && edge.port == Port::Rejected)
            .map(|edge| edge.to)
            .collect();
        if !to.is_empty() {
            rows.push(vec![
                format!("{}.rejected", node.name),
                format!("to {}", list(&explained.names(&to))),
            ]);
        }
    }
    let is_open = |node: &&super::Node| node.kind != Kind::Channel && !node.rejects_taken;
    if explained.nodes.iter().any(|node| is_open(&node)) {
        let files = explained.data_dir.join("rejected/NAME.*");
        let limit = explained.rejected.node_max;
        let full = match explained.rejected.full {
            WhenRejectedFull::Wait => "the path waits",
            WhenRejectedFull::DropOldest => "the oldest are removed",
        };
        let name = match rows.is_empty() {
            true => "of every node",
            false => "of the others",
        };
        let text = format!(
            "kept in {}, up to {limit} of each; full: {full}",
            files.display()
        );
        rows.push(vec![name.to_owned(), text]);
    }
    columns(2, &rows, &[])
}
