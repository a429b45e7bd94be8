//! Test support for sources: a channel that the test controls, and a run of a source.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use millstream_config::{Node, Place, Value};
use millstream_pipeline::{
    channel::{BoxFuture, Channel, Group},
    delivery::{self, Token},
    failure::Failure,
    meters::{Meter, Meters},
    node::{Build, Component, Source, SourceContext},
    outlet::{Edge, Feed, Outlet},
    report::Reporter,
    stop::{Stop, Stopper, stop},
    threads::Threads,
};
use millstream_record::{Batch, Encoding, FileId, FileOrigin, Origin, Pool};
use millstream_testkit::contract::Peer;

/// The channel to which a source sends. Like a disk channel, it survives the source.
#[derive(Clone, Default)]
pub(crate) struct Downstream(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    durable: bool,
    /// Whether batches are settled immediately. If not, their tokens are held.
    answers: bool,
    /// Whether `put` waits because the channel is full.
    full: bool,
    /// Whether the channel takes batches but does not keep them, as a full disk channel does.
    chokes: bool,
    /// (used, limit) of its space in bytes.
    space: Option<(u64, u64)>,
    /// The values that the source declares; none before it runs.
    values: &'static [&'static str],
    batches: Vec<Batch>,
    held: Vec<Token>,
    origins: HashMap<FileId, u64>,
    /// Number of batches that had been kept before, whole or in part.
    repeats: usize,
    /// Number of requests to sync.
    syncs: usize,
    /// A second channel that gets the same batches.
    beside: Option<Downstream>,
}

impl Downstream {
    /// A memory channel whose sink settles everything immediately.
    pub(crate) fn memory() -> Self {
        let downstream = Self::default();
        downstream.lock().answers = true;
        downstream
    }

    /// A disk channel. It keeps everything immediately, knows the offset up to which each file is kept, and drops bytes that arrive
    /// again.
    pub(crate) fn durable() -> Self {
        let downstream = Self::memory();
        downstream.lock().durable = true;
        downstream
    }

    /// Makes sources that start later send their batches to `other`, too. With `None`, they send only to this channel.
    pub(crate) fn set_beside(&self, other: Option<&Self>) {
        self.lock().beside = other.cloned();
    }

    /// Settles no further batch until [`Downstream::settle`] or [`Downstream::drop_held`].
    pub(crate) fn hold(&self) {
        self.lock().answers = false;
    }

    /// Makes the channel full, or not full any more.
    pub(crate) fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// Sets the used space and its limit, in bytes.
    pub(crate) fn set_space(&self, used: u64, limit: u64) {
        self.lock().space = Some((used, limit));
    }

    /// Makes this a full disk channel: batches wait in it until [`Downstream::settle`]. Their senders may withdraw them.
    pub(crate) fn choke(&self) {
        let mut state = self.lock();
        (state.answers, state.chokes) = (false, true);
    }

    /// Makes this a full disk channel, which has no space for the batches that are held.
    pub(crate) fn choke_held(&self) {
        self.choke();
        self.lock().held.iter().for_each(Token::release_claim);
    }

    /// Settles all batches that were held, and settles further ones immediately.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        let has_choked = std::mem::take(&mut state.chokes);
        state.answers = true;
        let held = std::mem::take(&mut state.held);
        let waiting = state.batches.len() - held.len();
        let waiting = state.batches.split_off(waiting);
        for (token, batch) in held.into_iter().zip(waiting) {
            // Writers may have withdrawn what waited for space.
            if !has_choked || token.claim() {
                state.batches.push(batch);
                token.settle();
            }
        }
        if has_choked {
            state.find_origins();
        }
    }

    /// Drops all batches that were not settled, as when a consumer dies. Settles further ones immediately.
    pub(crate) fn drop_held(&self) {
        let mut state = self.lock();
        state.answers = true;
        let kept = state.batches.len() - state.held.len();
        state.batches.truncate(kept);
        state.held.clear();
        state.find_origins();
    }

    /// All batches so far.
    pub(crate) fn batches(&self) -> Vec<Batch> {
        self.lock().batches.clone()
    }

    /// All lines so far, batch by batch.
    pub(crate) fn lines(&self) -> Vec<String> {
        let batches = self.batches();
        let lines = batches.iter().flat_map(|batch| {
            assert!(batch.body.is_empty() || batch.body.ends_with(b"\n"));
            let text = String::from_utf8_lossy(&batch.body).into_owned();
            // Not `str::lines`, which removes a CR.
            let lines = text.split_terminator('\n');
            let lines: Vec<String> = lines.map(str::to_owned).collect();
            assert_eq!(lines.len(), batch.count as usize);
            lines
        });
        lines.collect()
    }

    /// Number of batches that had been kept before, whole or in part.
    pub(crate) fn repeats(&self) -> usize {
        self.lock().repeats
    }

    /// Number of requests to sync.
    pub(crate) fn syncs(&self) -> usize {
        self.lock().syncs
    }

    /// The origins that a disk channel would know.
    pub(crate) fn origins(&self) -> Vec<(FileId, u64)> {
        self.lock()
            .origins
            .iter()
            .map(|(file, next)| (*file, *next))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    /// Finds the offsets up to which files are kept, after batches were removed.
    fn find_origins(&mut self) {
        self.origins.clear();
        for origin in self.batches.iter().flat_map(files_of) {
            let next = self.origins.entry(origin.file).or_default();
            *next = origin.next.max(*next);
        }
    }

    /// The part of a batch that is new.
    fn without_repeats(&mut self, batch: Batch) -> Option<Batch> {
        let origins: Vec<_> = files_of(&batch).collect();
        let without = |batch, origin| self.without_repeat(batch, origin);
        origins.into_iter().try_fold(batch, without)
    }

    fn without_repeat(&mut self, mut batch: Batch, origin: FileOrigin) -> Option<Batch> {
        // An empty batch only sets the offset, which may be an earlier one.
        let sets = batch.body.is_empty() && origin.begin == origin.next;
        let known = self.origins.get(&origin.file).copied();
        let known = known.filter(|_| !sets);
        self.origins
            .insert(origin.file, origin.next.max(known.unwrap_or(0)));
        match known {
            Some(known) if known >= origin.next && origin.next > origin.begin => {
                self.repeats += 1;
                return None;
            }
            // Only plain lines can be divided.
            Some(known) if known > origin.begin => {
                self.repeats += 1;
                if batch.encoding == Encoding::Lines {
                    batch.body = batch.body.slice((known - origin.begin) as usize..);
                    batch.count = millstream_wire::lines::count(&batch.body);
                }
            }
            _ => {}
        }
        Some(batch)
    }
}

/// The parts of files that a batch was read from.
fn files_of(batch: &Batch) -> impl Iterator<Item = FileOrigin> + '_ {
    batch.origins.iter().filter_map(|origin| match origin {
        Origin::File(origin) => Some(*origin),
        Origin::Chunk(_) => None,
    })
}

impl Channel for Downstream {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            while self.lock().full {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.keep(group);
        })
    }

    fn sync(&self, token: Token) {
        self.lock().syncs += 1;
        token.settle();
    }

    fn is_full(&self) -> bool {
        self.lock().chokes
    }

    fn space(&self) -> Option<(u64, u64)> {
        self.lock().space
    }

    fn close(&self) {}

    fn file_origins(&self) -> Option<Vec<(FileId, u64)>> {
        let durable = self.lock().durable;
        durable.then(|| self.origins())
    }

    fn id(&self) -> Option<u128> {
        self.lock().durable.then_some(7)
    }
}

impl Downstream {
    fn keep(&self, mut group: Group) {
        let (empty, _) = delivery::receipt(false, 0, Meter::default());
        let token = std::mem::replace(&mut group.token, empty);
        if !token.claim() {
            return;
        }
        let mut state = self.lock();
        assert_eq!(group.batches.len(), 1);
        for batch in group.batches {
            let declared = |(name, _): (&str, &str)| state.values.contains(&name);
            assert!(batch.values.iter().all(declared), "{:?}", batch.values);
            let batch = if state.durable {
                state.without_repeats(batch)
            } else {
                Some(batch)
            };
            // The body is copied, so that the buffer returns to its pool. A channel that writes the body to disk frees the buffer,
            // too.
            state.batches.extend(batch.map(|batch| Batch {
                body: batch.body.to_vec().into(),
                ..batch
            }));
        }
        if state.answers {
            token.settle();
        } else {
            if state.chokes {
                token.release_claim();
            }
            state.held.push(token);
        }
    }
}

/// The context of a source. Its ports, `NAME` and `NAME.rejected`, lead to two channels. Its batches carry `values`.
pub(crate) fn context(
    (to, rejects): (&Downstream, &Downstream),
    values: &'static [&'static str],
    meters: &Meters,
    stop: Stop,
    directory: &Path,
    once: bool,
) -> SourceContext {
    let outlet = |to: &Downstream, rejected| {
        let beside = to.lock().beside.clone();
        let edges = [to.clone()].into_iter().chain(beside).map(|channel| {
            channel.lock().values = values;
            Edge::to(Feed::new(Arc::new(channel)))
        });
        Outlet::new(edges.collect(), &meters.of("source"), rejected)
    };
    SourceContext {
        name: "source".into(),
        follows: [].into(),
        outlet: outlet(to, false),
        rejects: outlet(rejects, true),
        threads: Threads::start(2).unwrap(),
        stop,
        once,
        pool: Pool::new(64 << 20),
        meters: meters.of("source"),
        reporter: Reporter::new("source"),
        host: "here".into(),
        directory: directory.to_owned(),
    }
}

/// A source that runs on separate threads.
pub(crate) struct Running {
    pub(crate) meters: Meters,
    pub(crate) reporter: Reporter,
    pub(crate) rejected: Downstream,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Running {
    /// Runs a component with these options (in JSON) in front of `downstream`.
    pub(crate) fn start(
        component: &Component,
        options: &str,
        downstream: &Downstream,
        directory: &Path,
    ) -> Self {
        Self::launch(component, options, downstream, directory, false)
    }

    /// Runs a component with `--once`, to its end.
    pub(crate) fn once(
        component: &Component,
        options: &str,
        downstream: &Downstream,
        directory: &Path,
    ) -> Self {
        let mut running = Self::launch(component, options, downstream, directory, true);
        running.thread.take().unwrap().join().unwrap().unwrap();
        running
    }

    fn launch(
        component: &Component,
        options: &str,
        downstream: &Downstream,
        directory: &Path,
        once: bool,
    ) -> Self {
        let source =
            try_build(component, options).unwrap_or_else(|problems| panic!("{problems:?}"));
        Self::of(source, downstream, directory, once)
    }

    /// Runs a source in front of `downstream`.
    pub(crate) fn of(
        mut source: Box<dyn Source>,
        downstream: &Downstream,
        directory: &Path,
        once: bool,
    ) -> Self {
        let meters = Meters::default();
        let (stopper, stop) = stop();
        let rejected = Downstream::memory();
        let (all, to, rejects) = (meters.clone(), downstream.clone(), rejected.clone());
        let directory = directory.to_owned();
        let reporter = Reporter::new("source");
        let shared = reporter.clone();
        let thread = thread::spawn(move || {
            let ports = (&to, &rejects);
            let mut context = context(ports, source.values(), &all, stop, &directory, once);
            context.reporter = shared;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            source.bind(&context)?;
            tokio::task::LocalSet::new().block_on(&runtime, source.run(context))
        });
        Self {
            meters,
            reporter,
            rejected,
            stopper,
            thread: Some(thread),
        }
    }

    /// Stops the source and waits for its end.
    pub(crate) fn stop(mut self) {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }

    /// Waits until the source ends without being stopped.
    pub(crate) fn ended(mut self) -> Result<(), Failure> {
        self.thread.take().unwrap().join().unwrap()
    }

    /// The value of one of the source's meters.
    pub(crate) fn meter(&self, name: &str) -> u64 {
        self.meters.value("source", name)
    }
}

/// A peer for the contract of sources: writes `input` to a new connection and reads until `answer` has arrived.
pub(crate) fn peer<S: Read + Write>(
    connect: impl Fn() -> io::Result<S> + Send + Sync + 'static,
    input: Vec<u8>,
    answer: impl Into<Vec<u8>>,
) -> Peer {
    let answer = answer.into();
    let exchange = move || -> io::Result<()> {
        let mut stream = connect()?;
        stream.write_all(&input)?;
        let (mut got, mut buffer) = (Vec::new(), [0; 256]);
        while !got.windows(answer.len()).any(|part| part == answer) {
            match stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => got.extend_from_slice(&buffer[..count]),
            }
        }
        Ok(())
    };
    Arc::new(move || exchange().is_ok())
}

/// Builds a source from these options (in JSON). The error lists the problems.
pub(crate) fn try_build(
    component: &Component,
    options: &str,
) -> Result<Box<dyn Source>, Vec<String>> {
    let Build::Source(build) = component.build else {
        panic!("{} is no source", component.name)
    };
    let node = node(serde_json::from_str(options).unwrap());
    build("source", &node).map_err(|problems| problems.into_iter().map(|p| p.message).collect())
}

/// A configuration tree, from JSON.
pub(crate) fn node(value: serde_json::Value) -> Node {
    use serde_json::Value as Json;
    let place = || Place::whole(millstream_config::Source::new("test.yaml", "", 0));
    let value = match value {
        Json::Null => Value::Null,
        Json::Bool(bool) => Value::Bool(bool),
        Json::Number(number) => Value::Integer(number.as_i64().unwrap().into()),
        Json::String(text) => Value::Text(millstream_config::Text::new(text)),
        Json::Array(list) => Value::List(list.into_iter().map(node).collect()),
        Json::Object(entries) => {
            let key = |text| millstream_config::Key {
                text,
                place: place(),
            };
            let mut map = millstream_config::Map::default();
            map.entries = entries
                .into_iter()
                .map(|(name, value)| (key(name), node(value)))
                .collect();
            Value::Map(map)
        }
    };
    Node {
        value,
        place: place(),
    }
}

/// Connects to a unix socket as soon as a source listens on it. The file exists slightly earlier.
pub(crate) fn connect(socket: &Path) -> UnixStream {
    let mut stream = None;
    until("it listens", || {
        stream = UnixStream::connect(socket).ok();
        stream.is_some()
    });
    stream.unwrap()
}

/// Waits until `holds` returns true. Panics after 40 seconds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(40);
    while !holds() {
        assert!(Instant::now() < give_up, "timed out waiting for: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
