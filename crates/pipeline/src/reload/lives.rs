//! The sources or sinks of a pipeline with the tasks that run for them, from the reload that plans a task to the task's end.
//!
//! A node has the tasks of the running plan, and at the same time tasks of earlier plans that still finish their work: a sink that moves
//! to another input first delivers what waits in its old memory channel, for example. The tasks of a node run one after another. Their
//! states are in `start/life.rs`.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use crate::{channel::Channel, seat::Seat, start::Seated, stop::Stop};

/// The nodes of one section.
pub(super) struct Lives<T> {
    present: HashMap<Arc<str>, Life<T>>,
    /// The tasks of nodes that have left the plan, or have other tasks now, and have not ended yet. The oldest are first.
    leaving: Vec<(Arc<str>, Life<T>)>,
}

/// The tasks that one plan has started for a node.
pub(super) struct Life<T> {
    seated: Seated<T>,
    /// The durable channel that the tasks read; `None` for sources, and for sinks behind memory.
    input: Option<Arc<str>>,
    /// The memory channel in front of the tasks.
    queue: Option<Weak<dyn Channel>>,
    /// Whether the tasks run on data threads, which must not block.
    is_on_threads: bool,
    is_given_up: bool,
}

impl<T> Default for Lives<T> {
    fn default() -> Self {
        let (present, leaving) = (HashMap::new(), Vec::new());
        Self { present, leaving }
    }
}

impl<T> Life<T> {
    pub(super) fn new(
        seated: Seated<T>,
        input: Option<Arc<str>>,
        queue: Option<Weak<dyn Channel>>,
        is_on_threads: bool,
    ) -> Self {
        Self {
            seated,
            input,
            queue,
            is_on_threads,
            is_given_up: false,
        }
    }

    fn is_over(&self) -> bool {
        self.seated.ended.is_over()
    }

    /// Ends the tasks soon, whatever they have not finished.
    fn give_up(&mut self) {
        self.is_given_up = true;
        self.seated.seats.iter().for_each(Seat::leave);
    }
}

impl<T: Clone> Life<T> {
    /// Lets the tasks continue with `node`. `may_block`: whether `node` may block its thread.
    fn replace(&self, node: &T, may_block: bool) {
        if self.is_on_threads && may_block {
            return;
        }
        let seats = &self.seated.seats;
        seats.iter().for_each(|seat| seat.replace(node.clone()));
    }
}

impl<T> Lives<T> {
    /// Returns the seats of a node's present tasks; none if the node does not run.
    pub(super) fn seats(&self, name: &str) -> &[Seat<T>] {
        let present = self.present.get(name);
        present.map_or(&[], |life| &life.seated.seats)
    }

    /// Whether a node has no present task that has not ended.
    pub(super) fn has_ended(&self, name: &str) -> bool {
        self.present.get(name).is_none_or(Life::is_over)
    }

    /// Whether tasks of earlier plans still run for the node.
    pub(super) fn is_leaving(&self, name: &str) -> bool {
        self.of(name).next().is_some()
    }

    fn of(&self, name: &str) -> impl Iterator<Item = &Life<T>> {
        let leaving = self.leaving.iter().filter(move |(node, _)| **node == *name);
        leaving.map(|(_, life)| life).filter(|life| !life.is_over())
    }

    fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Life<T>)> {
        let leaving = self.leaving.iter().map(|(name, life)| (name, life));
        let all = self.present.iter().chain(leaving);
        all.filter(|(_, life)| !life.is_over())
    }

    /// Returns the signals for the end of all tasks of a node.
    pub(super) fn ends(&self, name: &str) -> Vec<Stop> {
        let all = self.all().filter(|(node, _)| ***node == *name);
        all.map(|(_, life)| life.seated.ended.clone()).collect()
    }

    /// Returns the signals for the end of a node's tasks that read `channel`.
    pub(super) fn reading_ends(&self, name: &str, channel: &str) -> Vec<Stop> {
        let all = self.readers(channel);
        let own = all.filter(|(node, _)| ***node == *name);
        own.map(|(_, life)| life.seated.ended.clone()).collect()
    }

    /// Returns the nodes whose tasks read `channel`, each with the signal for the end of these tasks.
    pub(super) fn readers(&self, channel: &str) -> impl Iterator<Item = (&Arc<str>, &Life<T>)> {
        let reads = move |life: &Life<T>| life.input.as_deref() == Some(channel);
        self.all().filter(move |(_, life)| reads(life))
    }

    /// Returns the signals for the end of all tasks that read `channel`.
    pub(super) fn ends_of_readers(&self, channel: &str) -> Vec<Stop> {
        let readers = self.readers(channel);
        readers.map(|(_, life)| life.seated.ended.clone()).collect()
    }

    /// Whether the tasks that read `channel` are all given up, or have ended.
    pub(super) fn is_given_up(&self, channel: &str) -> bool {
        self.readers(channel).all(|(_, life)| life.is_given_up)
    }

    /// Returns the memory channel in front of a node's present tasks.
    pub(super) fn queue(&self, name: &str) -> Option<Weak<dyn Channel>> {
        self.present.get(name)?.queue.clone()
    }

    /// Begins the present life of a node. Its earlier tasks continue until they end.
    pub(super) fn begin(&mut self, name: &Arc<str>, life: Life<T>) {
        self.remove(name);
        self.present.insert(name.clone(), life);
    }

    /// Removes the present tasks of a node from the plan. They continue until they end.
    pub(super) fn remove(&mut self, name: &Arc<str>) {
        if let Some(life) = self.present.remove(name) {
            life.seated.seats.iter().for_each(Seat::remove);
            self.leaving.push((name.clone(), life));
        }
    }

    /// Ends the present tasks of a node soon. Unsettled batches stay in their durable channel.
    pub(super) fn leave(&mut self, name: &str) {
        let present = self.present.get(name);
        let seats = present.into_iter().flat_map(|life| &life.seated.seats);
        seats.for_each(Seat::leave);
    }

    /// Ends the earlier tasks of a node soon, whatever they have not finished.
    pub(super) fn give_up(&mut self, name: &str) {
        let own = self.leaving.iter_mut().filter(|(node, _)| **node == *name);
        own.for_each(|(_, life)| life.give_up());
    }

    /// Drops the tasks of earlier plans that have ended, and returns the names of their nodes.
    pub(super) fn prune(&mut self) -> Vec<Arc<str>> {
        let ended = self.leaving.extract_if(.., |(_, life)| life.is_over());
        ended.map(|(name, _)| name).collect()
    }
}

impl<T: Clone> Lives<T> {
    /// Lets the tasks of a node, present and earlier ones, continue with `node`.
    pub(super) fn replace(&self, name: &str, node: &T, may_block: bool) {
        if let Some(life) = self.present.get(name) {
            life.replace(node, may_block);
        }
        self.replace_earlier(name, node, may_block);
    }

    /// Lets the earlier tasks of a node continue with `node`, so that a wrong option cannot hold them for ever.
    pub(super) fn replace_earlier(&self, name: &str, node: &T, may_block: bool) {
        self.of(name).for_each(|life| life.replace(node, may_block));
    }
}
