//! Runs every example in the documentation of the functions in two ways, and compares the results: by projection, which decodes only
//! the fields that the program names, and on a tree of all fields.

use std::sync::Arc;

use vrl::value::Value;

use crate::{
    Options, Outcome, Program, functions,
    rig::{batch, entry, field, full, packed, run, values},
};
use millstream_record::Encoding;

/// Fields that are added to the record of each example. No example uses them.
const EXTRA: &str = r#"{"~first":18446744073709551615,"~again":1,"~again":{"deep":[1.5,null]}}"#;

/// Returns one map: the extra fields, followed by those of the record of an example.
fn record(input: Option<&str>) -> Vec<u8> {
    let fields = |json: &str| {
        let record = packed(json);
        let (count, start) = match record[0] {
            marker @ 0x80..=0x8f => (usize::from(marker & 0xf), 1),
            0xde => (usize::from(u16::from_be_bytes([record[1], record[2]])), 3),
            other => panic!("{other}"),
        };
        (count, record[start..].to_vec())
    };
    let (extra, extra_fields) = fields(EXTRA);
    let (count, own) = fields(input.filter(|input| input.starts_with('{')).unwrap_or("{}"));
    let mut out = vec![0xde];
    out.extend_from_slice(&u16::try_from(extra + count).unwrap().to_be_bytes());
    out.extend(extra_fields);
    out.extend(own);
    out
}

/// Runs one program in both ways and compares the results. Returns whether the program compiled.
fn compare(source: &str, input: Option<&str>) -> bool {
    let Ok((program, _)) = Program::compile(source, &Options::default()) else {
        return false;
    };
    let batch = batch(Encoding::Packed, entry(&record(input)), 1);
    let wanted = full(&program, &batch);
    let (outcome, out, _) = run(source, &batch);
    match (outcome, wanted) {
        (Outcome::Unchanged, Ok(wanted)) => assert_eq!(values(&batch.body), wanted, "{source}"),
        (Outcome::Written(_), Ok(wanted)) => {
            assert_eq!(values(&out), wanted, "{source}");
            // The program did not replace the root, so the extra fields have the same bytes.
            if let [Value::Object(record)] = &wanted[..]
                && record.contains_key("~first")
                && program.fields().is_some()
            {
                let start = batch
                    .body
                    .windows(6)
                    .position(|bytes| bytes == b"~first")
                    .unwrap();
                let bytes = &batch.body[start - 1..start + 40];
                assert!(
                    out.windows(bytes.len()).any(|part| part == bytes),
                    "{source}"
                );
                assert_eq!(
                    field(&out, "~first"),
                    Some(&b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"[..])
                );
            }
        }
        (Outcome::Aborted(_), Err(why)) => assert_eq!(why, "abort", "{source}"),
        (Outcome::Failed(_), Err(why)) => assert_ne!(why, "abort", "{source}"),
        (outcome, wanted) => panic!("{source}: {outcome:?}, and with the tree {wanted:?}"),
    }
    true
}

#[test]
fn examples_give_the_same_result_by_projection_and_on_the_full_tree() {
    let mut compiled = 0;
    let mut refused = Vec::new();
    for function in functions::all(&Arc::default()) {
        // Random values are not compared: only projection derives them from the record.
        let name = function.identifier();
        if name.starts_with("random_") || name.starts_with("uuid_v") {
            continue;
        }
        for example in function.examples() {
            // The example unchanged; its result in a field; its result as the record; its result in a field, with the error in a
            // variable; and its result and error in fields, with changes of other fields around them.
            let source = example.source;
            let all = [
                source.to_owned(),
                format!(".result = {{ {source} }}"),
                format!(". = {{ {source} }}"),
                format!(".result, err = {{ {source} }}"),
                format!(
                    "del(.\"~again\"); .result, .error = {{ {source} }}\n.\"~first\" = .result"
                ),
            ];
            let count = all
                .iter()
                .filter(|source| compare(source, example.input))
                .count();
            compiled += count;
            if count == 0 && example.result.is_ok() {
                refused.push(name);
            }
        }
    }
    refused.dedup();
    // `replace_with` is in this list because its example hashes the matches, and hash functions are refused.
    assert_eq!(
        refused,
        [
            "decode_lz4",
            "log",
            "parse_grok",
            "parse_groks",
            "parse_klog",
            "replace_with"
        ]
    );
    assert!(compiled > 600, "{compiled}");
}

#[test]
fn more_than_200_examples_have_the_results_that_they_state() {
    let mut checked = 0;
    for function in functions::all(&Arc::default()) {
        for example in function.examples() {
            let (Ok(wanted), true) = (example.result, example.deterministic) else {
                continue;
            };
            let program = format!(".result = {{ {} }}", example.source);
            // Not every example can be checked: some do not compile in this form, and some stated results are not JSON. So a minimum
            // number of equal results is required.
            let wanted = packed_or_text(wanted);
            if Program::compile(&program, &Options::default()).is_err() {
                continue;
            }
            let batch = batch(Encoding::Packed, entry(&record(example.input)), 1);
            let (outcome, out, _) = run(&program, &batch);
            if outcome != Outcome::Written(1) || values(&out).len() != 1 {
                continue;
            }
            let Value::Object(mut record) = values(&out).remove(0) else {
                continue;
            };
            let result = record.remove("result").unwrap();
            checked += usize::from(wanted.contains(&result));
        }
    }
    assert!(checked > 200, "{checked}");
}

/// Returns the possible values of a stated result: the text itself, and the value if the text is JSON.
fn packed_or_text(text: &str) -> Vec<Value> {
    let mut all = vec![Value::from(text)];
    let mut out = Vec::new();
    let object = format!("{{\"v\":{text}}}");
    if millstream_wire::json::to_msgpack(object.as_bytes(), &mut out).is_ok()
        && let Value::Object(mut object) = values(&entry(&out)).remove(0)
    {
        all.extend(object.remove("v"));
    }
    all
}
