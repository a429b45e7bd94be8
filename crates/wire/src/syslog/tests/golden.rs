//! Runs the cases in `testdata`. An `.in` file is the input, and the `.out` file has the expected records. With `UPDATE=1` in the
//! environment, the test rewrites the `.out` files.
//!
//! An input is text with the escapes `\r`, `\0`, `\xNN` and `\\`. A backslash at the end of a line joins the line to the next one.

use std::{fs, path::Path};

use super::*;

fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next().unwrap() {
            b'r' => bytes.push(b'\r'),
            b'0' => bytes.push(0),
            b'\n' => {}
            b'x' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            other => bytes.push(other),
        }
    }
    bytes
}

fn shown(value: &Value) -> String {
    let list = |values: &[Value]| values.iter().map(shown).collect::<Vec<_>>().join(", ");
    match value {
        Value::String(text) => format!("{:?}", text.as_str().unwrap()),
        Value::Binary(bytes) => format!("b\"{}\"", bytes.escape_ascii()),
        Value::Array(values) => format!("[{}]", list(values)),
        Value::Map(entries) => {
            let entries = entries.iter();
            let entries: Vec<_> = entries
                .map(|(key, value)| format!("{}: {}", shown(key), shown(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Ext(0, time) => {
            let part = |at: usize| u32::from_be_bytes(time[at..at + 4].try_into().unwrap());
            jiff::Timestamp::new(part(0).into(), part(4) as i32)
                .unwrap()
                .to_string()
        }
        other => other.to_string(),
    }
}

#[test]
fn every_case_gives_its_expected_records() {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let directory = Path::new(&here).join("src/syslog/testdata");
    let (mut cases, mut wrong) = (0, Vec::new());
    for entry in fs::read_dir(directory).unwrap() {
        let input = entry.unwrap().path();
        if input.extension() != Some("in".as_ref()) {
            continue;
        }
        cases += 1;
        let bytes = unescaped(&fs::read_to_string(&input).unwrap());
        let seen = read(&settings(), [&bytes[..]]);
        let mut text = String::new();
        for record in &seen.records {
            text += &format!("{} {}\n", shown(&record[0]), shown(&record[1]));
        }
        if seen.bare > 0 {
            text += &format!("without header: {}\n", seen.bare);
        }
        if seen.cut > 0 {
            text += &format!("cut: {}\n", seen.cut);
        }
        let expected = input.with_extension("out");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&expected, &text).unwrap();
        }
        if fs::read_to_string(&expected).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", input.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases > 20, "only {cases} cases were found");
}
