//! Text that is not UTF-8, with each value of `invalid_utf8`.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::*;
use crate::json::InvalidUtf8;

/// Texts, each with its base64, its replacement and its escaped version.
fn cases() -> Vec<(Vec<u8>, [String; 3])> {
    let quotes = "\"".repeat(3000);
    let long = [quotes.as_bytes(), b"\xe2\x82"].concat();
    let of = |bytes: &[u8], replaced: &str, escaped: &str| {
        let becomes = [
            STANDARD.encode(bytes),
            replaced.to_owned(),
            escaped.to_owned(),
        ];
        (bytes.to_vec(), becomes)
    };
    let valid = "été, or \"x\"\t\n".replace('\n', " ");
    vec![
        of(b"a\xffb\tc", "a\u{fffd}b\tc", "a\\xffb\tc"),
        of(
            b"\xe2\x82\"x\xfe",
            "\u{fffd}\"x\u{fffd}",
            "\\xe2\\x82\"x\\xfe",
        ),
        of(
            &long,
            &format!("{quotes}\u{fffd}"),
            &format!("{quotes}\\xe2\\x82"),
        ),
        (
            valid.clone().into_bytes(),
            [valid.clone(), valid.clone(), valid],
        ),
    ]
}

/// The same text as a line and as the field `message`.
fn batches(text: &[u8]) -> [Batch; 2] {
    let mut record = b"\x92\x02\x81\xa7message\xc5".to_vec();
    record.extend_from_slice(&(text.len() as u16).to_be_bytes());
    record.extend_from_slice(text);
    [
        lines(&[text, b"\n"].concat()),
        batch(Encoding::Packed, record, 1),
    ]
}

fn options(format: Format, how: InvalidUtf8) -> Options {
    Options {
        format,
        add: matches!(format, Format::Json | Format::Ltsv | Format::Csv).then(Add::default),
        columns: (format == Format::Csv).then(|| vec![".message".parse().unwrap()]),
        invalid_utf8: Some(how),
        ..Options::default()
    }
}

#[test]
fn invalid_utf8_is_written_as_the_option_demands() {
    use InvalidUtf8::{Base64, Escape, Replace};
    for (bytes, becomes) in cases() {
        for (how, expected) in [Base64, Replace, Escape].into_iter().zip(becomes) {
            for batch in batches(&bytes) {
                let written = |format| text(&options(format, how), &batch);
                let json = json!({ "message": expected }).to_string();
                assert_eq!(written(Format::Json), format!("{json}\n"));
                assert_eq!(written(Format::Raw), format!("{expected}\n"));
                let ltsv = expected.replace('\t', "\\t");
                assert_eq!(written(Format::Ltsv), format!("message:{ltsv}\n"));
                let row = written(Format::Csv);
                let mut reader = ::csv::ReaderBuilder::new()
                    .has_headers(false)
                    .from_reader(row.as_bytes());
                let row = reader.records().next().unwrap().unwrap();
                assert_eq!(&row[0], expected);
                let template = Template::parse("{.message}|{.message:json}|{record}").unwrap();
                let template = Options {
                    template: Some(template),
                    ..options(Format::Template, how)
                };
                assert_eq!(
                    text(&template, &batch),
                    format!("{expected}|{}|{json}", json!(expected))
                );
            }
        }
    }
}

#[test]
fn formats_that_write_bytes_reject_the_option() {
    for format in [Format::Msgpack, Format::AvroEvent] {
        let error = options(format, InvalidUtf8::Escape).encoder(&TimeZone::UTC);
        assert_eq!(error.unwrap_err().option, "invalid_utf8");
    }
}

#[test]
fn invalid_utf8_in_added_fields_and_keys_is_replaced_too() {
    let options = Options {
        add: only([("copy", "{.k}"), ("text", "<{.k}>")]),
        invalid_utf8: Some(InvalidUtf8::Replace),
        ..Options::default()
    };
    let body = b"\x92\x02\x82\xa1k\xa1\xff\xa2\xfey\x93\xa1\xfd\x01\xc0".to_vec();
    assert_eq!(
        text(&options, &batch(Encoding::Packed, body, 1)),
        "{\"k\":\"\u{fffd}\",\"\u{fffd}y\":[\"\u{fffd}\",1,null],\"copy\":\"\u{fffd}\",\"text\":\"<\u{fffd}>\"}\n"
    );
}
