//! Speed of programs: `cargo bench --workspace --features millstream-vrl/vrl --bench remap`. Prints the throughput from packed
//! bytes to packed bytes, in thousands of records per second. For comparison, it prints the throughput of the plain crate `vrl`,
//! which clones a tree in memory for each record, runs the program on the clone and leaves the result as a tree. The fastest lap
//! counts, because other work on the machine can only make a lap slower.

mod cases;

use std::hint::black_box;

use millstream_record::Batch;
use millstream_vrl::{Options, Outcome, Program, Remap};
use vrl::{
    compiler::{TargetValue, TimeZone, runtime::Runtime},
    value::{Secrets, Value},
};

use cases::{RECORDS, batch, fastest};

fn packed(text: &str, batch: &Batch) -> f64 {
    let (program, _) = Program::compile(text, &Options::default()).expect("it compiles");
    let mut remap = Remap::new(&program);
    let mut out = Vec::new();
    fastest(|| {
        out.clear();
        remap.begin(batch, 0);
        let mut at = 0;
        while at < black_box(batch).body.len() {
            let outcome = remap.run(at, &mut out);
            assert!(matches!(outcome, Outcome::Written(1)), "{outcome:?}");
            at = remap.next();
        }
        black_box(&out);
    })
}

fn bare(text: &str, record: &str) -> f64 {
    let compiled = vrl::compiler::compile(text, &vrl::stdlib::all()).expect("it compiles");
    let tree: Value = {
        let Ok(Value::Object(map)) = json_value(record) else {
            unreachable!("it is an object")
        };
        Value::Object(map)
    };
    let mut runtime = Runtime::default();
    let zone = TimeZone::parse("UTC").expect("it is a zone");
    fastest(|| {
        for _ in 0..RECORDS {
            let mut target = TargetValue {
                value: black_box(&tree).clone(),
                metadata: Value::Object(Default::default()),
                secrets: Secrets::new(),
            };
            runtime
                .resolve(&mut target, &compiled.program, &zone)
                .expect("it runs");
            runtime.clear();
            black_box(&target);
        }
    })
}

/// Parses JSON into a tree with VRL's own `parse_json`.
fn json_value(text: &str) -> Result<Value, String> {
    let program = format!("parse_json!(s'{text}')");
    let compiled = vrl::compiler::compile(&program, &vrl::stdlib::all())
        .map_err(|_| "it does not compile".to_owned())?;
    let mut target = TargetValue {
        value: Value::Object(Default::default()),
        metadata: Value::Object(Default::default()),
        secrets: Secrets::new(),
    };
    let zone = TimeZone::default();
    Runtime::default()
        .resolve(&mut target, &compiled.program, &zone)
        .map_err(|error| error.to_string())
}

#[allow(clippy::print_stdout)]
fn main() {
    for (name, text, record) in cases::chosen() {
        let batch = batch(record);
        let (packed, bare) = (packed(text, &batch), bare(text, record));
        println!(
            "{name}: {packed:.0} k/s packed to packed, {bare:.0} k/s bare, {:.2} times",
            packed / bare
        );
    }
}
