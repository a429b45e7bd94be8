//! Tests of the sink with a small correct receiver: properties that must hold whatever the network does.

mod everyone;
mod failures;
mod frames;
mod growth;
mod hearts;
mod members;
mod random;
mod server;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use millstream_pipeline::{delivery::Receipt, promise::Guarantee};

use super::COMPONENT;
use crate::rig::{Rig, Upstream, build, check_contract, misfit};
use server::{Act, Received, Server};

/// Runs a test on one runtime with local tasks. The time limit is five minutes, so that a slow machine does not fail the
/// test.
fn local<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let limit = Duration::from_secs(300);
    let test = async {
        tokio::time::timeout(limit, test)
            .await
            .expect("the test hangs")
    };
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

/// Options with these servers and short waits; `more` is JSON that starts with a comma.
fn options(servers: &[&Server], more: &str) -> String {
    let servers: Vec<_> = servers
        .iter()
        .map(|server| server.address.to_string())
        .collect();
    let mut options = format!(r#"{{"servers": {servers:?}{more}"#);
    if !more.contains("retry") {
        options += r#", "retry": {"first": "10ms", "max": "50ms", "timeout": "1s"}"#;
    }
    // No heartbeats, so that only connections for records are counted.
    if !more.contains("heartbeat") {
        options += r#", "heartbeat": {"by": "none"}"#;
    }
    options + "}"
}

fn rig(upstream: &Upstream, options: &str) -> Rig {
    Rig::new(&COMPONENT, options, upstream, "unused".as_ref())
}

/// Runs the sink until `until` is ready, then stops it by dropping its future.
async fn run_until<T>(rig: &mut Rig, until: impl Future<Output = T>) -> T {
    tokio::select! {
        ended = rig.run() => panic!("the sink ended: {ended:?}"),
        done = until => done,
    }
}

/// Returns once `is` returns true.
async fn eventually(is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "the condition never became true"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn settled(receipt: &Receipt) -> bool {
    receipt.try_outcome() == Some(Ok(()))
}

/// Checks that the same id always came with the same bytes; returns the frames without repeats.
fn once_each(received: &[Received]) -> Vec<&Received> {
    let mut by_id: HashMap<&[u8], &Received> = HashMap::new();
    let mut first = Vec::new();
    for frame in received {
        match by_id.get(&*frame.id) {
            Some(before) => {
                assert_eq!((&before.tag, &before.payload), (&frame.tag, &frame.payload));
            }
            None => {
                by_id.insert(&frame.id, frame);
                first.push(frame);
            }
        }
    }
    first
}

#[test]
fn explain_says_that_exactly_once_needs_names_with_one_address() {
    let options = r#"{"servers": "aggregators:24224", "peer": "millstream"}"#;
    let promise = build(&COMPONENT, options).promise(true);
    assert_eq!(promise.guarantee, Guarantee::ExactlyOnce);
    assert!(promise.condition.contains("its name has one address"));
}

#[test]
fn it_keeps_the_contract_of_sinks() {
    local(async {
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let stored = Arc::clone(&arrived);
        let server = Server::start(move |received| {
            stored.lock().unwrap().extend(received.messages());
            Act::Ack
        });
        let server = server.await;
        let add = r#", "add": {"copy": "{.message}"}"#;
        let sink = build(&COMPONENT, &options(&[&server], add));
        let arrived = move || arrived.lock().unwrap().clone();
        check_contract(&sink, "unused".as_ref(), arrived, Some(misfit())).await;
    });
}
