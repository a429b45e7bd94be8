//! Distributes batches among the lanes of a sink, as its options `parallelism` and `partition` demand. If a sink reads from memory, each of
//! its parallel tasks is a lane and has its own queue.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> [keep] -> read back -> process -> encode -> write -> settle`
//!
//! Each producer puts its records directly into the queues of the lanes; there is no central queue. A full lane makes its producers
//! wait.

use std::sync::{Arc, Mutex, PoisonError};

use millstream_record::Pool;

use crate::{
    channel::{BoxFuture, Channel, Group, Note},
    delivery::Token,
    partition::{Dealer, Partition},
    threads::{self, in_lane},
};

/// A memory channel with several lanes. Each batch goes to one lane or to all, or its records are divided among the lanes by a key.
pub(crate) struct Exchange {
    lanes: Arc<dyn Channel>,
    /// One dealer for each data thread. A dealer chooses the lanes for a batch.
    dealers: Vec<Mutex<Dealer>>,
}

impl Exchange {
    /// An exchange in front of the channel `lanes`, which has `count` lanes. Producers run on `threads` data threads.
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
                        entry: entry.clone(),
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

#[cfg(test)]
mod tests {
    use millstream_testkit::{block_on, lines};

    use super::*;
    use crate::delivery::{Receipt, Tally, receipt};

    /// Keeps the text and the lane of each batch. Drops batches with an `x` and settles all others.
    #[derive(Default)]
    struct Lanes(Mutex<Vec<(usize, String)>>);

    impl Channel for Lanes {
        fn put(&self, group: Group) -> BoxFuture<'_, ()> {
            Box::pin(async move {
                for batch in &group.batches {
                    let text = String::from_utf8_lossy(&batch.body).into_owned();
                    if text.contains('x') {
                        return;
                    }
                    self.0.lock().unwrap().push((threads::lane(), text));
                }
                group.token.settle();
            })
        }
        fn close(&self) {}
    }

    fn put(exchange: &Exchange, texts: &[&str]) -> Receipt {
        let batch = |text: &&str| lines("t", text);
        let (token, receipt) = receipt(true, 1, Tally::default());
        block_on(exchange.put(Group::new(texts.iter().map(batch).collect(), token)));
        receipt
    }

    fn exchange(partition: &Partition, lanes: usize) -> (Exchange, Arc<Lanes>) {
        let channel = Arc::new(Lanes::default());
        let exchange = Exchange::new(channel.clone(), partition, lanes, 1, &Pool::new(1 << 20));
        (exchange, channel)
    }

    #[test]
    fn shuffled_batches_go_to_the_lanes_in_turn_and_a_broadcast_goes_to_every_lane() {
        let (shuffled, channel) = exchange(&Partition::Shuffle, 3);
        let receipt = put(&shuffled, &["a\n", "b\n", "c\n", "d\n"]);
        assert_eq!(receipt.try_outcome(), Some(Ok(())));
        let lanes: Vec<_> = channel
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|(lane, _)| *lane)
            .collect();
        assert_eq!(lanes, [0, 1, 2, 0]);
        let (broadcast, channel) = exchange(&Partition::Broadcast, 2);
        put(&broadcast, &["a\n"]);
        let all = channel.0.lock().unwrap().clone();
        assert_eq!(all, [(0, "a\n".to_owned()), (1, "a\n".to_owned())]);
    }

    #[test]
    fn records_with_one_key_go_to_one_lane_in_order() {
        let key = Partition::Key("{.message}".parse().unwrap());
        let (dealt, channel) = exchange(&key, 4);
        let text: String = (0..200).map(|n| format!("{}\n", n % 20)).collect();
        put(&dealt, &[&text, &text]);
        let all = channel.0.lock().unwrap();
        for key in 0..20 {
            let key = key.to_string();
            let holds = |(_, text): &&(usize, String)| text.lines().any(|line| line == key);
            let mut lanes: Vec<_> = all.iter().filter(holds).map(|(lane, _)| *lane).collect();
            lanes.dedup();
            assert_eq!(lanes.len(), 1, "{key}");
        }
        let count: usize = all.iter().map(|(_, text)| text.lines().count()).sum();
        assert_eq!(count, 400);
    }

    #[test]
    fn a_part_that_a_lane_drops_fails_the_group() {
        let key = Partition::Key("{.message}".parse().unwrap());
        let (dealt, _) = exchange(&key, 2);
        assert!(put(&dealt, &["a\nx\nb\n"]).try_outcome().unwrap().is_err());
    }
}
