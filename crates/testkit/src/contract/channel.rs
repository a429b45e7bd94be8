//! The contract of channels.

use std::{future::poll_fn, sync::Arc};

use millstream_pipeline::{
    channel::{Channel, Delivered, Group, Reader},
    delivery::{self, Receipt},
    meters::Meter,
};

use super::{SETTLED, WATCH, line, lines, within};

/// A channel for [`ChannelCase::check`].
pub struct ChannelCase<'c> {
    /// Opens an empty channel with one consumer. Each call opens a new channel.
    pub open: &'c dyn Fn() -> (Arc<dyn Channel>, Box<dyn Reader>),
}

/// The number of batches that each check puts.
const BATCHES: usize = 20;

impl ChannelCase<'_> {
    /// Checks the contract of a channel. Call it within a Tokio runtime.
    ///
    /// # Panics
    /// If the channel breaks the contract.
    pub async fn check(&self) {
        self.delivers_everything_in_order_and_then_ends().await;
        self.settles_a_group_when_it_is_kept_or_its_consumer_settles_it()
            .await;
        self.never_loses_what_a_consumer_did_not_settle().await;
    }

    async fn delivers_everything_in_order_and_then_ends(&self) {
        let (channel, mut reader) = (self.open)();
        resume(&mut *reader);
        for number in 0..BATCHES {
            put(&*channel, number).await;
        }
        channel.close();
        for number in 0..BATCHES {
            let delivered = next(&mut *reader).await;
            let delivered = delivered.expect("a closed channel still delivers what it holds");
            assert_eq!(&delivered.batch.body[..], body(number).as_bytes(), "order");
            settle(&mut *reader, delivered);
        }
        let end = next(&mut *reader).await;
        assert!(end.is_none(), "a closed channel that was read ends");
    }

    async fn settles_a_group_when_it_is_kept_or_its_consumer_settles_it(&self) {
        let (channel, mut reader) = (self.open)();
        resume(&mut *reader);
        let receipt = put(&*channel, 0).await;
        if channel.id().is_some() {
            let kept = within("a durable channel settles a group when it is kept", receipt);
            assert_eq!(kept.await, Ok(()));
            let delivered = next(&mut *reader).await.expect("a kept batch is delivered");
            assert!(delivered.position.is_some(), "kept batches have positions");
            assert!(delivered.token.is_none(), "kept batches have no tokens");
            return;
        }
        tokio::time::sleep(WATCH).await;
        assert_eq!(receipt.try_outcome(), None, "settled before it was taken");
        let delivered = next(&mut *reader).await.expect("a batch is delivered");
        tokio::time::sleep(WATCH).await;
        assert_eq!(receipt.try_outcome(), None, "settled when it was taken");
        settle(&mut *reader, delivered);
        assert_eq!(
            receipt.try_outcome(),
            SETTLED,
            "its consumer has settled it"
        );
    }

    async fn never_loses_what_a_consumer_did_not_settle(&self) {
        let (channel, mut reader) = (self.open)();
        resume(&mut *reader);
        let receipts = [put(&*channel, 0).await, put(&*channel, 1).await];
        let first = next(&mut *reader).await.expect("a batch is delivered");
        settle(&mut *reader, first);
        let lost = next(&mut *reader).await.expect("a batch is delivered");
        assert_eq!(&lost.batch.body[..], body(1).as_bytes());
        drop(lost);
        if channel.id().is_some() {
            resume(&mut *reader);
            let again = next(&mut *reader).await;
            let again = again.expect("an unsettled batch is delivered again");
            assert_eq!(
                &again.batch.body[..],
                body(1).as_bytes(),
                "settled ones are not"
            );
        } else {
            let [settled, dropped] = receipts;
            assert_eq!(settled.try_outcome(), SETTLED);
            let outcome = dropped.try_outcome();
            let failed = outcome.is_some_and(|outcome| outcome.is_err());
            assert!(
                failed,
                "a batch that its consumer dropped fails its receipt"
            );
        }
    }
}

fn body(number: usize) -> String {
    format!("{}\n", line("record", number))
}

fn resume(reader: &mut dyn Reader) {
    let resumed = reader.resume(None);
    resumed.unwrap_or_else(|failure| panic!("a consumer resumes: {failure}"));
}

async fn put(channel: &dyn Channel, number: usize) -> Receipt {
    let (token, receipt) = delivery::receipt(true, 1, Meter::default());
    let batches = vec![lines(&body(number))];
    within("a group is taken", channel.put(Group::new(batches, token))).await;
    receipt
}

async fn next(reader: &mut dyn Reader) -> Option<Delivered> {
    let delivered = poll_fn(|context| reader.poll_next(context));
    let delivered = within("the next batch is delivered", delivered).await;
    delivered.unwrap_or_else(|failure| panic!("the reader failed: {failure}"))
}

fn settle(reader: &mut dyn Reader, delivered: Delivered) {
    if let Some(token) = delivered.token {
        token.settle();
    }
    if let Some(position) = delivered.position {
        let committed = reader.commit(position);
        committed.unwrap_or_else(|failure| panic!("a consumer commits: {failure}"));
    }
}
