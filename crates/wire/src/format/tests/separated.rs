//! ltsv and csv, case by case. The crate `csv` reads the written csv.

use proptest::prelude::*;
use rmpv::Value;

use super::*;

fn ltsv() -> Options {
    Options {
        format: Format::Ltsv,
        ..bare()
    }
}

pub(super) fn csv(columns: &[&str]) -> Options {
    let columns = columns.iter().map(|column| column.parse().unwrap());
    Options {
        format: Format::Csv,
        columns: Some(columns.collect()),
        ..Options::default()
    }
}

/// The first line of a file.
fn header(options: &Options) -> String {
    let encoder = options.encoder(&TimeZone::UTC).unwrap();
    String::from_utf8(encoder.header().to_vec()).unwrap()
}

#[test]
fn ltsv_is_a_line_of_labels_and_values_with_the_event_time() {
    let options = Options {
        add: None,
        ..ltsv()
    };
    let record = map([
        ("host", "web".into()),
        ("n", 70_000.into()),
        ("up", true.into()),
        ("gone", Value::Nil),
        ("f", 1.5.into()),
        ("minus", (-3).into()),
        (
            "deep",
            map([("a", Value::Array(vec![1.into(), "x".into()]))]),
        ),
    ]);
    assert_eq!(
        text(&options, &packed(&[record, map([])])),
        format!(
            "host:web\tn:70000\tup:true\tgone:\tf:1.5\tminus:-3\tdeep:{{\"a\":[1,\"x\"]}}\ttime:{EVENT_TEXT}\n\
             time:{EVENT_TEXT}\n"
        )
    );
    assert_eq!(
        text(&options, &lines(b"a b\n")),
        "message:a b\ttime:2020-09-13T12:26:40.000000001Z\n"
    );
    assert_eq!(text(&ltsv(), &packed(&[map([])])), "\n");
}

#[test]
fn characters_that_ltsv_cannot_hold_never_break_a_line() {
    let record = map([
        ("a:b\tc", "x\ty\nz\r\0\\t é".into()),
        ("bin", Value::Binary(b"\xff\t".to_vec())),
        ("", "no label".into()),
    ]);
    let (out, rejects) = encode_bytes(&ltsv(), &packed(&[record]));
    assert_eq!(rejects, []);
    assert_eq!(
        out,
        "a_b_c:x\\ty\\nz\\r\\0\\t é\tbin:\u{1}\\t\t:no label\n"
            .bytes()
            .map(|byte| if byte == 1 { 0xff } else { byte })
            .collect::<Vec<_>>()
    );
    assert_eq!(text(&ltsv(), &lines(b"a\tb\r\n")), "message:a\\tb\\r\n");
    let keys = Value::Map(vec![
        (5.into(), "n".into()),
        (Value::Nil, "nil".into()),
        (Value::Array(vec![]), 1.into()),
    ]);
    let (out, rejects) = encode(&ltsv(), &packed(&[keys]));
    assert_eq!(
        (out.as_str(), rejects[0].as_str()),
        ("", "a map has a key that is neither text nor a number")
    );
}

#[test]
fn added_fields_of_ltsv_and_csv_are_plain_text() {
    let fields = [
        ("tag", "{tag}"),
        ("host", "{host}"),
        ("n", "{.n}"),
        ("ms", "{time:unix_ms}"),
        ("text", "{.n}\t{.m}"),
        ("deep", "{.m}"),
        ("own", "no"),
    ];
    let record = || {
        map([
            ("n", 5.into()),
            ("m", Value::Array(vec![1.into(), 2.into()])),
            ("own", "mine".into()),
        ])
    };
    let ltsv = Options {
        add: add(fields),
        ..ltsv()
    };
    assert_eq!(
        text(&ltsv, &packed(&[record()])),
        "n:5\tm:[1,2]\town:mine\ttag:web.front\thost:box\"1\tms:1700000000123\ttext:5\\t[1,2]\tdeep:[1,2]\n"
    );
    let csv = Options {
        add: add(fields),
        ..csv(&["host", "tag", "deep", "own", "ms", "text"])
    };
    assert_eq!(
        text(&csv, &packed(&[record()])),
        "\"box\"\"1\",web.front,\"[1,2]\",mine,1700000000123,\"5\t[1,2]\"\n"
    );
}

#[test]
fn csv_writes_the_columns_in_order_and_quotes_as_in_rfc_4180() {
    let options = csv(&["message", "time", ".user.id", "n", "none"]);
    let records = [
        map([
            ("n", 1.into()),
            ("user", map([("id", "u,1".into())])),
            ("message", "he said \"no\"\r\nand left".into()),
            ("other", "not asked for".into()),
        ]),
        map([
            ("message", "".into()),
            ("time", Value::Nil),
            ("user", "text".into()),
            ("n", Value::Nil),
        ]),
        map([("message", " first ".into()), ("message", "second".into())]),
    ];
    assert_eq!(
        text(&options, &packed(&records)),
        format!(
            "\"he said \"\"no\"\"\r\nand left\",{EVENT_TEXT},\"u,1\",1,\n\"\",,,,\n first ,{EVENT_TEXT},,,\n"
        )
    );
    assert_eq!(
        text(&options, &lines(b"a,b\n\n")),
        "\"a,b\",2020-09-13T12:26:40.000000001Z,,,\n\"\",2020-09-13T12:26:40.000000001Z,,,\n"
    );
}

#[test]
fn a_row_is_never_an_empty_line() {
    let one = csv(&["x"]);
    assert_eq!(text(&one, &packed(&[map([])])), "\"\"\n");
    assert_eq!(text(&one, &lines(b"a\n")), "\"\"\n");
}

#[test]
fn the_csv_header_has_the_names_of_the_columns_and_is_not_among_the_rows() {
    let columns = ["time", ".user.id", ".a,b", "\"q\""];
    assert_eq!(header(&csv(&columns)), "");
    let options = Options {
        header: Some(true),
        delimiter: Some("\r\n".into()),
        ..csv(&columns)
    };
    assert_eq!(header(&options), "time,.user.id,\"a,b\",\"\"\"q\"\"\"\r\n");
    assert_eq!(
        text(&options, &packed(&[map([])])),
        format!("{EVENT_TEXT},,,\r\n")
    );
}

proptest! {
    #[test]
    fn other_readers_read_the_written_csv(
        rows in prop::collection::vec(prop::collection::vec("[a-c,\"\r\n\t é]{0,20}", 3), 0..20),
    ) {
        let records: Vec<Value> = rows
            .iter()
            .map(|row| map([("c", row[2].as_str().into()), ("a", row[0].as_str().into()), ("b", row[1].as_str().into())]))
            .collect();
        let text = text(&csv(&["a", "b", "c"]), &packed(&records));
        let mut reader = ::csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
        let read: Vec<Vec<String>> = reader
            .records()
            .map(|row| row.unwrap().iter().map(str::to_owned).collect())
            .collect();
        prop_assert_eq!(read, rows);
    }

    #[test]
    fn ltsv_has_one_line_per_record_and_one_value_per_field(
        records in prop::collection::vec(prop::collection::vec(("[a-z:\t\n]{0,9}", "[a-z:\t\n\r\0 é\\\\]{0,40}"), 0..12), 0..8),
    ) {
        let packed_records: Vec<Value> = records
            .iter()
            .map(|record| {
                let pairs = record.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into()));
                Value::Map(pairs.collect())
            })
            .collect();
        let text = text(&ltsv(), &packed(&packed_records));
        prop_assert_eq!(text.matches('\n').count(), records.len());
        for (line, record) in text.split('\n').zip(&records) {
            let fields: Vec<_> = line.split('\t').filter(|_| !record.is_empty()).collect();
            prop_assert_eq!(fields.len(), record.len());
            for (field, (key, value)) in fields.iter().zip(record) {
                let (label, shown) = field.split_once(':').unwrap();
                prop_assert_eq!(label, key.replace([':', '\t', '\n'], "_"));
                let escaped = value.replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r").replace('\0', "\\0");
                prop_assert_eq!(shown, escaped);
            }
        }
    }
}
