//! What the tests of several crates share: a simulated disk, the random numbers that drive it, the errors that are logged,
//! certificates, and real servers.
//!
//! Nothing of it is part of the program. Everything in here but the certificates and servers is deterministic: a seed that a
//! failing test prints brings the same run again.

mod authority;
mod disk;
mod log;
mod random;
pub mod server;

pub use authority::Authority;
pub use disk::{Call, Crash, SimulatedDisk, trial};
pub use log::logged_errors;
pub use random::Random;
