//! Tests of chains: how batches pass through the processors, and the two adapters that run a chain in front of a channel or a sink.

mod again;
mod graphs;
mod large;

use std::{
    future::poll_fn,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use millstream_record::{
    ChunkOrigin, Encoding, FileId, FileOrigin, Origin, Pool, Position, Tag, Values,
};

use millstream_sys::thread_time;
use millstream_testkit::block_on;

use super::*;
use crate::{
    channel::{BoxFuture, Channel, Delivered, Entry, Group, Reader},
    delivery::{self, Receipt},
    meters::Meters,
    outlet::{Edge, Feed},
    output::{Head, Out},
    partition::Tasks,
    plan::ChainPort,
    processor::{MAIN, Processor, Task},
    report::Reporter,
    tags::TagFilter,
};

/// Processes each line by its first byte: `-` is filtered, `!` is rejected, `x` panics, `e` fails, `2` becomes two records with the tag
/// `two`, and all other lines are passed on.
struct ByFirst;

impl Processor for ByFirst {
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Self))
    }
}

impl Task for ByFirst {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        let mut at = 0;
        for line in batch.body.split_inclusive(|byte| *byte == b'\n') {
            let range = at..at + line.len();
            at = range.end;
            match line[0] {
                b'-' => out.filter(1),
                b'!' => out.reject(line, "no"),
                b'x' => panic!("a line with x"),
                b'e' => return Err(Failure::us("a line with e")),
                b'2' => {
                    let head = Head {
                        tag: "two".into(),
                        values: batch.values.clone(),
                    };
                    let two = |buffer: &mut Vec<u8>| {
                        buffer.extend_from_slice(b"\x92\x00\x80\x92\x00\x80");
                        Ok::<_, ()>(2)
                    };
                    out.append(MAIN, Some(&head), two).unwrap();
                }
                _ => out.keep(MAIN, range, 1),
            }
        }
        Ok(())
    }
}

/// Sends lines that begin with `a` by port 0 and all others by port 1.
struct Divide;

impl Processor for Divide {
    fn ports(&self) -> Vec<Arc<str>> {
        vec!["a".into(), "rest".into()]
    }
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Self))
    }
}

impl Task for Divide {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        let mut at = 0;
        for line in batch.body.split_inclusive(|byte| *byte == b'\n') {
            let range = at..at + line.len();
            at = range.end;
            out.keep(usize::from(line[0] != b'a'), range, 1);
        }
        Ok(())
    }
}

/// Gives each record a tag that is its index in the chain's input ([`Out::place`]).
struct ByPlace;

impl Processor for ByPlace {
    fn uses_places(&self) -> bool {
        true
    }
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Self))
    }
}

impl Task for ByPlace {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        let head = Head {
            tag: out.place().to_string().as_str().into(),
            values: batch.values.clone(),
        };
        let entry = |buffer: &mut Vec<u8>| {
            buffer.extend_from_slice(b"\x92\x00\x80");
            Ok::<_, ()>(1)
        };
        out.append(MAIN, Some(&head), entry).unwrap();
        Ok(())
    }
}

/// Waits with each batch, as for a slow program, and then works for a while.
struct Slow;

impl Processor for Slow {
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Self))
    }
}

impl Task for Slow {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        std::thread::sleep(Duration::from_millis(20));
        let before = thread_time::of_this_thread();
        while thread_time::of_this_thread() - before < Duration::from_millis(2) {}
        out.keep(MAIN, 0..batch.body.len(), batch.count);
        Ok(())
    }
}

fn batch(tag: &str, text: &str) -> Batch {
    Batch {
        tag: tag.into(),
        encoding: Encoding::Lines,
        plain: false,
        body: text.to_owned().into(),
        count: text.lines().count() as u32,
        received: Default::default(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

fn hop(to: Step, tags: Option<&str>) -> Hop {
    Hop {
        to,
        tags: tags.map(|tags| TagFilter::new([tags]).unwrap()),
    }
}

fn node(name: &str, processor: Arc<dyn Processor>, ports: Vec<Vec<Hop>>) -> ChainNode {
    let port = |hops| ChainPort {
        is_taken: true,
        hops,
    };
    ChainNode {
        name: name.into(),
        index: 0,
        processor,
        tasks: Tasks::default(),
        ports: ports.into_iter().map(port).collect(),
        reports: true,
        options: "".into(),
    }
}

/// One processor [`ByFirst`] between the entry and the end.
fn simple() -> Arc<ChainPlan> {
    let ports = vec![vec![hop(Step::End, None)]];
    Arc::new(ChainPlan {
        nodes: vec![node("first", Arc::new(ByFirst), ports)],
        entries: vec![vec![hop(Step::Node(0), None)]],
    })
}

/// A channel that accepts all groups and holds them until the test takes them.
#[derive(Default)]
struct Held {
    groups: Mutex<Vec<Group>>,
    closed: AtomicBool,
    mark: Option<u64>,
}

impl Held {
    fn take(&self) -> Vec<Group> {
        std::mem::take(&mut *self.groups.lock().unwrap())
    }
}

impl Channel for Held {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        self.groups.lock().unwrap().push(group);
        Box::pin(std::future::ready(()))
    }
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
    fn file_mark(&self, _: &FileId) -> Option<u64> {
        self.mark
    }
}

/// The context of one processor, and the channel that its rejected records go to.
fn contexts(meters: &Meters) -> (Vec<NodeContext>, Arc<Held>) {
    let held = Arc::new(Held::default());
    let edge = Edge::to(Feed::new(held.clone()));
    let of = meters.of("first");
    let rejects = Outlet::new(vec![edge], &of, true);
    let context = NodeContext::new(
        Some(rejects),
        ProcessorMeters::new(&of),
        &Reporter::new("p"),
    );
    (vec![context], held)
}

fn texts(batches: &[Batch]) -> Vec<(&str, String, u32)> {
    batches
        .iter()
        .map(|batch| {
            let body = String::from_utf8_lossy(&batch.body).into_owned();
            (batch.tag.as_str(), body, batch.count)
        })
        .collect()
}

#[test]
fn a_batch_passes_through_all_processors_in_order_and_along_the_tags() {
    let divided = vec![
        vec![hop(Step::Node(1), None)],
        vec![hop(Step::End, Some("!no.*"))],
    ];
    let nodes = vec![
        node("divide", Arc::new(Divide), divided),
        node("first", Arc::new(ByFirst), vec![vec![hop(Step::End, None)]]),
    ];
    let plan = Arc::new(ChainPlan {
        nodes,
        entries: vec![
            vec![hop(Step::Node(0), None)],
            vec![hop(Step::Node(1), Some("t")), hop(Step::End, None)],
        ],
    });
    let meters = Meters::default();
    let (context, _) = contexts(&meters);
    let contexts = [context[0].clone(), context[0].clone()];
    let mut chain = maker(plan, contexts.to_vec()).make().unwrap();
    let mut feed = |entry, batch: Batch| now(chain.feed(entry, &batch, 0)).unwrap();
    let fed = feed(0, batch("t", "a1\nb\na2\n"));
    // The branches meet at the consumer, where the records are put back in order.
    let expected = [("t", "a1\nb\na2\n".to_owned(), 3)];
    assert_eq!(texts(&fed.batches), expected);
    let fed = feed(0, batch("no.t", "b\n"));
    assert!(fed.batches.is_empty());
    let fed = feed(1, batch("t", "-\nb\n"));
    let expected = [("t", "-\nb\nb\n".to_owned(), 3)];
    assert_eq!(texts(&fed.batches), expected);
    assert_eq!(meters.value("first", "records_filtered"), 1);
}

#[test]
fn a_processor_that_waits_is_busy_but_uses_little_cpu_time() {
    let plan = Arc::new(ChainPlan {
        nodes: vec![node(
            "slow",
            Arc::new(Slow),
            vec![vec![hop(Step::End, None)]],
        )],
        entries: vec![vec![hop(Step::Node(0), None)]],
    });
    let meters = Meters::default();
    let (contexts, _) = contexts(&meters);
    let mut chain = maker(plan, contexts).make().unwrap();
    for _ in 0..10 {
        now(chain.feed(0, &batch("t", "a\n"), 0)).unwrap();
    }
    let busy = meters.value("first", "busy_microseconds");
    let cpu = meters.value("first", "cpu_microseconds");
    assert!(busy >= 220_000, "{busy}");
    assert!(cpu >= 20_000 && cpu < busy / 2, "{cpu} of {busy}");
}

/// Returns the result of work that never waits.
fn now<T>(work: impl Future<Output = T>) -> T {
    match std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("nothing here has to wait"),
    }
}

/// Delivers its batches in order. A resume continues after the given position, or from the first batch.
struct FakeReader {
    all: Vec<Batch>,
    next: usize,
}

impl Reader for FakeReader {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        self.next = after.map_or(0, |position| position.seq as usize);
        Ok(())
    }
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        let batch = self.all.get(self.next).cloned();
        self.next += 1;
        let position = Position {
            epoch: 1,
            seq: self.next as u64,
        };
        let delivered = batch.map(|batch| Delivered::new(batch, Some(position), None));
        Poll::Ready(Ok(delivered))
    }
    fn commit(&mut self, _: Position) -> Result<(), Failure> {
        Ok(())
    }
}

fn maker(plan: Arc<ChainPlan>, contexts: Vec<NodeContext>) -> Arc<ChainMaker> {
    ChainMaker::new(plan, contexts, &Pool::new(1 << 20))
}

/// Returns a reader whose batches pass through a chain of `plan`.
fn through(
    reader: impl Reader + 'static,
    plan: Arc<ChainPlan>,
    contexts: Vec<NodeContext>,
) -> ChainReader {
    let swap = Arc::new(Swap::default());
    let next = Next::new(Some(maker(plan, contexts)));
    swap.post(next.unwrap());
    ChainReader::new(Box::new(reader), None, swap)
}

fn read(reader: &mut ChainReader) -> Result<Option<Delivered>, Failure> {
    match reader.poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(delivered) => delivered,
        Poll::Pending => panic!("nothing here has to wait"),
    }
}

#[test]
fn only_the_last_batch_of_a_position_may_be_settled_even_if_it_is_empty() {
    let all = ["a\n2\nb\n", "-\n", "c\n"].map(|text| batch("t", text));
    let reader = FakeReader {
        all: all.to_vec(),
        next: 0,
    };
    let (contexts, _) = contexts(&Meters::default());
    let mut reader = through(reader, simple(), contexts);
    let mut seen = Vec::new();
    while let Some(delivered) = read(&mut reader).unwrap() {
        let seq = delivered.position.unwrap().seq;
        let tag = delivered.batch.tag.as_str().to_owned();
        seen.push((seq, tag, delivered.batch.count, delivered.last));
    }
    let expected = [
        (1, "t", 2, false),
        (1, "two", 2, true),
        (2, "t", 0, true),
        (3, "t", 1, true),
    ];
    let expected = expected.map(|(seq, tag, count, last)| (seq, tag.to_owned(), count, last));
    assert_eq!(seen, expected);
}

#[test]
fn a_batch_is_settled_only_with_the_records_that_were_rejected_from_it() {
    let reader = FakeReader {
        all: vec![batch("t", "a\n!b\n")],
        next: 0,
    };
    let (contexts, held) = contexts(&Meters::default());
    let mut reader = through(reader, simple(), contexts);
    let delivered = read(&mut reader).unwrap().unwrap();
    let [receipt] = &delivered.rejected[..] else {
        panic!("one receipt for the rejected record");
    };
    assert_eq!(receipt.try_outcome(), None);
    let rejected = held.take().remove(0);
    assert_eq!(rejected.batches[0].count, 1);
    rejected.token.settle();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
}

#[test]
fn a_panic_or_failure_of_a_processor_stops_its_reader_until_it_resumes() {
    for (text, why) in [
        ("x\n", "panicked (a line with x)"),
        ("e\n", "a line with e"),
    ] {
        let reader = FakeReader {
            all: vec![batch("t", text), batch("t", "a\n")],
            next: 0,
        };
        let (contexts, _) = contexts(&Meters::default());
        let mut reader = through(reader, simple(), contexts);
        let failure = read(&mut reader).unwrap_err();
        assert!(failure.message.contains("the processor first"), "{failure}");
        assert!(failure.message.contains(why), "{failure}");
        let after = Position { epoch: 1, seq: 1 };
        reader.resume(Some(after)).unwrap();
        assert_eq!(read(&mut reader).unwrap().unwrap().batch.count, 1);
    }
}

fn put(channel: &ChainChannel, batches: Vec<Batch>) -> Receipt {
    let (token, receipt) = delivery::receipt(true, 1, delivery::Tally::default());
    let mut put = channel.put(Group::new(batches, token));
    let ready = put.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(ready.is_ready());
    receipt
}

/// Returns a channel with a chain in front of it.
fn behind(held: &Arc<Held>, plan: Arc<ChainPlan>, contexts: Vec<NodeContext>) -> ChainChannel {
    let feed = Feed::new(held.clone());
    let reporter = Reporter::new("kept");
    ChainChannel::new(feed, maker(plan, contexts), 1, reporter).unwrap()
}

fn chained(mark: Option<u64>) -> (ChainChannel, Arc<Held>, Arc<Held>) {
    let held = Arc::new(Held {
        mark,
        ..Held::default()
    });
    let (contexts, rejects) = contexts(&Meters::default());
    (behind(&held, simple(), contexts), held, rejects)
}

#[test]
fn a_group_is_settled_when_its_output_and_its_rejected_records_are_kept() {
    let (channel, held, rejects) = chained(None);
    let receipt = put(&channel, vec![batch("t", "a\n!b\n"), batch("t", "c\n2\n")]);
    let group = held.take().remove(0);
    let kept = texts(&group.batches);
    assert_eq!(kept[0], ("t", "a\nc\n".to_owned(), 2));
    assert_eq!((kept[1].0, kept[1].2), ("two", 2));
    group.token.settle();
    assert_eq!(receipt.try_outcome(), None);
    rejects.take().remove(0).token.settle();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
}

#[test]
fn a_group_whose_records_are_all_filtered_is_settled_and_one_that_fails_is_not() {
    let (channel, held, _) = chained(None);
    let receipt = put(&channel, vec![batch("t", "-\n")]);
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    for text in ["x\n", "e\n"] {
        let receipt = put(&channel, vec![batch("t", "a\n"), batch("t", text)]);
        assert!(receipt.try_outcome().unwrap().is_err());
        assert!(
            held.take().is_empty(),
            "nothing of a group that failed is kept"
        );
    }
    put(&channel, vec![batch("t", "a\n")]);
    assert_eq!(held.take().len(), 1);
}

fn chunk(id: u8, start: u32, end: u32, records: u32) -> Origin {
    Origin::Chunk(ChunkOrigin {
        id: vec![id].into(),
        tag: Tag::from("t"),
        connection: 1,
        length: 9,
        checksum: 7,
        start,
        end,
        records,
    })
}

#[test]
fn the_ranges_of_chunks_follow_their_records() {
    let (channel, held, _) = chained(None);
    let mut input = batch("t", "a\n-\nbb\n-\nc\nd\n");
    // The first chunk is `a` and `-`, the second `-` and `c`; `bb` and `d` have no id.
    input.origins = vec![chunk(1, 0, 4, 2), chunk(2, 7, 11, 2)];
    put(&channel, vec![input]);
    let group = held.take().remove(0);
    assert_eq!(
        texts(&group.batches),
        [("t", "a\nbb\nc\nd\n".to_owned(), 4)]
    );
    let expected = [chunk(1, 0, 2, 1), chunk(2, 5, 7, 1)];
    assert_eq!(group.batches[0].origins, expected);
}

#[test]
fn a_chunk_that_several_tasks_process_has_one_range() {
    let plan = simple_with(3);
    let held = Arc::new(Held::default());
    let (contexts, _) = contexts(&Meters::default());
    let channel = behind(&held, plan, contexts);
    let (first, second) = ("a\n".repeat(40_000), "b\n".repeat(30_000));
    let mut input = batch("t", &(first + &second));
    // The second chunk is in the batch twice, because it was sent again. Each copy keeps a separate range, so that the channel
    // recognizes the repeat.
    input.origins = vec![
        chunk(1, 0, 80_000, 40_000),
        chunk(2, 80_000, 110_000, 15_000),
        chunk(2, 110_000, 140_000, 15_000),
    ];
    let expected = input.origins.clone();
    let (token, _receipt) = delivery::receipt(true, 1, delivery::Tally::default());
    block_on(channel.put(Group::new(vec![input], token)));
    let group = held.take().remove(0);
    assert_eq!((group.batches.len(), group.batches[0].count), (1, 70_000));
    assert_eq!(group.batches[0].origins, expected);
}

#[test]
fn a_chunk_whose_output_has_two_tags_is_an_origin_of_both_batches() {
    let (channel, held, _) = chained(None);
    let mut input = batch("t", "a\n2\n-\n");
    input.origins = vec![chunk(1, 0, 4, 2), chunk(2, 4, 6, 1)];
    put(&channel, vec![input]);
    let group = held.take().remove(0);
    let origins = group.batches.iter().map(|batch| batch.origins.clone());
    let expected = [vec![chunk(1, 0, 2, 1)], vec![chunk(1, 0, 6, 2)]];
    assert_eq!(origins.collect::<Vec<_>>(), expected);
}

fn file(begin: u64, next: u64) -> FileOrigin {
    let file = FileId {
        device: 1,
        inode: 2,
        birth: 3,
        head: 4,
    };
    FileOrigin { file, begin, next }
}

#[test]
fn a_file_range_is_divided_at_the_kept_offset_and_stays_even_if_all_its_records_are_filtered() {
    let (channel, held, _) = chained(Some(14));
    let mut input = batch("t", "a\n-\n-\nb\n");
    input.origins = vec![Origin::File(file(10, 18))];
    put(&channel, vec![input]);
    let mut input = batch("t", "-\n");
    input.origins = vec![Origin::File(file(18, 20))];
    put(&channel, vec![input]);
    let groups = held.take();
    let kept = |batch: &Batch| (batch.count, batch.origins.clone());
    let kept: Vec<Vec<_>> = (groups.iter())
        .map(|group| group.batches.iter().map(kept).collect())
        .collect();
    let expected = [
        vec![
            (1, vec![Origin::File(file(10, 14))]),
            (1, vec![Origin::File(file(14, 18))]),
        ],
        vec![(0, vec![Origin::File(file(18, 20))])],
    ];
    assert_eq!(kept, expected);
}

#[test]
fn a_closed_channel_closes_the_ports_of_its_processors() {
    let (channel, held, rejects) = chained(None);
    drop(Feed::new(Arc::new(channel)));
    assert!(held.closed.load(Ordering::Relaxed));
    assert!(rejects.closed.load(Ordering::Relaxed));
}

fn simple_with(tasks: usize) -> Arc<ChainPlan> {
    let mut plan = Arc::into_inner(simple()).unwrap();
    plan.nodes[0].tasks.count = Some(tasks);
    Arc::new(plan)
}

#[test]
fn the_place_of_a_record_does_not_depend_on_the_number_of_tasks() {
    // The first processor filters the second line, which has the place (index) 1.
    let batch = batch("t", &format!("a\n-\n{}", "a\n".repeat(20_000)));
    for tasks in [1, 2, 5] {
        let mut plan = Arc::into_inner(simple()).unwrap();
        plan.nodes[0].ports[0].hops = vec![hop(Step::Node(1), None)];
        let end = vec![vec![hop(Step::End, None)]];
        plan.nodes.push(node("second", Arc::new(ByPlace), end));
        plan.nodes[1].tasks.count = Some(tasks);
        let (mut both, _) = contexts(&Meters::default());
        both.push(both[0].reporting(true));
        let mut chain = maker(Arc::new(plan), both).make().unwrap();
        let fed = block_on(chain.feed(0, &batch, 0)).unwrap();
        let tags = fed.batches.iter().map(|batch| batch.tag.as_str());
        let mut places: Vec<u32> = tags.map(|tag| tag.parse().unwrap()).collect();
        places.sort_unstable();
        let expected = (0..20_002).filter(|place| *place != 1);
        assert!(places.into_iter().eq(expected), "{tasks} tasks");
    }
}

#[test]
fn a_group_with_very_many_tags_takes_time_in_proportion_to_their_number() {
    // Few enough that the chain does not yield to other tasks between the batches, and that the output is one group.
    const TAGS: usize = 16_000;
    let mut plan = Arc::into_inner(simple()).unwrap();
    plan.nodes[0].processor = Arc::new(ByPlace);
    let held = Arc::new(Held::default());
    let (contexts, _) = contexts(&Meters::default());
    let channel = behind(&held, Arc::new(plan), contexts);
    let all = batch("t", &"a\n".repeat(TAGS));
    // A comparison with each of the other tags would take minutes.
    let started = Instant::now();
    put(&channel, vec![all.clone(), all]);
    assert!(started.elapsed() < Duration::from_secs(20));
    let group = held.take().remove(0);
    assert_eq!(group.batches.len(), TAGS);
    assert!(group.batches.iter().all(|batch| batch.count == 2));
}

#[test]
fn positions_stay_in_order_while_several_batches_are_in_flight() {
    let all: Vec<_> = (0..200)
        .map(|n| batch("t", &format!("{n}\n-\n2\n")))
        .collect();
    let reader = FakeReader { all, next: 0 };
    let plan = simple_with(2);
    let (contexts, _) = contexts(&Meters::default());
    let mut reader = through(reader, plan, contexts);
    let mut ends = Vec::new();
    block_on(async {
        while let Some(delivered) = poll_fn(|context| reader.poll_next(context)).await.unwrap() {
            if delivered.last {
                ends.push(delivered.position.unwrap().seq);
            }
        }
    });
    assert_eq!(ends, (1..=200).collect::<Vec<_>>());
}

#[test]
fn a_panic_on_a_thread_stops_the_reader_until_it_resumes_and_the_task_is_replaced() {
    let all = ["a\n", "x\n", "b\n"].map(|text| batch("t", text)).to_vec();
    let plan = simple_with(1);
    let mut nodes = Arc::into_inner(plan).unwrap();
    nodes.nodes[0].processor = Arc::new(Blocking);
    let plan = Arc::new(nodes);
    let (contexts, _) = contexts(&Meters::default());
    let reader = FakeReader { all, next: 0 };
    let mut reader = through(reader, plan, contexts);
    block_on(async {
        // The batch before the panic is delivered, although the next batch was already on the thread.
        let before = poll_fn(|context| reader.poll_next(context)).await;
        assert_eq!(before.unwrap().unwrap().position.unwrap().seq, 1);
        let failed = poll_fn(|context| reader.poll_next(context)).await;
        assert!(failed.unwrap_err().message.contains("a line with x"));
        reader.resume(Some(Position { epoch: 1, seq: 2 })).unwrap();
        let delivered = poll_fn(|context| reader.poll_next(context)).await;
        assert_eq!(delivered.unwrap().unwrap().position.unwrap().seq, 3);
    });
}

/// A task that panics at the line `x`, and panics again when it is dropped after that.
#[derive(Default)]
struct Deadly {
    is_bad: bool,
}

impl Processor for Deadly {
    fn blocking(&self) -> bool {
        true
    }
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::<Self>::default())
    }
}

impl Task for Deadly {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        self.is_bad = batch.body.starts_with(b"x");
        assert!(!self.is_bad, "injected");
        out.keep(MAIN, 0..batch.body.len(), batch.count);
        Ok(())
    }
}

impl Drop for Deadly {
    fn drop(&mut self) {
        assert!(!self.is_bad, "injected into the drop");
    }
}

#[test]
fn a_panic_outside_of_the_work_of_a_task_fails_its_batch_and_not_its_thread() {
    let all = ["a\n", "x\n", "b\n"].map(|text| batch("t", text)).to_vec();
    let mut plan = Arc::into_inner(simple_with(1)).unwrap();
    plan.nodes[0].processor = Arc::new(Deadly::default());
    let (contexts, _) = contexts(&Meters::default());
    let reader = FakeReader { all, next: 0 };
    let mut reader = through(reader, Arc::new(plan), contexts);
    block_on(async {
        let first = poll_fn(|context| reader.poll_next(context)).await;
        assert_eq!(first.unwrap().unwrap().position.unwrap().seq, 1);
        let failed = poll_fn(|context| reader.poll_next(context)).await;
        assert!(failed.unwrap_err().message.contains("panicked"));
        reader.resume(Some(position(2))).unwrap();
        let third = poll_fn(|context| reader.poll_next(context)).await;
        assert_eq!(third.unwrap().unwrap().position.unwrap().seq, 3);
    });
}

/// [`ByFirst`] as a processor that blocks, so that it runs on a separate thread.
struct Blocking;

impl Processor for Blocking {
    fn blocking(&self) -> bool {
        true
    }
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(ByFirst))
    }
}

#[test]
fn groups_that_wait_for_a_thread_are_kept_in_the_order_in_which_they_were_put() {
    let plan = simple_with(3);
    let held = Arc::new(Held::default());
    let (contexts, _) = contexts(&Meters::default());
    let channel = behind(&held, plan, contexts);
    let receipts: Vec<_> = block_on(async {
        let put = |n: usize| {
            let (token, receipt) = delivery::receipt(true, 1, delivery::Tally::default());
            let text = format!("a{n}\n").repeat(if n.is_multiple_of(3) { 30_000 } else { 1 });
            (
                channel.put(Group::new(vec![batch("t", &text)], token)),
                receipt,
            )
        };
        let (mut puts, receipts): (Vec<_>, Vec<_>) = (0..30).map(put).unzip();
        poll_fn(|context| {
            puts.retain_mut(|put| put.as_mut().poll(context).is_pending());
            if puts.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        receipts
    });
    let groups = held.take();
    let numbers = groups.iter().map(|group| {
        let body = String::from_utf8_lossy(&group.batches[0].body).into_owned();
        body.lines().next().unwrap()[1..].parse::<usize>().unwrap()
    });
    assert_eq!(numbers.collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    groups.into_iter().for_each(|group| group.token.settle());
    assert!(
        receipts
            .iter()
            .all(|receipt| receipt.try_outcome() == Some(Ok(())))
    );
}

/// A plan that passes on all records, so that its output differs from that of [`simple`].
fn passing() -> Arc<ChainPlan> {
    let mut plan = Arc::into_inner(simple()).unwrap();
    plan.nodes[0].processor = Arc::new(Divide);
    plan.nodes[0].ports.push(ChainPort {
        is_taken: true,
        hops: vec![hop(Step::End, None)],
    });
    Arc::new(plan)
}

/// Returns the sequence number of the next batch and the number of its records.
fn read_count(reader: &mut ChainReader) -> (u64, u32) {
    let delivered = read(reader).unwrap().unwrap();
    (delivered.position.unwrap().seq, delivered.batch.count)
}

/// Waits for the next batch; returns the same as [`read_count`].
async fn await_count(reader: &mut ChainReader) -> (u64, u32) {
    let delivered = std::future::poll_fn(|context| reader.poll_next(context)).await;
    let delivered = delivered.unwrap().unwrap();
    (delivered.position.unwrap().seq, delivered.batch.count)
}

fn position(seq: u64) -> Position {
    Position { epoch: 1, seq }
}

#[test]
fn a_reload_gives_the_reader_a_new_chain_and_earlier_positions_keep_the_old_one() {
    // The first chain filters every second line, the second passes on all lines, and then there is no chain.
    let all = vec![batch("t", "a\n-\n"); 6];
    let reader = FakeReader { all, next: 0 };
    let (first, _) = contexts(&Meters::default());
    let (second, _) = contexts(&Meters::default());
    let swap = Arc::new(Swap::default());
    let post = |next| swap.post(Next::new(next).unwrap());
    let old = maker(simple(), first);
    post(Some(old.clone()));
    let mut reader = ChainReader::new(Box::new(reader), None, swap.clone());
    assert_eq!(read_count(&mut reader), (1, 1));
    assert_eq!(read_count(&mut reader), (2, 1));
    post(Some(maker(passing(), second)));
    assert_eq!(read_count(&mut reader), (3, 2));
    post(None);
    assert_eq!(read_count(&mut reader), (4, 2));
    // The sink fails and reads again from the first position.
    reader.resume(Some(position(1))).unwrap();
    let again: Vec<_> = (0..4).map(|_| read_count(&mut reader)).collect();
    assert_eq!(again, [(2, 1), (3, 2), (4, 2), (5, 2)]);
    // Once the second position is committed, no position of the old chain can be read again, and the chain is dropped.
    assert_eq!(Arc::strong_count(&old), 2);
    reader.commit(position(2)).unwrap();
    assert_eq!(Arc::strong_count(&old), 1);
}

#[test]
fn positions_that_were_read_and_not_delivered_before_a_reload_pass_through_the_new_chain_after_a_failure()
 {
    let all = vec![batch("t", "a\n-\n"); 6];
    let reader = FakeReader { all, next: 0 };
    let (first, _) = contexts(&Meters::default());
    let (second, _) = contexts(&Meters::default());
    let swap = Arc::new(Swap::default());
    // With threads, the reader reads several positions ahead.
    swap.post(Next::new(Some(maker(simple_with(2), first))).unwrap());
    let mut reader = ChainReader::new(Box::new(reader), None, swap.clone());
    block_on(async {
        assert_eq!(await_count(&mut reader).await, (1, 1));
        swap.post(Next::new(Some(maker(passing(), second))).unwrap());
        assert_eq!(await_count(&mut reader).await, (2, 1));
        reader.resume(None).unwrap();
        for expected in [(1, 1), (2, 1), (3, 2), (4, 2)] {
            assert_eq!(await_count(&mut reader).await, expected);
        }
    });
}

#[test]
fn the_tags_of_a_consumer_do_not_apply_to_records_that_its_processors_gave_another_tag() {
    // The processor takes only the tag `t`, and gives the tag `two` to some records.
    let read_all = |next: Option<Arc<ChainMaker>>| {
        let all = vec![batch("t", "a\n2\n"), batch("other", "a\n")];
        let reader = FakeReader { all, next: 0 };
        let swap = Arc::new(Swap::default());
        swap.post(Next::new(next).unwrap());
        let tags = TagFilter::new(["t"]).unwrap();
        let mut reader = ChainReader::new(Box::new(reader), Some(tags), swap);
        let mut seen = Vec::new();
        while let Some(delivered) = read(&mut reader).unwrap() {
            let tag = delivered.batch.tag.as_str().to_owned();
            seen.push((tag, delivered.batch.count));
        }
        seen
    };
    let mut plan = Arc::into_inner(simple()).unwrap();
    plan.entries = vec![vec![hop(Step::Node(0), Some("t"))]];
    let (contexts, _) = contexts(&Meters::default());
    let through = read_all(Some(maker(Arc::new(plan), contexts)));
    let expected = [("t", 1), ("two", 2), ("other", 0)];
    assert_eq!(
        through,
        expected.map(|(tag, count)| (tag.to_owned(), count))
    );
    // Without a processor, a batch with another tag is emptied, and is only settled.
    let direct = read_all(None);
    let expected = [("t", 2), ("other", 0)];
    assert_eq!(direct, expected.map(|(tag, count)| (tag.to_owned(), count)));
}

#[test]
fn a_replayed_batch_enters_its_processor_and_skips_the_chain_if_it_is_for_the_sink_or_no_node() {
    let addressed = |to: &str| {
        let mut batch = batch("t", "a\n-\n");
        Arc::make_mut(&mut batch.values).set(replay::ADDRESS, to);
        batch
    };
    let all = ["first on", "on", "gone on"].map(addressed).to_vec();
    let (contexts, _) = contexts(&Meters::default());
    let reader = through(FakeReader { all, next: 0 }, simple(), contexts);
    let mut reader = reader.of_sink(&"on".into());
    let counts = std::iter::from_fn(|| read(&mut reader).unwrap());
    let seen: Vec<_> = counts
        .map(|Delivered { batch, .. }| (batch.count, replay::address(&batch).map(str::to_owned)))
        .collect();
    // The last batch keeps its address, because the inlet decides what to do with it.
    assert_eq!(seen, [(1, None), (2, None), (2, Some("gone".to_owned()))]);
}

#[test]
fn a_replayed_batch_that_was_set_aside_in_front_of_a_chain_passes_through_it() {
    for reader in ["on", "on.input"] {
        let mut batch = batch("t", "a\n-\n");
        let values = Arc::make_mut(&mut batch.values);
        values.set(replay::ADDRESS, "on");
        values.set(replay::UNPROCESSED, "yes");
        let all = vec![batch];
        let (contexts, _) = contexts(&Meters::default());
        let mut chain = through(FakeReader { all, next: 0 }, simple(), contexts);
        chain = chain.of_sink(&reader.into());
        let Delivered { batch, .. } = read(&mut chain).unwrap().unwrap();
        let left = [replay::ADDRESS, replay::UNPROCESSED].map(|name| batch.values.get(name));
        assert_eq!((batch.count, left), (1, [None, None]), "{reader}");
    }
}

#[test]
fn a_batch_that_waited_in_memory_passes_through_the_chain_it_was_sent_to() {
    let (first, _) = contexts(&Meters::default());
    let (second, _) = contexts(&Meters::default());
    let (old, new) = (maker(simple(), first), maker(passing(), second));
    let delivered = |maker: Option<&Arc<ChainMaker>>| Delivered {
        entry: Entry {
            number: 0,
            chain: maker.map(|maker| maker.clone() as _),
        },
        ..Delivered::new(batch("t", "a\n-\n"), None, None)
    };
    let waiting = [None, Some(&old), Some(&new), Some(&old), Some(&new), None];
    let reader = Queue(waiting.map(delivered).into());
    let swap = Arc::new(Swap::default());
    let mut reader = ChainReader::new(Box::new(reader), None, swap.clone());
    swap.post(Next::new(Some(new.clone())).unwrap());
    let counts = std::iter::from_fn(|| read(&mut reader).unwrap());
    let counts: Vec<_> = counts.map(|delivered| delivered.batch.count).collect();
    assert_eq!(counts, [2, 1, 2, 1, 2, 2]);
}

/// Delivers its batches, then ends.
struct Queue(std::collections::VecDeque<Delivered>);

impl Reader for Queue {
    fn resume(&mut self, _: Option<Position>) -> Result<(), Failure> {
        Ok(())
    }
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        Poll::Ready(Ok(self.0.pop_front()))
    }
    fn commit(&mut self, _: Position) -> Result<(), Failure> {
        Ok(())
    }
}

#[test]
fn chains_of_one_maker_share_threads_that_end_with_the_last_chain() {
    let (contexts, _) = contexts(&Meters::default());
    let plan = simple_with(2);
    let maker = maker(plan.clone(), contexts);
    let workers = |chain: &Chain| match &chain.nodes[0].work {
        Work::Workers(workers, _) => Arc::downgrade(workers),
        Work::Here(_) => panic!("two tasks have threads"),
    };
    let (one, two) = (maker.make().unwrap(), maker.make().unwrap());
    let shared = workers(&one);
    assert!(std::ptr::eq(shared.as_ptr(), workers(&two).as_ptr()));
    drop((one, two));
    assert_eq!(shared.strong_count(), 0);
    let again = maker.make().unwrap();
    assert_eq!(workers(&again).strong_count(), 1);
}
