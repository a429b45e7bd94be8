//! The names of the top-level fields that a program uses. A name is found without comparing it with all of them.

use vrl::value::KeyString;

/// No name is at this place.
const NONE: u8 = 255;
/// Several names are at this place, or the index of the name is too large.
const SEVERAL: u8 = 254;
/// The number of places.
const PLACES: usize = 64;

/// Names without duplicates. The index of a name never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    names: Vec<KeyString>,
    /// For each place ([`place`]): the index of the name there, [`NONE`] or [`SEVERAL`]. Most keys of a record are not among the
    /// names. The place of such a key is usually empty, so it is compared with no name.
    places: [u8; PLACES],
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            places: [NONE; PLACES],
        }
    }
}

impl Fields {
    /// Adds a name, unless it is there.
    pub fn add(&mut self, name: &KeyString) {
        if self.find(name.as_bytes()).is_some() {
            return;
        }
        if let Some(place) = self.places.get_mut(place_of(name.as_bytes())) {
            *place = match (*place, u8::try_from(self.names.len())) {
                (NONE, Ok(index)) if index < SEVERAL => index,
                _ => SEVERAL,
            };
        }
        self.names.push(name.clone());
    }

    /// Returns `false` if no name has this length and begins with this byte. Sometimes returns `true` although no name does.
    #[inline(always)]
    pub fn may_have(&self, length: usize, first: u8) -> bool {
        self.places.get(place(length, first)) != Some(&NONE)
    }

    /// Returns the index of a name.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        match self.places.get(place_of(name)).copied().unwrap_or(SEVERAL) {
            NONE => None,
            SEVERAL => self.search(name),
            index => {
                let index = usize::from(index);
                (self.names.get(index)?.as_bytes() == name).then_some(index)
            }
        }
    }

    fn search(&self, name: &[u8]) -> Option<usize> {
        self.names.iter().position(|it| it.as_bytes() == name)
    }

    /// The names, by index.
    pub fn names(&self) -> &[KeyString] {
        &self.names
    }
}

fn place_of(name: &[u8]) -> usize {
    place(name.len(), name.first().copied().unwrap_or_default())
}

/// Returns the place of the names that have this length and begin with this byte.
#[inline(always)]
fn place(length: usize, first: u8) -> usize {
    (length.wrapping_mul(11) ^ usize::from(first)) % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_by_its_index_and_no_other_text_is() {
        let mut fields = Fields::default();
        assert_eq!(fields.find(b""), None);
        let names: Vec<KeyString> = (0..1000)
            .map(|number| format!("{number:x}").into())
            .chain(["".into(), "long".repeat(100).into()])
            .collect();
        for _ in 0..2 {
            names.iter().for_each(|name| fields.add(name));
        }
        assert_eq!(fields.names(), names);
        for (index, name) in names.iter().enumerate() {
            assert_eq!(fields.find(name.as_bytes()), Some(index));
            let first = name.as_bytes().first().copied().unwrap_or_default();
            assert!(fields.may_have(name.len(), first));
        }
        for other in ["3e8", "x", "00", "long"] {
            assert_eq!(fields.find(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_text_at_the_place_of_a_name_is_compared() {
        let mut fields = Fields::default();
        fields.add(&"level".into());
        assert!(fields.may_have(5, b'l') && !fields.may_have(5, b'x') && !fields.may_have(4, b'l'));
        assert_eq!(place_of(b"level"), place_of(b"lever"));
        assert_eq!(fields.find(b"lever"), None);
        assert_eq!(fields.find(b"level"), Some(0));
    }
}
