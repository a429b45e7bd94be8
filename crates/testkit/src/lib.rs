//! Code that the tests of several crates share: a simulated disk with its random numbers, the contracts of sources, channels
//! and sinks, captured error logs, certificates, and real servers.
//!
//! The program does not contain this code. Everything except certificates and servers is deterministic: the seed that a failing
//! test prints reproduces the run.

mod authority;
pub mod contract;
mod disk;
mod log;
mod random;
pub mod server;
pub mod walk_through;

use std::{future::Future, sync::Arc};

use millstream_record::{Batch, Encoding, Values};

pub use authority::Authority;
pub use disk::{Call, Crash, SimulatedDisk, trial};
pub use log::logged_errors;
pub use random::Random;

/// A batch of lines, with a receive time of 1970.
pub fn lines(tag: &str, text: &str) -> Batch {
    Batch {
        tag: tag.into(),
        encoding: Encoding::Lines,
        plain: false,
        body: text.to_owned().into(),
        count: u32::try_from(text.lines().count()).unwrap_or(u32::MAX),
        received: Default::default(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

/// Runs a future to its end on this thread, with timers and I/O.
///
/// # Panics
/// If the system has no resources for a runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(future)
}
