//! The processors: one directory each, and one line each in the list below.

mod condition;
mod exec;
mod fields;
mod filter;
mod parse;
#[cfg(test)]
mod rig;
mod route;
mod sample;

use millstream_pipeline::node::Component;

/// All processors.
pub const COMPONENTS: &[Component] = &[
    exec::COMPONENT,
    fields::COMPONENT,
    filter::COMPONENT,
    parse::COMPONENT,
    route::COMPONENT,
    sample::COMPONENT,
];
