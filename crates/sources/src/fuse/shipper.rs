//! The state that all open files of a node share: the outlets (through which batches leave the node), the journal of unfinished
//! lines, and the commands that get copies. Also limits how long a write may wait for free space.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep -> read back -> process -> encode -> write -> settle`

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    delivery::{Receipt, Unsettled},
    failure::Failure,
    meters::Meter,
    node::SourceContext,
    outlet::Outlet,
};
use millstream_record::Batch;
use millstream_sys::disk::HostDisk;
use rustix::io::Errno;

use super::{
    below::Below,
    config::{Options, WhenFull},
    exec::{Commands, Exec},
    given::Given,
    journal::{Journal, Left, Opened},
    patience::Patience,
    rules::{Rule, inside},
    tee::{Tee, TeeFile},
    unfinished::Unfinished,
};

/// A batch that its channel keeps at this moment cannot be withdrawn. This is the interval between two tries, and their number.
const WITHDRAW_AGAIN: Duration = Duration::from_millis(5);
const WITHDRAW_TRIES: u32 = 60;

/// The node's own meters, in addition to those of every source.
#[derive(Clone)]
pub(super) struct Meters {
    pub too_long: Meter,
    pub filtered: Meter,
    pub refused: Meter,
    pub open: Meter,
    pub copies_failed: Meter,
    pub copied: Meter,
    pub only_copied: Meter,
    pub left_out: Meter,
    pub left_out_bytes: Meter,
}

/// The result of sending a batch to a durable channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Kept,
    /// It is not kept. The write fails with this error.
    NotKept(Errno),
    /// The write fails with this error, but the channel may keep the batch later.
    InDoubt(Errno),
}

impl Outcome {
    /// The result of the write.
    pub(super) fn result(self) -> Result<(), Errno> {
        match self {
            Self::Kept => Ok(()),
            Self::NotKept(error) | Self::InDoubt(error) => Err(error),
        }
    }
}

impl From<Result<(), Unsettled>> for Outcome {
    fn from(answer: Result<(), Unsettled>) -> Self {
        match answer {
            Ok(()) => Self::Kept,
            Err(Unsettled) => Self::NotKept(Errno::IO),
        }
    }
}

/// The state that all open files of a node share.
pub(super) struct Shipper {
    options: RwLock<Arc<Options>>,
    /// How often the options have changed.
    changes: AtomicU64,
    /// Whether the mount is left to the next program.
    is_frozen: AtomicBool,
    pub context: SourceContext,
    /// Whether the next channels are durable.
    pub durable: bool,
    pub unfinished: Arc<Unfinished>,
    pub meters: Meters,
    /// Which files below the mount the source may take.
    pub given: Given,
    commands: Commands,
    /// The canonical path of the mount point, and the one of the configuration.
    mounts: [PathBuf; 2],
    /// Raised while lines that may be damaged wait for an operator.
    _missing: Condition,
}

impl Shipper {
    /// Opens the journal. Also returns the lines that an earlier run left unfinished.
    pub(super) fn open(
        options: Arc<Options>,
        below: &Below,
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
            only_copied: context.meters.counter("records_only_copied"),
            left_out: context.meters.counter("files_left_out"),
            left_out_bytes: context.meters.counter("left_out_bytes"),
        };
        let given = Given::open(below, options.existing, &context)?;
        let absolute =
            std::path::absolute(&options.mount).unwrap_or_else(|_| options.mount.clone());
        let shipper = Self {
            given,
            mounts: [below.full().unwrap_or_else(|_| absolute.clone()), absolute],
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
            options: RwLock::new(options),
            changes: AtomicU64::new(0),
            is_frozen: AtomicBool::new(false),
            context,
        };
        Ok((Arc::new(shipper), left))
    }

    /// The options in force.
    pub(super) fn options(&self) -> Arc<Options> {
        self.options
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How often the options have changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Puts other options in force. Commands that no rule names any more get the end of their input.
    pub(super) fn change(&self, options: Arc<Options>) {
        let rules = options.rules.clone();
        *self.options.write().unwrap_or_else(PoisonError::into_inner) = options;
        self.changes.fetch_add(1, Ordering::Release);
        self.commands
            .retain(|words| rules.all().any(|rule| rule.exec.as_ref() == Some(words)));
    }

    /// Sends a batch once the outlet has space for it. If the caller stops waiting before that, or if its patience ends, nothing is
    /// sent.
    pub(super) async fn put(
        &self,
        outlet: &Outlet,
        batch: Batch,
        patience: Patience,
    ) -> Result<Receipt, Errno> {
        if patience.has_limit() {
            self.in_time(outlet.has_room(), patience).await?;
        }
        self.in_time(outlet.offer(batch, true), patience).await
    }

    /// Waits until a batch is kept. When the patience has ended and a channel is full, withdraws the batch, unless the channel keeps
    /// it at this moment.
    pub(super) async fn kept(
        &self,
        outlet: &Outlet,
        receipt: &mut Receipt,
        patience: Patience,
    ) -> Outcome {
        let ended = async {
            let error = patience.ended(&self.context.stop).await;
            outlet.is_blocked().await;
            error
        };
        let error = tokio::select! {
            biased;
            kept = &mut *receipt => return kept.into(),
            error = ended => error,
        };
        for _ in 0..WITHDRAW_TRIES {
            if receipt.withdraw() {
                return Outcome::NotKept(error);
            }
            tokio::select! {
                biased;
                kept = &mut *receipt => return kept.into(),
                () = tokio::time::sleep(WITHDRAW_AGAIN) => {}
            }
        }
        Outcome::InDoubt(error)
    }

    /// Waits until a stop has begun and a channel is full. A write to such a channel would wait until the stop gives up.
    pub(super) async fn stopped_without_room(&self) {
        Patience::of_write(WhenFull::Block)
            .ended(&self.context.stop)
            .await;
        self.context.outlet.is_blocked().await;
    }

    /// Waits for free space for as long as the patience lasts.
    pub(super) async fn in_time<T>(
        &self,
        room: impl Future<Output = T>,
        patience: Patience,
    ) -> Result<T, Errno> {
        tokio::select! {
            biased;
            there = room => Ok(there),
            error = patience.ended(&self.context.stop) => Err(error),
        }
    }

    /// Notes that the mount is left to the next program.
    pub(super) fn freeze(&self) {
        self.is_frozen.store(true, Ordering::Release);
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.is_frozen.load(Ordering::Acquire)
    }

    /// Notes that a file is not shipped.
    pub(super) fn leave_out(&self, path: &str, why: &str) {
        self.meters.left_out.add(1);
        let text = format_args!("{path} is not shipped: {why} (option `leave_out`)");
        self.context.reporter.info("left_out", text);
    }

    /// The target of the copies of the records of the file at `path`. `None` if the rule has no `tee`.
    pub(super) fn tee(&self, rule: &Rule, path: &str) -> Option<Arc<Tee>> {
        let tee = rule.tee.as_ref()?;
        let copy = tee.render(&self.context.name, path, &self.context.host);
        let inside = self.mounts.iter().find_map(|mount| inside(mount, &copy));
        Some(Arc::new(match inside {
            Some(path) => Tee::Inside(path),
            None => Tee::File(Arc::new(TeeFile::new(PathBuf::from(copy)))),
        }))
    }

    /// Counts and logs a copy that failed.
    pub(super) fn copy_failed(&self, error: &io::Error) {
        self.meters.copies_failed.add(1);
        let text = format_args!("cannot write a copy: {error}");
        self.context.reporter.error("tee", text);
    }

    /// Copies a batch to a command.
    pub(super) async fn send_to(&self, exec: &Exec, batch: &Batch) {
        let names = |rule: &Arc<Rule>| rule.exec.as_ref() == Some(exec);
        if self.options().rules.all().any(names) {
            self.commands.send(exec, batch).await;
        } else {
            // A reload has ended the command since the write began.
            self.meters.copies_failed.add(1);
        }
    }
}
