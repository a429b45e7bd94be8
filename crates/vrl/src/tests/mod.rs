//! Tests of whole programs.

mod bounded;
mod diagnostics;
mod examples;
mod projection;
mod records;
mod repeatable;
