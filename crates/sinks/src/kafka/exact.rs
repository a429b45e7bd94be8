//! Delivers records from a disk channel in transactions. Each transaction also commits the position up to which records are written.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! ```text
//! session: check the owner of the position -> init (aborts a predecessor's open transaction) -> read the position, check again
//!          -> claim the position -> resume the inlet there
//!   batch: begin a transaction if none is open -> send
//!   checkpoint: wait until nothing is in flight -> reject the refused records, and wait until the rejects are kept
//!          -> add the position to the transaction -> commit -> settle the checkpoint
//! ```
//! A frame that does not fit one transaction is divided (see `timeout` and `progress`): a transaction then also commits how much of the
//! frame it contains, and the next session leaves this part out.
//!
//! Any failure ends the session. `init` of the next session aborts the open transaction. The next session leaves out the records
//! that brokers refuse permanently, and rejects them at their checkpoint.
//!
//! The committed position shows whether a commit has succeeded, so the sink never guesses the outcome of a commit. A position is
//! committed together with its owner, a random number of the process. To claim a position, a session commits the position that it has
//! found, with this process as the owner. Kafka fences a process, that is, refuses its transactions, if a transaction has timed out or
//! if a successor has called `init`. The committed owner shows which of the two has happened. If another owner is committed, a successor
//! has started, and this process stops permanently. Otherwise only the transaction has timed out, and this process continues.
//!
//! The owner is checked before each `init` except the first. Without this check, a process that resumes after a suspension could fence
//! its successor: the resumed process would see only a connection timeout, and would call `init`. The owner is checked again after each
//! `init`, because a successor may have started in between. That successor is fenced once, finds that no other process has claimed the
//! position, and continues.

use std::time::Duration;

use millstream_kafka::{Error, Kind};
use millstream_pipeline::{
    failure::Failure,
    inlet::{Checkpoint, Inlet, Item},
    node::SinkContext,
};
use millstream_record::Position;
use millstream_sys::random;

use super::{
    carried::Carried,
    end::End,
    given_up::GivenUp,
    ownership::Ownership,
    progress::{Changed, Progress},
    session::Session,
    sink::Kafka,
};
use crate::sending::Outage;

/// The sink, with a disk channel in front of it.
struct Exact<'a> {
    carried: Carried<'a>,
    given_up: GivenUp,
    /// The position up to which everything is settled, as far as this process knows.
    settled: Option<Position>,
    outage: Outage,
    /// Whether the sink has taken a batch whose transaction is not committed yet.
    owing: bool,
}

/// Writes until the inlet ends.
pub(super) async fn run(
    sink: &Kafka,
    inlet: &mut Inlet,
    context: SinkContext,
    channel: u128,
) -> Result<(), Failure> {
    let owner = random::bytes().map_err(|error| {
        Failure::us(format!(
            "no random number for the position's owner: {error}"
        ))
    })?;
    let given_up = GivenUp::open(&context.directory, channel)?;
    let mut exact = Exact {
        // A predecessor may have been killed after it stored the given-up position and before it moved the cursor.
        settled: inlet.settled().max(given_up.position()),
        given_up,
        outage: Outage::new(&sink.config.retry, &context, true, "kafka"),
        carried: Carried::new(
            sink,
            context,
            Ownership::new(channel, u64::from_ne_bytes(owner)),
        ),
        owing: false,
    };
    loop {
        let error = match exact.session(inlet).await {
            Ok(()) | Err(End::Stopped) => return Ok(()),
            Err(End::Failure(failure)) => return Err(failure),
            Err(End::Learned) => None,
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
    /// Handles the end of a failed session: backs off, or gives up records when `retry.give_up` is over.
    async fn recover(&mut self, error: Error, inlet: &mut Inlet) -> Result<(), Failure> {
        if error.kind == Kind::Settings {
            // Perhaps only the grown timeout of transactions is larger than brokers allow.
            if self.carried.timeout.refused() {
                return Ok(());
            }
            return Err(Failure::config(format!("Kafka: {error}")));
        }
        if self.outage.is_overdue() && self.give_up(inlet, &error).await? {
            return Ok(());
        }
        // The result is ignored: the caller checks for a stop.
        let _ = self.outage.pause(&error, Duration::ZERO).await;
        Ok(())
    }

    /// Rejects all records up to the next checkpoint; returns `false` if there are none. If the position can be read from Kafka, skips
    /// the records that are committed, also the first ones of a divided frame. Otherwise it may reject a record that Kafka already has: a duplicate is better than a loss.
    async fn give_up(&mut self, inlet: &mut Inlet, error: &Error) -> Result<bool, Failure> {
        let text = format!("Kafka did not accept it for too long (`retry.give_up`): {error}");
        let mut progress = match self.begin(inlet) {
            Ok(session) => session.progress,
            Err(End::Trouble(_) | End::Learned) => {
                inlet.resume(self.settled)?;
                Progress::default()
            }
            Err(End::Stopped) => return Ok(true),
            Err(End::Failure(failure)) => return Err(failure),
        };
        // Gives up only if the channel keeps a record that is not settled. A record that arrives later has not waited yet, and Kafka may
        // accept it. The channel's bounds show whether it keeps an unsettled record, even while a processor still works on the record.
        // After a kill, the channel's position may have a newer epoch although no record is new; `seq` is then the same.
        let done = self.settled.max(inlet.settled());
        let is_new =
            |kept: Position| Some(kept) > done && done.is_none_or(|done| done.seq != kept.seq);
        if !inlet.bounds().is_some_and(|bounds| is_new(bounds.kept)) {
            return Ok(false);
        }
        let mut is_reported = false;
        while let Some(item) = inlet.next().await? {
            match item {
                Item::Batch(batch, position) => {
                    let known = position.map(|position| progress.skip(position, &batch.body));
                    let Ok(known) = known.transpose() else {
                        // The next session writes the frame, or the next attempt rejects all of it.
                        let _ = self.carried.write_again(Changed);
                        return Ok(true);
                    };
                    progress.pass(&batch.body);
                    if known == Some(batch.body.len()) {
                        continue;
                    }
                    if !std::mem::replace(&mut is_reported, true) {
                        self.carried.context.reporter.error("give-up", &text);
                    }
                    let records = millstream_wire::record::records(&batch);
                    let records =
                        records.filter(|(range, _)| known.is_none_or(|known| range.start >= known));
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
                    self.carried.settled(position);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Begins a session: claims the position and resumes the inlet there.
    fn begin(&mut self, inlet: &mut Inlet) -> Result<Session, End> {
        let mut session = Session::begin(&self.carried)?;
        if let Some(position) = session.find(&mut self.carried)? {
            // The position in Kafka takes precedence over the channel's cursor. The position in Kafka does not cover records that were
            // given up, so the given-up position can be newer.
            self.settled = Some(position).max(self.given_up.position());
            session.commit(position, &mut self.carried)?;
        }
        inlet.resume(self.settled)?;
        session.begins_after(self.settled);
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
        if session.has_divided {
            self.outage.succeeded();
        }
        if matches!(ended, Err(End::Trouble(_))) && session.has_timed_out(&self.carried) {
            self.allow_more_time();
        }
        ended
    }

    /// Gives the next transactions more time, and divides frames if necessary. The records of the
    /// last transaction are sent again, and take as long as before.
    fn allow_more_time(&mut self) {
        let timeout = &mut self.carried.timeout;
        let last = timeout.current.as_secs_f64();
        timeout.expired();
        let text = format_args!(
            "a transaction did not end within {last:.0} s; the next one may take {:.0} s, and a frame of the channel that does not \
             fit it is written in several transactions",
            timeout.current.as_secs_f64()
        );
        self.carried.context.reporter.warn("transaction", text);
    }

    async fn write(&mut self, session: &mut Session, inlet: &mut Inlet) -> Result<(), End> {
        while let Some(item) = inlet.next().await? {
            match item {
                Item::Batch(batch, position) => {
                    self.owing = true;
                    session
                        .batch(batch, position, &mut self.carried, inlet)
                        .await?;
                    // While records are sent in separate batches, sending is slow, and a
                    // transaction that lasted until the next
                    // regular checkpoint could time out at the broker. So a checkpoint is made after each batch of the channel.
                    if self.carried.has_suspects()
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
        carried.settled(position);
        Ok(())
    }
}
