//! Reads a text as a node, and a node as a Rust type, and reports all problems together.
//!
//! serde stops at the first error. The error is recorded, the option that caused it is marked invalid in a copy of the tree, and the copy
//! is read again. This repeats until a read finds no new error. When a read reaches an invalid option, the option gets a stand-in: a value
//! of the type that the read requests. If that type has no stand-in, or the option rejects the stand-in, the option is removed. The error
//! about the option that is then missing is not reported. A read that used a stand-in never succeeds.

mod error;
mod fields;
mod node;

use std::collections::HashSet;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::node::{Key, Node, Value};
use crate::place::{Place, Source};
use crate::problem::{Problem, Problems};
use crate::words::{self, Word};
use error::{Kind, ReadError, Step};
use node::NodeReader;

pub use fields::fields;

/// The maximum number of reads of one node. Each read finds a problem, adds a stand-in or removes an option.
const READS_MAX: usize = 1000;

impl Node {
    /// Parses a YAML text without substitution, for examples and tests. `name` is shown in place of a file's path.
    pub fn parse(name: &str, text: &str) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        match crate::parse::parse(&Source::new(name, text, 0), &mut problems) {
            Some(node) if problems.is_empty() => Ok(node),
            _ => Err(Problems(problems)),
        }
    }

    /// Reads the node as a `T`, or returns all its problems.
    ///
    /// The list of problems is empty if all of them were reported before (an unset variable, a broken alias).
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Vec<Problem>> {
        self.read_as(Word::Option)
    }

    /// Like [`Node::read`], for a map whose names are not options.
    pub(crate) fn read_as<T: DeserializeOwned>(&self, names: Word) -> Result<T, Vec<Problem>> {
        let mut reading = Reading {
            tree: self.clone(),
            names,
            problems: Vec::new(),
            stand_in: None,
            removed: HashSet::new(),
            meant: HashSet::new(),
        };
        for _ in 0..READS_MAX {
            match T::deserialize(NodeReader(&reading.tree)) {
                Ok(value) if reading.problems.is_empty() && reading.stand_in.is_none() => {
                    return Ok(value);
                }
                Ok(_) => break,
                Err(error) => {
                    if reading.note(error).is_none() {
                        break;
                    }
                }
            }
        }
        Err(reading.problems)
    }

    /// Removes from this map the options that `T` knows, and reads them as a `T`. Use it for options that many nodes share.
    ///
    /// `T` must be a struct that derives `Deserialize`, without `flatten`.
    pub fn take_part<T: DeserializeOwned>(&mut self) -> Result<T, Vec<Problem>> {
        let names = fields::<T>();
        let mut part = Node {
            value: Value::Map(crate::node::Map::default()),
            place: self.place.clone(),
        };
        for name in names {
            let entry = self.take(name);
            if let (Some(entry), Value::Map(map)) = (entry, &mut part.value) {
                map.entries.push(entry);
            }
        }
        part.read()
    }
}

struct Reading {
    tree: Node,
    /// The kind of the names in the tree's top map: settings at the top of the configuration, and options in all other maps.
    names: Word,
    problems: Vec<Problem>,
    /// The place that all stand-ins have, and by which they are recognized; `None` before the first stand-in.
    stand_in: Option<Place>,
    /// Options that were removed because they accept no stand-in.
    removed: HashSet<Vec<Step>>,
    /// Options that a problem has suggested for misspelt names. They are not reported as missing.
    meant: HashSet<Vec<Step>>,
}

impl Reading {
    /// Records an error, and changes the tree so that the next read does not stop at this error. `None` if no such change is possible.
    fn note(&mut self, error: ReadError) -> Option<()> {
        let mut path = error.path.clone();
        path.reverse();
        if let Kind::Missing(option) = error.kind {
            return self.note_missing(error, path, option);
        }
        // An error about a stand-in, or about a block that contains one, does not concern the user.
        let stand_in = self.stand_in.clone();
        let is_news = !self.at(&path).is_some_and(|node| match error.kind {
            Kind::Custom(_) => has_stand_in(node, stand_in.as_ref()),
            Kind::UnknownName { .. } => false,
            _ => is_stand_in(node, stand_in.as_ref()),
        });
        if is_news {
            self.problems.extend(error.problem(&self.tree, self.names));
        }
        match error.kind {
            Kind::UnknownName { word, known } => {
                let meant = words::meant(&word, &known).map(|name| Step::Name(name.to_owned()));
                let parent = path.iter().take(path.len() - 1).cloned();
                self.meant.insert(parent.chain(meant).collect());
                self.remove(path)
            }
            Kind::Invalid(Some(value)) => self.stand_in(path, value),
            Kind::Invalid(None) => self.remove(path),
            _ => self.make_invalid(path),
        }
    }

    fn note_missing(
        &mut self,
        error: ReadError,
        path: Vec<Step>,
        option: &'static str,
    ) -> Option<()> {
        let mut inner = path.clone();
        inner.push(Step::Name(option.to_owned()));
        if self.removed.contains(&inner) {
            return self.make_invalid(path);
        }
        let stand_in = self.stand_in.clone();
        let is_news = !is_stand_in(self.at(&path)?, stand_in.as_ref());
        if is_news && !self.meant.contains(&inner) {
            self.problems.extend(error.problem(&self.tree, self.names));
        }
        let map = self.at(&path)?;
        let place = map.place.clone();
        let key = Key {
            text: option.to_owned(),
            place: place.clone(),
        };
        let value = Value::Invalid;
        match &mut map.value {
            Value::Map(map) => map.entries.push((key, Node { value, place })),
            _ => return None,
        }
        Some(())
    }

    fn make_invalid(&mut self, path: Vec<Step>) -> Option<()> {
        if path.is_empty() {
            return None;
        }
        let stand_in = self.stand_in.clone();
        let node = self.at(&path)?;
        if is_stand_in(node, stand_in.as_ref()) {
            return self.remove(path);
        }
        node.value = Value::Invalid;
        Some(())
    }

    /// Replaces an invalid value by a stand-in.
    fn stand_in(&mut self, path: Vec<Step>, value: Value) -> Option<()> {
        let place = self
            .stand_in
            .get_or_insert_with(|| Place::whole(Source::new("", "", 0)));
        let place = place.clone();
        *self.at(&path)? = Node { value, place };
        Some(())
    }

    fn remove(&mut self, path: Vec<Step>) -> Option<()> {
        let (last, parent) = path.split_last()?;
        match (&mut self.at(parent)?.value, last) {
            (Value::Map(map), Step::Name(name)) => {
                map.remove(name)?;
            }
            (Value::List(list), Step::Index(index)) if *index < list.len() => {
                list.remove(*index);
            }
            _ => return None,
        }
        self.removed.insert(path);
        Some(())
    }

    fn at(&mut self, path: &[Step]) -> Option<&mut Node> {
        path.iter()
            .try_fold(&mut self.tree, |node, step| match (&mut node.value, step) {
                (Value::Map(map), Step::Name(name)) => map.get_mut(name),
                (Value::List(list), Step::Index(index)) => list.get_mut(*index),
                _ => None,
            })
    }
}

fn is_stand_in(node: &Node, place: Option<&Place>) -> bool {
    place.is_some_and(|place| Arc::ptr_eq(&node.place.file, &place.file))
}

/// Whether the node is or contains a stand-in.
fn has_stand_in(node: &Node, place: Option<&Place>) -> bool {
    is_stand_in(node, place)
        || match &node.value {
            Value::List(list) => list.iter().any(|node| has_stand_in(node, place)),
            Value::Map(map) => map
                .entries
                .iter()
                .any(|(_, node)| has_stand_in(node, place)),
            _ => false,
        }
}

#[cfg(test)]
mod tests;
