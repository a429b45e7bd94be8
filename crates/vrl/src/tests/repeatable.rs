//! Functions that return the time or random values return the same values when a record is read again, and different ones for other
//! records.

use millstream_record::{Batch, Time};

use crate::{
    Outcome, Remap,
    rig::{RECEIVED, changed, compile, one, records},
};

/// Generates random values for a record, which is given as JSON.
fn drawn(json: &str) -> Vec<String> {
    drawn_from(&one(json))
}

fn drawn_from(batch: &Batch) -> Vec<String> {
    let program = ".a = uuid_v4(); .b = uuid_v7(); .c = random_int(-5, 9223372036854775807); .d = random_float(0.0, 1.0); .e = encode_base16(random_bytes(40)); .f = uuid_v4()\n.g = random_bool()";
    let mut remap = Remap::new(&compile(program));
    remap.begin(batch, 0);
    let mut out = Vec::new();
    let outcome = remap.run(0, &mut out);
    assert_eq!(outcome, Outcome::Written(1));
    let record = records(&out).remove(0);
    record.split(',').map(str::to_owned).collect()
}

#[test]
fn random_values_depend_on_the_record_its_tag_and_its_times() {
    let first = drawn("{}");
    assert_eq!(first, drawn("{}"));
    let (mut received, mut tagged, mut timed) = (one("{}"), one("{}"), one("{}"));
    received.received = Time(RECEIVED.0 + 1);
    tagged.tag = "app.wec".into();
    let mut body = timed.body.to_vec();
    // The last byte of the event time, before the map.
    let at = body.len() - 2;
    body[at] ^= 1;
    timed.body = body.into();
    for other in [received, tagged, timed] {
        let other = drawn_from(&other);
        assert!(
            first
                .iter()
                .zip(&other)
                .take(6)
                .all(|(one, other)| one != other)
        );
    }
    let other = drawn(r#"{"z":1}"#);
    assert_ne!(first[0], other[1]);
    // Each call generates a new value.
    assert_ne!(first[0][5..], first[5][5..]);
}

#[test]
fn uuids_have_their_version_and_variant() {
    for number in 0..50 {
        let mut batch = one("{}");
        batch.received = Time(RECEIVED.0 + number);
        let drawn = drawn_from(&batch);
        for (text, version) in [(&drawn[0], b'4'), (&drawn[1], b'7')] {
            let uuid = text.split('"').nth(3).unwrap().as_bytes();
            assert_eq!(uuid.len(), 36);
            assert_eq!(uuid[14], version);
            assert!(b"89ab".contains(&uuid[19]));
            assert!([8, 13, 18, 23].iter().all(|at| uuid[*at] == b'-'));
        }
        // The receive time, in milliseconds: 1700000000000.
        assert!(drawn[1].contains("\"018bcfe5-6800-7"), "{}", drawn[1]);
    }
}

#[test]
fn random_numbers_are_in_their_range() {
    let program = ".ok = random_int(3, 5) >= 3 && random_int(3, 5) < 5 && random_float(-1.0, 1.0) < 1.0 && length(random_bytes(5)) <= 20\n.m = random_int!(.min, .max)";
    let mut seen = [false; 3];
    for value in 0..40 {
        let json = format!(r#"{{"min":-1,"max":2,"v":{value}}}"#);
        let record = changed(program, &json).unwrap();
        assert!(record.contains("\"ok\":true"), "{record}");
        for (place, number) in seen.iter_mut().zip(["-1}", "0}", "1}"]) {
            *place |= record.ends_with(&format!("\"m\":{number}"));
        }
    }
    assert_eq!(seen, [true; 3]);
    let (outcome, ..) = crate::rig::run(".m = random_int!(.a, .a)", &one(r#"{"a":1}"#));
    assert!(matches!(outcome, Outcome::Failed(why) if why.contains("max must be greater")));
}

#[test]
fn now_and_the_year_of_syslog_messages_come_from_the_receive_time() {
    assert_eq!(
        changed(".t = now()", "{}").unwrap(),
        r#"{"t":"2023-11-14T22:13:20.000000005Z"}"#
    );
    let program = ". = parse_syslog!(.message)";
    let json = r#"{"message":"<13>Jun 13 16:33:35 host app[12]: text"}"#;
    assert_eq!(
        changed(program, json).unwrap(),
        r#"{"appname":"app","facility":"user","hostname":"host","message":"text","procid":12,"severity":"notice","timestamp":"2023-06-13T16:33:35.000000000Z"}"#
    );
    for (date, expected) in [("Nov 15 22:00:00", 2023), ("Dec  1 00:00:00", 2022)] {
        let json = format!(r#"{{"message":"<13>{date} host app: text"}}"#);
        let text = changed(program, &json).unwrap();
        assert!(
            text.contains(&format!(r#""timestamp":"{expected}-"#)),
            "{text}"
        );
    }
    let json = r#"{"message":"<165>1 2003-10-11T22:14:15.003Z h a - ID47 [x@1 k=\"v\"] hi"}"#;
    assert_eq!(
        changed(program, json).unwrap(),
        r#"{"appname":"a","facility":"local4","hostname":"h","message":"hi","msgid":"ID47","severity":"notice","timestamp":"2003-10-11T22:14:15.003000000Z","version":1,"x@1":{"k":"v"}}"#
    );
}

#[test]
fn random_values_depend_on_the_index_of_a_record_but_not_on_the_boundaries_of_batches() {
    let (batch, single) = (one(r#"{"n":1}"#), one(r#"{"n":2}"#));
    let mut both = batch.clone();
    both.body = [&batch.body[..], &single.body[..]].concat().into();
    both.count = 2;
    let mut remap = Remap::new(&compile(".id = uuid_v4()"));
    remap.begin(&both, 7);
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    remap.run(0, &mut together);
    remap.run(remap.next(), &mut together);
    for one in [batch, single] {
        remap.begin(&one, 7);
        remap.run(0, &mut alone);
    }
    assert_eq!(records(&together), records(&alone));
    let mut elsewhere = Vec::new();
    remap.begin(&both, 8);
    remap.run(0, &mut elsewhere);
    assert_ne!(records(&elsewhere)[0], records(&alone)[0]);
    assert!(compile(".id = uuid_v7()").draws() && !compile(".t = now()").draws());
}
