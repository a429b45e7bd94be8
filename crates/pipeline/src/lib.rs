//! The contract between nodes (Source, Channel, Sink) and the runtime around it: Config -> Plan -> Running.

pub mod channel;
pub mod condition;
mod data_dir;
pub mod delivery;
pub mod failure;
pub mod guard;
pub mod inlet;
pub mod launch;
pub mod layout;
pub mod meters;
pub mod node;
pub mod outlet;
pub mod plan;
pub mod promise;
pub mod reject;
pub mod rejected;
mod rejection_log;
pub mod report;
pub mod running;
pub mod state;
pub mod stop;
pub mod supervise;
pub mod tables;
pub mod tags;
pub mod threads;
mod unopened;
