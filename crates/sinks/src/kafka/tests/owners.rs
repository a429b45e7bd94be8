//! Two processes with one position: the one that started last (the successor) continues, the other one stops permanently. A zombie is
//! a process that was suspended, and resumes after its successor has started.

use millstream_kafka::Error;

use super::*;

#[tokio::test]
async fn a_producer_that_was_fenced_by_a_successor_stops_permanently() {
    let mut bench = exact(RAW);
    bench.put("a\n");
    bench.broker.fail_commit(Kind::Fenced);
    let committed = Committed {
        channel: CHANNEL,
        position: Position { epoch: 2, seq: 7 },
        owner: 9,
        part: None,
    };
    // The successor commits after this process has begun.
    let broker = bench.broker.clone();
    let group = "millstream-00000000000000000000000000c0ffee-sink";
    broker.on_next_fault(move |broker| broker.set_position(group, "t", &committed.text()));
    bench.upstream.close();
    let failure = bench.rig.run().await.unwrap_err();
    assert_eq!(failure.again, Again::Never);
    assert!(failure.message.contains("taken over"), "{failure}");
    assert!(bench.broker.values().is_empty());
}

#[tokio::test]
async fn a_process_never_takes_the_position_back_from_its_successor() {
    let mut bench = exact(RAW);
    let committed = |epoch, owner| Committed {
        channel: CHANNEL,
        position: Position { epoch, seq: 0 },
        owner,
        part: None,
    };
    let group = "millstream-00000000000000000000000000c0ffee-sink";
    bench
        .broker
        .set_position(group, "t", &committed(1, 5).text());
    bench.put("a\n");
    bench.broker.fail_record(Kind::Fatal);
    // When the record fails, the process has already claimed the position.
    let successor = committed(2, 9);
    bench
        .broker
        .on_next_fault(move |broker| broker.set_position(group, "t", &successor.text()));
    bench.upstream.close();
    let failure = bench.rig.run().await.unwrap_err();
    assert_eq!(failure.again, Again::Never);
    assert!(failure.message.contains("taken over"), "{failure}");
    assert!(bench.broker.values().is_empty());
    assert_eq!(bench.position().owner, 9);
}

#[tokio::test]
async fn a_producer_whose_transaction_timed_out_continues() {
    let mut bench = exact(RAW);
    bench.put("a\n");
    bench.broker.fail_commit(Kind::Fenced);
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["a"]);
}

#[tokio::test]
async fn a_zombie_stops_without_a_claim_if_its_successor_starts_while_it_resumes() {
    let mut bench = exact(RAW);
    bench.broker.set_position(GROUP, "t", &committed(0, 5));
    bench.put("a\n");
    bench.broker.fail_record(Kind::Fatal);
    bench.broker.on_init(|_| Ok(()));
    // The process has already checked the owner, and was still the owner.
    bench.broker.on_init(|broker| {
        broker.set_position(GROUP, "t", &committed(0, 9));
        Ok(())
    });
    bench.upstream.close();
    let failure = bench.rig.run().await.unwrap_err();
    assert_eq!(failure.again, Again::Never);
    assert!(failure.message.contains("taken over"), "{failure}");
    assert!(bench.broker.values().is_empty());
    assert_eq!(bench.position().owner, 9);
}

#[tokio::test]
async fn a_successor_that_a_zombie_has_fenced_continues() {
    let mut bench = exact(RAW);
    bench.broker.set_position(GROUP, "t", &committed(0, 5));
    bench.put("a\n");
    // The successor's claim fails because it is fenced. The committed owner is still the zombie.
    bench.broker.fail_commit(Kind::Fenced);
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["a"]);
    assert_ne!(bench.position().owner, 5);
}

#[tokio::test]
async fn a_start_takes_over_from_the_first_owner_that_it_finds() {
    let mut bench = exact(RAW);
    bench.put("a\n");
    bench.broker.on_init(|_| Err(Error::new(Kind::Fatal, "no")));
    bench.broker.on_init(|broker| {
        broker.set_position(GROUP, "t", &committed(0, 5));
        Ok(())
    });
    // The process has not seen an owner yet, so any owner that it finds now was there before it.
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["a"]);
}
