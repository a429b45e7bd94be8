//! The processors. Each one has a directory, and an entry in the list below.

mod compiling;
mod condition;
#[cfg(test)]
mod contributing;
mod exec;
mod fields;
mod filter;
mod language;
mod parse;
mod remap;
#[cfg(test)]
mod rig;
mod route;
mod sample;
mod zone;

pub use compiling::{Session as Compiling, has_command as has_compiler, serve as compile_programs};
#[cfg(feature = "fuzzing")]
pub use exec::fuzzing;
pub use exec::kill_all as kill_programs;
use millstream_pipeline::node::Component;
pub use millstream_vrl::bound_memory;

/// All processors.
pub const COMPONENTS: &[Component] = &[
    exec::COMPONENT,
    fields::COMPONENT,
    filter::COMPONENT,
    parse::COMPONENT,
    remap::COMPONENT,
    route::COMPONENT,
    sample::COMPONENT,
];
