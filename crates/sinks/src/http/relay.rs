//! One lane (parallel task) of the sink: turns batches into requests, keeps some in flight, and settles checkpoints in order.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> [encode] -> write -> [settle]`
//!
//! Each request in flight has a separate task. A lane takes the next batch only when fewer than `in_flight` requests are in flight and
//! no complete request waits. A lane promises that it settles a checkpoint only when every request before the checkpoint is finished.
//! Records that the server refuses leave by the port `rejected`.

use std::{collections::VecDeque, rc::Rc, sync::Arc};

use millstream_pipeline::{
    condition::Trouble, failure::Failure, inlet::Inlet, meters::Meter, node::SinkContext,
};
use millstream_record::{Batch, Position};
use millstream_sys::checksum::crc32c;
use millstream_wire::template::Depends;
use tokio::task::{JoinError, JoinSet};

use super::{
    delivery::{Finished, Sender, deliver},
    encode::{Encoder, Output},
    gather::{Gathered, Gathering},
    request::Request,
    sink::Http,
    target::Targets,
};
use crate::sending::{Ids, Input, Lane, Part, PartNumbers, group, parts, records_max};

/// Bytes of a batch that are encoded at a time. This bounds the memory of encoding even for large batches.
const PART_BYTES_MAX: usize = 256 << 10;
/// Maximum number of tracked requests. The lane tracks the oldest unfinished request and all later requests, finished or not.
const REQUESTS_MAX: usize = 1 << 14;

/// One lane of the sink.
pub(super) struct Relay<'a> {
    sink: &'a Http,
    lane: Lane<'a>,
    sender: Rc<Sender>,
    encoder: Encoder,
    targets: Targets,
    output: Output,
    gathering: Gathering,
    ids: Ids,
    numbers: PartNumbers,
    /// The newest position, and the number of its records that were encoded. Processors can make several batches from one position.
    encoded: (Option<Position>, usize),
    /// With an `Idempotency-Key` behind a durable channel: the last complete request of the current position. Its key depends on whether
    /// another request of the position follows.
    held: Option<(Position, Gathered)>,
    /// Complete requests that are not in flight yet.
    waiting: VecDeque<Request>,
    in_flight: JoinSet<Finished>,
    refused: Meter,
    /// The process stopped before all requests in flight were finished.
    stopped: bool,
}

/// An event of the lane.
enum Event {
    Input(Input),
    /// `batch.linger` is over for the gathered items.
    Due,
    Finished(Result<Finished, Failure>),
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        sink: &'a Http,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> Result<Self, Failure> {
        let lane = Lane::new(inlet, context).reporting(&sink.lateness);
        Ok(Self {
            sender: Rc::new(sink.sender(&lane.context, lane.is_durable())),
            encoder: sink.encoder(),
            targets: sink.targets(),
            output: Output::default(),
            gathering: sink.gathering(),
            ids: lane.ids()?,
            numbers: PartNumbers::default(),
            encoded: (None, 0),
            held: None,
            waiting: VecDeque::new(),
            in_flight: JoinSet::new(),
            refused: lane.context.meters.counter("records_refused"),
            stopped: false,
            sink,
            lane,
        })
    }

    /// Sends until the inlet has ended and everything is settled, or until a request ends unfinished because the process stops.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        self.lane.start()?;
        loop {
            self.lane.settle().await?;
            self.send_waiting();
            let everything_sent = self.gathering.is_empty() && self.lane.is_settled();
            if self.stopped || self.lane.has_ended() && everything_sent {
                return Ok(());
            }
            match self.next().await? {
                Event::Input(Input::Batch(batch, position)) => self.batch(batch, position).await?,
                // Without this flush, a target with few records would delay the checkpoint until its request is full, because the lane
                // ignores `linger` while there is input.
                Event::Input(Input::Checkpoint) if self.lane.is_durable() => {
                    self.flush();
                    self.end_position();
                }
                Event::Input(Input::End) => self.end_position(),
                Event::Input(Input::Checkpoint | Input::Tick) => {}
                Event::Due => self.flush(),
                Event::Finished(finished) => self.finished(finished?).await,
            }
        }
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        let can_send = self.waiting.is_empty() && self.in_flight.len() < self.sink.in_flight;
        let has_room = can_send && self.lane.in_flight() < REQUESTS_MAX;
        // `flushes` does not depend on `has_room`: the oldest unfinished request may still be incomplete. It must then be flushed before
        // another request can begin.
        let flushes = !self.gathering.is_empty() && (can_send || self.lane.has_ended());
        // The requests of a position are complete at its end, so that they are the same after a restart.
        let flushes = flushes && (self.frame().is_none() || self.lane.in_flight() >= REQUESTS_MAX);
        Ok(tokio::select! {
            biased;
            Some(finished) = self.in_flight.join_next() => Event::Finished(joined(finished)),
            input = self.lane.next(has_room) => Event::Input(input?),
            () = self.gathering.due(), if flushes => Event::Due,
        })
    }

    /// Sends waiting requests while fewer than `in_flight` are in flight.
    fn send_waiting(&mut self) {
        while self.in_flight.len() < self.sink.in_flight
            && let Some(request) = self.waiting.pop_front()
        {
            self.in_flight
                .spawn_local(deliver(self.sender.clone(), request));
        }
    }

    async fn batch(&mut self, batch: Batch, position: Option<Position>) -> Result<(), Failure> {
        if position != self.encoded.0 {
            self.end_position();
            self.encoded = (position, 0);
            if let Some(position) = position {
                self.numbers.begin(position, batch.received);
            }
        }
        let records_max = records_max(&batch);
        let fits = |bytes, records| bytes <= PART_BYTES_MAX && records <= records_max;
        for part in parts(batch, fits) {
            let place = self.lane.channel_id().zip(position);
            let first = self.encoded.1;
            self.encoder.encode(&part, place, first, &mut self.output);
            self.encoded.1 += part.count as usize;
            self.gather(&part);
            let refused = std::mem::take(&mut self.output.rejects);
            self.lane.reject_refused(None, &part, &refused).await;
            self.wait_until_sent().await?;
            if self.stopped {
                return Ok(());
            }
        }
        if self.frame().is_some() && !self.lane.is_within() {
            self.end_position();
            self.wait_until_sent().await?;
        }
        Ok(())
    }

    /// Waits until every complete request is in flight.
    async fn wait_until_sent(&mut self) -> Result<(), Failure> {
        self.send_waiting();
        while !self.waiting.is_empty() && !self.stopped {
            let Some(finished) = self.in_flight.join_next().await else {
                return Ok(());
            };
            self.finished(joined(finished)?).await;
            self.send_waiting();
        }
        Ok(())
    }

    /// Adds the items of an encoded part to the requests of their targets.
    fn gather(&mut self, part: &Batch) {
        let (mut key, mut refused) = (Vec::new(), Vec::new());
        let each = self.targets.depends() > Depends::Batch;
        let mut complete = Vec::new();
        for (number, item) in self.output.items.iter().enumerate() {
            if each || number == 0 {
                key.clear();
                let timed = item.mark.event(part);
                if let Err(why) = self.targets.render(part.into(), timed, &mut key) {
                    let why: Arc<str> = why.to_string().into();
                    refused.push((item.mark.start..item.mark.end, why.clone()));
                    if each {
                        continue;
                    }
                    let others = self.output.items.iter().skip(1);
                    refused
                        .extend(others.map(|item| (item.mark.start..item.mark.end, why.clone())));
                    break;
                }
            }
            let lane = &mut self.lane;
            self.gathering.add(
                &key,
                part,
                item,
                &self.output,
                || lane.begin(part.received),
                |gathered| complete.push(gathered),
            );
        }
        self.output.rejects.append(&mut refused);
        for gathered in complete {
            self.make_request(gathered);
        }
    }

    /// Turns all gathered items into requests.
    fn flush(&mut self) {
        let mut complete = Vec::new();
        self.gathering
            .leave(&mut |gathered| complete.push(gathered));
        for gathered in complete {
            self.make_request(gathered);
        }
    }

    fn make_request(&mut self, gathered: Gathered) {
        if let Some(position) = self.frame() {
            if let Some((position, before)) = self.held.replace((position, gathered)) {
                self.make_part(position, before, false);
            }
            return;
        }
        let has_key = self.sink.idempotency_key && !self.lane.is_durable();
        let key = has_key.then(|| self.ids.next(Part::default()));
        self.wait(gathered, key);
    }

    /// With an `Idempotency-Key` behind a durable channel, a request must be the same after a restart, so it holds records of one frame
    /// (one batch of the channel) only. Returns the position of this frame.
    fn frame(&self) -> Option<Position> {
        self.encoded.0.filter(|_| self.sink.idempotency_key)
    }

    /// Makes the last requests of the current position, of which no more records will come.
    fn end_position(&mut self) {
        if self.frame().is_some() {
            self.flush();
        }
        if let Some((position, last)) = self.held.take() {
            self.make_part(position, last, true);
        }
    }

    fn make_part(&mut self, position: Position, gathered: Gathered, is_last: bool) {
        let checksum = || crc32c(gathered.text());
        let part = self.numbers.next(position, 0, is_last, checksum);
        let key = self.ids.next(part);
        self.wait(gathered, Some(key));
    }

    fn wait(&mut self, gathered: Gathered, key: Option<String>) {
        let request = gathered.into_request(&self.sink.site, key);
        self.waiting.push_back(request);
    }

    /// Rejects the records of a request that the server refused.
    async fn finished(&mut self, finished: Finished) {
        let Finished {
            request,
            refused,
            hopeless,
            stopped,
        } = finished;
        if stopped {
            self.stopped = true;
            return;
        }
        let each = refused
            .iter()
            .flat_map(|(items, why)| items.iter().map(|item| (&**why, *item)));
        for (why, items) in &group(each) {
            let why = &*request.masked(items, why.to_string());
            self.refused.add(items.len() as u64);
            let (count, url) = (items.len(), &self.sender.url);
            let name = &self.lane.context.name;
            let text = format_args!(
                "{url} refuses {count} records, which leave by {name}.rejected: {why}"
            );
            match hopeless {
                true => self.sender.refused.raise(Trouble::Retrying, text),
                false => self.lane.context.reporter.error("refused", text),
            }
            for (batch, records) in request.records(items) {
                let number = Some(request.number);
                self.lane.reject(number, batch, records, why).await;
            }
        }
        self.lane.finish(request.number);
    }
}

fn joined(finished: Result<Finished, JoinError>) -> Result<Finished, Failure> {
    finished.map_err(|panic| Failure::us(format!("a request panicked: {panic}")))
}
