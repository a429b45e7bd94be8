//! With `add`, records may become thousands of times longer. A chunk must not: receivers refuse long frames.

use millstream_record::Batch;

use super::{server::Act, *};
use crate::rig::{RECEIVED, lines, long_tag, packed};

const PAYLOAD_BYTES_MAX: usize = 8 << 20;
const ADD: &str = r#", "in_flight": "64MiB", "add": {"tag": "{tag}"}"#;

/// Numbered lines, together and each alone.
fn numbered(count: usize) -> (String, Vec<String>) {
    let numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    (numbers.join("\n") + "\n", numbers)
}

/// The first field of each record.
fn messages(frames: &[Received]) -> Vec<String> {
    frames.iter().flat_map(Received::messages).collect()
}

/// Checks that these messages arrived in several chunks, none of which is too large.
fn check(frames: &[Received], expected: &[String]) {
    assert!(frames.len() >= 3, "{}", frames.len());
    for frame in frames {
        assert!(frame.payload.len() <= PAYLOAD_BYTES_MAX);
        let size = frame.option("size").unwrap().as_u64().unwrap();
        assert_eq!(size as usize, frame.messages().len());
    }
    assert_eq!(messages(frames), expected);
}

/// A channel that ends after this batch.
fn only(upstream: Upstream, batch: Batch) -> Upstream {
    upstream.put(batch, false);
    upstream.close();
    upstream
}

#[test]
fn chunks_stay_within_their_limit_whatever_add_adds() {
    let (text, numbers) = numbered(2500);
    for more in ["", r#", "metadata": "keep""#, r#", "time": "integer""#] {
        for batch in [lines(&long_tag(), &text), packed(&long_tag(), &text)] {
            for upstream in [Upstream::durable(7), Upstream::memory()] {
                local(async {
                    let server = Server::start(|_| Act::Ack).await;
                    let upstream = only(upstream, batch.clone());
                    let options = options(&[&server], &format!("{ADD}{more}"));
                    rig(&upstream, &options).run().await.unwrap();
                    check(&server.received(), &numbers);
                });
            }
        }
    }
}

#[test]
fn the_chunks_of_a_batch_have_the_same_ids_and_bytes_after_a_restart() {
    let (text, numbers) = numbered(2500);
    let upstream = only(Upstream::durable(7), lines(&long_tag(), &text));
    local(async {
        let server = Server::start(|_| Act::Silence).await;
        let options = options(&[&server], ADD);
        run_until(&mut rig(&upstream, &options), server.has(3)).await;
        assert_eq!(upstream.settled(), 0);
        server.act(|_| Act::Ack);
        rig(&upstream, &options).run().await.unwrap();
        assert_eq!(upstream.settled(), 1);
        let received = server.received();
        assert_eq!(received.len(), 6);
        let frames: Vec<Received> = once_each(&received).into_iter().cloned().collect();
        check(&frames, &numbers);
        for (number, frame) in frames.iter().enumerate() {
            let id = String::from_utf8(frame.id[2..].to_vec()).unwrap();
            assert!(
                id.starts_with(&format!("{:032x}.sink.1.1.{RECEIVED}.0.{number}.", 7)),
                "{id}"
            );
        }
    });
}

#[test]
fn no_more_of_a_batch_is_encoded_while_no_server_takes_its_chunks() {
    let (text, numbers) = numbered(5000);
    for upstream in [Upstream::durable(7), Upstream::memory()] {
        let upstream = only(upstream, packed(&long_tag(), &text));
        local(async {
            let server = Server::start(|_| Act::Silence).await;
            let options = options(
                &[&server],
                r#", "ack_timeout": "2s", "add": {"tag": "{tag}"}"#,
            );
            let mut rig = rig(&upstream, &options);
            let pool = rig.context.pool.clone();
            let act = async {
                server.has(1).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                // One chunk is in flight, and one waits.
                let taken = pool.taken_bytes();
                assert!(taken < 3 * PAYLOAD_BYTES_MAX, "{taken}");
                server.act(|_| Act::Ack);
                std::future::pending::<()>().await
            };
            tokio::select! {
                ended = rig.run() => ended.unwrap(),
                () = act => {}
            }
            let received = server.received();
            let frames: Vec<Received> = once_each(&received).into_iter().cloned().collect();
            check(&frames, &numbers);
        });
    }
}

#[test]
fn a_record_that_becomes_too_long_for_any_receiver_is_rejected() {
    let copies = (0..64).map(|number| format!(r#""copy{number}": "{{.message}}""#));
    let add = format!(r#", "add": {{{}}}"#, copies.collect::<Vec<_>>().join(", "));
    let text = format!("one\n{}\ntwo\n", "x".repeat(1 << 20));
    for upstream in [Upstream::durable(7), Upstream::memory()] {
        local(async {
            let server = Server::start(|_| Act::Ack).await;
            let upstream = only(upstream, packed("t", &text));
            rig(&upstream, &options(&[&server], &add))
                .run()
                .await
                .unwrap();
            assert_eq!(messages(&server.received()), ["one", "two"]);
            let rejected = upstream.rejected();
            assert_eq!(rejected.len(), 1);
            assert_eq!(rejected[0].count, 1);
            let entry = rmpv::decode::read_value(&mut &rejected[0].body[..]).unwrap();
            let reason = entry[1]["reason"].as_str().unwrap();
            assert!(reason.contains("receivers accept at most"), "{reason}");
            let message = entry[1]["record"]["message"].as_str().unwrap();
            assert_eq!(message.len(), 1 << 20);
        });
    }
}
