//! The commands, one per file: the options with their help, and the work.

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
mod verdict;
