//! The run of a publishing sink: reads batches, writes outputs, and settles the batches when the outputs are published.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read back] -> process -> encode -> write -> [settle]`
//!
//! Checkpoints are collected until a manifest (the file that names the outputs to publish) is due. Then the sink finishes all
//! outputs, creates the manifest, publishes the outputs and settles the checkpoints. A failure ends the run: the next run recovers
//! and, behind a durable channel, rereads the records that are in no manifest.

use std::time::{Duration, Instant};

use millstream_pipeline::{
    failure::{Again, Failure},
    inlet::{Checkpoint, Inlet, Item},
    meters::Meter,
    node::SinkContext,
    report::Reporter,
};
use millstream_record::{Batch, Position};
use millstream_sys::random;
use millstream_wire::{format::Reject, template::Renderer};

use super::{
    Settings,
    chain::Chain,
    encode::Encode,
    generation::{Generation, To},
    note::Note,
    recover::recover,
    route::Routes,
    store::{Published, Store},
};
use crate::sending::{Refused, by_reason, refuse, unencoded};

/// While no batch arrives, the sink checks at this interval whether the channel is nearly full.
const LOOK: Duration = Duration::from_secs(1);
/// If the channel is nearly full, a manifest is due when [`HURRY_BYTES`] were read since the last manifest, or when the first
/// record since the last manifest is [`HURRY_AGE`] old. Lower limits would cause tiny outputs if another consumer keeps the channel
/// full.
const HURRY_BYTES: usize = 16 << 20;
const HURRY_AGE: Duration = Duration::from_secs(5);

/// A running publishing sink.
struct Running<'a, S: Store> {
    settings: &'a Settings,
    store: S,
    encode: Box<dyn Encode>,
    directory: Renderer,
    chain: Chain,
    note: Note,
    generation: Generation<S::Output>,
    routes: Routes,
    rejects: Vec<Reject>,
    /// Records of the current batch that are rejected, each with the reason.
    refused: Vec<Refused>,
    /// The checkpoints that the next manifest settles.
    checkpoints: Vec<Checkpoint>,
    /// Whether batches arrived since the last checkpoint.
    unsettled: bool,
    /// Bytes read since the last manifest.
    taken: usize,
    reporter: Reporter,
    published: [Meter; 2],
}

/// Recovers, then publishes batches until the inlet ends.
pub(crate) async fn run<S: Store>(
    settings: &Settings,
    store: S,
    encode: Box<dyn Encode>,
    inlet: &mut Inlet,
    context: SinkContext,
) -> Result<(), Failure> {
    let durable = inlet.channel_id().is_some();
    let (stop, reporter) = (context.stop.clone(), context.reporter.clone());
    match work(settings, store, encode, inlet, context).await {
        Err(failure) if durable && stop.is_stopped() && failure.again != Again::Never => {
            reporter.warn(
                "left",
                format_args!("{failure}; what is not published stays in the channel"),
            );
            Ok(())
        }
        other => other,
    }
}

async fn work<S: Store>(
    settings: &Settings,
    mut store: S,
    encode: Box<dyn Encode>,
    inlet: &mut Inlet,
    context: SinkContext,
) -> Result<(), Failure> {
    let SinkContext {
        reporter,
        meters,
        directory,
        ..
    } = context;
    let mut note = Note::open(&directory);
    let mut chain = own_chain(settings, &mut store, inlet, &note).await?;
    let settled = inlet.settled();
    recover(&mut store, &mut chain, &mut note, settled, &reporter).await?;
    // Records that need no output (rejected, or for other sinks) move the channel's cursor without a manifest, so the cursor may be
    // ahead of the chain.
    if let Some(position) = chain.position {
        inlet.settle_through(position)?;
    }
    inlet.resume(chain.position.max(inlet.settled()))?;
    let running = Running {
        settings,
        store,
        encode,
        directory: Renderer::path(&settings.directory, settings.zone.clone()),
        chain,
        note,
        generation: Generation::new(),
        routes: Routes::default(),
        rejects: Vec::new(),
        refused: Vec::new(),
        checkpoints: Vec::new(),
        unsettled: false,
        taken: 0,
        reporter,
        published: [
            meters.counter("outputs_published"),
            meters.counter("bytes_published"),
        ],
    };
    running.run(inlet).await
}

/// Returns the chain of the channel that the sink reads. Behind memory, returns the chain whose id the local [`Note`] holds. If
/// there is no such id, or the manifests of that chain were removed, returns a chain with a new id, so that no name is used twice.
async fn own_chain<S: Store>(
    settings: &Settings,
    store: &mut S,
    inlet: &Inlet,
    note: &Note,
) -> Result<Chain, Failure> {
    let writer = random_id()? as u64;
    if let Some(id) = inlet.channel_id() {
        return Ok(Chain::new(&settings.sink, id, writer));
    }
    if let Some((id, _)) = note.said {
        let mut chain = Chain::new(&settings.sink, id, writer);
        if chain.newest(store).await?.is_some() {
            return Ok(chain);
        }
    }
    Ok(Chain::new(&settings.sink, random_id()?, writer))
}

fn random_id() -> Result<u128, Failure> {
    let bytes =
        random::bytes().map_err(|error| Failure::us(format!("no random number: {error}")))?;
    Ok(u128::from_ne_bytes(bytes))
}

impl<S: Store> Running<'_, S> {
    async fn run(mut self, inlet: &mut Inlet) -> Result<(), Failure> {
        loop {
            let wake = self.wake();
            let wait = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(wake.into()).await,
                    None => std::future::pending().await,
                }
            };
            let item = tokio::select! {
                biased;
                item = inlet.next() => Some(item?),
                () = wait => None,
            };
            match item {
                Some(Some(Item::Batch(batch, position))) => {
                    self.unsettled = true;
                    self.taken += batch.len();
                    self.take(inlet, &batch, position).await?;
                    // Full outputs need not wait for the next checkpoint.
                    if self.generation.is_due()
                        && let Some(checkpoint) = inlet.checkpoint_now()
                    {
                        self.unsettled = false;
                        self.checkpoints.push(checkpoint);
                        self.commit(inlet).await?;
                    }
                }
                Some(Some(Item::Checkpoint(checkpoint))) => {
                    self.unsettled = false;
                    self.checkpoints.push(checkpoint);
                    if self.is_due(inlet) {
                        self.commit(inlet).await?;
                    }
                }
                Some(None) => return self.commit(inlet).await,
                None if self.is_due(inlet) => self.commit(inlet).await?,
                None => {}
            }
        }
    }

    /// Returns the time at which to check again whether a manifest is due. None if there are no records, or if batches have arrived
    /// since the last checkpoint. In the second case, the next checkpoint arrives within a second, and the sink checks then.
    fn wake(&self) -> Option<Instant> {
        let since = self.generation.since.filter(|_| !self.unsettled)?;
        let rotate = &self.settings.rotate;
        let interval = rotate.interval.map(|interval| since + interval);
        let idle = rotate.idle.map(|idle| self.generation.touched + idle);
        let look = Some(Instant::now() + LOOK);
        [interval, idle, look].into_iter().flatten().min()
    }

    /// Whether a manifest is due.
    fn is_due(&self, inlet: &Inlet) -> bool {
        let Some(since) = self.generation.since else {
            return true;
        };
        let rotate = &self.settings.rotate;
        let passed = |since: Instant, rule: Option<Duration>| {
            rule.is_some_and(|time| since.elapsed() >= time)
        };
        let much = self.taken >= HURRY_BYTES || since.elapsed() >= HURRY_AGE;
        self.generation.is_due()
            || passed(since, rotate.interval)
            || passed(self.generation.touched, rotate.idle)
            || much && inlet.hurry()
    }

    /// Adds the records of a batch to outputs and rejects those that cannot be written.
    async fn take(
        &mut self,
        inlet: &mut Inlet,
        batch: &Batch,
        position: Option<Position>,
    ) -> Result<(), Failure> {
        self.routes.take(batch, &mut self.directory);
        if !self.routes.runs.is_empty() {
            self.generation.touch(self.settings, &self.chain, position);
        }
        let mut to = To {
            settings: self.settings,
            chain: &self.chain,
            store: &mut self.store,
            encode: &mut *self.encode,
        };
        for run in self.routes.runs.drain(..) {
            let directory = self.routes.directories.get(run.directory);
            let directory = directory.map_or("", |directory| directory.trim_matches('/'));
            if let Some(why) = self.generation.misfit(&mut to, directory).await? {
                refuse(&mut self.refused, batch, run.range, &why);
                continue;
            }
            self.generation
                .add(&mut to, directory, batch, run.range, &mut self.rejects)
                .await?;
        }
        let rejects = self.routes.rejects.drain(..).chain(self.rejects.drain(..));
        self.refused.extend(rejects.map(unencoded));
        for (reason, records) in by_reason(batch, &self.refused) {
            inlet.reject(batch, records, &reason).await;
        }
        self.refused.clear();
        Ok(())
    }

    /// Finishes and publishes all outputs and settles the checkpoints. Must not be called between a batch and its checkpoint.
    async fn commit(&mut self, inlet: &mut Inlet) -> Result<(), Failure> {
        let outputs = self.generation.end(&mut self.store).await?;
        self.taken = 0;
        let mut position = self.chain.position;
        for checkpoint in &mut self.checkpoints {
            position = position.max(checkpoint.kept().await?);
        }
        if !outputs.is_empty() {
            let bytes = outputs.iter().map(|named| named.bytes).sum();
            let tickets: Vec<String> = outputs.iter().map(|named| named.ticket.clone()).collect();
            let places = self.chain.own_places(&outputs);
            if !self.chain.put(&mut self.store, position, outputs).await? {
                return Err(fenced(&self.chain));
            }
            for (place, ticket) in places.iter().zip(&tickets) {
                if self.store.publish(place, ticket).await? == Published::Gone {
                    let text = format!("{} is gone before it was published", place.path());
                    return Err(Failure::peer(text));
                }
            }
            self.store.published(&places).await?;
            self.note.write(self.chain.id, self.chain.number)?;
            let [published, published_bytes] = &self.published;
            published.add(places.len() as u64);
            published_bytes.add(bytes);
            self.reporter.info(
                "published",
                format_args!("published {} outputs, {bytes} bytes", places.len()),
            );
        }
        for checkpoint in self.checkpoints.drain(..) {
            inlet.settle(checkpoint).await?;
        }
        Ok(())
    }
}

fn fenced(chain: &Chain) -> Failure {
    let text = format!(
        "manifest {} of {} was taken by another writer: another Millstream works with a copy of this data_dir and has \
         continued the chain; this one stops, and its outputs since its last manifest stay unpublished. Make sure that only one runs",
        chain.number + 1,
        chain.directory
    );
    Failure::peer(text).never_again()
}
