//! Transactions that cannot end in time, and errors that come at once.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use millstream_kafka::Error;

use super::*;
use crate::kafka::timeout::Timeout;

const SHORT: &str = r#""topic": "t", "format": "raw", "transaction_timeout": "40ms""#;

/// The next record fails, after the transaction has been open for longer than its timeout.
fn time_out(broker: &Broker, times: usize) {
    if times > 0 {
        broker.fail_record(Kind::Again);
        broker.on_next_fault(move |broker| {
            thread::sleep(Duration::from_millis(40) * 2_u32.pow(5 - times as u32));
            time_out(broker, times - 1);
        });
    }
}

fn timeouts(bench: &Bench) -> Vec<u128> {
    let producers = bench.broker.producers().into_iter();
    producers
        .map(|options| options.transaction_timeout.as_millis())
        .collect()
}

#[tokio::test]
async fn a_transaction_that_does_not_end_in_time_gets_more_time() {
    for is_first in [true, false] {
        let mut bench = exact(SHORT);
        if !is_first {
            // The transaction that claims this position is fast.
            bench.broker.set_position(GROUP, "t", &committed(0, 9));
        }
        time_out(&bench.broker, 2);
        bench.put("a\n");
        bench.upstream.close();
        bench.rig.run().await.unwrap();
        assert_eq!(bench.broker.values(), ["a"]);
        assert_eq!(timeouts(&bench), [40, 80, 160]);
    }
}

#[tokio::test]
async fn a_timeout_that_brokers_do_not_allow_is_not_used_again() {
    let mut bench = exact(SHORT);
    time_out(&bench.broker, 1);
    bench.broker.on_init(|_| Ok(()));
    bench
        .broker
        .on_init(|_| Err(Error::new(Kind::Settings, "INVALID_TRANSACTION_TIMEOUT")));
    bench.put("a\n");
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["a"]);
    assert_eq!(timeouts(&bench), [40, 80, 40]);
}

#[tokio::test]
async fn an_error_that_comes_at_once_is_not_repeated_in_a_tight_loop() {
    let mut bench = exact(RAW);
    let asked = Arc::new(AtomicUsize::new(0));
    for _ in 0..100_000 {
        let asked = asked.clone();
        bench.broker.on_init(move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            Err(Error::new(Kind::Again, "NOT_CONTROLLER"))
        });
    }
    bench.put("a\n");
    let stopper = bench.rig.stopper.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(900));
        stopper.stop();
    });
    let start = Instant::now();
    bench.rig.run().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(3), "a stop ends it");
    let asked = asked.load(Ordering::Relaxed);
    assert!((2..=10).contains(&asked), "{asked}");
}

#[test]
fn steps_become_smaller_after_failures_and_end_after_successes() {
    let second = Duration::from_secs(1);
    let mut timeout = Timeout::new(second * 60);
    timeout.expired();
    let first = timeout.step;
    timeout.expired();
    assert!(timeout.step < first);
    // A transaction that took long is no reason for larger steps.
    timeout.took(second * 40);
    assert!(timeout.step < first);
    timeout.took(second);
    assert_eq!((timeout.step, timeout.current), (first, second * 60));
    for _ in 0..20 {
        timeout.took(second);
    }
    assert_eq!(timeout.step, None);
    for _ in 0..100 {
        timeout.expired();
    }
    assert_eq!(timeout.step, Some(1));
}
