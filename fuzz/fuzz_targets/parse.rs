//! Fuzzes the text formats of the processor `parse`. Any text becomes one valid entry or a fault, and a fault leaves the output
//! unchanged. Parsing the text again gives the same result. The first bytes choose the format and the options.

#![no_main]

mod whole;

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use millstream_record::Time;
use millstream_wire::{
    msgpack::{write_array_len, write_map_len, write_str, write_time},
    parse::{Fault, Input, Kind, ParseOptions, Parser, TextFormat, TimeOptions},
    syslog::TimeZone,
};

/// 2026-11-21T06:40:31.5Z
const NOW: Time = Time(1_795_243_231_500_000_000);
const FORMATS: [TextFormat; 9] = [
    TextFormat::Json,
    TextFormat::Regex,
    TextFormat::Logfmt,
    TextFormat::Ltsv,
    TextFormat::Csv,
    TextFormat::Tsv,
    TextFormat::Syslog,
    TextFormat::Apache,
    TextFormat::Nginx,
];
/// The number of combinations of options per format.
const WAYS: u8 = 8;

thread_local! {
    /// A parser for each combination of options, used for all inputs.
    static REUSED: RefCell<Vec<Parser>> = RefCell::new(
        (0..FORMATS.len() as u8 * WAYS).map(|which| parser(which / WAYS, which % WAYS)).collect(),
    );
}

fn parser(format: u8, how: u8) -> Parser {
    let format = FORMATS[usize::from(format)];
    let mut options = ParseOptions::new(format);
    match format {
        TextFormat::Regex => {
            options.pattern = Some(r"^(?<a>[^ ]*) (?<b>\w+)(?: (?<time>.*?))?(?<c>(a+)+)?$".into());
        }
        TextFormat::Csv | TextFormat::Tsv => {
            options.columns = Some(["a", "b", "c", "time"].map(String::from).to_vec());
        }
        _ => {}
    }
    if how & 1 == 1 {
        options.keep = true;
        options.types.insert("a".into(), Kind::Integer);
        options.types.insert("b".into(), Kind::Float);
        options.types.insert("c".into(), Kind::Boolean);
        options.types.insert("host".into(), Kind::String);
    }
    if how & 2 == 2 {
        options.into = "a".parse().ok();
    }
    if how & 4 == 4 && format != TextFormat::Syslog {
        options.time = Some(TimeOptions {
            format: Some("%Y-%m-%dT%H:%M:%S.%L%z".into()),
            keep: how & 1 == 1,
            ..TimeOptions::default()
        });
    }
    if how & 6 == 6 {
        options.field = ".log.in".parse().expect("a path");
    }
    Parser::new(&options, TimeZone::UTC).expect("the options go together")
}

fn parse(parser: &mut Parser, input: Input<'_>) -> Result<Vec<u8>, Fault> {
    let mut out = b"before".to_vec();
    let result = parser.entry(input, NOW, &mut out);
    assert!(out.starts_with(b"before"));
    let entry = out.split_off("before".len());
    whole::assert_whole(&entry, usize::from(result.is_ok()));
    result.map(|()| entry)
}

fuzz_target!(|data: &[u8]| {
    let [format, how, others, text @ ..] = data else {
        return;
    };
    let (format, how) = (format % FORMATS.len() as u8, how % WAYS);
    let mut entry = Vec::new();
    write_array_len(&mut entry, 2);
    write_time(&mut entry, NOW);
    write_map_len(&mut entry, u32::from(others % 32) + 2);
    for other in 0..others % 32 {
        write_str(&mut entry, &[b'a' + other % 8]);
        entry.push(other);
    }
    write_str(&mut entry, b"message");
    write_str(&mut entry, text);
    write_str(&mut entry, b"log");
    write_map_len(&mut entry, 1);
    write_str(&mut entry, b"in");
    write_str(&mut entry, text);
    REUSED.with_borrow_mut(|parsers| {
        let reused = &mut parsers[usize::from(format * WAYS + how)];
        for input in [Input::Line(text), Input::Entry(&entry)] {
            let first = parse(reused, input);
            // The second result may come from the caches of the parser. It must be the same.
            assert_eq!(parse(reused, input), first);
        }
    });
});
