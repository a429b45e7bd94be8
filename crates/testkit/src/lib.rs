//! What the tests of several crates share: a simulated disk and the random numbers that drive it.
//!
//! Nothing of it is part of the program. Everything in here is deterministic: a seed that a failing test prints brings
//! the same run again.

mod disk;
mod random;

pub use disk::{Call, Crash, SimulatedDisk};
pub use random::Random;
