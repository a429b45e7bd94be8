//! Tests of ports: which batches the consumers receive, when receipts resolve, and when the channels close.

use std::{
    future::Future,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use super::*;
use crate::{delivery::Unsettled, meters::Meters, stop::stop};

/// A channel that accepts groups while it is open, and holds them.
#[derive(Default)]
struct Recorder {
    groups: Mutex<Vec<Group>>,
    notes: Mutex<Vec<Note>>,
    syncs: Mutex<Vec<Token>>,
    is_full: AtomicBool,
    is_closed: AtomicBool,
    id: Option<u128>,
    origins: Option<Vec<(FileId, u64)>>,
}

impl Channel for Recorder {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            while self.is_full.load(SeqCst) {
                tokio::time::sleep(CHECK_EVERY).await;
            }
            self.groups.lock().unwrap().push(group);
        })
    }

    fn note(&self, note: Note) {
        self.notes.lock().unwrap().push(note);
    }

    fn sync(&self, token: Token) {
        self.syncs.lock().unwrap().push(token);
    }

    fn is_full(&self) -> bool {
        self.is_full.load(SeqCst)
    }

    fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    fn file_origins(&self) -> Option<Vec<(FileId, u64)>> {
        self.origins.clone()
    }

    fn id(&self) -> Option<u128> {
        self.id
    }
}

impl Recorder {
    /// The tags of the batches in each group.
    fn tags(&self) -> Vec<Vec<String>> {
        let groups = self.groups.lock().unwrap();
        let tags = |group: &Group| {
            let batches = group.batches.iter();
            batches.map(|batch| batch.tag.as_str().to_owned()).collect()
        };
        groups.iter().map(tags).collect()
    }

    /// Settles the oldest group.
    fn settle(&self) {
        self.groups.lock().unwrap().remove(0).token.settle();
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }
}

fn edge(channel: &Arc<Recorder>, tags: Option<&str>) -> Edge {
    Edge {
        tags: tags.map(|tags| TagFilter::new([tags]).unwrap()),
        ..Edge::to(Feed::new(channel.clone()))
    }
}

fn outlet(edges: Vec<Edge>, meters: &Meters) -> Outlet {
    Outlet::new(edges, &meters.of("node"), false)
}

/// A batch of two records.
fn batch(tag: &str) -> Batch {
    Batch {
        tag: tag.into(),
        encoding: millstream_record::Encoding::Lines,
        plain: false,
        body: "a\nb\n".into(),
        count: 2,
        received: Default::default(),
        values: Default::default(),
        origins: Vec::new(),
    }
}

fn file(inode: u64) -> FileId {
    FileId {
        device: 1,
        inode,
        birth: 0,
        head: 0,
    }
}

/// Polls once.
fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn each_consumer_gets_the_batches_with_its_tags_and_the_last_one_settles_the_group() {
    let (app, all, meters) = (
        Arc::<Recorder>::default(),
        Arc::<Recorder>::default(),
        Meters::default(),
    );
    let outlet = outlet(vec![edge(&app, Some("app.*")), edge(&all, None)], &meters);
    let group = vec![batch("app.web"), batch("sys"), batch("app.db")];
    let receipt = outlet.send_group(group, true).await;
    assert_eq!(app.tags(), [["app.web", "app.db"]]);
    assert_eq!(all.tags(), [["app.web", "sys", "app.db"]]);
    assert!(all.groups.lock().unwrap()[0].token.awaited());
    assert_eq!(outlet.pending_records(), 6);
    app.settle();
    assert_eq!(receipt.try_outcome(), None);
    all.settle();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    let value = |name| meters.value("node", name);
    assert_eq!(value("records_sent"), 6);
    assert_eq!(value("bytes_sent"), 12);
    assert_eq!(value("batches_sent"), 3);
    assert_eq!(value("records_unclaimed"), 0);
    assert_eq!(outlet.pending_records(), 0);
}

#[tokio::test]
async fn a_batch_that_no_consumer_takes_is_counted_and_settled() {
    let (app, meters) = (Arc::<Recorder>::default(), Meters::default());
    let outlet = outlet(vec![edge(&app, Some("app.*"))], &meters);
    let receipt = outlet.send(batch("sys"), false).await;
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    assert_eq!(app.tags(), [[""; 0]; 0]);
    assert_eq!(meters.value("node", "records_unclaimed"), 2);
    assert_eq!(meters.value("node", "records_dropped"), 0);
}

#[tokio::test]
async fn a_group_that_a_consumer_drops_fails_its_receipt() {
    let (one, other, meters) = (
        Arc::<Recorder>::default(),
        Arc::<Recorder>::default(),
        Meters::default(),
    );
    let outlet = outlet(vec![edge(&one, None), edge(&other, None)], &meters);
    let receipt = outlet.send(batch("app"), false).await;
    one.settle();
    other.groups.lock().unwrap().clear();
    assert_eq!(receipt.try_outcome(), Some(Err(Unsettled)));
    assert_eq!(meters.value("node", "records_dropped"), 2);
}

#[tokio::test(start_paused = true)]
async fn send_waits_for_the_consumer_that_has_no_space() {
    let (full, free, meters) = (
        Arc::<Recorder>::default(),
        Arc::<Recorder>::default(),
        Meters::default(),
    );
    let outlet = outlet(vec![edge(&free, None), edge(&full, None)], &meters);
    full.is_full.store(true, SeqCst);
    let mut send = Box::pin(outlet.send(batch("app"), false));
    let mut room = Box::pin(outlet.has_room());
    assert!(poll(send.as_mut()).is_pending() && poll(room.as_mut()).is_pending());
    assert_eq!((free.tags().len(), full.tags().len()), (1, 0));
    outlet.is_full_after(Duration::from_secs(1)).await;
    full.is_full.store(false, SeqCst);
    room.await;
    send.await;
    assert_eq!((free.tags().len(), full.tags().len()), (1, 1));
    let mut full = Box::pin(outlet.is_full_after(Duration::ZERO));
    tokio::time::sleep(10 * CHECK_EVERY).await;
    assert!(poll(full.as_mut()).is_pending());
}

#[tokio::test]
async fn the_last_clone_closes_the_channels_and_edges_back_into_a_chain_do_not_hold_them() {
    let (channel, meters) = (Arc::<Recorder>::default(), Meters::default());
    let feed = Feed::new(channel.clone());
    let back = Edge {
        link: Link::Back(Arc::downgrade(&feed)),
        ..Edge::to(feed.clone())
    };
    let rejects = Outlet::new(vec![back], &meters.of("node"), true);
    let outlet = outlet(vec![Edge::to(feed)], &meters);
    let (clone, weak) = (outlet.clone(), outlet.downgrade());
    let receipt = rejects.send(batch("bad"), false).await;
    channel.settle();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    assert_eq!(meters.value("node", "records_rejected"), 2);
    drop(outlet);
    assert!(!channel.is_closed() && weak.upgrade().is_some());
    drop(clone);
    assert!(channel.is_closed() && weak.upgrade().is_none());
    let receipt = rejects.send(batch("bad"), false).await;
    assert_eq!(receipt.try_outcome(), Some(Err(Unsettled)));
}

#[tokio::test]
async fn a_rewired_port_sends_to_its_new_consumers_and_closes_the_old_ones() {
    let (old, new, meters) = (
        Arc::<Recorder>::default(),
        Arc::<Recorder>::default(),
        Meters::default(),
    );
    let outlet = outlet(vec![edge(&old, None)], &meters);
    outlet.send(batch("first"), false).await;
    outlet.rewire(Wires {
        edges: vec![edge(&new, None)],
        log: None,
    });
    outlet.send(batch("second"), false).await;
    assert_eq!(
        (old.tags(), new.tags()),
        (vec![vec!["first".into()]], vec![vec!["second".into()]])
    );
    assert!(old.is_closed() && !new.is_closed());
    assert!(!outlet.leads_nowhere());
    outlet.rewire(Wires::default());
    assert!(new.is_closed() && outlet.leads_nowhere());
}

#[tokio::test(start_paused = true)]
async fn the_destinations_of_a_rewired_port_exist_until_the_batches_have_arrived() {
    let meters = Meters::default();
    let channel = Arc::new(Recorder {
        id: Some(1),
        ..Recorder::default()
    });
    let outlet = outlet(vec![edge(&channel, None)], &meters);
    assert!(outlet.wires().leads_to(1) && !outlet.wires().leads_to(2));
    channel.is_full.store(true, SeqCst);
    let mut send = Box::pin(outlet.send(batch("app"), false));
    assert!(poll(send.as_mut()).is_pending());
    let before = outlet.rewire(Wires::default());
    assert_eq!(before.strong_count(), 1);
    channel.is_full.store(false, SeqCst);
    send.await;
    assert_eq!((before.strong_count(), channel.tags().len()), (0, 1));
}

#[tokio::test]
async fn notes_and_syncs_reach_every_channel() {
    let (one, other, meters) = (
        Arc::<Recorder>::default(),
        Arc::<Recorder>::default(),
        Meters::default(),
    );
    // A sync does not depend on tags.
    let outlet = outlet(vec![edge(&one, None), edge(&other, Some("x"))], &meters);
    outlet.note(Note::ConnectionClosed(7));
    for channel in [&one, &other] {
        assert_eq!(*channel.notes.lock().unwrap(), [Note::ConnectionClosed(7)]);
    }
    let receipt = outlet.sync();
    one.syncs.lock().unwrap().remove(0).settle();
    assert_eq!(receipt.try_outcome(), None);
    other.syncs.lock().unwrap().remove(0).settle();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
}

#[test]
fn a_tailed_file_continues_after_what_all_durable_channels_have_kept() {
    let meters = Meters::default();
    let durable = |origins: &[(FileId, u64)]| {
        Arc::new(Recorder {
            id: Some(1),
            origins: Some(origins.to_vec()),
            ..Recorder::default()
        })
    };
    let one = durable(&[(file(1), 100), (file(2), 200)]);
    let other = durable(&[(file(1), 50), (file(3), 300)]);
    let both = outlet(vec![edge(&one, None), edge(&other, None)], &meters);
    // Files 2 and 3 are read from their starts, because one of the channels has kept no part of them.
    assert_eq!(both.file_origins(), Some(vec![(file(1), 50)]));
    let mut marks = both.file_marks(file(1));
    marks.sort_unstable();
    assert_eq!(marks, [50, 100]);
    assert_eq!(both.file_marks(file(3)), [300]);
    assert!(both.is_durable());

    let memory = Arc::<Recorder>::default();
    let mixed = outlet(vec![edge(&one, None), edge(&memory, None)], &meters);
    assert_eq!(mixed.file_origins(), None);
    assert!(!mixed.is_durable() && !outlet(Vec::new(), &meters).is_durable());
}

#[tokio::test(start_paused = true)]
async fn a_source_that_starts_again_waits_until_durable_channels_have_kept_its_batches() {
    let meters = Meters::default();
    let durable = Arc::new(Recorder {
        id: Some(1),
        ..Recorder::default()
    });
    let (stopper, stopped) = stop();
    let outlet = outlet(vec![edge(&durable, None)], &meters);
    outlet.until_kept(stopped.clone()).await;
    // The earlier run was dropped, and with it the receipt.
    drop(outlet.send(batch("app"), false).await);
    let waits = tokio::time::timeout(CHECK_EVERY * 10, outlet.until_kept(stopped.clone()));
    assert!(waits.await.is_err());
    durable.settle();
    outlet.until_kept(stopped.clone()).await;
    drop(outlet.send(batch("app"), false).await);
    stopper.stop();
    outlet.until_kept(stopped).await;
}
