//! Tests of `retry.give_up`: committed records are never given up, if brokers can be asked for the committed position.

use std::thread;

use millstream_kafka::Error;

use super::*;
use crate::kafka::given_up::GivenUp;

const GIVE_UP: &str = r#""retry": {"first": "1ms", "max": "1ms", "timeout": "1ms", "give_up": "20ms"}, "topic": "t", "format": "raw""#;

/// The broker is down for longer than any limit.
fn away(_: &Broker) -> Result<(), Error> {
    thread::sleep(Duration::from_millis(30));
    Err(Error::new(Kind::Fatal, "no broker is there"))
}

#[tokio::test]
async fn records_that_are_not_accepted_in_time_are_given_up_if_configured() {
    let retry = r#""retry": {"first": "1ms", "max": "1ms", "give_up": "10ms"}"#;
    let options = format!("{retry}, {RAW}");
    let mut bench = exact(&options);
    bench.put("a\nb\n");
    for _ in 0..10_000 {
        bench.broker.fail_commit(Kind::Abort);
    }
    bench.upstream.close();
    tokio::time::timeout(Duration::from_secs(20), bench.rig.run())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        bench
            .upstream
            .rejected()
            .iter()
            .map(|batch| batch.count)
            .sum::<u32>(),
        2
    );
    assert_eq!(bench.upstream.settled(), 1);

    let mut bench = plain(&options);
    for _ in 0..10_000 {
        bench.broker.fail_record(Kind::Refused);
    }
    let receipt = bench.upstream.put(rig::packed("tag", "a\nb\n"), true);
    bench.upstream.close();
    tokio::time::timeout(Duration::from_secs(20), bench.rig.run())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        bench
            .upstream
            .rejected()
            .iter()
            .map(|batch| batch.count)
            .sum::<u32>(),
        2
    );
    assert_eq!(receipt.await, Ok(()));
}

#[tokio::test]
async fn committed_records_are_not_given_up_even_if_the_answer_was_lost() {
    let mut bench = exact(GIVE_UP);
    bench.put("a\nb\n");
    bench.broker.doubt_commit(Kind::Fatal);
    bench.broker.on_init(|_| Ok(()));
    bench.broker.on_init(away);
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["a", "b"]);
    assert_eq!(count(&bench.upstream.rejected()), 0);
}

#[tokio::test]
async fn a_start_gives_up_nothing_that_an_earlier_start_has_committed() {
    let mut bench = exact(GIVE_UP);
    bench.broker.set_position(GROUP, "t", &committed(1, 9));
    bench.put("a\n");
    bench.put("b\n");
    bench.broker.on_init(away);
    bench.broker.on_init(away);
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    // `a` was committed, so only `b` is given up.
    assert_eq!(count(&bench.upstream.rejected()), 1);
    assert!(reasons(&bench.upstream.rejected()).contains('b'));
    assert_eq!(bench.upstream.settled(), 2);
}

#[tokio::test]
async fn records_are_given_up_even_while_brokers_are_down() {
    given_up_while_brokers_are_down(exact(GIVE_UP)).await;
}

#[tokio::test]
async fn records_that_come_out_of_a_slow_processor_are_given_up_too() {
    let bench = exact(GIVE_UP);
    bench.upstream.set_slow();
    given_up_while_brokers_are_down(bench).await;
}

async fn given_up_while_brokers_are_down(mut bench: Bench) {
    bench.put("a\n");
    for _ in 0..100 {
        bench.broker.on_init(away);
    }
    bench.upstream.close();
    let until = async {
        while bench.upstream.settled() < 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        ended = bench.rig.run() => panic!("it ended: {ended:?}"),
        () = until => {}
    }
    assert_eq!(count(&bench.upstream.rejected()), 1);
}

#[tokio::test]
async fn given_up_records_are_not_written_after_a_kill_before_the_cursor_moved() {
    for position in [None, Some(committed(0, 9))] {
        let mut bench = exact(RAW);
        let mut given_up = GivenUp::open(bench._directory.path(), CHANNEL).unwrap();
        given_up.store(Position { epoch: 1, seq: 1 }).unwrap();
        if let Some(text) = position {
            bench.broker.set_position(GROUP, "t", &text);
        }
        bench.put("a\n");
        bench.put("b\n");
        bench.upstream.close();
        bench.rig.run().await.unwrap();
        assert_eq!(bench.broker.values(), ["b"]);
    }
}

#[tokio::test]
async fn records_that_arrive_after_an_outage_are_written_however_long_it_lasted() {
    let mut bench = exact(GIVE_UP);
    for _ in 0..4 {
        bench.broker.on_init(away);
    }
    let (upstream, broker) = (bench.upstream.clone(), bench.broker.clone());
    let until = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(upstream.put(rig::packed("tag", "a\n"), false));
        while upstream.settled() < 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        ended = bench.rig.run() => panic!("it ended: {ended:?}"),
        () = until => {}
    }
    assert_eq!(broker.values(), ["a"]);
    assert_eq!(count(&upstream.rejected()), 0);
}

#[tokio::test]
async fn behind_memory_unacknowledged_records_are_given_up_and_later_ones_are_not() {
    let mut bench = plain(GIVE_UP);
    bench.broker.set_away(true);
    let (upstream, broker) = (bench.upstream.clone(), bench.broker.clone());
    let first = upstream.put(rig::packed("tag", "a\nb\n"), true);
    let until = async {
        assert_eq!(first.await, Ok(()));
        assert_eq!(count(&upstream.rejected()), 2);
        broker.set_away(false);
        let second = upstream.put(rig::packed("tag", "c\n"), true);
        assert_eq!(second.await, Ok(()));
    };
    tokio::select! {
        ended = bench.rig.run() => panic!("it ended: {ended:?}"),
        () = until => {}
    }
    assert_eq!(broker.values(), ["c"]);
    assert_eq!(count(&upstream.rejected()), 2);
}

#[tokio::test]
async fn behind_memory_records_that_are_acknowledged_in_time_are_not_given_up() {
    let retry = r#""retry": {"first": "1ms", "max": "1ms", "timeout": "1s", "give_up": "10s"}"#;
    let mut bench = plain(&format!("{retry}, {RAW}"));
    bench.broker.set_away(true);
    let broker = bench.broker.clone();
    let back = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        broker.set_away(false);
    });
    bench.put("a\n");
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    back.join().unwrap();
    assert_eq!(bench.broker.values(), ["a"]);
    assert_eq!(count(&bench.upstream.rejected()), 0);
}
