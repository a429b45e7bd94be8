//! Retries a request until it succeeds or fails permanently.

use std::time::Duration;

use millstream_pipeline::{
    failure::{Again, Failure},
    node::SinkContext,
};

use crate::sending::{Outage, Retry, Then};

/// How requests are retried.
#[derive(Clone)]
pub(crate) struct Patience {
    retry: Retry,
    context: SinkContext,
    /// Behind a durable channel a stop ends the retries: the channel redelivers unpublished records at the next start.
    durable: bool,
}

impl Patience {
    pub(crate) fn new(retry: &Retry, context: &SinkContext, durable: bool) -> Self {
        Self {
            retry: *retry,
            context: context.clone(),
            durable,
        }
    }

    /// Calls `act` until it succeeds or no retry can help.
    pub(crate) async fn keep_trying<T>(
        &self,
        mut act: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // A publishing sink never gives up. Its condition stays raised until this function returns.
        let retry = Retry {
            give_up: Default::default(),
            ..self.retry
        };
        let mut outage = Outage::new(&retry, &self.context, self.durable, "retry");
        loop {
            let failure = match act().await {
                Err(failure) if failure.again != Again::Never => failure,
                other => return other,
            };
            if outage.retry(&failure, Duration::ZERO).await != Then::Retry {
                return Err(failure);
            }
        }
    }
}
