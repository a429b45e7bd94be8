//! Tests of batches whose output is large: portions of a batch, several groups of a chunk, and the pool.

use super::*;

/// A plan with one processor that gives each record another tag.
fn retagging() -> Arc<ChainPlan> {
    let mut plan = Arc::into_inner(simple()).unwrap();
    plan.nodes[0].processor = Arc::new(Retag);
    Arc::new(plan)
}

/// Gives each line a tag that is its text. Fails on a line that begins with `e`.
struct Retag;

impl Processor for Retag {
    fn changes_tags(&self) -> bool {
        true
    }
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Self))
    }
}

impl Task for Retag {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        let mut at = 0;
        for line in batch.body.split_inclusive(|byte| *byte == b'\n') {
            let range = at..at + line.len();
            at = range.end;
            if line[0] == b'e' {
                return Err(Failure::us("a line with e"));
            }
            let tag = str::from_utf8(line.trim_ascii_end()).unwrap();
            let head = Head {
                tag: tag.into(),
                values: batch.values.clone(),
            };
            out.keep_as(MAIN, &head, range, 1);
        }
        Ok(())
    }
}

/// The lines `0` to `count`.
fn numbered(count: u32) -> String {
    (0..count).map(|n| format!("{n}\n")).collect()
}

#[test]
fn a_batch_with_very_many_tags_is_delivered_in_portions_and_only_its_last_output_is_last() {
    const COUNT: u32 = 100_000;
    let text = numbered(COUNT);
    let reader = FakeReader {
        all: vec![batch("t", &text), batch("t", "next\n")],
        next: 0,
    };
    let pool = Pool::new(64 << 20);
    let (contexts, _) = contexts(&Meters::default());
    let maker = ChainMaker::new(retagging(), contexts, &pool);
    let swap = Arc::new(Swap::default());
    swap.post(Next::new(Some(maker)).unwrap());
    let mut reader = ChainReader::new(Box::new(reader), None, swap);
    let mut taken_max = 0;
    for n in 0..COUNT {
        let delivered = read(&mut reader).unwrap().unwrap();
        assert_eq!(delivered.batch.tag.as_str(), n.to_string());
        assert_eq!(delivered.position, Some(position(1)));
        assert_eq!(delivered.last, n + 1 == COUNT);
        taken_max = taken_max.max(pool.taken_bytes());
    }
    // The output of one portion is charged, and no more.
    assert!((8 << 20..12 << 20).contains(&taken_max), "{taken_max}");
    let next = read(&mut reader).unwrap().unwrap();
    assert_eq!((next.position, next.last), (Some(position(2)), true));
    assert_eq!(pool.taken_bytes(), 0);
}

#[test]
fn the_place_of_a_record_is_the_same_if_its_batch_is_divided() {
    let mut plan = Arc::into_inner(simple()).unwrap();
    plan.nodes[0].processor = Arc::new(ByPlace);
    let text = format!("{}\n", "x".repeat(99)).repeat(100_000);
    let reader = FakeReader {
        all: vec![batch("t", &text)],
        next: 0,
    };
    let (contexts, _) = contexts(&Meters::default());
    let mut reader = through(reader, Arc::new(plan), contexts);
    let mut seen = vec![false; 100_000];
    while let Some(delivered) = read(&mut reader).unwrap() {
        let place: usize = delivered.batch.tag.as_str().parse().unwrap();
        assert!(!std::mem::replace(&mut seen[place], true), "{place} twice");
    }
    assert!(seen.into_iter().all(|seen| seen));
}

#[test]
fn a_filtered_batch_of_several_portions_is_one_empty_batch() {
    let text = format!("-{}\n", "x".repeat(998)).repeat(10_000);
    let reader = FakeReader {
        all: vec![batch("t", &text)],
        next: 0,
    };
    let (contexts, _) = contexts(&Meters::default());
    let mut reader = through(reader, simple(), contexts);
    let only = read(&mut reader).unwrap().unwrap();
    assert_eq!((only.batch.count, only.last), (0, true));
    assert!(read(&mut reader).unwrap().is_none());
}

#[test]
fn the_last_batch_of_a_position_has_records_if_any_has() {
    // The first portion has records, and the second one has none left.
    let text = "a\n".to_owned() + &format!("-{}\n", "x".repeat(998)).repeat(10_000);
    let reader = FakeReader {
        all: vec![batch("t", &text)],
        next: 0,
    };
    let (contexts, _) = contexts(&Meters::default());
    let mut reader = through(reader, simple(), contexts);
    let only = read(&mut reader).unwrap().unwrap();
    assert_eq!((only.batch.count, only.last), (1, true));
    assert!(read(&mut reader).unwrap().is_none());
}

/// Puts a chunk of these lines into a channel behind [`Retag`]. Returns the groups of the channel.
fn put_chunk(text: &str) -> (Vec<Group>, Receipt) {
    put_bundle(&[1], &[text])
}

/// Puts a chunk with this id into a channel behind [`Retag`]. The chunk has a batch for each of `texts`. Returns the groups of the
/// channel.
fn put_bundle(id: &[u8], texts: &[&str]) -> (Vec<Group>, Receipt) {
    let held = Arc::new(Held::default());
    let (contexts, _) = contexts(&Meters::default());
    let channel = behind(&held, retagging(), contexts);
    let input = |text: &&str| {
        let mut input = batch("t", text);
        let Origin::Chunk(origin) = chunk(1, 0, input.len() as u32, input.count) else {
            unreachable!("`chunk` returns a chunk");
        };
        let id = id.to_vec().into();
        input.origins = vec![Origin::Chunk(ChunkOrigin { id, ..origin })];
        input
    };
    let (token, receipt) = delivery::receipt(true, 1, delivery::Tally::default());
    let group = texts.iter().map(input).collect();
    block_on(channel.put(Group::new(group, token)));
    (held.take(), receipt)
}

/// Returns the checksum in the origin of each batch of a group; all must be equal.
fn key_of(group: &Group) -> u32 {
    let keys = group.batches.iter().map(|batch| match &batch.origins[..] {
        [Origin::Chunk(chunk)] => {
            assert_eq!((chunk.start, chunk.end), (0, batch.len() as u32));
            assert_eq!(chunk.records, batch.count);
            chunk.checksum
        }
        other => panic!("one chunk: {other:?}"),
    });
    let mut keys: Vec<_> = keys.collect();
    keys.dedup();
    assert_eq!(keys.len(), 1);
    keys[0]
}

#[test]
fn a_chunk_with_very_many_tags_is_kept_in_pieces_that_are_recognized_when_it_comes_again() {
    let text = numbered(100_000);
    let (groups, receipt) = put_chunk(&text);
    assert!((2..=7).contains(&groups.len()), "{} groups", groups.len());
    let keys: Vec<_> = groups.iter().map(key_of).collect();
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    // 7 is the key of the whole chunk. A channel that holds it holds the whole chunk.
    assert!(!keys.contains(&7));
    let batches = groups.iter().flat_map(|group| &group.batches);
    let tags: Vec<u32> = batches.map(|it| it.tag.as_str().parse().unwrap()).collect();
    assert!(tags.into_iter().eq(0..100_000));
    // The receipt succeeds only with all pieces.
    let mut groups = groups.into_iter();
    let last = groups.next_back().unwrap();
    groups.for_each(|group| group.token.settle());
    assert_eq!(receipt.try_outcome(), None);
    last.token.settle();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    let (again, _receipt) = put_chunk(&text);
    assert_eq!(again.iter().map(key_of).collect::<Vec<_>>(), keys);
}

/// The ids and checksums of the chunks in a group.
fn keys_of(group: &Group) -> std::collections::BTreeSet<(Vec<u8>, u32)> {
    let origins = group.batches.iter().flat_map(|batch| &batch.origins);
    let keys = origins.map(|origin| match origin {
        Origin::Chunk(chunk) => (chunk.id.to_vec(), chunk.checksum),
        other => panic!("one chunk: {other:?}"),
    });
    keys.collect()
}

#[test]
fn pieces_of_a_chunk_from_another_millstream_are_not_taken_for_parts_that_are_kept() {
    use millstream_wire::{msgpack::write_str, part_id::PartId};
    let mut id = Vec::new();
    let text = format!("{:032x}.next.1.5.9.0.0.1.00000000", 7);
    write_str(&mut id, text.as_bytes());
    assert!(PartId::of_chunk(&id).is_some());
    let all = numbered(100_000);
    let (first, second) = all.split_at(all.find("\n40000\n").unwrap() + 1);
    let put = || put_bundle(&id, &[first, second]).0;
    let groups = put();
    assert!(groups.len() > 1);
    let batches = groups.iter().flat_map(|group| &group.batches);
    let tags = batches.map(|it| it.tag.as_str().parse::<u32>().unwrap());
    assert!(tags.eq(0..100_000));
    let mut seen = std::collections::BTreeSet::new();
    for group in &groups {
        for key in keys_of(group) {
            assert_eq!(PartId::of_chunk(&key.0), None);
            assert!(seen.insert(key), "two groups have the same key");
        }
    }
    let again: Vec<_> = put().iter().map(keys_of).collect();
    assert_eq!(again, groups.iter().map(keys_of).collect::<Vec<_>>());
    // A chunk that is kept in one group keeps its id.
    let (groups, _receipt) = put_bundle(&id, &["a\n", "b\n"]);
    assert_eq!(groups.len(), 1);
    assert!(keys_of(&groups[0]).iter().all(|(kept, _)| *kept == id));
}

#[test]
fn a_chunk_that_fails_in_a_later_piece_is_not_acknowledged_and_an_ordinary_one_is_kept_whole() {
    let (groups, receipt) = put_chunk(&(numbered(50_000) + "e\n"));
    assert!(!groups.is_empty());
    groups.into_iter().for_each(|group| group.token.settle());
    assert_eq!(receipt.try_outcome(), Some(Err(delivery::Unsettled)));
    let (groups, _receipt) = put_chunk(&numbered(10_000));
    assert_eq!(groups.len(), 1);
    assert_eq!(key_of(&groups[0]), 7);
}
