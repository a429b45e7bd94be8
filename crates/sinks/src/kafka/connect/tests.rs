use millstream_record::{Batch, Time};
use millstream_wire::record::records;

use super::Connect;
use crate::rig;

/// A batch with one packed record made from JSON, at time 1700000000.123456789.
fn record(value: &rmpv::Value) -> Batch {
    let mut body = vec![0x92, 0xd7, 0];
    body.extend_from_slice(&1_700_000_000_u32.to_be_bytes());
    body.extend_from_slice(&123_456_789_u32.to_be_bytes());
    rmpv::encode::write_value(&mut body, value).unwrap();
    Batch {
        body: body.into(),
        count: 1,
        received: Time(1),
        ..rig::packed("tg.a", "")
    }
}

fn map(fields: Vec<(&str, rmpv::Value)>) -> rmpv::Value {
    rmpv::Value::Map(fields.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

fn written(value: &rmpv::Value, schemas: bool) -> Result<String, String> {
    let batch = record(value);
    let (_, event) = records(&batch).next().unwrap();
    let mut out = b"before".to_vec();
    let result = Connect::new(schemas).write("tg.a", event, &mut out);
    let text = String::from_utf8(out).unwrap();
    let text = text.strip_prefix("before").unwrap().to_owned();
    match result {
        Ok(()) => Ok(text),
        Err(reason) => {
            assert_eq!(text, "", "a refused record leaves no output");
            Err(reason)
        }
    }
}

#[test]
fn with_schemas_types_are_written_and_fields_are_sorted() {
    let value = map(vec![
        ("s", "x".into()),
        ("i", 5.into()),
        ("f", rmpv::Value::F64(1.5)),
        ("b", true.into()),
        ("n", rmpv::Value::Nil),
        ("d", rmpv::Value::Binary(vec![0xff, 0])),
        ("m", map(vec![("z", 1.into()), ("a", "y".into())])),
        ("l", rmpv::Value::Array(vec![1.into(), 2.into()])),
    ]);
    let expected = concat!(
        r#"{"schema":{"type":"struct","fields":["#,
        r#"{"type":"boolean","optional":false,"field":"b"},"#,
        r#"{"type":"bytes","optional":false,"field":"d"},"#,
        r#"{"type":"double","optional":false,"field":"f"},"#,
        r#"{"type":"int64","optional":false,"field":"i"},"#,
        r#"{"type":"array","items":{"type":"int64","optional":false},"optional":false,"field":"l"},"#,
        r#"{"type":"struct","fields":[{"type":"string","optional":false,"field":"a"},"#,
        r#"{"type":"int64","optional":false,"field":"z"}],"optional":false,"name":"m","field":"m"},"#,
        r#"{"type":"string","optional":true,"field":"n"},"#,
        r#"{"type":"string","optional":false,"field":"s"}],"optional":false,"name":"tg.a"},"#,
        r#""payload":{"b":true,"d":"/wA=","f":1.5,"i":5,"l":[1,2],"m":{"a":"y","z":1},"n":null,"s":"x"}}"#,
    );
    assert_eq!(written(&value, true).unwrap(), expected);
}

#[test]
fn without_schemas_the_order_of_the_record_is_kept() {
    let value = map(vec![
        ("s", "x".into()),
        ("i", 5.into()),
        ("e", rmpv::Value::Array(vec![])),
        ("mixed", rmpv::Value::Array(vec![1.into(), "a".into()])),
        ("a", map(vec![])),
    ]);
    let expected = r#"{"s":"x","i":5,"e":[],"mixed":[1,"a"],"a":{}}"#;
    assert_eq!(written(&value, false).unwrap(), expected);
}

#[test]
fn texts_and_numbers_look_as_java_writes_them() {
    let strange = "a\"b\\c\u{1}\u{8}\t\n\u{c}\r\u{1f}\u{7f}/ü漢🦀";
    let numbers = [0.001, 0.0001, 9999999.0, 1e7, -0.0, 1.5e-300, 1e21, 0.1];
    let numbers = numbers.map(rmpv::Value::F64).to_vec();
    let value = map(vec![
        ("t", strange.into()),
        ("n", rmpv::Value::Array(numbers)),
        ("min", i64::MIN.into()),
    ]);
    let expected = concat!(
        "{\"t\":\"a\\\"b\\\\c\\u0001\\b\\t\\n\\f\\r\\u001F\u{7f}/ü漢🦀\",",
        "\"n\":[0.001,1.0E-4,9999999.0,1.0E7,-0.0,1.5E-300,1.0E21,0.1],\"min\":-9223372036854775808}",
    );
    assert_eq!(written(&value, false).unwrap(), expected);
}

#[test]
fn records_that_kill_the_connector_are_refused_with_a_reason() {
    let array = |values: Vec<rmpv::Value>| map(vec![("l", rmpv::Value::Array(values))]);
    let large = map(vec![("n", (u64::MAX).into())]);
    for schemas in [true, false] {
        let reason = written(&large, schemas).unwrap_err();
        assert!(reason.contains("18446744073709551615"), "{reason}");
    }
    assert!(written(&array(vec![]), true).unwrap_err().contains("empty"));
    let mixed = array(vec![1.into(), "a".into()]);
    assert!(written(&mixed, true).unwrap_err().contains("several types"));
    let inner = array(vec![map(vec![("a", 1.into())]), map(vec![("b", 1.into())])]);
    assert!(written(&inner, true).unwrap_err().contains("several types"));
    let same = array(vec![map(vec![("a", 1.into())]), map(vec![("a", 2.into())])]);
    assert!(written(&same, true).is_ok());
    let optional = array(vec![rmpv::Value::Nil, "a".into()]);
    assert!(written(&optional, true).is_ok());
    let ext = map(vec![("e", rmpv::Value::Ext(5, vec![1]))]);
    assert!(written(&ext, false).unwrap_err().contains("extension"));
    let key = rmpv::Value::Map(vec![(1.into(), 2.into())]);
    assert!(written(&key, false).unwrap_err().contains("key"));
}

#[test]
fn a_record_that_is_too_deep_is_refused_without_a_stack_overflow() {
    let mut deep = rmpv::Value::from(1);
    for _ in 0..100_000 {
        deep = rmpv::Value::Array(vec![deep]);
    }
    // The library encodes and drops values recursively. So this value is leaked, and the record below is encoded by hand.
    std::mem::forget(deep);
    let mut body = vec![0x92, 0, 0x81, 0xa1, b'a'];
    body.extend(std::iter::repeat_n(0x91, 100_000));
    body.push(1);
    let batch = Batch {
        body: body.into(),
        ..rig::packed("t", "")
    };
    // A validated batch cannot contain such a record, but it must not do any harm.
    for (_, event) in records(&batch) {
        let mut out = Vec::new();
        let refused = Connect::new(true).write("t", event, &mut out);
        assert!(refused.unwrap_err().contains("levels"));
    }
}

#[test]
fn the_last_value_of_a_repeated_key_counts() {
    let value = map(vec![("a", 1.into()), ("b", 2.into()), ("a", 3.into())]);
    assert_eq!(written(&value, false).unwrap(), r#"{"a":3,"b":2}"#);
}
