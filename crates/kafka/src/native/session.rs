//! The state that the tasks of the producer's thread share: accumulator, cluster, identity, and the requests in flight.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    sync::Arc,
};

use super::{access::Access, accumulator::SharedAccumulator, cluster::Cluster, messages::Identity};
use crate::ProducerOptions;

pub(super) struct Session {
    pub(super) shared: Arc<SharedAccumulator>,
    pub(super) options: ProducerOptions,
    pub(super) cluster: Cluster,
    pub(super) identity: Cell<Option<Identity>>,
    /// The number of requests with records in flight, by broker.
    in_flight: RefCell<HashMap<i32, usize>>,
}

impl Session {
    pub(super) fn new(
        shared: Arc<SharedAccumulator>,
        access: Access,
        options: ProducerOptions,
    ) -> Self {
        Self {
            cluster: Cluster::new(access, shared.clone()),
            shared,
            options,
            identity: Cell::new(None),
            in_flight: RefCell::default(),
        }
    }

    /// Counts a request to a broker as in flight.
    pub(super) fn request_begins(&self, broker: i32) {
        *self.in_flight.borrow_mut().entry(broker).or_default() += 1;
    }

    /// Counts a request to a broker as no longer in flight.
    pub(super) fn request_ends(&self, broker: i32) {
        if let Some(requests) = self.in_flight.borrow_mut().get_mut(&broker) {
            *requests -= 1;
        }
    }

    /// The number of requests in flight to a broker.
    pub(super) fn requests(&self, broker: i32) -> usize {
        self.in_flight.borrow().get(&broker).copied().unwrap_or(0)
    }

    /// Whether no request with records is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight
            .borrow()
            .values()
            .all(|requests| *requests == 0)
    }
}
