//! The chain in front of a sink. It runs on the thread on which the sink reads its channel.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! A batch that the channel delivers becomes any number of batches. Only the final one has `last` set, so no checkpoint falls between
//! them. If no record is left, an empty batch is delivered, so that the position is settled. Rejected records are sent before the
//! output is delivered, and the batch is settled only when they are kept. A large batch passes through the chain in portions
//! (`portion.rs`), so that only the output of one portion is in memory.
//!
//! A reload replaces the chain between two batches ([`Swap`]). If positions that were delivered before the reload are read again, they pass
//! through the old chain, because a sink may already have sent some of their records under ids derived from the position. If the old chain
//! fails on one of them, this position and all later ones pass through the current chain: the old chain could fail forever.
//!
//! When the sink begins another run ([`Reader::resume`]), a durable channel delivers the batches in flight again. From memory they come only
//! once, so they stay in flight.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use atomic_waker::AtomicWaker;
use millstream_record::Position;

use super::{
    Chain, ChainMaker, emptied,
    passage::{Output, Passage},
    portion::Portions,
};
use crate::{
    channel::{Bounds, BoxFuture, Delivered, Reader},
    delivery::Token,
    failure::Failure,
    plan::ChainPlan,
    replay,
    tags::TagFilter,
};

/// The lower bound of `flights_max` for a chain with threads. With eight batches in flight, a thread has work while another one, which
/// processes the oldest batch, waits for a CPU.
const IN_FLIGHT: usize = 8;
/// While the batches in flight have at least this many bytes, no further batch is read, unless they are fewer than the threads of the chain.
const IN_FLIGHT_BYTES: usize = 16 << 20;
/// The number of batches in flight in addition to one for each thread.
const AHEAD: usize = 2;

/// Reads a channel through a chain, or directly while no processor is in front of the sink.
pub(crate) struct ChainReader {
    reader: Box<dyn Reader>,
    /// The tags that the consumer takes, for batches that pass through no chain. In a chain, each step has its own filter.
    tags: Option<TagFilter>,
    swap: Arc<Swap>,
    /// The chains, in the order of the positions that pass through them. The last one is the current chain. An earlier chain stays while
    /// a durable channel may deliver again a position that passes through that chain.
    stages: VecDeque<Stage>,
    /// The last position that was read, and the last one that was delivered to the consumer.
    read: Option<Position>,
    given: Option<Position>,
    /// Chains of the current stage that process no batch.
    idle: Vec<Chain>,
    /// The batches in flight, that is, read and not yet delivered, in the order in which they were read. Each has a separate chain, so
    /// that they do not wait for each other.
    flights: VecDeque<Flight>,
    /// The maximum number of batches in flight: one if the chain has no threads.
    flights_max: usize,
    /// The number of threads of the chain.
    threads: usize,
    /// Batches that can be delivered. They come from one flight.
    ready: Output,
    /// Whether a part of a batch's output was delivered, and the rest was not.
    is_within: bool,
    /// The name of the sink. Batches of a replay (rejected records that are sent again) skip the chain if they name this sink.
    sink: Arc<str>,
}

/// A chain, and the position after which it applies.
struct Stage {
    /// The chain applies to the positions after this one, up to the next stage. `None`: it applies from the first position on.
    after: Option<Position>,
    /// `None`: no processor is in front of the sink.
    maker: Option<Arc<ChainMaker>>,
}

/// Hands a reader the chain that replaces its current one.
#[derive(Default)]
pub(crate) struct Swap {
    is_posted: AtomicBool,
    posted: Mutex<Option<Next>>,
    reader: AtomicWaker,
}

/// The next chain of a reader.
pub(crate) struct Next {
    maker: Option<Arc<ChainMaker>>,
    /// A first chain, made in advance to find out whether its processors can run.
    first: Option<Chain>,
}

impl Next {
    /// Makes the first chain. `maker` is `None` if no processor is left in front of the sink.
    pub(crate) fn new(maker: Option<Arc<ChainMaker>>) -> Result<Self, Failure> {
        let first = maker.as_ref().map(|maker| maker.make()).transpose()?;
        Ok(Self { maker, first })
    }
}

impl Swap {
    /// Replaces the reader's chain, beginning with the next batch that it reads.
    pub(crate) fn post(&self, next: Next) {
        *self.lock() = Some(next);
        self.is_posted.store(true, Ordering::Release);
        // Wakes an idle reader, so that it ends the tasks of its old chain now.
        self.reader.wake();
    }

    fn take(&self) -> Option<Next> {
        if !self.is_posted.swap(false, Ordering::Acquire) {
            return None;
        }
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Next>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A batch in a chain. Its output is delivered only after its rejected records were sent.
struct Flight {
    /// The bytes of the batch.
    bytes: usize,
    position: Option<Position>,
    /// The token of the batch. The last batch that the chain makes carries it.
    token: Option<Token>,
    /// Whether the batch is processed again if its token is dropped ([`Chain::set_comes_again`]).
    comes_again: bool,
    /// The plan of the chain; `None` if the batch passes through no chain.
    plan: Option<Arc<ChainPlan>>,
    /// Whether the output of earlier portions has left the flight.
    is_begun: bool,
    state: State,
}

enum State {
    Flying(BoxFuture<'static, Result<(Output, Passage), Failure>>),
    /// The output, and the passage if portions of the batch are left.
    Landed(Result<(Output, Option<Box<Passage>>), Failure>),
}

impl ChainReader {
    /// Returns a reader whose batches pass through the chains that `swap` hands over. `tags` are the tags that the consumer takes.
    pub(crate) fn new(reader: Box<dyn Reader>, tags: Option<TagFilter>, swap: Arc<Swap>) -> Self {
        Self {
            reader,
            tags,
            swap,
            stages: VecDeque::new(),
            read: None,
            given: None,
            idle: Vec::new(),
            flights: VecDeque::new(),
            flights_max: 1,
            threads: 0,
            ready: Output::default(),
            is_within: false,
            sink: "".into(),
        }
    }

    /// Returns the reader with the name of its sink.
    pub(crate) fn of_sink(self, sink: &Arc<str>) -> Self {
        let sink = sink.clone();
        Self { sink, ..self }
    }

    /// Whether threads of the chain process the batches.
    pub(crate) fn has_threads(&self) -> bool {
        self.threads > 0
    }

    /// Returns a batch with the maker of its chain, or with `None` if the batch skips the chain. A batch of a replay names one node:
    ///
    /// - This sink: the batch skips the chain, unless its records were set aside in front of the chain. So were those of the channel that
    ///   a pump fills.
    /// - A processor in the chain of the batch's position, or in the current chain: the batch passes through that chain. The current
    ///   chain is searched for the sake of pumps. A pump cannot reject a batch, and waits until a reload brings the processor back.
    /// - Any other processor: the batch skips the chain, and the sink's inlet rejects or ignores it.
    fn route(&self, mut delivered: Delivered) -> (Delivered, Option<Arc<ChainMaker>>) {
        let maker = self.maker_of(&delivered);
        let Some(node) = replay::address(&delivered.batch) else {
            return match maker {
                None => (self.taken(delivered), None),
                maker => (delivered, maker),
            };
        };
        if replay::is_of(node, &self.sink) {
            delivered.batch = replay::unaddressed(delivered.batch);
            let is_unprocessed = replay::take_unprocessed(&mut delivered.batch);
            return (delivered, maker.filter(|_| is_unprocessed));
        }
        let present = self.stages.back().and_then(|stage| stage.maker.clone());
        let mut makers = maker.into_iter().chain(present);
        let maker = makers.find(|maker| maker.plan().input_of(node).is_some());
        (delivered, maker)
    }

    /// Switches to the chain that a reload posted, if there is one.
    fn turn(&mut self) {
        let Some(Next { maker, first }) = self.swap.take() else {
            return;
        };
        let after = self.read;
        // A chain that was replaced before any batch was read through it is dropped.
        if self.stages.back().is_some_and(|stage| stage.after == after) {
            self.stages.pop_back();
        }
        self.stages.push_back(Stage { after, maker });
        self.idle = first.into_iter().collect();
    }

    /// Returns the maker of a batch's chain; `None` if the batch passes through no chain.
    fn maker_of(&self, delivered: &Delivered) -> Option<Arc<ChainMaker>> {
        if delivered.position.is_none() {
            // A batch from a memory channel holds its chain, because a reload may have replaced the chain while the batch waited.
            let chain = delivered.entry.chain.clone()?;
            return chain.downcast().ok();
        }
        let holds = |stage: &&Stage| stage.after < delivered.position;
        self.stages.iter().rev().find(holds)?.maker.clone()
    }

    /// Filters a batch that skips the chain: if the consumer does not take the batch's tag, returns the batch without its records.
    fn taken(&self, delivered: Delivered) -> Delivered {
        let tag = delivered.batch.tag.as_str();
        match self.tags.as_ref().is_none_or(|tags| tags.takes(tag)) {
            true => delivered,
            false => Delivered {
                batch: emptied(delivered.batch),
                ..delivered
            },
        }
    }

    /// Starts a batch in a chain of `maker`.
    fn begin(&mut self, maker: &ChainMaker, delivered: Delivered) -> Result<(), Failure> {
        let Delivered {
            batch,
            position,
            token,
            entry,
            last,
            rejected,
        } = delivered;
        let is_idle = self.idle.last();
        let chain = match is_idle.is_some_and(|chain| chain.is_of(maker.plan())) {
            true => self.idle.pop(),
            false => None,
        };
        let chain = chain.map_or_else(|| maker.make(), Ok);
        let mut chain = chain.inspect_err(|_| self.pass_over(maker.plan(), position))?;
        chain.deal_whole();
        let comes_again = position.is_some() || !batch.origins.is_empty();
        chain.set_comes_again(comes_again);
        self.threads = chain.threads();
        self.flights_max = match self.threads {
            0 => 1,
            threads => IN_FLIGHT.max(threads + AHEAD),
        };
        let bytes = batch.len();
        let passage = Passage {
            portions: Portions::of(batch),
            chain,
            entry: entry.number,
            position,
            last,
            held: None,
            rejected,
        };
        self.flights.push_back(Flight {
            bytes,
            position,
            token,
            comes_again,
            plan: Some(maker.plan().clone()),
            is_begun: false,
            state: State::Flying(Box::pin(passage.proceed())),
        });
        Ok(())
    }

    /// Called when the chain of a position has failed. If a reload has replaced the chain, this position and all later ones pass through
    /// the current chain when they are read again. Otherwise the sink could fail on the position forever, although the reload may have
    /// mended the processor.
    fn pass_over(&mut self, plan: &Arc<ChainPlan>, failed: Option<Position>) {
        let present = self.stages.back().and_then(|stage| stage.maker.as_ref());
        if failed.is_none() || present.is_some_and(|maker| Arc::ptr_eq(maker.plan(), plan)) {
            return;
        }
        let before = failed.map(Position::before);
        for stage in &mut self.stages {
            stage.after = stage.after.min(before);
        }
    }

    /// Whether a chain belongs to the current stage, so that later batches can use it.
    fn is_present(stages: &VecDeque<Stage>, chain: &Chain) -> bool {
        let present = stages.back().and_then(|stage| stage.maker.as_ref());
        present.is_some_and(|maker| chain.is_of(maker.plan()))
    }

    /// Whether batches can be delivered directly: none is in flight, and no stage has a chain.
    fn is_direct(&self) -> bool {
        let has_none = |stage: &Stage| stage.maker.is_none();
        let is_empty = self.flights.is_empty() && self.ready.batches.is_empty();
        is_empty && self.stages.iter().all(has_none)
    }

    /// Polls for the next batch and delivers it without a chain. But a batch from a memory channel may hold a chain that a reload has
    /// replaced; such a batch passes through the chain that it holds.
    fn poll_direct(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Delivered>, Failure>> {
        let Some(delivered) = ready!(self.reader.poll_next(context)?) else {
            return Poll::Ready(Ok(None));
        };
        self.read = self.read.max(delivered.position);
        match self.route(delivered) {
            (delivered, None) => Poll::Ready(Ok(Some(delivered))),
            (delivered, Some(maker)) => {
                self.begin(&maker, delivered)?;
                self.poll_chains(context)
            }
        }
    }

    /// Whether no further batch may be read until one in flight is delivered.
    fn is_full(&self) -> bool {
        let in_flight = self.flights.len() + usize::from(!self.ready.batches.is_empty());
        let bytes: usize = self.flights.iter().map(|flight| flight.bytes).sum();
        in_flight >= self.flights_max || bytes >= IN_FLIGHT_BYTES && in_flight >= self.threads
    }

    /// Polls for the next batch that comes out of a chain.
    fn poll_chains(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Delivered>, Failure>> {
        let mut is_ended = false;
        loop {
            self.poll_flights(context);
            if self.ready.batches.is_empty() {
                self.take_landed()?;
            }
            if self.is_full() {
                break;
            }
            match self.reader.poll_next(context)? {
                Poll::Ready(Some(delivered)) => {
                    self.read = self.read.max(delivered.position);
                    match self.route(delivered) {
                        (delivered, Some(maker)) => self.begin(&maker, delivered)?,
                        (delivered, None) => self.flights.push_back(Flight::landed(delivered)),
                    }
                }
                Poll::Ready(None) => {
                    is_ended = true;
                    break;
                }
                Poll::Pending => break,
            }
        }
        match self.ready.batches.pop_front() {
            None if is_ended && self.flights.is_empty() => Poll::Ready(Ok(None)),
            None => Poll::Pending,
            delivered => Poll::Ready(Ok(delivered)),
        }
    }

    /// Polls all batches in flight. The next portion of a batch waits until the output of the previous one is delivered.
    fn poll_flights(&mut self, context: &mut Context<'_>) {
        let has_output = !self.ready.batches.is_empty();
        for flight in &mut self.flights {
            let State::Flying(flying) = &mut flight.state else {
                continue;
            };
            if flight.is_begun && has_output {
                continue;
            }
            if let Poll::Ready(landed) = flying.as_mut().poll(context) {
                let landed = landed.map(|(output, passage)| {
                    if !passage.portions.is_done() {
                        return (output, Some(Box::new(passage)));
                    }
                    // A chain that a reload replaced is dropped here, which ends its tasks.
                    if Self::is_present(&self.stages, &passage.chain) {
                        self.idle.push(passage.chain);
                    }
                    (output, None)
                });
                flight.state = State::Landed(landed);
            }
        }
    }

    /// Takes the output of the oldest batch in flight, if there is any. The batch stays in flight if portions of it are left.
    fn take_landed(&mut self) -> Result<(), Failure> {
        let is_landed = |flight: &mut Flight| matches!(flight.state, State::Landed(_));
        let Some(mut flight) = self.flights.pop_front_if(is_landed) else {
            return Ok(());
        };
        let State::Landed(landed) = flight.state else {
            return Ok(());
        };
        let (mut output, rest) = landed.inspect_err(|_| {
            if let Some(plan) = &flight.plan {
                self.pass_over(plan, flight.position);
            }
        })?;
        output.comes_again = flight.comes_again;
        match rest {
            None => {
                if let Some(last) = output.batches.back_mut() {
                    last.token = flight.token;
                }
            }
            Some(passage) => {
                flight.state = State::Flying(Box::pin(passage.proceed()));
                flight.is_begun = true;
                self.flights.push_front(flight);
            }
        }
        self.ready = output;
        Ok(())
    }

    /// Prepares the batches from memory for another run of the sink. They stay, because nothing delivers them again. But if the earlier run got
    /// a part of a batch's output and not the rest, the batch fails: its source sends it again, or, if it cannot, the rest is delivered.
    fn keep_waiting(&mut self) {
        if !std::mem::take(&mut self.is_within) {
            return;
        }
        let is_begun = |flight: &mut Flight| flight.is_begun;
        if self.ready.comes_again {
            self.ready = Output::default();
            self.flights.pop_front_if(is_begun);
            return;
        }
        if let Some(last) = self.ready.batches.back_mut() {
            last.token = None;
        }
        if let Some(rest) = self.flights.front_mut().filter(|flight| flight.is_begun) {
            rest.token = None;
        }
    }
}

impl Flight {
    /// A batch that passes through no chain.
    fn landed(mut delivered: Delivered) -> Self {
        let (bytes, token) = (delivered.batch.len(), delivered.token.take());
        let position = delivered.position;
        let comes_again = position.is_some() || !delivered.batch.origins.is_empty();
        Self {
            bytes,
            position,
            token,
            comes_again,
            plan: None,
            is_begun: false,
            state: State::Landed(Ok((Output::of(delivered), None))),
        }
    }
}

impl Reader for ChainReader {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        if self.read.is_none() {
            self.keep_waiting();
            return self.reader.resume(after);
        }
        self.flights.clear();
        self.ready = Output::default();
        self.is_within = false;
        self.idle.clear();
        // Positions that were not delivered pass through the current chain. The old one may have failed on them.
        for stage in &mut self.stages {
            stage.after = stage.after.min(self.given);
        }
        self.read = self.read.min(self.given);
        self.reader.resume(after)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        self.swap.reader.register(context.waker());
        self.turn();
        let polled = match self.is_direct() {
            true => self.poll_direct(context),
            false => self.poll_chains(context),
        };
        if let Poll::Ready(Ok(Some(delivered))) = &polled {
            self.given = self.given.max(delivered.position);
            self.is_within = !delivered.last;
        }
        polled
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        self.reader.commit(position)?;
        // Positions up to this one are never read again, so older chains are not needed.
        let is_over = |next: &Stage| next.after <= Some(position);
        while self.stages.get(1).is_some_and(is_over) {
            self.stages.pop_front();
        }
        Ok(())
    }

    fn settled(&self) -> Option<Position> {
        self.reader.settled()
    }

    fn bounds(&self) -> Option<Bounds> {
        self.reader.bounds()
    }

    fn hurry(&self) -> bool {
        self.reader.hurry()
    }
}
