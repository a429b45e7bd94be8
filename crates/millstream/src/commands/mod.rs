//! One file per command: its options with their help, and what it does.

pub mod channel;
pub mod check;
pub mod components;
pub mod explain;
mod instance;
pub mod rejected;
pub mod reload;
pub mod run;
pub mod schema;
pub mod status;
pub mod tap;
pub mod test;
pub mod top;
