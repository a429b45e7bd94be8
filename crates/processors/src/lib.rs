//! The processors: one directory each, and one line each in the list below.

mod condition;
mod fields;
mod filter;
mod language;
mod parse;
mod remap;
#[cfg(test)]
mod rig;
mod route;

use millstream_pipeline::node::Component;

/// All processors.
pub const COMPONENTS: &[Component] = &[
    fields::COMPONENT,
    filter::COMPONENT,
    parse::COMPONENT,
    remap::COMPONENT,
    route::COMPONENT,
];
