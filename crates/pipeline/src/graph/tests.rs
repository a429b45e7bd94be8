//! The ports of nodes that leave the graph and come back, and the destinations of batches that are on their way during reloads.

use std::{
    future::Future,
    path::Path,
    pin::pin,
    task::{Context, Waker},
};

use millstream_testkit::{block_on, lines};
use tokio::sync::Semaphore;

use super::*;
use crate::{
    channel::{BoxFuture, Channel, Group},
    reject,
    rejected::RejectedFile,
};

/// A graph without nodes.
fn graph(data_dir: &Path) -> Graph {
    let settings = RunSettings {
        data_dir: data_dir.to_owned(),
        memory_max: 1 << 20,
        threads: 1,
        host: "h".into(),
        rejected: RejectedLimits::default(),
    };
    Graph::new(&Pool::new(1 << 20), &Meters::default(), &settings, 1)
}

/// Opens the port for the rejected records of a node, which no other node takes.
fn rejecting(graph: &mut Graph, node: &Arc<str>) -> Outlet {
    let outlet = graph.outlet(node, true);
    let wires = graph.reject_wires(node, Vec::new());
    outlet.rewire(wires);
    outlet
}

async fn reject(outlet: &Outlet, text: &str) {
    let batch = reject::batch("p", &lines("t", ""), [text.as_bytes()], "why");
    outlet.send(batch, true).await.await.unwrap();
}

#[test]
fn a_processor_that_comes_back_and_its_old_chain_keep_all_rejected_records() {
    let directory = tempfile::tempdir().unwrap();
    let mut graph = graph(directory.path());
    let node = "p".into();
    block_on(async {
        let old = rejecting(&mut graph, &node);
        reject(&old, "1").await;
        graph.forget(&node);
        let new = rejecting(&mut graph, &node);
        reject(&new, "2").await;
        reject(&old, "3").await;
        reject(&new, "4").await;
        assert_eq!(graph.meters.value("p", REJECTED_KEPT), 2);
    });
    let path = rejected::directory(directory.path()).join("p.msgpack");
    let mut messages = Vec::new();
    let mut file = RejectedFile::open(&path).unwrap();
    let partial = file.read(|rejected| {
        messages.push(rejected.unwrap().message.to_vec());
        Ok::<_, std::io::Error>(())
    });
    assert_eq!(partial.unwrap(), 0);
    assert_eq!(messages, [b"1", b"2", b"3", b"4"]);
    graph.forget(&node);
    assert!(graph.files.is_empty());
}

/// A durable channel behind a slow processor: it accepts a group for each permit.
struct Slow(Semaphore);

impl Channel for Slow {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.acquire().await.unwrap().forget();
            group.token.settle();
        })
    }

    fn close(&self) {}

    fn id(&self) -> Option<u128> {
        Some(1)
    }
}

/// Connects a port with the channel of `feed`, as a reload does.
fn connect(graph: &mut Graph, port: &Port, outlet: &Outlet, feed: &Arc<Feed>) {
    let edges = vec![Edge::to(feed.clone())];
    let wires = Wires { edges, log: None };
    graph.apply(Draft {
        joining: Joining::default(),
        channels: graph.channels.iter().map(Consumer::drafted).collect(),
        sinks: Vec::new(),
        wires: vec![(port.clone(), outlet.clone(), wires)],
    });
}

#[test]
fn the_destinations_of_a_batch_are_known_until_it_has_arrived_even_after_other_reloads() {
    let directory = tempfile::tempdir().unwrap();
    // The port of a source, and the port for the rejected records of any node.
    for is_rejected in [false, true] {
        let mut graph = graph(directory.path());
        let slow = Arc::new(Slow(Semaphore::new(0)));
        let feed = Feed::new(slow.clone());
        let consumer = Consumer::behind_chain(&"kept".into(), &Reporter::new("kept"), &feed);
        graph.channels.push(consumer);
        let node = "n".into();
        let outlet = graph.outlet(&node, is_rejected);
        let port = Port { node, is_rejected };
        connect(&mut graph, &port, &outlet, &feed);
        let mut send = pin!(outlet.send(lines("t", "a\n"), false));
        let mut context = Context::from_waker(Waker::noop());
        assert!(send.as_mut().poll(&mut context).is_pending());
        connect(&mut graph, &port, &outlet, &feed);
        let before = graph.wires_to("kept", |_| false);
        // The port for the rejected records of a node that leaves would keep its destinations for too long.
        let of_leaving = graph.wires_to("kept", |_| true);
        assert_eq!(of_leaving.len(), before.len() - usize::from(is_rejected));
        connect(&mut graph, &port, &outlet, &feed);
        let coming = || {
            let coming = before.iter().filter(|wires| wires.strong_count() > 0);
            coming.count()
        };
        assert_eq!(coming(), 1);
        slow.0.add_permits(1);
        block_on(async { send.await.await.unwrap() });
        assert_eq!(coming(), 0);
        connect(&mut graph, &port, &outlet, &feed);
        assert!(graph.past.is_empty());
    }
}
