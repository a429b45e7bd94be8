//! Follows the journal: sends the entries that the child writes, stores their cursors, and restarts the child when it ends.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep -> read back -> process -> encode -> write -> settle`

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use millstream_pipeline::{
    condition::Trouble, failure::Failure, meters::Meter, node::SourceContext, reject,
};
use millstream_record::{Batch, Encoding, FileId, FileOrigin, Origin, Tag, Time, Values};
use tokio::time::{Instant, sleep_until};

use super::{
    Config,
    child::{self, Journalctl, Piece, program},
    cursors::{Cursors, Place},
};
use crate::{flight::Flight, tagging::Tagging};

/// The first and the longest back-off before the child is restarted.
const RESTART_FIRST: Duration = Duration::from_millis(500);
const RESTART_MAX: Duration = Duration::from_secs(60);
/// After a failure, a child that runs for this long counts as working, even if the journal has no new entries.
const PROVEN: Duration = Duration::from_secs(5);
/// With a memory channel: the delay between the settling of entries and the write of their cursor.
const STORE_WAIT: Duration = Duration::from_secs(1);

/// The reason why reading from the child ended.
enum Ended {
    /// The source stops, or with `--once` the whole journal was read.
    Stop,
    /// The child must be restarted immediately: a batch was dropped, or reading must continue after an entry that was rejected.
    Again,
    /// The child ended. Holds the reason.
    Died(String),
}

/// The source while it runs.
pub(super) struct Follower {
    config: Config,
    context: SourceContext,
    durable: bool,
    /// The stored cursors. `None` while a blocking task writes them.
    cursors: Option<Cursors>,
    file: FileId,
    tag: Tag,
    values: Arc<Values>,
    flight: Flight<u64>,
    /// The number of entries sent so far.
    count: u64,
    /// The cursor of the last entry that was sent.
    cursor: String,
    /// With a memory channel: the places (counts and cursors) at which the batches in flight end.
    unsettled: std::collections::VecDeque<Place>,
    store_at: Option<Instant>,
    restarts: Meter,
}

impl Follower {
    /// Loads the cursors that earlier runs left.
    pub(super) fn new(
        config: Config,
        tag: &Tagging,
        context: SourceContext,
    ) -> Result<Self, Failure> {
        let origins = context.outlet.file_origins();
        let durable = origins.is_some();
        let mut cursors = match Cursors::load(&context.directory)? {
            Some(mut cursors) => {
                let id = cursors.file_id();
                if let Some(origins) = origins {
                    let known = origins.into_iter().find(|(file, _)| *file == id);
                    if !cursors.resume(known.map(|(_, count)| count))? {
                        context.reporter.error(
                            "cursors",
                            "the journal cursor of the last stored entry is not known: some entries may be sent twice",
                        );
                    }
                }
                cursors
            }
            None => {
                let newest = match config.begins_at_end() {
                    true => child::newest(&config).map_err(Failure::peer)?,
                    false => None,
                };
                Cursors::begin(&context.directory, newest.unwrap_or_default())?
            }
        };
        cursors.replace().map_err(|error| {
            let directory = context.directory.display();
            Failure::disk(format!(
                "cannot write the journal cursor to {directory}: {error}"
            ))
        })?;
        let last = cursors.last();
        let mut values = Values::new();
        values.set("host", &*context.host);
        Ok(Self {
            tag: tag.tag(&context.name, None, &values),
            file: cursors.file_id(),
            cursors: Some(cursors),
            values: Arc::new(values),
            flight: Flight::new(last.count),
            count: last.count,
            cursor: last.cursor,
            unsettled: std::collections::VecDeque::new(),
            store_at: None,
            restarts: context.meters.counter("restarts"),
            durable,
            config,
            context,
        })
    }

    /// Runs until the source stops or, with `--once`, until the whole journal was read.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        let mut wait = RESTART_FIRST;
        let failing = self.context.reporter.condition("journalctl");
        while !self.context.stop.is_stopped() {
            let before = self.count;
            let pool = self.context.pool.clone();
            let ended = match child::start(&self.config, &self.cursor, self.context.once, pool) {
                Ok(child) => {
                    let mut follow = std::pin::pin!(self.follow(child));
                    tokio::select! {
                        biased;
                        ended = &mut follow => ended?,
                        () = tokio::time::sleep(PROVEN) => {
                            failing.clear();
                            follow.await?
                        }
                    }
                }
                Err(error) => Ended::Died(format!("it cannot be started: {error}")),
            };
            if self.count > before {
                wait = RESTART_FIRST;
                failing.clear();
            }
            match ended {
                Ended::Stop => break,
                Ended::Again => {}
                Ended::Died(why) if self.context.once => {
                    let text = format!("{}: {why}", program(&self.config));
                    return Err(Failure::peer(text).never_again());
                }
                Ended::Died(why) => {
                    let text = format_args!(
                        "{} has ended: {why}; restarting it in {wait:?}",
                        program(&self.config)
                    );
                    failing.raise(Trouble::Retrying, text);
                    self.restarts.add(1);
                    let mut stop = self.context.stop.clone();
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = stop.stopped() => {}
                    }
                    wait = (wait * 2).min(RESTART_MAX);
                }
            }
        }
        // If a batch is dropped now, the next start reads its entries again.
        let _ = self.flight.land().await;
        self.store().await
    }

    /// Sends the entries that a child writes.
    async fn follow(&mut self, mut child: Journalctl) -> Result<Ended, Failure> {
        let mut stop = self.context.stop.clone();
        loop {
            if self.flight.is_full() {
                self.flight.answered().await;
            }
            match self.flight.collect() {
                Ok(true) => self.note_settled(),
                Ok(false) => {}
                Err(_) => return self.go_back().await,
            }
            let piece = tokio::select! {
                biased;
                () = stop.stopped() => return Ok(Ended::Stop),
                () = self.flight.answered() => continue,
                () = at(self.store_at) => {
                    self.store().await?;
                    continue;
                }
                piece = child.pieces.recv() => piece,
            };
            match piece {
                Some(Piece::Entries {
                    body,
                    count,
                    cursor,
                }) => self.send(body, count, cursor).await?,
                Some(Piece::Rejected {
                    bytes,
                    cursor,
                    reason,
                }) => {
                    if self.reject(&bytes, &reason).await {
                        self.send(Vec::new(), 1, cursor).await?;
                    }
                    return Ok(Ended::Again);
                }
                Some(Piece::Ended(Ok(()))) if self.context.once => return Ok(Ended::Stop),
                Some(Piece::Ended(Ok(()))) => {
                    return Ok(Ended::Died("without a reason".to_owned()));
                }
                Some(Piece::Ended(Err(why))) => return Ok(Ended::Died(why)),
                None => {
                    return Ok(Ended::Died(
                        "the thread that reads its output has ended".to_owned(),
                    ));
                }
            }
        }
    }

    fn batch(&self, body: Bytes, count: u32, next: u64) -> Batch {
        Batch {
            tag: self.tag.clone(),
            plain: true,
            encoding: Encoding::Packed,
            body,
            count,
            received: Time::now(),
            values: self.values.clone(),
            origins: vec![Origin::File(FileOrigin {
                file: self.file,
                begin: self.count,
                next,
            })],
        }
    }

    /// Sends `count` entries. `cursor` is the cursor of the last one. If `body` is empty, no record is sent for these entries,
    /// and reading continues after them.
    async fn send(&mut self, body: Vec<u8>, count: u32, cursor: String) -> Result<(), Failure> {
        let next = self.count + u64::from(count);
        let place = Place {
            count: next,
            cursor: cursor.clone(),
        };
        if self.durable {
            // The place must be durable before the channel keeps the entries.
            self.write(place).await?;
        } else {
            self.unsettled.push_back(place);
        }
        let records = if body.is_empty() { 0 } else { count };
        let batch = self.batch(body.into(), records, next);
        let awaited = self.flight.is_half_full() || self.context.once;
        let receipt = self.context.outlet.send(batch, awaited).await;
        self.flight.push(receipt, next);
        (self.count, self.cursor) = (next, cursor);
        Ok(())
    }

    async fn reject(&self, bytes: &[u8], reason: &str) -> bool {
        let from = self.batch(Bytes::new(), 0, self.count);
        let rejected = reject::batch(&self.context.name, &from, [bytes], reason);
        self.context
            .rejects
            .send(rejected, true)
            .await
            .await
            .is_ok()
    }

    fn note_settled(&mut self) {
        let settled = self.flight.settled();
        if let (true, Some(cursors)) = (self.durable, &mut self.cursors) {
            cursors.settled(settled);
        } else {
            self.store_at.get_or_insert(Instant::now() + STORE_WAIT);
        }
    }

    /// Continues after the last entry that the channel has kept or settled, because a batch was dropped.
    async fn go_back(&mut self) -> Result<Ended, Failure> {
        let _ = self.flight.land().await;
        self.store().await?;
        let mut kept = self.flight.settled();
        if let Some(origins) = self.context.outlet.file_origins() {
            let known = origins.into_iter().find(|(file, _)| *file == self.file);
            kept = known.map_or(kept, |(_, count)| count.max(kept));
        }
        if let Some(cursors) = &mut self.cursors {
            cursors.go_back(kept);
            let last = cursors.last();
            (self.count, self.cursor) = (last.count, last.cursor);
        }
        self.unsettled.clear();
        self.flight = Flight::new(self.count);
        let mut stop = self.context.stop.clone();
        tokio::select! {
            () = tokio::time::sleep(RESTART_FIRST) => {}
            () = stop.stopped() => {}
        }
        Ok(Ended::Again)
    }

    /// Stores the place up to which everything is settled. Does nothing with a durable channel.
    async fn store(&mut self) -> Result<(), Failure> {
        self.store_at = None;
        let settled = self.flight.settled();
        let mut last = None;
        while self
            .unsettled
            .front()
            .is_some_and(|place| place.count <= settled)
        {
            last = self.unsettled.pop_front();
        }
        if let Some(place) = last {
            self.write(place).await?;
            if let Some(cursors) = &mut self.cursors {
                cursors.settled(settled);
            }
        }
        Ok(())
    }

    async fn write(&mut self, place: Place) -> Result<(), Failure> {
        let Some(mut cursors) = self.cursors.take() else {
            return Err(Failure::us("the journal cursors are missing"));
        };
        let written = tokio::task::spawn_blocking(move || {
            let outcome = cursors.add(place);
            (cursors, outcome)
        });
        let (cursors, outcome) = written
            .await
            .map_err(|error| Failure::us(format!("a journal cursor was not written: {error}")))?;
        self.cursors = Some(cursors);
        outcome.map_err(|error| {
            let directory = self.context.directory.display();
            Failure::disk(format!(
                "cannot write the journal cursor to {directory}: {error}"
            ))
        })
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
