//! The tree of a configuration: values with their places, and access to them without serde.

use std::fmt;

use crate::place::Place;
use crate::problem::Problem;
use crate::words;

/// A value and its place.
#[derive(Clone, Debug)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it is written.
    pub place: Place,
}

/// A value of the YAML 1.2 core schema.
#[derive(Clone, Debug)]
pub enum Value {
    /// `null`, `~` or an empty value.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// A number with a point, an exponent, `.inf` or `.nan`.
    Float(f64),
    /// A text, quoted or not.
    Text(Text),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order of the file.
    Map(Map),
    /// A value whose problem was already reported; reading it causes no second problem.
    Invalid,
}

/// A text and how it may be read.
#[derive(Clone)]
pub struct Text {
    /// The text after substitution.
    pub text: String,
    /// True for an unquoted text that contains a substitution. The option that reads such a text decides whether the text is read as a
    /// number.
    pub typed_by_reader: bool,
    /// Whether the text must not be shown.
    pub secret: bool,
}

impl Text {
    /// A plain text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            typed_by_reader: false,
            secret: false,
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.secret {
            true => f.write_str("***"),
            false => write!(f, "{:?}", self.text),
        }
    }
}

/// A name in a map and its place.
#[derive(Clone, Debug)]
pub struct Key {
    /// The name.
    pub text: String,
    /// Where it is written.
    pub place: Place,
}

/// A map in the order of the file, without duplicate names.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// Its entries.
    pub entries: Vec<(Key, Node)>,
    /// Names that were removed with [`Node::take`]. They are still suggested for misspelt names.
    pub(crate) asked: Vec<&'static str>,
}

impl Map {
    /// The value under a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.entry(name).map(|(_, node)| node)
    }

    /// Returns the name (with its place) and the value of an entry.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<(&Key, &Node)> {
        let (key, node) = self.entries.iter().find(|(key, _)| key.text == name)?;
        Some((key, node))
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Node> {
        let (_, node) = self.entries.iter_mut().find(|(key, _)| key.text == name)?;
        Some(node)
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<(Key, Node)> {
        let at = self.entries.iter().position(|(key, _)| key.text == name)?;
        Some(self.entries.remove(at))
    }
}

impl Node {
    /// Returns the text, if the value is a text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(&text.text),
            _ => None,
        }
    }

    /// Returns the elements, if the value is a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    /// Returns the map, if the value is a map.
    #[must_use]
    pub fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Returns the entries, with the places of their names; empty if the value is not a map.
    #[must_use]
    pub fn entries(&self) -> &[(Key, Node)] {
        self.as_map().map_or(&[], |map| &map.entries)
    }

    /// Returns the value under a name; `None` if this is not a map or has no such name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.as_map()?.get(name)
    }

    /// Whether the value is `null`, `~` or empty.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// Whether a problem with this value was already reported.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(self.value, Value::Invalid)
    }

    /// Removes an entry from a map. From then on the name counts as known, and is suggested for misspelt names.
    pub fn take(&mut self, name: &'static str) -> Option<(Key, Node)> {
        let Value::Map(map) = &mut self.value else {
            return None;
        };
        if !map.asked.contains(&name) {
            map.asked.push(name);
        }
        map.remove(name)
    }

    /// The node under a path of names and list indexes, joined by dots: `tls.cert`, `listen.0`.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&Node> {
        path.split('.')
            .try_fold(self, |node, step| match &node.value {
                Value::Map(map) => map.get(step),
                Value::List(list) => list.get(step.parse::<usize>().ok()?),
                _ => None,
            })
    }

    /// Returns the name (with its place) and the value of an entry of a map.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<(&Key, &Self)> {
        match &self.value {
            Value::Map(map) => map.entry(name),
            _ => None,
        }
    }

    /// Returns an error at the option under `path` (as in [`Node::find`]), or at its nearest parent that is written in the
    /// file.
    ///
    /// Components call this when they check a value that has the right type but cannot be used.
    #[must_use]
    pub fn problem_at(&self, path: &str, message: impl Into<String>) -> Problem {
        let mut place = &self.place;
        let mut node = self;
        for step in path.split('.') {
            match node.find(step) {
                Some(next) => node = next,
                None => break,
            }
            place = &node.place;
        }
        Problem::new(place, message)
    }

    /// A description of the value for a message: `the number 12`, `a list`. Secrets are not shown.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Text(_) if self.is_secret() => "a text that is not shown".to_owned(),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) if self.is_secret() => {
                self.kind().to_owned()
            }
            Value::Bool(value) => format!("`{value}`"),
            Value::Integer(value) => format!("the number {value}"),
            Value::Float(value) => format!("the number {value}"),
            Value::Text(text) => format!("the text {}", words::quote(&text.text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
            Value::Invalid => "something that cannot be read".to_owned(),
        }
    }

    /// Whether the value is a scalar that must not be shown.
    pub(crate) fn is_secret(&self) -> bool {
        match &self.value {
            Value::List(_) | Value::Map(_) => false,
            Value::Text(text) if text.secret => true,
            _ => self.place.is_secret(),
        }
    }

    /// Like [`Node::describe`], without the value itself.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "`true` or `false`",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
            Value::Invalid => "something that cannot be read",
        }
    }
}
