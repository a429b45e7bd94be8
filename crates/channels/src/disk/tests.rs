use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millstream_pipeline::{
    channel::{Channel, Delivered, Group, Note, Reader},
    delivery::{self, Receipt},
    failure::Failure,
    meters::{Meter, Meters},
    node::{ChannelContext, Opened},
    report::Reporter,
};
use millstream_record::{
    Batch, ChunkOrigin, Encoding, FileId, FileOrigin, Origin, Pool, Position, Tag, Time, Values,
};
use millstream_sys::disk::{Disk, HostDisk};
use millstream_testkit::{Call, SimulatedDisk};

use super::options::Config;

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread; panics if it takes longer than a test may.
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
    folder: std::path::PathBuf,
    meters: Meters,
    disk: Arc<dyn Disk>,
}

impl Fixture {
    fn on(disk: Arc<dyn Disk>, folder: &std::path::Path) -> Self {
        Self {
            folder: folder.to_owned(),
            meters: Meters::default(),
            disk,
        }
    }

    fn open(&self, options: &str) -> Opened {
        let config: Config = serde_json::from_str(options).unwrap();
        let context = ChannelContext {
            name: "buffer".into(),
            pool: Pool::new(64 << 20),
            meters: self.meters.of("buffer"),
            reporter: Reporter::new("buffer"),
            folder: self.folder.clone(),
        };
        super::open(&config, Arc::clone(&self.disk), context, &["sink".into()]).unwrap()
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
    run(channel.put(Group {
        batches: vec![batch],
        token,
    }));
    receipt
}

const UNIQUE: &[u8] = b"\xb8PdjoG1yfRwmC9QbEo1eNzA==";
const CONTENT: &[u8] = b"\xd9\x200123456789abcdef0123456789abcdef";

#[test]
fn what_is_kept_is_read_once_and_again_after_a_restart_until_it_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(
        Arc::new(HostDisk),
        &folder.path().join("deep/channels/buffer"),
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
        // Both copies are in flight at once.
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

#[test]
fn a_late_copy_below_the_floor_of_its_sender_is_a_repeat() {
    const OURS: &[u8] = b"\xd9\x2d000000000000000000000000000000ff.1.7.0.00000001";
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let fixture = Fixture::on(disk, std::path::Path::new("/buffer"));
    let opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    opened.channel.note(Note::Floor {
        channel: 255,
        position: Position { epoch: 1, seq: 7 },
    });
    run(put(&opened.channel, chunk("x\n", OURS, 1))).unwrap();
    opened.channel.close();
    run(opened.finished).unwrap();
    assert_eq!(fixture.meters.value("buffer", "repeated_chunks"), 1);
}

#[test]
fn a_tailed_file_goes_on_where_the_channel_says() {
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
    disk.set_capacity(1 << 20);
    let fixture = Fixture::on(Arc::new(disk.clone()), std::path::Path::new("/buffer"));
    let mut opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    opened.readers[0].resume(None).unwrap();
    let receipt = put(&opened.channel, batch("a\n", Vec::new()));
    thread::sleep(Duration::from_millis(100));
    assert_eq!(receipt.try_outcome(), None);
    assert!(opened.channel.is_full());
    disk.set_capacity(u64::MAX);
    assert_eq!(run(receipt), Ok(()));
    assert!(!opened.channel.is_full());
    assert_eq!(
        next(&mut opened.readers[0]).unwrap().unwrap().batch.body,
        "a\n"
    );
}

#[test]
fn a_full_channel_stops_its_sources_until_its_consumer_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::on(Arc::new(HostDisk), &folder.path().join("buffer"));
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
                // Full: the channel, what is being written, and the queue.
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

fn group(text: &str, receipts: &mut Vec<Receipt>) -> Group {
    let (token, receipt) = delivery::receipt(true, 1, Meter::default());
    receipts.push(receipt);
    Group {
        batches: vec![batch(text, Vec::new())],
        token,
    }
}

#[test]
fn a_disk_that_fails_twice_stops_the_channel_and_fails_what_is_not_kept() {
    let disk = SimulatedDisk::new(1);
    let fixture = Fixture::on(Arc::new(disk.clone()), std::path::Path::new("/buffer"));
    let mut opened = fixture.open(r#"{"size_max": "16MiB"}"#);
    opened.readers[0].resume(None).unwrap();
    run(put(&opened.channel, batch("a\n", Vec::new()))).unwrap();
    disk.fail(Call::Sync, 1, 5);
    run(put(&opened.channel, batch("b\n", Vec::new()))).unwrap();
    disk.fail(Call::Sync, 100, 5);
    assert!(run(put(&opened.channel, batch("c\n", Vec::new()))).is_err());
    // A channel that has stopped takes nothing, and answers at once.
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
fn options_are_read_and_what_cannot_be_is_refused() {
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
