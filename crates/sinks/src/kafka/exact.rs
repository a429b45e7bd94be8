//! Behind a disk channel: transactions, each with the position that it reaches.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! session: init (ends what a predecessor left open) -> read the position -> claim it -> resume the inlet there
//!   batch: begin, if no transaction is open -> send
//!   cut:   wait until nothing is in flight -> position into the transaction -> commit -> settle the cut
//! anything fails: the session is over. The next one's init aborts its transaction and reads what is committed.
//! ```
//! Nobody ever guesses whether a commit has arrived: the position says. A claim is a commit of the position that was found,
//! with this process as its owner; so a process that was fenced sees whether a successor is there (it stops for good) or
//! whether only the broker lost patience with it (it goes on). One that has had the position looks each time, whatever has
//! failed: a zombie that wakes up may hear of a connection that timed out, and its init would fence its successor.

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use millstream_kafka::{Error, Kind, Outgoing, Store};
use millstream_pipeline::{
    failure::{Again, Failure},
    inlet::{Event, Inlet},
    node::SinkContext,
};
use millstream_record::{Batch, Position};

use super::{
    Kafka,
    given_up::GivenUp,
    link::{Halt, Link, reject},
    position::{Committed, identity},
    shape::{Refused, Shaper},
};
use crate::backoff::Backoff;

/// How long a broker has to abort what is open when the process ends; else the next start does it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why a session ended.
enum End {
    /// The process wants to end.
    Stopped,
    /// To be tried again.
    Trouble(Error),
    /// Somebody else decides.
    Failure(Failure),
}

impl From<Halt> for End {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Stopped => Self::Stopped,
            Halt::Failed(error) => Self::Trouble(error),
        }
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// What outlives a session.
struct Exact<'a> {
    sink: &'a Kafka,
    context: SinkContext,
    channel: u128,
    /// This process, among those that have had the position.
    owner: u64,
    /// Whether another producer has ended the last session.
    fenced: bool,
    /// Whether this process has had the position: who has it now has taken it since.
    claimed: bool,
    given_up: GivenUp,
    /// Up to where everything is settled, as far as this process knows.
    settled: Option<Position>,
    /// Since when nothing has gone well.
    since: Option<Instant>,
    backoff: Backoff,
}

/// Writes until the inlet ends.
pub(super) async fn run(
    sink: &Kafka,
    inlet: &mut Inlet,
    context: SinkContext,
    channel: u128,
) -> Result<(), Failure> {
    let owner = RandomState::new().hash_one(&*context.name);
    let retry = &sink.config.retry;
    let backoff = Backoff::new(retry.first.as_duration(), retry.max.as_duration(), owner);
    let mut exact = Exact {
        given_up: GivenUp::open(&context.folder, channel)?,
        sink,
        context,
        channel,
        owner,
        fenced: false,
        claimed: false,
        settled: None,
        since: None,
        backoff,
    };
    loop {
        let error = match exact.session(inlet).await {
            Ok(()) | Err(End::Stopped) => return Ok(()),
            Err(End::Failure(failure)) => return Err(failure),
            Err(End::Trouble(error)) => error,
        };
        if exact.context.stop.is_stopped() {
            return Ok(());
        }
        exact.trouble(error, inlet).await?;
    }
}

impl Exact<'_> {
    /// After a session that failed: says so and waits, or gives up what has waited too long.
    async fn trouble(&mut self, error: Error, inlet: &mut Inlet) -> Result<(), Failure> {
        let reporter = &self.context.reporter;
        match error.kind {
            Kind::Settings => return Err(Failure::config(format!("Kafka: {error}"))),
            // What was learned makes the next try another one.
            Kind::TooLarge => return Ok(()),
            Kind::Fenced => self.fenced = true,
            _ => {}
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let give_up = self.sink.config.retry.give_up.0;
        if give_up.is_some_and(|after| since.elapsed() >= after) {
            return self.give_up(inlet, &error).await;
        }
        let wait = self.backoff.failed();
        reporter.error(
            "kafka",
            format_args!("{error}; trying again in {} ms", wait.as_millis()),
        );
        let mut stop = self.context.stop.clone();
        tokio::select! {
            () = stop.stopped() => {}
            () = tokio::time::sleep(wait) => {}
        }
        Ok(())
    }

    /// Sends what the next cut closes out by the port for rejects.
    async fn give_up(&mut self, inlet: &mut Inlet, error: &Error) -> Result<(), Failure> {
        let text = format!("Kafka did not take it for too long (`retry.give_up`): {error}");
        self.context.reporter.error("give-up", &text);
        inlet.resume(self.settled.max(self.given_up.position()))?;
        while let Some(event) = inlet.next().await? {
            match event {
                Event::Batch(batch, _) => {
                    let records = millstream_wire::event::events(&batch);
                    let records = records.filter_map(|(range, _)| batch.body.get(range));
                    inlet.reject(&batch, records, &text).await;
                }
                Event::Cut(cut) => {
                    let position = cut.position();
                    if let Some(position) = position {
                        self.given_up.store(position)?;
                    }
                    inlet.settle(cut).await?;
                    self.settled = self.settled.max(position);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn session(&mut self, inlet: &mut Inlet) -> Result<(), End> {
        let mut session = self.begin()?;
        let position = session.find(self)?;
        self.claimed |= session.stored;
        // Without a position the channel's cursor says; it is never behind what was given up.
        self.settled = position.map(|position| match self.given_up.position() {
            Some(given_up) => position.max(given_up),
            None => position,
        });
        inlet.resume(self.settled)?;
        let ended = self.write(&mut session, inlet).await;
        if matches!(ended, Ok(()) | Err(End::Stopped)) {
            session.leave();
        }
        ended
    }

    async fn write(&mut self, session: &mut Session, inlet: &mut Inlet) -> Result<(), End> {
        while let Some(event) = inlet.next().await? {
            match event {
                Event::Batch(batch, _) => {
                    session.take(&batch, self)?;
                    reject(inlet, &batch, &mut session.refused).await;
                }
                Event::Cut(cut) => {
                    let position = cut.position();
                    if let Some(position) = position {
                        session.commit(position, self)?;
                        self.claimed |= session.stored;
                    }
                    inlet.settle(cut).await?;
                    self.settled = self.settled.max(position);
                    (self.since, self.fenced) = (None, false);
                    self.backoff.reset();
                }
            }
        }
        Ok(())
    }

    /// A producer of its own for each session: what went wrong with the last one is gone with it.
    fn begin(&self) -> Result<Session, End> {
        let limits = self.sink.limits().clone();
        let config = &self.sink.config;
        let identity = identity(self.channel, &self.context.name);
        let mut settings = config.settings(limits.batch_max);
        settings.set("transactional.id", identity.as_str());
        let producer = self.sink.client.producer(&settings).map_err(End::Trouble)?;
        Ok(Session {
            link: Link::new(producer, self.context.clone(), true),
            shaper: Shaper::new(config, limits),
            outgoing: Shaper::outgoing(config),
            refused: Vec::new(),
            oversized: Vec::new(),
            store: Store {
                group: identity,
                topic: config.position_topic().to_owned(),
            },
            open: false,
            stored: false,
            sent: 0,
        })
    }

    fn patience(&self) -> Duration {
        self.sink.config.retry.timeout.as_duration()
    }

    fn committed(&self, position: Position) -> Committed {
        Committed {
            channel: self.channel,
            position,
            owner: self.owner,
        }
    }
}

/// From one producer's making to its end.
struct Session {
    link: Link,
    shaper: Shaper,
    outgoing: Outgoing,
    refused: Vec<Refused>,
    oversized: Vec<(usize, String)>,
    store: Store,
    /// Whether a transaction is open.
    open: bool,
    /// Whether there is a position, so that its topic is there.
    stored: bool,
    /// Records sent.
    sent: usize,
}

impl Session {
    /// Takes over from whoever was there before, and finds the position.
    fn find(&mut self, exact: &Exact<'_>) -> Result<Option<Position>, End> {
        let (patience, store) = (exact.patience(), self.store.clone());
        if (exact.claimed || exact.fenced)
            && let Some(other) = self.read(patience)?
            && other.owner != exact.owner
        {
            let text = "another process has taken over this sink's channel (a copy of this data_dir?); this one writes \
                        no more, so that nothing comes twice";
            return Err(Failure {
                again: Again::Never,
                ..Failure::us(text)
            }
            .into());
        }
        self.link
            .patiently(patience, |producer, time| producer.init(time))?;
        if exact.sink.config.is_templated() && exact.sink.config.position.is_none() {
            self.link.patiently(patience, |producer, _| {
                producer.make_topic(&store.topic, patience)
            })?;
        }
        let found = self.read(patience)?;
        let Some(found) = found.filter(|found| found.channel == exact.channel) else {
            return Ok(None);
        };
        self.stored = true;
        self.commit(found.position, exact)?;
        Ok(Some(found.position))
    }

    fn read(&mut self, patience: Duration) -> Result<Option<Committed>, End> {
        let store = self.store.clone();
        let text = self
            .link
            .patiently(patience, |producer, time| producer.committed(&store, time))?;
        Ok(text.as_deref().map(Committed::parse).transpose()?)
    }

    /// Sends a batch's records. What is refused of it stands in `refused`.
    fn take(&mut self, batch: &Batch, exact: &Exact<'_>) -> Result<(), End> {
        self.outgoing.clear();
        let first = self.sent;
        self.sent += self
            .shaper
            .shape(batch, first, &mut self.outgoing, &mut self.refused);
        if self.outgoing.records.is_empty() {
            return Ok(());
        }
        self.begin()?;
        let mut next = 0;
        let sent = self
            .link
            .send(&self.outgoing, &mut next, &mut self.oversized);
        self.check(exact, sent)?;
        if !self.oversized.is_empty() {
            refuse(
                batch,
                &self.shaper,
                first,
                &mut self.oversized,
                &mut self.refused,
            );
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), End> {
        if !self.open {
            self.link.producer.begin().map_err(End::Trouble)?;
            self.open = true;
        }
        Ok(())
    }

    /// Makes everything up to `position` visible, and the position with it.
    fn commit(&mut self, position: Position, exact: &Exact<'_>) -> Result<(), End> {
        // A topic that is not there cannot hold a position; it comes with the first record.
        if !self.open && !self.stored {
            return Ok(());
        }
        self.begin()?;
        let drained = self.link.drain();
        self.check(exact, drained)?;
        let text = exact.committed(position).text();
        let number = i64::try_from(position.seq).unwrap_or(i64::MAX);
        let store = self.store.clone();
        self.link.patiently(exact.patience(), |producer, time| {
            producer.commit(&store, &text, number, time)
        })?;
        (self.open, self.stored) = (false, true);
        Ok(())
    }

    /// Ends the session if a record has failed. What was too large for its topic is learned first.
    fn check(&mut self, exact: &Exact<'_>, done: Result<(), Halt>) -> Result<(), End> {
        let failed = std::mem::take(&mut self.link.failed);
        if let Some(first) = failed
            .iter()
            .find(|failed| failed.error.kind == Kind::TooLarge)
        {
            exact
                .sink
                .learn(&mut self.link, &first.topic, exact.patience())?;
            return Err(End::Trouble(first.error.clone()));
        }
        match failed.into_iter().next() {
            Some(first) => Err(End::Trouble(first.error)),
            None => Ok(done?),
        }
    }

    /// The process ends: what is open is aborted, so that readers need not wait for the next start.
    fn leave(&mut self) {
        if self.open {
            // The next start does it if it fails now.
            drop(self.link.producer.abort(FAREWELL));
        }
    }
}

/// Records that the client itself refused, by their numbers: where they stand in their batch.
pub(super) fn refuse(
    batch: &Batch,
    shaper: &Shaper,
    first: usize,
    oversized: &mut Vec<(usize, String)>,
    refused: &mut Vec<Refused>,
) {
    let places = shaper.places(batch);
    for (number, reason) in oversized.drain(..) {
        let place = number.checked_sub(first).and_then(|at| places.get(at));
        refused.extend(place.map(|range| (range.clone(), reason)));
    }
}
