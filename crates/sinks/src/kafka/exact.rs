//! Behind a disk channel: transactions, each with the position that it reaches.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! session: look who has the position -> init (ends what a predecessor left open) -> read the position, look again
//!          -> claim it -> resume the inlet there
//!   batch: begin, if no transaction is open -> send
//!   checkpoint:   wait until nothing is in flight -> reject what was refused, until that is kept
//!          -> position into the transaction -> commit -> settle the checkpoint
//! anything fails: the session is over. The next one's init aborts its transaction and reads what is committed. Records
//! that brokers refuse for good are left out from then on, and rejected with their checkpoint.
//! ```
//! Nobody ever guesses whether a commit has arrived: the position says. A claim is a commit of the position that was found,
//! with this process as its owner; so a process that was fenced sees whether a successor is there (it stops for good) or
//! whether only the broker lost patience with it (it goes on). It looks before each init but the first, whatever has
//! failed: a zombie that wakes up may hear of a connection that timed out, and its init would fence its successor. And it
//! looks after each, as the successor may have come in between: that one is fenced once, finds that the zombie has not
//! claimed, and goes on.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use millstream_kafka::{Error, Kind};
use millstream_pipeline::{
    condition::{Condition, Trouble},
    failure::{Again, Failure},
    inlet::{Checkpoint, Inlet, Item},
    node::SinkContext,
};
use millstream_record::Position;

use super::{
    Kafka, given_up::GivenUp, link::Halt, position::Committed, session::Session, verdict::Verdicts,
};
use crate::backoff::Backoff;

/// Why a session ended.
pub(super) enum End {
    /// The process wants to end.
    Stopped,
    /// Something was learned that makes the next try another one: no need to wait.
    Anew,
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

/// Records by their batch's position and their place in it, and why they cannot be written.
pub(super) type Unfit = BTreeMap<(Option<Position>, usize), String>;

/// What outlives a session.
pub(super) struct Exact<'a> {
    pub(super) sink: &'a Kafka,
    pub(super) context: SinkContext,
    pub(super) channel: u128,
    /// This process, among those that have had the position.
    pub(super) owner: u64,
    /// Who had the position when this process last looked, if anybody; None before the first look. Who else has it next time
    /// has taken it since.
    seen: Option<Option<u64>>,
    given_up: GivenUp,
    pub(super) verdicts: Verdicts,
    /// What brokers refuse for good of what is not settled.
    pub(super) unfit: Unfit,
    /// Up to where records go alone, if they do.
    pub(super) suspected: Option<Position>,
    /// Up to where everything is settled, as far as this process knows.
    settled: Option<Position>,
    /// Since when nothing has gone well.
    since: Option<Instant>,
    failing: Condition,
    /// Whether a batch was taken and no transaction with it is committed.
    owing: bool,
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
    let given_up = GivenUp::open(&context.directory, channel)?;
    let mut exact = Exact {
        // A run that was killed may have noted what it gave up, and not moved the cursor.
        settled: inlet.settled().max(given_up.position()),
        given_up,
        sink,
        failing: context.reporter.condition("kafka"),
        owing: false,
        context,
        channel,
        owner,
        seen: None,
        verdicts: Verdicts::default(),
        unfit: Unfit::new(),
        suspected: None,
        since: None,
        backoff,
    };
    loop {
        let error = match exact.session(inlet).await {
            Ok(()) | Err(End::Stopped) => return Ok(()),
            Err(End::Failure(failure)) => return Err(failure),
            Err(End::Anew) => None,
            Err(End::Trouble(error)) => Some(error),
        };
        if exact.context.stop.is_stopped() {
            return Ok(());
        }
        if let Some(error) = error {
            exact.trouble(error, inlet).await?;
        }
    }
}

impl Exact<'_> {
    /// After a session that failed: says so and waits, or gives up what has waited too long.
    async fn trouble(&mut self, error: Error, inlet: &mut Inlet) -> Result<(), Failure> {
        if error.kind == Kind::Settings {
            return Err(Failure::config(format!("Kafka: {error}")));
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let give_up = self.sink.config.retry.give_up.0;
        if give_up.is_some_and(|after| since.elapsed() >= after)
            && self.give_up(inlet, &error).await?
        {
            return Ok(());
        }
        let wait = self.backoff.failed();
        self.failing.raise(
            Trouble::Retrying,
            format_args!("{error}; retrying in {} ms", wait.as_millis()),
        );
        let mut stop = self.context.stop.clone();
        tokio::select! {
            () = stop.stopped() => {}
            () = tokio::time::sleep(wait) => {}
        }
        Ok(())
    }

    /// Sends what the next checkpoint closes out by the port for rejects; false if nothing waits. What is committed is left out, if
    /// that can be asked; if not, a record that is in Kafka may be rejected, too. It is told, where a record in neither
    /// would be lost.
    async fn give_up(&mut self, inlet: &mut Inlet, error: &Error) -> Result<bool, Failure> {
        let text = format!("Kafka did not take it for too long (`retry.give_up`): {error}");
        match self.open(inlet) {
            Ok(_) => {}
            Err(End::Trouble(_) | End::Anew) => inlet.resume(self.settled)?,
            Err(End::Stopped) => return Ok(true),
            Err(End::Failure(failure)) => return Err(failure),
        }
        // What comes later has not waited, and Kafka may be there by then.
        let Ok(next) = tokio::time::timeout(Duration::ZERO, inlet.next()).await else {
            return Ok(false);
        };
        let mut next = next?;
        if next.is_some() {
            self.context.reporter.error("give-up", &text);
        }
        while let Some(item) = next {
            match item {
                Item::Batch(batch, _) => {
                    let records = millstream_wire::record::records(&batch);
                    let records = records.filter_map(|(range, _)| batch.body.get(range));
                    inlet.reject(&batch, records, &text).await;
                }
                Item::Checkpoint(mut checkpoint) => {
                    let position = checkpoint.kept().await?;
                    if let Some(position) = position {
                        self.given_up.store(position)?;
                    }
                    inlet.settle(checkpoint).await?;
                    self.settled = self.settled.max(position);
                    self.unfit.clear();
                    self.verdicts.join();
                    return Ok(true);
                }
            }
            next = inlet.next().await?;
        }
        Ok(false)
    }

    /// A session that has the position, and the inlet behind it.
    fn open(&mut self, inlet: &mut Inlet) -> Result<Session, End> {
        let mut session = Session::begin(self)?;
        if let Some(position) = session.find(self)? {
            // It wins over the channel's cursor. It does not know what was given up.
            self.settled = Some(position).max(self.given_up.position());
            session.commit(position, self)?;
        }
        inlet.resume(self.settled)?;
        Ok(session)
    }

    /// Hears who has the position: this process, or the one that had it when this one last looked. Else a successor has it.
    pub(super) fn look(&mut self, found: Option<&Committed>) -> Result<(), Failure> {
        let owner = found.map(|found| found.owner);
        let known = owner.is_none_or(|owner| owner == self.owner);
        if !known && self.seen.is_some_and(|seen| seen != owner) {
            let text = "another process has taken over this sink's channel (a copy of this data_dir?); this one writes \
                        no more, so that nothing comes twice";
            return Err(Failure {
                again: Again::Never,
                ..Failure::us(text)
            });
        }
        self.seen = Some(owner);
        Ok(())
    }

    /// Whether it has looked who has the position.
    pub(super) fn has_looked(&self) -> bool {
        self.seen.is_some()
    }

    async fn session(&mut self, inlet: &mut Inlet) -> Result<(), End> {
        let mut session = self.open(inlet)?;
        if !self.owing {
            self.failing.clear();
        }
        let ended = self.write(&mut session, inlet).await;
        if matches!(ended, Ok(()) | Err(End::Stopped)) {
            session.leave();
        }
        ended
    }

    async fn write(&mut self, session: &mut Session, inlet: &mut Inlet) -> Result<(), End> {
        while let Some(item) = inlet.next().await? {
            match item {
                Item::Batch(batch, position) => {
                    self.owing = true;
                    session.take(batch, position, self)?;
                    // A broker does not wait for a transaction of as many requests as there are records.
                    if self.verdicts.is_alone()
                        && let Some(checkpoint) = inlet.checkpoint_now()
                    {
                        self.checkpoint(session, inlet, checkpoint).await?;
                    }
                }
                Item::Checkpoint(checkpoint) => self.checkpoint(session, inlet, checkpoint).await?,
            }
        }
        Ok(())
    }

    async fn checkpoint(
        &mut self,
        session: &mut Session,
        inlet: &mut Inlet,
        mut checkpoint: Checkpoint,
    ) -> Result<(), End> {
        let position = session.reach(&mut checkpoint, self, inlet).await?;
        if let Some(position) = position {
            session.commit(position, self)?;
        }
        inlet.settle(checkpoint).await?;
        self.settled = self.settled.max(position);
        self.since = None;
        self.owing = false;
        self.failing.clear();
        self.backoff.reset();
        self.unfit.clear();
        if position >= self.suspected && self.verdicts.join() {
            return Err(End::Anew);
        }
        Ok(())
    }

    pub(super) fn patience(&self) -> Duration {
        self.sink.config.retry.timeout.as_duration()
    }

    pub(super) fn committed(&self, position: Position) -> Committed {
        Committed {
            channel: self.channel,
            position,
            owner: self.owner,
        }
    }
}
