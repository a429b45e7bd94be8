//! Properties that hold for any input, and comparisons with simple reference implementations.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;

const OPTIONS: [&str; 12] = [
    r#"{"as":"json"}"#,
    r#"{"as":"json","types":{"a":"integer","b":"string"},"into":"x"}"#,
    r#"{"as":"regex","pattern":"(?<a>[a-z]+)=?(?<b>.*?)(?<c>\\d+)?$"}"#,
    r#"{"as":"logfmt","types":{"a":"float"}}"#,
    r#"{"as":"logfmt","keep":true,"field":".a.b"}"#,
    r#"{"as":"ltsv","types":{"a":"boolean"}}"#,
    r#"{"as":"csv","columns":["a","b","time"]}"#,
    r#"{"as":"tsv","columns":["a","b","time"],"into":"a"}"#,
    r#"{"as":"syslog"}"#,
    r#"{"as":"apache"}"#,
    r#"{"as":"nginx","time":{"format":"auto","keep":true}}"#,
    r#"{"as":"syslog","keep":true,"types":{"host":"integer"}}"#,
];

/// Text that consists of pieces of the formats and of random bytes.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"a=1 ".to_vec()),
        Just(b"b=\"x\\\"y\" ".to_vec()),
        Just(b"time=2026-11-23T12:03:24.5Z ".to_vec()),
        Just(b"time:1795435404\t".to_vec()),
        Just(b"{\"a\":1,\"time\":\"".to_vec()),
        Just(b"1795435404\"}".to_vec()),
        Just(b"1.2.3.4 - - [23/Nov/2026:12:03:24 +0000] \"GET / HTTP/1.1\" 200 6".to_vec()),
        Just(b" \"-\" \"\\x41\\\"\"".to_vec()),
        Just(b"<13>1 2026-11-23T12:03:24Z h a p m [x y=\"z\"] ".to_vec()),
        Just(b"\"a\"\"b\",".to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
        "[ \"\\\\=:,\t{}\\[\\]a-c0-9-]{0,12}".prop_map(String::into_bytes),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_becomes_a_valid_entry_or_a_fault(which in 0..OPTIONS.len(), texts in prop::collection::vec(text(), 1..6), others in "[abxt]{0,20}") {
        let mut reused = parser(OPTIONS[which]);
        for text in texts {
            let mut fields = Vec::new();
            crate::msgpack::write_array_len(&mut fields, 2);
            write_time(&mut fields, NOW);
            let names = others.len() as u32;
            crate::msgpack::write_map_len(&mut fields, names + 2);
            for name in others.bytes() {
                crate::msgpack::write_str(&mut fields, &[name]);
                fields.push(name);
            }
            crate::msgpack::write_str(&mut fields, b"message");
            crate::msgpack::write_str(&mut fields, &text);
            crate::msgpack::write_str(&mut fields, b"a");
            crate::msgpack::write_map_len(&mut fields, 1);
            crate::msgpack::write_str(&mut fields, b"b");
            crate::msgpack::write_str(&mut fields, &text);
            for input in [Input::Line(&text), Input::Entry(&fields)] {
                let seen = parse(&mut reused, input);
                // The result must not depend on records that the parser has read before.
                prop_assert_eq!(&seen, &parse(&mut parser(OPTIONS[which]), input));
                if let Ok(entry) = seen {
                    let mut walker = Walker::new();
                    walker.walk(&entry).unwrap();
                    prop_assert_eq!((walker.entries(), walker.misfits(), walker.whole()), (1, 0, entry.len()));
                }
            }
        }
    }

    #[test]
    fn parsed_fields_are_merged_as_in_a_map(
        others in prop::collection::btree_map("[a-f]{1,2}", 0..9_i64, 0..40),
        parsed in prop::collection::btree_map("[a-f]{1,2}", 10..99_i64, 0..40),
        kept: bool,
    ) {
        let text = serde_json::to_string(&parsed).unwrap();
        let mut before: Map<String, Value> = others.iter().map(|(key, value)| (key.clone(), (*value).into())).collect();
        before.insert("message".to_owned(), text.into());
        let mut expected = before.clone();
        if !kept {
            expected.remove("message");
        }
        for (key, value) in &parsed {
            // The field moves to the end, after the fields that stay.
            expected.shift_remove(key);
            expected.insert(key.clone(), (*value).into());
        }
        let options = format!(r#"{{"as":"json","keep":{kept}}}"#);
        let before = serde_json::to_string(&before).unwrap();
        prop_assert_eq!(record(&options, &before), serde_json::to_string(&expected).unwrap());
    }

    #[test]
    fn csv_is_read_as_the_crate_csv_writes_it(values in prop::collection::vec("[a,\" \n\t]{0,6}", 1..6)) {
        let mut writer = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Always).from_writer(Vec::new());
        writer.write_record(&values).unwrap();
        let text = writer.into_inner().unwrap();
        let text = text.strip_suffix(b"\n").unwrap();
        let names: Vec<String> = (0..values.len()).map(|n| format!("c{n}")).collect();
        let options = format!(r#"{{"as":"csv","columns":{}}}"#, serde_json::to_string(&names).unwrap());
        let expected: Map<String, Value> = names.into_iter().zip(values.into_iter().map(Value::from)).collect();
        let expected = format!("2026-11-21T06:40:31.5Z {}", serde_json::to_string(&expected).unwrap());
        prop_assert_eq!(line(&mut parser(&options), text), expected);
    }

    #[test]
    fn quoted_logfmt_is_read_as_it_is_written(pairs in prop::collection::vec(("[a-z.]{1,8}", "[ -~äß😀\n\t]{0,12}"), 1..8)) {
        prop_assume!(pairs.iter().all(|(key, _)| key != "time"));
        // The last value of a key remains.
        let last = |at: usize| pairs.iter().skip(at + 1).all(|(key, _)| *key != pairs[at].0);
        let text: Vec<String> = pairs
            .iter()
            .map(|(key, value)| format!("{key}={}", serde_json::to_string(value).unwrap()))
            .collect();
        let fields: Vec<String> = pairs
            .iter()
            .enumerate()
            .filter(|(at, _)| last(*at))
            .map(|(_, (key, value))| format!("{}:{}", serde_json::to_string(key).unwrap(), serde_json::to_string(value).unwrap()))
            .collect();
        let expected = format!("2026-11-21T06:40:31.5Z {{{}}}", fields.join(","));
        prop_assert_eq!(line(&mut parser(r#"{"as":"logfmt"}"#), text.join(" ").as_bytes()), expected);
    }
}
