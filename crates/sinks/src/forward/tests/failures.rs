//! Failures of servers and connections.

use super::{server::Act, *};
use crate::rig::packed;

/// Treats the first frame as `act` says and acks all others.
fn first(act: Act) -> impl FnMut(&Received) -> Act {
    let mut next = Some(act);
    move |_| next.take().unwrap_or(Act::Ack)
}

/// Sends three chunks to a server that treats the first as `act` says. Checks that all chunks arrive in order and are acked, and
/// that chunks were resent if and only if `resent` is true.
fn comes_through(act: Act, more: &str, resent: bool) {
    local(async {
        let server = Server::start(first(act)).await;
        let upstream = Upstream::durable(1);
        for number in 0..3 {
            upstream.put(packed("t", &format!("{number}\n")), false);
        }
        upstream.close();
        let mut rig = rig(&upstream, &options(&[&server], more));
        rig.run().await.unwrap();
        assert_eq!(upstream.settled(), 3);
        let received = server.received();
        let messages: Vec<_> = once_each(&received)
            .iter()
            .flat_map(|f| f.messages())
            .collect();
        assert_eq!(messages, ["0", "1", "2"]);
        assert_eq!(rig.meter("chunks_acked"), 3);
        assert_eq!(rig.meter("chunks_resent") > 0, resent);
        assert_eq!(server.connections() > 1, resent || act == Act::AckAndClose);
    });
}

#[test]
fn a_chunk_without_an_ack_is_resent() {
    comes_through(Act::StoreAndClose, "", true);
    comes_through(Act::Close, "", true);
}

#[test]
fn a_late_ack_is_waited_for() {
    comes_through(Act::AckLate(Duration::from_millis(300)), "", false);
}

#[test]
fn a_chunk_that_is_never_acked_is_resent_on_a_new_connection() {
    let start = Instant::now();
    comes_through(Act::Silence, r#", "ack_timeout": "200ms""#, true);
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[test]
fn a_wrong_ack_ends_the_connection_and_everything_unacked_is_resent() {
    comes_through(Act::AckWrong, "", true);
    comes_through(Act::Babble, "", true);
}

#[test]
fn a_repeated_ack_is_a_wrong_ack() {
    local(async {
        let server = Server::start(first(Act::AckTwice)).await;
        let upstream = Upstream::memory();
        let receipt = upstream.put(packed("t", "0\n"), true);
        let mut rig = rig(&upstream, &options(&[&server], ""));
        run_until(&mut rig, eventually(|| server.connections() == 2)).await;
        assert!(settled(&receipt));
    });
}

#[test]
fn a_server_that_closes_after_every_chunk_gets_them_all() {
    local(async {
        let server = Server::start(|_| Act::AckAndClose).await;
        let upstream = Upstream::durable(1);
        for number in 0..20 {
            upstream.put(packed("t", &format!("{number}\n")), false);
        }
        upstream.close();
        let start = Instant::now();
        rig(
            &upstream,
            &options(&[&server], r#", "retry": {"first": "1s"}"#),
        )
        .run()
        .await
        .unwrap();
        assert_eq!(once_each(&server.received()).len(), 20);
        assert!(
            start.elapsed() < Duration::from_secs(15),
            "a connection that did its work is no failure"
        );
    });
}

#[test]
fn checkpoints_are_settled_only_when_everything_before_them_is_acked() {
    local(async {
        let server = Server::start(|frame| match frame.messages()[0].as_str() {
            "1" => Act::AckLate(Duration::from_millis(400)),
            _ => Act::Ack,
        })
        .await;
        let upstream = Upstream::memory();
        let mut rig = rig(
            &upstream,
            &options(&[&server], r#", "batch": {"size": "0"}"#),
        );
        let receipts: Vec<_> = run_until(&mut rig, async {
            let mut receipts = Vec::new();
            for number in 0..4 {
                receipts.push(upstream.put(packed("t", &format!("{number}\n")), true));
                server.has(number + 1).await;
            }
            eventually(|| settled(&receipts[0])).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            // Chunks 2 and 3 are acked, but chunk 1 is not, and it is before them.
            assert!(
                receipts[1..]
                    .iter()
                    .all(|receipt| receipt.try_outcome().is_none())
            );
            eventually(|| receipts.iter().all(settled)).await;
            receipts
        })
        .await;
        assert_eq!(receipts.len(), 4);
    });
}

#[test]
fn a_server_that_is_not_up_yet_is_retried_until_it_is() {
    local(async {
        let address = Server::start(|_| Act::Ack).await.address;
        tokio::task::yield_now().await;
        let upstream = Upstream::memory();
        let receipt = upstream.put(packed("t", "0\n"), true);
        let options =
            format!(r#"{{"servers": "{address}", "retry": {{"first": "10ms", "max": "20ms"}}}}"#);
        let mut rig = rig(&upstream, &options);
        let meters = rig.meters.clone();
        run_until(
            &mut rig,
            eventually(|| meters.value("sink", "connections_failed") > 3),
        )
        .await;
        assert!(receipt.try_outcome().is_none_or(|outcome| outcome.is_err()));
        let receipt = upstream.put(packed("t", "1\n"), true);
        let server = Server::start_on(address, |_| Act::Ack).await;
        run_until(&mut rig, eventually(|| settled(&receipt))).await;
        assert_eq!(server.received().len(), 1);
    });
}

#[test]
fn back_pressure_begins_when_no_server_takes_more() {
    local(async {
        let server = Server::start(|_| Act::Silence).await;
        let upstream = Upstream::durable(1);
        for number in 0..100 {
            upstream.put(
                packed("t", &format!("{number} {}\n", "x".repeat(9_000))),
                false,
            );
        }
        let mut rig = rig(
            &upstream,
            &options(&[&server], r#", "in_flight": "100KiB""#),
        );
        let meters = rig.meters.clone();
        run_until(&mut rig, async {
            server.has(10).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        })
        .await;
        assert_eq!(server.received().len(), 10, "100 KiB in flight");
        assert!(meters.value("sink", "records_received") <= 11);
    });
}

#[test]
fn another_server_gets_what_a_failed_one_has_not_acked() {
    local(async {
        let (bad, good) = (
            Server::start(|_| Act::StoreAndClose).await,
            Server::start(|_| Act::Ack).await,
        );
        let upstream = Upstream::durable(1);
        for number in 0..20 {
            upstream.put(packed("t", &format!("{number}\n")), false);
        }
        upstream.close();
        rig(&upstream, &options(&[&bad, &good], ""))
            .run()
            .await
            .unwrap();
        assert_eq!(upstream.settled(), 20);
        assert_eq!(
            once_each(&good.received()).len(),
            20,
            "the bad one never acks"
        );
    });
}

#[test]
fn servers_that_work_get_equal_shares_of_the_chunks() {
    local(async {
        let late = |_: &Received| Act::AckLate(Duration::from_millis(5));
        let servers = [Server::start(late).await, Server::start(late).await];
        let upstream = Upstream::durable(1);
        for number in 0..200 {
            upstream.put(packed("t", &format!("{number}\n")), false);
        }
        upstream.close();
        let options = options(
            &[&servers[0], &servers[1]],
            r#", "in_flight": "500"#.to_owned().as_str(),
        );
        let options = options.replace("\"500", "\"500B\"");
        rig(&upstream, &options).run().await.unwrap();
        let counts = servers.each_ref().map(|server| server.received().len());
        assert_eq!(counts.iter().sum::<usize>(), 200);
        assert!(
            counts.iter().all(|count| (80..=120).contains(count)),
            "{counts:?}"
        );
    });
}

#[test]
fn a_standby_works_only_while_others_have_failed() {
    local(async {
        let main = Server::start(|_| Act::Ack).await;
        let standby = Server::start(|_| Act::Ack).await;
        let address = main.address;
        let options = format!(
            r#"{{"servers": ["{address}", {{"address": "{}", "standby": true}}],
                "retry": {{"first": "10ms", "max": "50ms"}}, "batch": {{"size": "0"}}, "heartbeat": {{"by": "none"}}}}"#,
            standby.address
        );
        let upstream = Upstream::memory();
        let mut rig = rig(&upstream, &options);
        run_until(&mut rig, async {
            let receipt = upstream.put(packed("t", "0\n"), true);
            eventually(|| settled(&receipt)).await;
            assert_eq!((main.received().len(), standby.connections()), (1, 0));
            drop(main);
            let receipt = upstream.put(packed("t", "1\n"), true);
            eventually(|| settled(&receipt)).await;
            assert_eq!(standby.received().len(), 1);
            let main = Server::start_on(address, |_| Act::Ack).await;
            eventually(|| standby.open() == 0).await;
            let receipt = upstream.put(packed("t", "2\n"), true);
            eventually(|| settled(&receipt)).await;
            assert_eq!((main.received().len(), standby.received().len()), (1, 1));
        })
        .await;
    });
}

#[test]
fn with_failover_wait_a_chunk_in_doubt_waits_for_its_server_and_other_chunks_do_not() {
    local(async {
        let doubtful = Server::start(|_| Act::StoreAndClose).await;
        let good = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::memory();
        let more = r#", "failover": "wait", "batch": {"size": "0"}"#;
        let mut rig = rig(&upstream, &options(&[&doubtful, &good], more));
        run_until(&mut rig, async {
            let mut receipts = Vec::new();
            for number in 0..20 {
                receipts.push(upstream.put(packed("t", &format!("{number}\n")), true));
            }
            eventually(|| doubtful.connections() > 3).await;
            // The chunks that the server may have received stay with it.
            let begun: Vec<_> = once_each(&doubtful.received())
                .iter()
                .map(|f| f.id.clone())
                .collect();
            assert!(!begun.is_empty());
            assert!(
                good.received()
                    .iter()
                    .all(|frame| !begun.contains(&frame.id))
            );
            doubtful.act(|_| Act::Ack);
            eventually(|| receipts.iter().all(settled)).await;
            let all: Vec<_> = [doubtful.received(), good.received()].concat();
            assert_eq!(once_each(&all).len(), 20);
        })
        .await;
    });
}

#[test]
fn after_a_restart_the_same_frames_have_the_same_ids_and_bytes() {
    local(async {
        let server = Server::start(|_| Act::Silence).await;
        let upstream = Upstream::durable(9);
        for number in 0..5 {
            upstream.put(packed("t", &format!("{number}\n")), false);
        }
        let options = options(&[&server], r#", "peer": "millstream""#);
        // The sink is killed when the server has stored five chunks and acked none.
        run_until(&mut rig(&upstream, &options), server.has(5)).await;
        assert_eq!(upstream.settled(), 0);
        server.act(|_| Act::Ack);
        upstream.close();
        rig(&upstream, &options).run().await.unwrap();
        assert_eq!(upstream.settled(), 5);
        assert_eq!(server.received().len(), 10);
        assert_eq!(once_each(&server.received()).len(), 5);
    });
}

#[test]
fn behind_a_durable_channel_a_stop_does_not_wait_for_a_server_that_is_down() {
    local(async {
        let address = Server::start(|_| Act::Ack).await.address;
        tokio::task::yield_now().await;
        let upstream = Upstream::durable(1);
        upstream.put(packed("t", "0\n"), false);
        let mut rig = rig(&upstream, &format!(r#"{{"servers": "{address}"}}"#));
        let (meters, stopper) = (rig.meters.clone(), rig.stopper.clone());
        let stop = async {
            eventually(|| meters.value("sink", "connections_failed") > 0).await;
            stopper.stop();
            std::future::pending::<()>().await
        };
        tokio::select! {
            ended = rig.run() => ended.unwrap(),
            () = stop => unreachable!(),
        }
        assert_eq!(upstream.settled(), 0);
    });
}

#[test]
fn records_that_no_server_takes_in_time_leave_by_the_rejected_port() {
    local(async {
        let address = Server::start(|_| Act::Ack).await.address;
        tokio::task::yield_now().await;
        let upstream = Upstream::memory();
        let receipt = upstream.put(packed("t", "0\n1\n"), true);
        upstream.close();
        let options = format!(
            r#"{{"servers": "{address}", "retry": {{"first": "10ms", "max": "10ms", "give_up": "100ms"}}}}"#
        );
        let mut rig = rig(&upstream, &options);
        rig.run().await.unwrap();
        assert!(settled(&receipt));
        assert_eq!(rig.meter("records_given_up"), 2);
        assert_eq!(
            upstream
                .rejected()
                .iter()
                .map(|batch| batch.count)
                .sum::<u32>(),
            2
        );
    });
}

#[test]
fn without_acks_what_a_new_connection_may_have_lost_is_sent_again_on_the_next_one() {
    local(async {
        let server = Server::start(first(Act::StoreAndClose)).await;
        let upstream = Upstream::memory();
        let mut rig = rig(
            &upstream,
            &options(&[&server], r#", "ack": false, "batch": {"size": "0"}"#),
        );
        run_until(&mut rig, async {
            upstream.put(packed("t", "0\n"), true);
            eventually(|| server.received().len() == 2 && server.connections() == 2).await;
            upstream.put(packed("t", "1\n"), true);
            server.has(3).await;
        })
        .await;
        let got: Vec<_> = server
            .received()
            .iter()
            .map(|chunk| chunk.messages())
            .collect();
        assert_eq!(got, [["0"], ["0"], ["1"]]);
    });
}

#[test]
fn many_small_chunks_in_flight_hold_little_memory() {
    local(async {
        let server = Server::start(|_| Act::Silence).await;
        let upstream = Upstream::memory();
        let mut rig = rig(&upstream, &options(&[&server], ""));
        let pool = rig.context.pool.clone();
        run_until(&mut rig, async {
            for number in 0..50 {
                upstream.put(packed("t", &format!("{number}\n")), true);
                server.has(number + 1).await;
            }
        })
        .await;
        assert!(pool.taken_bytes() < 200 << 10, "{pool:?}");
    });
}

#[test]
fn without_acks_a_server_that_closes_each_connection_does_not_swallow_all_chunks() {
    local(async {
        let server = Server::start(|_| Act::Close).await;
        let upstream = Upstream::durable(1);
        for number in 0..100 {
            upstream.put(
                packed("t", &format!("{number} {}\n", "x".repeat(500_000))),
                false,
            );
        }
        let more = r#", "ack": false, "in_flight": "64KiB", "retry": {"first": "200ms"}"#;
        let mut rig = rig(&upstream, &options(&[&server], more));
        let pause = tokio::time::sleep(Duration::from_millis(500));
        run_until(&mut rig, pause).await;
        assert!(server.connections() <= 4, "{}", server.connections());
        assert!(upstream.settled() <= 1, "{}", upstream.settled());
    });
}
