//! The channel `disk`: a durable segment log of our own.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> [keep] -> [read back] -> process -> encode -> write -> settle`
//!
//! `log` is the log itself, without threads or a clock. writer.rs drives the log on its own thread, behind a queue that is bounded in
//! bytes, and settles the tokens of kept groups. reader.rs is a consumer's view of the log. README.md says what the channel promises.

mod abandoned;
mod gauges;
mod keep_clock;
pub mod log;
mod loss_report;
mod options;
mod queue;
mod reader;
mod segment_maker;
mod skips;
#[cfg(test)]
mod tests;
mod unkept;
mod writer;

use std::{any::Any, path::Path, sync::Arc, thread};

use millstream_config::{Node, Problem};
use millstream_pipeline::{
    channel::{self, Apply, Attached, BoxFuture, Channel, Consumer, Group, Note},
    delivery::Token,
    failure::Failure,
    node::{Build, ChannelConfig, ChannelContext, Component, Opened},
    promise::{Guarantee, Promise},
};
use millstream_record::{FileId, Position};
use millstream_sys::disk::{Disk, HostDisk};
use tokio::sync::oneshot;

use log::{ChannelId, Error, Log, Recovered, Sync, Watch, unsettled};
use loss_report::LossReport;
use options::Config;
use queue::{Queue, Request};
use reader::DiskReader;
use writer::{Shared, keep_now};

/// The entry in the list of channels.
pub const COMPONENT: Component = Component {
    name: "disk",
    summary: "A durable log on this machine's disk: what it has kept survives a crash, and repeats are recognized.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Channel(build),
};

fn build(_name: &str, options: &Node) -> Result<Box<dyn ChannelConfig>, Vec<Problem>> {
    let config = options.read::<Config>()?;
    match config.problem() {
        Some((option, message)) => Err(vec![options.problem_at(option, message)]),
        None => Ok(Box::new(config)),
    }
}

impl ChannelConfig for Config {
    fn open(&self, context: ChannelContext, consumers: &[Consumer]) -> Result<Opened, Failure> {
        open(self, Arc::new(HostDisk), context, consumers)
    }

    fn disk_bytes(&self) -> u64 {
        self.options().size_max
    }

    fn options(&self) -> Box<dyn Any + Send> {
        Box::new(self.clone())
    }

    fn promise(&self) -> Promise {
        let condition = match self.sync() {
            Sync::Batch => String::new(),
            Sync::Every(time) => {
                format!("a power cut may lose or duplicate what was kept in the last {time:?}")
            }
            Sync::Never => {
                "a power cut may lose or duplicate what the system has not written yet".to_owned()
            }
        };
        Promise::new(Guarantee::ExactlyOnce, condition)
    }
}

/// Opens the log and starts its writer.
fn open(
    config: &Config,
    disk: Arc<dyn Disk>,
    context: ChannelContext,
    consumers: &[Consumer],
) -> Result<Opened, Failure> {
    create_parents(&context.directory)?;
    let (mut log, recovered) = Log::open(
        Arc::clone(&disk),
        &context.directory,
        config.options(),
        random_id()?,
    )
    .map_err(|error| not_opened(&context.directory, error))?;
    report_start(&context, &recovered);
    let missing = Arc::new(LossReport::new(&context, &log));
    missing.report();
    let queue = Arc::new(Queue::new(config.queue_bytes()));
    let watch = log.watch();
    let mut readers: Vec<Box<dyn channel::Reader>> = Vec::new();
    for consumer in consumers {
        let reader = log
            .reader(&consumer.name, consumer.behind, context.pool.clone())
            .map_err(|error| not_opened(&context.directory, error))?
            .with_tags(consumer.tags.clone());
        readers.push(Box::new(DiskReader::new(
            reader,
            Arc::clone(&queue),
            context.reporter.clone(),
            Arc::clone(&missing),
        )));
    }
    log.note_unread();
    log.count_unclaimed(consumers);
    let id = u128::from_be_bytes(log.id().0);
    let parts = (disk, Arc::clone(&queue), missing.clone());
    let (writer, finished) = writer::start(log, parts, context, consumers)?;
    let channel = DiskChannel {
        queue,
        writer,
        watch,
        _missing: missing,
        id,
    };
    Ok(Opened {
        channel: Arc::new(channel),
        readers,
        finished,
    })
}

/// The channel as producers see it.
struct DiskChannel {
    queue: Arc<Queue>,
    writer: Arc<Shared>,
    watch: Watch,
    /// Never read. The condition that the report has raised lasts as long as this reference is held.
    _missing: Arc<LossReport>,
    id: u128,
}

impl Channel for DiskChannel {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let left = match group.token.is_alone() {
                true => keep_now(&self.writer, &self.queue, group),
                false => Some(group),
            };
            if let Some(group) = left {
                self.queue.put(group).await;
            }
        })
    }

    fn note(&self, note: Note) {
        self.queue.note(note);
    }

    fn sync(&self, token: Token) {
        self.queue.sync(token);
    }

    fn is_full(&self) -> bool {
        self.queue.is_full()
    }

    fn space(&self) -> Option<(u64, u64)> {
        let (used, limit) = self.watch.space();
        match self.queue.is_full() {
            true => Some((limit, limit)),
            false => Some((used.min(limit), limit)),
        }
    }

    fn close(&self) {
        self.queue.close();
    }

    fn give_up_waiting(&self) {
        self.queue.give_up_waiting();
    }

    fn file_origins(&self) -> Option<Vec<(FileId, u64)>> {
        Some(self.watch.file_origins())
    }

    fn file_mark(&self, file: &FileId) -> Option<u64> {
        self.watch.file_mark(file)
    }

    fn attach(&self, consumer: Consumer) -> oneshot::Receiver<Result<Attached, String>> {
        let (answer, receiver) = oneshot::channel();
        self.queue.request(Request::Attach(consumer, answer));
        receiver
    }

    fn unsettled_bytes(&self, consumer: &str) -> u64 {
        self.watch.backlog_bytes(consumer)
    }

    fn backlog(&self) -> Option<channel::Backlog> {
        let watch = self.watch.clone();
        Some(Box::new(move || watch.backlog_bytes_max()))
    }

    fn change(&self, options: Box<dyn Any + Send>) -> Option<Apply> {
        let config = options.downcast::<Config>().ok()?;
        // A reader knows from its start whether batches may be skipped for it.
        let skips = !config.options().max_age.is_zero();
        if self.queue.ended().is_some() || skips == self.watch.max_age().is_zero() {
            return None;
        }
        let queue = Arc::clone(&self.queue);
        Some(Box::new(move || queue.request(Request::Change(*config))))
    }

    fn forget(&self, consumer: &str) -> oneshot::Receiver<Result<(), String>> {
        let (answer, receiver) = oneshot::channel();
        let consumer = consumer.to_owned();
        self.queue.request(Request::Forget(consumer, answer));
        receiver
    }

    fn abandon(&self, consumer: &str) {
        self.queue.request(Request::Abandon(consumer.to_owned()));
    }

    fn skip(&self, consumer: &str, to: Position) -> oneshot::Receiver<Result<u64, String>> {
        let (answer, receiver) = oneshot::channel();
        let (watch, queue) = (self.watch.clone(), Arc::clone(&self.queue));
        let (channel, consumer) = (ChannelId(self.id.to_be_bytes()), consumer.to_owned());
        // Counting a large backlog takes long. On the writer's thread it would make the sources wait.
        let thread = thread::Builder::new().name("skip".to_owned());
        let counting = thread.spawn(move || {
            let unsettled = unsettled(&watch, channel, &consumer, to);
            queue.request(Request::Skip(consumer, to, unsettled, answer));
        });
        match counting {
            Ok(_) => receiver,
            Err(error) => {
                let (answer, failed) = oneshot::channel();
                let _ = answer.send(Err(format!("cannot start a thread: {error}")));
                failed
            }
        }
    }

    fn id(&self) -> Option<u128> {
        Some(self.id)
    }
}

/// Converts an error at a start to a failure. If only an operator can remedy the error, the failure stops this channel and no other
/// node.
fn not_opened(directory: &Path, error: Error) -> Failure {
    let text = error.to_string();
    match error {
        Error::Disk { .. } => Failure::state(format!(
            "{text}; repair it, or move {} away to begin a new channel, and restart Millstream",
            directory.display()
        )),
        Error::Newer { .. } | Error::NoIdentity(_) => Failure::state(text),
        error => failure(error),
    }
}

/// Converts an error of the log to a failure.
fn failure(error: Error) -> Failure {
    let text = error.to_string();
    match error {
        Error::Name(_) => Failure::disk(text).never_again(),
        Error::Consumer(_) | Error::TooLarge { .. } => Failure::us(text),
        _ => Failure::disk(text),
    }
}

/// Creates the directories above the directory of the channel, and makes their names durable.
fn create_parents(directory: &Path) -> Result<(), Failure> {
    let missing: Vec<&Path> = directory
        .ancestors()
        .skip(1)
        .take_while(|parent| !parent.as_os_str().is_empty() && !parent.exists())
        .collect();
    for parent in missing.into_iter().rev() {
        let created = HostDisk.create_directory(parent).and_then(|()| {
            let above = parent
                .parent()
                .filter(|above| !above.as_os_str().is_empty());
            HostDisk.sync_directory(above.unwrap_or(Path::new(".")))
        });
        created.map_err(|error| Failure::disk(format!("{}: {error}", parent.display())))?;
    }
    Ok(())
}

fn random_id() -> Result<ChannelId, Failure> {
    let id = millstream_sys::random::bytes();
    id.map(ChannelId)
        .map_err(|error| Failure::disk(format!("no random numbers: {error}")))
}

/// Reports the results of the start.
fn report_start(context: &ChannelContext, recovered: &Recovered) {
    let reporter = &context.reporter;
    reporter.info(
        "start",
        format_args!(
            "{}: channel {}, kept up to {}",
            context.directory.display(),
            recovered.channel,
            recovered.kept
        ),
    );
    if !recovered.clean {
        reporter.warn(
            "recovery",
            format_args!(
                "the last stop was not clean: epoch {} begins, and {} bytes of a torn tail were dropped",
                recovered.epoch, recovered.torn_bytes
            ),
        );
    }
    let damage = recovered.damage.iter();
    let damage: Vec<String> = damage
        .map(|(path, what)| format!("{}: {what}", path.display()))
        .collect();
    if !damage.is_empty() {
        reporter.error("damage", damage.join("; "));
    }
    if let Some(settled) = recovered.taken_by_power {
        reporter.warn(
            "power",
            format_args!(
                "a consumer has settled up to {settled} and the channel ends at {}: a power cut has taken what was not synced \
                 (the option `sync`)",
                recovered.kept
            ),
        );
    }
}
