//! The processors: one directory each, and one line each in the list below.

mod condition;
mod filter;
mod parse;
#[cfg(test)]
mod rig;
mod route;

use millstream_pipeline::node::Component;

/// All processors.
pub const COMPONENTS: &[Component] = &[filter::COMPONENT, parse::COMPONENT, route::COMPONENT];
