//! The contract between nodes (Source, Channel, Sink) and the runtime around it: Config -> Plan -> Running.

pub mod channel;
pub mod delivery;
pub mod failure;
pub mod guard;
pub mod inlet;
pub mod meters;
pub mod node;
pub mod outlet;
pub mod promise;
pub mod reject;
pub mod report;
pub mod stop;
pub mod tags;
pub mod threads;
