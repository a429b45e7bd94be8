//! What the tests of several crates share: a simulated disk, the random numbers that drive it, and certificates.
//!
//! Nothing of it is part of the program. Everything in here but the certificates is deterministic: a seed that a
//! failing test prints brings the same run again.

mod authority;
mod disk;
mod random;

pub use authority::Authority;
pub use disk::{Call, Crash, SimulatedDisk};
pub use random::Random;
