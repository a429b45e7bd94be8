//! Tests the checks with components that keep the contracts, and with components that break them.

use std::sync::{
    Arc, Mutex,
    mpsc::{SyncSender, sync_channel},
};

use millstream_pipeline::{
    inlet::{Inlet, Item},
    node::{LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};

use tokio::sync::mpsc;

use super::*;
use crate::block_on;

/// The number of batches that the source sends.
const BATCHES: u64 = 5;

/// A source that sends [`BATCHES`] batches. It may have a bug that breaks the contract.
#[derive(Default)]
struct Numbers {
    settled: u64,
    /// Ends without waiting for answers.
    hasty: bool,
    /// Counts a dropped batch as settled.
    careless: bool,
}

impl Source for Numbers {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            while self.settled < BATCHES && !context.stop.is_stopped() {
                let receipt = context.outlet.send(lines("a\n"), true).await;
                if self.hasty || receipt.await.is_ok() || self.careless {
                    self.settled += 1;
                }
            }
            Ok(())
        })
    }

    fn values(&self) -> &'static [&'static str] {
        &[]
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtLeastOnce, "")
    }
}

fn check_source(build: &dyn Fn() -> Numbers) {
    let case = SourceCase {
        build: &|| Box::new(build()),
        peer: None,
        records: BATCHES,
        rejected: 0,
        directory: "unused".as_ref(),
    };
    block_on(case.check());
}

#[test]
fn a_source_that_waits_and_resends_keeps_the_contract() {
    check_source(&Numbers::default);
}

#[test]
#[should_panic(expected = "ends only when its batches in flight are answered")]
fn a_source_that_does_not_wait_for_answers_breaks_the_contract() {
    check_source(&|| Numbers {
        hasty: true,
        ..Numbers::default()
    });
}

#[test]
#[should_panic(expected = "4 of 5 records are settled")]
fn a_source_that_does_not_resend_breaks_the_contract() {
    check_source(&|| Numbers {
        careless: true,
        ..Numbers::default()
    });
}

/// A request to [`Desk`]: the sender for its answer.
type Request = SyncSender<()>;

/// A source that sends a record for each request, and answers the request once the record is settled; if it is `early`, before that.
struct Desk {
    requests: mpsc::Receiver<Request>,
    early: bool,
}

impl Source for Desk {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, mut context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            loop {
                let request = tokio::select! {
                    request = self.requests.recv() => request,
                    () = context.stop.stopped() => None,
                };
                let Some(request) = request else {
                    return Ok(());
                };
                let receipt = context.outlet.send(lines("a\n"), true).await;
                if self.early || receipt.await.is_ok() {
                    // The peer may be gone.
                    let _ = request.send(());
                }
            }
        })
    }

    fn values(&self) -> &'static [&'static str] {
        &[]
    }

    fn promise(&self, _: bool) -> Promise {
        Promise::new(Guarantee::AtLeastOnce, "")
    }
}

fn check_desk(early: bool) {
    let door = Arc::new(Mutex::new(mpsc::channel(1).0));
    let entrance = door.clone();
    let peer = move || {
        let (answer, answered) = sync_channel(1);
        let door = entrance.lock().unwrap().clone();
        door.blocking_send(answer).is_ok() && answered.recv().is_ok()
    };
    let build = || {
        let (sender, requests) = mpsc::channel(1);
        *door.lock().unwrap() = sender;
        Box::new(Desk { requests, early }) as Box<dyn Source>
    };
    let case = SourceCase {
        build: &build,
        peer: Some(Arc::new(peer)),
        records: 1,
        rejected: 0,
        directory: "unused".as_ref(),
    };
    block_on(case.check());
}

#[test]
fn a_source_that_answers_its_peers_when_their_records_are_settled_keeps_the_contract() {
    check_desk(false);
}

#[test]
#[should_panic(expected = "a source answers only for what is settled: 0 of 1 records")]
fn a_source_that_answers_early_breaks_the_contract() {
    check_desk(true);
}

/// Runs a sink that stores lines in `output`. If it is `early`, it settles them before it stores them.
fn run_sink<'a>(
    inlet: &'a mut Inlet,
    output: Arc<Mutex<Vec<String>>>,
    early: bool,
) -> LocalFuture<'a, Result<(), Failure>> {
    Box::pin(async move {
        inlet.resume(None)?;
        let mut held = Vec::new();
        while let Some(item) = inlet.next().await? {
            match item {
                Item::Batch(batch, _) => {
                    let text = String::from_utf8_lossy(&batch.body).into_owned();
                    held.extend(text.lines().map(str::to_owned));
                }
                Item::Checkpoint(checkpoint) if early => {
                    inlet.settle(checkpoint).await?;
                    output.lock().unwrap().append(&mut held);
                }
                Item::Checkpoint(checkpoint) => {
                    output.lock().unwrap().append(&mut held);
                    inlet.settle(checkpoint).await?;
                }
            }
        }
        Ok(())
    })
}

fn check_sink(early: bool) {
    let output = Arc::new(Mutex::new(Vec::new()));
    let destination = output.clone();
    let case = SinkCase {
        run: &|inlet, _| run_sink(inlet, output.clone(), early),
        arrived: Some(Arc::new(move || destination.lock().unwrap().clone())),
        directory: "unused".as_ref(),
        misfit: None,
    };
    block_on(case.check());
}

#[test]
fn a_sink_that_writes_and_then_settles_keeps_the_contract() {
    check_sink(false);
}

#[test]
#[should_panic(expected = "was settled before it had arrived")]
fn a_sink_that_settles_before_it_writes_breaks_the_contract() {
    check_sink(true);
}
