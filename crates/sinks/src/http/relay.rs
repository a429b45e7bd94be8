//! From the inlet to the server: take, make requests, keep some under way, settle in order.
//!
//! `read -> decode -> send -> keep -> [take] -> process -> [encode] -> write -> [settle]`
//!
//! One task a lane; each request under way is a task of its own. It takes a batch when every request before it is under way,
//! so that back-pressure begins when `in_flight` are. Checkpoints wait in the ledger while batches go on. It promises that a checkpoint is
//! settled only when every request before it is through, and what the server refused is kept among the rejected.

use std::{collections::VecDeque, ops::Range, rc::Rc, time::Duration};

use millstream_pipeline::{
    condition::Trouble,
    failure::Failure,
    inlet::{Checkpoint, Inlet, Item},
    meters::Meter,
    node::SinkContext,
};
use millstream_record::{Batch, Position, Time};
use millstream_wire::template::Depends;
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval},
};

use super::{
    Http,
    delivery::{Finished, Sender, deliver},
    encode::{Encoder, Output},
    gather::{Gathered, Gathering},
    request::Request,
    target::Targets,
};
use crate::{ids::Ids, ledger::Ledger, parts::parts};

/// So much of a batch is encoded at once: what that takes beside stays bounded, however large a batch is.
const PART_BYTES_MAX: usize = 256 << 10;
/// How often it says how late it is.
const TICK: Duration = Duration::from_secs(1);
/// So many requests may be through behind one that is not.
const OPEN_REQUESTS_MAX: usize = 1 << 14;

/// One lane of the sink.
pub(super) struct Relay<'a> {
    sink: &'a Http,
    inlet: &'a mut Inlet,
    context: SinkContext,
    sender: Rc<Sender>,
    encoder: Encoder,
    targets: Targets,
    output: Output,
    gathering: Gathering,
    ledger: Ledger<Checkpoint>,
    ids: Ids,
    /// Whole requests that are not under way yet.
    waiting: VecDeque<Request>,
    under_way: JoinSet<Finished>,
    tick: Interval,
    behind: Meter,
    refused: Meter,
    ended: bool,
    /// The process wants to end, and the server does not take what is under way.
    left: bool,
}

/// What happened.
enum Next {
    Item(Option<Item>),
    /// Nothing more is ready: what is gathered leaves.
    Leave,
    Finished(Result<Finished, Failure>),
    Tick,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        sink: &'a Http,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> Result<Self, Failure> {
        let ids = Ids::new(inlet.channel_id()).map_err(|error| {
            let text = format!("the system gave no random numbers for ids: {error}");
            Failure::us(text)
        })?;
        let durable = inlet.channel_id().is_some();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            sender: Rc::new(sink.sender(&context, durable)),
            encoder: sink.encoder(),
            targets: sink.targets(),
            output: Output::default(),
            gathering: sink.gathering(),
            ledger: Ledger::new(),
            ids,
            waiting: VecDeque::new(),
            under_way: JoinSet::new(),
            tick,
            behind: context.meters.gauge("behind_seconds"),
            refused: context.meters.counter("records_refused"),
            ended: false,
            left: false,
            sink,
            inlet,
            context,
        })
    }

    /// Sends until the inlet has ended and everything is settled.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        self.inlet.resume(None)?;
        loop {
            self.settle().await?;
            self.deal();
            let through = self.gathering.is_empty() && self.ledger.is_empty();
            if self.left || self.ended && through {
                return Ok(());
            }
            match self.next().await? {
                Next::Item(Some(Item::Batch(batch, position))) => {
                    self.batch(batch, position).await?;
                }
                Next::Item(Some(Item::Checkpoint(checkpoint))) => {
                    self.ledger.checkpoint(checkpoint)
                }
                Next::Item(None) => self.ended = true,
                Next::Leave => self.leave(None),
                Next::Finished(finished) => self.finished(finished?).await,
                Next::Tick => self.tick(),
            }
        }
    }

    async fn next(&mut self) -> Result<Next, Failure> {
        let room = self.waiting.is_empty()
            && self.under_way.len() < self.sink.in_flight
            && self.ledger.open_chunks() < OPEN_REQUESTS_MAX;
        let gathered = !self.gathering.is_empty();
        Ok(tokio::select! {
            biased;
            Some(finished) = self.under_way.join_next() => Next::Finished(joined(finished)),
            _ = self.tick.tick(), if !self.ledger.is_empty() => Next::Tick,
            item = self.inlet.next(), if room && !self.ended => Next::Item(item?),
            () = self.gathering.due(), if gathered && (room || self.ended) => Next::Leave,
        })
    }

    /// Settles the checkpoints that wait for nothing more.
    async fn settle(&mut self) -> Result<(), Failure> {
        while let Some(checkpoint) = self.ledger.ready() {
            self.inlet.settle(checkpoint).await?;
        }
        if self.ledger.is_empty() {
            self.behind.set(0);
        }
        Ok(())
    }

    /// Sends what waits, as far as there is room.
    fn deal(&mut self) {
        while self.under_way.len() < self.sink.in_flight
            && let Some(request) = self.waiting.pop_front()
        {
            self.under_way
                .spawn_local(deliver(self.sender.clone(), request));
        }
    }

    async fn batch(&mut self, batch: Batch, position: Option<Position>) -> Result<(), Failure> {
        let exact = position.filter(|_| self.sink.idempotency_key);
        let (mut first, mut made) = (0, 0);
        for part in parts(batch, |bytes, _| bytes <= PART_BYTES_MAX) {
            let place = self.inlet.channel_id().zip(position);
            self.encoder.encode(&part, place, first, &mut self.output);
            first += part.count as usize;
            self.gather(&part, exact, &mut made);
            let rejects = std::mem::take(&mut self.output.rejects);
            for (range, reason) in rejects {
                self.reject(&part, &[range], &reason).await;
            }
            self.make_room().await?;
            if self.left {
                return Ok(());
            }
        }
        if exact.is_some() {
            // So that the requests of a frame are the same ones after a restart.
            self.leave_as(exact, &mut made);
            self.make_room().await?;
        }
        Ok(())
    }

    /// Waits until what is whole is under way.
    async fn make_room(&mut self) -> Result<(), Failure> {
        self.deal();
        while !self.waiting.is_empty() && !self.left {
            let Some(finished) = self.under_way.join_next().await else {
                return Ok(());
            };
            let finished = joined(finished)?;
            self.finished(finished).await;
            self.deal();
        }
        Ok(())
    }

    /// Adds what a part became to the requests of its targets.
    fn gather(&mut self, part: &Batch, exact: Option<Position>, made: &mut usize) {
        let (mut key, mut missing) = (Vec::new(), Vec::new());
        let each = self.targets.depends() > Depends::Batch;
        let mut whole = Vec::new();
        for (number, item) in self.output.items.iter().enumerate() {
            if each || number == 0 {
                key.clear();
                let event = item.mark.event(part);
                if let Err(why) = self.targets.render(part.into(), event, &mut key) {
                    missing.push((item.mark.start..item.mark.end, why.to_string()));
                    if each {
                        continue;
                    }
                    let others = self.output.items.iter().skip(1);
                    missing.extend(
                        others.map(|item| (item.mark.start..item.mark.end, why.to_string())),
                    );
                    break;
                }
            }
            let ledger = &mut self.ledger;
            self.gathering.add(
                &key,
                part,
                item,
                &self.output,
                || ledger.open(part.received),
                |gathered| whole.push(gathered),
            );
        }
        self.output.rejects.append(&mut missing);
        whole
            .into_iter()
            .for_each(|gathered| self.whole(gathered, exact, made));
    }

    /// All that is gathered leaves.
    fn leave(&mut self, exact: Option<Position>) {
        self.leave_as(exact, &mut 0);
    }

    fn leave_as(&mut self, exact: Option<Position>, made: &mut usize) {
        let mut whole = Vec::new();
        self.gathering.leave(&mut |gathered| whole.push(gathered));
        whole
            .into_iter()
            .for_each(|gathered| self.whole(gathered, exact, made));
    }

    /// A request is whole. `made`: how many there were of its frame.
    fn whole(&mut self, gathered: Gathered, exact: Option<Position>, made: &mut usize) {
        let durable = self.inlet.channel_id().is_some();
        let key = match (self.sink.idempotency_key, durable, exact) {
            (true, true, Some(position)) => {
                Some(self.ids.next(Some(position), *made, gathered.text()))
            }
            (true, false, _) => Some(self.ids.next(None, 0, &[])),
            _ => None,
        };
        *made += 1;
        let request = gathered.into_request(&self.sink.site, key);
        self.waiting.push_back(request);
    }

    /// A request is through: what the server refused is rejected.
    async fn finished(&mut self, finished: Finished) {
        let Finished {
            request,
            refused,
            hopeless,
            left,
        } = finished;
        if left {
            self.left = true;
            return;
        }
        for (items, why) in &refused {
            self.refused.add(items.len() as u64);
            let (count, url) = (items.len(), &self.sender.url);
            let name = &self.context.name;
            let text =
                format_args!("{url} refuses {count} records, they leave by {name}.rejected: {why}");
            match hopeless {
                true => self.sender.refused.raise(Trouble::Retrying, text),
                false => self.context.reporter.error("refused", text),
            }
            for (batch, records) in request.records(items) {
                match self.ledger.checkpoint_of(request.number) {
                    Some(checkpoint) => {
                        self.inlet
                            .reject_before(checkpoint, batch, records, why)
                            .await
                    }
                    None => self.inlet.reject(batch, records, why).await,
                }
            }
        }
        self.ledger.done(request.number);
    }

    async fn reject(&mut self, batch: &Batch, records: &[Range<usize>], reason: &str) {
        let records = records
            .iter()
            .filter_map(|record| batch.body.get(record.clone()));
        self.inlet.reject(batch, records, reason).await;
    }

    /// Says how late it is.
    fn tick(&mut self) {
        let oldest = self.ledger.oldest();
        let age = oldest.map_or(0, |oldest| Time::now().0.saturating_sub(oldest.0));
        self.behind
            .set(u64::try_from(age / 1_000_000_000).unwrap_or(0));
    }
}

fn joined(finished: Result<Finished, tokio::task::JoinError>) -> Result<Finished, Failure> {
    finished.map_err(|died| Failure::us(format!("a request panicked: {died}")))
}
