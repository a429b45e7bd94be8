//! Retries requests until they succeed or fail permanently.

use std::time::Duration;

use millstream_pipeline::{
    condition::Trouble,
    failure::{Again, Failure},
    node::SinkContext,
    report::Reporter,
    stop::Stop,
};

use crate::{backoff::Backoff, retry::Retry};

/// The retry policy.
#[derive(Clone)]
pub(crate) struct Patience {
    first: Duration,
    max: Duration,
    reporter: Reporter,
    /// Behind a durable channel a stop ends the retries: unpublished records are read again at the next start.
    stop: Option<Stop>,
}

impl Patience {
    pub(crate) fn new(retry: &Retry, context: &SinkContext, durable: bool) -> Self {
        Self {
            first: retry.first.as_duration(),
            max: retry.max.as_duration(),
            reporter: context.reporter.clone(),
            stop: durable.then(|| context.stop.clone()),
        }
    }

    /// Retries `act` until it succeeds or fails permanently.
    pub(crate) async fn keep_trying<T>(
        &self,
        mut act: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut backoff = Backoff::new(self.first, self.max, u64::from(std::process::id()));
        // Raised until this returns.
        let failing = self.reporter.condition("retry");
        loop {
            let failure = match act().await {
                Err(failure) if failure.again != Again::Never => failure,
                other => return other,
            };
            let wait = backoff.failed();
            failing.raise(
                Trouble::Retrying,
                format_args!("{failure}; retrying in {} ms", wait.as_millis()),
            );
            let Some(mut stop) = self.stop.clone() else {
                tokio::time::sleep(wait).await;
                continue;
            };
            tokio::select! {
                biased;
                () = stop.stopped() => return Err(failure),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}
