//! Records that a topic never accepts, and their neighbours.

use super::*;
use crate::kafka::topics::LIMITS_AGE;

#[tokio::test]
async fn a_record_too_large_for_its_topic_is_rejected_and_its_neighbours_are_not() {
    let large = "x".repeat(500);
    for durable in [true, false] {
        let mut bench = if durable { exact(RAW) } else { plain(RAW) };
        bench.broker.set_record_max(300);
        bench.put(&format!("a\n{large}\nb\n"));
        bench.upstream.close();
        bench.rig.run().await.unwrap();
        let mut values = bench.broker.values();
        values.sort();
        assert_eq!(values, ["a", "b"], "durable: {durable}");
        let rejected = bench.upstream.rejected();
        assert_eq!(rejected.iter().map(|batch| batch.count).sum::<u32>(), 1);
        assert!(reasons(&rejected).contains("max.message.bytes"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_was_raised_applies_after_ten_minutes_without_a_restart() {
    let large = format!("{}\n", "x".repeat(500));
    for durable in [true, false] {
        let mut bench = if durable { exact(RAW) } else { plain(RAW) };
        let (broker, upstream) = (bench.broker.clone(), bench.upstream.clone());
        broker.set_record_max(300);
        bench.put(&large);
        let raised = async {
            while upstream.rejected().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            broker.set_record_max(1000);
            tokio::time::sleep(LIMITS_AGE).await;
            drop(upstream.put(rig::packed("tag", &large), false));
            while broker.values().is_empty() && count(&upstream.rejected()) == 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            ended = bench.rig.run() => panic!("it ended: {ended:?}"),
            () = raised => {}
        }
        assert_eq!(broker.values(), [large.trim_end()], "durable: {durable}");
    }
}

/// Records from memory are written even during a stop, so the limit must still be asked for.
#[tokio::test]
async fn behind_memory_a_limit_is_learned_during_a_stop() {
    let mut bench = plain(RAW);
    bench.broker.set_record_max(300);
    bench.broker.fail_limit(Kind::Again);
    let stopper = bench.rig.stopper.clone();
    bench.broker.on_next_fault(move |_| stopper.stop());
    bench.put(&format!("{}\n", "x".repeat(500)));
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(count(&bench.upstream.rejected()), 1);
    let producers = bench.broker.producers().len();
    assert_eq!(producers, 1, "the record was not sent a second time");
}

#[tokio::test]
async fn no_position_is_committed_before_its_rejects_are_kept() {
    let mut bench = exact(r#""topic": "t.{.message}", "format": "raw""#);
    bench.put("a\nno topic\n");
    bench.upstream.lose_reject();
    bench.upstream.close();
    assert!(bench.rig.run().await.is_err());
    assert_eq!(bench.broker.positions(), []);
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["a"]);
    assert_eq!(bench.upstream.rejected().len(), 1);
}

/// Values that begin with an exclamation mark are bad.
fn bad(value: &[u8]) -> bool {
    value.starts_with(b"!")
}

#[tokio::test]
async fn a_refused_record_takes_no_record_of_another_batch_at_its_position_with_it() {
    for named in [true, false] {
        let mut bench = exact(RAW);
        bench.broker.refuse(named, bad);
        let batches = ["!0\na\n", "b\nc\n", "d\n!1\n"].map(|text| rig::packed("tag", text));
        bench.upstream.put_parts(batches.into());
        bench.put("e\n");
        bench.upstream.close();
        bench.rig.run().await.unwrap();
        let mut values = bench.broker.values();
        values.sort();
        assert_eq!(values, ["a", "b", "c", "d", "e"], "named: {named}");
        assert_eq!(count(&bench.upstream.rejected()), 2, "named: {named}");
    }
}

#[tokio::test]
async fn a_record_that_brokers_refuse_is_rejected_and_its_neighbours_are_written_once() {
    for durable in [true, false] {
        for named in [true, false] {
            for text in [
                "!0\n",
                "a\n!0\nb\n",
                "!0\n!1\na\n!2\nb\n!3\n",
                "!0\n!1\n!2\n",
            ] {
                let mut bench = if durable { exact(RAW) } else { plain(RAW) };
                bench.broker.refuse(named, bad);
                bench.put("before\n");
                bench.put(text);
                bench.put("!last\nlast\n");
                bench.upstream.close();
                bench.rig.run().await.unwrap();
                let told = format!("durable: {durable}, named: {named}, {text:?}");
                let mut values = bench.broker.values();
                values.sort();
                let mut good: Vec<_> = text.lines().filter(|line| !bad(line.as_bytes())).collect();
                good.extend(["before", "last"]);
                good.sort_unstable();
                assert_eq!(values, good, "{told}");
                let rejected = bench.upstream.rejected();
                let refused = text.lines().count() + 4 - good.len() - 1;
                assert_eq!(count(&rejected) as usize, refused, "{told}");
                assert!(reasons(&rejected).contains("refuses the record permanently"));
            }
        }
    }
}

#[tokio::test]
async fn refused_records_cause_no_back_off_and_no_other_record_is_given_up() {
    let retry = r#""retry": {"first": "1h", "max": "1h", "timeout": "1s", "give_up": "0s"}"#;
    let options = format!("{retry}, {RAW}");
    for durable in [true, false] {
        let mut bench = if durable {
            exact(&options)
        } else {
            plain(&options)
        };
        bench.broker.refuse(true, bad);
        bench.put("a\n!0\n!1\n");
        bench.upstream.close();
        bench.rig.run().await.unwrap();
        assert_eq!(bench.broker.values(), ["a"]);
        assert_eq!(count(&bench.upstream.rejected()), 2);
    }
}

#[tokio::test]
async fn records_that_are_sent_alone_are_committed_batch_by_batch() {
    let mut bench = exact(RAW);
    bench.broker.refuse(false, bad);
    bench.put("a\n");
    bench.put("b\n");
    bench.put("!0\n!1\nc\n");
    bench.broker.on_init(|_| Ok(()));
    bench.broker.on_init(|_| Ok(()));
    bench.broker.on_init(|broker| {
        assert_eq!(broker.values(), ["a", "b"]);
        Ok(())
    });
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    assert_eq!(bench.broker.values(), ["a", "b", "c"]);
    assert_eq!(count(&bench.upstream.rejected()), 2);
}

#[tokio::test]
async fn records_are_sent_together_again_once_the_bad_ones_are_known() {
    for durable in [true, false] {
        let mut bench = if durable { exact(RAW) } else { plain(RAW) };
        bench.broker.refuse(false, bad);
        bench.put("a\n!0\n!1\n");
        let mut put = false;
        let upstream = bench.upstream.clone();
        let broker = bench.broker.clone();
        let together = async {
            while upstream.rejected().is_empty() || broker.values().len() < 2 {
                if !put && !upstream.rejected().is_empty() {
                    put = true;
                    drop(upstream.put(rig::packed("tag", "b\n"), false));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            ended = bench.rig.run() => panic!("it ended: {ended:?}"),
            () = together => {}
        }
        let producers = bench.broker.producers();
        let alone: Vec<_> = producers
            .iter()
            .map(|options| options.batch_records == 1)
            .collect();
        // Behind a disk channel, only the suspects are sent alone, by the same producer.
        assert_eq!(alone.contains(&true), !durable);
        assert_eq!(alone.last(), Some(&false), "durable: {durable}");
    }
}

#[tokio::test]
async fn few_records_are_encoded_at_a_time_if_their_tag_is_long() {
    for durable in [true, false] {
        let mut bench = if durable { exact(RAW) } else { plain(RAW) };
        drop(bench.upstream.put(rig::misfits(2049), false));
        bench.put("a\n");
        bench.upstream.close();
        bench.rig.run().await.unwrap();
        assert_eq!(rig::rejected_groups(&bench.upstream), [1024, 1024, 1]);
        assert_eq!(bench.broker.values(), ["a"], "durable: {durable}");
    }
}

#[tokio::test]
async fn a_reason_shows_only_the_start_of_a_long_topic_name() {
    let mut bench = plain(r#""topic": "{tag}", "format": "raw""#);
    drop(
        bench
            .upstream
            .put(rig::lines(&rig::long_tag(), "a\n"), false),
    );
    bench.upstream.close();
    bench.rig.run().await.unwrap();
    let rejected = bench.upstream.rejected();
    let reasons = reasons(&rejected);
    let shown = format!("`{}` is not a topic name", "t".repeat(249));
    assert!(reasons.contains(&shown), "{}", reasons.len());
}

/// Most producers may not use DescribeConfigs.
#[tokio::test]
async fn batches_are_halved_if_the_limit_of_a_topic_cannot_be_asked_for() {
    let small: Vec<String> = (10..40).map(|number| format!("record {number}")).collect();
    let text = format!(
        "{}\n{}\n{}\n",
        small[..20].join("\n"),
        "x".repeat(500),
        small[20..].join("\n")
    );
    for durable in [true, false] {
        let mut bench = if durable { exact(RAW) } else { plain(RAW) };
        bench.broker.set_record_max(300);
        bench.broker.fail_limit(Kind::Refused);
        bench.put(&text);
        bench.put("after\n");
        bench.upstream.close();
        bench.rig.run().await.unwrap();
        let mut values = bench.broker.values();
        values.sort();
        let mut expected = small.clone();
        expected.insert(0, "after".to_owned());
        assert_eq!(values, expected, "durable: {durable}");
        let rejected = bench.upstream.rejected();
        assert_eq!(count(&rejected), 1, "durable: {durable}");
        assert!(reasons(&rejected).contains("alone in its batch"));
    }
}
