//! From the inlet to the servers: encodes batches, deals out chunks, and settles checkpoints in order.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> [encode] -> write -> [settle]`
//!
//! Each lane (one of the sink's parallel tasks) has one relay. The relay takes a batch only when every earlier chunk has a server,
//! so back-pressure begins when all windows are full or no server is available. The relay promises that a checkpoint is settled
//! only when every chunk before it is acked or rejected. The links handle sockets.

use std::{collections::VecDeque, future::ready, io, ops::Range, rc::Rc, sync::Arc};

use bytes::Bytes;
use millstream_pipeline::{
    failure::Failure, inlet::Inlet, meters::Meter, node::SinkContext, stop::Stop,
};
use millstream_record::{Batch, Encoding, Position};
use millstream_sys::disk::HostDisk;
use millstream_wire::{forward::TAG_BYTES_MAX, msgpack::write_str, record::records};
use tokio::task::JoinSet;

use super::{
    bundle::{Bundle, Bundles},
    chunk::{Chunk, Name},
    cluster::Cluster,
    encode::{Encoder, compact},
    endpoint::{Common, ServerMeters},
    flow::{Flow, Flows},
    gather::{Gathered, Gathering},
    hub::Hub,
    leases::Leases,
    lessor::Lessor,
    options::Peer,
    sink::Forward,
    standing::Working,
};
use crate::sending::{Ids, Input, Lane, Part, PartNumbers};

/// With `balance: hash`, the records of a flow go to one server, in order. The higher bits of a part number are the number of the
/// flow; this many low bits count the parts of that flow. One flow of a batch becomes at most 2^16 chunks of 8 MiB (with `add`, this
/// is 512 GiB of payload).
const FLOW_PART_BITS: u32 = 16;

/// Maximum number of chunks from the first unfinished one to the newest. The lane holds a small entry for each of them, even if
/// only the first is unfinished because its server does not answer.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// One lane of the sink.
pub(super) struct Relay<'a> {
    sink: &'a Forward,
    lane: Lane<'a>,
    hub: Rc<Hub>,
    cluster: Cluster,
    /// The task that looks for servers.
    discovery: JoinSet<()>,
    gathering: Gathering,
    /// Behind a durable channel, with `peer: millstream`: what the current position became and is not a chunk yet.
    bundles: Bundles,
    /// The parts of the last batch that are not chunks yet.
    rest: Rest,
    encoder: Encoder,
    flows: Option<Flows>,
    ids: Ids,
    numbers: PartNumbers,
    given_up: Meter,
    stop: Stop,
    stopped: bool,
}

/// The parts of a batch that are not chunks yet, each with its flow. With `add`, a part may become several chunks, and perhaps only
/// some of them fit into memory.
#[derive(Default)]
struct Rest {
    position: Option<Position>,
    parts: VecDeque<(Option<Flow>, Batch)>,
    /// The offset in the body of the first part up to which it is sent.
    sent: usize,
}

/// An event of the lane.
enum Event {
    /// The hub has changed: acks, lost connections, new connections, or a new list of servers.
    Hub,
    /// Leases (notes of which server may have received which chunk) became durable, a server has left, or one of the tasks
    /// panicked.
    Cluster(Result<(), Failure>),
    Input(Input),
    /// All chunks have a server, and there are parts of the last batch that are not chunks yet.
    Rest,
    /// The gathered batches have waited long enough.
    Due,
    Stopped,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        sink: &'a Forward,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> Result<Self, Failure> {
        let lane = Lane::new(inlet, context).reporting(&sink.lateness);
        let hub = Rc::new(Hub::default());
        let context = &lane.context;
        let leases = match lane.channel_id() {
            Some(channel) if sink.keeps_leases() => Some(open_leases(sink, context, channel)?),
            _ => None,
        };
        let common = Common {
            settings: sink.settings.clone(),
            hub: hub.clone(),
            working: Rc::new(Working::new(&context.reporter)),
            meters: ServerMeters::new(&context.meters),
            reporter: context.reporter.clone(),
        };
        Ok(Self {
            cluster: Cluster::new(common, Lessor::new(leases), context.lane),
            encoder: sink.encoder(context.pool.clone()),
            flows: sink.flow.as_ref().map(Flows::new),
            gathering: Gathering::new(sink.batch),
            bundles: Bundles::default(),
            rest: Rest::default(),
            given_up: context.meters.counter("records_given_up"),
            ids: lane.ids()?,
            numbers: PartNumbers::default(),
            stop: context.stop.clone(),
            sink,
            lane,
            hub,
            discovery: JoinSet::new(),
            stopped: false,
        })
    }

    /// Sends until [`Relay::is_finished`] returns true.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        self.lane.start()?;
        self.start_discovery();
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
                Event::Hub => {}
                Event::Input(Input::Batch(batch, position)) => self.batch(batch, position).await?,
                // The last batch of the position had no record for this sink.
                Event::Input(Input::Checkpoint | Input::End) => self.end_position()?,
                Event::Input(Input::Tick) => self.give_up_overdue().await,
                Event::Rest => self.send_next().await?,
                Event::Due => self.flush()?,
                Event::Stopped => self.stopped = true,
                Event::Cluster(changed) => changed?,
            }
        }
    }

    fn start_discovery(&mut self) {
        let discovery = self.sink.discovery.clone();
        self.cluster.set_servers(&discovery.servers);
        let hub = self.hub.clone();
        let changed = move |servers| {
            *hub.servers.borrow_mut() = Some(servers);
            hub.changed.notify_one();
        };
        let reporter = self.lane.context.reporter.clone();
        self.discovery
            .spawn_local(discovery.watch(reporter, changed));
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        // While a chunk has no server, the lane takes no more batches. Back-pressure starts here.
        let dealt = self.hub.pending.borrow().is_empty();
        let has_room = dealt && self.lane.in_flight() < IN_FLIGHT_MAX;
        let has_rest = !self.rest.parts.is_empty();
        Ok(tokio::select! {
            biased;
            () = self.hub.changed.notified() => Event::Hub,
            changed = self.cluster.changed() => Event::Cluster(changed),
            Some(Err(panic)) = self.discovery.join_next() => {
                let text = format!("the search for servers panicked: {panic}");
                Event::Cluster(Err(Failure::us(text)))
            }
            input = self.lane.next(has_room && !has_rest) => Event::Input(input?),
            () = ready(()), if has_room && has_rest => Event::Rest,
            () = self.gathering.due(), if dealt && !self.gathering.is_empty() => Event::Due,
            () = self.stop.stopped(), if !self.stopped => Event::Stopped,
        })
    }

    /// Whether the inlet has ended and everything is settled, or the process stops while no server is connected. The second case
    /// applies only behind a durable channel, which keeps the rest for the next start.
    fn is_finished(&self) -> bool {
        let everything_sent =
            self.gathering.is_empty() && self.rest.parts.is_empty() && self.lane.is_settled();
        self.lane.has_ended() && everything_sent
            || self.stopped && self.lane.is_durable() && !self.cluster.is_up()
    }

    /// Notes the chunks that the links have finished, and settles checkpoints.
    async fn settle(&mut self) -> Result<(), Failure> {
        for number in self.hub.done.take() {
            if self.hub.is_last(number) {
                self.lane.finish(number);
            }
        }
        if let Some(position) = self.lane.settle().await? {
            self.cluster.settled(position);
        }
        Ok(())
    }

    async fn batch(&mut self, batch: Batch, position: Option<Position>) -> Result<(), Failure> {
        if self.bundles.position() != position {
            self.end_position()?;
        }
        if let Some(position) = position {
            self.numbers.begin(position, batch.received);
        }
        if batch.is_empty() {
            return Ok(());
        }
        if self.encoder.peer == Peer::Millstream && batch.tag.as_str().len() > TAG_BYTES_MAX {
            // The peer would refuse the frame on every resend, and all later chunks would wait for this one.
            let records = records(&batch).filter_map(|(range, _)| batch.body.get(range));
            let reason = "the tag is longer than the next Millstream accepts";
            self.lane.reject(None, &batch, records, reason).await;
            return self.end_if_last();
        }
        let packs = self.encoder.encoding(&batch) == Encoding::Packed;
        let alone = self.flows.is_some() || position.is_some() || !packs;
        if !alone && self.gathering.takes(&batch) {
            return self.gather(batch).await;
        }
        // Keeps the order: batches that were gathered earlier leave first.
        self.flush()?;
        let parts = match &mut self.flows {
            None => vec![(None, batch)],
            Some(flows) => {
                let parts = flows.split(batch, &self.lane.context.pool).into_iter();
                parts.map(|(flow, part)| (Some(flow), part)).collect()
            }
        };
        for (flow, part) in parts {
            let parts = self.encoder.parts(part).into_iter();
            self.rest.parts.extend(parts.map(|part| (flow, part)));
        }
        self.rest.position = position;
        self.send_next().await
    }

    /// Makes a chunk from the next part of the last batch, or from as much of the part as a chunk holds.
    async fn send_next(&mut self) -> Result<(), Failure> {
        let (position, start) = (self.rest.position, self.rest.sent);
        let Some((flow, whole)) = self.rest.parts.pop_front() else {
            return Ok(());
        };
        let payload = self.encoder.payload(&whole, start);
        let mut part = piece(&whole, start..payload.end);
        if payload.end < whole.len() {
            self.rest.sent = payload.end;
            self.rest.parts.push_front((flow, whole.clone()));
        } else {
            self.rest.sent = 0;
        }
        self.count_dropped();
        self.lane
            .reject_refused(None, &whole, &payload.refused)
            .await;
        let source = self.encoder.keep_source.then(|| part.clone());
        part.count = payload.count;
        if part.count > 0 {
            part.body = compact(part.body);
            self.place(position, flow, part, payload.bytes, source)?;
        }
        self.end_if_last()
    }

    /// Sends a part, or adds it to the bundle of its position.
    fn place(
        &mut self,
        position: Option<Position>,
        flow: Option<Flow>,
        part: Batch,
        payload: Bytes,
        source: Option<Batch>,
    ) -> Result<(), Failure> {
        if let (Some(position), Peer::Millstream) = (position, self.encoder.peer) {
            if let Some(full) = self.bundles.full(flow, &part, &payload) {
                self.send_bundle(full, Some(position), false)?;
            }
            let number = || self.lane.begin(part.received);
            let bundle = self.bundles.get(position, flow, number);
            bundle.push(part, payload, source);
            return Ok(());
        }
        // It is not known here whether a later batch of the position has records of the same flow.
        let is_last = flow.is_none() && self.rest.parts.is_empty() && !self.lane.is_within();
        let mut bundle = Bundle::new(self.lane.begin(part.received), flow);
        bundle.push(part, payload, source);
        self.send_bundle(bundle, position, is_last)
    }

    /// Ends the current position if the batch that was taken last is its last one, and is wholly sent or in a bundle.
    fn end_if_last(&mut self) -> Result<(), Failure> {
        match self.rest.parts.is_empty() && !self.lane.is_within() {
            true => self.end_position(),
            false => Ok(()),
        }
    }

    /// Sends the bundles of the current position, of which no more records will come.
    fn end_position(&mut self) -> Result<(), Failure> {
        let position = self.bundles.position();
        for bundle in self.bundles.leave() {
            self.send_bundle(bundle, position, true)?;
        }
        Ok(())
    }

    /// Sends a bundle. `is_last`: no more records of its flow follow at its position.
    fn send_bundle(
        &mut self,
        bundle: Bundle,
        position: Option<Position>,
        is_last: bool,
    ) -> Result<(), Failure> {
        let flow = bundle.flow.unwrap_or_default();
        let numbers = &mut self.numbers;
        let checksum = || bundle.checksum();
        let part = position.map(|position| numbers.next(position, flow, is_last, checksum));
        let first = bundle
            .flow
            .map_or(0, |flow| u32::from(flow) << FLOW_PART_BITS);
        let name = Name {
            number: bundle.number,
            id: packed(&self.ids.next(part.unwrap_or_default())),
            flow: bundle.flow,
            place: part.map(|part| (part.position, first + part.number)),
        };
        let chunk = self.encoder.chunk_of(name, bundle);
        self.hand_over(chunk)
    }

    /// Adds a small batch to the chunk that is being gathered for its tag. If not all of it fits, the rest becomes separate chunks.
    async fn gather(&mut self, batch: Batch) -> Result<(), Failure> {
        let values = (self.encoder.peer == Peer::Millstream).then_some(&batch.values);
        let (gathering, encoder) = (&mut self.gathering, &mut self.encoder);
        let place = match gathering.find(&batch.tag, values) {
            Some(place) => place,
            None => {
                let part = Batch {
                    encoding: Encoding::Packed,
                    body: Default::default(),
                    count: 0,
                    origins: Vec::new(),
                    ..batch.clone()
                };
                let number = self.lane.begin(batch.received);
                gathering.begin(number, part, &self.lane.context.pool)
            }
        };
        let bytes_max = gathering.bytes_max();
        let gathered = gathering.get(place);
        let mut refused = Vec::new();
        let done = encoder.append(&batch, 0, bytes_max, &mut gathered.payload, &mut refused);
        gathered.part.count = gathered.part.count.saturating_add(done.records);
        if encoder.keep_source {
            let part = piece(&batch, 0..done.end);
            let body = compact(part.body);
            gathered.source.push(Batch { body, ..part });
        }
        self.count_dropped();
        self.lane.reject_refused(None, &batch, &refused).await;
        if done.end < batch.len() {
            self.rest.sent = done.end;
            self.rest.position = None;
            self.rest.parts.push_back((None, batch));
            self.flush()
        } else if self.gathering.is_full() {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn count_dropped(&mut self) {
        let dropped = std::mem::take(&mut self.encoder.dropped);
        if dropped > 0 {
            self.sink.dropped_metadata(&self.lane.context, dropped);
        }
    }

    /// Sends everything that is gathered.
    fn flush(&mut self) -> Result<(), Failure> {
        for gathered in self.gathering.leave() {
            let Gathered {
                number,
                part,
                payload,
                source,
            } = gathered;
            let name = Name {
                number,
                id: packed(&self.ids.next(Part::default())),
                flow: None,
                place: None,
            };
            if part.count == 0 {
                self.lane.finish(number);
                continue;
            }
            let chunk = self
                .encoder
                .chunk(name, &part, compact(payload.freeze()))
                .map(|chunk| Chunk { source, ..chunk });
            self.hand_over(chunk)?;
        }
        Ok(())
    }

    /// Hands a chunk to the hub, where it waits for a server.
    fn hand_over(&self, chunk: io::Result<Chunk>) -> Result<(), Failure> {
        let chunk =
            chunk.map_err(|error| Failure::us(format!("a chunk could not be made: {error}")))?;
        self.hub.pending.borrow_mut().insert(chunk.key(), chunk);
        Ok(())
    }

    /// Gives up chunks older than `retry.give_up`: sends their records to the rejected port.
    async fn give_up_overdue(&mut self) {
        self.cluster.expire();
        const IN_DOUBT: &str =
            "its server, which may have it, did not answer within `retry.give_up`";
        for chunk in self.hub.overdue.take() {
            self.give_up(chunk, IN_DOUBT).await;
        }
        while let Some(chunk) = self.overdue() {
            let reason = match self.cluster.is_in_doubt(&chunk) {
                true => IN_DOUBT,
                false => "no server took it within `retry.give_up`",
            };
            self.give_up(chunk, reason).await;
        }
    }

    /// Removes and returns the first of the chunks that wait for a server, if that chunk is older than `retry.give_up`.
    fn overdue(&self) -> Option<Chunk> {
        let limit = self.sink.settings.retry.give_up.0;
        let mut pending = self.hub.pending.borrow_mut();
        let first = pending.first_entry()?;
        let overdue = first.get().is_overdue(limit);
        overdue.then(|| first.remove())
    }

    async fn give_up(&mut self, chunk: Chunk, reason: &str) {
        self.lane
            .give_up(&self.given_up, chunk.records.into(), reason);
        for batch in &chunk.source {
            let records = records(batch).filter_map(|(range, _)| batch.body.get(range));
            let number = Some(chunk.number);
            self.lane.reject(number, batch, records, reason).await;
        }
        self.hub.finish(chunk.number);
    }
}

/// Opens the leases that an earlier start wrote, and reports damage.
fn open_leases(sink: &Forward, context: &SinkContext, channel: u128) -> Result<Leases, Failure> {
    let directory = &context.directory;
    let leases = Leases::open(Arc::new(HostDisk), directory, channel, &sink.leases_turn)?;
    if let damaged @ 1.. = leases.damaged_bytes() {
        let path = directory.display();
        context.reporter.error(
            "damage",
            format_args!(
                "{path}/leases: {damaged} bytes are damaged; a chunk that was sent to a server before the stop and is not settled \
                 may go to another server and be stored by both"
            ),
        );
    }
    Ok(leases)
}

/// Whole records of a batch.
fn piece(batch: &Batch, range: Range<usize>) -> Batch {
    Batch {
        body: batch.body.slice(range),
        origins: Vec::new(),
        tag: batch.tag.clone(),
        values: batch.values.clone(),
        ..*batch
    }
}

/// Encodes an id as a MessagePack string.
fn packed(id: &str) -> Vec<u8> {
    let mut value = Vec::with_capacity(id.len() + 2);
    write_str(&mut value, id.as_bytes());
    value
}
