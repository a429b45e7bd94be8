//! Compares conversions from and to JSON with `serde_json` and `rmpv`.

use proptest::prelude::*;

use super::*;
use crate::room::Room;

fn packed(text: &[u8]) -> Result<(Progress, Vec<u8>), JsonError> {
    let mut out = vec![1, 2, 3];
    let progress = to_msgpack(text, &mut out)?;
    assert_eq!(out[..3], [1, 2, 3]);
    Ok((progress, out.split_off(3)))
}

/// Converts a value that `serde_json` has read into a value of `rmpv`.
fn value(json: &serde_json::Value) -> rmpv::Value {
    use serde_json::Value;
    match json {
        Value::Null => rmpv::Value::Nil,
        Value::Bool(b) => (*b).into(),
        Value::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(u), _) => u.into(),
            (None, Some(i)) => i.into(),
            _ => n.as_f64().unwrap().into(),
        },
        Value::String(s) => s.as_str().into(),
        Value::Array(a) => rmpv::Value::Array(a.iter().map(value).collect()),
        Value::Object(o) => rmpv::Value::Map(
            o.iter()
                .map(|(k, v)| (k.as_str().into(), value(v)))
                .collect(),
        ),
    }
}

fn read(mut bytes: &[u8]) -> rmpv::Value {
    let value = rmpv::decode::read_value(&mut bytes).unwrap();
    assert!(bytes.is_empty());
    value
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,40}".prop_map(Into::into),
        "[\"\\\\\u{0}-\u{1f}/a]{0,20}".prop_map(Into::into),
    ];
    leaf.prop_recursive(6, 200, 40, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..40).prop_map(Into::into),
            prop::collection::vec((".{0,8}", inner), 0..40)
                .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
        ]
    })
}

#[test]
fn the_largest_size_covers_long_arrays_of_numbers_that_grow() {
    for count in [1_usize, 16, 65_535, 65_536, 100_000] {
        let numbers = vec!["-0"; count].join(",");
        for text in [format!("[{numbers}]"), "-0 ".to_owned()] {
            let (_, bytes) = packed(text.as_bytes()).unwrap();
            let most = packed_bytes_max(text.trim_end().as_bytes());
            assert!(bytes.len() <= most, "{count}: {} {most}", bytes.len());
        }
    }
}

proptest! {
    #[test]
    fn json_written_by_serde_is_read_exactly(json in any_json(), pretty: bool) {
        let text = if pretty { serde_json::to_vec_pretty(&json) } else { serde_json::to_vec(&json) };
        let text = text.unwrap();
        let (progress, bytes) = packed(&text).unwrap();
        prop_assert_eq!(progress, Progress::Consumed(text.len()));
        prop_assert_eq!(read(&bytes), value(&json));
        prop_assert!(bytes.len() <= packed_bytes_max(&text));
        // Every header is the shortest possible, as in rmpv.
        let mut shortest = Vec::new();
        rmpv::encode::write_value(&mut shortest, &value(&json)).unwrap();
        prop_assert_eq!(bytes, shortest);
    }

    #[test]
    fn a_truncated_value_needs_more_bytes_however_it_is_divided(json in any_json(), cut: prop::sample::Index, tail in "[\\[{\"]{0,4}") {
        let mut text = serde_json::to_vec(&json).unwrap();
        let length = text.len();
        let cut = cut.index(length);
        if json.is_array() || json.is_object() || json.is_string() {
            prop_assert_eq!(packed(&text[..cut]).unwrap(), (Progress::NeedMore, vec![]));
            text.extend_from_slice(tail.as_bytes());
            let mut scan = Scan::new();
            if cut < length {
                prop_assert_eq!(scan.end(&text[..cut]), None);
            }
            prop_assert_eq!(scan.end(&text), Some(length));
            let mut scan = Scan::new();
            for end in 0..length {
                prop_assert_eq!(scan.end(&text[..end]), None);
            }
            prop_assert_eq!(scan.end(&text), Some(length));
        }
    }

    #[test]
    fn json_is_valid_exactly_if_serde_accepts_it(text in "[\\[\\]{},:\"0-9eE+.\\-atrufelsn\\\\ \t]{0,12}") {
        let ours = packed(text.as_bytes());
        match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(json) => {
                let (progress, bytes) = ours.unwrap();
                let Progress::Consumed(end) = progress else { panic!("{text}") };
                prop_assert!(text[end..].trim().is_empty());
                prop_assert_eq!(read(&bytes), value(&json));
            }
            Err(error) => match ours {
                // Text after a value belongs to the next value.
                Ok((Progress::Consumed(end), _)) => {
                    prop_assert!(serde_json::from_str::<serde_json::Value>(&text[..end]).is_ok());
                }
                Ok((Progress::NeedMore, _)) => prop_assert!(error.is_eof(), "{error}"),
                Err(error) => prop_assert!(error.offset <= text.len()),
            },
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = packed(&bytes);
        let _ = Scan::new().end(&bytes);
    }
}

fn text(json: &str) -> String {
    let (_, bytes) = packed(json.as_bytes()).unwrap();
    read(&bytes).as_str().unwrap().to_owned()
}

#[test]
fn escapes_become_their_characters() {
    assert_eq!(
        text(r#""a\/\"\\\b\f\n\r\t\u00e9\ud83d\ude00z""#),
        "a/\"\\\u{8}\u{c}\n\r\té😀z"
    );
}

#[test]
fn half_a_surrogate_pair_becomes_the_replacement_character() {
    assert_eq!(text(r#""\ud800""#), "\u{fffd}");
    assert_eq!(text(r#""\ud800x""#), "\u{fffd}x");
    assert_eq!(text(r#""\udc00\n""#), "\u{fffd}\n");
    assert_eq!(text(r#""\ud800\u0041""#), "\u{fffd}A");
    assert_eq!(text(r#""\ud800\ud83d\ude00""#), "\u{fffd}😀");
}

#[test]
fn bytes_that_are_not_utf8_are_unchanged() {
    let (_, bytes) = packed(b"\"a\xff\\n\"").unwrap();
    assert_eq!(bytes, b"\xa3a\xff\n");
}

#[test]
fn numbers_at_the_edges_are_exact() {
    for (json, bytes) in [
        (
            "18446744073709551615",
            &b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"[..],
        ),
        ("-9223372036854775808", b"\xd3\x80\0\0\0\0\0\0\0"),
        ("18446744073709551616", b"\xb418446744073709551616"),
        ("-9223372036854775809", b"\xb4-9223372036854775809"),
        ("1e400", b"\xa51e400"),
        ("-1.5E999", b"\xa8-1.5E999"),
        ("1e-400", b"\xcb\0\0\0\0\0\0\0\0"),
        ("18446744073709551616.0", b"\xcb\x43\xf0\0\0\0\0\0\0"),
        ("-0", b"\xcb\x80\0\0\0\0\0\0\0"),
        ("0", b"\0"),
        ("-32", b"\xe0"),
        ("1e2", b"\xcb\x40\x59\0\0\0\0\0\0"),
    ] {
        assert_eq!(packed(json.as_bytes()).unwrap().1, bytes, "{json}");
    }
    assert_eq!(packed(b"[1e999]").unwrap().1, b"\x91\xa51e999");
}

#[test]
fn an_error_has_an_offset_and_the_expected_syntax() {
    for (json, message) in [
        ("[1 2]", "byte 3: `,` or `]` expected"),
        ("{1:2}", "byte 1: a key expected"),
        ("{\"a\" 1}", "byte 5: `:` expected"),
        ("[01]", "byte 2: `,` or `]` expected"),
        ("[1.]", "byte 3: a digit expected"),
        ("[1,]", "byte 3: a value expected"),
        (
            "[\"a\nb\"]",
            "byte 3: an escaped control character expected",
        ),
        ("[\"\\x\"]", "byte 3: one of `\"\\/bfnrtu` expected"),
        ("[nul]", "byte 4: `true`, `false` or `null` expected"),
    ] {
        assert_eq!(packed(json.as_bytes()).unwrap_err().to_string(), message);
    }
}

#[test]
fn nesting_beyond_the_limit_is_an_error() {
    let nested = |levels: usize| [vec![b'['; levels], vec![b']'; levels]].concat();
    let (progress, bytes) = packed(&nested(DEPTH_MAX)).unwrap();
    assert_eq!(progress, Progress::Consumed(2 * DEPTH_MAX));
    assert_eq!(bytes.len(), DEPTH_MAX);
    let error = packed(&nested(DEPTH_MAX + 1)).unwrap_err();
    assert_eq!(error.offset, DEPTH_MAX);
    // The scan has no stack and follows any depth.
    let deep = nested(1_000_000);
    assert_eq!(Scan::new().end(&deep), Some(deep.len()));
}

#[test]
fn values_of_a_stream_are_read_in_order() {
    let stream = b" [1]\n{\"a\":[]} \"x\\\"]\"null 12 [";
    let mut scan = Scan::new();
    let mut rest = &stream[..];
    let mut values = Vec::new();
    while let Some(end) = scan.end(rest) {
        values.push(String::from_utf8_lossy(&rest[..end]).trim().to_owned());
        assert!(matches!(
            packed(&rest[..end]).unwrap().0,
            Progress::Consumed(_)
        ));
        rest = &rest[end..];
    }
    assert_eq!(values, ["[1]", "{\"a\":[]}", "\"x\\\"]\"", "null", "12"]);
    assert_eq!(rest, b" [");
}

#[test]
fn every_byte_at_every_place_is_escaped_as_serde_does() {
    for length in 0..40 {
        for place in 0..length {
            for byte in 0..0x80_u8 {
                // The bytes before and after the text need escapes, but must not affect the result.
                let mut bytes = vec![b'"'; length + 2];
                bytes[1..=length].fill(b'x');
                bytes[1 + place] = byte;
                bytes[1 + (place * 7 + 3) % length] = byte;
                let mut out = Vec::new();
                string(&mut Room::new(&mut out), &bytes, 1, length);
                let text = std::str::from_utf8(&bytes[1..=length]).unwrap();
                assert_eq!(
                    String::from_utf8(out).unwrap(),
                    serde_json::to_string(text).unwrap()
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_written_as_serde_writes_it(
        text in prop_oneof![
            ".{0,300}",
            "[\u{0}-\u{2f}\\\\]{0,300}",
            ("[a-z]{0,30}[\"\\\\é\n]{0,3}", 1..200_usize).prop_map(|(text, n)| text.repeat(n)),
        ],
        around in "[\"\u{0}a]{0,9}",
    ) {
        let bytes = [&around, &text, &around].map(|part| part.as_bytes()).concat();
        let mut out = b"before".to_vec();
        string(&mut Room::new(&mut out), &bytes, around.len(), text.len());
        prop_assert_eq!(
            String::from_utf8(out).unwrap(),
            format!("before{}", serde_json::to_string(&text).unwrap())
        );
    }
}

#[test]
fn a_float_of_32_bits_without_a_fraction_is_exact() {
    for (number, text) in [
        (4_294_967_296_f32, "4294967296.0"),
        (16_777_216.0, "16777216.0"),
        (-2_147_483_648.0, "-2147483648.0"),
        (0.1, "0.1"),
        (-0.0, "-0.0"),
        (1e20, "1e20"),
        (f32::INFINITY, "null"),
        (f32::NAN, "null"),
    ] {
        let value = [&[0xca][..], &number.to_be_bytes()].concat();
        let mut out = Vec::new();
        write_value(&value, 0, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }
}
