//! The chunks of a lane that no server holds, and the reports that the links (a task for each server) make to the relay (the
//! task that takes batches).

use std::{cell::RefCell, collections::BTreeMap};

use tokio::sync::Notify;

use super::{
    chunk::{Chunk, Key},
    server::ServerOptions,
};

/// The exchange between the relay and the links of a lane.
#[derive(Debug, Default)]
pub(super) struct Hub {
    /// Chunks that no server has been chosen for, ordered by number: a chunk that was taken back from a server goes out before
    /// newer chunks.
    pub(super) pending: RefCell<BTreeMap<Key, Chunk>>,
    /// Chunks that waited longer than `retry.give_up` for a server that may have received them (`failover: wait`). They go to no
    /// other server.
    pub(super) overdue: RefCell<Vec<Chunk>>,
    /// Numbers of chunks that are finished.
    pub(super) done: RefCell<Vec<u64>>,
    /// With `balance: all`: the number of unfinished copies of each chunk.
    pub(super) copies: RefCell<BTreeMap<u64, usize>>,
    /// A new list of servers that the relay has not seen yet.
    pub(super) servers: RefCell<Option<Vec<ServerOptions>>>,
    /// Notified when one of the fields above or the state of a link has changed.
    pub(super) changed: Notify,
}

impl Hub {
    /// Notes that a chunk, or one of its copies, is finished.
    pub(super) fn finish(&self, number: u64) {
        self.done.borrow_mut().push(number);
        self.changed.notify_one();
    }

    /// Counts one copy of a chunk as finished. Returns whether all copies are finished.
    pub(super) fn is_last(&self, number: u64) -> bool {
        let mut copies = self.copies.borrow_mut();
        match copies.get_mut(&number) {
            Some(left) if *left > 1 => {
                *left -= 1;
                false
            }
            Some(_) => copies.remove(&number).is_some(),
            None => true,
        }
    }

    /// Takes back chunks that have to be dealt again.
    pub(super) fn take_back(&self, chunks: Vec<Chunk>) {
        let chunks = chunks.into_iter().map(|chunk| (chunk.key(), chunk));
        self.pending.borrow_mut().extend(chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_done_when_its_last_copy_is() {
        let hub = Hub::default();
        hub.copies.borrow_mut().insert(7, 2);
        assert!(!hub.is_last(7));
        assert!(hub.is_last(7));
        assert!(hub.is_last(8), "a chunk without copies");
    }
}
