//! `millstream run`: starts the pipeline, handles signals, drains, and reports how it ended.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use millstream_channels::memory::MemoryChannel;
use millstream_pipeline::{
    failure::Failure,
    launch::{Launch, launch},
    meters::Meters,
    running::Running,
};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    api::{self, Shown},
    clock, config, exit, log, page,
    progress::Progress,
    reload::Reload,
    systemd,
};

/// The time reserved at the end of the drain, at most a quarter of it, for closing the channels: two syncs each.
const CLOSE: Duration = Duration::from_secs(2);

/// Run the pipeline until SIGTERM or SIGINT, then drain.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream run                         the configuration of /etc/millstream
  millstream run --once millstream.yaml  until the inputs have ended and everything is settled
  echo hello | millstream run --once stdin.yaml

With `--once`, records that were rejected and that no node takes (`inputs: [\"*.rejected\"]`) make the exit code 1: they are
kept in data_dir/rejected, and `millstream rejected cat` shows them.

Signals: SIGTERM and SIGINT drain (a second one ends it at once). SIGUSR1 logs a line with the state of every node.
SIGHUP reads the configuration again, as `millstream reload` does.

A stop never waits longer than `--drain`. Records in a disk channel stay there for the next start. Records that wait in front
of a full one were not accepted; senders that wait for an answer send them again.

Exit codes: 0 drained, or all that was accepted is in disk channels; 1 it could not start, gave up, or lost or left
something behind (also rejected records); 64 wrong command line; 78 wrong configuration")]
pub struct Run {
    /// Configuration files and directories (`*.yaml` in order of name); they are merged.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    /// End when the inputs have ended and everything is settled.
    #[arg(long)]
    once: bool,
    /// The drain deadline after a signal, such as `30s`; what is left then stays in the channels.
    #[arg(long, default_value = "30s", value_parser = config::period)]
    drain: Duration,
}

impl Run {
    /// Runs; returns the exit code.
    pub fn execute(self) -> u8 {
        let loaded = match config::read(&self.config) {
            Ok(loaded) => loaded,
            Err(problems) => return config::complain(&problems),
        };
        config::show(&loaded.warnings);
        log::start(&loaded.settings.log);
        raise_open_files();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.run(loaded)),
            Err(error) => {
                tracing::error!("cannot start a runtime: {error}");
                exit::FAILED
            }
        }
    }

    async fn run(&self, loaded: config::Loaded) -> u8 {
        let (mut running, mut events) = match self.start(loaded).await {
            Ok(started) => started,
            Err(failure) => {
                // The configuration is valid, but something it names is missing, perhaps temporarily.
                tracing::error!("{failure}");
                return exit::FAILED;
            }
        };
        tracing::info!("started {} nodes", running.nodes.now().len());
        systemd::notify("READY=1");
        match self.until_ended(&mut running, &mut events).await {
            Some(failures) if failures.is_empty() => self.drained(&running),
            // The failed node has logged the reason.
            Some(_) => exit::FAILED,
            None => {
                let left = running.pending_records();
                tracing::error!(
                    "{left} records were left unsettled; senders that wait for an ack will send theirs again"
                );
                exit::FAILED
            }
        }
    }

    /// The exit code after everything was settled. Lost records, and rejected records that a job (`--once`) leaves in
    /// `data_dir`, are failures.
    fn drained(&self, running: &Running) -> u8 {
        let lost = running.lost_records();
        if lost > 0 {
            tracing::error!(
                "{lost} records found no room before the stop and are lost: their senders wait for no answer"
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

    /// Starts signal handling first, so that no signal ends the process from here on; then the addresses; then the pipeline.
    async fn start(&self, loaded: config::Loaded) -> Result<(Running, Events), Failure> {
        let signals = Signals::new()?;
        let bound = api::bind(
            &loaded.settings.api,
            loaded.api_is_chosen,
            &loaded.settings.host,
        )
        .await?;
        let start = Launch {
            once: self.once,
            open_memory: MemoryChannel::open,
            meters: Meters::default(),
        };
        let (running, reloader) = launch(loaded.plan, start).await?;
        let (reload, requests) =
            Reload::new(&self.config, loaded.entries, loaded.settings, reloader);
        let events = Events {
            signals,
            shown: bound.serve(&running, requests),
            reload,
        };
        Ok((running, events))
    }

    /// The failures at the end; `None` if the drain deadline passed.
    async fn until_ended(
        &self,
        running: &mut Running,
        events: &mut Events,
    ) -> Option<Vec<Failure>> {
        let mut progress = Progress::new(self.once, &running.meters);
        tokio::select! {
            failures = running.ended() => return Some(failures),
            () = events.ask_to_end(false) => {}
            () = progress.show() => {}
            () = clock::watch() => {}
        }
        drop(progress);
        systemd::notify("STOPPING=1");
        tracing::info!(
            "draining for at most {} s; a second signal ends it at once",
            self.drain.as_secs()
        );
        running.stop();
        let close = CLOSE.min(self.drain / 4);
        tokio::select! {
            failures = running.ended() => return Some(failures),
            () = tokio::time::sleep(self.drain - close) => {}
            () = events.ask_to_end(true) => return None,
        }
        running.give_up_waiting();
        tokio::select! {
            failures = running.ended() => return Some(failures),
            () = tokio::time::sleep(close) => {}
            () = events.ask_to_end(true) => return None,
        }
        running.is_all_kept().await.then(Vec::new)
    }
}

/// The signals that the program handles.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    usr1: Signal,
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
        })
    }
}

/// The events from outside while the pipeline runs.
struct Events {
    signals: Signals,
    shown: Arc<Shown>,
    reload: Reload,
}

impl Events {
    /// Returns when a signal asks the process to end; handles all others. `stopping`: the pipeline drains.
    async fn ask_to_end(&mut self, stopping: bool) {
        let Self {
            signals,
            shown,
            reload,
        } = self;
        loop {
            tokio::select! {
                _ = signals.term.recv() => return,
                _ = signals.int.recv() => return,
                _ = signals.usr1.recv() => tracing::info!("{}", shown.line()),
                _ = signals.hup.recv() => drop(reload.reload(stopping)),
                () = reload.answer(stopping) => {}
            }
        }
    }
}

/// Raises the soft limit of open files to the hard limit. Options bound connections and outputs; the usual soft limit of 1024
/// exists for programs that call `select`.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}
