//! Reads the option `tests` of a processor.
//!
//! A record is a map of fields, or the text of a line. Names in the map that begin with `%` are metadata: the tag, the event time
//! and the values that a source sets.

use std::sync::Arc;

use jiff::Timestamp;
use millstream_config::{Node, Place, Problem, names};
use millstream_record::{Batch, Encoding, Time, VALUE_NAMES, Values};
use millstream_wire::{
    forward::TAG_BYTES_MAX,
    json,
    lines::write_entry,
    msgpack::{write_array_len, write_time},
    record::MESSAGE,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Case, Expected, Leaving, run::json_of};

/// The option of processors that holds their cases.
pub const TESTS: &str = "tests";
/// The tag of given records, unless the case names one.
const TAG: &str = "test";
/// The first character of names that are metadata.
const METADATA: char = '%';

/// The options of a case.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    tag: Option<String>,
    #[serde(default)]
    from: Option<String>,
    given: Vec<Value>,
    expect: Value,
    #[serde(default)]
    rejected: Vec<Value>,
}

/// Reads the cases of the processor `node`.
pub fn read(node: &Arc<str>, tests: &Node, problems: &mut Vec<Problem>) -> Vec<Case> {
    let Some(list) = tests.as_list() else {
        if !tests.is_invalid() {
            let message = format!(
                "`{TESTS}` must be a list of cases, found {}",
                tests.describe()
            );
            let help = "such as `[{ given: ['{\"level\":\"info\"}'], expect: [{ level: info }] }]`";
            problems.push(Problem::new(&tests.place, message).help(help));
        }
        return Vec::new();
    };
    let mut cases = Vec::new();
    for (at, written) in list.iter().enumerate() {
        let name = format!("case {}", at + 1);
        match written.read::<Options>() {
            Ok(options) => cases.extend(case(node, name, written, options, problems)),
            Err(found) => problems.extend(found),
        }
    }
    cases
}

/// Checks and converts a case.
fn case(
    node: &Arc<str>,
    name: String,
    written: &Node,
    options: Options,
    problems: &mut Vec<Problem>,
) -> Option<Case> {
    let before = problems.len();
    let tag = options.tag.as_deref().unwrap_or(TAG);
    if tag.is_empty() || tag.len() > TAG_BYTES_MAX {
        problems.push(written.problem_at("tag", "a tag has 1 to 8192 bytes"));
    }
    let place = |path: &str| {
        let found = written.find(path);
        found.map_or(&written.place, |node| &node.place).clone()
    };
    let given = records(written, "given", options.given, problems);
    let given = given
        .into_iter()
        .map(|(record, is_line)| batch(record, is_line, tag));
    let given = given.collect();
    let expect = expect(written, options.expect, problems);
    let rejected = expected(written, "rejected", options.rejected, problems);
    (problems.len() == before).then(|| Case {
        node: node.clone(),
        name: options.name.unwrap_or(name),
        from: options.from.map(|from| (from, place("from"))),
        place: written.place.clone(),
        given,
        expect,
        rejected,
    })
}

/// Reads `expect`: the list of records of the only port, or a map from the name of each port to its list of records.
fn expect(written: &Node, expect: Value, problems: &mut Vec<Problem>) -> Vec<Leaving> {
    let leaving =
        |port: &str, path: &str, list, place: &Place, problems: &mut Vec<Problem>| Leaving {
            records: expected(written, path, list, problems),
            port: port.to_owned(),
            place: place.clone(),
        };
    let ports = written.get("expect").map(Node::entries).unwrap_or_default();
    let wrong = |path: &str, node: &Node| {
        let message = format!("a list of records is wanted, found {}", node.describe());
        written.problem_at(path, message)
    };
    let mut found = Vec::new();
    match (expect, written.get("expect")) {
        (Value::Array(list), Some(node)) => {
            found.push(leaving("", "expect", list, &node.place, problems));
        }
        (Value::Object(map), _) => {
            for ((port, list), (key, node)) in map.into_iter().zip(ports) {
                let path = format!("expect.{port}");
                match list {
                    Value::Array(list) => {
                        found.push(leaving(&port, &path, list, &key.place, problems));
                    }
                    _ => problems.push(wrong(&path, node)),
                }
            }
        }
        (_, Some(node)) => problems.push(wrong("expect", node).help("`[]`: nothing leaves")),
        _ => {}
    }
    found
}

fn expected(
    written: &Node,
    path: &str,
    list: Vec<Value>,
    problems: &mut Vec<Problem>,
) -> Vec<Expected> {
    let records = records(written, path, list, problems);
    records.into_iter().map(|(record, _)| record).collect()
}

/// Reads the records of a list. Returns each record, and whether it is a single line of text.
fn records(
    written: &Node,
    path: &str,
    list: Vec<Value>,
    problems: &mut Vec<Problem>,
) -> Vec<(Expected, bool)> {
    let mut records = Vec::new();
    for (at, value) in list.into_iter().enumerate() {
        let path = format!("{path}.{at}");
        match value {
            Value::Object(map) => match fields(written, &path, map) {
                Ok(record) => records.push((record, false)),
                Err(problem) => problems.push(*problem),
            },
            Value::String(text) => {
                let text = text.strip_suffix('\n').unwrap_or(&text);
                let record = Expected {
                    record: Map::from_iter([(MESSAGE.to_owned(), text.into())]).into(),
                    metadata: Vec::new(),
                };
                // A text of several lines becomes an entry (`[time, record]` in MessagePack), because a source that joins lines also
                // produces entries.
                records.push((record, !text.contains('\n')));
            }
            _ => {
                let message = "a record is a map of fields, or the text of a line";
                problems.push(written.problem_at(&path, message));
            }
        }
    }
    records
}

/// Separates the metadata from the fields of a map.
fn fields(written: &Node, path: &str, map: Map<String, Value>) -> Result<Expected, Box<Problem>> {
    let (mut record, mut metadata) = (Map::new(), Vec::new());
    for (key, value) in map {
        let Some(name) = key.strip_prefix(METADATA) else {
            record.insert(key, value);
            continue;
        };
        let at = format!("{path}.{key}");
        let wrong = |why: &str| Box::new(written.problem_at(&at, why));
        let Value::String(text) = value else {
            return Err(wrong("metadata is text"));
        };
        let known = || ["tag", "time"].into_iter().chain(VALUE_NAMES);
        let text = match name {
            "time" => match text.parse::<Timestamp>() {
                Ok(time) => time.to_string(),
                Err(_) => {
                    let why = wrong("a time is wanted");
                    return Err(Box::new(why.help("such as `2026-11-23T10:00:00Z`")));
                }
            },
            name if known().any(|known| known == name) => text,
            name => {
                let why = wrong("no source sets this value");
                let meant = names::nearest(name, known()).unwrap_or("tag");
                return Err(Box::new(
                    why.help(format!("did you mean `{METADATA}{meant}`?")),
                ));
            }
        };
        metadata.push((name.to_owned(), text));
    }
    let mut packed = Vec::new();
    // The records that leave the processor are converted from MessagePack to JSON. To be comparable with them, the expected records are
    // converted to MessagePack and back to JSON.
    let whole = Value::from(record);
    let packs = json::to_msgpack(whole.to_string().as_bytes(), &mut packed);
    if let Err(why) = packs {
        let message = format!("this is no record: {why}");
        return Err(Box::new(written.problem_at(path, message)));
    }
    Ok(Expected {
        record: json_of(&packed),
        metadata,
    })
}

/// A batch that contains one record, which the case gives.
fn batch(given: Expected, is_line: bool, tag: &str) -> Batch {
    let Expected { record, metadata } = given;
    let (mut tag, mut received, mut values) = (tag.to_owned(), Time::default(), Values::new());
    for (name, text) in metadata {
        match name.as_str() {
            "tag" => tag = text,
            "time" => {
                let time = text.parse::<Timestamp>().unwrap_or_default();
                received = Time(i64::try_from(time.as_nanosecond()).unwrap_or_default());
            }
            name => values.set(name, text),
        }
    }
    let mut body = Vec::new();
    match record[MESSAGE].as_str() {
        Some(line) if is_line => body.extend_from_slice(format!("{line}\n").as_bytes()),
        Some(text) if record.as_object().is_some_and(|fields| fields.len() == 1) => {
            write_entry(&mut body, received, text.as_bytes());
        }
        _ => {
            write_array_len(&mut body, 2);
            write_time(&mut body, received);
            // The record was read from MessagePack, so writing it cannot fail.
            let _ = json::to_msgpack(record.to_string().as_bytes(), &mut body);
        }
    }
    Batch {
        tag: tag.as_str().into(),
        encoding: match is_line {
            true => Encoding::Lines,
            false => Encoding::Packed,
        },
        plain: !is_line,
        body: body.into(),
        count: 1,
        received,
        values: Arc::new(values),
        origins: Vec::new(),
    }
}
