//! The contracts of sources, channels and sinks, as checks that the tests of every component run.
//!
//! The unit test of a component fills in a [`SourceCase`], [`ChannelCase`] or [`SinkCase`] and calls `check`. Each check panics
//! with the sentence of the contract that the component breaks.

mod channel;
mod sink;
mod source;
#[cfg(test)]
mod tests;

pub use channel::ChannelCase;
pub use sink::SinkCase;
pub use source::{Peer, SourceCase};

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
    time::Duration,
};

use millstream_pipeline::{delivery::Unsettled, failure::Failure};
use millstream_record::{Batch, Time};

/// The timeout of each step of a check.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a check watches for something that must not happen.
const WATCH: Duration = Duration::from_millis(50);

/// Awaits `future`.
///
/// # Panics
/// If the future takes too long. The message contains `step`.
async fn within<T>(step: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(PATIENCE, future).await;
    result.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {step}"))
}

/// Awaits one run of a node. Returns an error if it panics.
async fn caught<T>(run: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    let mut run = pin!(run);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(context)));
        match polled {
            Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Asserts that a run ended without an error, because its input ended or it was stopped.
fn assert_ended(result: Result<(), Failure>, step: &str) {
    if let Err(failure) = result {
        panic!("{step}: it failed: {failure}");
    }
}

/// The outcome of a receipt whose batch was settled.
const SETTLED: Option<Result<(), Unsettled>> = Some(Ok(()));

/// A batch of lines.
fn lines(text: &str) -> Batch {
    Batch {
        received: Time(1_700_000_000_000_000_000),
        ..crate::lines("t", text)
    }
}

/// The text of a line that a check sends.
fn line(check: &str, number: usize) -> String {
    format!("{check} {number:04}")
}
