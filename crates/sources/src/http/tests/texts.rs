//! Texts of JSON: what is a record and what is not, pure.

use millstream_record::Time;
use serde_json::{Value, json};

use super::super::lines::{Lines, Next, place};

const RECEIVED: Time = Time(1_700_000_000_000_000_001);

/// Records, and the bad parts with their faults.
fn read(text: &str) -> (Vec<Value>, Vec<String>) {
    let mut lines = Lines::new(text.as_bytes());
    let (mut out, mut records, mut bad) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let (start, capacity) = (out.len(), out.capacity());
        let next = lines.next(RECEIVED, &mut out);
        assert_eq!(out.capacity(), capacity, "it grew by itself");
        match next {
            Next::Record => {
                let head = millstream_wire::msgpack::entry_head(&out, start).unwrap();
                assert_eq!(head.time, Some(RECEIVED));
                let mut json = Vec::new();
                let end = millstream_wire::json::write_value(&out, head.record, &mut json).unwrap();
                assert_eq!(end, out.len());
                records.push(serde_json::from_slice(&json).unwrap());
            }
            Next::Bad(range, fault) => {
                let (line, byte) = place(text.as_bytes(), fault.at);
                bad.push(format!(
                    "{line}:{byte} {} | {}",
                    fault.expected, &text[range]
                ));
            }
            Next::Room(bytes) => out.reserve_exact(bytes),
            Next::End => return (records, bad),
        }
    }
}

#[test]
fn each_line_is_a_record() {
    let numbers = [json!({"n": 1}), json!({"n": 2}), json!({"n": 3})];
    for text in [
        "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n",
        "{\"n\":1}\n{\"n\":2}\n{\"n\":3}",
        "\u{feff}{\"n\":1}\r\n\r\n{\"n\":2}  \r\n \t{\"n\":3}\r\n\n\n",
        "[{\"n\":1},{\"n\":2},{\"n\":3}]",
        " [ {\"n\":1} ,\n{\"n\":2}\n, {\"n\":3} ]\n",
    ] {
        assert_eq!(read(text), (numbers.to_vec(), vec![]), "{text:?}");
    }
    for text in ["", "\n \r\n", "[]", " [ ] \n"] {
        assert_eq!(read(text), (vec![], vec![]), "{text:?}");
    }
}

#[test]
fn one_object_may_stand_on_several_lines() {
    let text = "{\n  \"a\": [1,\n 2],\n  \"b\": \"]}\"\n}\n";
    assert_eq!(read(text), (vec![json!({"a": [1, 2], "b": "]}"})], vec![]));
}

#[test]
fn a_bad_line_is_told_and_its_neighbours_are_read() {
    let cases = [
        ("{\"a\":}", "2:6 a value"),
        ("{\"a\":1", "2:7 more of the value"),
        ("{\"a\":1}}", "2:8 the end of the line"),
        ("{\"a\":1} {\"a\":2}", "2:9 the end of the line"),
        ("\"text\"", "2:1 an object"),
        ("42", "2:1 an object"),
        ("[{}]", "2:1 an object"),
        ("plain text", "2:1 a value"),
        ("{\"a\":1e999}", "2:6 a number that 64 bits can hold"),
        ("{\"a\":\"\t\"}", "2:7 an escaped control character"),
    ];
    for (line, fault) in cases {
        let text = format!("{{\"n\":1}}\n{line}\n{{\"n\":2}}\n");
        let (records, bad) = read(&text);
        assert_eq!(records, [json!({"n": 1}), json!({"n": 2})], "{line}");
        assert_eq!(bad, [format!("{fault} | {line}")]);
    }
    // An object that is cut does not take the next line with it.
    let (records, bad) = read("{\"a\":\n{\"n\":1}\n");
    assert_eq!((records.len(), bad.len()), (1, 1));
}

#[test]
fn an_array_is_read_up_to_its_fault() {
    let cases = [
        ("[{\"n\":1},7,{\"n\":2}]", "1:10 an object | ,7,{\"n\":2}]"),
        ("[{\"n\":1} {\"n\":2}]", "1:10 `,` or `]` |  {\"n\":2}]"),
        ("[{\"n\":1},\n{\"n\":}]", "2:6 a value | ,\n{\"n\":}]"),
        ("[{\"n\":1},", "1:10 more of the value | ,"),
        ("[{\"n\":1}", "1:9 `,` or `]` | "),
        ("[{\"n\":1}] x", "1:11 the end | x"),
    ];
    for (text, fault) in cases {
        let (records, bad) = read(text);
        assert_eq!(records, [json!({"n": 1})], "{text}");
        assert_eq!(bad, [fault]);
    }
}

#[test]
fn values_stay_as_they_are() {
    let (records, _) = read(
        "{\"big\":18446744073709551615,\"low\":-9223372036854775808,\"z\":1,\"a\":[-0,0.5,null]}",
    );
    assert_eq!(
        records[0].to_string(),
        "{\"big\":18446744073709551615,\"low\":-9223372036854775808,\"z\":1,\"a\":[-0.0,0.5,null]}"
    );
}

#[test]
fn texts_that_grow_most_find_their_room() {
    let floats = vec!["-0"; 1000].join(",");
    let (records, bad) = read(&format!("{{\"a\":[{floats}]}}\n{{}}\n{{}}"));
    assert_eq!((records.len(), bad.len()), (3, 0));
    let empty = vec!["{}"; 1000].join(",");
    assert_eq!(read(&format!("[{empty}]")).0.len(), 1000);
}
