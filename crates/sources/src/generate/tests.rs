use std::time::{Duration, Instant};

use millstream_record::Encoding;
use millstream_testkit::{block_on, contract::SourceCase};

use super::COMPONENT;
use crate::rig::{Downstream, Running, try_build, until};

fn start(options: &str, to: &Downstream) -> Running {
    Running::start(&COMPONENT, options, to, "unused".as_ref())
}

/// The run of every line, and its kind with its number.
fn records(to: &Downstream) -> Vec<(String, String)> {
    let cut = |line: String| (line[4..12].to_owned(), line[18..35].to_owned());
    to.lines().into_iter().map(cut).collect()
}

fn expected(records: u64) -> Vec<String> {
    let data = (0..records).map(|number| format!("d{number:016}"));
    data.chain([format!("e{records:016}")]).collect()
}

#[test]
fn every_number_is_delivered_once_and_the_count_at_the_end() {
    let to = Downstream::memory();
    start(r#"{"records": 20000, "size": "60B"}"#, &to)
        .ended()
        .unwrap();
    let (runs, numbers): (std::collections::HashSet<_>, Vec<_>) = records(&to).into_iter().unzip();
    assert_eq!(runs.len(), 1);
    assert_eq!(numbers, expected(20_000));
    assert!(to.lines().iter().all(|line| line.len() == 60));
}

/// The kind and the number of every packed record.
fn packed(to: &Downstream) -> Vec<String> {
    let mut found = Vec::new();
    for batch in to.batches() {
        let mut body = &batch.body[..];
        while !body.is_empty() {
            let entry = rmpv::decode::read_value(&mut body).unwrap();
            found.push(entry[1]["message"].as_str().unwrap()[18..35].to_owned());
        }
    }
    found
}

#[test]
fn two_disk_channels_keep_each_packed_record_once_although_one_has_kept_more() {
    let (one, two) = (Downstream::durable(), Downstream::durable());
    for beside in [Some(&two), None] {
        one.set_beside(beside);
        let before = one.batches().len();
        let slow = r#"{"records": 3000, "rate": 1000, "encoding": "packed"}"#;
        let running = start(slow, &one);
        until("something more", || one.batches().len() > before);
        running.stop();
    }
    assert!(packed(&one).len() > packed(&two).len());
    one.set_beside(Some(&two));
    start(r#"{"records": 3000, "encoding": "packed"}"#, &one)
        .ended()
        .unwrap();
    assert_eq!(packed(&one), expected(3000));
    assert_eq!(packed(&two), expected(3000));
}

#[test]
fn packed_records_have_a_time_and_a_message() {
    let to = Downstream::memory();
    start(r#"{"records": 3, "encoding": "packed", "tag": "t"}"#, &to)
        .ended()
        .unwrap();
    let batch = &to.batches()[0];
    assert_eq!(
        (batch.encoding, batch.count, batch.tag.as_str()),
        (Encoding::Packed, 4, "t")
    );
    let mut rest = &batch.body[..];
    for kind in ["d", "d", "d", "e"] {
        let entry = rmpv::decode::read_value(&mut rest).unwrap();
        assert!(entry[0].as_ext().is_some());
        let message = entry[1].as_map().unwrap()[0].1.as_str().unwrap().to_owned();
        assert_eq!((message.len(), &message[18..19]), (99, kind));
    }
    assert!(rest.is_empty());
}

#[test]
fn with_a_durable_channel_a_restart_continues_where_it_stopped() {
    let to = Downstream::durable();
    let options = r#"{"records": 300, "rate": 1000}"#;
    let mut runs = 0;
    while to.lines().len() < 301 {
        let running = start(options, &to);
        let before = to.lines().len();
        until("something more", || to.lines().len() > before);
        running.stop();
        runs += 1;
    }
    assert!(runs > 1, "{runs}");
    start(options, &to).ended().unwrap();
    let (ids, numbers): (std::collections::HashSet<_>, Vec<_>) = records(&to).into_iter().unzip();
    assert_eq!((ids.len(), numbers), (1, expected(300)));
    start(r#"{"records": 5}"#, &to).ended().unwrap();
    assert_eq!(to.lines().len(), 301 + 6);
}

#[test]
fn dropped_records_are_generated_again_in_the_same_run() {
    let to = Downstream::memory();
    to.hold();
    let running = start(r#"{"records": 100}"#, &to);
    until("all are made", || to.lines().len() == 101);
    to.drop_held();
    running.ended().unwrap();
    let numbers: Vec<_> = records(&to).into_iter().map(|(_, number)| number).collect();
    assert_eq!(numbers, expected(100));
}

#[test]
fn the_configured_rate_is_not_exceeded() {
    let to = Downstream::memory();
    let started = Instant::now();
    start(r#"{"records": 500, "rate": 1000}"#, &to)
        .ended()
        .unwrap();
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(495), "{took:?}");
}

#[test]
fn an_impossible_size_is_refused() {
    for options in [r#"{"size": "44B"}"#, r#"{"size": "2MiB"}"#] {
        let problems = try_build(&COMPONENT, options).err().unwrap();
        assert!(problems[0].contains("between 45B and 1MiB"), "{problems:?}");
    }
}

#[test]
fn it_keeps_the_contract_of_sources() {
    let case = SourceCase {
        build: &|| try_build(&COMPONENT, r#"{"records": 300}"#).unwrap(),
        peer: None,
        // The end record is the last one.
        records: 301,
        rejected: 0,
        directory: "unused".as_ref(),
    };
    block_on(case.check());
}
