//! Heartbeats: a server that hangs gets no more chunks, and gets its share again when it answers.

use std::{cell::Cell, io, net::SocketAddr, rc::Rc};

use millstream_config::Period;
use millstream_pipeline::meters::Meter;
use tokio::net::UdpSocket;

use super::{server::Act, *};
use crate::{
    forward::{
        heart::Hearts,
        options::{Beat, Heartbeat},
    },
    rig::packed,
};

/// Options of a sink with frequent datagram heartbeats.
const BY_UDP: &str = r#", "heartbeat": {"by": "udp", "interval": "20ms", "silence": "100ms"}, "batch": {"size": "0"}"#;

/// Answers datagrams to `address` as fluentd does, while the returned flag is true.
async fn answer(address: SocketAddr) -> Rc<Cell<bool>> {
    let socket = UdpSocket::bind(address).await.unwrap();
    let answers = Rc::new(Cell::new(true));
    let may = answers.clone();
    tokio::task::spawn_local(async move {
        let mut byte = [0; 16];
        while let Ok((_, peer)) = socket.recv_from(&mut byte).await {
            if may.get() {
                let _ = socket.send_to(&[0], peer).await;
            }
        }
    });
    answers
}

#[test]
fn chunks_of_a_server_that_hangs_go_to_another_long_before_the_timeout() {
    local(async {
        let (hung, good) = (
            Server::start(|_| Act::Silence).await,
            Server::start(|_| Act::Ack).await,
        );
        let answers = answer(hung.address).await;
        let _good = answer(good.address).await;
        let upstream = Upstream::memory();
        let mut rig = rig(&upstream, &options(&[&hung, &good], BY_UDP));
        let started = Instant::now();
        run_until(&mut rig, async {
            // Long enough for the server to have answered a heartbeat.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let receipts: Vec<_> = (0..10)
                .map(|number| upstream.put(packed("t", &format!("{number}\n")), true))
                .collect();
            hung.has(5).await;
            answers.set(false);
            eventually(|| receipts.iter().all(settled)).await;
            // While the server is silent, no connection to it is attempted.
            let connections = hung.connections();
            let more = upstream.put(packed("t", "10\n"), true);
            eventually(|| settled(&more)).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(hung.connections(), connections);
            hung.act(|_| Act::Ack);
            answers.set(true);
            eventually(|| hung.open() == 1).await;
            let before = hung.received().len();
            for number in 11..15 {
                upstream.put(packed("t", &format!("{number}\n")), true);
            }
            hung.has(before + 2).await;
        })
        .await;
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "the default of ack_timeout is 190 s"
        );
        assert!(rig.meter("heartbeats_unanswered") > 0);
    });
}

#[test]
fn with_failover_wait_only_chunks_that_a_hanging_server_may_have_wait_for_it() {
    local(async {
        let (hung, good) = (
            Server::start(|_| Act::Silence).await,
            Server::start(|_| Act::Ack).await,
        );
        let answers = answer(hung.address).await;
        let _good = answer(good.address).await;
        let upstream = Upstream::memory();
        let more = format!(r#"{BY_UDP}, "failover": "wait""#);
        let mut rig = rig(&upstream, &options(&[&hung, &good], &more));
        run_until(&mut rig, async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let put = |number: usize| upstream.put(packed("t", &format!("{number}\n")), true);
            let first: Vec<_> = (0..10).map(put).collect();
            hung.has(5).await;
            answers.set(false);
            eventually(|| hung.open() == 0).await;
            let rest: Vec<_> = (10..20).map(put).collect();
            good.has(15).await;
            hung.act(|_| Act::Ack);
            answers.set(true);
            eventually(|| first.iter().chain(&rest).all(settled)).await;
        })
        .await;
        let ids: Vec<_> = good
            .received()
            .iter()
            .map(|frame| frame.id.clone())
            .collect();
        assert!(hung.received().iter().all(|frame| !ids.contains(&frame.id)));
        assert_eq!(once_each(&hung.received()).len() + ids.len(), 20);
    });
}

/// With `failover: wait`: gives five chunks to a server that does not ack, and five to a good one; then `fails` makes the first
/// server fail. Checks that the sink gives up the five chunks that the first server may have received.
fn in_doubt_is_given_up(more: &str, fails: impl AsyncFnOnce(Server, Rc<Cell<bool>>)) {
    local(async {
        let (hung, good) = (
            Server::start(|_| Act::Silence).await,
            Server::start(|_| Act::Ack).await,
        );
        let answers = answer(hung.address).await;
        let _good = answer(good.address).await;
        let upstream = Upstream::memory();
        let more = format!(r#"{more}, "failover": "wait""#);
        let mut rig = rig(&upstream, &options(&[&hung, &good], &more));
        run_until(&mut rig, async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let receipts: Vec<_> = (0..10)
                .map(|number| upstream.put(packed("t", &format!("{number}\n")), true))
                .collect();
            hung.has(5).await;
            fails(hung, answers).await;
            eventually(|| receipts.iter().all(settled)).await;
        })
        .await;
        assert_eq!(good.received().len(), 5, "none went to another server");
        let rejected = upstream.rejected();
        assert_eq!(rejected.iter().map(|batch| batch.count).sum::<u32>(), 5);
        assert_eq!(rig.meter("records_given_up"), 5);
    });
}

#[test]
fn with_failover_wait_chunks_of_a_server_that_stays_silent_are_given_up() {
    let give_up =
        r#", "retry": {"first": "10ms", "max": "50ms", "timeout": "1s", "give_up": "1s"}"#;
    in_doubt_is_given_up(
        &format!("{BY_UDP}{give_up}"),
        async |hung: Server, answers: Rc<Cell<bool>>| {
            answers.set(false);
            eventually(|| hung.open() == 0).await;
        },
    );
}

#[test]
fn with_failover_wait_an_overdue_chunk_of_a_failed_server_goes_to_no_other_server() {
    let more = r#", "heartbeat": {"by": "none"}, "batch": {"size": "0"},
        "retry": {"first": "10ms", "max": "50ms", "timeout": "1s", "give_up": "100ms"}"#;
    in_doubt_is_given_up(more, async |hung: Server, _: Rc<Cell<bool>>| {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(hung);
    });
}

#[test]
fn a_server_is_not_silent_any_more_when_its_heartbeats_end() {
    local(async {
        let hearts = Hearts::new(Heartbeat {
            by: Beat::Transport,
            interval: Period::millis(10),
            silence: Period::millis(20),
        });
        let pulses = hearts.subscribe();
        let is_silent = || pulses.borrow().get("a:1").is_some_and(|pulse| pulse.silent);
        let (asked, answers) = (Cell::new(0), Cell::new(true));
        let connect = async || {
            asked.set(asked.get() + 1);
            match answers.get() {
                true => Ok(()),
                false => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
            }
        };
        let unanswered = Meter::default();
        let falls_silent = async {
            eventually(|| asked.get() > 0).await;
            answers.set(false);
            eventually(is_silent).await;
        };
        tokio::select! {
            () = hearts.ask("a:1", &unanswered, connect) => unreachable!(),
            () = falls_silent => {}
        }
        // Another lane may still have chunks for the server, and retries it from now on.
        assert!(!is_silent());
    });
}

#[test]
fn a_server_that_never_answered_a_datagram_gets_chunks_as_usual() {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::memory();
        let mut rig = rig(&upstream, &options(&[&server], BY_UDP));
        run_until(&mut rig, async {
            for number in 0..5 {
                let receipt = upstream.put(packed("t", &format!("{number}\n")), true);
                eventually(|| settled(&receipt)).await;
                tokio::time::sleep(Duration::from_millis(60)).await;
            }
        })
        .await;
        assert_eq!(server.connections(), 1);
        assert!(rig.meter("heartbeats_unanswered") > 0);
    });
}

#[test]
fn a_server_that_answers_again_is_connected_immediately_even_if_the_back_off_is_long() {
    local(async {
        let server = Server::start(|_| Act::Ack).await;
        let address = server.address;
        let more = r#", "heartbeat": {"by": "transport", "interval": "20ms", "silence": "100ms"},
            "retry": {"first": "100s", "max": "100s", "timeout": "1s"}"#;
        let upstream = Upstream::memory();
        let mut rig = rig(&upstream, &options(&[&server], more));
        run_until(&mut rig, async {
            let first = upstream.put(packed("t", "0\n"), true);
            eventually(|| settled(&first)).await;
            let connections = server.connections();
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(
                server.connections() > connections,
                "heartbeats are connections"
            );
            drop(server);
            let second = upstream.put(packed("t", "1\n"), true);
            // Long enough for the connection to fail and for the back-off to begin.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let server = Server::start_on(address, |_| Act::Ack).await;
            eventually(|| settled(&second)).await;
            assert_eq!(server.received().len(), 1);
        })
        .await;
    });
}
