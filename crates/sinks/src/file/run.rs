//! The file sink at work: takes batches, writes, and settles at checkpoints.
//!
//! `[take] -> encode -> write -> [settle]`
//!
//! What waits is written when nothing more is ready, so an idle stream has no added latency; a busy one is written in
//! large pieces. Behind a durable channel a failure ends the run: the next one recovers and reads again what was not
//! committed. Behind memory nothing can be read again, so a write that fails is tried again until it works, and the
//! source waits.

use std::{
    future::{Future, poll_fn},
    ops::Range,
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millstream_pipeline::{
    condition::Trouble,
    failure::{Again, Failure},
    inlet::{Inlet, Item},
    node::SinkContext,
    report::Reporter,
};
use millstream_record::{Batch, Time};
use millstream_wire::{
    format::{Encoder, Reject},
    template::Renderer,
};

use super::{
    FileSink,
    files::Files,
    pending::GATHER_BYTES,
    recover::{Channel, recover},
    writer::{Style, Writer},
};

/// A busy stream is written at least so often; an idle one at once.
const GATHER: Duration = Duration::from_millis(10);
/// Waits between tries of a write that fails.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A file sink that runs.
pub(super) struct Running {
    pub(super) writer: Writer,
    pub(super) encoder: Encoder,
    pub(super) path: Renderer,
    pub(super) latest: Option<Renderer>,
    /// The path of the records at hand, and of those that come next.
    pub(super) name: Vec<u8>,
    pub(super) next_name: Vec<u8>,
    /// What cannot be encoded of the batch at hand, or lacks a value of its path.
    pub(super) rejects: Vec<Reject>,
    /// What has a path that cannot be a file, and why.
    pub(super) refused: Vec<(Range<usize>, String)>,
    /// What was not committed comes again after a failure.
    durable: bool,
    pub(super) reporter: Reporter,
    /// When a file may be due for rotation or closing.
    due: Option<Instant>,
    flushed: Instant,
}

/// Recovers, then takes what comes until there is no more.
pub(super) async fn run(
    sink: &FileSink,
    inlet: &mut Inlet,
    context: SinkContext,
) -> Result<(), Failure> {
    let SinkContext {
        reporter,
        meters,
        directory,
        ..
    } = context;
    let channel = inlet.channel_id().map(|id| Channel {
        id,
        bounds: inlet.bounds().unwrap_or_default(),
    });
    let recovered = recover(&sink.disk, &directory, channel, sink.codec, &reporter)?;
    inlet.resume(recovered.table.position)?;
    let files = Files::new(
        sink.disk.clone(),
        reporter.clone(),
        sink.open_files,
        channel.is_some(),
        sink.lets_go,
        sink.mode,
        sink.latest.is_some(),
    );
    let encoder = sink.format.encoder();
    let style = Style {
        codec: sink.codec,
        header: Bytes::copy_from_slice(encoder.header()),
        dirty_max: sink.dirty_max,
        lines: sink.codec.is_none() && sink.format.ends_lines(),
    };
    let writer = Writer::new(
        files,
        recovered,
        sink.rotate,
        style,
        reporter.clone(),
        &meters,
    )?;
    let now = Instant::now();
    let mut running = Running {
        writer,
        encoder,
        path: sink.path(),
        latest: sink.latest(),
        name: Vec::new(),
        next_name: Vec::new(),
        rejects: Vec::new(),
        refused: Vec::new(),
        durable: channel.is_some(),
        reporter,
        due: Some(now),
        flushed: now,
    };
    while let Some(item) = running.next(inlet).await? {
        match item {
            Item::Batch(batch, _) => {
                running.take(&batch).await?;
                running.reject(inlet, &batch).await;
            }
            Item::Checkpoint(mut checkpoint) => {
                running.flush().await?;
                let position = checkpoint.kept().await?;
                running.writer.commit(position)?;
                inlet.settle(checkpoint).await?;
            }
        }
    }
    Ok(())
}

impl Running {
    /// The next item. Before it waits for one it writes what waits.
    async fn next(&mut self, inlet: &mut Inlet) -> Result<Option<Item>, Failure> {
        loop {
            self.writer.files.now = Instant::now();
            if self.due.is_some_and(|due| due <= self.writer.files.now) {
                self.flush().await?;
                self.due = self.writer.tick()?;
            }
            if let Some(item) = if_ready(inlet.next()).await {
                return item;
            }
            let gathered = self.flushed + GATHER;
            let holds = self.writer.holds();
            if holds {
                // The next checkpoint writes it.
            } else if self.writer.pending.bytes() >= GATHER_BYTES
                || gathered <= self.writer.files.now
            {
                self.flush().await?;
            }
            let gathered = (!holds && !self.writer.pending.is_empty()).then_some(gathered);
            let wake = gathered.into_iter().chain(self.due).min();
            let wait = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(wake.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                item = inlet.next() => return item,
                () = wait => {}
            }
        }
    }

    /// The file called `name` for a batch that was received then; rotated first if its time is up.
    pub(super) async fn file(&mut self, received: Time) -> Result<u32, Failure> {
        let name = std::mem::take(&mut self.name);
        let mut found = self.patiently(|writer| writer.file(&name, received)).await;
        if let Ok(id) = found
            && (self.writer.is_foreign(id)
                || self.writer.is_doubtful(id)
                || self
                    .writer
                    .rotate
                    .is_old(self.writer.files.get(id), received))
        {
            self.flush().await?;
            self.writer.rotate(id, received)?;
            found = self.patiently(|writer| writer.file(&name, received)).await;
        }
        self.name = name;
        found
    }

    /// Writes what waits.
    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        if self.writer.pending.is_empty() {
            return Ok(());
        }
        self.patiently(Writer::flush).await?;
        self.flushed = self.writer.files.now;
        let due = self.writer.rotate.soonest(self.flushed);
        self.due = Some(self.due.map_or(due, |old| old.min(due)));
        Ok(())
    }

    /// Behind memory: tries again and again.
    async fn patiently<T>(
        &mut self,
        mut act: impl FnMut(&mut Writer) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut wait = RETRY_FIRST;
        // Holds until this returns.
        let mut failing = None;
        loop {
            match act(&mut self.writer) {
                Err(failure)
                    if !self.durable
                        && failure.again != Again::Never
                        && !self.writer.files.sync_failed =>
                {
                    let failing = failing.get_or_insert_with(|| self.reporter.condition("retry"));
                    failing.raise(
                        Trouble::Retrying,
                        format_args!(
                            "{failure}; retrying in {} ms, the source waits",
                            wait.as_millis()
                        ),
                    );
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(RETRY_MAX);
                    self.writer.files.now = Instant::now();
                }
                other => return other,
            }
        }
    }

    /// Sends what cannot be written of `batch` out by the port for rejects: neighbours with the same reason together.
    async fn reject(&mut self, inlet: &mut Inlet, batch: &Batch) {
        let rejects = self.rejects.drain(..);
        self.refused
            .extend(rejects.map(|reject| (reject.range, reject.reason.to_string())));
        for group in self.refused.chunk_by(|a, b| a.1 == b.1) {
            let Some((_, reason)) = group.first() else {
                continue;
            };
            let records = group
                .iter()
                .filter_map(|(range, _)| batch.body.get(range.clone()));
            inlet.reject(batch, records, reason).await;
        }
        self.refused.clear();
    }
}

/// What a future gives if it is ready now.
async fn if_ready<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
