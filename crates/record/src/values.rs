//! The values that all records of a batch share.

/// The names of all values that sources set; `tag` stands beside them. Another Millstream can send any of them.
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

/// Names and values, in the order they were set; few, so a list and no map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(Vec<(String, String)>);

impl Values {
    /// None at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `name`; a value that was there is replaced in its place.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        match self.0.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value.into(),
            None => self.0.push((name.to_owned(), value.into())),
        }
    }

    /// The value called `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
