//! Behind a disk channel: transactions, each with the position that it reaches.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! session: check the owner of the position -> init (ends what a predecessor left open) -> read the position, check again
//!          -> claim it -> resume the inlet there
//!   batch: begin a transaction if none is open -> send
//!   checkpoint: wait until nothing is in flight -> reject what was refused, and wait until that is kept
//!          -> position into the transaction -> commit -> settle the checkpoint
//! any failure ends the session. The next one's init aborts its transaction and reads what is committed. Records that brokers
//! refuse permanently are left out from then on, and rejected with their checkpoint.
//! ```
//! The committed position says whether a commit has arrived, so no commit is ever guessed. A claim is a commit of the position that
//! was found, with this process as its owner. So a process that was fenced can tell whether a successor is there (it stops
//! permanently) or only the broker lost patience with it (it continues). It checks before each init but the first, whatever
//! failed: a zombie that wakes up may see only a connection that timed out, and its init would fence its successor. And it checks
//! after each init, because the successor may have come in between: that one is fenced once, finds that the zombie has not claimed,
//! and continues.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use millstream_kafka::{Error, Kind};
use millstream_pipeline::{
    failure::Failure,
    inlet::{Checkpoint, Inlet, Item},
    node::SinkContext,
};
use millstream_record::Position;

use super::{
    given_up::GivenUp,
    ownership::Ownership,
    session::{Carried, End, Session},
    sink::Kafka,
};
use crate::sending::Outage;

/// The sink behind a disk channel.
struct Exact<'a> {
    carried: Carried<'a>,
    given_up: GivenUp,
    /// Up to where everything is settled, as far as this process knows.
    settled: Option<Position>,
    outage: Outage,
    /// Whether a batch was taken and no transaction with it is committed.
    owing: bool,
}

/// Writes until the inlet ends.
pub(super) async fn run(
    sink: &Kafka,
    inlet: &mut Inlet,
    context: SinkContext,
    channel: u128,
) -> Result<(), Failure> {
    let owner = RandomState::new().hash_one(&*context.name);
    let given_up = GivenUp::open(&context.directory, channel)?;
    let mut exact = Exact {
        // A killed predecessor may have noted what it gave up without moving the cursor.
        settled: inlet.settled().max(given_up.position()),
        given_up,
        outage: Outage::new(&sink.config.retry, &context, true, "kafka"),
        carried: Carried::new(sink, context, Ownership::new(channel, owner)),
        owing: false,
    };
    loop {
        let error = match exact.session(inlet).await {
            Ok(()) | Err(End::Stopped) => return Ok(()),
            Err(End::Failure(failure)) => return Err(failure),
            Err(End::Anew) => None,
            Err(End::Trouble(error)) => Some(error),
        };
        if exact.carried.context.stop.is_stopped() {
            return Ok(());
        }
        if let Some(error) = error {
            exact.recover(error, inlet).await?;
        }
    }
}

impl Exact<'_> {
    /// After a session that failed: waits, or gives up what has waited too long.
    async fn recover(&mut self, error: Error, inlet: &mut Inlet) -> Result<(), Failure> {
        if error.kind == Kind::Settings {
            return Err(Failure::config(format!("Kafka: {error}")));
        }
        if self.outage.is_overdue() && self.give_up(inlet, &error).await? {
            return Ok(());
        }
        // The caller sees a stop.
        let _ = self.outage.pause(&error, Duration::ZERO).await;
        Ok(())
    }

    /// Rejects everything up to the next checkpoint; false if nothing waits. Leaves out what is committed, if Kafka can be asked for
    /// the position; otherwise a record that is in Kafka may be rejected, too: a duplicate is better than a loss.
    async fn give_up(&mut self, inlet: &mut Inlet, error: &Error) -> Result<bool, Failure> {
        let text = format!("Kafka did not accept it for too long (`retry.give_up`): {error}");
        match self.begin(inlet) {
            Ok(_) => {}
            Err(End::Trouble(_) | End::Anew) => inlet.resume(self.settled)?,
            Err(End::Stopped) => return Ok(true),
            Err(End::Failure(failure)) => return Err(failure),
        }
        // What comes later has not waited, and Kafka may be back by then.
        let Ok(next) = tokio::time::timeout(Duration::ZERO, inlet.next()).await else {
            return Ok(false);
        };
        let mut next = next?;
        if next.is_some() {
            self.carried.context.reporter.error("give-up", &text);
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
                    self.carried.unfit.clear();
                    self.carried.verdicts.join();
                    return Ok(true);
                }
            }
            next = inlet.next().await?;
        }
        Ok(false)
    }

    /// A session that has claimed the position, with the inlet resumed there.
    fn begin(&mut self, inlet: &mut Inlet) -> Result<Session, End> {
        let mut session = Session::begin(&self.carried)?;
        if let Some(position) = session.find(&mut self.carried)? {
            // It wins over the channel's cursor, but does not know what was given up.
            self.settled = Some(position).max(self.given_up.position());
            session.commit(position, &mut self.carried)?;
        }
        inlet.resume(self.settled)?;
        Ok(session)
    }

    async fn session(&mut self, inlet: &mut Inlet) -> Result<(), End> {
        let mut session = self.begin(inlet)?;
        if !self.owing {
            self.outage.clear();
        }
        let ended = self.write(&mut session, inlet).await;
        if matches!(ended, Ok(()) | Err(End::Stopped)) {
            session.abort();
        }
        ended
    }

    async fn write(&mut self, session: &mut Session, inlet: &mut Inlet) -> Result<(), End> {
        while let Some(item) = inlet.next().await? {
            match item {
                Item::Batch(batch, position) => {
                    self.owing = true;
                    session.batch(batch, position, &mut self.carried)?;
                    // A broker would time out a transaction of as many requests as there are records.
                    if self.carried.verdicts.is_alone()
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
        let carried = &mut self.carried;
        let position = session.reach(&mut checkpoint, carried, inlet).await?;
        if let Some(position) = position {
            session.commit(position, carried)?;
        }
        inlet.settle(checkpoint).await?;
        self.settled = self.settled.max(position);
        self.owing = false;
        self.outage.succeeded();
        carried.unfit.clear();
        if position >= carried.suspected && carried.verdicts.join() {
            return Err(End::Anew);
        }
        Ok(())
    }
}
