//! Templates compared with jiff, and values that try to leave their directory.

use std::path::{Component, Path};

use jiff::{Timestamp, tz::TimeZone};
use millstream_record::{Time, Values};
use proptest::prelude::*;

use super::*;
use crate::record::{Record, TimedRecord};

const TIME: Time = Time(1_700_000_000_012_345_678);

fn values() -> Values {
    let mut values = Values::new();
    values.set("host", "box");
    values.set("kubernetes.pod", "p-1");
    values
}

fn render(text: &str, record: Record<'_>) -> Result<String, String> {
    let template = Template::parse(text).unwrap();
    let mut renderer = Renderer::text(&template, TimeZone::UTC);
    run(&mut renderer, "web.front", record, TIME)
}

fn run(
    renderer: &mut Renderer,
    tag: &str,
    record: Record<'_>,
    time: Time,
) -> Result<String, String> {
    let values = values();
    let shared = Shared {
        tag,
        values: &values,
    };
    let mut out = b"before".to_vec();
    let result = renderer.render(
        shared,
        TimedRecord {
            time,
            record,
            metadata: &[],
        },
        &mut out,
    );
    let text = String::from_utf8(out.split_off(6)).unwrap();
    match result {
        Ok(()) => Ok(text),
        Err(missing) => {
            assert_eq!(text, "");
            Err(missing.name.to_string())
        }
    }
}

fn path(text: &str, tag: &str) -> String {
    let template = Template::parse(text).unwrap();
    let mut renderer = Renderer::path(&template, TimeZone::UTC);
    run(&mut renderer, tag, Record::None, TIME).unwrap()
}

#[test]
fn every_kind_of_value_is_rendered() {
    let line = Record::Line(b"GET /");
    for (text, expected) in [
        ("{tag}", "web.front"),
        ("{host}-{kubernetes.pod}", "box-p-1"),
        ("{pod|none}{pod|}.", "none."),
        ("{time}", "2023-11-14T22:13:20.012345678Z"),
        ("{time:unix} {time:unix_ms}", "1700000000 1700000000012"),
        (
            "{time:unix_us} {time:unix_ns}",
            "1700000000012345 1700000000012345678",
        ),
        ("{{{tag}}} 100%% }}", "{web.front} 100% }"),
        ("{.message}", "GET /"),
        ("{.other|-}", "-"),
        ("é%Y%%%m{{%d", "é2023%11{14"),
        (
            "%F %T.%3f %.6f %N %z",
            "2023-11-14 22:13:20.012 .012345 012345678 +0000",
        ),
        ("%f|%.f", "012345678|.012345678"),
        ("%-d %e %j", "14 14 318"),
        ("{time:%b %e} {time:%H:%M:%S.%3f}", "Nov 14 22:13:20.012"),
        ("x{time:%F}/{time:100%% %T}y", "x2023-11-14/100% 22:13:20y"),
    ] {
        assert_eq!(render(text, line).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn fields_are_found_at_any_depth_and_shown_as_text() {
    let map = rmpv::Value::Map(vec![
        (1.into(), 2.into()),
        ("n".into(), (-5).into()),
        ("a.b".into(), "dots".into()),
        ("nil".into(), rmpv::Value::Nil),
        (
            "u".into(),
            rmpv::Value::Map(vec![("id".into(), 1.5.into())]),
        ),
    ]);
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &map).unwrap();
    bytes.extend_from_slice(b"what follows");
    let record = Record::Packed(&bytes);
    assert_eq!(
        render("{.n} {.u.id} {.u} {.\"a.b\"} {.nil} {.nil|-}", record).unwrap(),
        "-5 1.5 {\"id\":1.5} dots null -"
    );
    assert_eq!(render("{.n.id}", record).unwrap_err(), ".n.id");
    assert_eq!(render("x{.u.x}", record).unwrap_err(), ".u.x");
    assert_eq!(render("x{.\"a.c\"}", record).unwrap_err(), ".\"a.c\"");
    assert_eq!(render("x{peer}", record).unwrap_err(), "peer");
}

#[test]
fn a_template_reports_what_it_depends_on() {
    for (text, depends) in [
        ("plain %%", Depends::Nothing),
        ("{host|x}{tag}", Depends::Batch),
        ("{tag}/%F", Depends::Time),
        ("{time:unix}", Depends::Time),
        ("%F{.a}", Depends::Record),
    ] {
        assert_eq!(Template::parse(text).unwrap().depends(), depends, "{text}");
    }
    let names = Template::parse("{host}{tag}{pod|}").unwrap();
    assert_eq!(
        names.values().map(|(name, _)| name).collect::<Vec<_>>(),
        ["host", "pod"]
    );
}

#[test]
fn a_path_keeps_its_directories_or_only_its_last_part_if_asked() {
    for (value, dirs, base) in [
        ("app/x.log", "app/x.log", "x.log"),
        ("/app//x.log/", "app/x.log", "x.log"),
        ("../../etc/passwd", "_/_/etc/passwd", "passwd"),
        ("a/./..", "a/_/_", "_"),
        ("a\nb/c\u{7}", "a_b/c_", "c_"),
        ("", "_", "_"),
        ("///", "_", "_"),
        ("x", "x", "x"),
    ] {
        assert_eq!(
            path("/srv/{tag:dirs}", value),
            format!("/srv/{dirs}"),
            "{value}"
        );
        assert_eq!(
            path("/srv/{tag:base}.gz", value),
            format!("/srv/{base}.gz"),
            "{value}"
        );
    }
    let deep = path("/srv/{tag:dirs}", &"d/".repeat(5000));
    assert!(deep.len() < 2100, "{}", deep.len());
    let record = Record::Line(b"d/e/f");
    assert_eq!(
        render("{.message:base} {.message:dirs}", record).unwrap(),
        "f d/e/f"
    );
    assert_eq!(
        render("{.no:base|a/b} {pod:dirs|c/d}", record).unwrap(),
        "b c/d"
    );
    assert!(render("{.no:dirs}", record).is_err());
    let template = Template::parse("{.message:base}").unwrap();
    assert_eq!(template.depends(), Depends::Record);
    let template = Template::parse("{path:dirs}").unwrap();
    assert_eq!(
        (template.depends(), template.values().count()),
        (Depends::Batch, 1)
    );
    for wrong in [
        "{time:dirs}",
        "{record:base}",
        "{host:dir}",
        "{.a:basename}",
    ] {
        assert!(Template::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn errors_have_an_offset() {
    for (text, offset, message) in [
        ("ab{", 2, "a `{` that is not closed"),
        ("ab}", 2, "a `}` without a `{`"),
        ("{}", 0, "`{}`, which is not the name of a value"),
        ("{a b}", 0, "`{a b}`, which is not the name of a value"),
        ("{time:ms}", 0, "`ms`, which is not a format of the time"),
        (
            "{time:iso8601}",
            0,
            "`iso8601`, which is not a format of the time",
        ),
        ("{time:%H|x}", 8, "a `|` within `{time:...}`"),
        ("{tag:x}", 0, "a format that this value does not have"),
        ("{tag|x}", 0, "a default that is never used"),
        ("{.}", 2, "an empty part"),
        ("x{.a b..c}", 7, "an empty part"),
        ("{.a", 3, "a field that is not closed"),
        ("{.\"a}", 2, "a quote that is not closed"),
        ("50%", 2, "a `%` at the end"),
    ] {
        let error = Template::parse(text).unwrap_err();
        assert_eq!(
            (error.offset, error.message.as_str()),
            (offset, message),
            "{text}"
        );
    }
    let error = Template::parse("é%F %?").unwrap_err();
    assert_eq!(error.offset, 5);
    assert!(
        error
            .message
            .starts_with("`%?`, which is not a part of a time"),
        "{error}"
    );
}

#[test]
fn a_value_is_one_component_of_a_path() {
    for (tag, expected) in [
        ("web.front", "/srv/web.front.log"),
        ("../../etc/passwd", "/srv/.._.._etc_passwd.log"),
        ("/etc", "/srv/_etc.log"),
        ("", "/srv/_.log"),
        ("..", "/srv/_.log"),
        ("a\0b\nc\u{85}", "/srv/a_b_c_.log"),
        ("é", "/srv/é.log"),
    ] {
        assert_eq!(path("/srv/{tag}.log", tag), expected);
    }
    assert_eq!(path("/srv/{tag}/x", ".."), "/srv/_/x");
    assert_eq!(path("/srv/{tag}{tag}/x", "."), "/srv/__/x");
    assert_eq!(path("/srv/.{tag}/x", "."), "/srv/._/x");
    assert_eq!(path("{tag}", &"é".repeat(300)), "é".repeat(100));
    let mut out = Vec::new();
    path::write_part(b"a\xff\xfeb", &mut out);
    assert_eq!(out, b"a__b");
}

proptest! {
    #[test]
    fn no_value_with_directories_leaves_its_directory(a in "[./é]{0,9}", b in "[./\u{0}]{0,9}") {
        let template = Template::parse("/srv/.{tag:dirs}{host:dirs}./{host:base}").unwrap();
        let mut values = Values::new();
        values.set("host", &b);
        let shared = Shared { tag: &a, values: &values };
        let event = TimedRecord { time: TIME, record: Record::None, metadata: &[] };
        let mut out = Vec::new();
        Renderer::path(&template, TimeZone::UTC).render(shared, event, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        prop_assert!(text.split('/').skip(1).all(|part| !["", ".", ".."].contains(&part)), "{text}");
    }

    #[test]
    fn no_value_leaves_its_directory(a in "[./\\\\a\u{0}\u{1}]{0,6}", b in "[./é]{0,4}") {
        let template = Template::parse("/srv/logs/{tag}{.message}/.{.message}/x{tag}").unwrap();
        let mut renderer = Renderer::path(&template, TimeZone::UTC);
        let text = run(&mut renderer, &a, Record::Line(b.as_bytes()), TIME).unwrap();
        let parts: Vec<_> = Path::new(&text).components().collect();
        prop_assert_eq!(parts.len(), 6);
        prop_assert!(parts[1..].iter().all(|part| matches!(part, Component::Normal(_))), "{}", text);
        prop_assert!(!text.contains("//") && !text.contains('\0'));
    }

    #[test]
    fn cached_times_equal_those_of_jiff(
        seconds in prop::collection::vec(prop_oneof![
            -9_000_000_000_i64..9_000_000_000,
            1_700_000_000_i64..1_700_000_200,
            63_593_000_i64..63_593_200,
        ], 1..60),
        nanos in 0..1_000_000_000_u32,
        zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "Africa/Monrovia"]),
    ) {
        let zone = TimeZone::get(zone).unwrap();
        let formats = ["%Y-%m-%d %H:%M %z", "%F %T %a", "%H.%3f.%9f"];
        let each = formats.map(|format| Template::parse(format).unwrap());
        let mut renderers = each.each_ref().map(|template| Renderer::text(template, zone.clone()));
        let rfc3339 = Template::parse("{time}").unwrap();
        let mut rfc3339 = Renderer::text(&rfc3339, zone.clone());
        let mut last: Option<(Time, [String; 3])> = None;
        for second in seconds {
            let time = Time::from_parts(second, nanos);
            let jiff = Timestamp::from_nanosecond(i128::from(time.0)).unwrap();
            let texts = renderers.each_mut().map(|r| run(r, "", Record::None, time).unwrap());
            for (text, format) in texts.iter().zip(formats) {
                let expected = jiff.to_zoned(zone.clone()).strftime(format).to_string();
                prop_assert_eq!(text, &expected);
            }
            prop_assert_eq!(run(&mut rfc3339, "", Record::None, time).unwrap(), format!("{jiff:.9}"));
            if let Some((before, old)) = &last {
                for ((renderer, old), new) in renderers.iter().zip(old).zip(&texts) {
                    prop_assert!(!renderer.same_time(*before, time) || old == new);
                }
            }
            last = Some((time, texts));
        }
    }

    #[test]
    fn any_text_is_a_template_or_an_error_with_an_offset_in_it(text in "[{}%.|:\"\\\\a-zé0-9 ]{0,20}") {
        match Template::parse(&text) {
            Ok(template) => {
                let _ = run(&mut Renderer::path(&template, TimeZone::UTC), "t", Record::Line(b"x"), TIME);
                prop_assert_eq!(template.to_string(), text);
            }
            Err(error) => prop_assert!(error.offset <= text.len()),
        }
    }

    #[test]
    fn written_field_paths_read_back(parts in prop::collection::vec(".{0,5}", 1..4)) {
        let quoted: String = parts
            .iter()
            .map(|part| format!(".\"{}\"", part.replace('\\', "\\\\").replace('"', "\\\"")))
            .collect();
        let path: FieldPath = quoted.parse().unwrap();
        prop_assert_eq!(&path.to_string().parse::<FieldPath>().unwrap(), &path);
    }
}

#[test]
fn values_become_json_if_the_template_demands_it() {
    let map = Record::Packed(b"\x82\xa1a\xa3x\"y\xa1n\x93\x01\xc0\xc3");
    let rendered = |text: &str, record| render(text, record).unwrap();
    assert_eq!(
        rendered(
            r#"{{"t":{.a:json},"n":{.n:json},"h":{host:json},"g":{tag:json}}}"#,
            map
        ),
        r#"{"t":"x\"y","n":[1,null,true],"h":"box","g":"web.front"}"#
    );
    assert_eq!(rendered("{.none:json|x}", map), "\"x\"");
    assert!(render("{.none:json}", map).is_err());
    assert_eq!(
        rendered("{record}", map),
        r#"{"a":"x\"y","n":[1,null,true]}"#
    );
    assert_eq!(
        rendered("{record}", Record::Line(b"a\tb")),
        r#"{"message":"a\tb"}"#
    );
    assert!(render("{record}", Record::None).is_err());
    for text in [
        "{time:json}",
        "{record:json}",
        "{host:yaml}",
        "{record|x}",
        "{.a:yaml}",
    ] {
        assert!(Template::parse(text).is_err(), "{text}");
    }
    assert_eq!(
        Template::parse("{host:json}").unwrap().depends(),
        Depends::Batch
    );
}

#[test]
fn no_value_changes_the_structure_of_a_url() {
    let template = Template::parse("/{.a}/x?q={.a}").unwrap();
    let mut renderer = Renderer::url(&template, TimeZone::UTC);
    let mut url = |value: &[u8]| {
        let mut map = b"\x81\xa1a".to_vec();
        crate::msgpack::write_str(&mut map, value);
        run(&mut renderer, "t", Record::Packed(&map), TIME).unwrap()
    };
    assert_eq!(url(b"a-b_c.d~9"), "/a-b_c.d~9/x?q=a-b_c.d~9");
    assert_eq!(
        url(b"../?&#% \xff"),
        "/..%2F%3F%26%23%25%20%FF/x?q=..%2F%3F%26%23%25%20%FF"
    );
    assert_eq!(url(b".."), "/_/x?q=_");
}

#[test]
fn metadata_beside_the_time_are_rendered_like_fields() {
    let mut packed = Vec::new();
    let text = br#"{"otlp":{"severity_number":17},"resource":{"service.name":"shop"},"none":null}"#;
    crate::json::to_msgpack(text, &mut packed).unwrap();
    let with = |template: &str, metadata: &[u8]| {
        let template = Template::parse(template).unwrap();
        let mut renderer = Renderer::text(&template, TimeZone::UTC);
        let (values, mut out) = (values(), Vec::new());
        let shared = Shared {
            tag: "t",
            values: &values,
        };
        let event = TimedRecord {
            time: TIME,
            record: Record::Line(b"line"),
            metadata,
        };
        let rendered = renderer.render(shared, event, &mut out);
        rendered
            .map(|()| String::from_utf8(out).unwrap())
            .map_err(|missing| missing.name.to_string())
    };
    for (template, expected) in [
        ("{metadata.otlp.severity_number}", "17"),
        (
            "{metadata.resource.\"service.name\"} {.message}",
            "shop line",
        ),
        ("{metadata.resource.\"service.name\":json}", "\"shop\""),
        ("{metadata.none|-}{metadata.other|x}", "-x"),
        ("{metadata.otlp}", "{\"severity_number\":17}"),
    ] {
        assert_eq!(
            with(template, &packed).as_deref(),
            Ok(expected),
            "{template}"
        );
    }
    assert!(
        with("{metadata}", &packed)
            .unwrap()
            .starts_with("{\"otlp\"")
    );
    assert_eq!(with("{metadata|}", &[]).as_deref(), Ok(""));
    assert_eq!(with("{metadata.a.b}", &[]), Err("metadata.a.b".to_owned()));
    assert_eq!(Template::parse("{metadata.a}").unwrap().field(), None);
    assert_eq!(
        Template::parse("{metadata.a}").unwrap().depends(),
        Depends::Record
    );
    assert!(Template::parse("{metadata.}").is_err());
    // Another name that begins in the same way is a value of the batch.
    assert_eq!(Template::parse("{metadata_x}").unwrap().values().count(), 1);
}
