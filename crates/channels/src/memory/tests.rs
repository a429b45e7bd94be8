//! The queue is bounded, and nothing in it is settled by accident.

use std::{sync::Arc, task::Waker};

use millstream_pipeline::{
    channel::Group,
    delivery::{Receipt, Unsettled, receipt},
    meters::Meter,
};
use millstream_record::{Batch, Encoding, Values};
use millstream_testkit::{block_on, contract::ChannelCase};

use super::*;

fn group(bytes: usize) -> (Group, Receipt) {
    let batch = Batch {
        tag: "t".into(),
        plain: false,
        encoding: Encoding::Lines,
        body: vec![b'\n'; bytes].into(),
        count: bytes as u32,
        received: Default::default(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    };
    let (token, receipt) = receipt(false, bytes as u64, Meter::default());
    (Group::new(vec![batch], token), receipt)
}

fn poll_put(channel: &dyn Channel, group: Group) -> bool {
    let mut put = channel.put(group);
    put.as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

fn next(reader: &mut dyn Reader) -> Option<Delivered> {
    match reader.poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(next) => next.unwrap(),
        Poll::Pending => None,
    }
}

#[test]
fn a_producer_waits_when_the_queue_is_full() {
    let (channel, mut readers) = MemoryChannel::open(1, 10000);
    let (first, receipt) = group(8000);
    assert!(poll_put(&*channel, first));
    assert!(
        !poll_put(&*channel, group(3000).0),
        "there is room for 2,000 bytes"
    );
    let delivered = next(&mut *readers[0]).unwrap();
    assert!(poll_put(&*channel, group(3000).0));
    delivered.token.unwrap().settle();
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
}

#[test]
fn the_fill_is_the_number_of_bytes_that_wait_in_all_lanes() {
    let (channel, mut readers) = MemoryChannel::open(2, 10000);
    assert_eq!(channel.fill(), Some((0, 20_000)));
    assert!(poll_put(&*channel, group(8000).0));
    assert_eq!(channel.fill(), Some((8_000, 20_000)));
    next(&mut *readers[0]).unwrap();
    assert_eq!(channel.fill(), Some((0, 20_000)));
}

#[test]
fn a_batch_that_is_larger_than_the_queue_passes_alone() {
    let (channel, mut readers) = MemoryChannel::open(1, 10000);
    assert!(poll_put(&*channel, group(1000000).0));
    assert!(!poll_put(&*channel, group(1000).0));
    assert_eq!(next(&mut *readers[0]).unwrap().batch.len(), 1_000_000);
}

#[test]
fn batches_put_before_the_close_are_still_read() {
    let (channel, mut readers) = MemoryChannel::open(1, 10000);
    assert!(poll_put(&*channel, group(1000).0));
    channel.close();
    assert!(next(&mut *readers[0]).is_some());
    assert!(next(&mut *readers[0]).is_none());
}

#[test]
fn batches_that_wait_for_a_dropped_reader_fail() {
    let (channel, readers) = MemoryChannel::open(1, 10000);
    let (waiting, receipt) = group(1000);
    assert!(poll_put(&*channel, waiting));
    drop(readers);
    assert!(receipt.try_outcome().unwrap().is_err());
    let (late, receipt) = group(1000);
    assert!(poll_put(&*channel, late));
    assert!(receipt.try_outcome().unwrap().is_err());
}

#[test]
fn a_group_fails_if_its_reader_is_dropped_halfway() {
    let (channel, mut readers) = MemoryChannel::open(1, 10000);
    let (mut both, receipt) = group(8000);
    both.batches.push(group(8000).0.batches.remove(0));
    let mut put = channel.put(both);
    let mut context = Context::from_waker(Waker::noop());
    assert!(put.as_mut().poll(&mut context).is_pending());
    // The first batch is delivered and settled; the second still waits for room.
    next(&mut *readers[0]).unwrap().token.unwrap().settle();
    drop(readers);
    assert!(put.as_mut().poll(&mut context).is_ready());
    drop(put);
    assert_eq!(receipt.try_outcome(), Some(Err(Unsettled)));
}

#[test]
fn it_keeps_the_contract_of_channels() {
    let open = || {
        let (channel, mut readers) = MemoryChannel::open(1, 1 << 20);
        (channel, readers.remove(0))
    };
    block_on(ChannelCase { open: &open }.check());
}
