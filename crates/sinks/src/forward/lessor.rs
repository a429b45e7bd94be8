//! Grants leases for chunks, and makes them durable on another thread. A lease records which server may have received a chunk.
//!
//! Where leases are used (`failover: wait` behind a durable channel), a chunk goes out only after the lease that names its server
//! is durable. Many leases share a sync; only one sync is in flight. In all other modes there are no leases, and no chunk waits for
//! one.

use std::future::pending;

use millstream_pipeline::failure::Failure;
use millstream_record::Position;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{chunk::Chunk, leases::Leases};

/// A sync in flight: the number up to which it makes leases durable, and its task.
type Syncing = (u64, JoinHandle<Result<(), Failure>>);

/// The leases of a lane (one of the sink's parallel tasks), if the lane uses leases.
pub(super) struct Lessor {
    leases: Option<Leases>,
    syncing: Option<Syncing>,
    /// Number of the last sync that has finished: leases up to this number are durable.
    durable: u64,
}

impl Lessor {
    pub(super) fn new(leases: Option<Leases>) -> Self {
        Self {
            leases,
            syncing: None,
            durable: 0,
        }
    }

    /// Returns the number up to which leases are durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns the server that may have received this chunk before the sink started, or None.
    pub(super) fn holder(&self, chunk: &Chunk) -> Option<String> {
        // A chunk with a lease number was leased after the start. If it waits for a server again, no byte of it was written, so no
        // server has it.
        let leases = self.leases.as_ref().filter(|_| chunk.lease == 0)?;
        leases.holder(chunk.place?).map(str::to_owned)
    }

    /// Leases a chunk to a server. If an earlier run has leased it, only sets `begun`, because the server may have received it.
    pub(super) fn lease(&mut self, chunk: &mut Chunk, server: &str) {
        let (Some(leases), Some(place)) = (&mut self.leases, chunk.place) else {
            return;
        };
        if chunk.lease == 0 && leases.holder(place).is_some() {
            chunk.begun = true;
        } else {
            chunk.lease = leases.lease(place, server);
        }
    }

    /// Forgets the leases of everything up to and including `position`.
    pub(super) fn settled(&mut self, position: Position) {
        if let Some(leases) = &mut self.leases {
            leases.settle(position);
        }
    }

    /// Starts a sync of new leases, unless one is in flight.
    pub(super) fn begin_sync(&mut self) {
        if self.syncing.is_none()
            && let Some(sync) = self.leases.as_mut().and_then(Leases::sync)
        {
            self.syncing = Some((sync.serial, spawn_blocking(move || sync.run())));
        }
    }

    /// Waits for the sync in flight and returns the number up to which leases are durable. Never returns if no sync is in flight.
    /// Safe to drop and call again.
    pub(super) async fn synced(&mut self) -> Result<u64, Failure> {
        let Some((serial, task)) = &mut self.syncing else {
            return pending().await;
        };
        let panicked = |panic| Failure::us(format!("a sync of leases panicked: {panic}"));
        task.await.map_err(panicked)??;
        self.durable = *serial;
        self.syncing = None;
        Ok(self.durable)
    }
}
