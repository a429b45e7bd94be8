//! Fuzzes programs and conditions in VRL with any bytes as the body of a batch. They terminate and always advance. Two instances of a
//! program write the same output, and the output for a valid batch is valid.

#![no_main]

use std::{
    cell::RefCell,
    sync::{Arc, LazyLock},
};

use libfuzzer_sys::fuzz_target;
use millstream_record::{Batch, Encoding, Time, Values};
use millstream_vrl::{Condition, Options, Outcome, Predicate, Program, Remap};
use millstream_wire::msgpack::Walker;

/// Programs that reach every way of reading and writing a record.
const PROGRAMS: [&str; 8] = [
    ".a = to_string(.b) ?? \"none\"\ndel(.c)",
    "if exists(.a.b) { .a.b = null }\n.d[1] = .b",
    ". = merge(., {\"n\": length(keys(.))})",
    ". = [., {\"at\": %time, \"id\": uuid_v7()}, .message]",
    "%tag = to_string(.a) ?? \"t\"\n%host = to_string(.b) ?? null\n%time = now()",
    ".p = parse_json(string(.message) ?? \"\") ?? parse_logfmt(string(.message) ?? \"\") ?? null",
    ". = map_values(., recursive: true) -> |v| { if is_string(v) { upcase(string!(v)) } else { v } }",
    ".s = parse_syslog!(.message)\n.r = random_int(0, 9)\nif .r == 3 { abort }",
];
const CONDITIONS: [&str; 2] = [
    "exists(.a) && (.a > 1.5) ?? false || %host == \"web-1\"",
    "match(string(.message) ?? \"\", r'^x+$') || .a.b[0] == 1",
];

thread_local! {
    /// Two instances of each program, which process all inputs. Their outputs must be equal.
    static REMAPS: RefCell<Vec<[Remap; 2]>> = RefCell::new(
        PROGRAMS.iter().map(|text| {
            let (program, _) = Program::compile(text, &Options::default()).expect("it compiles");
            [Remap::new(&program), Remap::new(&program)]
        }).collect(),
    );
    static PREDICATES: RefCell<Vec<Predicate>> = RefCell::new(
        CONDITIONS.iter().map(|text| {
            let (condition, _) = Condition::compile(text, &Options::default()).expect("it compiles");
            Predicate::new(&condition)
        }).collect(),
    );
}

static VALUES: LazyLock<Arc<Values>> = LazyLock::new(|| {
    let mut values = Values::new();
    values.set("host", "web-1");
    Arc::new(values)
});

/// Runs a program on a batch. Returns the entries that it wrote, and their number.
fn run(remap: &mut Remap, batch: &Batch) -> (Vec<u8>, u32) {
    let (mut out, mut count, mut at) = (Vec::new(), 0, 0);
    remap.begin(batch, 0);
    while at < batch.len() {
        let before = out.len();
        match remap.run(at, &mut out) {
            Outcome::Written(more) => count += more,
            Outcome::Unchanged | Outcome::Aborted(_) | Outcome::Failed(_) => {
                assert_eq!(out.len(), before);
            }
        }
        assert!(remap.next() > at && remap.next() <= batch.len());
        at = remap.next();
    }
    remap.end();
    (out, count)
}

fuzz_target!(|data: &[u8]| {
    let [how, body @ ..] = data else {
        return;
    };
    let is_lines = how & 0x80 != 0;
    let mut walker = Walker::new();
    let is_valid = is_lines
        || walker.walk(body).is_ok() && walker.whole() == body.len() && walker.misfits() == 0;
    let batch = Batch {
        tag: "t".into(),
        encoding: if is_lines {
            Encoding::Lines
        } else {
            Encoding::Packed
        },
        plain: false,
        body: body.to_vec().into(),
        count: walker.entries(),
        received: Time(1_795_243_231_500_000_000),
        values: VALUES.clone(),
        origins: Vec::new(),
    };
    let which = usize::from(how & 0x7f);
    REMAPS.with_borrow_mut(|remaps| {
        let [first, second] = &mut remaps[which % PROGRAMS.len()];
        let (out, count) = run(first, &batch);
        assert_eq!(run(second, &batch), (out.clone(), count));
        if is_valid {
            let mut walker = Walker::new();
            assert!(walker.walk(&out).is_ok());
            assert_eq!(
                (walker.whole(), walker.entries(), walker.misfits()),
                (out.len(), count, 0)
            );
        }
    });
    PREDICATES.with_borrow_mut(|predicates| {
        let predicate = &mut predicates[which % CONDITIONS.len()];
        predicate.begin(&batch);
        let mut at = 0;
        while at < batch.len() {
            let _ = predicate.matches(at);
            assert!(predicate.next() > at && predicate.next() <= batch.len());
            at = predicate.next();
        }
        predicate.end();
    });
});
