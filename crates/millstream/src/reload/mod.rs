//! Applies a changed configuration to the running pipeline: SIGHUP and `millstream reload`.

mod failed;
mod fingerprint;
mod settings;

use std::{path::PathBuf, thread};

use millstream_config::{Problems, Settings};
use millstream_pipeline::{
    condition::Held,
    failure::Failure,
    layout::Entry,
    reload::{Change, Outcome, Reloader},
    replay::Replay,
};
use millstream_record::Position;
use millstream_sys::signals;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::{
    config::{self, Loaded},
    described::Descriptions,
    page, systemd,
};
use failed::Failed;
use fingerprint::Fingerprint;
use settings::{Waiting, changed_settings};

/// The maximum number of requests of the HTTP interface that wait at a time. Further requests are refused.
const REQUESTS: usize = 16;

/// The handle with which the HTTP interface requests reloads, replays, and changes of consumers.
#[derive(Clone)]
pub struct Requests {
    sender: mpsc::Sender<Request>,
    running: Fingerprint,
    failed: Failed,
}

/// A request of the interface.
pub enum Request {
    /// Reload, and let the configuration remove these sinks even if they have not settled everything.
    Reload(Vec<String>, oneshot::Sender<Report>),
    /// Replay the records that this node rejected.
    Replay(String, oneshot::Sender<Result<Replay, String>>),
    /// Forget a consumer of a channel.
    Forget(String, String, oneshot::Sender<Option<Forgotten>>),
    /// Move a consumer of a channel past records.
    Skip(Skip, oneshot::Sender<Option<Skipped>>),
}

/// The records that a consumer is to skip: all up to a position.
pub struct Skip {
    /// The channel.
    pub channel: String,
    /// The id of the channel. If the running channel of this name has another id, nothing is skipped.
    pub id: u128,
    /// The consumer.
    pub consumer: String,
    /// The last position to skip.
    pub to: Position,
}

/// Resolves when a consumer has been moved. The value is the number of skipped records that the consumer had not settled.
type Skipped = oneshot::Receiver<Result<u64, String>>;

/// Resolves when a consumer is forgotten.
type Forgotten = oneshot::Receiver<Result<(), String>>;

/// Applies changes of the configuration files to the running pipeline.
pub struct Reload {
    paths: Vec<PathBuf>,
    /// The nodes that run.
    entries: Vec<Entry>,
    settings: Settings,
    reloader: Reloader,
    requests: mpsc::Receiver<Request>,
    running: Fingerprint,
    failed: Failed,
    descriptions: Descriptions,
}

/// The outcome of a reload.
#[derive(Debug)]
pub enum Report {
    /// The pipeline runs with the new configuration.
    Applied {
        /// The nodes that run, and those that were removed.
        changes: Vec<Change>,
        /// The changes that need a restart.
        waiting: Vec<Waiting>,
        /// The warnings about the configuration.
        warnings: Problems,
    },
    /// The configuration cannot be used. Nothing has changed.
    Refused(Problems),
    /// The pipeline cannot run with the configuration, or is stopping. Nothing has changed.
    Failed(String),
}

/// The answer while the pipeline stops.
const STOPS: &str = "Millstream drains and stops";

/// Reads the configuration on a separate thread. That can take seconds (programs are compiled, files may be slow), and the HTTP
/// interface and the signals must not wait for it.
async fn read(paths: Vec<PathBuf>) -> Result<Loaded, Report> {
    let (answer, loaded) = oneshot::channel();
    let work = move || {
        signals::hold().keep();
        drop(answer.send(config::read(&paths)));
    };
    let thread = thread::Builder::new().name("config".into()).spawn(work);
    let failed = |why: String| Report::Failed(format!("cannot read the configuration: {why}"));
    thread.map_err(|error| failed(format!("no thread can start: {error}")))?;
    let loaded = loaded.await;
    loaded
        .map_err(|_| failed("the thread that reads it has panicked".to_owned()))?
        .map_err(Report::Refused)
}

impl Requests {
    /// Reloads. Sinks in `forget` may be removed even if they have not settled everything. `None`: too many requests wait, or the
    /// process is ending.
    pub async fn reload(&self, forget: Vec<String>) -> Option<Report> {
        let (answer, report) = oneshot::channel();
        self.sender.try_send(Request::Reload(forget, answer)).ok()?;
        report.await.ok()
    }

    /// The fingerprint of the configuration that runs.
    pub fn fingerprint(&self) -> String {
        self.running.get()
    }

    /// The condition of the process while the last reload has failed.
    pub fn failed(&self) -> Option<Held> {
        self.failed.held()
    }

    /// Asks a channel to forget a consumer. `None`: no such channel runs, too many requests wait, or the process is ending.
    pub async fn forget(&self, channel: &str, consumer: &str) -> Option<Result<(), String>> {
        let (answer, asked) = oneshot::channel();
        let request = Request::Forget(channel.to_owned(), consumer.to_owned(), answer);
        self.sender.try_send(request).ok()?;
        asked.await.ok()??.await.ok()
    }

    /// Moves a consumer past records and restarts its sink. Returns the number of skipped records that the consumer had not settled.
    /// `None`: no channel with this name and id runs, too many requests wait, or the process is ending.
    pub async fn skip(&self, skip: Skip) -> Option<Result<u64, String>> {
        let (answer, asked) = oneshot::channel();
        self.sender.try_send(Request::Skip(skip, answer)).ok()?;
        asked.await.ok()??.await.ok()
    }

    /// Prepares a replay of the records that a node rejected, or returns why they cannot be replayed. `None`: too many requests wait, or
    /// the process is ending.
    pub async fn replay(&self, node: &str) -> Option<Result<Replay, String>> {
        let (answer, replay) = oneshot::channel();
        let request = Request::Replay(node.to_owned(), answer);
        self.sender.try_send(request).ok()?;
        replay.await.ok()
    }
}

impl Reload {
    /// Takes the files of the configuration, and the nodes and settings that run now. Also returns the handle for requests.
    pub fn new(
        paths: &[PathBuf],
        entries: Vec<Entry>,
        settings: Settings,
        reloader: Reloader,
        descriptions: Descriptions,
    ) -> (Self, Requests) {
        let (sender, requests) = mpsc::channel(REQUESTS);
        let running = Fingerprint::default();
        running.set(&settings, &entries);
        let failed = Failed::default();
        let reload = Self {
            running: running.clone(),
            failed: failed.clone(),
            paths: paths.to_vec(),
            entries,
            settings,
            reloader,
            requests,
            descriptions,
        };
        let requests = Requests {
            sender,
            running,
            failed,
        };
        (reload, requests)
    }

    /// Waits for a request of the interface. No request is lost if the future is dropped.
    pub async fn requested(&mut self) -> Request {
        match self.requests.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }

    /// Answers a request of the interface. `stopping`: the pipeline drains.
    pub async fn answer(&mut self, request: Request, stopping: bool) {
        // If the client is gone, the answer is dropped.
        match request {
            Request::Reload(forget, answer) => {
                drop(answer.send(self.reload(stopping, &forget).await));
            }
            Request::Replay(_, answer) if stopping => {
                drop(answer.send(Err(STOPS.to_owned())));
            }
            Request::Forget(channel, consumer, answer) => {
                drop(answer.send(self.reloader.forget_consumer(&channel, &consumer)));
            }
            Request::Skip(skip, answer) => {
                let channel = (&*skip.channel, skip.id);
                drop(answer.send(self.reloader.skip(channel, &skip.consumer, skip.to)));
            }
            Request::Replay(node, answer) => drop(answer.send(self.reloader.replay(&node))),
        }
    }

    /// Reads the configuration and applies it; logs the result. `stopping`: the pipeline drains. Sinks in `forget` may be removed
    /// even if they have not settled everything.
    pub async fn reload(&mut self, stopping: bool, forget: &[String]) -> Report {
        systemd::notify("RELOADING=1");
        let report = match stopping {
            true => Report::Failed(STOPS.to_owned()),
            false => {
                let report = match read(self.paths.clone()).await {
                    Ok(loaded) => self.apply(loaded, forget).await,
                    Err(report) => report,
                };
                self.failed.note(&report);
                report
            }
        };
        systemd::notify("READY=1");
        report.log();
        report
    }

    async fn apply(&mut self, loaded: Loaded, forget: &[String]) -> Report {
        let Loaded {
            plan,
            entries,
            settings,
            warnings,
            ..
        } = loaded;
        let described = Descriptions::new(&plan, &entries);
        // Threads that start meanwhile never take signals.
        let held = signals::hold();
        let reloaded = self.reloader.reload(plan, forget).await;
        drop(held);
        match reloaded {
            Ok(changes) => {
                self.descriptions.replace(described);
                self.entries = entries;
                self.running.set(&self.settings, &self.entries);
                Report::Applied {
                    changes,
                    waiting: changed_settings(&settings, &self.settings),
                    warnings,
                }
            }
            Err(Failure { message, .. }) => Report::Failed(message),
        }
    }
}

impl Report {
    fn log(&self) {
        match self {
            Self::Applied {
                changes, waiting, ..
            } => {
                tracing::info!("reloaded: {}", summary(changes));
                for Waiting { what, why } in waiting {
                    tracing::warn!("{what}: {why}; this needs a restart");
                }
            }
            Self::Refused(problems) => {
                let (errors, _) = problems.counts();
                for problem in &problems.0 {
                    // A log line has no line breaks.
                    let message = problem.message.replace('\n', " ");
                    let help = problem.help.iter().map(|help| format!("; {help}"));
                    let help: String = help.collect();
                    tracing::error!("{}: {message}{help}", problem.place);
                }
                let errors = page::count(errors, "error");
                tracing::error!(
                    "cannot reload: {errors} in the configuration; nothing has changed"
                );
            }
            Self::Failed(why) => tracing::error!("cannot reload: {why}; nothing has changed"),
        }
    }

    /// The outcome as the interface answers it.
    pub fn json(&self) -> Value {
        match self {
            Self::Applied {
                changes,
                waiting,
                warnings,
            } => {
                let change =
                    |it: &Change| json!({ "node": &*it.node, "outcome": it.outcome.name() });
                let waits = |it: &Waiting| json!({ "what": &*it.what, "why": it.why });
                json!({
                    "applied": true,
                    "nodes": changes.iter().map(change).collect::<Vec<_>>(),
                    "needs_restart": waiting.iter().map(waits).collect::<Vec<_>>(),
                    "warnings": warnings.render(false),
                })
            }
            Self::Refused(problems) => {
                json!({ "applied": false, "problems": problems.render(false) })
            }
            Self::Failed(why) => json!({ "applied": false, "why": why }),
        }
    }
}

/// The outcomes, each with the names of its nodes. Nodes that are kept are not named, only counted.
fn summary(changes: &[Change]) -> String {
    let outcomes = [
        Outcome::Added,
        Outcome::Replaced,
        Outcome::Removed,
        Outcome::Reconnected,
        Outcome::Kept,
    ];
    let count = |outcome: Outcome| {
        let all = changes.iter().filter(|change| change.outcome == outcome);
        match (all.clone().count(), outcome) {
            (0, _) => None,
            (count, Outcome::Kept) => Some(format!("{count} kept")),
            (_, outcome) => {
                let names: Vec<_> = all.map(|change| &*change.node).collect();
                Some(format!("{} {}", outcome.name(), names.join(", ")))
            }
        }
    };
    let counts: Vec<_> = outcomes.into_iter().filter_map(count).collect();
    counts.join("; ")
}
