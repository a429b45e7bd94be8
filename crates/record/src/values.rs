//! The values that all records of a batch share.

/// The names of all values that sources set, in addition to `tag`. Another Millstream can send any of them.
pub const VALUE_NAMES: [&str; 10] = [
    "host",
    "peer",
    "path",
    "pid",
    "topic",
    "partition",
    "kubernetes.namespace",
    "kubernetes.pod",
    "kubernetes.container",
    "kubernetes.uid",
];

/// Names and values, in the order in which they were set. There are few, so this is a list and not a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Values(Vec<(String, String)>);

impl Values {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `name`. An existing value is replaced, and its name keeps its index in the list.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        match self.0.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value.into(),
            None => self.0.push((name.to_owned(), value.into())),
        }
    }

    /// Removes `name`.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(other, _)| other != name);
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    /// All values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
