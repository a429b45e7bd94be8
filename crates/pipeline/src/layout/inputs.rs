//! Resolves `inputs`: from names and globs to ports.

use globset::{GlobBuilder, GlobMatcher};
use millstream_config::{Node, Period, Place, Problem, Size, names};
use serde::Deserialize;

use super::{Built, Entry, Exit, Inputs, Port, Taker, Takers};
use crate::{
    channel::{Behind, Then},
    node::Build,
    partition::Tasks,
    tags::TagFilter,
};

/// The option `behind` as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct BehindOption {
    size: Size,
    age: Period,
    then: Then,
}

/// Removes `behind` from the options of a consumer and reads it.
fn take_behind(options: &mut Node, problems: &mut Vec<Problem>) -> Option<(Behind, Place)> {
    let (key, node) = options.take("behind")?;
    match node.read::<BehindOption>() {
        Ok(BehindOption { size, age, then }) => {
            let behind = Behind {
                size: size.as_bytes(),
                age: age.as_duration(),
                then,
            };
            Some((behind, key.place))
        }
        Err(found) => {
            problems.extend(found);
            None
        }
    }
}

/// Removes `inputs`, `tags`, `behind`, `parallelism` and `partition` from the options of a consumer and reads them.
pub fn take_inputs(
    entry: &Entry,
    options: &mut Node,
    problems: &mut Vec<Problem>,
) -> Option<Inputs> {
    let tags = options
        .take("tags")
        .and_then(|(key, node)| match texts(&node) {
            Some(patterns) => TagFilter::new(patterns.iter().map(|(pattern, _)| pattern.as_str()))
                .map_err(|message| problems.push(Problem::new(&node.place, message)))
                .ok(),
            None => {
                problems.push(Problem::new(
                    &key.place,
                    "`tags` wants a tag pattern or a list of them",
                ));
                None
            }
        });
    let behind = match entry.component.build {
        // A message about an unknown option suggests the options that were passed to `take`, set or not. `behind` must not be suggested
        // for a processor, so it is taken from a processor only if it is set.
        Build::Processor(_) if options.entry("behind").is_none() => None,
        _ => take_behind(options, problems),
    };
    let (tasks, tasks_place) = match entry.component.build {
        Build::Processor(_) | Build::Sink(_) => Tasks::take(options, problems),
        Build::Source(_) | Build::Channel(_) => Default::default(),
    };
    let Some((key, node)) = options.take("inputs") else {
        let message = format!("`{}` has no `inputs`", entry.name);
        problems.push(
            Problem::new(&entry.place, message)
                .help("name the nodes it takes from, such as `inputs: [web]`"),
        );
        return None;
    };
    let Some(patterns) = texts(&node).filter(|patterns| !patterns.is_empty()) else {
        problems.push(Problem::new(
            &node.place,
            "`inputs` wants the names of nodes, such as `inputs: [web]`",
        ));
        return None;
    };
    Some(Inputs {
        patterns,
        tags,
        behind,
        tasks,
        tasks_place,
        place: key.place,
    })
}

/// One string or a list of strings, with their places.
fn texts(node: &Node) -> Option<Vec<(String, Place)>> {
    let text = |node: &Node| {
        node.as_text()
            .map(|text| (text.to_owned(), node.place.clone()))
    };
    match node.as_list() {
        Some(list) => list.iter().map(text).collect(),
        None => text(node).map(|one| vec![one]),
    }
}

/// Finds the ports that are named in the `inputs` of each consumer. For `left_out` see [`super::lay_out`].
pub fn resolve(
    entries: &[Entry],
    built: &[Option<Built>],
    inputs: &[Option<Inputs>],
    left_out: &[String],
    problems: &mut Vec<Problem>,
) -> Takers {
    let names: Vec<(String, Port)> = (entries.iter().zip(built).enumerate())
        .flat_map(|(at, (entry, built))| ports(at, entry, built.as_ref()))
        .collect();
    // The ports of a processor with errors are unknown.
    let wrong = entries
        .iter()
        .zip(built)
        .filter(|(_, built)| built.is_none());
    let wrong = wrong.map(|(entry, _)| entry.name.to_string());
    let left_out: Vec<_> = left_out.iter().cloned().chain(wrong).collect();
    // A glob does not match the port `NAME.rejected` of a node that itself takes rejected records, because such nodes could form a cycle.
    let takes_rejects = |at: usize| {
        let patterns = inputs[at].iter().flat_map(|inputs| &inputs.patterns);
        patterns
            .into_iter()
            .any(|(pattern, _)| pattern.ends_with(".rejected"))
    };
    let mut takers = Takers::new();
    for (consumer, inputs) in inputs.iter().enumerate() {
        let Some(inputs) = inputs else { continue };
        for (pattern, place) in &inputs.patterns {
            let mut found: Vec<Port> = match matcher(pattern) {
                Some(glob) => (names.iter())
                    .filter(|(name, port)| glob.is_match(exchange(name)) && port.0 != consumer)
                    .filter(|(_, (node, exit))| !(exit.is_rejected() && takes_rejects(*node)))
                    .map(|(_, port)| *port)
                    .collect(),
                None => names
                    .iter()
                    .filter(|(name, _)| name == pattern)
                    .map(|(_, port)| *port)
                    .collect(),
            };
            if found.is_empty() && !names_any(pattern, &left_out) {
                problems.push(nothing_named(pattern, place, entries, &names));
            }
            found.retain(|port| {
                !takers
                    .get(port)
                    .is_some_and(|all| all.iter().any(|taker| taker.node == consumer))
            });
            for port in found {
                takers.entry(port).or_default().push(Taker {
                    node: consumer,
                    tags: inputs.tags.clone(),
                    entry: 0,
                });
            }
        }
    }
    takers
}

/// The names of the ports of a node.
fn ports(at: usize, entry: &Entry, built: Option<&Built>) -> Vec<(String, Port)> {
    let named = |name: &str| match name {
        "" => entry.name.to_string(),
        port => format!("{}.{port}", entry.name),
    };
    let records = match (entry.component.build, built) {
        (Build::Sink(_), _) => Vec::new(),
        (_, Some(Built::Processor(processor))) => processor.ports(),
        _ => vec!["".into()],
    };
    let records = records.iter().enumerate();
    let mut ports: Vec<_> = records
        .map(|(number, name)| (named(name), (at, Exit::Records(number))))
        .collect();
    if !matches!(entry.component.build, Build::Channel(_)) {
        ports.push((named("rejected"), (at, Exit::Rejected)));
    }
    ports
}

/// Whether a pattern of `inputs` names one of these nodes, or a port of one.
fn names_any(pattern: &str, nodes: &[String]) -> bool {
    let glob = matcher(pattern);
    nodes.iter().any(|node| {
        let ports = [node.clone(), format!("{node}.rejected")];
        let is_port = |text: &str| {
            text.strip_prefix(node.as_str())
                .is_some_and(|rest| rest.starts_with('.'))
        };
        is_port(pattern)
            || ports.iter().any(|port| match &glob {
                Some(glob) => glob.is_match(exchange(port)),
                None => port == pattern,
            })
    })
}

fn nothing_named(
    pattern: &str,
    place: &Place,
    entries: &[Entry],
    names: &[(String, Port)],
) -> Problem {
    if let Some(at) = entries.iter().position(|entry| &*entry.name == pattern) {
        let found = &entries[at];
        if matches!(found.component.build, Build::Sink(_)) {
            let message =
                format!("`{pattern}` is a sink: nothing comes out of it but `{pattern}.rejected`");
            return Problem::new(place, message).also(&found.place, "the sink is here");
        }
        // A processor such as `route`, which has only named ports.
        let ports = names.iter().filter(|(_, (node, _))| *node == at);
        let ports: Vec<_> = ports.map(|(name, _)| format!("`{name}`")).collect();
        let message = format!("`{pattern}` has several ports: name one of them");
        return Problem::new(place, message).help(format!("there are {}", ports.join(", ")));
    }
    let problem = Problem::new(place, format!("no node is called `{pattern}`"));
    match names::nearest(pattern, names.iter().map(|(name, _)| name.as_str())) {
        Some(nearest) => problem.help(format!("did you mean `{nearest}`?")),
        None => problem,
    }
}

/// A glob over names of ports; `None` for a plain name.
fn matcher(pattern: &str) -> Option<GlobMatcher> {
    if !pattern.contains(['*', '?', '{', '[']) {
        return None;
    }
    let glob = GlobBuilder::new(&exchange(pattern))
        .literal_separator(true)
        .build()
        .ok()?;
    Some(glob.compile_matcher())
}

/// Replaces dots by slashes, because the globs are made for paths: dots separate the parts of a port's name as slashes separate the parts
/// of a path.
fn exchange(name: &str) -> String {
    name.replace('.', "/")
}
