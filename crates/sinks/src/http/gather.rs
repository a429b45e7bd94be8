//! Gathers items (encoded records) into requests. At any time, at most one incomplete request exists for each target (path and
//! headers).
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! This module promises that the same batches in the same order make the same requests, if [`Gathering::leave`] is called after
//! the same batches.

use std::collections::HashMap;

use bytes::Bytes;
use foldhash::fast::FixedState;
use millstream_record::Batch;
use tokio::time::{Instant, sleep_until};

use super::{
    encode::{Encoded, Output},
    request::{Item, Request},
    target::Site,
};
use crate::sending::Batching;

/// Requests for at most this many targets are gathered at a time. When this number is reached, the first item for a new target
/// flushes all gathered requests.
const TARGETS_MAX: usize = 256;
/// Initial capacity of a request in bytes. Most requests are small.
const TEXT_BYTES: usize = 4 << 10;

/// A request that is being gathered.
#[derive(Debug)]
struct PendingRequest {
    key: Vec<u8>,
    number: u64,
    text: Vec<u8>,
    around: Vec<u8>,
    items: Vec<Item>,
    batches: Vec<Batch>,
}

/// The requests that are being gathered, oldest first.
#[derive(Debug)]
pub(super) struct Gathering {
    bytes_max: usize,
    records_max: usize,
    linger: std::time::Duration,
    requests: Vec<PendingRequest>,
    places: HashMap<Vec<u8>, usize, FixedState>,
    since: Instant,
    /// The index of the request to which the last item was added. The next item usually has the same target.
    last: usize,
}

impl Gathering {
    /// `single`: each request has one record.
    pub(super) fn new(limits: Batching, single: bool) -> Self {
        let records = match (single, limits.records) {
            (true, _) => 1,
            (false, 0) => usize::MAX,
            (false, records) => records as usize,
        };
        Self {
            bytes_max: limits.size.as_usize(),
            records_max: records,
            linger: limits.linger.as_duration(),
            requests: Vec::new(),
            places: HashMap::default(),
            since: Instant::now(),
            last: usize::MAX,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Waits until `batch.linger` is over: the requests must then be sent, even if they are not full.
    pub(super) async fn due(&self) {
        if !self.linger.is_zero() {
            sleep_until(self.since + self.linger).await;
        }
    }

    /// Adds an item of `batch` to the request for the target `key`. Calls `number` to number a new request, and passes to `leaves`
    /// each request that must be sent now.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        batch: &Batch,
        item: &Encoded,
        output: &Output,
        mut number: impl FnMut() -> u64,
        mut leaves: impl FnMut(Gathered),
    ) {
        let text = output.text.get(item.text.clone()).unwrap_or_default();
        let around = output.around.get(item.around.clone()).unwrap_or_default();
        if let Some(place) = self.find(key)
            && let Some(request) = self.requests.get(place)
            && request.text.len() + text.len() > self.bytes_max
        {
            self.remove(place, &mut leaves);
        }
        let place = match self.find(key) {
            Some(place) => place,
            None => {
                if self.requests.len() >= TARGETS_MAX {
                    self.leave(&mut leaves);
                }
                self.begin(key, number())
            }
        };
        self.last = place;
        let full = match self.requests.get_mut(place) {
            None => false,
            Some(request) => {
                request.add(batch, item, text, around);
                request.items.len() >= self.records_max || request.text.len() >= self.bytes_max
            }
        };
        if full {
            self.remove(place, &mut leaves);
        }
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        match self.requests.get(self.last) {
            Some(request) if request.key == key => Some(self.last),
            _ => self.places.get(key).copied(),
        }
    }

    fn begin(&mut self, key: &[u8], number: u64) -> usize {
        if self.requests.is_empty() {
            self.since = Instant::now();
        }
        self.places.insert(key.to_vec(), self.requests.len());
        self.requests.push(PendingRequest {
            key: key.to_vec(),
            number,
            text: Vec::with_capacity(TEXT_BYTES),
            around: Vec::new(),
            items: Vec::new(),
            batches: Vec::new(),
        });
        self.requests.len() - 1
    }

    /// Removes one request and passes it to `leaves`.
    fn remove(&mut self, place: usize, leaves: &mut impl FnMut(Gathered)) {
        let request = self.requests.remove(place);
        self.places.remove(&request.key);
        for later in self.places.values_mut() {
            if *later > place {
                *later -= 1;
            }
        }
        self.last = usize::MAX;
        leaves(Gathered(request));
    }

    /// Removes all requests and passes them to `leaves`, oldest first.
    pub(super) fn leave(&mut self, leaves: &mut impl FnMut(Gathered)) {
        self.places.clear();
        self.last = usize::MAX;
        self.requests.drain(..).map(Gathered).for_each(leaves);
    }
}

impl PendingRequest {
    fn add(&mut self, batch: &Batch, item: &Encoded, text: &[u8], around: &[u8]) {
        let same = |last: &Batch| {
            let (last, batch) = (&last.body, &batch.body);
            last.as_ptr() == batch.as_ptr() && last.len() == batch.len()
        };
        if !self.batches.last().is_some_and(same) {
            self.batches.push(batch.clone());
        }
        let start = self.text.len();
        self.text.extend_from_slice(text);
        // Neighboring records usually share resource and scope (of OTLP), which are then stored once.
        let last = self.items.last().map(|last| last.around.clone());
        let last = last.filter(|last| self.around.get(last.clone()) == Some(around));
        let around = last.unwrap_or_else(|| {
            let start = self.around.len();
            self.around.extend_from_slice(around);
            start..self.around.len()
        });
        self.items.push(Item {
            text: start..self.text.len(),
            around,
            batch: self.batches.len() - 1,
            record: item.mark.start..item.mark.end,
        });
    }
}

/// A complete request.
#[derive(Debug)]
pub(super) struct Gathered(PendingRequest);

impl Gathered {
    /// The text of all its items.
    pub(super) fn text(&self) -> &[u8] {
        &self.0.text
    }

    pub(super) fn into_request(self, site: &Site, key: Option<String>) -> Request {
        let request = self.0;
        Request {
            number: request.number,
            target: site.target(&request.key),
            key,
            text: Bytes::from(request.text),
            around: Bytes::from(request.around),
            items: request.items,
            batches: request.batches,
        }
    }
}
