//! Hostile input that is meant to take much time or memory.

use std::time::{Duration, Instant};

use super::*;

/// The time limit for these inputs. A quadratic algorithm needs minutes.
const SOON: Duration = Duration::from_secs(20);

fn soon<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    assert!(start.elapsed() < SOON, "{what} took {:?}", start.elapsed());
    result
}

#[test]
fn a_regex_that_explodes_in_other_engines_takes_linear_time() {
    let mut parser = parser(r#"{"as":"regex","pattern":"^(?<all>(a+)+)$"}"#);
    let mut text = vec![b'a'; 1 << 20];
    soon("a match", || {
        parse(&mut parser, Input::Line(&text)).unwrap()
    });
    text.push(b'!');
    let fault = soon("no match", || parse(&mut parser, Input::Line(&text)));
    assert_eq!(fault, Err(Fault::NoMatch));
}

#[test]
fn deep_nesting_is_a_fault_in_the_text_and_skipped_in_other_fields() {
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let text = [b"{\"a\":", &deep[..], b"}"].concat();
    let fault = parse(&mut parser(r#"{"as":"json"}"#), Input::Line(&text));
    assert!(fault.unwrap_err().to_string().contains("128 levels"));
    // The depth of other fields does not matter.
    let mut entry = b"\x92\x05\x82\xa1d".to_vec();
    entry.extend(std::iter::repeat_n(0x91, 100_000));
    entry.push(0xc0);
    entry.extend(b"\xa7message\xa3a=1");
    let parsed = parse(&mut parser(r#"{"as":"logfmt"}"#), Input::Entry(&entry)).unwrap();
    assert_eq!(parsed.len(), entry.len() - 12 + 4);
}

#[test]
fn many_fields_beside_and_inside_the_text_take_linear_time() {
    let count = 200_000;
    let mut entry = b"\x92\x05\xdf".to_vec();
    entry.extend((count + 1_u32).to_be_bytes());
    for n in 0..count {
        crate::msgpack::write_str(&mut entry, format!("k{}", n / 2).as_bytes());
        entry.push(1);
    }
    let text: String = (0..count).map(|n| format!("k{}=v ", n % 70_000)).collect();
    crate::msgpack::write_str(&mut entry, b"message");
    crate::msgpack::write_str(&mut entry, text.as_bytes());
    let mut parser = parser(r#"{"as":"logfmt"}"#);
    let parsed = soon("replacing", || {
        parse(&mut parser, Input::Entry(&entry)).unwrap()
    });
    let head = entry_head(&parsed, 0).unwrap();
    let mut reader = crate::msgpack::Reader::at(&parsed, head.record);
    // The parsed fields have 70,000 names, of which the last values remain, and replace the fields of these names. The other 30,000
    // names still occur twice each.
    assert_eq!(reader.map_len(), Ok(70_000 + 2 * 30_000));
}

#[test]
fn a_text_of_64_mib_is_parsed_or_refused_in_linear_time() {
    let size = 64 << 20;
    for (options, text, fits) in [
        (
            r#"{"as":"json"}"#,
            [&b"{\"a\":\""[..], &vec![b'x'; size], b"\"}"].concat(),
            true,
        ),
        (
            r#"{"as":"json"}"#,
            [&b"{\"a\":"[..], &vec![b'['; size]].concat(),
            false,
        ),
        (r#"{"as":"logfmt"}"#, vec![b'='; size], false),
        (
            r#"{"as":"logfmt"}"#,
            [&b"a=\""[..], &b"\\\"".repeat(size / 2)].concat(),
            false,
        ),
        (r#"{"as":"ltsv"}"#, vec![b'\t'; size], false),
        (
            r#"{"as":"csv","columns":["a"]}"#,
            [&b"\""[..], &vec![b'"'; size]].concat(),
            false,
        ),
        (r#"{"as":"tsv","columns":["a"]}"#, vec![b'x'; size], true),
        (r#"{"as":"apache"}"#, b"] \" ".repeat(size / 4), false),
        (r#"{"as":"nginx"}"#, vec![b'['; size], false),
        (
            r#"{"as":"syslog"}"#,
            [&b"<13>"[..], &vec![b'x'; size]].concat(),
            true,
        ),
    ] {
        let result = soon(options, || parse(&mut parser(options), Input::Line(&text)));
        assert_eq!(result.is_ok(), fits, "{options}: {:?}", result.err());
        if let Ok(entry) = result {
            assert!(entry.len() < text.len() + 100);
        }
    }
}
