//! The outputs of a sink by number and by name.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! A number is valid until its output is removed; after that it may be reused. Two outputs never have the same name at the same
//! time. An output that was renamed keeps its number until it leaves the journal, but loses its name, so that a new output can
//! take this name.

use std::{collections::HashMap, ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, time::Instant};

use millstream_record::Time;

use super::output::Output;

/// All outputs that are known.
#[derive(Default)]
pub(super) struct Outputs {
    slots: Vec<Option<Output>>,
    free: Vec<u32>,
    names: HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>,
    /// The outputs that the next commit has to look at.
    changed: Vec<u32>,
}

impl Outputs {
    /// Adds an output of an earlier run under its old number.
    pub(super) fn adopt(&mut self, id: u32, output: Output) {
        while self.slots.len() <= id as usize {
            self.free
                .push(u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
            self.slots.push(None);
        }
        self.free.retain(|free| *free != id);
        self.names
            .insert(output.path.as_os_str().as_bytes().into(), id);
        self.slots[id as usize] = Some(output);
    }

    /// Whether an output has this name.
    pub(super) fn is_known(&self, path: &[u8]) -> bool {
        self.names.contains_key(path)
    }

    /// Returns the number of the output with this name. If there is none, adds an output; `since` is the receive time of its
    /// first batch.
    pub(super) fn of(&mut self, path: &[u8], since: Time, now: Instant) -> u32 {
        match self.names.get(path) {
            Some(id) => *id,
            None => self.insert(path, since, now),
        }
    }

    #[cold]
    fn insert(&mut self, path: &[u8], since: Time, now: Instant) -> u32 {
        let output = Output::new(Path::new(OsStr::from_bytes(path)), since, now);
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        self.slots[id as usize] = Some(output);
        self.names.insert(path.into(), id);
        id
    }

    pub(super) fn get(&self, id: u32) -> &Output {
        self.slots[id as usize]
            .as_ref()
            .expect("a number is used only until its output is removed")
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Output {
        self.slots[id as usize]
            .as_mut()
            .expect("a number is used only until its output is removed")
    }

    /// All outputs with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Output)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(id, output)| Some((id, output.as_ref()?)))
    }

    /// Removes an output that has left the journal or never entered it.
    pub(super) fn remove(&mut self, id: u32) -> Option<Output> {
        let output = self.slots[id as usize].take()?;
        self.forget_name(&output.path, id);
        self.free.push(id);
        Some(output)
    }

    /// Frees the name of an output that is rotated or moved away. The output leaves the journal with the next commit.
    pub(super) fn retire(&mut self, id: u32) {
        let output = self.get_mut(id);
        output.let_go = true;
        let path = output.path.clone();
        self.forget_name(&path, id);
        self.mark_changed(id);
    }

    fn forget_name(&mut self, path: &Path, id: u32) {
        let name = path.as_os_str().as_bytes();
        if self.names.get(name) == Some(&id) {
            self.names.remove(name);
        }
    }

    /// Notes that the next commit has to look at this output.
    pub(super) fn mark_changed(&mut self, id: u32) {
        let output = self.get_mut(id);
        if !output.changed {
            output.changed = true;
            self.changed.push(id);
        }
    }

    /// The outputs that changed since the last commit.
    pub(super) fn changed(&self) -> &[u32] {
        &self.changed
    }

    /// Returns the outputs that changed since the last commit, and empties the list.
    pub(super) fn take_changed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_output_keeps_its_number_and_frees_its_name() {
        let (mut outputs, now) = (Outputs::default(), Instant::now());
        let old = outputs.of(b"/a", Time(0), now);
        assert_eq!(outputs.of(b"/a", Time(1), now), old);
        outputs.retire(old);
        let new = outputs.of(b"/a", Time(2), now);
        assert_ne!(new, old);
        assert_eq!((outputs.changed(), outputs.iter().count()), (&[old][..], 2));
        assert!(outputs.remove(old).is_some());
        assert!(outputs.is_known(b"/a"));
        assert_eq!(outputs.of(b"/b", Time(3), now), old, "a number is reused");
    }
}
