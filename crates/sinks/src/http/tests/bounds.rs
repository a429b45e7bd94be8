//! Peers and servers choose sizes and texts. Neither may make the sink use memory or syncs without limit.

use super::*;
use crate::rig::{misfits, rejected_groups};

#[test]
fn documents_that_are_refused_for_very_many_reasons_leave_in_few_groups() {
    let server = Scripted::answering(|request| {
        let count = request.text().lines().count() / 2;
        let item = |number| {
            format!(
                r#"{{"create":{{"status":400,"error":{{"type":"t","reason":"no x{number}"}}}}}}"#
            )
        };
        let items: Vec<String> = (0..count).map(item).collect();
        let items = items.join(",");
        Said::status(200).body(&format!(r#"{{"errors":true,"items":[{items}]}}"#))
    });
    let upstream = Upstream::memory();
    upstream.put(packed("t", &"a\n".repeat(100)), true);
    upstream.close();
    let more = r#", "framing": "bulk", "bulk": {"index": "logs"}"#;
    let rig = run(&options(&server, more), &upstream);
    let counts = rejected_groups(&upstream);
    assert_eq!(counts.len(), 16);
    assert_eq!(counts.iter().sum::<u32>(), 100);
    assert_eq!(rig.meter("records_refused"), 100);
    let told = rejected(&upstream);
    assert_eq!(told[0].1, "400 t: no x0");
    assert!(
        told[99].1.contains("more than 16 reasons"),
        "{}",
        told[99].1
    );
}

#[test]
fn few_records_are_encoded_at_a_time_if_their_tag_is_long() {
    let server = Scripted::answering(|_| Said::status(200));
    let upstream = Upstream::memory();
    upstream.put(misfits(2049), true);
    upstream.close();
    run(&options(&server, r#", "format": "raw""#), &upstream);
    assert_eq!(rejected_groups(&upstream), [1024, 1024, 1]);
}
