//! Runs random programs on random records in two ways, and compares the results: by projection, which decodes only the fields that
//! the program names, and on a tree of all fields.

use millstream_record::Encoding;
use millstream_wire::msgpack::{
    write_array_len, write_bin, write_event_time, write_ext_head, write_f64, write_int,
    write_map_len, write_nil, write_str, write_uint,
};

use crate::{
    Options, Outcome, Program,
    rig::{Chance, batch, entry, full, run, values},
};

const FIELDS: &[&str] = &["a", "b", "c", "message", "deep"];
const STATEMENTS: &[&str] = &[
    ".F = .G",
    ".F = L",
    ".F.x = L",
    ".F.x.y = .G",
    ".F[1] = L",
    ".F[-1] = .G",
    ".F = .G.x",
    ".F = .G[0]",
    "del(.F)",
    "del(.F.x)",
    "del(.F.x, compact: true)",
    "del(.F[0], compact: true)",
    ".F = del(.G)",
    ".F = exists(.G)",
    ".F = exists(.G.x)",
    ".F = to_string(.G) ?? \"none\"",
    ".F = upcase(.G) ?? .G",
    ".F, .G = parse_json(.message)",
    ".F, err = .G + 1",
    ".F = encode_json(.G)",
    ".F = length(.G) ?? 0",
    "x = .F; .G = x",
    ".F |= {\"x\": L}",
    ".F = {\"x\": .F, \"y\": [.G, L]}",
    ".F = %tag; %tag = \"t\"",
    ".F = %time",
    ".F = now()",
    "if exists(.F) { S } else { S }",
    "if .F == .G { S }",
    "if is_string(.F) { S }",
    "for_each(object(.F) ?? {}) -> |k, v| { .G = v }",
    ".F = map_values(object(.G) ?? {}) -> |v| { is_null(v) }",
    ".F = array(.G) ?? [.G]",
];
/// Statements that read or replace the record as a whole.
const ROOT_STATEMENTS: &[&str] = &[
    ". = {}",
    ". = {\"a\": .F, \"z\": .G}",
    ". = .F",
    ". = [.F, {\"b\": .G}]",
    ". |= {\"F\": L}",
    ".F = .",
    ".F = keys(.)",
    ".F = get(., [\"b\"]) ?? null",
    ". = set(., [\"F\"], L) ?? .",
    ". = remove(., [\"F\"]) ?? .",
    ". = unnest(.F) ?? .",
    "del(.)",
    ". = compact(., recursive: false)",
    "x = .; del(.F); .G = x.F",
    "abort",
];
const LITERALS: &[&str] = &[
    "1",
    "\"text\"",
    "null",
    "true",
    "1.5",
    "[1, {\"x\": 2}]",
    "{\"x\": {\"y\": 3}}",
    "{}",
    "[]",
];

fn statement(chance: &mut Chance, with_root: bool, depth: usize) -> String {
    let templates = match with_root && chance.below(5) == 0 {
        true => ROOT_STATEMENTS,
        false => STATEMENTS,
    };
    let mut template = chance.pick(templates);
    while depth > 2 && template.contains(" S ") {
        template = chance.pick(templates);
    }
    let mut out = String::new();
    for (index, part) in template.split(" S ").enumerate() {
        if index > 0 {
            out.push_str(&format!(" {} ", statement(chance, with_root, depth + 1)));
        }
        let part = part.replace(".F", &format!(".{}", chance.pick(FIELDS)));
        let part = part.replace(".G", &format!(".{}", chance.pick(FIELDS)));
        let part = part.replace("\"F\"", &format!("\"{}\"", chance.pick(FIELDS)));
        out.push_str(&part.replace('L', chance.pick(LITERALS)));
    }
    out
}

fn value(chance: &mut Chance, depth: usize, out: &mut Vec<u8>) {
    match chance.below(if depth > 3 { 9 } else { 12 }) {
        0 => write_nil(out),
        1 => write_int(out, -300 + chance.below(600) as i64),
        2 => write_uint(out, u64::MAX - chance.below(3) as u64),
        3 => write_f64(out, chance.below(100) as f64 / 8.0),
        4 => write_bin(out, b"\xff\xfe"),
        5 => write_event_time(out, chance.below(1 << 30) as u32, 5),
        6 => {
            write_ext_head(out, 42, 2);
            out.extend_from_slice(b"xy");
        }
        7 => write_str(out, b"{\"x\":[1,{\"y\":null}]}"),
        8 => write_str(out, chance.pick(&["text", "", "5", "T\u{e4}xt"]).as_bytes()),
        9 => {
            let length = chance.below(4);
            write_array_len(out, length as u32);
            (0..length).for_each(|_| value(chance, depth + 1, out));
        }
        _ => {
            let length = chance.below(4);
            write_map_len(out, length as u32);
            for _ in 0..length {
                write_str(out, chance.pick(&["x", "y", "a", "x"]).as_bytes());
                value(chance, depth + 1, out);
            }
        }
    }
}

fn record(chance: &mut Chance) -> Vec<u8> {
    let mut out = Vec::new();
    let length = chance.below(9);
    write_map_len(&mut out, length as u32);
    for _ in 0..length {
        match chance.below(10) {
            0 => out.push(5),
            1 => write_bin(&mut out, b"b"),
            _ => write_str(
                &mut out,
                chance
                    .pick(&["a", "b", "c", "message", "deep", "other", "more", "5"])
                    .as_bytes(),
            ),
        }
        value(chance, 0, &mut out);
    }
    out
}

fn compare(text: &str, program: &Program, record: &[u8]) {
    let batch = batch(Encoding::Packed, entry(record), 1);
    let wanted = full(program, &batch);
    let (outcome, out, _) = run(text, &batch);
    match (outcome, wanted) {
        (Outcome::Unchanged, Ok(wanted)) => assert_eq!(values(&batch.body), wanted, "{text}"),
        (Outcome::Written(count), Ok(wanted)) => {
            assert_eq!(count as usize, wanted.len(), "{text}");
            assert_eq!(values(&out), wanted, "{text}\n{:?}", values(&batch.body));
        }
        (Outcome::Aborted(_), Err(why)) => assert_eq!(why, "abort", "{text}"),
        (Outcome::Failed(_), Err(why)) => assert_ne!(why, "abort", "{text}"),
        (outcome, wanted) => panic!("{text}: {outcome:?}, and with the tree {wanted:?}"),
    }
}

fn random_programs(with_root: bool, seed: u64) {
    let mut chance = Chance(seed);
    let mut compiled = 0;
    while compiled < 400 {
        let statements = 1 + chance.below(5);
        let lines: Vec<String> = (0..statements)
            .map(|_| statement(&mut chance, with_root, 0))
            .collect();
        let text = lines.join("\n");
        let Ok((program, _)) = Program::compile(&text, &Options::default()) else {
            continue;
        };
        compiled += 1;
        assert!(with_root || program.fields().is_some(), "{text}");
        for _ in 0..8 {
            compare(&text, &program, &record(&mut chance));
        }
    }
}

#[test]
fn programs_on_fields_give_the_same_result_as_on_the_full_tree() {
    random_programs(false, 1);
}

#[test]
fn programs_on_the_root_give_the_same_result_as_on_the_full_tree() {
    random_programs(true, 2);
}

#[test]
fn random_bytes_never_panic_and_values_survive_a_second_pass() {
    let mut chance = Chance(3);
    let programs = [
        ".a = .b",
        ".x = length(.)",
        ". = {\"r\": .}",
        "del(.a)",
        ".a.x = .c",
    ];
    for _ in 0..3000 {
        let mut bytes = entry(&record(&mut chance));
        let is_damaged = chance.below(2) == 0;
        if is_damaged {
            for _ in 0..=chance.below(3) {
                let at = chance.below(bytes.len());
                bytes[at] = chance.below(256) as u8;
            }
            bytes.truncate(1 + chance.below(bytes.len()));
        }
        let text = chance.pick(&programs);
        let length = bytes.len();
        let (outcome, out, remap) = run(text, &batch(Encoding::Packed, bytes, 1));
        assert!((1..=length).contains(&remap.next()));
        if let (Outcome::Written(1), false) = (outcome, is_damaged) {
            // The result is an entry. Decoding and encoding all of it changes no value.
            let again = batch(Encoding::Packed, out.clone(), 1);
            let (_, second, _) = run(". = .", &again);
            assert_eq!(values(&second), values(&out), "{text}");
        }
    }
}
