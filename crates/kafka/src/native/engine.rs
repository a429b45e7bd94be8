//! The producer's own thread: sends what is ready, handles the answers, and looks up what sending needs.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! [`Engine::dispatch`] starts all possible work whenever something has changed. All work that waits for a broker runs in
//! separate tasks. Batches are sealed on this thread, so that checksums and compression do not delay the sink's thread.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
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
    accumulator::{Accumulator, Place, SharedAccumulator, waited_too_long},
    batch::Seal,
    cluster::RETRY,
    codes::{self, Todo},
    connection::{ANSWER, Fault, Piece},
    lookups::{Lookups, METADATA_WAIT, number},
    messages::{
        PRODUCE, PRODUCE_VERSIONS, Produced, produce_head, produce_partition, produce_topic,
        read_produced,
    },
    session::Session,
    transaction::Order,
    wire::Take,
};
use crate::{Error, Kind, ProducerOptions};

/// The maximum number of requests in flight to one broker. A broker answers in order, so a slow request delays all later requests.
const FLIGHTS_MAX: usize = 5;
/// Once a request has reached this size, no further batch is added to it.
const REQUEST_BYTES: usize = 8 << 20;
/// The age at which a topic's partitions are looked up again.
const METADATA_AGE: Duration = Duration::from_secs(300);

pub(super) struct Engine {
    session: Rc<Session>,
    lookups: Rc<Lookups>,
    /// The task that runs the current order. An order is a request that the sink's thread waits for, such as a commit.
    order: RefCell<Option<AbortHandle>>,
    /// Set when a task has panicked. The engine then ends, because the work of the task may be incomplete.
    broken: Cell<bool>,
}

/// Sets [`Engine::broken`] if the task that holds it panics.
struct Watch(Rc<Engine>);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.set(true);
            self.0.session.shared.work.notify_one();
        }
    }
}

/// A batch to send.
struct Job {
    place: Place,
    serial: u64,
    topic: Arc<str>,
    sequence: i32,
    /// The batch as it is sent, once it is sealed.
    sealed: Option<Arc<Vec<u8>>>,
}

/// The work that [`Engine::dispatch`] finds.
#[derive(Default)]
struct Plan {
    jobs: BTreeMap<i32, Vec<Job>>,
    bytes: HashMap<i32, usize>,
    /// Partitions that do not belong to the transaction yet.
    add: Vec<Place>,
    identify: bool,
    next: Option<Instant>,
}

impl Plan {
    fn wake_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

impl Engine {
    pub(super) fn new(
        shared: Arc<SharedAccumulator>,
        access: Access,
        options: ProducerOptions,
    ) -> Self {
        let session = Rc::new(Session::new(shared, access, options));
        Self {
            lookups: Rc::new(Lookups::new(session.clone())),
            session,
            order: RefCell::default(),
            broken: Cell::new(false),
        }
    }

    /// Runs until the sender of orders is dropped or a task has panicked.
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
                () = self.session.shared.work.notified() => {}
                () = next => {}
            }
        }
    }

    /// Starts an order, and aborts the previous order. The sink no longer waits for the previous order.
    fn begin(self: &Rc<Self>, order: Order) {
        let task = self.start(order.run(self.session.clone()));
        if let Some(last) = self.order.replace(Some(task)) {
            last.abort();
        }
    }

    /// Starts a task.
    pub(super) fn start(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) -> AbortHandle {
        let watch = Watch(self.clone());
        let watched = async move {
            task.await;
            drop(watch);
        };
        spawn_local(watched).abort_handle()
    }

    /// Starts all work that is possible now. Returns the time at which the next call is due; a change may require an earlier call. `None`
    /// if only a change requires the next call.
    fn dispatch(self: &Rc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let mut plan = Plan::default();
        let mut state = self.session.shared.lock();
        let wanting: Vec<usize> = state.wanting.iter().copied().collect();
        for topic in wanting {
            self.look_at_staged(&mut state, topic, now, &mut plan);
        }
        let active: Vec<Place> = state.active.iter().copied().collect();
        for place in active {
            self.look_at_partition(&mut state, place, now, &mut plan);
        }
        drop(state);
        if plan.identify
            && self.session.options.transactional_id.is_none()
            && !self.lookups.is_identifying.replace(true)
        {
            self.start(self.lookups.clone().identify());
        }
        if !plan.add.is_empty() && !self.lookups.is_adding.replace(true) {
            self.start(self.lookups.clone().add_partitions(plan.add));
        }
        if !self.lookups.wanted.borrow().is_empty()
            && !self.lookups.is_asking_metadata.replace(true)
        {
            self.start(self.lookups.clone().ask_metadata());
        }
        for (leader, jobs) in plan.jobs {
            self.session.request_begins(leader);
            self.start(self.clone().produce(leader, jobs));
        }
        plan.next
    }

    fn look_at_staged(&self, state: &mut Accumulator, topic: usize, now: Instant, plan: &mut Plan) {
        self.lookups.wanted.borrow_mut().insert(topic);
        let since = state.topics.get(topic).and_then(|topic| topic.staged_since);
        if let (Some(wait), Some(since)) = (self.session.options.patience(), since) {
            if since + wait <= now {
                state.unstage(topic, &waited_too_long(wait));
                self.session.shared.progress.notify_all();
            } else {
                plan.wake_at(since + wait);
            }
        }
    }

    fn look_at_partition(
        &self,
        state: &mut Accumulator,
        place: Place,
        now: Instant,
        plan: &mut Plan,
    ) {
        if let Some(due) = state.close_overdue(place, now) {
            plan.wake_at(due);
        }
        let topic = state.topics.get(place.0);
        let Some((name, learned)) = topic.map(|topic| (topic.name.clone(), topic.learned_at))
        else {
            return;
        };
        if learned.is_none_or(|at| at + METADATA_AGE <= now) {
            self.lookups.wanted.borrow_mut().insert(place.0);
        }
        let Some(partition) = state
            .partition(place)
            .filter(|partition| !partition.in_flight)
        else {
            return;
        };
        let (leader, added, sequence) = (partition.leader, partition.added, partition.sequence);
        if partition.uncertain && !partition.ready.is_empty() {
            let text = format!("topic {name}: the outcome of an earlier batch is unknown");
            state.take_back_partition(place, &Error::new(Kind::Fatal, text));
            self.session.shared.progress.notify_all();
            return;
        }
        let retry_at = partition.retry_at;
        let Some(first) = partition.ready.front_mut() else {
            return state.retire_if_idle(place);
        };
        if let Some(wait) = self.session.options.patience() {
            if first.since + wait <= now {
                state.take_back(Some(place.0), &waited_too_long(wait));
                self.session.shared.progress.notify_all();
                return;
            }
            plan.wake_at(first.since + wait);
        }
        if let Some(at) = retry_at.filter(|at| *at > now) {
            return plan.wake_at(at);
        }
        if self.session.identity.get().is_none() {
            plan.identify = true;
            return;
        }
        if leader < 0 {
            self.lookups.wanted.borrow_mut().insert(place.0);
            return;
        }
        if self.session.options.transactional_id.is_some() && !added {
            plan.add.push(place);
            return;
        }
        let bytes = plan.bytes.entry(leader).or_default();
        if self.session.requests(leader) >= FLIGHTS_MAX || *bytes >= REQUEST_BYTES {
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
            (partition.in_flight, partition.retry_at) = (true, None);
        }
        plan.jobs.entry(leader).or_default().push(job);
    }

    /// Sends one request to one broker and handles its answer.
    async fn produce(self: Rc<Self>, leader: i32, mut jobs: Vec<Job>) {
        self.seal(&mut jobs);
        let answers = self.exchange(leader, &jobs).await;
        self.session.request_ends(leader);
        let answers = answers.unwrap_or_else(|fault| {
            self.session.cluster.complain(&fault);
            Vec::new()
        });
        let placed = |answer: Produced| ((answer.topic.clone(), answer.partition), answer);
        let mut answers: HashMap<_, _> = answers.into_iter().map(placed).collect();
        let mut state = self.session.shared.lock();
        for job in jobs {
            let answer = answers.remove(&(job.topic.as_ref().to_owned(), number(job.place.1)));
            // The accumulator can reuse the buffer only if no other reference to it exists.
            drop(job.sealed);
            match answer {
                Some(answer) => self.handle(&mut state, job.place, job.serial, answer),
                None => self.seek(&mut state, job.place, job.serial),
            }
        }
        drop(state);
        self.session.shared.progress.notify_all();
        self.session.shared.work.notify_one();
    }

    /// Requests a lookup of the partition's leader, and schedules a retry of the batch.
    fn seek(&self, state: &mut Accumulator, place: Place, serial: u64) {
        self.lookups.wanted.borrow_mut().insert(place.0);
        state.retry(place, serial, Instant::now() + METADATA_WAIT);
    }

    fn handle(&self, state: &mut Accumulator, place: Place, serial: u64, answer: Produced) {
        let code = answer.error;
        // `DUPLICATE_SEQUENCE_NUMBER`: if the batch was sent before, an earlier attempt has written it, and the answer was
        // lost. Otherwise another producer has used the sequence numbers.
        let repeated = code == codes::DUPLICATE_SEQUENCE_NUMBER && state.is_repeated(place, serial);
        if code == codes::NONE || repeated {
            return state.succeed(place, serial);
        }
        let what = format!("topic {}", answer.topic);
        let todo = codes::todo(code);
        if let Todo::Seek | Todo::Retry = todo {
            let said = codes::error(code, &what, answer.text.as_deref());
            state.complaint = Some(format!("{said}; retrying"));
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

    /// Seals the batches that are not sealed yet, without holding the lock.
    fn seal(&self, jobs: &mut [Job]) {
        let Some(identity) = self.session.identity.get() else {
            return;
        };
        for job in jobs {
            let seal = Seal {
                identity,
                sequence: job.sequence,
                transactional: self.session.options.transactional_id.is_some(),
                compression: self.session.options.compression,
            };
            let builder = self.session.shared.lock().builder(job.place, job.serial);
            let Some(sealed) = builder.map(|builder| builder.seal(seal)) else {
                continue;
            };
            let mut state = self.session.shared.lock();
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
        // A batch that is not sealed by now has failed in the meantime.
        let jobs: Vec<&Job> = jobs.iter().filter(|job| job.sealed.is_some()).collect();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let connection = self.session.cluster.broker(leader).await?;
        let version = connection.version("Produce", PRODUCE, &PRODUCE_VERSIONS)?;
        let id = self.session.options.transactional_id.as_deref();
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
        let unread = || connection.fail("an unreadable answer to Produce");
        read_produced(&mut Take(&answer), version).ok_or_else(unread)
    }
}
