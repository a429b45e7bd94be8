//! Compares the records that left a processor with those that a case expects.

use millstream_wire::record::FieldPath;
use serde_json::Value;

use super::{Expected, Seen};

/// A difference between an expected record and the actual one.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the record: `record 2`. If the record's port has a name, the name comes first: `errors, record 1`. If the record was
    /// rejected, the reason follows the number.
    pub record: String,
    /// The expected and the found text of each field that differs.
    pub lines: Vec<Side>,
}

/// A line of a difference.
#[derive(Debug, PartialEq, Eq)]
pub enum Side {
    /// A field or a whole record that the case expects.
    Expected(String),
    /// A field or a whole record that left the processor.
    Found(String),
}

impl Seen {
    /// Whether this is the expected record. Metadata that the case does not name may have any value.
    fn is(&self, expected: &Expected) -> bool {
        self.record == expected.record
            && expected
                .metadata
                .iter()
                .all(|(name, value)| self.metadata(name) == Some(value))
    }

    fn metadata(&self, name: &str) -> Option<&String> {
        let found = self.metadata.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value)
    }
}

/// The differences between the records of a port and the expected ones, in order.
pub(super) fn differences(port: &str, expected: &[Expected], seen: &[Seen]) -> Vec<Difference> {
    // Equal records at the beginning and at the end of both lists are skipped, so that one missing record is reported as one difference.
    let equal = |(seen, expected): &(&Seen, &Expected)| seen.is(expected);
    let front = seen.iter().zip(expected).take_while(equal).count();
    let (seen, expected) = (&seen[front..], &expected[front..]);
    let ends = seen.iter().rev().zip(expected.iter().rev());
    let back = ends.take_while(equal).count();
    let (seen, expected) = (
        &seen[..seen.len() - back],
        &expected[..expected.len() - back],
    );
    let count = seen.len().max(expected.len());
    let difference = |at: usize| {
        let lines = match (expected.get(at), seen.get(at)) {
            (Some(expected), Some(seen)) => between(expected, seen),
            (Some(expected), None) => vec![Side::Expected(whole(expected))],
            (None, Some(seen)) => vec![Side::Found(seen.record.to_string())],
            (None, None) => Vec::new(),
        };
        let number = front + at + 1;
        let reason = seen.get(at).and_then(|seen| seen.reason.as_deref());
        let reason = reason.map_or(String::new(), |why| format!(" ({why})"));
        let record = match port {
            "" => format!("record {number}"),
            port => format!("{port}, record {number}{reason}"),
        };
        Difference { record, lines }
    };
    let all = (0..count).map(difference);
    all.filter(|difference| !difference.lines.is_empty())
        .collect()
}

/// An expected record as JSON, with its metadata as fields `%NAME`.
fn whole(expected: &Expected) -> String {
    let Value::Object(record) = &expected.record else {
        return expected.record.to_string();
    };
    let metadata = expected.metadata.iter();
    let metadata = metadata.map(|(name, value)| (format!("%{name}"), value.as_str().into()));
    let fields = record
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()));
    Value::Object(metadata.chain(fields).collect()).to_string()
}

/// The metadata and fields in which two records differ.
fn between(expected: &Expected, seen: &Seen) -> Vec<Side> {
    let mut lines = Vec::new();
    for (name, value) in &expected.metadata {
        let found = seen.metadata(name);
        if found != Some(value) {
            lines.push(Side::Expected(format!("%{name}: {value}")));
            lines.extend(found.map(|found| Side::Found(format!("%{name}: {found}"))));
        }
    }
    fields("", &expected.record, &seen.record, &mut lines);
    lines
}

/// Adds the fields below `path` that differ. The recursion is bounded, because serde_json has read both values and limits their depth.
fn fields(path: &str, expected: &Value, seen: &Value, lines: &mut Vec<Side>) {
    let line = |path: &str, value: &Value| match path {
        "" => value.to_string(),
        path => format!("{path}: {value}"),
    };
    match (expected, seen) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (name, value) in wanted {
                let path = format!("{path}{}", FieldPath::top(name));
                match found.get(name) {
                    Some(other) => fields(&path, value, other, lines),
                    None => lines.push(Side::Expected(line(&path, value))),
                }
            }
            for (name, value) in found.iter().filter(|(name, _)| !wanted.contains_key(*name)) {
                let path = format!("{path}{}", FieldPath::top(name));
                lines.push(Side::Found(line(&path, value)));
            }
        }
        _ if expected == seen => {}
        _ => {
            lines.push(Side::Expected(line(path, expected)));
            lines.push(Side::Found(line(path, seen)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn expected(record: Value) -> Expected {
        Expected {
            record,
            metadata: Vec::new(),
        }
    }

    fn seen(record: Value) -> Seen {
        Seen {
            record,
            metadata: vec![("tag".to_owned(), "web".to_owned())],
            reason: None,
        }
    }

    fn shown(expected: Vec<Expected>, found: Vec<Seen>) -> Vec<String> {
        let all = differences("", &expected, &found);
        let line = |side: Side| match side {
            Side::Expected(text) => format!("- {text}"),
            Side::Found(text) => format!("+ {text}"),
        };
        let page = |one: Difference| {
            [one.record]
                .into_iter()
                .chain(one.lines.into_iter().map(line))
        };
        all.into_iter().flat_map(page).collect()
    }

    #[test]
    fn fields_that_differ_are_named_and_their_order_does_not_count() {
        let wanted = json!({"a": 1, "b": {"c": "x", "d": [1]}, "gone": null, "e.f": true});
        let found = json!({"b": {"d": [1], "c": "y"}, "a": 1.0, "e.f": false, "new": {}});
        assert_eq!(
            shown(vec![expected(wanted.clone())], vec![seen(found)]),
            [
                "record 1",
                "- .a: 1",
                "+ .a: 1.0",
                "- .b.c: \"x\"",
                "+ .b.c: \"y\"",
                "- .gone: null",
                "- .\"e.f\": true",
                "+ .\"e.f\": false",
                "+ .new: {}",
            ]
        );
        let turned = json!({"e.f": true, "gone": null, "b": {"d": [1], "c": "x"}, "a": 1});
        assert!(shown(vec![expected(wanted)], vec![seen(turned)]).is_empty());
    }

    #[test]
    fn a_missing_record_is_one_difference_wherever_it_is() {
        let numbers = |numbers: &[i32]| numbers.iter().map(|n| json!({"n": n})).collect::<Vec<_>>();
        let of = |wanted: &[i32], found: &[i32]| {
            let wanted = numbers(wanted).into_iter().map(expected).collect();
            shown(wanted, numbers(found).into_iter().map(seen).collect())
        };
        assert_eq!(of(&[1, 2, 3], &[1, 3]), ["record 2", "- {\"n\":2}"]);
        assert_eq!(of(&[1, 3], &[1, 2, 3]), ["record 2", "+ {\"n\":2}"]);
        assert_eq!(of(&[], &[7]), ["record 1", "+ {\"n\":7}"]);
        assert_eq!(of(&[7, 7], &[7]), ["record 2", "- {\"n\":7}"]);
        assert_eq!(of(&[1], &[2]), ["record 1", "- .n: 1", "+ .n: 2"]);
    }

    #[test]
    fn metadata_is_compared_only_if_the_case_names_it() {
        let named = |name: &str, value: &str| Expected {
            record: json!({"n": 1}),
            metadata: vec![(name.to_owned(), value.to_owned())],
        };
        let one = || vec![seen(json!({"n": 1}))];
        assert!(shown(vec![named("tag", "web")], one()).is_empty());
        let wrong = shown(vec![named("tag", "db")], one());
        assert_eq!(wrong, ["record 1", "- %tag: db", "+ %tag: web"]);
        assert_eq!(
            shown(vec![named("host", "a")], one()),
            ["record 1", "- %host: a"]
        );
        let missing = shown(vec![named("tag", "db")], Vec::new());
        assert_eq!(missing, ["record 1", "- {\"%tag\":\"db\",\"n\":1}"]);
    }
}
