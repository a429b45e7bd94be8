//! The ports of nodes that leave the graph and come back.

use millstream_testkit::{block_on, lines};

use super::*;
use crate::{reject, rejected::RejectedFile};

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
    let settings = RunSettings {
        data_dir: directory.path().to_owned(),
        memory_max: 1 << 20,
        threads: 1,
        host: "h".into(),
        rejected: RejectedLimits::default(),
    };
    let (pool, meters) = (Pool::new(1 << 20), Meters::default());
    let mut graph = Graph::new(&pool, &meters, &settings, 1);
    let node = "p".into();
    block_on(async {
        let old = rejecting(&mut graph, &node);
        reject(&old, "1").await;
        graph.forget(&node);
        let new = rejecting(&mut graph, &node);
        reject(&new, "2").await;
        reject(&old, "3").await;
        reject(&new, "4").await;
        assert_eq!(meters.value("p", REJECTED_KEPT), 2);
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
