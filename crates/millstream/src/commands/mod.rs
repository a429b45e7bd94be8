//! One file per command: its options with their help, and what it does.

pub mod channel;
pub mod check;
pub mod components;
pub mod explain;
pub mod rejected;
pub mod run;
pub mod schema;
pub mod status;
pub mod test;
