//! Tests of whole programs.

mod bounded;
mod closures;
mod diagnostics;
mod examples;
mod projection;
mod records;
mod repeatable;
