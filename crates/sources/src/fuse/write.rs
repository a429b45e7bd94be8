//! Sending what was written, and when it is answered.
//!
//! `read -> decode -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! Behind a durable channel a `write` is answered when its whole lines are kept and its unfinished one stands in the
//! journal: both survive SIGKILL. Behind memory it is answered when the next hop has room for it. `fsync` syncs the channel
//! and the journal, or waits until the sinks have settled. What earlier writes left unfinished leaves the stream when the
//! next hop has taken it, and comes back if it is not kept: whatever becomes of a write, it takes nothing else with it.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use millstream_pipeline::{
    condition::Condition, delivery::Receipt, meters::Meter, node::SourceContext, outlet::Outlet,
    threads::in_lane,
};
use millstream_record::Batch;
use rustix::io::Errno;
use tokio::time::timeout;

use super::{
    config::{Options, WhenFull},
    exec::Commands,
    handles::Handle,
    journal::{Identity, Journal},
    parcel::Parcel,
    tails::Tails,
};

/// How long a write waits for room before it fails, with `when_full: fail`.
const FAIL_AFTER: Duration = Duration::from_secs(1);

/// What counts in the meters of the node, beside what every source counts.
#[derive(Clone)]
pub(super) struct Meters {
    pub too_long: Meter,
    pub filtered: Meter,
    pub refused: Meter,
    pub open: Meter,
    pub copies_failed: Meter,
    pub copied: Meter,
}

/// What all streams of a mount send by.
pub(super) struct Ship {
    pub options: Arc<Options>,
    pub context: SourceContext,
    pub durable: bool,
    pub identity: Identity,
    pub journal: Mutex<Journal>,
    pub tails: Tails,
    pub meters: Meters,
    pub commands: Commands,
    /// Holds while lines that may be damaged wait for an operator.
    pub _missing: Condition,
}

impl Ship {
    /// Sends a parcel of an open file; returns when what was written can be answered for: how many bytes of it. Any thread
    /// may have read it; one file always goes into one lane, so that its order is kept.
    pub(super) async fn send(
        &self,
        handle: &Handle,
        parcel: Parcel,
        when_full: WhenFull,
    ) -> Result<usize, Errno> {
        let lanes = self.context.threads.count() as u64;
        let lane = usize::try_from(handle.node % lanes).unwrap_or(0);
        in_lane(lane, self.send_here(handle, parcel, when_full)).await
    }

    async fn send_here(
        &self,
        handle: &Handle,
        mut parcel: Parcel,
        when_full: WhenFull,
    ) -> Result<usize, Errno> {
        let context = &self.context;
        if let Some(rejected) = parcel.rejected.take() {
            let receipt = self.put(&context.rejects, rejected, when_full).await?;
            self.kept(&context.rejects, receipt, when_full).await?;
        }
        let Some(batch) = parcel.batch.take() else {
            // Nothing goes to the channel that would say so.
            if let Some(place) = parcel.took {
                let noted = self.journal().note_done(place.slot, place.generation + 1);
                noted.map_err(|error| self.journal_failed(&error))?;
            }
            let mut stream = handle.stream().ok_or(Errno::BADF)?;
            stream.pass(&parcel);
            return stream.go_on(&parcel);
        };
        let copy = handle.wants_copy().then(|| batch.clone());
        if self.durable {
            self.keep(handle, batch, &parcel, when_full).await?;
        } else {
            self.queue(handle, batch, &parcel, when_full).await?;
        }
        let taken = handle
            .stream()
            .map_or(Err(Errno::BADF), |mut stream| stream.go_on(&parcel));
        if let Some(copy) = copy {
            self.copy(handle, copy).await;
        }
        taken
    }

    /// Behind a durable channel: until it is kept.
    async fn keep(
        &self,
        handle: &Handle,
        batch: Batch,
        parcel: &Parcel,
        when_full: WhenFull,
    ) -> Result<(), Errno> {
        let outlet = &self.context.outlet;
        let receipt = self.put(outlet, batch, when_full).await?;
        let passed = handle.stream().map(|mut stream| {
            stream.in_doubt = true;
            stream.pass(parcel)
        });
        let kept = self.kept(outlet, receipt, when_full).await;
        if kept == Err(Errno::IO)
            && let (Some(mut stream), Some(passed)) = (handle.stream(), passed)
        {
            stream.back(passed);
        }
        kept?;
        if let Some(mut stream) = handle.stream() {
            // What was sent before stands before it.
            stream.in_doubt = false;
        }
        if let Some(place) = parcel.took {
            self.journal().done(place.slot, place.generation + 1);
        }
        Ok(())
    }

    /// Behind memory: until there is room for it.
    async fn queue(
        &self,
        handle: &Handle,
        batch: Batch,
        parcel: &Parcel,
        when_full: WhenFull,
    ) -> Result<(), Errno> {
        let mut flight = handle.flight.lock().await;
        if flight.collect().is_err() {
            self.lost(handle);
        }
        if flight.is_full() {
            self.in_time(flight.answered(), when_full).await?;
        }
        let awaited = flight.is_half_full() || handle.is_synced();
        let send = self.context.outlet.send(batch, awaited);
        let receipt = self.in_time(send, when_full).await?;
        if let Some(mut stream) = handle.stream() {
            stream.pass(parcel);
        }
        flight.push(receipt, ());
        Ok(())
    }

    /// Sends when there is room. Given up while it waits, nothing of it is taken.
    async fn put(
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

    /// Waits for a receipt. A channel that is full by then may keep what was sent all the same, so only EIO says that it is
    /// not there.
    async fn kept(
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

    /// Waits for room as long as a write should.
    async fn in_time<T>(
        &self,
        room: impl Future<Output = T>,
        when_full: WhenFull,
    ) -> Result<T, Errno> {
        match when_full {
            WhenFull::Block => Ok(room.await),
            WhenFull::Fail => timeout(FAIL_AFTER, room).await.map_err(|_| Errno::NOSPC),
        }
    }

    /// Gives a copy to the file and the command that the rule names. What fails there fails nobody else.
    async fn copy(&self, handle: &Handle, batch: Batch) {
        let (tee, rule) = handle.copies();
        if let Some(tee) = tee {
            let body = batch.clone();
            let written = tokio::task::spawn_blocking(move || tee.write(&body)).await;
            let error = match written {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error),
                Err(panic) => Some(io::Error::other(panic)),
            };
            if let Some(error) = error {
                self.meters.copies_failed.add(1);
                let text = format_args!("a copy was not written: {error}");
                self.context.reporter.error("tee", text);
            }
        }
        if rule.exec.is_some() {
            self.commands.send(&rule, &batch, self).await;
        }
    }

    /// Syncs what was written through an open file.
    pub(super) async fn sync(&self, handle: &Handle) -> Result<(), Errno> {
        let mut in_journal = self.durable;
        if self.durable {
            let receipt = self.context.outlet.sync();
            receipt.await.map_err(|_| Errno::IO)?;
        } else {
            handle.set_synced();
            let mut flight = handle.flight.lock().await;
            if flight.land().await.is_err() {
                self.lost(handle);
            }
            if handle.take_lost() {
                return Err(Errno::IO);
            }
            let journaled = self.note_landed(handle);
            in_journal = journaled.map_err(|error| self.journal_failed(&error))?;
        }
        if in_journal {
            let file = self.journal().file();
            let synced = tokio::task::spawn_blocking(move || file.sync_data()).await;
            let synced = synced.unwrap_or_else(|panic| Err(io::Error::other(panic)));
            synced.map_err(|error| self.journal_failed(&error))?;
        }
        Ok(())
    }

    /// Behind memory, when everything that was sent is settled: notes so in the journal, and writes the rest there; whether
    /// anything is there now.
    fn note_landed(&self, handle: &Handle) -> io::Result<bool> {
        let Some(mut stream) = handle.stream() else {
            return Ok(false);
        };
        if let Some(place) = stream.place {
            self.journal().note_done(place.slot, stream.since)?;
        }
        stream.write_tail()
    }

    /// The last of an open file is closed: what is unfinished is sent.
    pub(super) async fn finish(&self, handle: &Handle) -> Result<(), Errno> {
        let _turn = handle.turn().await;
        let Some(parcel) = handle.stream().map(|mut stream| stream.finish()) else {
            return Ok(());
        };
        self.send(handle, parcel?, WhenFull::Block).await?;
        // What was written to the journal must stay there until what it became part of is kept.
        let in_doubt = handle.stream().is_some_and(|stream| stream.in_doubt);
        if in_doubt && self.durable {
            self.context.outlet.sync().await.map_err(|_| Errno::IO)?;
        }
        let place = handle.stream().and_then(|mut stream| stream.place.take());
        if let Some(place) = place {
            if !self.durable {
                let mut flight = handle.flight.lock().await;
                flight.land().await.map_err(|_| Errno::IO)?;
                let noted = self.journal().note_done(place.slot, place.generation);
                noted.map_err(|error| self.journal_failed(&error))?;
            }
            self.journal().end(place.slot, place.generation);
        }
        Ok(())
    }

    fn lost(&self, handle: &Handle) {
        handle.set_lost();
        let text = "lines were dropped before they were settled, and cannot be read again";
        self.context.reporter.error("lost", text);
    }

    /// What a writer is told when the journal cannot be written.
    pub(super) fn journal_failed(&self, error: &io::Error) -> Errno {
        let text = format_args!(
            "an unfinished line cannot be kept in {}: {error}; the writer is told",
            self.context.directory.display()
        );
        self.context.reporter.error("journal", text);
        Errno::from_io_error(error).unwrap_or(Errno::IO)
    }
}
