//! The configuration of Millstream: YAML files to a tree with places, and from there to Rust types with errors that help.
//!
//! It stands before the line: files -> tree (`parse`) -> substitution -> sections -> each node's own options (`read`).
//! It promises every problem at once, each with file, line, column and what to do, and that no text makes it panic or grow.
//! What the options of a node are, and whether the graph makes sense, is known elsewhere.

pub mod names;
mod node;
mod one_or_many;
mod parse;
mod period;
mod place;
mod problem;
mod read;
mod scalar;
mod secret;
mod size;
mod words;

pub use node::{Key, Map, Node, Text, Value};
pub use one_or_many::OneOrMany;
pub use period::Period;
pub use place::{Place, Source};
pub use problem::{Problem, Problems, Severity};
pub use read::fields;
pub use secret::Secret;
pub use size::Size;
pub use words::{Word, unknown};
