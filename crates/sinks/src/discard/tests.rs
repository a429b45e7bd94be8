use super::COMPONENT;
use crate::rig::{Rig, Upstream, lines, try_build};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

#[test]
fn everything_it_takes_is_counted_and_settled() {
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
fn behind_a_durable_channel_its_cursor_moves_to_the_end() {
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
fn an_option_it_does_not_know_is_refused() {
    let problems = try_build(&COMPONENT, r#"{"path": "/x"}"#).err().unwrap();
    assert!(problems[0].contains("path"), "{problems:?}");
}
