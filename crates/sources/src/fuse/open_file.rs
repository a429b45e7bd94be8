//! An open file: sends the bytes that are written through it, syncs these bytes, and sends the unfinished bytes when the file is
//! closed.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! With a durable channel, a `write` is answered when the channel has kept the whole lines of the write, and the journal holds the
//! unfinished line. Both survive SIGKILL. `fsync` syncs the channel and the journal. With a memory channel, a `write` is answered
//! when the channel has space for it, and `fsync` waits until the sinks have settled everything.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use millstream_pipeline::{delivery::Receipt, node::LocalFuture, threads::in_lane};
use millstream_record::Batch;
use rustix::io::Errno;
use tokio::sync::{OwnedMutexGuard, TryLockError};

use super::{
    config::WhenFull,
    cutter::HEADROOM,
    in_flight::InFlight,
    journal::Left,
    parcel::Parcel,
    patience::Patience,
    rules::Rule,
    shipper::{Outcome, Shipper},
    stream::{Before, KeptWriting, Stream},
    tee::{Tee, text},
};

/// The exclusive right to change the unfinished bytes of an open file whose lines are joined.
pub(super) type Turn = OwnedMutexGuard<()>;

/// An open file. It begins with one `open`, and ends when the last copy of its handle is closed.
pub(super) struct OpenFile {
    node: u64,
    shipper: Arc<Shipper>,
    /// The writing side. `None` if the file is open for reading only.
    writing: Option<Writing>,
    /// Whether the name of the file says that it is not shipped.
    is_left_out: bool,
    /// The rules whose copies led to this file.
    above: Vec<Arc<Rule>>,
}

/// The writing side of an open file.
struct Writing {
    stream: Mutex<Stream>,
    /// Hands out the [`Turn`].
    turns: Arc<tokio::sync::Mutex<()>>,
    /// Whether lines are joined. Only then a write needs the turn, because `quiet.rs` also sends joined lines between writes.
    /// Unfinished bytes of other files change only in writes, and the kernel sends one write to a file at a time.
    joins: AtomicBool,
    /// With a memory channel: the batches that were sent and are not settled.
    in_flight: InFlight,
}

impl OpenFile {
    /// A file of the mount that is opened for reading only.
    pub(super) fn to_read(shipper: &Arc<Shipper>, node: u64) -> Self {
        Self {
            node,
            shipper: shipper.clone(),
            writing: None,
            is_left_out: false,
            above: Vec::new(),
        }
    }

    /// A file of the mount that is opened for writing.
    pub(super) fn to_write(shipper: &Arc<Shipper>, node: u64, path: &str) -> Self {
        let file = Self::new(shipper, node, Stream::new(shipper, path), Vec::new());
        if file.is_left_out {
            shipper.leave_out(path, "its name is that of an editor's file");
        }
        file
    }

    /// A copy of the records of another file, at a path below the mount. `above`: the rules whose copies lead here.
    pub(super) fn of_copy(shipper: &Arc<Shipper>, path: &str, above: Vec<Arc<Rule>>) -> Self {
        Self::new(shipper, 0, Stream::of_file(shipper, path), above)
    }

    /// A file in the plain directory below the mount (the directory that the mount hides). The content of the file is sent as if
    /// it were written to the mount.
    pub(super) fn of_file(shipper: &Arc<Shipper>, path: &str) -> Self {
        Self::new(shipper, 0, Stream::of_file(shipper, path), Vec::new())
    }

    /// A file whose unfinished line an earlier run left in the journal.
    pub(super) fn recovered(shipper: &Arc<Shipper>, left: Left) -> Self {
        Self::new(shipper, 0, Stream::recovered(shipper, left), Vec::new())
    }

    /// A file of the mount that was open when an earlier program ended. `left` is its line in the journal.
    pub(super) fn kept(
        shipper: &Arc<Shipper>,
        node: u64,
        kept: KeptWriting,
        left: Option<Left>,
    ) -> Self {
        Self::new(shipper, node, Stream::kept(shipper, kept, left), Vec::new())
    }

    fn new(shipper: &Arc<Shipper>, node: u64, stream: Stream, above: Vec<Arc<Rule>>) -> Self {
        let is_left_out = shipper.options().rules.leaves_out(stream.path());
        Self {
            node,
            shipper: shipper.clone(),
            writing: Some(Writing {
                turns: Arc::default(),
                joins: AtomicBool::new(stream.joins()),
                in_flight: InFlight::default(),
                stream: Mutex::new(stream),
            }),
            is_left_out,
            above,
        }
    }

    /// The file's number in the tree.
    pub(super) fn node(&self) -> u64 {
        self.node
    }

    /// The stream of the written bytes. It follows the rules in force. EBADF if the file is open for reading only.
    pub(super) fn stream(&self) -> Result<MutexGuard<'_, Stream>, Errno> {
        let writing = self.writing()?;
        let mut stream = writing.stream();
        stream.update(&self.shipper);
        // Lines that were not joined before are not sent between writes until this write is done: see `Stream::quiet`.
        writing.joins.store(stream.joins(), Ordering::Relaxed);
        Ok(stream)
    }

    /// Whether the file is open for writing.
    pub(super) fn is_writer(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether nothing that is written to the file is shipped.
    pub(super) fn is_left_out(&self) -> bool {
        self.is_left_out
    }

    /// Whether the lines of the file are joined.
    pub(super) fn joins(&self) -> bool {
        self.turns().is_some()
    }

    /// Waits for the file's turn. Returns `None` if the file needs no turns.
    pub(super) async fn turn(&self) -> Option<Turn> {
        Some(self.turns()?.clone().lock_owned().await)
    }

    /// Takes the file's turn. Returns `None` if the file needs no turns, and an error if another task has the turn.
    pub(super) fn try_turn(&self) -> Result<Option<Turn>, TryLockError> {
        let turns = self.turns().cloned();
        turns.map(tokio::sync::Mutex::try_lock_owned).transpose()
    }

    fn turns(&self) -> Option<&Arc<tokio::sync::Mutex<()>>> {
        let writing = self.writing.as_ref()?;
        let joins = writing.joins.load(Ordering::Relaxed);
        joins.then_some(&writing.turns)
    }

    fn writing(&self) -> Result<&Writing, Errno> {
        self.writing.as_ref().ok_or(Errno::BADF)
    }

    /// Sends a parcel: a batch, and the unfinished bytes after its records. Returns once the write from which the parcel was made
    /// can be acknowledged. The result is the number of bytes to acknowledge. Different data threads may read the writes to one
    /// file from the device. All batches of the file still go into the same lane (a parallel task of a sink behind a memory
    /// channel), so that their order is kept.
    pub(super) async fn send(&self, parcel: Parcel, patience: Patience) -> Result<usize, Errno> {
        let writing = self.writing()?;
        let lanes = self.shipper.context.threads.count() as u64;
        let lane = usize::try_from(self.node % lanes).unwrap_or(0);
        in_lane(
            lane,
            writing.send(&self.shipper, parcel, &self.above, patience),
        )
        .await
    }

    /// Sends the records of a batch as if they were written to this file.
    pub(super) async fn write_copy(&self, batch: &Batch, patience: Patience) -> Result<(), Errno> {
        let text = text(batch);
        let pool = &self.shipper.context.pool;
        let mut buffer = pool.reserve(HEADROOM + text.len()).await;
        buffer.resize(HEADROOM, 0);
        buffer.extend_from_slice(&text);
        let data = HEADROOM..buffer.len();
        let parcel = self.stream()?.write(&mut Some(buffer), data, 0)?;
        self.send(parcel, patience).await.map(drop)
    }

    /// Handles `fsync`. With a durable channel, makes everything that was written durable. With a memory channel, waits until
    /// everything that was sent is settled, and makes the unfinished bytes durable in the journal.
    pub(super) async fn sync(&self) -> Result<(), Errno> {
        let shipper = &self.shipper;
        if let Ok(writing) = self.writing() {
            let copies = writing.stream().copies();
            if let Some((Some(tee), _)) = copies.filter(|(_, rule)| !rule.ships) {
                tee.sync().await.map_err(|_| Errno::IO)?;
            }
        }
        let is_journaled = if shipper.durable {
            let receipt = shipper.context.outlet.sync();
            receipt.await.map_err(|_| Errno::IO)?;
            true
        } else {
            let Ok(writing) = self.writing() else {
                return Ok(());
            };
            let settled = || {
                let mut stream = writing.stream();
                stream.line().settled()?;
                stream.journal_unfinished()
            };
            writing.in_flight.sync(shipper, settled).await?
        };
        if is_journaled {
            shipper.unfinished.sync().await?;
        }
        Ok(())
    }

    /// Sends the unfinished bytes, because the last copy of the handle was closed.
    pub(super) async fn finish(&self) -> Result<(), Errno> {
        let Ok(writing) = self.writing() else {
            return Ok(());
        };
        let shipper = &self.shipper;
        let _turn = self.turn().await;
        let parcel = self.stream()?.finish()?;
        self.send(parcel, Patience::ENDLESS).await?;
        // The journal must keep a line until the batch that contains it is kept.
        if shipper.durable && writing.stream().line().is_in_doubt() {
            let receipt = shipper.context.outlet.sync();
            receipt.await.map_err(|_| Errno::IO)?;
        }
        let place = writing.stream().line().release();
        if let Some(place) = place {
            if !shipper.durable {
                writing.in_flight.land().await?;
                shipper.unfinished.note_settled(place)?;
            }
            shipper.unfinished.end(place);
        }
        Ok(())
    }

    /// With a memory channel, waits until everything that was sent is settled. With a durable channel, returns immediately.
    pub(super) async fn land(&self) -> Result<(), Errno> {
        self.writing()?.in_flight.land().await
    }
}

impl Writing {
    /// Locks the stream. No method of the stream can panic between two changes, so the data are consistent even if the lock is
    /// poisoned.
    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(
        &self,
        shipper: &Arc<Shipper>,
        mut parcel: Parcel,
        above: &[Arc<Rule>],
        patience: Patience,
    ) -> Result<usize, Errno> {
        if let Some(rejected) = parcel.rejected.take() {
            let rejects = &shipper.context.rejects;
            let mut receipt = shipper.put(rejects, rejected, patience).await?;
            let kept = shipper.kept(rejects, &mut receipt, patience).await;
            kept.result()?;
        }
        let copies = self.stream().copies();
        if let Some(to) = copies.clone().filter(|(_, rule)| !rule.ships)
            && let Some(batch) = parcel.batch.take()
        {
            // No channel gets the records, so the writer gets an error if the copy fails.
            copy_to(shipper, to, &batch, above, patience).await?;
            shipper.meters.only_copied.add(u64::from(batch.count));
        }
        let Some(batch) = parcel.batch.take() else {
            let mut stream = self.stream();
            stream.line().dropped(parcel.leaves)?;
            stream.advance(&parcel);
            return stream.accept_unfinished(&parcel);
        };
        let copy = copies.map(|to| (to, batch.clone()));
        if shipper.durable {
            self.keep(shipper, batch, &parcel, patience).await?;
        } else {
            let sent = || drop(self.stream().advance(&parcel));
            let in_flight = &self.in_flight;
            in_flight.send(shipper, batch, patience, sent).await?;
        }
        let accepted = self.stream().accept_unfinished(&parcel);
        if let Some((to, copy)) = copy {
            // The records are kept, so the writer gets no error.
            let patience = Patience::of_write(WhenFull::Block);
            let _ = copy_to(shipper, to, &copy, above, patience).await;
        }
        accepted
    }

    /// Sends a batch to a durable channel and waits until it is kept. If the channel may keep a batch whose write has failed, the
    /// unfinished bytes in the batch count as sent.
    async fn keep(
        &self,
        shipper: &Shipper,
        batch: Batch,
        parcel: &Parcel,
        patience: Patience,
    ) -> Result<(), Errno> {
        let outlet = &shipper.context.outlet;
        let receipt = shipper.put(outlet, batch, patience).await?;
        let before = {
            let mut stream = self.stream();
            stream.line().set_in_doubt();
            stream.advance(parcel)
        };
        let mut sent = Sent {
            writing: self,
            receipt,
            before: Some(before),
        };
        let outcome = shipper.kept(outlet, &mut sent.receipt, patience).await;
        let before = sent.before.take();
        let mut stream = self.stream();
        match (outcome, before) {
            (Outcome::Kept, _) => stream.line().kept(parcel.leaves),
            (Outcome::NotKept(_), Some(before)) => stream.rewind(before),
            _ => {}
        }
        outcome.result()
    }
}

/// A batch in a durable channel whose writer waits. If the writer is killed, the batch is withdrawn, unless the channel keeps it at
/// that moment.
struct Sent<'w> {
    writing: &'w Writing,
    receipt: Receipt,
    /// The state of the stream before the batch was sent.
    before: Option<Before>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take()
            && self.receipt.withdraw()
        {
            self.writing.stream().rewind(before);
        }
    }
}

/// Copies a batch to the rule's `tee` and command. `above`: the rules whose copies led to this file. Returns an error if the `tee`
/// could not be written. A failure is counted and logged.
async fn copy_to(
    shipper: &Arc<Shipper>,
    (tee, rule): (Option<Arc<Tee>>, Arc<Rule>),
    batch: &Batch,
    above: &[Arc<Rule>],
    patience: Patience,
) -> Result<(), Errno> {
    let written = match tee.as_deref() {
        None => Ok(()),
        Some(Tee::File(file)) => file.clone().write_in_background(batch.clone()).await,
        Some(Tee::Inside(path)) => {
            let copied: LocalFuture<'_, _> =
                Box::pin(copy_inside(shipper, path, &rule, batch, above, patience));
            copied.await
        }
    };
    if let Err(error) = &written {
        shipper.copy_failed(error);
    }
    if let Some(exec) = &rule.exec {
        shipper.send_to(exec, batch).await;
    }
    written.map_err(|error| {
        let number = error.raw_os_error();
        number.map_or(Errno::IO, Errno::from_raw_os_error)
    })
}

/// Treats a copy as if a program had written it to `path` in the mount.
async fn copy_inside(
    shipper: &Arc<Shipper>,
    path: &str,
    rule: &Arc<Rule>,
    batch: &Batch,
    above: &[Arc<Rule>],
    patience: Patience,
) -> io::Result<()> {
    if above.iter().any(|other| Arc::ptr_eq(other, rule)) {
        let text = format!("{path} would lead back to the rule that makes this copy");
        return Err(io::Error::other(text));
    }
    let file = OpenFile::of_copy(shipper, path, [above, std::slice::from_ref(rule)].concat());
    file.write_copy(batch, patience).await?;
    // There is no unfinished line, because the text of a batch ends with a newline.
    if !rule.ships {
        // `fsync` does not wait for these records, so the write does.
        file.land().await?;
    }
    Ok(())
}
