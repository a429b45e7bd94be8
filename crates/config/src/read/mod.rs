//! A node to a Rust type, with all its problems at once.
//!
//! serde stops at the first error. So the error is noted, the option that it is about is made invalid in a copy of the
//! tree (an invalid option reads as a made-up value, see `dummy.rs`), and the copy is read again, until nothing new turns
//! up. A type that accepts no made-up value has its option taken out, and the missing option that follows is not told.

mod choice;
mod dummy;
mod error;
mod fields;
mod node;

use std::cell::Cell;
use std::collections::HashSet;

use serde::de::DeserializeOwned;

use crate::node::{Key, Node, Value};
use crate::problem::Problem;
use crate::words::{self, Word};
use error::{Kind, ReadError, Step};
use node::NodeReader;

pub(crate) use error::SECRET_WANTED;
pub use fields::fields;

/// How often one node is read at most: each time tells one problem or takes out one option.
const READS_MAX: usize = 200;

impl Node {
    /// Reads the node as a `T`, or tells everything that is wrong with it.
    ///
    /// The list of problems is empty if all of them have been told before (an unset variable, a broken alias).
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Vec<Problem>> {
        self.read_as(Word::Option)
    }

    /// The same where the names of this map are something else than options.
    pub(crate) fn read_as<T: DeserializeOwned>(&self, names: Word) -> Result<T, Vec<Problem>> {
        let mut reading = Reading {
            tree: self.clone(),
            names,
            problems: Vec::new(),
            taken_out: HashSet::new(),
            meant: HashSet::new(),
        };
        for _ in 0..READS_MAX {
            let made_up = Cell::new(false);
            let reader = NodeReader {
                node: &reading.tree,
                made_up: &made_up,
            };
            match T::deserialize(reader) {
                Ok(value) if reading.problems.is_empty() && !made_up.get() => return Ok(value),
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

    /// Reads the options that `T` knows, takes them out, and leaves the others: for options that many nodes share.
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
    /// What the names of the tree's own map are.
    names: Word,
    problems: Vec<Problem>,
    /// Options that were taken out because nothing could be made up for them.
    taken_out: HashSet<Vec<Step>>,
    /// Options that a problem has named as what a misspelt one should be.
    meant: HashSet<Vec<Step>>,
}

impl Reading {
    /// Notes an error and changes the tree so that the next read gets past it; none if that cannot be.
    fn note(&mut self, error: ReadError) -> Option<()> {
        let mut path = error.path.clone();
        path.reverse();
        if let Kind::Missing(option) = error.kind {
            return self.note_missing(error, path, option);
        }
        // what a type's own check says about a made-up value, or about a block that has one inside, is no news
        let is_news = !self.at(&path).is_some_and(|node| match error.kind {
            Kind::Custom(_) => node.has_invalid(),
            Kind::UnknownName { .. } => false,
            _ => node.is_invalid(),
        });
        if is_news {
            self.problems.extend(error.problem(&self.tree, self.names));
        }
        if let Kind::UnknownName { word, known } = &error.kind {
            let meant = words::meant(word, known).map(|name| Step::Name(name.to_owned()));
            let parent = path.iter().take(path.len() - 1).cloned();
            self.meant.insert(parent.chain(meant).collect());
        }
        match error.kind {
            Kind::UnknownName { .. } | Kind::Told => self.take_out(path),
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
        if self.taken_out.contains(&inner) {
            return self.make_invalid(path);
        }
        if !self.meant.contains(&inner) {
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
        let node = self.at(&path)?;
        if node.is_invalid() {
            return self.take_out(path);
        }
        node.value = Value::Invalid;
        Some(())
    }

    fn take_out(&mut self, path: Vec<Step>) -> Option<()> {
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
        self.taken_out.insert(path);
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

#[cfg(test)]
mod tests;
