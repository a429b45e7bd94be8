//! Items to requests: those of one target come together until their request is full.
//!
//! `read -> decode -> send -> keep -> take -> process -> [encode] -> write -> settle`
//!
//! It promises that the same batches in the same order make the same requests, as long as somebody says at the same places
//! that all of them leave.

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
use crate::batching::Batching;

/// So many targets are gathered for at once; with one more all leave.
const TARGETS_MAX: usize = 256;
/// A new request is taken to become so large: most are small.
const TEXT_BYTES: usize = 4 << 10;

/// A request that is being gathered.
#[derive(Debug)]
struct Open {
    key: Vec<u8>,
    number: u64,
    text: Vec<u8>,
    around: Vec<u8>,
    items: Vec<Item>,
    batches: Vec<Batch>,
}

/// All requests that are being gathered, in the order in which they were begun.
#[derive(Debug)]
pub(super) struct Gathering {
    bytes_max: usize,
    records_max: usize,
    linger: std::time::Duration,
    open: Vec<Open>,
    places: HashMap<Vec<u8>, usize, FixedState>,
    since: Instant,
    /// The last target, which mostly is the next one's too.
    last: usize,
}

impl Gathering {
    /// `single`: every record leaves alone.
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
            open: Vec::new(),
            places: HashMap::default(),
            since: Instant::now(),
            last: usize::MAX,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns when they leave though they are not full.
    pub(super) async fn due(&self) {
        if !self.linger.is_zero() {
            sleep_until(self.since + self.linger).await;
        }
    }

    /// Adds an item of `batch` for the target `key`. `number` numbers a request that begins, `leaves` takes those that are
    /// full.
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
            && let Some(open) = self.open.get(place)
            && open.text.len() + text.len() > self.bytes_max
        {
            self.take(place, &mut leaves);
        }
        let place = match self.find(key) {
            Some(place) => place,
            None => {
                if self.open.len() >= TARGETS_MAX {
                    self.leave(&mut leaves);
                }
                self.begin(key, number())
            }
        };
        self.last = place;
        let full = match self.open.get_mut(place) {
            None => false,
            Some(open) => {
                open.add(batch, item, text, around);
                open.items.len() >= self.records_max || open.text.len() >= self.bytes_max
            }
        };
        if full {
            self.take(place, &mut leaves);
        }
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        match self.open.get(self.last) {
            Some(open) if open.key == key => Some(self.last),
            _ => self.places.get(key).copied(),
        }
    }

    fn begin(&mut self, key: &[u8], number: u64) -> usize {
        if self.open.is_empty() {
            self.since = Instant::now();
        }
        self.places.insert(key.to_vec(), self.open.len());
        self.open.push(Open {
            key: key.to_vec(),
            number,
            text: Vec::with_capacity(TEXT_BYTES),
            around: Vec::new(),
            items: Vec::new(),
            batches: Vec::new(),
        });
        self.open.len() - 1
    }

    /// One of them leaves.
    fn take(&mut self, place: usize, leaves: &mut impl FnMut(Gathered)) {
        let open = self.open.remove(place);
        self.places.remove(&open.key);
        for later in self.places.values_mut() {
            if *later > place {
                *later -= 1;
            }
        }
        self.last = usize::MAX;
        leaves(Gathered(open));
    }

    /// All of them leave, in order.
    pub(super) fn leave(&mut self, leaves: &mut impl FnMut(Gathered)) {
        self.places.clear();
        self.last = usize::MAX;
        self.open.drain(..).map(Gathered).for_each(leaves);
    }
}

impl Open {
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
        // Those that follow each other mostly stand in the same.
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

/// A request that is whole.
#[derive(Debug)]
pub(super) struct Gathered(Open);

impl Gathered {
    /// The text of all its items.
    pub(super) fn text(&self) -> &[u8] {
        &self.0.text
    }

    pub(super) fn into_request(self, site: &Site, key: Option<String>) -> Request {
        let open = self.0;
        Request {
            number: open.number,
            target: site.target(&open.key),
            key,
            text: Bytes::from(open.text),
            around: Bytes::from(open.around),
            items: open.items,
            batches: open.batches,
        }
    }
}
