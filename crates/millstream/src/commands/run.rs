//! `millstream run`: starts the pipeline, answers signals, drains, and says how it ended.

use std::{path::PathBuf, time::Duration};

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

use crate::{api, clock, config, exit, log, progress::Progress, systemd};

/// Run the pipeline until it is told to stop (SIGTERM or SIGINT), then drain.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream run                         the configuration of /etc/millstream
  millstream run --once millstream.yaml  until the inputs have ended and everything is settled
  echo hello | millstream run --once stdin.yaml

Signals: SIGTERM and SIGINT drain (a second one ends it at once). SIGHUP is ignored: this version cannot reload yet.

Exit codes: 0 drained, 1 it could not start, gave up, or had to leave something behind, 64 wrong command line,
78 wrong configuration")]
pub struct Run {
    /// Configuration files and folders (`*.yaml` in order of name); they are merged.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    /// End when the inputs have ended and everything is settled.
    #[arg(long)]
    once: bool,
    /// How long to drain after a signal before leaving what is left, such as `30s`.
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
        let (mut running, mut signals) = match self.start(loaded).await {
            Ok(started) => started,
            Err(failure) => {
                // The configuration could be read; what it names cannot be had. That may be otherwise later.
                tracing::error!("{failure}");
                return exit::FAILED;
            }
        };
        tracing::info!("started {} nodes", running.nodes.len());
        systemd::notify("READY=1");
        match self.until_ended(&mut running, &mut signals).await {
            Some(failures) if failures.is_empty() => exit::DRAINED,
            // The node that failed has said why.
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

    /// Signals come first, so that none ends the process from here on; then addresses; then the pipeline.
    async fn start(&self, loaded: config::Loaded) -> Result<(Running, Signals), Failure> {
        let signals = Signals::new()?;
        let bound = api::bind(&loaded.settings.api, loaded.api_is_chosen).await?;
        let start = Launch {
            once: self.once,
            open_memory: MemoryChannel::open,
            meters: Meters::default(),
        };
        let running = launch(loaded.plan, start).await?;
        bound.serve(&running);
        Ok((running, signals))
    }

    /// The failures it ended with; None if it had to leave something behind.
    async fn until_ended(
        &self,
        running: &mut Running,
        signals: &mut Signals,
    ) -> Option<Vec<Failure>> {
        let mut progress = Progress::new(self.once, &running.meters);
        tokio::select! {
            failures = running.ended() => return Some(failures),
            () = signals.asks_to_end() => {}
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
        tokio::select! {
            failures = running.ended() => Some(failures),
            () = tokio::time::sleep(self.drain) => None,
            () = signals.asks_to_end() => None,
        }
    }
}

/// The signals that mean something.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
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
        })
    }

    /// Returns when somebody wants the process to end.
    async fn asks_to_end(&mut self) {
        loop {
            tokio::select! {
                _ = self.term.recv() => return,
                _ = self.int.recv() => return,
                _ = self.hup.recv() => {
                    tracing::warn!("SIGHUP: this version cannot reload; restart it to take a new configuration");
                }
            }
        }
    }
}

/// Allows as many open files as this process may allow itself: connections and outputs are bounded by their own options,
/// and the usual soft limit of 1024 is there for programs that call `select`.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}
