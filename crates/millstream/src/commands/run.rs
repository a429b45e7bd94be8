//! `millstream run`: starts the pipeline, handles signals, drains, and reports how it ended.

use std::{future::pending, io, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use clap::Args;
use millstream_channels::memory::MemoryChannel;
use millstream_net::handover::{self, Next};
use millstream_pipeline::{
    failure::Failure,
    guard::guarded,
    launch::{Launch, launch},
    meters::Meters,
    redact::{self, Redaction},
    running::Running,
};
use millstream_processors::kill_programs;
use millstream_sys::{child, signals};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    api::{self, Pusher, Shown},
    clock, config,
    deadline::Deadline,
    described::Descriptions,
    exit, log, page,
    progress::Progress,
    reload::Reload,
    systemd,
    upgrade::Upgrade,
};

/// The part of the drain time that is reserved for closing the channels. At most a quarter of the drain time is reserved. Closing a channel
/// takes two syncs.
const CLOSE: Duration = Duration::from_secs(2);
/// The maximum time for the steps after the stop: ending the runtime and the programs of processors.
const END: Duration = Duration::from_secs(1);
/// The maximum time for writing the last log lines.
const LAST_LINES: Duration = Duration::from_millis(500);

/// The time in which the runtime hands over a signal that a handler has caught.
const CAUGHT: Duration = Duration::from_millis(5);

/// Run the pipeline until SIGTERM or SIGINT, then drain.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream run                         the configuration of /etc/millstream
  millstream run --once millstream.yaml  until the inputs have ended and everything is settled
  echo hello | millstream run --once stdin.yaml

With `--once`, records that were rejected and that no node takes (`inputs: [\"*.rejected\"]`) make the exit code 1: they are \
kept in data_dir/rejected, and `millstream rejected cat` shows them.

Signals: SIGTERM and SIGINT drain (a second one ends it at once). SIGUSR1 logs a line with the state of every node. \
SIGHUP reads the configuration again, as `millstream reload` does. SIGUSR2 replaces the program by the one that is now in its \
file: the new program checks the configuration, then the old one drains, and the addresses stay open.

A stop never waits longer than `--drain`. Records in a disk channel stay there for the next start. Records that wait in front \
of a full disk channel were not accepted; senders that wait for an answer send them again.

Exit codes: 0 drained, or all that was accepted is in disk channels; 1 it could not start, gave up, or lost or left \
something behind (also rejected records); 64 wrong command line; 78 wrong configuration")]
pub struct Run {
    /// Configuration files and directories (`*.yaml` in order of name); they are merged.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    /// End when the inputs have ended and everything is settled.
    #[arg(long)]
    once: bool,
    /// The drain deadline after a signal, such as `30s`; then the rest stays in the channels.
    #[arg(long, default_value = "30s", value_parser = config::period)]
    drain: Duration,
}

impl Run {
    /// Runs; returns the exit code.
    pub fn execute(self) -> u8 {
        if handover::inherit() {
            child::adopt();
        }
        // The descriptors of the earlier program belong to this process alone from now on. If it dies, systemd must not pass it on again.
        systemd::unstore(&handover::names());
        if systemd::has_store() {
            handover::set_next(Next::Manager);
        }
        let loaded = match config::read(&self.config) {
            Ok(loaded) => loaded,
            Err(problems) => return config::complain(&problems),
        };
        if let Err(error) = log::start(&loaded.settings.log) {
            return page::complain(&format!("cannot start the log: {error}"), exit::FAILED);
        }
        log::show(&config::rendered(&loaded.warnings));
        raise_open_files();
        let upgrade = Upgrade::new(&self.config);
        let (code, end) = self.run_to_end(loaded, &upgrade).unwrap_or_else(|error| {
            tracing::error!("cannot start a runtime: {error}");
            (exit::FAILED, None)
        });
        kill_programs();
        let code = match end {
            Some(Asked::Upgrade) => {
                log::flush(LAST_LINES);
                let code = upgrade.execute();
                // There is no next program, so everything that was left for it is given up.
                handover::store_left(|_| false);
                code
            }
            Some(Asked::Stop) | None => code,
        };
        log::flush(LAST_LINES);
        code
    }

    /// Runs on this thread until the end. Returns the same as [`Run::run`].
    fn run_to_end(
        &self,
        loaded: config::Loaded,
        upgrade: &Upgrade,
    ) -> io::Result<(u8, Option<Asked>)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Only the main thread takes signals, so that all of them can wait during an upgrade.
            .on_thread_start(|| signals::hold().keep())
            .build()?;
        let deadline = Deadline::start(self.drain)?;
        let run = guarded(self.run(loaded, upgrade, &deadline));
        let ended = runtime.block_on(run);
        deadline.doing("ending");
        deadline.begin(END);
        // A lookup of a name that hangs must not keep the process, so its thread is not waited for.
        runtime.shutdown_background();
        Ok(ended.unwrap_or_else(|panic| {
            tracing::error!("the main thread panicked: {}", panic.0);
            (exit::FAILED, None)
        }))
    }

    /// Runs until the end. Returns the exit code, and the request that ended the run; `None` if no request ended it.
    async fn run(
        &self,
        loaded: config::Loaded,
        upgrade: &Upgrade,
        deadline: &Deadline,
    ) -> (u8, Option<Asked>) {
        let (mut running, mut events) = match self.start(loaded, upgrade).await {
            Ok(started) => started,
            Err(failure) => {
                // The configuration is valid, but something it names is missing, perhaps temporarily.
                tracing::error!("{failure}");
                return (exit::FAILED, None);
            }
        };
        deadline.running(&running.nodes);
        millstream_sources::abandon_left();
        for address in handover::close_rest() {
            tracing::warn!(
                "nothing listens at {address}, which this process was started with: it is closed"
            );
        }
        tracing::info!(
            "started {}{}",
            page::count(running.nodes.now().len(), "node"),
            at(&events.pages)
        );
        systemd::notify("READY=1");
        let (ended, asked) = self.until_ended(&mut running, &mut events, deadline).await;
        deadline.doing("sending the last metrics");
        if let Some(pusher) = events.pusher.take() {
            pusher.finish(deadline.left()).await;
        }
        let code = match ended {
            Some(failures) if failures.is_empty() => self.drained(&running),
            // The log already has the reason of the failed node.
            Some(_) => exit::FAILED,
            None => {
                let left = running.pending_records();
                tracing::error!(
                    "{left} records were left unsettled; senders that wait for an ack will send theirs again"
                );
                exit::FAILED
            }
        };
        tracing::info!("{}", last_line(code, &running.left()));
        let asked = match asked {
            Some(Asked::Upgrade) => {
                deadline.hold_signals().await;
                Some(events.last_stop().await)
            }
            other => other,
        };
        if asked != Some(Asked::Upgrade) {
            deadline.doing("passing the mounts to systemd");
            let is_stored = systemd::has_store();
            handover::store_left(|left| is_stored && systemd::store(left));
        }
        (code, asked)
    }

    /// The exit code of a run that ended without failed nodes. Lost records are a failure. Rejected records that a job (`--once`) leaves in
    /// `data_dir` are a failure, too.
    fn drained(&self, running: &Running) -> u8 {
        let lost = running.lost_records();
        if lost > 0 {
            tracing::error!(
                "{lost} records found no space before the stop and are lost: their senders cannot send them again"
            );
            return exit::FAILED;
        }
        let rejected = running.rejected_records();
        if !self.once || rejected.is_empty() {
            return exit::DRAINED;
        }
        let nodes = rejected.iter();
        let nodes: Vec<_> = nodes
            .map(|(node, count)| format!("{node}: {count}"))
            .collect();
        let all: u64 = rejected.iter().map(|(_, count)| count).sum();
        tracing::error!(
            "{} rejected and kept in {} ({}); show them with `millstream rejected cat`",
            page::count(usize::try_from(all).unwrap_or(usize::MAX), "record"),
            running.rejected_place().display(),
            nodes.join(", ")
        );
        exit::FAILED
    }

    /// Installs the signal handlers, then binds the addresses of the HTTP interface, then starts the pipeline. The signals wait until
    /// the pipeline runs, so that the threads of the pipeline never take them.
    async fn start(
        &self,
        loaded: config::Loaded,
        upgrade: &Upgrade,
    ) -> Result<(Running, Events), Failure> {
        let signals = Signals::new()?;
        let held = signals::hold();
        let bound = api::bind(
            &loaded.settings.api,
            loaded.api_tls,
            loaded.api_is_chosen,
            &loaded.settings.host,
        )
        .await?;
        redact::choose(Redaction::new(&loaded.settings.api.redact));
        let start = Launch {
            once: self.once,
            open_memory: MemoryChannel::open,
            meters: Meters::default(),
        };
        millstream_processors::bound_memory(loaded.plan.settings.memory_max);
        let descriptions = Descriptions::new(&loaded.plan, &loaded.entries);
        let (running, reloader) = launch(loaded.plan, start).await?;
        drop(held);
        signals::release();
        let (reload, requests) = Reload::new(
            &self.config,
            loaded.entries,
            loaded.settings.clone(),
            reloader,
            descriptions.clone(),
        );
        let pages = bound.addresses(&config::host(&loaded.settings));
        let shown = bound.serve(&running, requests, descriptions, &loaded.settings);
        let events = Events {
            signals,
            pusher: Pusher::start(shown.clone()),
            shown,
            pages,
            reload,
            upgrade: upgrade.clone(),
            once: self.once,
        };
        Ok((running, events))
    }

    /// Waits for the end. Returns the failures of nodes as [`drain`] does, and the request that ended the run, if there was one.
    async fn until_ended(
        &self,
        running: &mut Running,
        events: &mut Events,
        deadline: &Deadline,
    ) -> (Option<Vec<Failure>>, Option<Asked>) {
        let mut progress = Progress::new(self.once, &running.meters);
        let mut stopping = running.stopping();
        let mut asked = tokio::select! {
            failures = running.ended() => {
                if failures.is_empty() && !self.once {
                    tracing::info!("the sinks have delivered everything: the process ends");
                }
                return (Some(failures), None);
            }
            asked = guarded(events.ask_to_end(false)) => asked.unwrap_or_else(|panic| {
                running.fail(Failure::us(format!("the main thread panicked: {}", panic.0)));
                Asked::Stop
            }),
            // A node has failed permanently, which stops all others.
            () = stopping.stopped() => Asked::Stop,
            () = progress.show() => Asked::Stop,
            () = clock::watch() => Asked::Stop,
        };
        drop(progress);
        deadline.begin(self.drain);
        deadline.doing("draining");
        events.shown.drain();
        match asked {
            Asked::Stop => systemd::notify("STOPPING=1"),
            Asked::Upgrade => {
                handover::keep();
                systemd::notify("RELOADING=1");
            }
        }
        tracing::info!(
            "draining for at most {} s; a second signal ends it at once",
            self.drain.as_secs()
        );
        running.stop();
        let limit = deadline.left().min(self.drain);
        let ended = drain(running, events, limit, &mut asked).await;
        (ended, Some(asked))
    }
}

/// Waits after the stop until all nodes have ended, and returns their failures. If a second stop arrives first, returns `None`. If
/// `limit` passes first, returns an empty list if all accepted records are in disk channels, and otherwise `None`. A stop during the
/// drain of an upgrade turns `asked` into a stop.
async fn drain(
    running: &mut Running,
    events: &mut Events,
    limit: Duration,
    asked: &mut Asked,
) -> Option<Vec<Failure>> {
    let close = CLOSE.min(limit / 4);
    tokio::select! {
        failures = running.ended() => return Some(failures),
        () = tokio::time::sleep(limit - close) => {}
        () = events.ask_again(asked) => return None,
    }
    running.give_up_waiting();
    tokio::select! {
        failures = running.ended() => return Some(failures),
        () = tokio::time::sleep(close) => {}
        () = events.ask_again(asked) => return None,
    }
    running.is_all_kept().await.then(Vec::new)
}

/// Where the live page is, as the end of the line about the start.
fn at(pages: &[String]) -> String {
    match pages {
        [] => String::new(),
        _ => format!("; live page: {}", pages.join(" and ")),
    }
}

/// The last line of a run: what is left in the disk channels (`left`, in bytes) for the next start.
fn last_line(code: u8, left: &[(&str, u64)]) -> String {
    let left = left.iter();
    let left: Vec<_> = left
        .map(|(channel, bytes)| format!("{} in {channel}", page::bytes(*bytes)))
        .collect();
    match (code, &*left) {
        (exit::DRAINED, []) => "stopped: nothing is left".to_owned(),
        (_, []) => "stopped with errors, see above; nothing is left in disk channels".to_owned(),
        (exit::DRAINED, left) => format!("stopped: {} for the next start", left.join(", ")),
        (_, left) => format!(
            "stopped with errors, see above; {} for the next start",
            left.join(", ")
        ),
    }
}

/// The signals that the program handles.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    usr1: Signal,
    usr2: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::us(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            term: listen(SignalKind::terminate())?,
            int: listen(SignalKind::interrupt())?,
            hup: listen(SignalKind::hangup())?,
            usr1: listen(SignalKind::user_defined1())?,
            usr2: listen(SignalKind::user_defined2())?,
        })
    }

    /// Resolves when the process is asked to stop.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// Signals and requests that arrive while the pipeline runs.
struct Events {
    signals: Signals,
    shown: Arc<Shown>,
    /// The addresses of the live page.
    pages: Vec<String>,
    pusher: Option<Pusher>,
    reload: Reload,
    upgrade: Upgrade,
    once: bool,
}

/// The request of an operator that ends the run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Stop,
    /// Replace this program by the one that is now in its file.
    Upgrade,
}

impl Events {
    /// Handles signals and requests during the drain, until a second stop ends it. The first stop after an upgrade only ends the upgrade.
    async fn ask_again(&mut self, asked: &mut Asked) {
        self.ask_to_end(true).await;
        if *asked == Asked::Upgrade {
            *asked = Asked::Stop;
            systemd::notify("STOPPING=1");
            tracing::info!("stopping instead of upgrading; another signal ends the drain at once");
            self.ask_to_end(true).await;
        }
    }

    /// From now on, signals wait for the program that replaces this one. Returns a stop that this program has already caught, and
    /// otherwise [`Asked::Upgrade`].
    async fn last_stop(&mut self) -> Asked {
        signals::hold().keep();
        match tokio::time::timeout(CAUGHT, self.signals.stop()).await {
            Ok(()) => Asked::Stop,
            Err(_) => Asked::Upgrade,
        }
    }

    /// Handles signals and requests until one of them ends the run, and returns that request. `stopping` is true while the pipeline drains.
    async fn ask_to_end(&mut self, stopping: bool) -> Asked {
        let Self {
            signals,
            shown,
            reload,
            upgrade,
            once,
            pages: _,
            pusher: _,
        } = self;
        let mut check = None;
        loop {
            tokio::select! {
                _ = signals.term.recv() => return Asked::Stop,
                _ = signals.int.recv() => return Asked::Stop,
                _ = signals.usr1.recv() => tracing::info!("{}", shown.line()),
                _ = signals.usr2.recv(), if !stopping && !*once => match check {
                    None => check = Some(Box::pin(upgrade.check())),
                    Some(_) => tracing::warn!("SIGUSR2 is ignored: the new program still checks the configuration"),
                },
                checked = ended(&mut check) => match checked {
                    Ok(()) => return Asked::Upgrade,
                    Err(why) => {
                        check = None;
                        tracing::error!("not upgraded, everything runs as before: {why}");
                    }
                },
                // A reload that waits must not keep the process from its end.
                _ = signals.hup.recv() => tokio::select! {
                    _ = reload.reload(stopping, &[]) => {}
                    () = signals.stop() => return Asked::Stop,
                },
                // A request is only awaited here: another signal must not interrupt a change.
                request = reload.requested() => tokio::select! {
                    () = reload.answer(request, stopping) => {}
                    () = signals.stop() => return Asked::Stop,
                },
            }
        }
    }
}

/// Returns the result of the task; never returns if there is no task.
async fn ended<T>(task: &mut Option<Pin<Box<impl Future<Output = T>>>>) -> T {
    match task {
        Some(task) => task.await,
        None => pending().await,
    }
}

/// Raises the soft limit of open files to the hard limit. The usual soft limit of 1024 only protects programs that call `select`.
/// Millstream does not need this protection. Its connections and outputs have separate limits in the configuration.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_the_page_and_the_last_line_what_is_left() {
        assert_eq!(at(&[]), "");
        let pages = ["http://127.0.0.1:8687/", "https://agg-1:8688/"].map(str::to_owned);
        let expected = "; live page: http://127.0.0.1:8687/ and https://agg-1:8688/";
        assert_eq!(at(&pages), expected);
        let left = [("buffer", 3 << 20), ("spool", 512)];
        for (code, left, expected) in [
            (exit::DRAINED, &[][..], "stopped: nothing is left"),
            (
                exit::DRAINED,
                &left,
                "stopped: 3MiB in buffer, 512B in spool for the next start",
            ),
            (
                exit::FAILED,
                &[],
                "stopped with errors, see above; nothing is left in disk channels",
            ),
            (
                exit::FAILED,
                &left[1..],
                "stopped with errors, see above; 512B in spool for the next start",
            ),
        ] {
            assert_eq!(last_line(code, left), expected);
        }
    }
}
