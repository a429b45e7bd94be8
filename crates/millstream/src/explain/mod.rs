//! Explains a plan (the checked configuration) for `millstream explain`: the graph, the promise (delivery guarantee) of each path, and
//! which nodes wait for which.
//!
//! `model` computes the explanation; `text` (with `drawing`), `mermaid` and `dot` render it.

pub mod dot;
mod drawing;
pub mod mermaid;
mod model;
#[cfg(test)]
mod tests;
pub mod text;

pub use model::{Edge, Explained, Kind, Node, Path, Port, Source};
