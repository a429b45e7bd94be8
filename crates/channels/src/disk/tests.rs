//! The channel with its threads, queue, meters and conditions.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millstream_pipeline::{
    channel::{Channel, Consumer, Delivered, Group, Note, Reader, Then},
    condition::Trouble,
    delivery::{self, Receipt},
    failure::Failure,
    meters::{Meter, Meters},
    node::{ChannelContext, Opened},
    report::Reporter,
    tags::TagFilter,
};
use millstream_record::{
    Batch, ChunkOrigin, Encoding, FileId, FileOrigin, Origin, Pool, Position, Tag, Time, Values,
};
use millstream_sys::disk::{Disk, HostDisk};
use millstream_testkit::{Call, SimulatedDisk, block_on, contract::ChannelCase};

use super::{
    log::inspect::{Directory, Seen},
    options::Config,
};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread; panics if that takes too long.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let started = Instant::now();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(Duration::from_millis(100)),
        }
        assert!(started.elapsed() < Duration::from_secs(20), "it hangs");
    }
}

fn next(reader: &mut Box<dyn Reader>) -> Result<Option<Delivered>, Failure> {
    run(std::future::poll_fn(|context| reader.poll_next(context)))
}

struct Fixture {
    directory: std::path::PathBuf,
    meters: Meters,
    reporter: Reporter,
    disk: Arc<dyn Disk>,
}

impl Fixture {
    fn on(disk: Arc<dyn Disk>, directory: &std::path::Path) -> Self {
        Self {
            directory: directory.to_owned(),
            meters: Meters::default(),
            reporter: Reporter::new("buffer"),
            disk,
        }
    }

    fn open(&self, options: &str) -> Opened {
        let config: Config = serde_json::from_str(options).unwrap();
        let context = ChannelContext {
            name: "buffer".into(),
            pool: Pool::new(64 << 20),
            meters: self.meters.of("buffer"),
            reporter: self.reporter.clone(),
            directory: self.directory.clone(),
        };
        super::open(&config, Arc::clone(&self.disk), context, &["sink".into()]).unwrap()
    }

    /// Opens the channel for these consumers, with a new reporter, which is returned.
    fn open_for(&self, consumers: &[Consumer]) -> (Opened, Reporter) {
        let config: Config = serde_json::from_str(r#"{"size_max": "8MiB"}"#).unwrap();
        let reporter = Reporter::new("buffer");
        let context = ChannelContext {
            name: "buffer".into(),
            pool: Pool::new(64 << 20),
            meters: self.meters.of("buffer"),
            reporter: reporter.clone(),
            directory: self.directory.clone(),
        };
        let opened = super::open(&config, Arc::clone(&self.disk), context, consumers).unwrap();
        (opened, reporter)
    }
}

fn batch(text: &str, origins: Vec<Origin>) -> Batch {
    Batch {
        tag: Tag::from("t"),
        plain: false,
        encoding: Encoding::Lines,
        body: Bytes::copy_from_slice(text.as_bytes()),
        count: text.lines().count() as u32,
        received: Time::now(),
        values: Arc::new(Values::new()),
        origins,
    }
}

fn chunk(text: &str, id: &'static [u8], connection: u64) -> Batch {
    let origin = ChunkOrigin {
        id: Bytes::from_static(id),
        tag: Tag::from("t"),
        connection,
        length: text.len() as u32,
        checksum: text.bytes().map(u32::from).sum(),
        start: 0,
        end: text.len() as u32,
        records: text.lines().count() as u32,
    };
    batch(text, vec![Origin::Chunk(origin)])
}

fn put(channel: &Arc<dyn Channel>, batch: Batch) -> Receipt {
    let (token, receipt) = delivery::receipt(true, 1, Meter::default());
    run(channel.put(Group::new(vec![batch], token)));
    receipt
}

const UNIQUE: &[u8] = b"\xb8PdjoG1yfRwmC9QbEo1eNzA==";
const CONTENT: &[u8] = b"\xd9\x200123456789abcdef0123456789abcdef";

#[test]
fn a_batch_is_read_again_after_a_restart_until_it_is_committed() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(
        Arc::new(HostDisk),
        &directory.path().join("deep/channels/buffer"),
    );
    let mut id = None;
    for round in 0..2 {
        let Opened {
            channel,
            mut readers,
            finished,
        } = fixture.open(r#"{"size_max": "16MiB"}"#);
        assert_eq!(*id.get_or_insert(channel.id()), channel.id());
        readers[0].resume(None).unwrap();
        if round == 0 {
            for text in ["a\n", "b\n", "c\n"] {
                run(put(&channel, batch(text, Vec::new()))).unwrap();
            }
            let first = next(&mut readers[0]).unwrap().unwrap();
            assert_eq!(&first.batch.body[..], b"a\n");
            readers[0].commit(first.position.unwrap()).unwrap();
        }
        channel.close();
        run(finished).unwrap();
        for text in ["b\n", "c\n"] {
            let next = next(&mut readers[0]).unwrap().unwrap();
            assert_eq!(&next.batch.body[..], text.as_bytes(), "round {round}");
        }
        assert!(next(&mut readers[0]).unwrap().is_none());
    }
}

#[test]
fn a_repeat_is_answered_and_stored_once_also_after_a_restart() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let fixture = Fixture::on(disk, std::path::Path::new("/buffer"));
    for connection in [1, 2] {
        let Opened {
            channel, finished, ..
        } = fixture.open(r#"{"size_max": "16MiB"}"#);
        // Both copies are in flight at the same time.
        let one = put(&channel, chunk("x\n", UNIQUE, connection));
        let two = put(&channel, chunk("x\n", UNIQUE, connection + 10));
        assert_eq!((run(one), run(two)), (Ok(()), Ok(())));
        run(put(&channel, chunk("y\n", UNIQUE, connection))).unwrap();
        channel.close();
        run(finished).unwrap();
    }
    let mut opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    opened.readers[0].resume(None).unwrap();
    opened.channel.close();
    run(opened.finished).unwrap();
    let mut bodies = Vec::new();
    while let Some(delivered) = next(&mut opened.readers[0]).unwrap() {
        bodies.push(delivered.batch.body);
    }
    assert_eq!(bodies, ["x\n", "y\n"]);
}

#[test]
fn equal_chunks_of_fluent_bit_are_both_stored_and_a_resend_is_not() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let fixture = Fixture::on(disk, std::path::Path::new("/buffer"));
    let opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    let channel = &opened.channel;
    let stored = || fixture.meters.value("buffer", "repeated_chunks");
    let keep = |connection| run(put(channel, chunk("x\n", CONTENT, connection))).unwrap();
    keep(1);
    keep(1);
    channel.note(Note::ConnectionClosed(1));
    keep(2);
    channel.note(Note::ConnectionBroken(2));
    keep(3);
    opened.channel.close();
    run(opened.finished).unwrap();
    assert_eq!(stored(), 1);
}

fn takes(name: &str, tags: &[&str]) -> Consumer {
    Consumer {
        tags: TagFilter::new(tags.iter().copied()).ok(),
        ..name.into()
    }
}

fn tagged(tag: &str, lines: &str) -> Batch {
    Batch {
        tag: Tag::from(tag),
        ..batch(lines, Vec::new())
    }
}

#[test]
fn records_that_no_consumer_takes_are_counted_once() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let fixture = Fixture::on(disk, std::path::Path::new("/buffer"));
    let consumers = [
        takes("web", &["web.**"]),
        takes("db", &["db.*", "!db.debug"]),
    ];
    let unclaimed = || fixture.meters.value("buffer", "records_unclaimed");
    let (opened, _) = fixture.open_for(&consumers);
    for tag in ["web", "web.a", "db.x", "mail", "db.debug", "mail"] {
        run(put(&opened.channel, tagged(tag, "a\nb\n"))).unwrap();
    }
    let repeat = Batch {
        tag: Tag::from("mail"),
        ..chunk("x\n", UNIQUE, 1)
    };
    run(put(&opened.channel, repeat.clone())).unwrap();
    run(put(&opened.channel, repeat)).unwrap();
    opened.channel.close();
    run(opened.finished).unwrap();
    assert_eq!(unclaimed(), 7);
    drop(opened.readers);
    // The consumer `all` takes every tag, so no record is unclaimed.
    let (opened, _) = fixture.open_for(&[consumers[0].clone(), "all".into()]);
    run(put(&opened.channel, tagged("mail", "a\n"))).unwrap();
    opened.channel.close();
    run(opened.finished).unwrap();
    assert_eq!(unclaimed(), 7);
}

#[test]
fn skipping_raises_a_condition_until_the_consumer_has_caught_up() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(Arc::new(HostDisk), &directory.path().join("buffer"));
    let mut slow = Consumer::from("slow");
    slow.behind.then = Then::Skip;
    let (mut opened, reporter) = fixture.open_for(&[slow]);
    let reader = &mut opened.readers[0];
    reader.resume(None).unwrap();
    let text = "0123456789abcde\n".repeat(16 << 10);
    for _ in 0..64 {
        run(put(&opened.channel, batch(&text, Vec::new()))).unwrap();
    }
    let held = reporter.conditions();
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].trouble, Trouble::Losing);
    assert!(held[0].why.contains("slow is further behind"), "{held:?}");
    let mut read = 0;
    // 64 groups with one batch each.
    let last = Position { epoch: 1, seq: 64 };
    while reader.settled() < Some(last) {
        let delivered = next(reader).unwrap().unwrap();
        read += u64::from(delivered.batch.count);
        reader.commit(delivered.position.unwrap()).unwrap();
    }
    let skipped = |meter| fixture.meters.value("slow", meter);
    assert_eq!(skipped("records_skipped") + read, 64 * (16 << 10));
    assert_eq!(skipped("bytes_skipped"), skipped("records_skipped") * 16);
    let started = Instant::now();
    while !reporter.conditions().is_empty() {
        thread::sleep(Duration::from_millis(100));
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "the condition holds forever"
        );
    }
    assert!(
        started.elapsed() > Duration::from_secs(5),
        "cleared too early"
    );
}

#[test]
fn the_channel_reports_the_offset_at_which_a_tailed_file_continues() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let fixture = Fixture::on(disk, std::path::Path::new("/buffer"));
    let file = FileId {
        device: 1,
        inode: 2,
        birth: 3,
        head: 4,
    };
    for round in 0..2 {
        let opened = fixture.open(r#"{"size_max": "16MiB", "sync": "1s"}"#);
        let known = opened.channel.file_origins().unwrap();
        assert_eq!(known, if round == 0 { vec![] } else { vec![(file, 4)] });
        let origin = FileOrigin {
            file,
            begin: 0,
            next: 4,
        };
        run(put(
            &opened.channel,
            batch("a\nb\n", vec![Origin::File(origin)]),
        ))
        .unwrap();
        assert_eq!(opened.channel.file_origins().unwrap(), [(file, 4)]);
        opened.channel.close();
        run(opened.finished).unwrap();
    }
}

#[test]
fn a_full_disk_waits_for_room_and_loses_nothing() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity(100 << 10);
    let fixture = Fixture::on(Arc::new(disk.clone()), std::path::Path::new("/buffer"));
    let mut opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    opened.readers[0].resume(None).unwrap();
    let receipt = put(&opened.channel, batch("a\n", Vec::new()));
    thread::sleep(Duration::from_millis(100));
    assert_eq!(receipt.try_outcome(), None);
    assert!(opened.channel.is_full());
    assert_eq!(fixture.meters.value("buffer", "unkept_groups"), 1);
    let held = fixture.reporter.conditions();
    assert_eq!(held[0].trouble, Trouble::Blocked);
    assert!(held[0].why.contains("256KiB are needed"), "{held:?}");
    disk.set_capacity(u64::MAX);
    assert_eq!(run(receipt), Ok(()));
    assert!(!opened.channel.is_full());
    assert_eq!(fixture.reporter.conditions(), []);
    assert_eq!(
        next(&mut opened.readers[0]).unwrap().unwrap().batch.body,
        "a\n"
    );
}

#[test]
fn a_sink_that_has_committed_more_than_the_channel_holds_is_reported_and_misses_nothing() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let mut fixture = Fixture::on(disk, std::path::Path::new("/buffer"));
    let committed = Position { epoch: 7, seq: 9 };
    let mut opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    opened.readers[0].resume(Some(committed)).unwrap();
    run(put(&opened.channel, batch("a\n", Vec::new()))).unwrap();
    assert_eq!(
        next(&mut opened.readers[0]).unwrap().unwrap().batch.body,
        "a\n"
    );
    let missing = |fixture: &Fixture| {
        let held = fixture.reporter.conditions();
        let missing = held.iter().find(|held| held.trouble == Trouble::Losing);
        missing.map(|held| held.why.clone()).unwrap_or_default()
    };
    let why = missing(&fixture);
    assert!(
        why.contains("after 0.0 up to 7.9") && why.contains("forget --accept-loss"),
        "{why}"
    );
    opened.channel.close();
    run(opened.finished).unwrap();
    drop((opened.channel, opened.readers));
    // The next start reports the loss again, because no operator has accepted it.
    fixture.reporter = Reporter::new("buffer");
    let opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    assert!(missing(&fixture).contains("7.9"));
    opened.channel.close();
}

#[test]
fn a_full_channel_stops_its_sources_until_its_consumer_settles_more() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(Arc::new(HostDisk), &directory.path().join("buffer"));
    let mut opened = fixture.open(r#"{"size_max": "8MiB", "queue": "1MiB", "sync": "never"}"#);
    opened.readers[0].resume(None).unwrap();
    let text = "0123456789abcde\n".repeat(16 << 10);
    let mut receipts = Vec::new();
    let mut first_left = None;
    let mut put_one = Box::pin(opened.channel.put(group(&text, &mut receipts)));
    let started = Instant::now();
    while first_left.is_none() {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        match put_one.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => put_one = Box::pin(opened.channel.put(group(&text, &mut receipts))),
            Poll::Pending => {
                thread::park_timeout(Duration::from_millis(300));
                let waits = receipts.iter().rposition(|r| r.try_outcome().is_some());
                // The channel is full, and so are the commit in progress and the queue.
                if started.elapsed() > Duration::from_secs(2) {
                    first_left = waits;
                }
            }
        }
        assert!(receipts.len() < 100, "nothing stops the source");
    }
    assert!(opened.readers[0].hurry());
    assert!(opened.channel.is_full());
    for _ in 0..receipts.len() - 1 {
        let delivered = next(&mut opened.readers[0]).unwrap().unwrap();
        assert_eq!(delivered.batch.body.len(), text.len());
        opened.readers[0]
            .commit(delivered.position.unwrap())
            .unwrap();
    }
    run(put_one);
    for receipt in receipts {
        assert_eq!(run(receipt), Ok(()));
    }
    assert!(!opened.channel.is_full());
}

/// While a channel is full, its senders may withdraw what it has taken. The others keep their order.
#[test]
fn a_group_that_is_withdrawn_while_the_channel_is_full_is_not_kept() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity(100 << 10);
    let fixture = Fixture::on(Arc::new(disk.clone()), std::path::Path::new("/buffer"));
    let mut opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    opened.readers[0].resume(None).unwrap();
    let mut receipts: Vec<Receipt> = (0..5)
        .map(|n| put(&opened.channel, batch(&format!("{n}\n"), Vec::new())))
        .collect();
    receipts.push(put(&opened.channel, chunk("chunk\n", UNIQUE, 1)));
    receipts.push(put(&opened.channel, chunk("chunk\n", UNIQUE, 2)));
    thread::sleep(Duration::from_millis(300));
    assert!(opened.channel.is_full());
    assert_eq!(opened.channel.space(), Some((16 << 20, 16 << 20)));
    // The first ones are staged, and the last one may still be in the queue.
    let withdrawn = [0, 2, 4].map(|n| receipts[n].withdraw());
    assert_eq!(withdrawn, [true; 3]);
    disk.set_capacity(u64::MAX);
    let kept: Vec<bool> = receipts.into_iter().map(|it| run(it).is_ok()).collect();
    assert_eq!(kept, [false, true, false, true, false, true, true]);
    let last = put(&opened.channel, batch("last\n", Vec::new()));
    assert_eq!(run(last), Ok(()));
    let mut numbers = Vec::new();
    for text in ["1\n", "3\n", "chunk\n", "last\n"] {
        let delivered = next(&mut opened.readers[0]).unwrap().unwrap();
        assert_eq!(delivered.batch.body, text);
        numbers.push(delivered.position.unwrap().seq);
    }
    assert_eq!(numbers, [1, 2, 3, 4]);
    let (used, limit) = opened.channel.space().unwrap();
    assert!(used > 0 && used < 1 << 20 && limit == 16 << 20, "{used}");
}

/// Puts a batch of a sender that waits for the answer. Returns whether it was kept at once.
fn put_alone(channel: &Arc<dyn Channel>, text: &str) -> bool {
    let size = delivery::Size::default();
    let (token, receipt) = delivery::alone(true, size, Meter::default());
    run(channel.put(Group::new(vec![batch(text, Vec::new())], token)));
    let is_kept = receipt.try_outcome().is_some();
    assert_eq!(run(receipt), Ok(()));
    is_kept
}

#[test]
fn groups_of_senders_that_wait_are_kept_on_their_threads_and_stay_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(Arc::new(HostDisk), &directory.path().join("buffer"));
    // With `sync: batch` the thread of a source never syncs.
    let opened = fixture.open(r#"{"size_max": "8MiB", "sync": "batch"}"#);
    assert!(!(0..20).any(|_| put_alone(&opened.channel, "synced\n")));
    opened.channel.close();
    run(opened.finished).unwrap();
    drop((opened.channel, opened.readers));
    let opened = fixture.open(r#"{"size_max": "64MiB", "sync": "100ms"}"#);
    const PUTS: usize = 2000;
    let mut now = 0;
    thread::scope(|scope| {
        let channel = &opened.channel;
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                scope.spawn(move || {
                    let put = |n: usize| put_alone(channel, &format!("{writer} {n}\n"));
                    (0..PUTS).filter(|n| put(*n)).count()
                })
            })
            .collect();
        // Another source does not wait for answers.
        let others = (0..PUTS).map(|n| put(channel, batch(&format!("3 {n}\n"), Vec::new())));
        let receipts: Vec<_> = others.collect();
        assert!(receipts.into_iter().all(|receipt| run(receipt).is_ok()));
        now = writers.into_iter().map(|it| it.join().unwrap()).sum();
    });
    assert!(now > PUTS / 10, "only {now} were kept at once");
    assert!((0..100).any(|_| put_alone(&opened.channel, "4 0\n")));
    opened.channel.close();
    run(opened.finished).unwrap();
    drop((opened.channel, opened.readers));
    let mut opened = fixture.open("{}");
    opened.readers[0].resume(None).unwrap();
    let mut next_of = [0; 4];
    while next_of != [PUTS; 4] {
        let delivered = next(&mut opened.readers[0]).unwrap().unwrap();
        for line in std::str::from_utf8(&delivered.batch.body).unwrap().lines() {
            let Some((writer, number)) = line.split_once(' ') else {
                continue;
            };
            let writer: usize = writer.parse().unwrap();
            assert_eq!(number, next_of[writer].to_string());
            next_of[writer] += 1;
        }
    }
}

/// Chunk `number`, of half a MiB, as `connection` sends it.
fn numbered(number: u64, connection: u64) -> Batch {
    let text = format!("{number:015}\n").repeat(32 << 10);
    let mut batch = chunk(&text, UNIQUE, connection);
    if let Some(Origin::Chunk(chunk)) = batch.origins.first_mut() {
        chunk.id = Bytes::from([b"\xb8", format!("{number:024}").as_bytes()].concat());
    }
    batch
}

#[test]
fn a_channel_that_gives_up_waiting_for_room_closes_with_what_it_has_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("buffer");
    let fixture = Fixture::on(Arc::new(HostDisk), &path);
    let opened = fixture.open(r#"{"size_max": "8MiB", "queue": "64MiB"}"#);
    let channel = &opened.channel;
    let mut receipts: Vec<_> = (0..24).map(|n| put(channel, numbered(n, 1))).collect();
    let started = Instant::now();
    while !channel.is_full() {
        thread::sleep(Duration::from_millis(10));
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "it has room for all"
        );
    }
    // The last chunk is sent again while its first copy waits.
    receipts.push(put(channel, numbered(23, 2)));
    channel.give_up_waiting();
    run(opened.finished).unwrap();
    receipts.push(put(channel, numbered(99, 1)));
    let outcomes: Vec<bool> = receipts
        .into_iter()
        .map(|receipt| run(receipt).is_ok())
        .collect();
    let kept = outcomes.iter().take_while(|is_kept| **is_kept).count();
    assert!(
        (4..16).contains(&kept) && !outcomes[kept..].contains(&true),
        "{outcomes:?}"
    );
    drop(opened.readers);
    let seen = Directory::open(&HostDisk, &path).unwrap();
    let seen: Vec<_> = seen.read(Position::default()).map(Result::unwrap).collect();
    assert_eq!(seen.len(), kept + 1);
    assert!(
        matches!(seen.last(), Some(Seen::End { clean: true, .. })),
        "{:?}",
        seen.last()
    );

    // A dropped chunk is not a repeat when it is sent again. It is stored after the kept ones.
    let mut opened = fixture.open(r#"{"size_max": "8MiB"}"#);
    opened.readers[0].resume(None).unwrap();
    for number in 0..24 {
        if number >= kept {
            run(put(&opened.channel, numbered(number as u64, 3))).unwrap();
        }
        let delivered = next(&mut opened.readers[0]).unwrap().unwrap();
        let wanted = format!("{number:015}\n");
        assert!(
            delivered.batch.body.starts_with(wanted.as_bytes()),
            "{number}"
        );
        opened.readers[0]
            .commit(delivered.position.unwrap())
            .unwrap();
    }
}

fn group(text: &str, receipts: &mut Vec<Receipt>) -> Group {
    let (token, receipt) = delivery::receipt(true, 1, Meter::default());
    receipts.push(receipt);
    Group::new(vec![batch(text, Vec::new())], token)
}

#[test]
fn a_disk_that_fails_twice_stops_the_channel_and_fails_the_groups_that_are_not_kept() {
    let disk = SimulatedDisk::new(1);
    let fixture = Fixture::on(Arc::new(disk.clone()), std::path::Path::new("/buffer"));
    let mut opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    opened.readers[0].resume(None).unwrap();
    run(put(&opened.channel, batch("a\n", Vec::new()))).unwrap();
    disk.fail(Call::Sync, 1, 5);
    run(put(&opened.channel, batch("b\n", Vec::new()))).unwrap();
    disk.fail(Call::Sync, 100, 5);
    assert!(run(put(&opened.channel, batch("c\n", Vec::new()))).is_err());
    // A channel that has stopped fails new groups immediately.
    assert!(run(put(&opened.channel, batch("d\n", Vec::new()))).is_err());
    let failure = run(opened.finished).unwrap_err();
    assert!(failure.message.contains("/buffer/"), "{failure}");
    for text in ["a\n", "b\n"] {
        assert_eq!(
            next(&mut opened.readers[0]).unwrap().unwrap().batch.body,
            text
        );
    }
    assert!(next(&mut opened.readers[0]).is_err());
}

#[test]
fn records_that_were_kept_without_a_sync_and_cannot_be_read_back_are_reported_as_a_loss() {
    let disk = SimulatedDisk::new(1);
    let fixture = Fixture::on(Arc::new(disk.clone()), std::path::Path::new("/buffer"));
    let opened = fixture.open(r#"{"size_max": "16MiB", "sync": "1h"}"#);
    run(put(&opened.channel, batch("a\n", Vec::new()))).unwrap();
    assert_eq!(fixture.reporter.conditions().len(), 0);
    let segment = std::path::Path::new("/buffer/0000000001.seg");
    let bytes = disk.metadata(segment).unwrap().len;
    (0..bytes.min(8 << 10))
        .step_by(16)
        .skip(256)
        .for_each(|at| {
            disk.damage(segment, at);
        });
    disk.fail(Call::Sync, 1, 5);
    let (token, synced) = delivery::receipt(true, 0, Meter::default());
    opened.channel.sync(token);
    let _ = run(synced);
    run(put(&opened.channel, batch("b\n", Vec::new()))).unwrap();
    let held = fixture.reporter.conditions();
    assert!(
        held.iter().any(|held| held.trouble == Trouble::Losing),
        "{held:?}"
    );
    opened.channel.close();
}

#[test]
fn a_stop_on_a_full_disk_is_reported_and_keeps_what_was_kept_without_a_sync() {
    let disk = SimulatedDisk::new(1);
    let fixture = Fixture::on(Arc::new(disk.clone()), std::path::Path::new("/buffer"));
    let options = r#"{"size_max": "16MiB", "sync": "1h"}"#;
    let opened = fixture.open(options);
    run(put(&opened.channel, batch("a\n", Vec::new()))).unwrap();
    disk.fail(Call::Sync, 1000, 28);
    let (token, synced) = delivery::receipt(true, 0, Meter::default());
    opened.channel.sync(token);
    assert!(run(synced).is_err());
    let waits = put(&opened.channel, batch("b\n", Vec::new()));
    opened.channel.give_up_waiting();
    assert!(run(opened.finished).is_err());
    assert!(run(waits).is_err());
    let events = fixture.reporter.events();
    assert!(events.contains(&("warn", "stop", 1)), "{events:?}");
    drop((opened.channel, opened.readers));
    disk.fail(Call::Sync, 0, 28);
    let mut opened = fixture.open(options);
    opened.readers[0].resume(None).unwrap();
    let first = next(&mut opened.readers[0]).unwrap().unwrap();
    assert_eq!(first.batch.body, "a\n");
}

#[test]
fn invalid_options_are_refused() {
    let read = |text: &str| serde_json::from_str::<Config>(text);
    assert!(read(r#"{"sync": "500ms", "dedupe": {"ids": 5, "age": "1h"}}"#).is_ok());
    for wrong in [
        r#"{"sync": "often"}"#,
        r#"{"sync": "0s"}"#,
        r#"{"sizemax": "1GiB"}"#,
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    let small = read(r#"{"size_max": "1MiB"}"#).unwrap();
    assert_eq!(small.problem().unwrap().0, "size_max");
}

#[test]
fn a_channel_whose_directory_is_gone_acknowledges_nothing_and_continues_when_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("buffer");
    let fixture = Fixture::on(Arc::new(HostDisk), &place);
    let opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    run(put(&opened.channel, batch("a\n", Vec::new()))).unwrap();
    let elsewhere = directory.path().join("elsewhere");
    std::fs::rename(&place, &elsewhere).unwrap();
    let waits = put(&opened.channel, batch("b\n", Vec::new()));
    let until = |done: &dyn Fn() -> bool| {
        let started = std::time::Instant::now();
        while !done() {
            assert!(started.elapsed() < std::time::Duration::from_secs(60));
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    let held = || fixture.reporter.conditions();
    until(&|| !held().is_empty());
    assert_eq!(held()[0].trouble, Trouble::Losing);
    assert!(
        held()[0].why.contains("was removed or replaced"),
        "{:?}",
        held()
    );
    assert!(opened.channel.is_full());
    assert_eq!(
        waits.try_outcome(),
        None,
        "it acknowledged what a start would not find"
    );
    std::fs::rename(&elsewhere, &place).unwrap();
    run(waits).unwrap();
    until(&|| held().is_empty());
    // An idle channel notices the missing directory, too, and a stop ends the wait.
    std::fs::remove_dir_all(&place).unwrap();
    until(&|| !held().is_empty());
    let lost = put(&opened.channel, batch("c\n", Vec::new()));
    opened.channel.give_up_waiting();
    opened.channel.close();
    assert!(run(opened.finished).is_err());
    assert!(run(lost).is_err());
}

#[test]
fn the_oldest_record_of_a_channel_is_the_one_that_a_sink_has_not_settled() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(Arc::new(HostDisk), &directory.path().join("buffer"));
    let mut opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    let reader = &mut opened.readers[0];
    reader.resume(None).unwrap();
    // The task of the sink says how long it has not settled what it took.
    let in_flight = fixture.meters.of("sink").age("unsettled_age_seconds");
    let oldest = || {
        fixture
            .meters
            .value("buffer", "oldest_record_timestamp_seconds")
    };
    let now = || u64::try_from(Time::now().seconds()).unwrap();
    let until = |expected: &dyn Fn() -> u64| {
        let started = Instant::now();
        while oldest().abs_diff(expected()) > 1 {
            let is_soon = started.elapsed() < Duration::from_secs(20);
            assert!(is_soon, "{} {}", oldest(), expected());
            thread::sleep(Duration::from_millis(10));
        }
    };
    for seq in 1..4 {
        run(put(&opened.channel, batch("a\n", Vec::new()))).unwrap();
        assert!(next(reader).unwrap().is_some());
        in_flight.set(Some(Duration::from_secs(30)));
        until(&|| now() - 30);
        in_flight.set(None);
        reader.commit(Position { epoch: 1, seq }).unwrap();
        until(&|| 0);
    }
    end(opened);
}

fn end(opened: Opened) {
    opened.channel.close();
    run(opened.finished).unwrap();
}

#[test]
fn a_consumer_without_a_sink_is_a_condition_until_a_sink_reads_for_it_or_it_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(Arc::new(HostDisk), &directory.path().join("buffer"));
    let (opened, reporter) = fixture.open_for(&["old".into(), "older".into(), "out".into()]);
    assert_eq!(reporter.conditions(), []);
    end(opened);
    // Two sinks were renamed while Millstream was stopped.
    let (mut opened, reporter) = fixture.open_for(&["out".into(), "new".into()]);
    let held = || reporter.conditions();
    let names = || -> Vec<bool> {
        let held = held();
        let named = |name: &str| {
            let command = format!("`millstream channel forget --running --consumer {name} buffer`");
            held.iter().any(|held| held.why.contains(&command))
        };
        assert!(held.iter().all(|held| held.trouble == Trouble::Degraded));
        ["old", "older", "out", "new"].map(named).to_vec()
    };
    let count = || fixture.meters.value("buffer", "consumers_without_sink");
    assert_eq!(names(), [true, true, false, false]);
    assert_eq!(count(), 2);
    // Each is logged, and only once.
    run(put(&opened.channel, batch("a\n", Vec::new()))).unwrap();
    assert_eq!(
        reporter.events(),
        [("error", "consumer", 2), ("info", "start", 1)]
    );
    // A reload brings a sink with the old name.
    let attached = run(opened.channel.attach("old".into())).unwrap().unwrap();
    assert!(!attached.is_new);
    assert_eq!(names(), [false, true, false, false]);
    assert_eq!(run(opened.channel.forget("older")).unwrap(), Ok(()));
    assert_eq!((names(), count()), (vec![false; 4], 0));
    // A reload removes a sink, and records for it arrived later.
    drop(opened.readers.pop());
    opened.channel.abandon("new");
    let started = Instant::now();
    while names() != [false, false, false, true] || count() != 1 {
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", held());
        thread::sleep(Duration::from_millis(10));
    }
    drop(attached);
    end(opened);
    assert_eq!(held(), []);
}

#[test]
fn a_channel_that_is_full_because_of_a_consumer_without_a_sink_says_how_to_end_it() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(Arc::new(HostDisk), &directory.path().join("buffer"));
    end(fixture.open_for(&["old".into()]).0);
    let (mut opened, reporter) = fixture.open_for(&["out".into()]);
    opened.readers[0].resume(None).unwrap();
    let text = "0123456789abcde\n".repeat(16 << 10);
    let receipts: Vec<_> = (0..40)
        .map(|_| put(&opened.channel, batch(&text, Vec::new())))
        .take_while(|_| !opened.channel.is_full())
        .collect();
    let started = Instant::now();
    let blocked = loop {
        let held = reporter.conditions();
        if let Some(held) = held.iter().find(|held| held.trouble == Trouble::Blocked) {
            break held.why.clone();
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{held:?}");
        thread::sleep(Duration::from_millis(10));
    };
    let command = "forget --running --consumer old buffer`";
    assert!(blocked.contains(command), "{blocked}");
    assert_eq!(run(opened.channel.forget("old")).unwrap(), Ok(()));
    // The records that `out` has not read still hold the channel.
    opened.channel.give_up_waiting();
    opened.channel.close();
    drop(opened.readers);
    run(opened.finished).unwrap();
    drop(receipts);
}

#[test]
fn it_keeps_the_contract_of_channels() {
    let directories = std::cell::RefCell::new(Vec::new());
    let open = || {
        let directory = tempfile::tempdir().unwrap();
        let fixture = Fixture::on(Arc::new(HostDisk), directory.path());
        directories.borrow_mut().push(directory);
        let mut opened = fixture.open(r#"{"size_max": "16MiB"}"#);
        (opened.channel, opened.readers.remove(0))
    };
    block_on(ChannelCase { open: &open }.check());
}
