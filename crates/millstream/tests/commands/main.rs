//! The tools of an operator: the command line, the HTTP interface and `millstream channel`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step fails the test; a test prints what it measured"
)]

mod api;
mod cases;
mod channel;
mod command_line;
mod cookbook;
mod guides;
mod monitoring;
#[path = "../program/mod.rs"]
mod program;
