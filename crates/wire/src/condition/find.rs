//! The fields that conditions ask for, found in one walk over the record.

use super::named::Named;
use crate::record::FieldPath;

/// Stands for the offset of a field that the record does not have.
pub(super) const MISSING: usize = usize::MAX;

/// The wanted fields of one map and, recursively, of the maps inside it.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    named: Named,
    /// The fields, by the index of their name in `named`.
    fields: Box<[Field]>,
}

#[derive(Clone, Debug)]
struct Field {
    /// The index of the field's offset in the offsets that [`Finder::find`] fills.
    slot: usize,
    below: Option<Finder>,
}

/// The tree of wanted fields while conditions are compiled. [`Fields::finder`] converts it to a [`Finder`].
#[derive(Debug, Default)]
pub(super) struct Fields {
    names: Vec<(Box<str>, usize, Fields)>,
}

impl Fields {
    /// Returns the slot of a field: the index of its offset. `slots` counts the slots assigned so far. Equal paths get
    /// the same slot.
    pub(super) fn slot(&mut self, path: &FieldPath, slots: &mut usize) -> usize {
        let (mut fields, mut found) = (self, MISSING);
        for part in path.parts() {
            let known = fields.names.iter().position(|(name, ..)| name == part);
            let index = known.unwrap_or_else(|| {
                fields.names.push((part.clone(), *slots, Self::default()));
                *slots += 1;
                fields.names.len() - 1
            });
            let Some((_, slot, below)) = fields.names.get_mut(index) else {
                break;
            };
            (found, fields) = (*slot, below);
        }
        found
    }

    /// Returns the slot of a field at the top level; `None` if no condition asks for the field.
    pub(super) fn known(&self, name: &str) -> Option<usize> {
        let mut names = self.names.iter();
        names
            .find(|(one, ..)| **one == *name)
            .map(|(_, slot, _)| *slot)
    }

    /// Converts the fields to a finder; returns `None` if there are no fields.
    pub(super) fn finder(self) -> Option<Finder> {
        if self.names.is_empty() {
            return None;
        }
        let named = Named::new(self.names.iter().map(|(name, ..)| &**name));
        let fields = self.names.into_iter().map(|(_, slot, below)| Field {
            slot,
            below: below.finder(),
        });
        Some(Finder {
            named,
            fields: fields.collect(),
        })
    }
}

impl Finder {
    /// Finds the fields of the map at `at` and stores their offsets in `found`; all other elements of `found` stay
    /// unchanged. If a key is repeated, the first occurrence counts. Returns the offset after the map; `None` if there
    /// is no complete map at `at`.
    #[inline]
    pub(super) fn find(&mut self, body: &[u8], at: usize, found: &mut [usize]) -> Option<usize> {
        let Self { named, fields } = self;
        let walked = named.walk(body, at, |pair| {
            let Some(field) = fields.get_mut(pair.name) else {
                return;
            };
            match found.get_mut(field.slot) {
                Some(offset) if *offset == MISSING => *offset = pair.value,
                _ => return,
            }
            if let Some(below) = &mut field.below {
                below.find_below(body, pair.value, found);
            }
        });
        walked.map(|(_, end)| end)
    }

    /// Calls [`Finder::find`] for a value of any type. In a value that is not a map, no field is found.
    #[inline(never)]
    fn find_below(&mut self, body: &[u8], at: usize, found: &mut [usize]) {
        self.find(body, at, found);
    }
}
