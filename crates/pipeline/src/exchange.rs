//! Deals batches to the lanes of a sink: the options `parallelism` and `partition` of a sink behind memory.
//!
//! `read -> decode -> send -> [keep] -> read back -> encode -> write -> settle`
//!
//! Each producer puts its records directly into the lanes that they are for. Nothing goes through a hub, and a full lane makes its
//! producers wait.

use std::sync::{Arc, Mutex, PoisonError};

use millstream_record::Pool;

use crate::{
    channel::{BoxFuture, Channel, Group, Note},
    delivery::Token,
    partition::{Dealer, Partition},
    threads::{self, in_lane},
};

/// A memory channel with a number of lanes, of which each batch or each of its records goes to one.
pub(crate) struct Exchange {
    lanes: Arc<dyn Channel>,
    /// One for each data thread.
    dealers: Vec<Mutex<Dealer>>,
}

impl Exchange {
    /// Deals to the `count` lanes of `lanes`, from `threads` data threads.
    pub(crate) fn new(
        lanes: Arc<dyn Channel>,
        partition: &Partition,
        count: usize,
        threads: usize,
        pool: &Pool,
    ) -> Self {
        let dealer = |_| Mutex::new(Dealer::new(partition, count, pool));
        Self {
            lanes,
            dealers: (0..threads.max(1)).map(dealer).collect(),
        }
    }
}

impl Channel for Exchange {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Group {
                batches,
                token,
                entry,
            } = group;
            for batch in batches {
                let parts = {
                    let dealer = &self.dealers[threads::lane() % self.dealers.len()];
                    let mut dealer = dealer.lock().unwrap_or_else(PoisonError::into_inner);
                    dealer.whole(batch)
                };
                for (lane, part) in parts {
                    let part = Group {
                        batches: vec![part],
                        token: Token::clone(&token),
                        entry,
                    };
                    in_lane(lane, self.lanes.put(part)).await;
                }
            }
            token.settle();
        })
    }

    fn note(&self, note: Note) {
        self.lanes.note(note);
    }

    fn sync(&self, token: Token) {
        self.lanes.sync(token);
    }

    fn is_full(&self) -> bool {
        self.lanes.is_full()
    }

    fn close(&self) {
        self.lanes.close();
    }

    fn give_up_waiting(&self) {
        self.lanes.give_up_waiting();
    }
}
