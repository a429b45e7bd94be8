//! The output of a processor: what is shared, copied, counted and rejected.

use std::time::{Duration, Instant};

use super::{body::POOLED_MAX, *};

fn batch(text: &str) -> Batch {
    Batch {
        tag: "t".into(),
        encoding: Encoding::Lines,
        plain: false,
        body: text.to_owned().into(),
        count: text.lines().count() as u32,
        received: Default::default(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

fn entry(buffer: &mut Vec<u8>) -> Result<u32, ()> {
    buffer.extend_from_slice(b"\x92\x00\x80");
    Ok(1)
}

fn bodies(batches: &[Batch]) -> Vec<(Encoding, Vec<u8>, u32)> {
    let of = |batch: &'_ Batch| (batch.encoding, batch.body.to_vec(), batch.count);
    batches.iter().map(of).collect()
}

#[test]
fn adjacent_records_share_the_bytes_of_the_input() {
    let (batch, pool) = (batch("a\nb\nc\n"), Pool::new(1 << 20));
    let mut out = Out::new("n", &batch, &pool, [Use::Here(0), Use::Here(1)].into_iter());
    out.keep(0, 0..2, 1);
    out.keep(0, 2..4, 1);
    out.keep(1, 4..6, 1);
    let made = out.finish();
    assert_eq!(
        bodies(&made.ports[0]),
        [(Encoding::Lines, b"a\nb\n".to_vec(), 2)]
    );
    assert_eq!(made.ports[0][0].body.as_ptr(), batch.body.as_ptr());
    assert_eq!(
        bodies(&made.ports[1]),
        [(Encoding::Lines, b"c\n".to_vec(), 1)]
    );
    assert_eq!(made.counts.sent, 3);
}

#[test]
fn ports_with_the_same_next_steps_share_one_output() {
    let (batch, pool) = (batch("a\nb\nc\n"), Pool::new(1 << 20));
    let mut out = Out::new(
        "n",
        &batch,
        &pool,
        [Use::Here(0), Use::None, Use::Here(0)].into_iter(),
    );
    out.keep(0, 0..2, 1);
    out.keep(2, 2..4, 1);
    out.keep(0, 4..6, 1);
    let made = out.finish();
    let whole = (Encoding::Lines, b"a\nb\nc\n".to_vec(), 3);
    assert_eq!(bodies(&made.ports[0]), [whole]);
    assert_eq!(made.ports[0][0].body.as_ptr(), batch.body.as_ptr());
    assert!(made.ports[2].is_empty());
    assert_eq!(made.counts.sent, 3);
}

#[test]
fn records_stay_in_order_when_some_are_left_out_or_replaced() {
    let (batch, pool) = (batch("a\nb\nc\nd\n"), Pool::new(1 << 20));
    let mut out = Out::new("n", &batch, &pool, [Use::Here(0)].into_iter());
    out.keep(0, 0..2, 1);
    out.filter(1);
    out.keep(0, 4..6, 1);
    out.append(0, None, entry).unwrap();
    let refused = out.append(0, None, |buffer| {
        buffer.push(1);
        Err("no")
    });
    assert_eq!(refused, Err("no"));
    out.reject(b"d\n", "no");
    let made = out.finish();
    let expected = [
        (Encoding::Lines, b"a\nc\n".to_vec(), 2),
        (Encoding::Packed, b"\x92\x00\x80".to_vec(), 1),
    ];
    assert_eq!(bodies(&made.ports[0]), expected);
    assert_eq!(made.rejected.unwrap().count, 1);
    let counts = Counts {
        sent: 3,
        filtered: 1,
        rejected: 1,
        failed: 0,
    };
    assert_eq!(made.counts, counts);
}

#[test]
fn output_of_large_batches_is_in_buffers_of_the_pool_unless_most_of_it_is_left_out() {
    let pool = Pool::new(8 << 20);
    let batch = batch(&"0123456\n".repeat(16 << 10));
    let every = |step: usize| {
        let mut out = Out::new("n", &batch, &pool, [Use::Here(0)].into_iter());
        for at in (0..batch.len()).step_by(step) {
            out.keep(0, at..at + 8, 1);
        }
        out.finish().ports.remove(0).remove(0)
    };
    let (half, few) = (every(16), every(128));
    assert_eq!((half.count, few.count), (8 << 10, 1 << 10));
    assert_eq!(pool.taken_bytes(), batch.len());
    let place = half.body.as_ptr();
    drop(half);
    assert_eq!(pool.taken_bytes(), 0);
    assert_eq!(every(24).body.as_ptr(), place);
}

#[test]
fn output_of_small_batches_takes_no_buffer_of_the_pool() {
    let (batch, pool) = (batch("a\nb\nc\n"), Pool::new(1 << 20));
    let mut out = Out::new("n", &batch, &pool, [Use::Here(0)].into_iter());
    out.keep(0, 0..2, 1);
    out.keep(0, 4..6, 1);
    let made = out.finish();
    assert_eq!(&made.ports[0][0].body[..], b"a\nc\n");
    assert_eq!(pool.taken_bytes(), 0);
}

#[test]
fn only_the_first_few_tags_of_a_batch_use_buffers_of_the_pool() {
    let (batch, pool) = (batch(&"a\n".repeat(32 << 10)), Pool::new(8 << 20));
    let mut out = Out::new("n", &batch, &pool, [Use::Here(0)].into_iter());
    for tag in 0..20 {
        let head = Head {
            tag: format!("{tag}").as_str().into(),
            values: batch.values.clone(),
        };
        out.append(0, Some(&head), entry).unwrap();
    }
    assert_eq!(pool.taken_bytes(), POOLED_MAX * batch.len());
    assert_eq!(out.finish().ports[0].len(), 20);
    assert_eq!(pool.taken_bytes(), 0);
}

#[test]
fn a_batch_with_very_many_tags_takes_time_in_proportion_to_their_number() {
    const TAGS: usize = 100_000;
    let (batch, pool) = (batch(&"a\n".repeat(TAGS)), Pool::new(8 << 20));
    let mut out = Out::new("n", &batch, &pool, [Use::Here(0)].into_iter());
    let head = |tag: usize| Head {
        tag: tag.to_string().as_str().into(),
        values: batch.values.clone(),
    };
    // A comparison with each of the other tags would take minutes.
    let started = Instant::now();
    for at in 0..TAGS {
        out.keep_as(0, &head(at), 2 * at..2 * at + 2, 1);
    }
    for _ in 0..2 {
        for at in 0..TAGS {
            out.append(0, Some(&head(at)), entry).unwrap();
            assert!(started.elapsed() < Duration::from_secs(40));
        }
    }
    let made = out.finish();
    let (lines, packed) = made.ports[0].split_at(TAGS);
    for (batches, encoding, count) in [(lines, Encoding::Lines, 1), (packed, Encoding::Packed, 2)] {
        assert_eq!(batches.len(), TAGS);
        for (tag, batch) in batches.iter().enumerate() {
            assert_eq!(batch.tag.as_str(), tag.to_string());
            assert_eq!((batch.encoding, batch.count), (encoding, count));
        }
    }
}

#[test]
fn records_of_one_tag_share_a_batch_and_records_of_a_port_without_consumer_are_filtered() {
    let (batch, pool) = (batch("a\n"), Pool::new(1 << 20));
    let mut out = Out::new(
        "n",
        &batch,
        &pool,
        [Use::Here(0), Use::None, Use::Elsewhere].into_iter(),
    );
    let heads = ["x", "y"].map(|tag| Head {
        tag: tag.into(),
        values: batch.values.clone(),
    });
    for head in [&heads[0], &heads[1], &heads[0]] {
        out.append(0, Some(head), entry).unwrap();
    }
    out.append(1, None, entry).unwrap();
    out.pass(1);
    out.pass(2);
    let made = out.finish();
    let tags = made.ports[0]
        .iter()
        .map(|batch| (batch.tag.as_str(), batch.count));
    assert_eq!(tags.collect::<Vec<_>>(), [("x", 2), ("y", 1)]);
    assert!(made.ports[0].iter().all(|batch| batch.plain));
    assert!(made.ports[1].is_empty() && made.ports[2].is_empty());
    assert_eq!((made.counts.sent, made.counts.filtered), (4, 2));
}

#[test]
fn rejected_records_that_repeat_a_long_tag_take_limited_memory() {
    let mut batch = batch(&"x\n".repeat(100_000));
    batch.tag = Tag::from(&*"t".repeat(8192));
    let pool = Pool::new(1 << 20);
    let mut out = Out::new("n", &batch, &pool, [Use::Here(0)].into_iter());
    for at in (0..batch.len()).step_by(2) {
        out.reject(&batch.body[at..at + 2], "why");
    }
    let made = out.finish();
    assert_eq!(made.counts.rejected, 100_000);
    assert!(made.rejected.unwrap().len() < 9 << 20);
}

#[test]
fn the_records_of_a_batch_grow_to_a_quarter_of_the_memory_unless_the_batch_is_larger() {
    let left = |bytes: usize, memory: usize| {
        let batch = Batch {
            body: vec![b'\n'; bytes].into(),
            ..batch("")
        };
        Out::new("n", &batch, &Pool::new(memory), std::iter::empty()).left_bytes()
    };
    assert_eq!(left(1 << 20, 128 << 20), 32 << 20);
    assert_eq!(left(1 << 20, 1 << 30), 64 << 20);
    // A large record may still be changed.
    assert_eq!(left(40 << 20, 128 << 20), 44 << 20);
}
