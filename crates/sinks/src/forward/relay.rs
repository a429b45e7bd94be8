//! From the inlet to the servers: take, encode, deal out, and settle in order.
//!
//! `read -> decode -> send -> keep -> [take] -> process -> [encode] -> write -> [settle]`
//!
//! One task a lane. It takes a batch when every chunk before it has a server, so that back-pressure begins when the
//! servers' windows are full or nobody is there. Checkpoints wait in the ledger while batches go on. It promises that a checkpoint is
//! settled only when every chunk before it is acked (or kept among the rejected). It leaves to the links: sockets.

use std::{rc::Rc, sync::Arc, time::Duration};

use millstream_pipeline::{
    failure::Failure,
    inlet::{Checkpoint, Inlet, Item},
    meters::Meter,
    node::SinkContext,
};
use millstream_record::{Batch, Encoding, Position, Time};
use millstream_sys::disk::HostDisk;
use millstream_wire::{
    format::Reject, forward::TAG_BYTES_MAX, msgpack::write_str, record::records,
};
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval},
};

use crate::{ids::Ids, ledger::Ledger};

use super::{
    Forward,
    chunk::{Chunk, Name},
    cluster::Cluster,
    encode::{Encoder, compact},
    flow::{Flow, Flows},
    gather::{Gathered, Gathering},
    hub::{Hub, LinkMeters},
    leases::Leases,
    options::Peer,
};

/// How often it looks at what waits too long, and how late it is.
const TICK: Duration = Duration::from_secs(1);

/// A piece of a batch that belongs to one flow becomes at most 2^16 chunks of 8 MiB: its chunks are numbered behind the flow.
const FLOW_PART_BITS: u32 = 16;

/// So many chunks may be done behind one that is not (a server in doubt that others have overtaken): what the ledger
/// remembers of each is small, but not nothing.
const OPEN_CHUNKS_MAX: usize = 1 << 16;

/// One lane of the sink.
pub(super) struct Relay<'a> {
    sink: &'a Forward,
    inlet: &'a mut Inlet,
    context: SinkContext,
    hub: Rc<Hub>,
    cluster: Cluster,
    /// The task that looks for servers; none where the options name them all.
    discovery: JoinSet<()>,
    ledger: Ledger<Checkpoint>,
    gathering: Gathering,
    encoder: Encoder,
    flows: Option<Flows>,
    ids: Ids,
    tick: Interval,
    given_up: Meter,
    /// The inlet has no more.
    ended: bool,
    stopped: bool,
}

/// What happened.
enum Next {
    /// Acks, lost connections, new connections.
    Changed,
    Item(Option<Item>),
    /// Nothing more is ready: what is gathered leaves.
    Leave,
    /// Leases became durable, a server has left, or something of it panicked.
    Cluster(Result<(), Failure>),
    Tick,
    Stopped,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        sink: &'a Forward,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> Result<Self, Failure> {
        let ids = Ids::new(inlet.channel_id()).map_err(|error| {
            Failure::us(format!(
                "the system gave no random numbers for ids: {error}"
            ))
        })?;
        let hub = Rc::new(Hub::new(&context.reporter));
        let leases = match inlet.channel_id() {
            Some(channel) if sink.keeps_leases() => {
                let disk = Arc::new(HostDisk);
                let directory = &context.directory;
                let leases = Leases::open(disk, directory, channel, &sink.leases_turn)?;
                if let damaged @ 1.. = leases.damaged_bytes() {
                    let place = directory.display();
                    context.reporter.error(
                        "damage",
                        format_args!(
                            "{place}/leases: {damaged} bytes are damaged; a chunk that was sent to a server before the stop \
                             and is not settled may go to another one and be stored by both"
                        ),
                    );
                }
                Some(leases)
            }
            _ => None,
        };
        let cluster = Cluster::new(
            hub.clone(),
            leases,
            sink.settings.clone(),
            LinkMeters::new(&context.meters),
            context.reporter.clone(),
            context.lane,
        );
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            encoder: sink.encoder(context.pool.clone()),
            flows: sink.flow.as_ref().map(Flows::new),
            gathering: Gathering::new(sink.gather),
            given_up: context.meters.counter("records_given_up"),
            sink,
            inlet,
            context,
            hub,
            cluster,
            discovery: JoinSet::new(),
            ledger: Ledger::new(),
            ids,
            tick,
            ended: false,
            stopped: false,
        })
    }

    /// Sends until the inlet has ended and everything is settled.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        self.inlet.resume(None)?;
        let discovery = self.sink.discovery.clone();
        self.cluster.set_servers(&discovery.servers);
        let watch = discovery.watch(self.hub.clone(), self.context.reporter.clone());
        self.discovery.spawn_local(watch);
        loop {
            self.settle().await?;
            if let Some(servers) = self.hub.servers.take() {
                self.cluster.set_servers(&servers);
            }
            self.cluster.deal();
            if self.is_finished() {
                return Ok(());
            }
            match self.next().await? {
                Next::Changed => {}
                Next::Item(Some(Item::Batch(batch, position))) => {
                    self.batch(batch, position).await?;
                }
                Next::Item(Some(Item::Checkpoint(checkpoint))) => {
                    self.ledger.checkpoint(checkpoint)
                }
                Next::Item(None) => self.ended = true,
                Next::Leave => self.leave()?,
                Next::Tick => self.tick().await,
                Next::Stopped => self.stopped = true,
                Next::Cluster(changed) => changed?,
            }
        }
    }

    async fn next(&mut self) -> Result<Next, Failure> {
        // While a chunk has no server, nothing more is taken: here back-pressure starts.
        let dealt = self.hub.pending.borrow().is_empty();
        let room = dealt && self.ledger.open_chunks() < OPEN_CHUNKS_MAX;
        Ok(tokio::select! {
            biased;
            () = self.hub.changed.notified() => Next::Changed,
            changed = self.cluster.changed() => Next::Cluster(changed),
            Some(Err(died)) = self.discovery.join_next() => {
                let text = format!("looking for servers panicked: {died}");
                Next::Cluster(Err(Failure::us(text)))
            }
            _ = self.tick.tick(), if !self.ledger.is_empty() => Next::Tick,
            item = self.inlet.next(), if room && !self.ended => Next::Item(item?),
            () = self.gathering.due(), if dealt && !self.gathering.is_empty() => Next::Leave,
            () = self.context.stop.stopped(), if !self.stopped => Next::Stopped,
        })
    }

    /// Whether there is nothing left to do, or nothing that can be done now: what a durable channel holds is sent after
    /// the next start if nobody takes it when the process wants to end.
    fn is_finished(&self) -> bool {
        let durable = self.inlet.channel_id().is_some();
        let alone = !self.cluster.is_up();
        self.ended && self.gathering.is_empty() && self.ledger.is_empty()
            || self.stopped && durable && alone
    }

    /// Takes in what the links report and settles the checkpoints that wait for nothing more.
    async fn settle(&mut self) -> Result<(), Failure> {
        for number in self.hub.done.take() {
            if self.hub.is_last(number) {
                self.ledger.done(number);
            }
        }
        while let Some(mut checkpoint) = self.ledger.ready() {
            let position = checkpoint.kept().await?;
            self.inlet.settle(checkpoint).await?;
            if let Some(position) = position {
                self.cluster.settled(position);
            }
        }
        if self.ledger.is_empty() {
            self.sink.behind(&self.context, Duration::ZERO);
        }
        Ok(())
    }

    async fn batch(&mut self, batch: Batch, position: Option<Position>) -> Result<(), Failure> {
        if batch.is_empty() {
            return Ok(());
        }
        if self.encoder.peer == Peer::Millstream && batch.tag.as_str().len() > TAG_BYTES_MAX {
            // It would refuse the frame for ever, and everything behind it would wait.
            let records = records(&batch).filter_map(|(range, _)| batch.body.get(range));
            let reason = "the tag is longer than the next Millstream takes";
            self.inlet.reject(&batch, records, reason).await;
            return Ok(());
        }
        let packs = self.encoder.encoding(&batch) == Encoding::Packed;
        let alone = self.flows.is_some() || position.is_some() || !packs;
        if !alone && self.gathering.takes(&batch) {
            return self.gather(batch).await;
        }
        // What came before leaves before.
        self.leave()?;
        match &mut self.flows {
            None => self.parts(batch, position, None).await,
            Some(flows) => {
                for (flow, part) in flows.split(batch, &self.context.pool) {
                    self.parts(part, position, Some(flow)).await?;
                }
                Ok(())
            }
        }
    }

    /// Makes chunks of a batch, or of what of it belongs to a flow.
    async fn parts(
        &mut self,
        batch: Batch,
        position: Option<Position>,
        flow: Option<Flow>,
    ) -> Result<(), Failure> {
        let first = flow.map_or(0, |flow| usize::from(flow) << FLOW_PART_BITS);
        for (place, mut part) in (first..).zip(self.encoder.parts(batch)) {
            part.body = compact(part.body);
            let number = self.ledger.open(part.received);
            let id = packed(&self.ids.next(position, place, &part.body));
            let payload = self.encoder.payload(&part);
            self.count_dropped();
            self.reject(&part, payload.rejects).await;
            let source = self.encoder.keep_source.then(|| part.clone());
            let part = Batch {
                count: payload.count,
                ..part
            };
            let place = position.map(|position| (position, place as u32));
            let name = Name {
                number,
                id,
                flow,
                place,
            };
            self.send(name, &part, payload.bytes, source.into_iter().collect())?;
        }
        Ok(())
    }

    async fn gather(&mut self, batch: Batch) -> Result<(), Failure> {
        let values = (self.encoder.peer == Peer::Millstream).then_some(&batch.values);
        let (gathering, encoder, ledger) =
            (&mut self.gathering, &mut self.encoder, &mut self.ledger);
        let open = match gathering.find(&batch.tag, values) {
            Some(place) => place,
            None => {
                let part = Batch {
                    encoding: Encoding::Packed,
                    body: Default::default(),
                    count: 0,
                    origins: Vec::new(),
                    ..batch.clone()
                };
                gathering.begin(ledger.open(batch.received), part, &self.context.pool)
            }
        };
        let open = gathering.get(open);
        let mut rejects = Vec::new();
        let count = encoder.append(&batch, &mut open.payload, &mut rejects);
        open.part.count = open.part.count.saturating_add(count);
        if encoder.keep_source {
            let body = compact(batch.body.clone());
            open.source.push(Batch {
                body,
                ..batch.clone()
            });
        }
        self.count_dropped();
        self.reject(&batch, rejects).await;
        if self.gathering.is_full() {
            self.leave()
        } else {
            Ok(())
        }
    }

    fn count_dropped(&mut self) {
        let dropped = std::mem::take(&mut self.encoder.dropped);
        if dropped > 0 {
            self.sink.dropped_metadata(&self.context, dropped);
        }
    }

    /// What is gathered leaves.
    fn leave(&mut self) -> Result<(), Failure> {
        for gathered in self.gathering.leave() {
            let Gathered {
                number,
                part,
                payload,
                source,
            } = gathered;
            let name = Name {
                number,
                id: packed(&self.ids.next(None, 0, &[])),
                flow: None,
                place: None,
            };
            self.send(name, &part, compact(payload.freeze()), source)?;
        }
        Ok(())
    }

    /// Makes a chunk and lets it wait for a server.
    fn send(
        &mut self,
        name: Name,
        part: &Batch,
        payload: bytes::Bytes,
        source: Vec<Batch>,
    ) -> Result<(), Failure> {
        let number = name.number;
        if part.count == 0 {
            self.ledger.done(number);
            return Ok(());
        }
        let chunk = self.encoder.chunk(name, part, payload);
        let mut chunk =
            chunk.map_err(|error| Failure::us(format!("a chunk could not be made: {error}")))?;
        chunk.source = source;
        self.hub.pending.borrow_mut().insert(chunk.key(), chunk);
        Ok(())
    }

    async fn reject(&mut self, part: &Batch, rejects: Vec<Reject>) {
        for reject in rejects {
            let record = part.body.get(reject.range).unwrap_or_default();
            self.inlet
                .reject(part, [record], &reject.reason.to_string())
                .await;
        }
    }

    /// Says how late it is, and gives up what nobody has taken for too long.
    async fn tick(&mut self) {
        let age = self
            .ledger
            .oldest()
            .map_or(0, |oldest| Time::now().0.saturating_sub(oldest.0));
        let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
        self.sink.behind(&self.context, age);
        self.cluster.expire();
        let overdue = self.hub.overdue.take();
        for chunk in overdue {
            let reason = "its server, which may have it, did not answer within `retry.give_up`";
            self.give_up(chunk, reason).await;
        }
        while let Some(chunk) = self.overdue() {
            let reason = "no server took it within `retry.give_up`";
            self.give_up(chunk, reason).await;
        }
    }

    /// The first of the chunks without a server if it has waited too long.
    fn overdue(&self) -> Option<Chunk> {
        let mut pending = self.hub.pending.borrow_mut();
        let first = pending.first_entry()?;
        let overdue = first.get().is_overdue(self.sink.settings.give_up);
        overdue.then(|| first.remove())
    }

    async fn give_up(&mut self, chunk: Chunk, reason: &str) {
        self.context.reporter.error(
            "give_up",
            format_args!(
                "{} records leave by {}.rejected: {reason}",
                chunk.records, self.context.name
            ),
        );
        self.given_up.add(chunk.records.into());
        for batch in &chunk.source {
            let records = records(batch).filter_map(|(range, _)| batch.body.get(range));
            match self.ledger.checkpoint_of(chunk.number) {
                Some(checkpoint) => {
                    self.inlet
                        .reject_before(checkpoint, batch, records, reason)
                        .await
                }
                None => self.inlet.reject(batch, records, reason).await,
            }
        }
        self.hub.done.borrow_mut().push(chunk.number);
    }
}

/// An id as a MessagePack value.
fn packed(id: &str) -> Vec<u8> {
    let mut value = Vec::with_capacity(id.len() + 2);
    write_str(&mut value, id.as_bytes());
    value
}
