//! Compares the running plan with a new one: decides for each node what a reload must do with it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    channel::Behind,
    failure::Failure,
    node::Placement,
    partition::Tasks,
    plan::{ChannelInput, Input, Plan},
    tags::TagFilter,
};

/// The nodes of a plan by their names.
#[derive(Default)]
pub(crate) struct Known(BTreeMap<Arc<str>, Node>);

#[derive(PartialEq)]
struct Node {
    section: Section,
    options: Arc<str>,
    intake: Intake,
    /// Whether the node cannot be replaced while it runs.
    is_fixed: bool,
}

/// The kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    Source,
    Processor,
    Channel,
    /// A sink, or the pump of a channel.
    Sink,
}

/// How a node takes its records.
#[derive(Clone, PartialEq)]
enum Intake {
    /// From the outputs of other nodes.
    Ways,
    /// Only for a processor: its tasks.
    Tasks(Tasks),
    /// From a durable channel.
    Channel {
        name: Arc<str>,
        tags: Option<TagFilter>,
        behind: Behind,
    },
    /// From the memory channel in front of it.
    Memory {
        queue_bytes: usize,
        tasks: Tasks,
        placement: Placement,
        is_chain_in_front: bool,
    },
}

/// The action of a reload for a node of the new plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The node runs and stays as it is.
    Kept,
    /// The node runs, and gets other options.
    Replaced,
    /// The sink gets another input. Its new tasks start once the running ones have ended.
    Moved,
    /// The node does not run yet.
    New,
}

/// A sink that reads `channel` in the running plan, and does not read it in the new plan.
pub(crate) struct Leaver {
    pub(crate) sink: Arc<str>,
    pub(crate) channel: Arc<str>,
}

/// The difference between the running plan and a new one.
pub(crate) struct Difference {
    fates: BTreeMap<Arc<str>, Fate>,
    /// The nodes that are missing from the new plan.
    pub(crate) removed: Vec<(Arc<str>, Section)>,
    /// The sinks that stop reading a channel, although the channel stays in the plan.
    pub(crate) leavers: Vec<Leaver>,
    /// The running sinks of `leavers`, and those that will read the same channel again with other `tags` or another `behind`.
    pub(crate) stopped: Vec<Arc<str>>,
    /// The sources that the new plan replaces by other sources of the same name.
    replaced: Vec<Arc<str>>,
    /// The nodes of both plans whose options differ.
    changed: Vec<Arc<str>>,
}

impl Difference {
    pub(crate) fn fate(&self, name: &str) -> Fate {
        self.fates.get(name).copied().unwrap_or(Fate::New)
    }

    /// Whether the node is in the new plan.
    pub(crate) fn plans(&self, name: &str) -> bool {
        self.fates.contains_key(name)
    }

    /// Whether both plans have the node, with other options.
    pub(crate) fn changes(&self, name: &str) -> bool {
        self.changed.iter().any(|node| **node == *name)
    }

    /// Whether the new plan removes the node.
    pub(crate) fn removes(&self, name: &str) -> bool {
        self.removed.iter().any(|(node, _)| **node == *name)
    }

    /// Returns the sources that end because the new plan replaces or removes them.
    pub(crate) fn ending_sources(&self) -> Arc<[Arc<str>]> {
        let removed = self.removed.iter();
        let removed = removed.filter(|(_, section)| *section == Section::Source);
        let removed = removed.map(|(name, _)| name);
        self.replaced.iter().chain(removed).cloned().collect()
    }

    /// Whether the node must be started.
    pub(crate) fn starts(&self, name: &str) -> bool {
        matches!(self.fate(name), Fate::New | Fate::Moved)
    }
}

impl Known {
    /// Returns the nodes of a plan. `in_front` receives the index of a sink and returns whether the sink's chain runs in front of its
    /// memory channel.
    pub(crate) fn of(plan: &Plan, in_front: impl Fn(usize) -> bool) -> Self {
        let mut nodes = BTreeMap::new();
        let mut add = |name: &Arc<str>, section, options: &Arc<str>, intake, is_fixed| {
            let node = Node {
                section,
                options: options.clone(),
                intake,
                is_fixed,
            };
            nodes.insert(name.clone(), node);
        };
        for it in &plan.sources {
            let is_fixed = !it.source.is_replaceable();
            add(
                &it.name,
                Section::Source,
                &it.options,
                Intake::Ways,
                is_fixed,
            );
        }
        for it in &plan.processors {
            let intake = Intake::Tasks(it.tasks.clone());
            add(&it.name, Section::Processor, &it.options, intake, false);
        }
        let reads = |consumer: &str, input: &ChannelInput| {
            let channel = &plan.channels[input.channel];
            let mut consumers = channel.consumers.iter();
            let consumer = consumers.find(|it| &*it.name == consumer);
            Intake::Channel {
                name: channel.name.clone(),
                tags: input.tags.clone(),
                behind: consumer.map(|it| it.behind).unwrap_or_default(),
            }
        };
        for it in &plan.channels {
            let mut intake = Intake::Ways;
            if let Some(input) = &it.input {
                let pump = it.pump();
                intake = reads(&pump, input);
                add(&pump, Section::Sink, &"".into(), intake.clone(), false);
            }
            add(&it.name, Section::Channel, &it.options, intake, false);
        }
        for (index, it) in plan.sinks.iter().enumerate() {
            let intake = match &it.input {
                Input::Channel(input) => reads(&it.name, input),
                Input::Memory { queue_bytes, tasks } => Intake::Memory {
                    queue_bytes: *queue_bytes,
                    tasks: tasks.clone(),
                    placement: it.sink.placement(),
                    is_chain_in_front: in_front(index),
                },
            };
            add(&it.name, Section::Sink, &it.options, intake, false);
        }
        Self(nodes)
    }

    /// Returns the actions of a reload from this plan to `new`. A source or sink that has ended or did not start (`has_ended`) is started
    /// again only if its configuration differs. Fails if only a restart can make the change.
    pub(crate) fn difference(
        &self,
        new: &Self,
        has_ended: impl Fn(&str) -> bool,
    ) -> Result<Difference, Failure> {
        let mut fates = BTreeMap::new();
        for (name, node) in &new.0 {
            let fate = match self.0.get(name) {
                None => Fate::New,
                Some(old) if node != old && node.starts_again(old) && has_ended(name) => Fate::New,
                Some(old) => node.follows(name, old)?,
            };
            fates.insert(name.clone(), fate);
        }
        let gone = self.0.iter().filter(|(name, _)| !new.0.contains_key(*name));
        let removed = gone.map(|(name, node)| (name.clone(), node.section));
        let (mut leavers, mut stopped) = (Vec::new(), Vec::new());
        for (sink, node) in self
            .0
            .iter()
            .filter(|(_, node)| node.section == Section::Sink)
        {
            let Intake::Channel { name: channel, .. } = &node.intake else {
                continue;
            };
            if !new.0.contains_key(channel) {
                continue;
            }
            if fates.get(sink).is_none_or(|it| *it == Fate::Moved) {
                stopped.push(sink.clone());
            }
            let stays = new.0.get(sink).is_some_and(
                |new| matches!(&new.intake, Intake::Channel { name, .. } if name == channel),
            );
            // Also a sink that has ended, or never ran, holds the channel.
            if !stays {
                let (sink, channel) = (sink.clone(), channel.clone());
                leavers.push(Leaver { sink, channel });
            }
        }
        let is_replaced = |name: &Arc<str>| {
            let is_source = new.0[name].section == Section::Source;
            is_source && fates[name] == Fate::Replaced
        };
        let replaced = fates.keys().filter(|name| is_replaced(name));
        let is_changed = |name: &&Arc<str>| {
            let old = self.0.get(*name);
            old.is_some_and(|old| old.options != new.0[*name].options)
        };
        Ok(Difference {
            replaced: replaced.cloned().collect(),
            changed: fates.keys().filter(is_changed).cloned().collect(),
            removed: removed.collect(),
            fates,
            leavers,
            stopped,
        })
    }

    /// The names of all nodes except pumps, from sources to sinks.
    pub(crate) fn names(&self) -> Vec<&Arc<str>> {
        let nodes = self.0.iter().filter(|(name, _)| !is_pump(name));
        let mut nodes: Vec<_> = nodes.map(|(name, node)| (node.section, name)).collect();
        nodes.sort_unstable();
        nodes.into_iter().map(|(_, name)| name).collect()
    }

    /// The names of all nodes and pumps.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.keys()
    }

    /// Whether the plan has the node.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the sinks and the pumps, each with the durable channel that it reads, or `None` if it reads from memory.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (&Arc<str>, Option<&Arc<str>>)> + Clone {
        let sinks = self.0.iter();
        let sinks = sinks.filter(|(_, node)| node.section == Section::Sink);
        sinks.map(|(name, node)| match &node.intake {
            Intake::Channel { name: channel, .. } => (name, Some(channel)),
            _ => (name, None),
        })
    }
}

/// Whether this is the name of a channel's pump. Names in a configuration never contain a dot.
pub(crate) fn is_pump(name: &str) -> bool {
    name.contains('.')
}

impl Node {
    /// Whether the node is of the same kind as `old`, and such a node is started again after it has ended.
    fn starts_again(&self, old: &Self) -> bool {
        self.section == old.section && matches!(self.section, Section::Source | Section::Sink)
    }

    fn follows(&self, name: &str, old: &Self) -> Result<Fate, Failure> {
        let restart = |why: &str| Failure::config(format!("{name} {why}: this needs a restart"));
        if self.section != old.section {
            let why = "runs as another kind of node; give the new one another name, or restart";
            return Err(Failure::config(format!("{name} {why}")));
        }
        if self == old {
            return Ok(Fate::Kept);
        }
        match self.section {
            Section::Source if self.is_fixed || old.is_fixed => Err(restart(
                "has other options, and no other source of its type can follow it",
            )),
            Section::Channel if self.intake != old.intake => {
                Err(restart("would take its records from another channel"))
            }
            Section::Sink if self.intake != old.intake => Ok(Fate::Moved),
            Section::Source | Section::Processor | Section::Channel | Section::Sink => {
                Ok(Fate::Replaced)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(section: Section, options: &str, intake: Intake) -> Node {
        Node {
            section,
            options: options.into(),
            intake,
            is_fixed: false,
        }
    }

    fn reads(channel: &str, tags: Option<&str>) -> Intake {
        Intake::Channel {
            name: channel.into(),
            tags: tags.map(|tags| TagFilter::new([tags]).unwrap()),
            behind: Behind::default(),
        }
    }

    fn known(nodes: impl IntoIterator<Item = (&'static str, Node)>) -> Known {
        let nodes = nodes.into_iter();
        Known(nodes.map(|(name, node)| (name.into(), node)).collect())
    }

    /// A source, two channels, and three sinks that read the first channel.
    fn running() -> Known {
        known([
            ("in", node(Section::Source, "1", Intake::Ways)),
            ("kept", node(Section::Channel, "1", Intake::Ways)),
            ("other", node(Section::Channel, "1", Intake::Ways)),
            ("a", node(Section::Sink, "1", reads("kept", None))),
            ("b", node(Section::Sink, "1", reads("kept", None))),
            ("c", node(Section::Sink, "1", reads("kept", None))),
        ])
    }

    #[test]
    fn the_same_plan_keeps_everything() {
        let difference = running().difference(&running(), |_| false).unwrap();
        assert!(difference.removed.is_empty() && difference.stopped.is_empty());
        assert!(
            ["in", "kept", "a"]
                .iter()
                .all(|it| difference.fate(it) == Fate::Kept)
        );
        assert_eq!(difference.fate("more"), Fate::New);
    }

    #[test]
    fn a_sink_that_reads_with_other_tags_stops_and_one_that_reads_elsewhere_leaves() {
        let mut new = running();
        new.0.insert(
            "a".into(),
            node(Section::Sink, "1", reads("kept", Some("web.*"))),
        );
        new.0
            .insert("b".into(), node(Section::Sink, "1", reads("other", None)));
        new.0.remove("c");
        new.0
            .insert("in".into(), node(Section::Source, "2", Intake::Ways));
        let difference = running().difference(&new, |_| false).unwrap();
        let fates = ["a", "b", "in", "kept"].map(|name| difference.fate(name));
        assert_eq!(
            fates,
            [Fate::Moved, Fate::Moved, Fate::Replaced, Fate::Kept]
        );
        assert_eq!(
            difference.stopped,
            ["a".into(), "b".into(), "c".into()] as [Arc<str>; 3]
        );
        let leavers = difference.leavers.iter().map(|leaver| &*leaver.sink);
        assert_eq!(leavers.collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn the_ending_sources_are_those_that_are_replaced_or_removed() {
        let source = |options: &str| node(Section::Source, options, Intake::Ways);
        let all = || [("changed", "1"), ("gone", "1"), ("kept", "1")];
        let old = known(all().map(|(name, options)| (name, source(options))));
        let new = [("changed", "2"), ("kept", "1"), ("renamed", "1")];
        let new = known(new.map(|(name, options)| (name, source(options))));
        let difference = old.difference(&new, |_| false).unwrap();
        let ending = difference.ending_sources();
        assert_eq!(&*ending, ["changed".into(), "gone".into()] as [Arc<str>; 2]);
    }

    #[test]
    fn consumers_that_are_removed_together_with_their_channel_are_not_stopped() {
        let mut new = running();
        for name in ["kept", "a", "b", "c"] {
            new.0.remove(name);
        }
        let difference = running().difference(&new, |_| false).unwrap();
        assert_eq!(difference.removed.len(), 4);
        assert!(difference.stopped.is_empty() && difference.leavers.is_empty());
    }

    #[test]
    fn a_restart_is_needed_for_another_kind_of_node_a_fixed_source_and_another_input_of_a_channel()
    {
        let fails = |name: &'static str, new: Node| {
            let mut all = running();
            all.0.insert(name.into(), new);
            running().difference(&all, |_| false).err().unwrap().message
        };
        let kind = fails("a", node(Section::Processor, "1", Intake::Ways));
        assert!(kind.contains("another kind of node"), "{kind}");
        let mut fixed = node(Section::Source, "2", Intake::Ways);
        fixed.is_fixed = true;
        assert!(fails("in", fixed).contains("needs a restart"));
        let input = node(Section::Channel, "1", reads("other", None));
        assert!(fails("kept", input).contains("needs a restart"));
    }
}
