//! What a plan means, for `millstream explain`: the graph, the promise of every path, who waits for whom.
//!
//! The model is here; `text`, `mermaid` and `dot` show it.

pub mod dot;
pub mod mermaid;
mod model;
#[cfg(test)]
mod tests;
pub mod text;

pub use model::{Explained, Kind, Node, Path, Port, Source};
