//! The producer's own thread: it sends what is ready, hears the answers, and asks for what is not known.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! One task looks at what there is to do ([`Engine::dispatch`]) whenever something has changed; everything that waits for a
//! broker is a task of its own. A batch is sealed here, so that sums and compression do not hold up the sink's thread.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::mpsc,
    task::{AbortHandle, spawn_local},
    time::sleep_until,
};

use super::{
    access::Access,
    batch::Seal,
    cluster::{Cluster, RETRY},
    codes::{self, Todo},
    connection::{ANSWER, Fault, Piece},
    messages::{
        Identity, PRODUCE, PRODUCE_VERSIONS, Produced, produce_head, produce_partition,
        produce_topic, read_produced,
    },
    state::{Place, Shared, State, waited_too_long},
    transaction::Order,
    wire::Take,
};
use crate::{Error, Kind, ProducerOptions};

/// Requests under way to one broker at most: each may hold up the ones behind it.
const FLIGHTS_MAX: usize = 5;
/// Bytes of a request, beyond which no further batch goes with it.
const REQUEST_BYTES: usize = 8 << 20;
/// How old what is known of a topic's partitions gets.
const METADATA_AGE: Duration = Duration::from_secs(300);
/// Between two questions for metadata.
pub(super) const METADATA_WAIT: Duration = Duration::from_millis(100);

pub(super) struct Engine {
    pub(super) shared: Arc<Shared>,
    pub(super) options: ProducerOptions,
    pub(super) cluster: Cluster,
    pub(super) identity: Cell<Option<Identity>>,
    /// Requests under way, by broker.
    flights: RefCell<HashMap<i32, usize>>,
    /// What is under way besides.
    pub(super) identifying: Cell<bool>,
    pub(super) adding: Cell<bool>,
    pub(super) asking: Cell<bool>,
    /// Topics whose partitions are to be asked for.
    pub(super) wanted: RefCell<BTreeSet<usize>>,
    /// What the sink's thread waits for.
    order: RefCell<Option<AbortHandle>>,
    /// A task has panicked: nobody knows what it has left undone.
    broken: Cell<bool>,
}

/// Notes how a task ends.
struct Watch(Rc<Engine>);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.set(true);
            self.0.shared.work.notify_one();
        }
    }
}

/// A batch that goes out.
struct Job {
    place: Place,
    serial: u64,
    topic: Arc<str>,
    sequence: i32,
    /// As it goes out, once it is sealed.
    sealed: Option<Arc<Vec<u8>>>,
}

/// What [`Engine::dispatch`] finds.
#[derive(Default)]
struct Found {
    jobs: BTreeMap<i32, Vec<Job>>,
    bytes: HashMap<i32, usize>,
    /// Partitions that the coordinator does not know of.
    add: Vec<Place>,
    identify: bool,
    next: Option<Instant>,
}

impl Found {
    fn look_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

impl Engine {
    pub(super) fn new(shared: Arc<Shared>, access: Access, options: ProducerOptions) -> Self {
        Self {
            cluster: Cluster::new(access, shared.clone()),
            shared,
            options,
            identity: Cell::new(None),
            flights: RefCell::default(),
            identifying: Cell::new(false),
            adding: Cell::new(false),
            asking: Cell::new(false),
            wanted: RefCell::default(),
            order: RefCell::default(),
            broken: Cell::new(false),
        }
    }

    /// Works until nobody gives orders any more, or a task has panicked.
    pub(super) async fn run(self: Rc<Self>, mut orders: mpsc::Receiver<Order>) {
        while !self.broken.get() {
            let next = self.dispatch();
            let next = async {
                match next {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.begin(order),
                    None => return,
                },
                () = self.shared.work.notified() => {}
                () = next => {}
            }
        }
    }

    /// Obeys; what was ordered before is wanted no more.
    fn begin(self: &Rc<Self>, order: Order) {
        let task = self.start(order.obey(self.clone()));
        if let Some(last) = self.order.replace(Some(task)) {
            last.abort();
        }
    }

    /// Has a task done beside everything else.
    pub(super) fn start(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) -> AbortHandle {
        let watch = Watch(self.clone());
        let watched = async move {
            task.await;
            drop(watch);
        };
        spawn_local(watched).abort_handle()
    }

    /// Starts all that can be done now; gives when to look again, if nothing happens before.
    fn dispatch(self: &Rc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let mut found = Found::default();
        let mut state = self.shared.lock();
        let wanting: Vec<usize> = state.wanting.iter().copied().collect();
        for topic in wanting {
            self.look_at_staged(&mut state, topic, now, &mut found);
        }
        let active: Vec<Place> = state.active.iter().copied().collect();
        for place in active {
            self.look_at_partition(&mut state, place, now, &mut found);
        }
        drop(state);
        if found.identify
            && self.options.transactional_id.is_none()
            && !self.identifying.replace(true)
        {
            self.start(self.clone().identify());
        }
        if !found.add.is_empty() && !self.adding.replace(true) {
            self.start(self.clone().add_partitions(found.add));
        }
        if !self.wanted.borrow().is_empty() && !self.asking.replace(true) {
            self.start(self.clone().ask_metadata());
        }
        for (leader, jobs) in found.jobs {
            *self.flights.borrow_mut().entry(leader).or_default() += 1;
            self.start(self.clone().produce(leader, jobs));
        }
        found.next
    }

    fn look_at_staged(&self, state: &mut State, topic: usize, now: Instant, found: &mut Found) {
        self.wanted.borrow_mut().insert(topic);
        let since = state.topics.get(topic).and_then(|topic| topic.staged_since);
        if let (Some(wait), Some(since)) = (self.options.patience(), since) {
            if since + wait <= now {
                state.unstage(topic, &waited_too_long(wait));
                self.shared.settled.notify_all();
            } else {
                found.look_at(since + wait);
            }
        }
    }

    fn look_at_partition(&self, state: &mut State, place: Place, now: Instant, found: &mut Found) {
        if let Some(due) = state.close_overdue(place, now) {
            found.look_at(due);
        }
        let topic = state.topics.get(place.0);
        let Some((name, learned)) = topic.map(|topic| (topic.name.clone(), topic.learned_at))
        else {
            return;
        };
        if learned.is_none_or(|at| at + METADATA_AGE <= now) {
            self.wanted.borrow_mut().insert(place.0);
        }
        let Some(partition) = state
            .partition(place)
            .filter(|partition| !partition.under_way)
        else {
            return;
        };
        let (leader, added, sequence) = (partition.leader, partition.added, partition.sequence);
        if partition.doubtful && !partition.ready.is_empty() {
            let text = format!("topic {name}: what became of an earlier batch is not known");
            state.take_back_partition(place, &Error::new(Kind::Fatal, text));
            self.shared.settled.notify_all();
            return;
        }
        let again_at = partition.again_at;
        let Some(first) = partition.ready.front_mut() else {
            return state.rest(place);
        };
        if let Some(wait) = self.options.patience() {
            if first.since + wait <= now {
                state.take_back(Some(place.0), &waited_too_long(wait));
                self.shared.settled.notify_all();
                return;
            }
            found.look_at(first.since + wait);
        }
        if let Some(at) = again_at.filter(|at| *at > now) {
            return found.look_at(at);
        }
        if self.identity.get().is_none() {
            found.identify = true;
            return;
        }
        if leader < 0 {
            self.wanted.borrow_mut().insert(place.0);
            return;
        }
        if self.options.transactional_id.is_some() && !added {
            found.add.push(place);
            return;
        }
        let flights = self.flights.borrow().get(&leader).copied().unwrap_or(0);
        let bytes = found.bytes.entry(leader).or_default();
        if flights >= FLIGHTS_MAX || *bytes >= REQUEST_BYTES {
            return;
        }
        let job = Job {
            place,
            serial: first.serial,
            topic: name,
            sequence,
            sealed: first.sealed.clone(),
        };
        *bytes += first.len();
        first.attempts += 1;
        if let Some(partition) = state.partition(place) {
            (partition.under_way, partition.again_at) = (true, None);
        }
        found.jobs.entry(leader).or_default().push(job);
    }

    /// One request to one broker, and what comes of it.
    async fn produce(self: Rc<Self>, leader: i32, mut jobs: Vec<Job>) {
        self.seal(&mut jobs);
        let answers = self.exchange(leader, &jobs).await;
        if let Some(flights) = self.flights.borrow_mut().get_mut(&leader) {
            *flights -= 1;
        }
        let answers = answers.unwrap_or_else(|fault| {
            self.cluster.complain(&fault);
            Vec::new()
        });
        let placed = |answer: Produced| ((answer.topic.clone(), answer.partition), answer);
        let mut answers: HashMap<_, _> = answers.into_iter().map(placed).collect();
        let mut state = self.shared.lock();
        for job in jobs {
            let answer = answers.remove(&(job.topic.as_ref().to_owned(), number(job.place.1)));
            // Its buffer is to be the state's alone.
            drop(job.sealed);
            match answer {
                Some(answer) => self.settle(&mut state, job.place, job.serial, answer),
                None => self.seek(&mut state, job.place, job.serial),
            }
        }
        drop(state);
        self.shared.settled.notify_all();
        self.shared.work.notify_one();
    }

    /// Whoever leads the partition now is asked for, and gets the batch.
    fn seek(&self, state: &mut State, place: Place, serial: u64) {
        self.wanted.borrow_mut().insert(place.0);
        state.retry(place, serial, Instant::now() + METADATA_WAIT);
    }

    fn settle(&self, state: &mut State, place: Place, serial: u64, answer: Produced) {
        let code = answer.error;
        // It was there already: an earlier answer was lost. Without an earlier attempt, the numbers are somebody else's.
        let repeated = code == codes::DUPLICATE_SEQUENCE_NUMBER && state.is_repeated(place, serial);
        if code == codes::NONE || repeated {
            return state.succeed(place, serial);
        }
        let what = format!("topic {}", answer.topic);
        let todo = codes::todo(code);
        if let Todo::Seek | Todo::Retry = todo {
            let said = codes::error(code, &what, answer.text.as_deref());
            state.complaint = Some(format!("{said}; it is tried again"));
        }
        match todo {
            Todo::Seek => self.seek(state, place, serial),
            Todo::Retry => state.retry(place, serial, Instant::now() + RETRY),
            Todo::Fail(Kind::Suspect) => {
                let bad: HashMap<usize, Option<String>> = (answer.bad.into_iter())
                    .filter_map(|(at, text)| Some((usize::try_from(at).ok()?, text)))
                    .collect();
                state.fail(place, serial, true, |at| {
                    let text = bad.get(&at).map_or(&answer.text, |own| own);
                    let mut error = codes::error(code, &what, text.as_deref());
                    if !bad.is_empty() && !bad.contains_key(&at) {
                        error.kind = Kind::Neighbour;
                    }
                    error
                });
            }
            Todo::Fail(kind) => {
                let refused = matches!(kind, Kind::TooLarge | Kind::Refused | Kind::Settings);
                state.fail(place, serial, refused, |_| {
                    codes::error(code, &what, answer.text.as_deref())
                });
            }
        }
    }

    /// Seals what is not sealed yet, while the sink's thread goes on.
    fn seal(&self, jobs: &mut [Job]) {
        let Some(identity) = self.identity.get() else {
            return;
        };
        for job in jobs {
            let seal = Seal {
                identity,
                sequence: job.sequence,
                transactional: self.options.transactional_id.is_some(),
                compression: self.options.compression,
            };
            let builder = self.shared.lock().builder(job.place, job.serial);
            let Some(sealed) = builder.map(|builder| builder.seal(seal)) else {
                continue;
            };
            let mut state = self.shared.lock();
            match sealed {
                Ok((sealed, spare)) => {
                    let sealed = Arc::new(sealed);
                    if let Some(buffer) = spare {
                        state.reuse(buffer);
                    }
                    state.sealed(job.place, job.serial, sealed.clone());
                    job.sealed = Some(sealed);
                }
                Err(error) => state.fail(job.place, job.serial, true, |_| {
                    Error::new(Kind::Fatal, format!("cannot compress a batch: {error}"))
                }),
            }
        }
    }

    async fn exchange(&self, leader: i32, jobs: &[Job]) -> Result<Vec<Produced>, Fault> {
        // What could not be sealed has failed, or was taken back.
        let jobs: Vec<&Job> = jobs.iter().filter(|job| job.sealed.is_some()).collect();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let connection = self.cluster.broker(leader).await?;
        let version = connection.version("Produce", PRODUCE, &PRODUCE_VERSIONS)?;
        let id = self.options.transactional_id.as_deref();
        let mut piece = connection.head(PRODUCE, version);
        let topics = jobs.chunk_by(|a, b| a.place.0 == b.place.0);
        let wait = i32::try_from(ANSWER.as_millis()).unwrap_or(i32::MAX);
        produce_head(&mut piece, id, wait, topics.clone().count());
        let mut pieces = Vec::new();
        for topic in topics {
            produce_topic(
                &mut piece,
                topic.first().map_or("", |job| &job.topic),
                topic.len(),
            );
            for job in topic {
                let Some(sealed) = &job.sealed else {
                    continue;
                };
                produce_partition(&mut piece, number(job.place.1), sealed.len());
                pieces.push(Piece::Own(std::mem::take(&mut piece)));
                pieces.push(Piece::Shared(sealed.clone()));
            }
        }
        let answer = connection.send(pieces).await?;
        let unread = || connection.fail("an answer to Produce that cannot be read");
        read_produced(&mut Take(&answer), version).ok_or_else(unread)
    }

    /// Whether no request with records is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.flights.borrow().values().all(|flights| *flights == 0)
    }
}

/// Partitions have numbers of 32 bits.
pub(super) fn number(partition: usize) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}
