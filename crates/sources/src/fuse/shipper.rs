//! The state that all open files of a node share: the outlets (through which batches leave the node), the journal of unfinished
//! lines, and the commands that get copies. Also limits how long a write may wait for free space.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep -> read back -> process -> encode -> write -> settle`

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    delivery::Receipt,
    failure::Failure,
    meters::Meter,
    node::SourceContext,
    outlet::Outlet,
};
use millstream_record::Batch;
use millstream_sys::disk::HostDisk;
use rustix::io::Errno;
use tokio::time::timeout;

use super::{
    config::{Options, WhenFull},
    exec::Commands,
    journal::{Journal, Left, Opened},
    rules::Rule,
    tee::Tee,
    unfinished::Unfinished,
};

/// How long a write waits for free space before it fails, with `when_full: fail`.
const FAIL_AFTER: Duration = Duration::from_secs(1);

/// The node's own meters, in addition to those of every source.
#[derive(Clone)]
pub(super) struct Meters {
    pub too_long: Meter,
    pub filtered: Meter,
    pub refused: Meter,
    pub open: Meter,
    pub copies_failed: Meter,
    pub copied: Meter,
}

/// The state that all open files of a node share.
pub(super) struct Shipper {
    pub options: Arc<Options>,
    pub context: SourceContext,
    /// Whether the next channels are durable.
    pub durable: bool,
    pub unfinished: Arc<Unfinished>,
    pub meters: Meters,
    commands: Commands,
    /// Raised while lines that may be damaged wait for an operator.
    _missing: Condition,
}

impl Shipper {
    /// Opens the journal. Also returns the lines that an earlier run left unfinished.
    pub(super) fn open(
        options: Arc<Options>,
        context: SourceContext,
    ) -> Result<(Arc<Self>, Vec<Left>), Failure> {
        let durable = context.outlet.is_durable();
        let origins = context.outlet.file_origins().unwrap_or_default();
        let kept = |file: &_| {
            let origin = origins.iter().find(|(known, _)| known == file);
            origin.map(|(_, next)| *next)
        };
        let Opened {
            journal,
            left,
            mended,
            doubtful,
        } = Journal::open(Arc::new(HostDisk), &context.directory, kept)?;
        if let Some(mended) = mended {
            context.reporter.error("damage", mended);
        }
        let missing = context.reporter.condition("missing");
        if let Some(doubtful) = doubtful {
            missing.raise(Trouble::Losing, doubtful);
        }
        let meters = Meters {
            too_long: context.meters.counter("lines_too_long"),
            filtered: context.meters.counter("records_filtered"),
            refused: context.meters.counter("writes_refused"),
            open: context.meters.gauge("open_files"),
            copies_failed: context.meters.counter("copies_failed"),
            copied: context.meters.counter("copied_bytes"),
        };
        let shipper = Self {
            durable,
            unfinished: Arc::new(Unfinished::new(
                journal,
                durable,
                context.pool.bytes_max(),
                &context.directory,
                context.reporter.clone(),
            )),
            commands: Commands::new(context.reporter.clone(), meters.copies_failed.clone()),
            meters,
            _missing: missing,
            options,
            context,
        };
        Ok((Arc::new(shipper), left))
    }

    /// Sends a batch once the outlet has space for it. If the caller stops waiting before that, nothing is sent.
    pub(super) async fn put(
        &self,
        outlet: &Outlet,
        batch: Batch,
        when_full: WhenFull,
    ) -> Result<Receipt, Errno> {
        if when_full == WhenFull::Fail {
            self.in_time(outlet.has_room(), when_full).await?;
        }
        self.in_time(outlet.send(batch, true), when_full).await
    }

    /// Waits until a batch is kept. Returns EIO if it was not kept. With `when_full: fail`, returns ENOSPC as soon as a channel is
    /// full, but not before [`FAIL_AFTER`] has passed. The batch may then still be kept later.
    pub(super) async fn kept(
        &self,
        outlet: &Outlet,
        receipt: Receipt,
        when_full: WhenFull,
    ) -> Result<(), Errno> {
        let full = async {
            match when_full {
                WhenFull::Block => std::future::pending().await,
                WhenFull::Fail => outlet.is_full_after(FAIL_AFTER).await,
            }
        };
        tokio::select! {
            biased;
            kept = receipt => kept.map_err(|_| Errno::IO),
            () = full => Err(Errno::NOSPC),
        }
    }

    /// Waits for free space for as long as `when_full` allows.
    pub(super) async fn in_time<T>(
        &self,
        room: impl Future<Output = T>,
        when_full: WhenFull,
    ) -> Result<T, Errno> {
        match when_full {
            WhenFull::Block => Ok(room.await),
            WhenFull::Fail => timeout(FAIL_AFTER, room).await.map_err(|_| Errno::NOSPC),
        }
    }

    /// The file outside the mount that gets copies of the records of the file at `path`. `None` if the rule names no such file.
    pub(super) fn tee(&self, rule: &Rule, path: &str) -> Option<Arc<Tee>> {
        let tee = rule.tee.as_ref()?;
        let copy = tee.render(&self.context.name, path, &self.context.host);
        Some(Arc::new(Tee::new(PathBuf::from(copy))))
    }

    /// Copies a batch to the rule's file and command. A failure is counted and logged. The writer gets no error.
    pub(super) async fn copy(&self, tee: Option<Arc<Tee>>, rule: &Rule, batch: Batch) {
        if let Some(tee) = tee {
            let body = batch.clone();
            let written = tokio::task::spawn_blocking(move || tee.write(&body)).await;
            if let Err(error) = written.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
                self.meters.copies_failed.add(1);
                let text = format_args!("cannot write a copy: {error}");
                self.context.reporter.error("tee", text);
            }
        }
        if let Some(words) = &rule.exec {
            self.commands.send(words, &batch).await;
        }
    }
}
