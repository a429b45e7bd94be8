//! Frames that do not fit one transaction, although its timeout is the largest that brokers allow.

use millstream_sys::checksum::crc32c;
use millstream_testkit::{block_on, logged_errors};

use super::*;
use crate::kafka::progress::Part;

const SHORT: &str = r#""topic": "t", "format": "raw", "transaction_timeout": "200ms""#;

/// A sink whose broker takes 10 ms for each record, and ends each transaction after 200 ms.
fn slow(options: &str) -> Bench {
    let bench = exact(options);
    let record = Duration::from_millis(10);
    bench.broker.set_slow(record, Duration::from_millis(200));
    bench
}

/// The first words of [`frame`]'s lines.
fn words() -> Vec<String> {
    (0..60).map(|number| format!("line{number}")).collect()
}

/// Lines that take three times as long as a transaction may, and several steps.
fn frame() -> String {
    let rest = "x".repeat(16 << 10);
    let lines = words().into_iter().map(|word| format!("{word} {rest}\n"));
    lines.collect()
}

/// The first word of each record that readers see.
fn written(bench: &Bench) -> Vec<String> {
    let values = bench.broker.values().into_iter();
    values
        .map(|value| value.split(' ').next().unwrap().to_owned())
        .collect()
}

fn is_line_3(value: &[u8]) -> bool {
    value.starts_with(b"line3 ")
}

async fn run(bench: &mut Bench) {
    bench.upstream.close();
    let limit = Duration::from_secs(60);
    let run = tokio::time::timeout(limit, bench.rig.run()).await;
    run.expect("it repeats the same forever").unwrap();
}

/// Commits, as another process, the part of the frame `seq` that ends with the lines `known`.
fn commit_part(bench: &Bench, seq: u64, known: &str, sum: impl Fn(&[u8]) -> u32) {
    let body = rig::packed("tag", known).body;
    let committed = Committed {
        channel: CHANNEL,
        position: Position { epoch: 1, seq: 0 },
        owner: 9,
        part: Some(Part {
            position: Position { epoch: 1, seq },
            bytes: body.len() as u64,
            sum: sum(&body),
        }),
    };
    bench.broker.set_position(GROUP, "t", &committed.text());
}

#[tokio::test]
async fn a_frame_that_does_not_fit_one_transaction_is_written_in_several() {
    let mut bench = slow(SHORT);
    bench.put("before\n");
    bench.put(&frame());
    bench.put("behind\n");
    run(&mut bench).await;
    let expected = ["before".to_owned()].into_iter().chain(words());
    let expected: Vec<String> = expected.chain(["behind".to_owned()]).collect();
    assert_eq!(written(&bench), expected);
    assert_eq!(bench.upstream.settled(), 3);
    let committed = bench.position();
    assert_eq!((committed.position.seq, committed.part), (3, None));
}

#[tokio::test]
async fn a_divided_frame_is_written_once_although_a_later_part_of_it_fails() {
    let mut bench = slow(SHORT);
    bench.put(&frame());
    // As soon as a part is visible, the next commits fail. The outcome of one is unknown.
    let broker = bench.broker.clone();
    let spoiler = std::thread::spawn(move || {
        while broker.values().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        broker.fail_commit(Kind::Abort);
        broker.doubt_commit(Kind::Fatal);
    });
    run(&mut bench).await;
    spoiler.join().unwrap();
    assert_eq!(written(&bench), words());
}

#[tokio::test]
async fn a_start_continues_within_a_divided_frame() {
    let mut bench = exact(RAW);
    commit_part(&bench, 2, "c\n", crc32c);
    bench.put("a\nb\n");
    // Processors have made two batches of the frame.
    let batches = ["c\nd\n", "e\n"].map(|text| rig::packed("tag", text));
    bench.upstream.put_parts(batches.into());
    bench.put("f\n");
    run(&mut bench).await;
    assert_eq!(bench.broker.values(), ["d", "e", "f"]);
    assert_eq!(bench.upstream.settled(), 3);
    assert_eq!(bench.position().part, None);
}

#[test]
fn a_frame_that_has_changed_since_it_was_divided_is_written_again_and_no_other() {
    // Other bytes, and more bytes than there are.
    for known in ["x\n", "c\nd\ne\nf\n"] {
        let mut bench = exact(RAW);
        commit_part(&bench, 2, known, crc32c);
        bench.put("a\nb\n");
        bench.put("c\nd\n");
        bench.put("e\n");
        let ((), errors) = logged_errors(|| block_on(run(&mut bench)));
        assert_eq!(bench.broker.values(), ["c", "d", "e"]);
        assert_eq!(bench.upstream.settled(), 3);
        let said = errors.join(" ");
        assert!(said.contains("the whole frame is written again"), "{said}");
    }
}

#[tokio::test]
async fn a_record_that_is_refused_in_a_divided_frame_is_rejected_once() {
    for named in [true, false] {
        let mut bench = slow(SHORT);
        bench.broker.refuse(named, is_line_3);
        bench.put(&frame());
        run(&mut bench).await;
        let good = words().into_iter().filter(|word| word != "line3");
        assert_eq!(written(&bench), good.collect::<Vec<_>>());
        assert_eq!(count(&bench.upstream.rejected()), 1, "named: {named}");
    }
}

#[tokio::test]
async fn a_part_is_committed_only_after_its_rejects_are_kept() {
    let mut bench = slow(SHORT);
    bench.broker.refuse(true, is_line_3);
    bench.put(&frame());
    bench.upstream.lose_reject();
    bench.upstream.close();
    let lost = tokio::time::timeout(Duration::from_secs(60), bench.rig.run()).await;
    let lost = lost.unwrap().unwrap_err();
    assert!(lost.message.contains("could not be kept"), "{lost}");
    assert!(written(&bench).is_empty());
    run(&mut bench).await;
    assert_eq!(written(&bench).len(), words().len() - 1);
    assert_eq!(count(&bench.upstream.rejected()), 1);
}

#[tokio::test]
async fn the_committed_part_of_a_frame_is_not_given_up() {
    let give_up = r#""retry": {"first": "1ms", "max": "1ms", "give_up": "10ms"}"#;
    let mut bench = exact(&format!("{give_up}, {RAW}"));
    commit_part(&bench, 1, "a\n", crc32c);
    bench.put("a\nb\nc\n");
    for _ in 0..10_000 {
        bench.broker.fail_record(Kind::Abort);
    }
    run(&mut bench).await;
    assert_eq!(count(&bench.upstream.rejected()), 2);
    assert!(bench.broker.values().is_empty());
}
