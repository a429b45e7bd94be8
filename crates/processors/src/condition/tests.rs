//! Conditions in VRL, which are texts in the configuration: alone, among maps, and compared with maps of the same meaning.

use millstream_record::{Batch, Values};

use crate::{
    filter,
    rig::{Chance, Rig, found, lines, packed, pointed, problems, singles},
    route, sample,
};

use std::sync::Arc;

#[test]
fn a_text_filters_lines_and_records_without_copying_those_that_it_keeps() {
    let mut rig = Rig::new(
        &filter::COMPONENT,
        "where: 'contains(string!(.message), \"keep\")'",
    );
    let made = rig.run(&lines("t", "keep 1\nno\nkeep 2\nkeep 3\n"));
    assert_eq!(made.lines(""), ["keep 1", "keep 2", "keep 3"]);
    assert_eq!(made.counts.filtered, 1);
    let batch = lines("t", "keep 1\nkeep 2\n");
    let made = rig.run(&batch);
    assert_eq!(made.ports[""][0].body.as_ptr(), batch.body.as_ptr());
    assert_eq!(rig.run(&lines("t", "")).counts.sent, 0);
}

#[test]
fn times_that_name_no_zone_are_in_the_time_zone_of_the_option() {
    let condition = "parse_timestamp!(.at, \"%F %T\") == t'2026-01-02T02:04:05Z'";
    let records = ["02", "03"].map(|hour| format!("{{\"at\":\"2026-01-02 {hour}:04:05\"}}"));
    let batch = packed("t", &records);
    let options = [
        (&filter::COMPONENT, format!("where: |\n  {condition}\n"), ""),
        (
            &route::COMPONENT,
            format!("routes:\n  one:\n    where: |\n      {condition}\n"),
            "one",
        ),
        // `sample` drops practically all records that match its `where`, which is the negated condition. So the remaining record is
        // the one that matches `condition`.
        (
            &sample::COMPONENT,
            format!("every: 9223372036854775807\nwhere: |\n  !({condition})\n"),
            "",
        ),
    ];
    for (component, options, port) in options {
        for (zone, expected) in [("", 0), ("timezone: Europe/Berlin", 1)] {
            let mut rig = Rig::new(component, &format!("{options}{zone}"));
            let found = rig.run(&batch).lines(port);
            assert_eq!(found, records[expected..=expected], "{options}{zone}");
        }
        let problems = problems(component, &format!("{options}timezone: Mars"));
        assert!(problems[0].contains("no time zone is called `Mars`"));
    }
}

#[test]
fn a_text_that_fails_on_a_record_does_not_match_it() {
    let mut rig = Rig::new(&filter::COMPONENT, "where: 'to_int!(.n) > 5'");
    let records = [r#"{"n":7}"#, r#"{"n":"x"}"#, r#"{}"#, r#"{"n":"9"}"#].map(str::to_owned);
    let made = rig.run(&packed("t", &records));
    assert_eq!(made.lines(""), [r#"{"n":7}"#, r#"{"n":"9"}"#]);
    assert_eq!((made.counts.filtered, made.counts.failed), (2, 1));
}

#[test]
fn the_first_condition_that_matches_counts_whether_map_or_text() {
    let routes = "routes:
  one: { where: { .n: 1 } }
  two: { where: '.n == 1 || .n == 2' }
  three: { where: { .n: { le: 3 } } }
  four: { where: { .n: 4 } }
  five: { where: 'int!(.n) < 6' }
";
    let mut rig = Rig::new(&route::COMPONENT, routes);
    let all = [4, 1, 1, 2, 3, 9, 5, 2];
    let records = all.map(|n| format!("{{\"n\":{n}}}"));
    let made = rig.run(&packed("t", &records));
    for (port, numbers) in [
        ("one", &[1, 1][..]),
        ("two", &[2, 2]),
        ("three", &[3]),
        ("four", &[4]),
        ("five", &[5]),
        ("rest", &[9]),
    ] {
        let expected: Vec<_> = numbers.iter().map(|n| format!("{{\"n\":{n}}}")).collect();
        assert_eq!(made.lines(port), expected, "{port}");
    }
    assert_eq!(made.counts.sent, 8);
}

#[test]
fn errors_point_into_the_text_of_their_condition() {
    let options = "routes:
  good: { where: '.n == 1' }
  bad:
    where: |
      .level == \"x\" &&
        nothing(.n)
  set: { where: \".n = 1\" }
  text: { where: '.n' }
";
    let problems = found(&route::COMPONENT, options);
    let at: Vec<_> = problems.iter().map(pointed).collect();
    assert_eq!(at[0], (6, 9, "nothing".to_owned()));
    assert_eq!((at[1].0, at[1].1), (7, 18));
    assert_eq!(at[2], (8, 19, ".n".to_owned()));
    assert!(problems[0].message.contains("undefined function"));
    assert!(
        problems[1].message.contains("read-only"),
        "{}",
        problems[1].message
    );
    assert!(problems[2].message.contains("must be true or false"));
}

const FIELDS: [&str; 5] = [".a", ".b", ".u.id", ".message", ".missing"];
const CONSTANTS: [(&str, &str); 7] = [
    ("1", "1"),
    ("-3", "-3"),
    ("2.5", "2.5"),
    ("true", "true"),
    ("\"x\"", "\"x\""),
    ("\"10\"", "\"10\""),
    ("\"\"", "\"\""),
];
const BOUNDS: [&str; 4] = ["1", "2.5", "-3", "\"x\""];

/// Returns a random condition as a map, and as a text with the same meaning.
fn condition(chance: &mut Chance, depth: usize) -> (String, String) {
    let field = chance.pick(&FIELDS);
    let kinds = if depth == 0 { 8 } else { 11 };
    match chance.below(kinds) {
        0 => {
            let (map, text) = CONSTANTS[chance.below(CONSTANTS.len())];
            (
                format!("{{ {field}: {map} }}"),
                format!("{field} == {text}"),
            )
        }
        1 => {
            let all = [0, 1, 2].map(|_| CONSTANTS[chance.below(CONSTANTS.len())]);
            let texts = all.map(|(_, text)| format!("{field} == {text}"));
            let maps = all.map(|(map, _)| map).join(", ");
            (
                format!("{{ {field}: [{maps}] }}"),
                format!("({})", texts.join(" || ")),
            )
        }
        2 | 3 => {
            let (name, sign) =
                [("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")][chance.below(4)];
            let bound = chance.pick(&BOUNDS);
            let map = format!("{{ {field}: {{ {name}: {bound} }} }}");
            // In VRL, it is an error to compare a boolean with a number. Because of `?? false`, the record then does not match, as
            // with a map.
            (map, format!("(({field} {sign} {bound}) ?? false)"))
        }
        4 => {
            let map = format!("{{ {field}: {{ regex: '^[x-z]+$' }} }}");
            (map, format!("(match({field}, r'^[x-z]+$') ?? false)"))
        }
        5 => {
            let map = format!("{{ {field}: {{ glob: 'x*' }} }}");
            (map, format!("(starts_with({field}, \"x\") ?? false)"))
        }
        6 => {
            let is = chance.below(2) == 0;
            let not = if is { "" } else { "!" };
            (
                format!("{{ {field}: {{ exists: {is} }} }}"),
                format!("{not}exists({field})"),
            )
        }
        7 => match chance.below(4) {
            0 => ("{ tag: web }".into(), "%tag == \"web\"".into()),
            1 => ("{ host: h1 }".into(), "%host == \"h1\"".into()),
            2 => ("{ peer: h1 }".into(), "%peer == \"h1\"".into()),
            _ => {
                let map = format!("{{ {field}: null }}");
                (map, format!("(exists({field}) && {field} == null)"))
            }
        },
        8 => {
            let (map, text) = condition(chance, depth - 1);
            (format!("{{ not: {map} }}"), format!("!({text})"))
        }
        kind => {
            let (one, other) = (condition(chance, depth - 1), condition(chance, depth - 1));
            let (name, sign) = if kind == 9 {
                ("any", "||")
            } else {
                ("all", "&&")
            };
            let map = format!("{{ {name}: [{}, {}] }}", one.0, other.0);
            (map, format!("({} {sign} {})", one.1, other.1))
        }
    }
}

fn record(chance: &mut Chance) -> String {
    const VALUES: [&str; 14] = [
        "1",
        "-3",
        "2.5",
        "2",
        "0",
        "true",
        "false",
        "null",
        "\"x\"",
        "\"xyz\"",
        "\"10\"",
        "\"\"",
        "[1]",
        "{\"id\":1}",
    ];
    let names = ["a", "b", "u", "message", "z"];
    let mut pairs = Vec::new();
    for name in names {
        if chance.below(3) > 0 {
            let value = match (name, chance.below(3)) {
                ("u", 0 | 1) => format!("{{\"id\":{}}}", chance.pick(&VALUES)),
                _ => chance.pick(&VALUES).to_owned(),
            };
            pairs.push(format!("\"{name}\":{value}"));
        }
    }
    format!("{{{}}}", pairs.join(","))
}

fn with_host(batch: Batch, chance: &mut Chance) -> Batch {
    let mut values = Values::new();
    match chance.below(3) {
        0 => {}
        _ => values.set("host", chance.pick(&["h1", "h2"])),
    }
    Batch {
        values: Arc::new(values),
        ..batch
    }
}

#[test]
fn maps_and_texts_that_mean_the_same_keep_the_same_records() {
    let mut chance = Chance(16);
    let mut kept = 0;
    for round in 0..400 {
        let (map, text) = condition(&mut chance, 2);
        let mut by_map = Rig::new(&filter::COMPONENT, &format!("where: {map}"));
        let mut by_text = Rig::new(&filter::COMPONENT, &format!("where: |\n  {text}"));
        let batch = match round % 4 {
            0 => lines("web", "x\nxyz\n\n10\nab\n"),
            _ => {
                let records: Vec<_> = (0..12).map(|_| record(&mut chance)).collect();
                packed(chance.pick(&["web", "db"]), &records)
            }
        };
        let batch = with_host(batch, &mut chance);
        let expected = by_map.run(&batch);
        let made = by_text.run(&batch);
        assert_eq!(made.lines(""), expected.lines(""), "{map} and {text}");
        assert_eq!(made.counts, expected.counts, "{map} and {text}");
        let alone = singles(&batch).into_iter();
        let alone: Vec<_> = alone.flat_map(|one| by_text.run(&one).lines("")).collect();
        assert_eq!(alone, expected.lines(""), "{text}");
        kept += expected.counts.sent;
    }
    assert!(kept > 500, "{kept}");
}
