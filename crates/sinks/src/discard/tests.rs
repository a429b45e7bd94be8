use millstream_testkit::{block_on, contract::SinkCase};

use super::COMPONENT;
use crate::rig::{Rig, Upstream, build, lines, try_build};

#[test]
fn every_record_is_counted_and_settled() {
    let upstream = Upstream::memory();
    let receipts: Vec<_> = (0..3)
        .map(|_| upstream.put(lines("t", "a\nb\n"), true))
        .collect();
    upstream.close();
    let mut rig = Rig::new(&COMPONENT, "{}", &upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    assert!(
        receipts
            .iter()
            .all(|receipt| receipt.try_outcome() == Some(Ok(())))
    );
    assert_eq!(rig.meter("records_received"), 6);
    assert_eq!(rig.meter("records_settled"), 6);
}

#[test]
fn its_cursor_in_a_durable_channel_moves_to_the_end() {
    let upstream = Upstream::durable(7);
    for _ in 0..3 {
        upstream.put(lines("t", "a\n"), false);
    }
    upstream.close();
    let mut rig = Rig::new(&COMPONENT, "{}", &upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    assert_eq!(upstream.settled(), 3);
}

#[test]
fn an_unknown_option_is_refused() {
    let problems = try_build(&COMPONENT, r#"{"path": "/x"}"#).err().unwrap();
    assert!(problems[0].contains("path"), "{problems:?}");
}

#[test]
fn it_keeps_the_contract_of_sinks() {
    let sink = build(&COMPONENT, "{}");
    let case = SinkCase {
        run: &|inlet, context| {
            let sink = sink.clone();
            Box::pin(async move { sink.run(inlet, context).await })
        },
        arrived: None,
        directory: "unused".as_ref(),
        misfit: None,
    };
    block_on(case.check());
}
