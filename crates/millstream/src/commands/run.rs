//! `millstream run`: starts the pipeline, answers signals, drains, and says how it ended.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use millstream_channels::memory::MemoryChannel;
use millstream_pipeline::{
    failure::{Failure, Who},
    launch::{Launch, Running, launch},
    meters::Meters,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{config, exit, log};

/// Run the pipeline until it is told to stop (SIGTERM or SIGINT), then drain.
#[derive(Args)]
pub struct Run {
    /// Configuration files and folders (`*.yaml` in order of name); they are merged.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    /// End when the inputs have ended and everything is settled.
    #[arg(long)]
    once: bool,
    /// How long to drain after a signal before leaving what is left, such as `30s`. A second signal ends it at once.
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
        let start = Launch {
            once: self.once,
            open_memory: MemoryChannel::open,
            meters: Meters::default(),
        };
        let mut running = match launch(loaded.plan, start).await {
            Ok(running) => running,
            Err(failure) => {
                tracing::error!("{failure}");
                return if failure.who == Who::Config {
                    exit::CONFIG
                } else {
                    exit::FAILED
                };
            }
        };
        tracing::info!("started {} nodes", running.nodes.len());
        match self.until_ended(&mut running).await {
            Some(failures) if failures.is_empty() => exit::DRAINED,
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

    /// The failures it ended with; None if it had to leave something behind.
    async fn until_ended(&self, running: &mut Running) -> Option<Vec<Failure>> {
        let (mut term, mut int) = match (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) {
            (Ok(term), Ok(int)) => (term, int),
            (Err(error), _) | (_, Err(error)) => {
                return Some(vec![Failure::us(format!(
                    "cannot listen for signals: {error}"
                ))]);
            }
        };
        tokio::select! {
            failures = running.ended() => return Some(failures),
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!(
            "draining for at most {} s; a second signal ends it at once",
            self.drain.as_secs()
        );
        running.stop();
        tokio::select! {
            failures = running.ended() => Some(failures),
            () = tokio::time::sleep(self.drain) => None,
            _ = term.recv() => None,
            _ = int.recv() => None,
        }
    }
}
