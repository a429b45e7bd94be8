//! The test rig of sinks: an inlet over a channel that the test controls. Tests only.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use millstream_config::{Node, Place, Value};
use millstream_pipeline::{
    channel::{Bounds, BoxFuture, Channel, Delivered, Group, Reader},
    delivery::{self, Receipt},
    failure::Failure,
    inlet::Inlet,
    meters::{Meter, Meters},
    node::{Build, Component, Sink, SinkContext},
    outlet::{Edge, Feed, Outlet},
    reject::Rejected,
    report::Reporter,
    stop::{Stopper, stop},
};
use millstream_record::{Batch, Encoding, Pool, Position, Time};
use millstream_testkit::contract::SinkCase;
use millstream_wire::record::records;

/// The channel in front of a sink. Its contents survive the sink, like those of a disk channel.
#[derive(Clone, Default)]
pub(crate) struct Upstream(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The id of a durable channel; `None`: memory.
    id: Option<u128>,
    /// In a durable channel, all groups of batches that were ever put, each at position (1, index + 1). In memory, groups of one
    /// batch that were not read yet.
    batches: VecDeque<(Vec<Batch>, Option<delivery::Token>)>,
    next: usize,
    /// The number of batches of the next group that were read.
    part: usize,
    /// Durable: how many batches are settled.
    settled: usize,
    closed: bool,
    waker: Option<Waker>,
    /// Whether a processor works on the first batch after each `resume`.
    slow: bool,
    /// Whether the processor works on a batch now.
    is_working: bool,
    rejected: Vec<Group>,
    /// The number of groups of rejects that are still to be lost.
    rejects_lost: usize,
}

impl Upstream {
    /// A queue in memory.
    pub(crate) fn memory() -> Self {
        Self::default()
    }

    /// A durable channel with this id.
    pub(crate) fn durable(id: u128) -> Self {
        let upstream = Self::default();
        upstream.lock().id = Some(id);
        upstream
    }

    /// Puts a batch into the channel. `awaited`: the source of the batch waits for the receipt.
    pub(crate) fn put(&self, batch: Batch, awaited: bool) -> Receipt {
        self.put_all(vec![batch], awaited)
    }

    /// Puts several batches, which processors have made from one batch, into a durable channel.
    pub(crate) fn put_parts(&self, batches: Vec<Batch>) {
        assert!(self.lock().id.is_some());
        self.put_all(batches, false);
    }

    fn put_all(&self, batches: Vec<Batch>, awaited: bool) -> Receipt {
        let records = batches.iter().map(|batch| u64::from(batch.count)).sum();
        let (token, receipt) = delivery::receipt(awaited, records, Meter::default());
        let mut state = self.lock();
        // A durable channel settles a batch when it keeps it; a channel in memory passes the token to the sink.
        let token = match state.id {
            Some(_) => {
                token.settle();
                None
            }
            None => Some(token),
        };
        state.batches.push_back((batches, token));
        wake(state);
        receipt
    }

    /// Closes the channel: no more batches will come.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        wake(state);
    }

    /// Puts a processor in front of the sink: after each start or restart of the sink, the first batch is not ready at once.
    pub(crate) fn set_slow(&self) {
        self.lock().slow = true;
    }

    /// Durable: how many batches are settled.
    pub(crate) fn settled(&self) -> usize {
        self.lock().settled
    }

    /// The batches that the sink has rejected.
    pub(crate) fn rejected(&self) -> Vec<Batch> {
        let state = self.lock();
        let groups = state.rejected.iter();
        groups.flat_map(|group| group.batches.clone()).collect()
    }

    /// Loses the next group of rejects.
    pub(crate) fn lose_reject(&self) {
        self.lock().rejects_lost += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Reader for Upstream {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        let mut state = self.lock();
        state.is_working = state.slow;
        if state.id.is_some() {
            state.next = after.map_or(state.settled, |after| after.seq as usize);
            state.part = 0;
        }
        Ok(())
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        let mut state = self.lock();
        if std::mem::take(&mut state.is_working) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = match state.id {
            Some(_) => state
                .batches
                .get(state.next)
                .map(|(batches, _)| (batches.clone(), None)),
            None => state.batches.pop_front(),
        };
        let Some((mut batches, token)) = next else {
            if state.closed {
                return Poll::Ready(Ok(None));
            }
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        let seq = state.next as u64 + 1;
        let position = state.id.map(|_| Position { epoch: 1, seq });
        let last = state.part + 1 == batches.len();
        let batch = batches.swap_remove(state.part);
        (state.next, state.part) = match last {
            true => (state.next + 1, 0),
            false => (state.next, state.part + 1),
        };
        Poll::Ready(Ok(Some(Delivered {
            last,
            ..Delivered::new(batch, position, token)
        })))
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        let mut state = self.lock();
        assert!(
            position.seq as usize >= state.settled,
            "a cursor never goes back"
        );
        state.settled = position.seq as usize;
        Ok(())
    }

    fn settled(&self) -> Option<Position> {
        let state = self.lock();
        let seq = state.settled as u64;
        state.id.map(|_| Position { epoch: 1, seq })
    }

    fn bounds(&self) -> Option<Bounds> {
        let state = self.lock();
        let position = |count: usize| Position {
            epoch: 1,
            seq: count as u64,
        };
        state.id.map(|_| Bounds {
            committed: (state.settled > 0).then(|| position(state.settled)),
            kept: position(state.batches.len()),
        })
    }
}

/// The channel of the sink's port `rejected`: stores and settles rejects, except those that a test wants to lose.
struct Rejects(Upstream);

impl Channel for Rejects {
    fn put(&self, mut group: Group) -> BoxFuture<'_, ()> {
        let (empty, _) = delivery::receipt(false, 0, Meter::default());
        let token = std::mem::replace(&mut group.token, empty);
        let mut state = self.0.lock();
        if state.rejects_lost > 0 {
            state.rejects_lost -= 1;
        } else {
            token.settle();
            state.rejected.push(group);
        }
        Box::pin(std::future::ready(()))
    }
    fn close(&self) {}
}

/// A sink, with everything that the runtime gives it.
pub(crate) struct Rig {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) inlet: Inlet,
    pub(crate) context: SinkContext,
    pub(crate) meters: Meters,
    pub(crate) stopper: Stopper,
}

impl Rig {
    /// Builds the component with these options (in JSON); it reads from `upstream`.
    pub(crate) fn new(
        component: &Component,
        options: &str,
        upstream: &Upstream,
        directory: &Path,
    ) -> Self {
        let meters = Meters::default();
        let (stopper, stop) = stop();
        let node_meters = meters.of("sink");
        let rejects = Edge::to(Feed::new(Arc::new(Rejects(upstream.clone()))));
        let rejects = Outlet::new(vec![rejects], &node_meters, true);
        let id = upstream.lock().id;
        let reader = Box::new(upstream.clone());
        let context = SinkContext {
            name: "sink".into(),
            stop: stop.clone(),
            pool: Pool::new(256 << 20),
            meters: node_meters.clone(),
            reporter: Reporter::new("sink"),
            directory: directory.to_owned(),
            lane: 0,
        };
        Self {
            sink: build(component, options),
            inlet: Inlet::new("sink", reader, id, rejects, stop, &node_meters),
            context,
            meters,
            stopper,
        }
    }

    /// Runs the sink to its end.
    pub(crate) async fn run(&mut self) -> Result<(), Failure> {
        let sink = self.sink.clone();
        sink.run(&mut self.inlet, self.context.clone()).await
    }

    /// The value of one of the sink's meters.
    pub(crate) fn meter(&self, name: &str) -> u64 {
        self.meters.value("sink", name)
    }
}

/// Checks the contract of sinks. `arrived` returns the lines at the destination. `misfit`: a batch that the sink must reject.
pub(crate) async fn check_contract(
    sink: &Arc<dyn Sink>,
    directory: &Path,
    arrived: impl Fn() -> Vec<String> + Send + Sync + 'static,
    misfit: Option<Batch>,
) {
    let case = SinkCase {
        run: &|inlet, context| {
            let sink = Arc::clone(sink);
            Box::pin(async move { sink.run(inlet, context).await })
        },
        arrived: Some(Arc::new(arrived)),
        directory,
        misfit,
    };
    case.check().await;
}

/// A record without the field that `format: raw` writes.
pub(crate) fn misfit() -> Batch {
    Batch {
        encoding: Encoding::Packed,
        body: vec![0x92, 0x00, 0x80].into(),
        ..lines("t", "x")
    }
}

/// Records like [`misfit`], in one batch under a tag of 8 KiB. Such a tag makes each record thousands of times longer.
pub(crate) fn misfits(count: usize) -> Batch {
    Batch {
        tag: long_tag().as_str().into(),
        body: misfit().body.repeat(count).into(),
        count: count as u32,
        ..misfit()
    }
}

/// The longest tag that a Millstream accepts.
pub(crate) fn long_tag() -> String {
    "t".repeat(8 << 10)
}

/// The number of gzip members in a file.
pub(crate) fn gzip_members(file: &[u8]) -> usize {
    let heads = file.windows(4);
    heads.filter(|head| head == b"\x1f\x8b\x08\x00").count()
}

/// The number of records in each group of rejected records.
pub(crate) fn rejected_groups(upstream: &Upstream) -> Vec<u32> {
    let count = |group: &Batch| {
        let rejected = records(group).map(|(range, _)| Rejected::read(&group.body[range]));
        rejected.map(|rejected| rejected.unwrap().records).sum()
    };
    upstream.rejected().iter().map(count).collect()
}

/// Builds a sink with these options (in JSON); panics with their problems.
pub(crate) fn build(component: &Component, options: &str) -> Arc<dyn Sink> {
    try_build(component, options).unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// Builds a sink with these options (in JSON), or returns their problems.
pub(crate) fn try_build(
    component: &Component,
    options: &str,
) -> Result<Arc<dyn Sink>, Vec<String>> {
    let Build::Sink(build) = component.build else {
        panic!("{} is no sink", component.name);
    };
    let node = node(serde_json::from_str(options).unwrap());
    let told = |problems: Vec<millstream_config::Problem>| {
        problems.into_iter().map(|p| p.message).collect()
    };
    build("sink", &node).map_err(told)
}

/// Turns JSON into a configuration tree.
pub(crate) fn node(value: serde_json::Value) -> Node {
    use serde_json::Value as Json;
    let value = match value {
        Json::Null => Value::Null,
        Json::Bool(bool) => Value::Bool(bool),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Value::Integer(number.into()),
            None => Value::Float(number.as_f64().unwrap()),
        },
        Json::String(text) => Value::Text(millstream_config::Text::new(text)),
        Json::Array(list) => Value::List(list.into_iter().map(node).collect()),
        Json::Object(map) => {
            let key = |text| millstream_config::Key {
                text,
                place: place(),
            };
            let entries = map
                .into_iter()
                .map(|(name, value)| (key(name), node(value)));
            let mut map = millstream_config::Map::default();
            map.entries = entries.collect();
            Value::Map(map)
        }
    };
    Node {
        value,
        place: place(),
    }
}

fn place() -> Place {
    Place::whole(millstream_config::Source::new("test.yaml", "", 0))
}

/// The receive time of the batches below, in nanoseconds.
pub(crate) const RECEIVED: i64 = 1_700_000_000_123_456_789;

/// A batch of lines.
pub(crate) fn lines(tag: &str, text: &str) -> Batch {
    Batch {
        received: Time(RECEIVED),
        ..millstream_testkit::lines(tag, text)
    }
}

/// A batch of packed entries `[time, {"message": line}]`, one for each line of `text`.
pub(crate) fn packed(tag: &str, text: &str) -> Batch {
    use millstream_wire::msgpack::{write_array_len, write_map_len, write_str, write_time};
    let mut body = Vec::new();
    for line in text.lines() {
        write_array_len(&mut body, 2);
        write_time(&mut body, Time(1_600_000_000_000_000_001));
        write_map_len(&mut body, 1);
        write_str(&mut body, b"message");
        write_str(&mut body, line.as_bytes());
    }
    Batch {
        encoding: Encoding::Packed,
        body: body.into(),
        ..lines(tag, text)
    }
}
