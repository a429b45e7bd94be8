//! Decoding of JSON texts, without I/O.

use millstream_record::Time;
use serde_json::{Value, json};

use super::super::lines::{Lines, Next, Places};

const RECEIVED: Time = Time(1_700_000_000_000_000_001);

/// Records, and the bad parts with their faults.
fn read(text: &str) -> (Vec<Value>, Vec<String>) {
    let (mut lines, mut places) = (Lines::new(text.as_bytes()), Places::default());
    let (mut out, mut records, mut bad) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let (start, capacity) = (out.len(), out.capacity());
        let next = lines.next(RECEIVED, &mut out);
        assert_eq!(out.capacity(), capacity, "it grew on its own");
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
                let place = places.of(text.as_bytes(), fault.at);
                bad.push(format!("{place}: {} | {}", fault.expected, &text[range]));
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
fn one_object_may_span_several_lines() {
    let text = "{\n  \"a\": [1,\n 2],\n  \"b\": \"]}\"\n}\n";
    assert_eq!(read(text), (vec![json!({"a": [1, 2], "b": "]}"})], vec![]));
}

#[test]
fn a_bad_line_is_reported_and_the_other_lines_are_read() {
    let cases = [
        ("{\"a\":}", "line 2, byte 6: a value"),
        ("{\"a\":1", "line 2, byte 7: more of the value"),
        ("{\"a\":1}}", "line 2, byte 8: the end of the line"),
        ("{\"a\":1} {\"a\":2}", "line 2, byte 9: the end of the line"),
        ("\"text\"", "line 2, byte 1: an object"),
        ("42", "line 2, byte 1: an object"),
        ("[{}]", "line 2, byte 1: an object"),
        ("plain text", "line 2, byte 1: a value"),
        (
            "{\"a\":\"\t\"}",
            "line 2, byte 7: an escaped control character",
        ),
    ];
    for (line, fault) in cases {
        let text = format!("{{\"n\":1}}\n{line}\n{{\"n\":2}}\n");
        let (records, bad) = read(&text);
        assert_eq!(records, [json!({"n": 1}), json!({"n": 2})], "{line}");
        assert_eq!(bad, [format!("{fault} | {line}")]);
    }
    // An incomplete object does not affect the next line.
    let (records, bad) = read("{\"a\":\n{\"n\":1}\n");
    assert_eq!((records.len(), bad.len()), (1, 1));
}

#[test]
fn a_bad_element_of_an_array_does_not_affect_the_others() {
    let (first, last) = (json!({"n": 1}), json!({"n": 3}));
    let cases = [
        ("7", "line 1, byte 10: an object | 7"),
        ("null", "line 1, byte 10: an object | null"),
        ("\"],{\\\"[\"", "line 1, byte 10: an object | \"],{\\\"[\""),
        ("[{\"n\":2}]", "line 1, byte 10: an object | [{\"n\":2}]"),
        ("[[],[\"]\"]]", "line 1, byte 10: an object | [[],[\"]\"]]"),
        ("{\"n\":}", "line 1, byte 15: a value | {\"n\":}"),
        ("{n:2}", "line 1, byte 11: a key | {n:2}"),
        ("{\"a\":[1,2}", "line 1, byte 19: `,` or `]` | {\"a\":[1,2}"),
        (
            "{\"a\":\"\t\"}",
            "line 1, byte 16: an escaped control character | {\"a\":\"\t\"}",
        ),
        (
            "nonsense",
            "line 1, byte 11: `true`, `false` or `null` | nonsense",
        ),
        ("", "line 1, byte 10: a value | "),
    ];
    for (bad, fault) in cases {
        let text = format!("[{{\"n\":1}},{bad},{{\"n\":3}}]");
        let expected = (vec![first.clone(), last.clone()], vec![fault.to_owned()]);
        assert_eq!(read(&text), expected, "{text}");
        // A bad element at either end of the array does not affect the others either.
        let (records, faults) = read(&format!("[{bad},{{\"n\":1}},{{\"n\":3}},{bad}]"));
        assert_eq!(records, expected.0, "{bad}");
        assert_eq!(faults.len(), 2, "{bad}: {faults:?}");
    }
    let (records, faults) = read("[2,{\"n\":3}]");
    assert_eq!((records, faults.len()), (vec![last], 1));
}

#[test]
fn garbage_between_the_elements_of_an_array_is_reported_and_the_elements_are_read() {
    let cases = [
        (
            "[{\"n\":1} {\"n\":2},{\"n\":3}]",
            "line 1, byte 10: `,` or `]` | {\"n\":2}",
        ),
        ("[{\"n\":1}},\n{\"n\":3}]", "line 1, byte 9: `,` or `]` | }"),
        ("[{\"n\":1}]\nx\n{\"n\":3}\n", "line 2, byte 1: a value | x"),
        ("[{\"n\":1},{\"n\":3},]", "line 1, byte 18: a value | "),
        ("[,{\"n\":1},{\"n\":3}]", "line 1, byte 2: a value | "),
    ];
    for (text, fault) in cases {
        let expected = (
            vec![json!({"n": 1}), json!({"n": 3})],
            vec![fault.to_owned()],
        );
        assert_eq!(read(text), expected, "{text}");
    }
    let two = (vec![json!({"n": 1}), json!({"n": 3})], vec![]);
    assert_eq!(read("[{\"n\":1}]\n[{\"n\":3}]\n"), two);
}

#[test]
fn wherever_an_array_is_cut_off_its_whole_elements_are_kept_and_one_part_is_bad() {
    let text = "[ {\"n\":1} ,\n{\"a\":[1,{\"b\":\"]},[{\\\\\"}],\"c\":{}} , {\"n\":3} ]";
    let (all, bad) = read(text);
    assert_eq!((all.len(), bad.len()), (3, 0));
    for cut in 1..text.len() {
        let (records, bad) = read(&text[..cut]);
        assert_eq!(records, all[..records.len()], "{}", &text[..cut]);
        let whole = [text.find(" ,\n"), text.find(" , {"), text.find(" ]")];
        let whole = whole.iter().filter(|end| end.unwrap() <= cut).count();
        assert_eq!((records.len(), bad.len()), (whole, 1), "{}", &text[..cut]);
        assert!(bad[0].contains("more of the "), "{bad:?}");
    }
    // The end of an unclosed element cannot be known: the rest is one bad part.
    let (records, bad) = read("[{\"n\":1},{\"a\":{\"b\":1},{\"n\":3}]");
    assert_eq!(records, [json!({"n": 1})]);
    assert_eq!(
        bad,
        ["line 1, byte 23: a key | {\"a\":{\"b\":1},{\"n\":3}]"]
    );
}

#[test]
fn hundreds_of_thousands_of_bad_elements_and_arrays_are_read() {
    let many = 200_000;
    let (records, bad) = read(&format!("[{}{{}}]", "1,".repeat(many)));
    assert_eq!((records.len(), bad.len()), (1, many));
    assert_eq!(
        bad[many - 1],
        format!("line 1, byte {}: an object | 1", 2 * many)
    );
    let (records, bad) = read(&format!("{}[{{}}]", "[]".repeat(many)));
    assert_eq!((records.len(), bad.len()), (1, 0));
    let (records, bad) = read(&format!("{}{{}}", "[".repeat(many)));
    assert_eq!((records.len(), bad.len()), (0, 1));
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
fn texts_that_grow_most_get_enough_space() {
    let floats = vec!["-0"; 1000].join(",");
    let (records, bad) = read(&format!("{{\"a\":[{floats}]}}\n{{}}\n{{}}"));
    assert_eq!((records.len(), bad.len()), (3, 0));
    let empty = vec!["{}"; 1000].join(",");
    assert_eq!(read(&format!("[{empty}]")).0.len(), 1000);
}
