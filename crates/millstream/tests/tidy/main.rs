//! Checks the conventions of this code base that a test can check.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step fails the test; one test prints a table"
)]

mod circles;
mod crates;
mod documents;
mod files;
mod hops;
mod house;
mod prose;
mod tree;
