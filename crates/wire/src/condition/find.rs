//! The fields that conditions ask for, found in one walk over the record.

use super::named::Named;
use crate::record::FieldPath;

/// The offset of a field that the record does not have.
pub(super) const MISSING: usize = usize::MAX;

/// The fields of one map, with those of the maps below them.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    named: Named,
    /// One per name.
    fields: Box<[Field]>,
}

#[derive(Clone, Debug)]
struct Field {
    /// The index of its offset.
    slot: usize,
    below: Option<Finder>,
}

/// Fields before they are numbered by their maps.
#[derive(Debug, Default)]
pub(super) struct Fields {
    names: Vec<(Box<str>, usize, Fields)>,
}

impl Fields {
    /// The slot of a field; `slots` counts those given so far. The same field has the same slot.
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

    /// The slot of a field at the top level, if it has one.
    pub(super) fn known(&self, name: &str) -> Option<usize> {
        let mut names = self.names.iter();
        names
            .find(|(one, ..)| **one == *name)
            .map(|(_, slot, _)| *slot)
    }

    /// The finder of these fields; `None` if there are none.
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
    /// Finds the fields of the map at `at` and sets their offsets in `found`, in which the others stay as they are. Of
    /// equal keys the first one counts. Returns the offset after the map; `None` if there is no complete map.
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

    /// As [`Finder::find`], for a field that may be of another type.
    #[inline(never)]
    fn find_below(&mut self, body: &[u8], at: usize, found: &mut [usize]) {
        self.find(body, at, found);
    }
}
