//! The batches of one open file that were sent to a memory channel and are not settled yet.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep -> read back -> process -> encode -> write -> settle`

use std::sync::atomic::{AtomicBool, Ordering};

use millstream_record::Batch;
use rustix::io::Errno;
use tokio::sync::Mutex;

use super::{patience::Patience, shipper::Shipper};
use crate::flight::Flight;

/// The batches in flight of one open file.
#[derive(Default)]
pub(super) struct InFlight {
    flight: Mutex<Flight<()>>,
    /// Whether the file was synced at least once. Such a file will probably be synced again, so its batches request that sinks
    /// settle them early.
    synced: AtomicBool,
}

impl InFlight {
    /// Sends a batch once the channel has space for it, and then calls `sent`. Holds the lock during both, so no other batch is
    /// sent and no sync begins in between.
    pub(super) async fn send(
        &self,
        shipper: &Shipper,
        batch: Batch,
        patience: Patience,
        sent: impl FnOnce(),
    ) -> Result<(), Errno> {
        let mut flight = self.flight.lock().await;
        if flight.collect().is_err() {
            report_lost(shipper);
        }
        if flight.is_full() {
            shipper.in_time(flight.answered(), patience).await?;
        }
        let awaited = flight.is_half_full() || self.synced.load(Ordering::Relaxed);
        let send = shipper.context.outlet.offer(batch, awaited);
        let receipt = shipper.in_time(send, patience).await?;
        sent();
        flight.push(receipt, ());
        Ok(())
    }

    /// Waits until every batch is settled, and then calls `settled`. No other batch is sent in between. Returns EIO if a batch
    /// was dropped since the last sync.
    pub(super) async fn sync<T>(
        &self,
        shipper: &Shipper,
        settled: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.synced.store(true, Ordering::Relaxed);
        let mut flight = self.flight.lock().await;
        if flight.land().await.is_err() {
            report_lost(shipper);
            return Err(Errno::IO);
        }
        settled()
    }

    /// Waits until every batch is settled. Returns EIO if a batch was dropped since the last sync.
    pub(super) async fn land(&self) -> Result<(), Errno> {
        let landed = self.flight.lock().await.land().await;
        landed.map_err(|_| Errno::IO)
    }
}

fn report_lost(shipper: &Shipper) {
    let text = "lines were dropped before they were settled and cannot be read again";
    shipper.context.reporter.error("lost", text);
}
