//! `balance: all`: every server gets everything.

use super::{
    members::{list, looking_at},
    server::Act,
    *,
};
use crate::rig::packed;

const ALL: &str = r#", "balance": "all""#;

fn messages(server: &Server) -> Vec<String> {
    let received = server.received();
    let first = once_each(&received);
    first.iter().flat_map(|frame| frame.messages()).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[test]
fn every_server_gets_everything_and_a_batch_is_settled_when_all_have_acked_it() {
    local(async {
        let [one, two] = [
            Server::start(|_| Act::Ack).await,
            Server::start(|_| Act::Ack).await,
        ];
        let slow = Server::start(|_| Act::Silence).await;
        let upstream = Upstream::durable(5);
        let mut rig = rig(&upstream, &options(&[&one, &two, &slow], ALL));
        run_until(&mut rig, async {
            for number in 0..20 {
                upstream.put(packed("t", &format!("{number}\n")), false);
            }
            eventually(|| one.received().len() == 20 && two.received().len() == 20).await;
            slow.has(20).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(upstream.settled(), 0, "the slow server has acked nothing");
            slow.act(|_| Act::Ack);
        })
        .await;
        // The next start sends all chunks again to all servers, with the same ids.
        run_until(&mut rig, eventually(|| upstream.settled() == 20)).await;
        for server in [&one, &two, &slow] {
            assert_eq!(messages(server), numbers(0..20));
        }
    });
}

#[test]
fn a_server_that_fails_gets_what_it_missed_and_no_other_server_gets_it_twice() {
    local(async {
        let mut seen = 0;
        let failing = Server::start(move |_| {
            seen += 1;
            if seen % 3 == 0 {
                Act::StoreAndClose
            } else {
                Act::Ack
            }
        })
        .await;
        let good = Server::start(|_| Act::Ack).await;
        let upstream = Upstream::durable(5);
        for number in 0..50 {
            upstream.put(packed("t", &format!("{number}\n")), false);
        }
        upstream.close();
        let mut rig = rig(&upstream, &options(&[&failing, &good], ALL));
        rig.run().await.unwrap();
        assert_eq!(upstream.settled(), 50);
        assert_eq!(
            (messages(&failing), messages(&good)),
            (numbers(0..50), numbers(0..50))
        );
        assert_eq!(good.received().len(), 50, "nothing came twice");
    });
}

#[test]
fn a_server_that_joins_gets_all_later_chunks_and_one_that_leaves_delays_none() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers.yaml");
        let [one, two] = [
            Server::start(|_| Act::Ack).await,
            Server::start(|_| Act::Ack).await,
        ];
        list(&file, &[]);
        let upstream = Upstream::memory();
        let mut rig = rig(&upstream, &looking_at(&file, ALL));
        run_until(&mut rig, async {
            let first = upstream.put(packed("t", "0\n"), true);
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(first.try_outcome(), None, "there is no server");
            list(&file, &[&one]);
            eventually(|| settled(&first)).await;
            list(&file, &[&one, &two]);
            eventually(|| two.open() > 0).await;
            let second = upstream.put(packed("t", "1\n"), true);
            eventually(|| settled(&second)).await;
            // The server fails, and then it leaves the list.
            let gone = two.received();
            drop(two);
            let third = upstream.put(packed("t", "2\n"), true);
            one.has(3).await;
            assert_eq!(third.try_outcome(), None);
            list(&file, &[&one]);
            eventually(|| settled(&third)).await;
            assert_eq!(gone.len(), 1);
        })
        .await;
        assert_eq!(messages(&one), numbers(0..3));
    });
}
