//! Tests of whole programs.

mod bounded;
mod closures;
mod diagnostics;
mod examples;
mod memory;
mod projection;
mod records;
mod repeatable;
