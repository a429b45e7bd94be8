//! How many records are kept, and what the decision depends on.

use millstream_wire::msgpack::{write_array_len, write_map_len, write_str, write_uint};

use crate::rig::{Rig, entries, lines, problems};

use super::*;

/// A batch of lines, each with its number.
fn numbers(range: Range<usize>) -> Batch {
    let text: String = range.map(|n| format!("line {n}\n")).collect();
    lines("t", &text)
}

/// A batch of packed records, one for each user.
fn users(users: &[&str]) -> Batch {
    let mut body = Vec::new();
    for (n, user) in users.iter().enumerate() {
        write_array_len(&mut body, 2);
        write_uint(&mut body, n as u64);
        write_map_len(&mut body, 1);
        write_str(&mut body, b"user");
        write_str(&mut body, user.as_bytes());
    }
    entries(body, users.len() as u32)
}

fn rig(options: &str) -> Rig {
    Rig::new(&COMPONENT, options)
}

#[test]
fn about_the_configured_fraction_is_kept_in_order() {
    for (options, expected) in [
        (r#"{"every": 10}"#, 1000),
        (r#"{"ratio": 0.1}"#, 1000),
        (r#"{"ratio": 0.5}"#, 5000),
        (r#"{"every": 1}"#, 10_000),
        (r#"{"ratio": 1}"#, 10_000),
    ] {
        let made = rig(options).run(&numbers(0..10_000));
        let kept = made.lines("");
        let deviation = 150_i64;
        assert!(
            (kept.len() as i64 - expected).abs() <= deviation,
            "{options}: {}",
            kept.len()
        );
        let number = |line: &String| line["line ".len()..].parse::<u32>().unwrap();
        assert!(kept.iter().map(number).is_sorted());
        assert_eq!(made.counts.sent + made.counts.filtered, 10_000);
        assert_eq!(made.counts.sent, kept.len() as u64);
    }
}

#[test]
fn the_boundaries_of_batches_and_earlier_records_do_not_matter() {
    let whole = rig(r#"{"every": 3}"#).run(&numbers(0..1000)).lines("");
    let mut other = rig(r#"{"every": 3}"#);
    other.run(&numbers(5000..5007));
    let mut parts = Vec::new();
    for range in [0..1, 1..500, 500..503, 503..1000] {
        parts.extend(other.run(&numbers(range)).lines(""));
    }
    assert_eq!(whole, parts);
}

#[test]
fn records_with_one_key_are_kept_or_dropped_together_and_those_without_a_key_are_rejected() {
    let names: Vec<String> = (0..2000).map(|n| format!("u{}", n % 100)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let made = rig(r#"{"every": 2, "key": "{.user}"}"#).run(&users(&names));
    let mut kept = made.lines("");
    let records = kept.len();
    kept.sort();
    kept.dedup();
    assert!((25..75).contains(&kept.len()), "{}", kept.len());
    assert_eq!(records, kept.len() * 20);
    let made = rig(r#"{"every": 1, "key": "{.user}"}"#).run(&numbers(0..3));
    assert_eq!((made.counts.sent, made.counts.rejected), (0, 3));
    let made = rig(r#"{"every": 1, "key": "{.user|none}"}"#).run(&numbers(0..3));
    assert_eq!((made.counts.sent, made.counts.rejected), (3, 0));
}

#[test]
fn a_smaller_sample_by_key_is_a_part_of_a_larger_one() {
    let names: Vec<String> = (0..1000).map(|n| format!("u{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sample = |ratio: &str| {
        let options = format!(r#"{{"ratio": {ratio}, "key": "{{.user}}"}}"#);
        rig(&options).run(&users(&names)).lines("")
    };
    let (small, large) = (sample("0.2"), sample("0.6"));
    assert!(small.len() > 100 && small.len() < large.len());
    assert!(small.iter().all(|record| large.contains(record)));
}

#[test]
fn records_that_do_not_match_are_kept() {
    let mut rig = rig(r#"{"ratio": 0.0000001, "where": {".message": {"glob": "*7"}}}"#);
    let made = rig.run(&numbers(0..100));
    assert_eq!((made.counts.sent, made.counts.filtered), (90, 10));
    assert!(made.lines("").iter().all(|line| !line.ends_with('7')));
}

#[test]
fn a_batch_that_is_kept_as_a_whole_is_not_copied() {
    let batch = numbers(0..100);
    let made = rig(r#"{"every": 1}"#).run(&batch);
    assert_eq!(made.ports[""][0].body.as_ptr(), batch.body.as_ptr());
    assert_eq!(made.ports[""].len(), 1);
}

#[test]
fn the_decision_depends_on_the_name_of_the_processor_the_tag_and_the_time() {
    let sampler = |name: &str| Sampler {
        highest: u64::MAX / 2,
        seed: Hash::new().bytes(name.as_bytes()),
    };
    let decisions = |name: &str, batch: &Batch| -> Vec<bool> {
        let sampler = sampler(name);
        let of_batch = sampler.seed.bytes(batch.tag.as_str().as_bytes());
        let each = records(batch);
        each.map(|(range, timed)| sampler.keeps(of_batch.record(batch, &range, timed)))
            .collect()
    };
    let batch = numbers(0..200);
    let later = Batch {
        received: millstream_record::Time(1),
        ..batch.clone()
    };
    let other = Batch {
        tag: "other".into(),
        ..batch.clone()
    };
    let first = decisions("a", &batch);
    for (name, batch) in [("b", &batch), ("a", &later), ("a", &other)] {
        let second = decisions(name, batch);
        let same = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!((60..140).contains(&same), "{same}");
    }
}

#[test]
fn unusable_options_are_refused() {
    for (options, word) in [
        ("{}", "needs `every` or `ratio`"),
        (r#"{"every": 10, "ratio": 0.1}"#, "one of them must go"),
        (r#"{"every": 0}"#, "1 or more"),
        (r#"{"every": -1}"#, "every"),
        (r#"{"ratio": 0}"#, "greater than 0"),
        (r#"{"ratio": 10}"#, "every: 10"),
        (r#"{"ratio": .nan}"#, "greater than 0"),
        (r#"{"every": 2, "key": ".user"}"#, "`\"{.user}\"`"),
        (r#"{"every": 2, "key": "user"}"#, "same for all records"),
        (r#"{"every": 2, "where": {}}"#, "matches everything"),
    ] {
        let found = problems(&COMPONENT, options).join("; ");
        assert!(found.contains(word), "{options}: {found}");
    }
}
