//! Wrong options: each error names the option and suggests a correction.

use super::*;

fn refused(options: &str) -> (&'static str, String) {
    let options: ParseOptions = serde_json::from_str(options).unwrap();
    let error = Parser::new(&options, TimeZone::UTC).unwrap_err();
    assert!(!error.help.is_empty());
    (error.option, error.message)
}

#[test]
fn wrong_options_are_refused_by_name() {
    for (options, option, message) in [
        (r#"{"as":"regex"}"#, "pattern", "without a `pattern`"),
        (
            r#"{"as":"regex","pattern":"(a"}"#,
            "pattern",
            "unclosed group",
        ),
        (
            r#"{"as":"regex","pattern":"(a)"}"#,
            "pattern",
            "no named group",
        ),
        (
            r#"{"as":"regex","pattern":"(?<a>x)(?=y)"}"#,
            "pattern",
            "look-around",
        ),
        (
            r#"{"as":"json","pattern":"(?<a>b)"}"#,
            "pattern",
            "no effect",
        ),
        (r#"{"as":"csv"}"#, "columns", "need `columns`"),
        (r#"{"as":"tsv","columns":[]}"#, "columns", "need `columns`"),
        (r#"{"as":"ltsv","columns":["a"]}"#, "columns", "no effect"),
        (
            r#"{"as":"csv","columns":[".a.b"]}"#,
            "columns",
            "inside another field",
        ),
        (
            r#"{"as":"csv","columns":["a","b",".a"]}"#,
            "columns",
            "`a` is named twice",
        ),
        (
            r#"{"as":"json","types":{".a.b":"integer"}}"#,
            "types",
            "inside another field",
        ),
        (
            r#"{"as":"json","types":{"":"integer"}}"#,
            "types",
            "not the name of a field",
        ),
        (
            r#"{"as":"json","into":".a.b"}"#,
            "into",
            "inside another field",
        ),
    ] {
        let (seen, text) = refused(options);
        assert_eq!(seen, option, "{options}");
        assert!(text.contains(message), "{options}: {text}");
    }
}

#[test]
fn wrong_options_of_times_are_refused_by_name() {
    for (options, option, message) in [
        (
            r#"{"as":"json","time":{"format":"%H:%M"}}"#,
            "time.format",
            "no date",
        ),
        (
            r#"{"as":"json","time":{"format":"%K"}}"#,
            "time.format",
            "%K",
        ),
        (
            r#"{"as":"json","time":{"field":".a.b"}}"#,
            "time.field",
            "inside another field",
        ),
        (
            r#"{"as":"syslog","time":{"keep":true}}"#,
            "time",
            "fixed place",
        ),
    ] {
        let (seen, text) = refused(options);
        assert_eq!(seen, option, "{options}");
        assert!(text.contains(message), "{options}: {text}");
    }
}

#[test]
fn unknown_options_and_formats_are_refused_by_serde() {
    for options in [
        r#"{"as":"xml"}"#,
        r#"{}"#,
        r#"{"as":"json","fields":"a"}"#,
        r#"{"as":"json","time":{"zone":"UTC"}}"#,
        r#"{"as":"json","types":{"a":"int"}}"#,
        r#"{"as":"json","on_error":"drop"}"#,
    ] {
        assert!(
            serde_json::from_str::<ParseOptions>(options).is_err(),
            "{options}"
        );
    }
    let options: ParseOptions =
        serde_json::from_str(r#"{"as":"json","on_error":"reject"}"#).unwrap();
    assert_eq!(options.on_error, OnError::Reject);
    let parser = Parser::new(&options, TimeZone::UTC).unwrap();
    assert_eq!(parser.on_error(), OnError::Reject);
    assert_eq!(ParseOptions::new(TextFormat::Json).on_error, OnError::Keep);
}

#[test]
fn times_without_a_zone_are_in_the_zone_of_the_caller() {
    let options: ParseOptions =
        serde_json::from_str(r#"{"as":"json","time":{"format":"%F %T","timezone":"Asia/Tokyo"}}"#)
            .unwrap();
    let zone = TimeZone::get(options.time.as_ref().unwrap().timezone.as_deref().unwrap());
    let mut parser = Parser::new(&options, zone.unwrap()).unwrap();
    assert_eq!(
        line(&mut parser, br#"{"time":"2026-11-23 09:00:00"}"#),
        "2026-11-23T00:00:00Z {}"
    );
}
