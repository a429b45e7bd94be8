//! Builds the plan from the checked graph: names become indexes.

use super::{Built, Entry, Port, Takers, is_channel, is_memory};
use crate::{
    channel::{Behind, Consumer},
    node::Build,
    plan::{ChannelPlan, Input, Plan, Route, RunSettings, SinkPlan, SourcePlan, Target},
};

/// Builds the plan. `queues` has the bytes of the memory queue in front of each entry, `behinds` the limit of how far each may
/// be behind its channel.
pub fn assemble(
    entries: &[Entry],
    built: Vec<Option<Built>>,
    takers: &Takers,
    queues: &[usize],
    behinds: &[Option<Behind>],
    settings: RunSettings,
) -> Plan {
    let wires = Wires::new(entries, &built, takers);
    let wired: Vec<_> = (0..entries.len())
        .map(|at| {
            (
                wires.input(at, queues[at]),
                wires.routes((at, false)),
                wires.routes((at, true)),
            )
        })
        .collect();
    let mut plan = Plan {
        sources: Vec::new(),
        channels: Vec::new(),
        sinks: Vec::new(),
        settings,
    };
    for (at, (node, (input, routes, rejects))) in built.into_iter().zip(wired).enumerate() {
        let (name, kind) = (entries[at].name.clone(), entries[at].component.name);
        match node {
            Some(Built::Source(source)) => plan.sources.push(SourcePlan {
                name,
                kind,
                source,
                routes,
                rejects,
            }),
            Some(Built::Channel(config)) if config.memory_bytes().is_none() => {
                let readers = takers.get(&(at, false)).into_iter().flatten();
                let consumers = readers
                    .map(|(taker, tags)| Consumer {
                        name: entries[*taker].name.clone(),
                        behind: behinds[*taker].unwrap_or_default(),
                        tags: tags.clone(),
                    })
                    .collect();
                plan.channels.push(ChannelPlan {
                    name,
                    kind,
                    config,
                    consumers,
                });
            }
            Some(Built::Sink(sink)) => plan.sinks.push(SinkPlan {
                name,
                kind,
                sink,
                input,
                rejects,
            }),
            _ => {}
        }
    }
    plan
}

struct Wires<'a> {
    entries: &'a [Entry],
    takers: &'a Takers,
    /// The index of each consumer in its list of the plan.
    targets: Vec<Target>,
}

impl<'a> Wires<'a> {
    fn new(entries: &'a [Entry], built: &[Option<Built>], takers: &'a Takers) -> Self {
        let (mut channels, mut sinks) = (0, 0);
        let target = |(at, entry): (usize, &Entry)| {
            let (count, target): (_, fn(usize) -> Target) = match entry.component.build {
                Build::Channel(_) => (&mut channels, Target::Channel),
                _ => (&mut sinks, Target::Sink),
            };
            let found = target(*count);
            let is_listed =
                !matches!(entry.component.build, Build::Source(_)) && !is_memory(built, at);
            *count += usize::from(is_listed);
            found
        };
        let targets = entries.iter().enumerate().map(target).collect();
        Self {
            entries,
            takers,
            targets,
        }
    }

    /// The consumers of a port.
    fn routes(&self, port: Port) -> Vec<Route> {
        let all = self.takers.get(&port).into_iter().flatten();
        all.map(|(taker, tags)| Route {
            to: self.targets[*taker],
            tags: tags.clone(),
        })
        .collect()
    }

    /// The input of a sink.
    fn input(&self, sink: usize, queue_bytes: usize) -> Input {
        let behind = self.takers.iter().find_map(|((node, _), all)| {
            let (_, tags) = all
                .iter()
                .find(|(taker, _)| *taker == sink && is_channel(self.entries, *node))?;
            let Target::Channel(channel) = self.targets[*node] else {
                return None;
            };
            Some(Input::Channel {
                channel,
                tags: tags.clone(),
            })
        });
        behind.unwrap_or(Input::Memory { queue_bytes })
    }
}
