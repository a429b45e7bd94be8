//! Sending what was written, and when it is answered.
//!
//! `read -> decode -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! Behind a durable channel a `write` is answered when its whole lines are kept and its unfinished one stands in the
//! journal: both survive SIGKILL. Behind memory it is answered when the next hop has room for it. `fsync` syncs the channel
//! and the journal, or waits until the sinks have settled.

use std::{
    io,
    sync::{Arc, Mutex},
};

use millstream_pipeline::{meters::Meter, node::SourceContext, threads::in_lane};
use rustix::io::Errno;

use super::{
    config::Options,
    exec::Commands,
    handles::Handle,
    journal::{Identity, Journal},
    stream::{Parcel, Tails},
};

/// What counts in the meters of the node, beside what every source counts.
#[derive(Clone)]
pub(super) struct Meters {
    pub too_long: Meter,
    pub filtered: Meter,
    pub refused: Meter,
    pub open: Meter,
    pub copies_failed: Meter,
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
}

impl Ship {
    /// Sends a parcel of an open file; returns when what was written can be answered for. Any thread may have read it; one
    /// file always goes into one lane, so that its order is kept.
    pub(super) async fn send(&self, handle: &Handle, parcel: Parcel) -> Result<(), Errno> {
        let lanes = self.context.threads.count() as u64;
        let lane = usize::try_from(handle.node % lanes).unwrap_or(0);
        in_lane(lane, self.send_here(handle, parcel)).await
    }

    async fn send_here(&self, handle: &Handle, parcel: Parcel) -> Result<(), Errno> {
        let context = &self.context;
        if let Some(rejected) = parcel.rejected {
            let receipt = context.rejects.send(rejected, true).await;
            receipt.await.map_err(|_| Errno::IO)?;
        }
        let Some(batch) = parcel.batch else {
            // Nothing goes to the channel that would say so.
            if let Some(place) = parcel.took {
                let noted = self.journal().note_done(place.slot, place.generation + 1);
                noted.map_err(|error| self.journal_failed(&error))?;
            }
            return Ok(());
        };
        let copy = handle.wants_copy().then(|| batch.clone());
        if self.durable {
            let receipt = context.outlet.send(batch, true).await;
            receipt.await.map_err(|_| Errno::IO)?;
            if let Some(place) = parcel.took {
                self.journal().done(place.slot, place.generation + 1);
            }
        } else {
            let mut flight = handle.flight.lock().await;
            if flight.collect().is_err() {
                self.lost(handle);
            }
            if flight.is_full() {
                flight.answered().await;
            }
            let awaited = flight.is_half_full() || handle.is_synced();
            let receipt = context.outlet.send(batch, awaited).await;
            flight.push(receipt, ());
        }
        if let Some(copy) = copy {
            self.copy(handle, copy).await;
        }
        Ok(())
    }

    /// Gives a copy to the file and the command that the rule names. What fails there fails nobody else.
    async fn copy(&self, handle: &Handle, batch: millstream_record::Batch) {
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
            self.journal().note_done(place.slot, place.generation)?;
        }
        stream.write_tail()
    }

    /// The last of an open file is closed: what is unfinished is sent.
    pub(super) async fn finish(&self, handle: &Handle) -> Result<(), Errno> {
        let Some(parcel) = handle.stream().map(|mut stream| stream.finish()) else {
            return Ok(());
        };
        self.send(handle, parcel?).await?;
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
            self.context.folder.display()
        );
        self.context.reporter.error("journal", text);
        Errno::from_io_error(error).unwrap_or(Errno::IO)
    }
}
