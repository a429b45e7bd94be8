//! Servers that join and leave while chunks are in flight.

use std::{fs, path::Path};

use super::{server::Act, *};
use crate::rig::packed;

/// Returns options of a sink that reads its list of servers from this file.
pub(super) fn looking_at(path: &Path, more: &str) -> String {
    let path = path.to_str().unwrap();
    format!(
        r#"{{"discovery": {{"file": {path:?}, "interval": "10ms"}}, "batch": {{"size": "0"}},
            "retry": {{"first": "10ms", "max": "50ms", "timeout": "1s"}}, "heartbeat": {{"by": "none"}}{more}}}"#
    )
}

/// Replaces the list as tools do: by renaming a new file over it.
pub(super) fn list(path: &Path, servers: &[&Server]) {
    let lines: String = servers
        .iter()
        .map(|server| format!("- {}\n", server.address))
        .collect();
    let text = if lines.is_empty() {
        "[]\n".to_owned()
    } else {
        lines
    };
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

#[test]
fn a_server_that_joins_gets_its_share() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers.yaml");
        let (one, two) = (
            Server::start(|_| Act::Ack).await,
            Server::start(|_| Act::Ack).await,
        );
        list(&file, &[&one]);
        let upstream = Upstream::memory();
        let mut rig = rig(&upstream, &looking_at(&file, ""));
        run_until(&mut rig, async {
            let receipt = upstream.put(packed("t", "0\n"), true);
            eventually(|| settled(&receipt)).await;
            list(&file, &[&one, &two]);
            eventually(|| two.open() > 0).await;
            let receipts: Vec<_> = (0..20)
                .map(|number| upstream.put(packed("t", &format!("{number}\n")), true))
                .collect();
            eventually(|| receipts.iter().all(settled)).await;
            assert_eq!((one.received().len(), two.received().len()), (11, 10));
        })
        .await;
    });
}

#[test]
fn a_server_that_leaves_finishes_its_chunks_and_gets_no_more() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers.yaml");
        let late = |_: &Received| Act::AckLate(Duration::from_millis(200));
        let (leaving, other) = (Server::start(late).await, Server::start(|_| Act::Ack).await);
        list(&file, &[&leaving, &other]);
        let upstream = Upstream::durable(1);
        for number in 0..10 {
            upstream.put(packed("t", &format!("{number}\n")), false);
        }
        let mut rig = rig(&upstream, &looking_at(&file, ""));
        run_until(&mut rig, async {
            leaving.has(5).await;
            list(&file, &[&other]);
            eventually(|| leaving.open() == 0).await;
            upstream.put(packed("t", "10\n"), false);
            eventually(|| upstream.settled() == 11).await;
        })
        .await;
        assert_eq!(leaving.connections(), 1);
        let all = [leaving.received(), other.received()].concat();
        assert_eq!(all.len(), 11, "nothing went out twice");
        assert_eq!(once_each(&all).len(), 11);
        assert_eq!(rig.meter("chunks_resent"), 0);
    });
}

#[test]
fn chunks_of_a_dead_server_that_leaves_go_to_the_others() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers.yaml");
        let dead = Server::start(|_| Act::Silence).await;
        let other = Server::start(|_| Act::Ack).await;
        list(&file, &[&dead]);
        let upstream = Upstream::memory();
        let mut rig = rig(&upstream, &looking_at(&file, ""));
        run_until(&mut rig, async {
            let receipt = upstream.put(packed("t", "0\n"), true);
            dead.has(1).await;
            list(&file, &[&other]);
            eventually(|| other.open() > 0).await;
            assert_eq!(receipt.try_outcome(), None);
            drop(dead);
            eventually(|| settled(&receipt)).await;
            assert_eq!(other.received().len(), 1);
        })
        .await;
    });
}

#[test]
fn a_list_that_cannot_be_read_changes_nothing() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers.yaml");
        let server = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::memory();
        let mut rig = rig(&upstream, &looking_at(&file, ""));
        run_until(&mut rig, async {
            // The file does not exist yet, so the sink waits.
            let first = upstream.put(packed("t", "0\n"), true);
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(first.try_outcome(), None);
            list(&file, &[&server]);
            eventually(|| settled(&first)).await;
            for bad in ["", "- no server\n", "- [", "a: b\n"] {
                fs::write(&file, bad).unwrap();
                tokio::time::sleep(Duration::from_millis(30)).await;
                let receipt = upstream.put(packed("t", "1\n"), true);
                eventually(|| settled(&receipt)).await;
            }
            assert_eq!(server.connections(), 1);
        })
        .await;
    });
}

#[test]
fn every_address_of_a_dns_name_is_a_server() {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let port = server.address.port();
        let options = format!(
            r#"{{"discovery": {{"dns": "localhost:{port}"}}, "retry": {{"first": "10ms", "max": "50ms"}}}}"#
        );
        let upstream = Upstream::memory();
        let receipt = upstream.put(packed("t", "0\n"), true);
        upstream.close();
        rig(&upstream, &options).run().await.unwrap();
        assert!(settled(&receipt));
        assert_eq!(server.received().len(), 1);
    });
}

/// Returns the first word of a message. It is the host, which decides the flow and so the server.
fn key(message: &str) -> &str {
    message.split_once(' ').unwrap().0
}

#[test]
fn records_of_a_flow_go_to_one_server_in_order_and_move_together() {
    local(async {
        let servers = [
            Server::start(|_| Act::Ack).await,
            Server::start(|_| Act::Ack).await,
            Server::start(|_| Act::Ack).await,
        ];
        let [one, two, three] = &servers;
        let more = r#", "balance": {"hash": "{.message}"}"#;
        let upstream = Upstream::durable(7);
        let mut rig = rig(&upstream, &options(&[one, two, three], more));
        let lines: String = (0..3000).map(|n| format!("key{}\n", n % 500)).collect();
        run_until(&mut rig, async {
            for _ in 0..3 {
                upstream.put(packed("t", &lines), false);
            }
            eventually(|| upstream.settled() == 3).await;
        })
        .await;
        let mut owner: HashMap<String, usize> = HashMap::new();
        let mut records = 0;
        for (place, server) in servers.iter().enumerate() {
            for frame in server.received() {
                for message in frame.messages() {
                    assert_eq!(*owner.entry(message).or_insert(place), place);
                    records += 1;
                }
            }
        }
        assert_eq!((records, owner.len()), (9000, 500));
        // Each server gets about a third of the 500 values. The shares depend on the addresses, which differ in each run, so the
        // limit is low.
        let flows = [0, 1, 2].map(|place| owner.values().filter(|owner| **owner == place).count());
        assert!(flows.iter().all(|flows| *flows > 80), "{flows:?}");
    });
}

#[test]
fn flows_of_a_server_that_fails_move_and_keep_their_order() {
    local(async {
        let mut seen = 0;
        let failing = Server::start(move |_| {
            seen += 1;
            if seen > 3 { Act::Close } else { Act::Ack }
        })
        .await;
        let good = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::durable(7);
        let more = r#", "balance": {"hash": "{host}"}"#;
        let mut rig = rig(&upstream, &options(&[&failing, &good], more));
        let put = |number: usize| {
            let mut batch = packed("t", &format!("h{} {number}\n", number % 8));
            let mut values = millstream_record::Values::new();
            values.set("host", format!("h{}", number % 8));
            batch.values = values.into();
            upstream.put(batch, false);
        };
        run_until(&mut rig, async {
            (0..200).for_each(put);
            eventually(|| upstream.settled() == 200).await;
        })
        .await;
        // The frames of the failing server are older than those that the good server got after the failure. So each flow is in
        // order across both servers.
        let frames = [failing.received(), good.received()].concat();
        assert_eq!(once_each(&frames).len(), 200);
        let mut last: HashMap<String, usize> = HashMap::new();
        for frame in once_each(&frames) {
            let message = &frame.messages()[0];
            let number: usize = message.split_once(' ').unwrap().1.parse().unwrap();
            let before = last.insert(key(message).to_owned(), number);
            assert!(before.is_none_or(|before| before < number), "{message}");
        }
    });
}

#[test]
fn with_failover_wait_a_chunk_in_doubt_goes_to_the_same_server_even_after_a_restart() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        // This server stores chunks and does not ack them.
        let doubtful = Server::start(|_| Act::Silence).await;
        let good = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::durable(3);
        for number in 0..40 {
            upstream.put(packed("t", &format!("{number}\n")), false);
        }
        let both = options(&[&doubtful, &good], r#", "failover": "wait""#);
        let rig = |options: &str| Rig::new(&COMPONENT, options, &upstream, directory.path());
        let mut first = rig(&both);
        run_until(&mut first, async {
            doubtful.has(5).await;
            good.has(5).await;
        })
        .await;
        drop(first);
        let stored = doubtful.received().len();
        // The next start is configured with the good server only, but remembers the other one.
        doubtful.act(|_| Act::Ack);
        let mut second = rig(&options(&[&good], r#", "failover": "wait""#));
        run_until(&mut second, async {
            eventually(|| upstream.settled() == 40).await;
        })
        .await;
        let doubt: Vec<_> = once_each(&doubtful.received())
            .iter()
            .map(|frame| frame.id.clone())
            .collect();
        assert!(doubtful.received().len() > stored, "it got chunks again");
        let others = good.received();
        assert!(others.iter().all(|frame| !doubt.contains(&frame.id)));
        let all = [doubtful.received(), others].concat();
        assert_eq!(once_each(&all).len(), 40);
    });
}

#[test]
fn with_failover_wait_chunks_that_a_server_gets_again_after_a_restart_are_within_in_flight() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let doubtful = Server::start(|_| Act::Silence).await;
        let good = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::durable(3);
        let options = options(
            &[&doubtful, &good],
            r#", "failover": "wait", "in_flight": "1MiB""#,
        );
        let rig = || Rig::new(&COMPONENT, &options, &upstream, directory.path());
        run_until(&mut rig(), async {
            while doubtful.received().is_empty() {
                upstream.put(packed("t", "small\n"), false);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // These are not settled, because an earlier chunk is in doubt.
            let before = good.received().len();
            let text = format!("{}\n", "x".repeat(200_000));
            for _ in 0..60 {
                upstream.put(packed("t", &text), false);
            }
            good.has(before + 40).await;
        })
        .await;
        // The server still reads what the first run has sent.
        eventually(|| good.open() == 0).await;
        good.act(|_| Act::Silence);
        let is_long = |frame: &&Received| frame.payload.len() > 200_000;
        let long = || good.received().iter().filter(is_long).count();
        let before = long();
        run_until(&mut rig(), async {
            eventually(|| long() >= before + 2).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        })
        .await;
        assert!(long() - before <= 5, "{}", long() - before);
    });
}

#[test]
fn with_failover_wait_a_chunk_in_doubt_can_be_given_up_after_a_restart() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let gone = Server::start(|_| Act::Silence).await;
        let good = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::durable(3);
        for number in 0..40 {
            upstream.put(packed("t", &format!("{number}\n")), false);
        }
        let retry =
            r#""retry": {"first": "10ms", "max": "50ms", "timeout": "1s", "give_up": "1s"}"#;
        let both = options(
            &[&gone, &good],
            &format!(r#", "failover": "wait", {retry}"#),
        );
        let rig = || Rig::new(&COMPONENT, &both, &upstream, directory.path());
        let mut first = rig();
        run_until(&mut first, async {
            gone.has(5).await;
            good.has(5).await;
        })
        .await;
        drop(first);
        let doubt: Vec<_> = gone.received().into_iter().map(|frame| frame.id).collect();
        drop(gone);
        let mut second = rig();
        run_until(&mut second, eventually(|| upstream.settled() == 40)).await;
        let others = good.received();
        assert!(others.iter().all(|frame| !doubt.contains(&frame.id)));
        let rejected = upstream.rejected();
        let rejected = rejected.iter().map(|batch| batch.count).sum::<u32>() as usize;
        assert!(rejected >= doubt.len());
        assert_eq!(once_each(&others).len() + rejected, 40);
    });
}

#[test]
fn no_chunk_goes_out_if_the_leases_cannot_be_opened() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let servers = [
            Server::start(|_| Act::Ack).await,
            Server::start(|_| Act::Ack).await,
        ];
        // The sink's directory cannot be created, because its parent is a file.
        let taken = directory.path().join("sinks");
        fs::write(&taken, "").unwrap();
        let upstream = Upstream::durable(3);
        upstream.put(packed("t", "0\n"), false);
        let options = options(&[&servers[0], &servers[1]], r#", "failover": "wait""#);
        let mut rig = Rig::new(&COMPONENT, &options, &upstream, &taken.join("out"));
        let failure = rig.run().await.unwrap_err();
        assert!(failure.message.contains("leases"), "{failure:?}");
        assert!(servers.iter().all(|server| server.received().is_empty()));
    });
}
