//! Errors while an option is read. serde returns them from the innermost value outwards, and each level adds its step
//! (a name or an index) to the path.
//!
//! serde's own messages are for programmers; this module translates them into the terms of the configuration.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use crate::node::{Node, Text, Value};
use crate::place::Place;
use crate::problem::Problem;
use crate::secret::{HIDDEN, SECRET_WANTED};
use crate::words::{self, Word};

/// A step from a node to one of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Name(String),
    Index(usize),
}

/// The kind of an error.
#[derive(Debug)]
pub(crate) enum Kind {
    /// The value has another type than the option, or is out of range. The text is serde's description of the option's type.
    Wanted(String),
    /// The message of a type's own check.
    Custom(String),
    /// The name of an unknown option.
    UnknownName {
        word: String,
        known: Vec<&'static str>,
    },
    /// The name of an unknown choice.
    UnknownChoice {
        word: String,
        known: &'static [&'static str],
    },
    /// A required option is missing.
    Missing(&'static str),
    /// The value is invalid, and its problem was reported before. Holds a stand-in: a value of the right type, with which the next read can
    /// continue. `None` if the type has no stand-in.
    Invalid(Option<Value>),
}

/// The error that ended a read.
#[derive(Debug)]
pub(crate) struct ReadError {
    pub(crate) kind: Kind,
    /// The steps to the value with the error, the innermost step first.
    pub(crate) path: Vec<Step>,
    /// The node with the error, without its children.
    pub(crate) at: Option<Box<Node>>,
}

impl ReadError {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            path: Vec::new(),
            at: None,
        }
    }

    /// Sets the node with the error, unless a deeper node is set already.
    pub(crate) fn at(mut self, node: &Node) -> Self {
        self.at.get_or_insert_with(|| Box::new(stem(node)));
        self
    }

    /// Like [`ReadError::at`], for a place without a node, such as a name.
    pub(crate) fn at_place(mut self, place: &Place, text: &str) -> Self {
        let value = Value::Text(Text::new(text));
        let place = place.clone();
        self.at
            .get_or_insert_with(|| Box::new(Node { value, place }));
        self
    }

    /// Adds a step to the path.
    pub(crate) fn under(mut self, step: Step) -> Self {
        self.path.push(step);
        self
    }

    /// Returns the problem for the user; `None` if it was reported before. `names` is the kind of the names in the root's map: settings at
    /// the top of the configuration, and options in all other maps.
    pub(crate) fn problem(&self, root: &Node, names: Word) -> Option<Problem> {
        let at = self.at.as_deref().unwrap_or(root);
        let name = self.name();
        Some(match &self.kind {
            Kind::Invalid(_) => return None,
            Kind::Wanted(wanted) => wrong_type(&name, wanted, at),
            Kind::Custom(message) if message.starts_with("data did not match any variant") => {
                let message = format!(
                    "{name} can be written in several ways, but not as {}",
                    at.describe()
                );
                Problem::new(&at.place, message)
            }
            Kind::Custom(message) => Problem::new(
                &at.place,
                format!(
                    "{name}: {}",
                    hide(
                        message,
                        at,
                        "the value cannot be used here; it is not shown"
                    )
                ),
            ),
            Kind::UnknownName { word, known } => {
                let what = if self.path.len() == 1 {
                    names
                } else {
                    Word::Option
                };
                words::unknown(what, hide(word, at, HIDDEN), &at.place, known)
            }
            Kind::UnknownChoice { word, known } => {
                words::unknown(Word::Choice, hide(word, at, HIDDEN), &at.place, known)
            }
            Kind::Missing(option) => {
                Problem::new(&at.place, format!("the option `{option}` is missing"))
            }
        })
    }

    /// The name of the option with the error.
    fn name(&self) -> String {
        self.path
            .iter()
            .find_map(|step| match step {
                Step::Name(name) => Some(words::quote(name)),
                Step::Index(_) => None,
            })
            .unwrap_or_else(|| "this".to_owned())
    }
}

/// Returns the message of a type's own check, or `instead` if the value is secret, because the message may repeat the value.
fn hide<'a>(message: &'a str, at: &Node, instead: &'a str) -> &'a str {
    match at.is_secret() {
        true => instead,
        false => message,
    }
}

/// A node without its children, which is enough to describe it.
fn stem(node: &Node) -> Node {
    let value = match &node.value {
        Value::List(_) => Value::List(Vec::new()),
        Value::Map(_) => Value::Map(crate::node::Map::default()),
        other => other.clone(),
    };
    Node {
        value,
        place: node.place.clone(),
    }
}

fn wrong_type(name: &str, wanted: &str, at: &Node) -> Problem {
    let words = wanted_words(wanted);
    if at.is_null() {
        let message = format!("{name} has no value, it must be {words}");
        return Problem::new(&at.place, message)
            .help("leave the line out to get the default, if there is one");
    }
    let found = match wanted == SECRET_WANTED {
        true => at.kind().to_owned(),
        false => at.describe(),
    };
    let mut problem = Problem::new(&at.place, format!("{name} must be {words}, found {found}"));
    problem.is_secret = wanted == SECRET_WANTED;
    match help(wanted, at) {
        Some(help) => problem.help(help),
        None => problem,
    }
}

fn help(wanted: &str, at: &Node) -> Option<String> {
    let is_hidden = wanted == SECRET_WANTED || at.is_secret() || at.place.is_secret();
    let written = match is_hidden {
        true => "",
        false => at.place.slice().unwrap_or_default(),
    };
    let is_text = matches!(wanted, "a string" | "path string" | "a character");
    match &at.value {
        Value::Map(_) if is_text && is_template(written) => {
            Some(format!("a text with `{{` must be in quotes: \"{written}\""))
        }
        Value::List(_) if is_text && written.starts_with('[') => Some(
            "one text is wanted, without brackets; a text that begins with `[` must be in quotes"
                .to_owned(),
        ),
        Value::Integer(_) | Value::Float(_) | Value::Bool(_)
            if is_hidden && (is_text || wanted == SECRET_WANTED) =>
        {
            Some("put it in quotes".to_owned())
        }
        Value::Integer(_) | Value::Float(_) | Value::Bool(_) if is_text => {
            Some(format!("put it in quotes: \"{written}\""))
        }
        Value::Text(_) if is_hidden => None,
        Value::Text(text) if wanted == "a boolean" => {
            let is = match text.text.to_ascii_lowercase().as_str() {
                "yes" | "on" | "y" | "1" | "true" => "true",
                "no" | "off" | "n" | "0" | "false" => "false",
                _ => return None,
            };
            Some(format!("write `{is}`, without quotes"))
        }
        Value::Text(text) if text.text.parse::<f64>().is_ok() => {
            Some("a number is written without quotes".to_owned())
        }
        Value::Text(_) | Value::Integer(_) if wanted == "a sequence" && !written.is_empty() => {
            Some(format!("a list is written in brackets: [{written}]"))
        }
        _ => None,
    }
}

/// Whether a map was probably meant as a template: `{tag}`, `{.user.id}`, `{host|unknown}`.
fn is_template(written: &str) -> bool {
    let inner = written.strip_prefix('{').and_then(|w| w.strip_suffix('}'));
    inner.is_some_and(|inner| !inner.contains([':', ',', ' ', '{']))
}

/// Translates serde's description of a type into the terms of the configuration.
fn wanted_words(wanted: &str) -> String {
    let words = match wanted {
        "a boolean" => "`true` or `false`",
        "a string" | "a borrowed string" | "string" => "a text",
        "path string" => "a path",
        "a character" => "one character",
        "a sequence" => "a list",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" | "u128" => "a whole number, not below 0",
        "i8" | "i16" | "i32" | "i64" | "isize" | "i128" => "a whole number",
        "f32" | "f64" => "a number",
        "unit" => "nothing",
        "a map" => "a map",
        "a nonzero u16" => "a whole number from 1 to 65535",
        "a nonzero u32" => "a whole number from 1 to 4294967295",
        "a nonzero u8" => "a whole number from 1 to 255",
        _ if wanted.starts_with("a nonzero") => "a whole number above 0",
        _ if wanted.starts_with("struct ") => "a map of options",
        _ if wanted.starts_with("enum ") => "one of several choices",
        other => other,
    };
    words.to_owned()
}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Kind::Custom(message.to_string()))
    }

    fn invalid_type(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::new(Kind::Wanted(wanted.to_string()))
    }

    fn invalid_value(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::new(Kind::Wanted(wanted.to_string()))
    }

    fn invalid_length(length: usize, wanted: &dyn Expected) -> Self {
        Self::new(Kind::Custom(format!(
            "must be {wanted}, found {length} elements"
        )))
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::new(Kind::UnknownChoice {
            word: word.to_owned(),
            known,
        })
    }

    fn unknown_field(word: &str, known: &'static [&'static str]) -> Self {
        Self::new(Kind::UnknownName {
            word: word.to_owned(),
            known: known.to_vec(),
        })
    }

    fn missing_field(option: &'static str) -> Self {
        Self::new(Kind::Missing(option))
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

impl std::error::Error for ReadError {}
